package box

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/jail"
	"hutch/internal/jail/filter"
	"hutch/internal/policy"
	"hutch/internal/supervise"
	"hutch/internal/view"
	"hutch/internal/workspace"
)

// view decides what the box sees and by which name it knows its home.
func (r *run) view() {
	home := r.user.Home
	if env := os.Getenv("HOME"); filepath.IsAbs(env) && r.user.UID == uint32(os.Geteuid()) {
		home = env
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	if home = filepath.Clean(home); home == "/" {
		home = "/tmp"
	}
	r.host = view.Host{
		User: r.user, Read: r.policy.Read, Write: r.policy.Write, Hide: r.policy.Hide, Toolchains: r.policy.Toolchains, WholeRoot: r.policy.WholeRoot,
		Nested: r.trusted, Refused: r.refused,
		Home: home, Path: filepath.SplitList(os.Getenv("PATH")), Env: os.Environ(), Workspace: r.ws.Path, StateDir: r.store.Path,
	}
}

// terminal makes the command's pseudo-terminal, which keeps the size of the
// caller's.
func (r *run) terminal(ctx context.Context) *supervise.Terminal {
	like, _ := r.Stdin.(*os.File)
	terminal := supervise.NewTerminal(like)
	if like == nil || r.Resized == nil {
		return terminal
	}
	go func() {
		for {
			select {
			case <-r.Resized:
				terminal.Resize()
			case <-ctx.Done():
				return
			}
		}
	}()
	return terminal
}

// spawn starts a box and lets it make its namespaces.
func (r *run) spawn() error {
	r.out.Missing = r.out.Missing[:0]
	var err error
	if r.plan, err = r.jail(); err != nil {
		return err
	}
	r.limits(r.plan)
	defer r.group.CloseProcs()
	defer r.pinCPUs()()
	r.box, err = jail.Start(r.plan.Base(), r.group.Procs())
	return err
}

// abandon ends a box that was started, and removes its cgroup.
func (r *run) abandon() {
	if r.box != nil {
		r.box.Kill()
		_, _ = r.box.Reap()
		r.box = nil
	}
	r.group.Remove()
	r.group = nil
}

func (r *run) missing(what string) {
	if !slices.Contains(r.out.Missing, what) {
		r.out.Missing = append(r.out.Missing, what)
		slices.Sort(r.out.Missing)
	}
}

// prepare makes the branch and decides what the box sees.
func (r *run) prepare(ctx context.Context, strategy workspace.Strategy) error {
	b := r.plan
	var err error
	if r.user, err = r.target(); err != nil {
		return err
	}
	if r.privileged {
		b.User = r.user
	}
	r.watchTasks()
	r.view()
	if r.seen, err = view.Look(r.host); err != nil {
		return err
	}
	if r.policy.FSRead {
		if r.hidden, err = view.Hidden(r.ws.FD, r.host); err != nil {
			return err
		}
	}
	if r.Commit || r.Preserve { // else nothing can ever be promoted
		if r.stamp, err = workspace.TakeStamp(r.ws); err != nil {
			return err
		}
	}
	start := time.Now()
	r.out.FilesCloned = nil
	r.branch = &workspace.Branch{Strategy: strategy, Form: changeset.Overlay, FilesCloned: -1}
	if r.RAM {
		r.out.Layer = "ram"
		if !r.trusted && !kernelAtLeast(6, 6) { // a tmpfs then keeps no attributes of users
			r.note("before Linux 6.6 a layer in RAM cannot hold a directory where the workspace's was removed: EIO")
		}
	} else if !r.policy.FSRead {
		// No branch is shown, so none is made.
	} else if r.branch, err = workspace.Make(ctx, workspace.Request{Workspace: r.ws, Strategy: strategy, BoxFD: r.dir.fd, BoxPath: r.dir.path, UserAttrs: !r.trusted, Hidden: r.hidden}); err != nil {
		return err
	}
	if err := r.keepBase(ctx); err != nil {
		return err
	}
	r.out.CloneDurationMicros = time.Since(start).Microseconds()
	r.out.Strategy = string(strategy)
	if n := r.branch.FilesCloned; n >= 0 {
		r.out.FilesCloned = &n
	}
	b.Workspace, b.Home = r.ws.Path, r.host.Home
	b.Show, b.Links, b.Masks, b.Files, b.Parts = r.seen.Shows, r.seen.Links, r.seen.Masks, r.seen.Files, r.seen.Parts
	var gitDirs []string
	if r.policy.FSRead {
		if gitDirs, err = workspace.GitDirs(r.ws); err != nil {
			r.note("%v", err)
		}
	}
	for _, dir := range gitDirs {
		b.Show = append(b.Show, view.Show{Path: dir, Mode: view.CopyOnWrite})
	}
	b.ApartCaches = r.apartCaches || r.policy.WholeRoot
	for i := range b.Show {
		if slices.Contains(r.readOnly, b.Show[i].Path) {
			b.Show[i].Mode = view.ReadOnly
		}
	}
	switch {
	case r.RAM:
		b.Mount = policy.Mount{Lower: r.ws.Path, Mode: r.ws.Stat.Mode, Absent: r.hidden}
		if b.Mount.Dirs, err = view.LayerDirs(r.ws.FD, r.hidden); err != nil {
			return err
		}
	case r.branch.Form == changeset.Tree:
		b.Mount = policy.Mount{Tree: filepath.Join(r.dir.path, r.branch.Layer)}
	default:
		b.Mount = policy.Mount{Lower: r.ws.Path, Upper: filepath.Join(r.dir.path, r.branch.Layer), Work: filepath.Join(r.dir.path, r.branch.Work)}
	}
	if b.CacheDirs, err = r.cacheDirs(b.Caches()); err != nil {
		return err
	}
	if b.Copies, err = r.copies(b.Parts); err != nil {
		return err
	}
	if err := r.boundLayers(b); err != nil {
		return err
	}
	r.env = view.Environ(os.Environ(), view.EnvOptions{
		Box: r.id, User: r.user.Name, Home: r.host.Home, Workspace: r.ws.Path, Shows: b.Show, Links: b.Links, Pass: r.policy.EnvPass, Set: r.policy.EnvSet, Fixed: r.fixed(),
	})
	return nil
}

// target decides whom the command runs as.
func (r *run) target() (view.User, error) {
	invoking := view.ID{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	owner := invoking
	if r.ws != nil {
		owner = view.ID{UID: r.ws.Stat.UID, GID: r.ws.Stat.GID}
	}
	return view.Target(owner, invoking, r.User)
}

// hostname is one that every resolver knows without asking a network: a
// program that asks for the address of its own name must not stall or fail.
const hostname = "localhost"

// jail decides in which namespaces the box lives, and what it may not do. Whom
// root's command runs as is decided later, by the workspace's owner.
func (r *run) jail() (*policy.Box, error) {
	b := &policy.Box{
		Privileged: r.privileged, Trusted: r.trusted,
		Policy:  r.policy,
		Network: r.policy.Network, Hostname: hostname, LandlockABI: landlockABI(), Filter: filter.Default(), Ports: filter.Ports(), Commands: commandFilters,
	}
	if b.LandlockABI == 0 {
		r.missing("landlock")
	}
	if r.privileged {
		var err error
		if b.UIDMap, err = policy.IDMap("/proc/self/uid_map"); err == nil {
			b.GIDMap, err = policy.IDMap("/proc/self/gid_map")
		}
		if err != nil {
			return nil, err
		}
	} else {
		user, err := r.target()
		if err != nil {
			return nil, err
		}
		b.User = user
		if user.Root {
			b.User.UID, b.User.GID = 0, 0
		}
		b.UIDMap = fmt.Sprintf("%d %d 1", b.User.UID, user.UID)
		b.GIDMap = fmt.Sprintf("%d %d 1", b.User.GID, user.GID)
		b.Owners = filter.Owners(b.User.UID, b.User.GID)
	}
	return b, nil
}

// commandFilters are the programs that the commands of a box carry.
func commandFilters(renames, debug, subprocess bool) (told, untold []byte) {
	c := filter.Command{Renames: renames, NoDebug: !debug, NoSubprocess: !subprocess}
	told = c.Program()
	c.Renames, c.Untold = false, true
	return told, c.Program()
}

// privileges tells whether mounts can be made before a user namespace is
// entered, and whether overlays may use trusted attributes.
func privileges() (privileged, trusted bool) {
	if os.Geteuid() != 0 {
		return false, false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&head, &data[0]) != nil {
		return false, false
	}
	need := uint32(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_NET_ADMIN)
	if data[0].Effective&need != need {
		return false, false
	}
	// The initial user namespace has a fixed inode (PROC_USER_INIT_INO).
	const initial = 0xeffffffd
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/user", &st)
	return true, err == nil && st.Ino == initial
}

// landlockABI asks the kernel for the newest Landlock ABI it knows; 0 is none.
func landlockABI() int {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

func search(env []string) string {
	for _, e := range env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			return path
		}
	}
	return "/usr/local/bin:/usr/bin:/bin"
}
