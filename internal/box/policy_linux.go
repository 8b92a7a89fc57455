package box

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/workspace"
)

// Policy puts together what would be in force for a request, without running
// anything.
func Policy(req Request) (*policy.InForce, error) {
	sources, before, err := sources(req)
	if err != nil {
		return nil, err
	}
	if before == nil { // opening it says what is wrong
		ws, err := workspace.Open(cmp.Or(req.Workspace, "."), true)
		if err != nil {
			return nil, err
		}
		ws.Close()
	}
	force, err := policy.Resolve(sources)
	if err != nil || !force.WholeRoot {
		return force, err
	}
	lines, err := unwritable(req, force)
	if len(lines) > 0 {
		force.Notes = append(force.Notes, cannotWrite(lines))
	}
	return force, err
}

// resolve puts the policy together. It is wanted before a box is made, and so
// before all that opening a workspace takes: the function that it returns says
// whether the workspace opened later is the one whose policy was read, and that
// policy still the same.
func (r *run) resolve() (at string, unchanged func(*workspace.Workspace) error, err error) {
	sources, before, err := sources(r.Request)
	if err != nil {
		return "", nil, err
	}
	force, err := policy.Resolve(sources)
	if err != nil {
		return "", nil, err
	}
	r.policy = *force
	r.out.Notes = append(r.out.Notes, force.Notes...)
	if !force.FSWrite && (r.Commit || r.Preserve) {
		r.note("capabilities.fs_write is off (%s): the workspace is read-only in the box, and there is nothing to promote or to keep", force.Origin("capabilities.fs_write"))
		r.Commit, r.Preserve = false, false
	}
	return sources.Path, func(ws *workspace.Workspace) error {
		if before == nil || *before != seen(ws.FD, ws.Stat) {
			return fmt.Errorf("workspace %q or its %s changed while hutch started; run it again", ws.Path, policy.WorkspaceFile)
		}
		return nil
	}, nil
}

// place tells one state of a workspace and its policy from another.
type place struct{ dir, file fsat.Stat }

func seen(fd int, dir fsat.Stat) place {
	p := place{dir: fsat.Stat{Ino: dir.Ino, Dev: dir.Dev}}
	if st, err := fsat.LstatName(fd, policy.WorkspaceFile); err == nil {
		p.file = fsat.Stat{Ino: st.Ino, Size: st.Size, Ctime: st.Ctime, Mtime: st.Mtime}
	}
	return p
}

// sources finds what a policy comes from. The place is nil where there is no
// workspace to open.
func sources(req Request) (policy.Sources, *place, error) {
	from := callerOf(req)
	s := policy.Sources{Given: req.Policy, GivenBy: req.PolicyBy, File: req.PolicyFile, Environ: from, UserFile: from.configFile(), Home: from.home}
	fd, err := unix.Open(cmp.Or(req.Workspace, "."), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return s, nil, nil
	}
	defer unix.Close(fd)
	dir, err := fsat.Fstat(fd)
	if err != nil {
		return s, nil, err
	}
	before := seen(fd, dir)
	if s.Path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		return s, nil, err
	}
	if s.State, err = workspace.StateDir(); err != nil {
		return s, nil, err
	}
	s.Workspace, err = policy.ReadWorkspace(fd)
	return s, &before, err
}

// caller is the environment of whoever asked: of a box that lives it is not
// that of the process which holds the box.
type caller []string

func callerOf(req Request) caller {
	if req.Environ == nil {
		return os.Environ()
	}
	return req.Environ
}

// get returns the value of a variable; of two, the first, as getenv(3) does.
func (c caller) get(name string) string {
	for _, e := range c {
		if value, ok := strings.CutPrefix(e, name); ok && strings.HasPrefix(value, "=") {
			return value[1:]
		}
	}
	return ""
}

// configFile is the user's own configuration; "" where he can have none.
func (c caller) configFile() string {
	base := c.get("XDG_CONFIG_HOME")
	switch home := c.get("HOME"); {
	case base == "" && home == "":
		return ""
	case base == "":
		base = filepath.Join(home, ".config")
	case !filepath.IsAbs(base):
		return ""
	}
	return filepath.Join(base, "hutch", "config.toml")
}

// home is what "~" means in a policy.
func (c caller) home() (string, error) {
	home := c.get("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("HOME is not set, so nothing can begin with ~/; give an absolute path")
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	return filepath.Clean(home), nil
}

// denied refuses what the policy does not grant before anything is started.
func (r *run) denied(at string) bool {
	for _, d := range r.policy.Check(policy.Call{Workspace: at, Command: r.Argv, Terminal: r.Terminal}) {
		r.out.Denied = append(r.out.Denied, outcome.Denial(d))
	}
	if len(r.out.Denied) == 0 {
		return false
	}
	r.out.Status = outcome.Denied
	r.out.Error = "denied: " + r.out.Denied[0].Why + "; " + r.out.Denied[0].Do
	return true
}
