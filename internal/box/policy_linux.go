package box

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/workspace"
)

// Policy puts together what would be in force for a request, without running
// anything.
func Policy(req Request) (*policy.InForce, error) {
	r := &run{Request: req, out: &outcome.Outcome{}}
	_, err := r.resolve()
	return &r.policy, err
}

// resolve puts the policy together. It is wanted before a box is made, and so
// before all that opening a workspace takes: the function that it returns says
// whether the workspace opened later is the one whose policy was read, and that
// policy still the same.
func (r *run) resolve() (unchanged func(*workspace.Workspace) error, err error) {
	sources := policy.Sources{
		Given: r.Policy, GivenBy: r.PolicyBy, File: r.PolicyFile, Environ: os.Environ(), UserFile: configFile(), Workspace: -1,
		Home: func() (string, error) { return r.home() },
	}
	name := cmp.Or(r.Workspace, ".")
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	before := fsat.Stat{}
	if err == nil {
		defer unix.Close(fd)
		if before, err = fsat.Fstat(fd); err != nil {
			return nil, err
		}
		sources.Workspace = fd
		if sources.Path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
			return nil, err
		}
		if sources.State, err = workspace.StateDir(); err != nil {
			return nil, err
		}
	} // else opening the workspace says what is wrong with it
	file := policyFile(fd)
	force, err := policy.Resolve(sources)
	if err != nil {
		return nil, err
	}
	r.policy = *force
	r.out.Notes = append(r.out.Notes, force.Notes...)
	if !force.FSWrite && (r.Commit || r.Preserve) {
		r.note("capabilities.fs_write is off (%s): the workspace is read-only in the box, and there is nothing to promote or to keep", force.Origin("capabilities.fs_write"))
		r.Commit, r.Preserve = false, false
	}
	return func(ws *workspace.Workspace) error {
		if sources.Workspace < 0 || ws.Stat.Ino != before.Ino || ws.Stat.Dev != before.Dev || policyFile(ws.FD) != file {
			return fmt.Errorf("workspace %q or its %s changed while hutch started; run it again", ws.Path, policy.WorkspaceFile)
		}
		return nil
	}, nil
}

// policyFile tells one state of a workspace's policy from another.
func policyFile(dir int) fsat.Stat {
	st, err := fsat.LstatName(dir, policy.WorkspaceFile)
	if err != nil {
		return fsat.Stat{}
	}
	return fsat.Stat{Ino: st.Ino, Size: st.Size, Ctime: st.Ctime, Mtime: st.Mtime}
}

// home is what "~" means in a policy.
func (r *run) home() (string, error) {
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) {
		return "", errors.New("HOME is not set, so nothing can begin with ~/; give an absolute path")
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	return filepath.Clean(home), nil
}

// denied refuses what the policy does not grant before anything is started.
func (r *run) denied() bool {
	for _, d := range r.policy.Refuse(policy.Call{Argv: r.Argv, Terminal: r.Terminal}) {
		r.out.Denied = append(r.out.Denied, outcome.Denial(d))
	}
	if len(r.out.Denied) == 0 {
		return false
	}
	r.out.Status = outcome.Denied
	r.out.Error = "denied: " + r.out.Denied[0].Why + "; " + r.out.Denied[0].Do
	return true
}
