package box

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/jail/filter"
	"hutch/internal/outcome"
	"hutch/internal/plan"
	"hutch/internal/policy"
	"hutch/internal/supervise"
	"hutch/internal/view"
	"hutch/internal/workspace"
)

// cell is what a jail is made from and what it is bounded by: all that the run
// of one command and a box that lives have in common.
type cell struct {
	id       string // names its cgroup
	caller   caller
	asUser   string // whom to run as; "" decides by the workspace's owner
	resident bool   // it outlives its commands
	policy   policy.InForce
	ws       *workspace.Workspace
	state    string           // hutch's state directory
	dir      *dir             // where the layers of caches and the copies lie
	out      *outcome.Outcome // what is missing here, and what there is to say of it

	host view.Host
	user view.User

	privileged, trusted bool
	group               *jail.Cgroup
	ungiven             []string // limits that no cgroup holds
	noPidMax            bool     // the box cannot set its own pid_max
	tasks               int64    // processes that supervise has to count; 0: none
	disk                *supervise.Disk
	plan                *policy.Box // what the box's plan is compiled from
	box                 *jail.Box   // started, and waiting for the rest of its plan
	apartCaches         bool        // each cache has an overlay of its own
	readOnly            []string    // caches of which the kernel makes no overlay
	refused             []string    // parts of a whole root, likewise
	seen                *view.View
	hidden              []string // of the workspace, relative
}

func newCell(req Request, out *outcome.Outcome) cell {
	c := cell{caller: callerOf(req), asUser: req.User, out: out}
	c.privileged, c.trusted = privileges()
	return c
}

func (c *cell) note(format string, args ...any) {
	if note := fmt.Sprintf(format, args...); !slices.Contains(c.out.Notes, note) { // a box may be begun more than once
		c.out.Notes = append(c.out.Notes, note)
	}
}

func (c *cell) missing(what string) {
	if !slices.Contains(c.out.Missing, what) {
		c.out.Missing = append(c.out.Missing, what)
		slices.Sort(c.out.Missing)
	}
}

// spawn starts a box and lets it make its namespaces.
func (c *cell) spawn() error {
	c.out.Missing = c.out.Missing[:0]
	var err error
	if c.plan, err = c.jail(); err != nil {
		return err
	}
	c.limits(c.plan)
	defer c.group.CloseProcs()
	start := func() {
		defer c.pinCPUs()()
		c.box, err = jail.Start(c.plan.Base(), c.group.Procs())
	}
	if c.resident {
		jail.OnSpawner(start)
	} else {
		start()
	}
	return err
}

// abandon ends a box that was started, and removes its cgroup.
func (c *cell) abandon() {
	if c.box != nil {
		c.box.Kill()
		_, _ = c.box.Reap()
		c.box = nil
	}
	c.group.Remove()
	c.group = nil
}

// look decides whom the box runs as, what it sees, and what of the workspace is
// kept from it.
func (c *cell) look() error {
	var err error
	if c.user, err = c.target(); err != nil {
		return err
	}
	if c.privileged {
		c.plan.User = c.user
	}
	c.watchTasks()
	c.view()
	if c.seen, err = view.Look(c.host); err != nil {
		return err
	}
	if c.policy.FSRead && !c.resident {
		c.hidden, err = view.Hidden(c.ws.FD, c.host)
	}
	return err
}

// hiddenFrom lists what the branch of a box that lives is made without, beside
// hutch's own directory: what the policy hides, and all of the workspace that
// another box has masked, since a mask would go with the mount that it lies on.
func hiddenFrom(ws *workspace.Workspace, force *policy.InForce, state string, req Request) ([]string, error) {
	if !force.FSRead {
		return nil, nil
	}
	c := newCell(req, outcome.New())
	c.policy, c.ws, c.state = *force, ws, state
	var err error
	if c.user, err = c.target(); err != nil {
		return nil, err
	}
	c.view()
	seen, err := view.Look(c.host)
	if err != nil {
		return nil, err
	}
	hidden, err := view.Hidden(ws.FD, c.host)
	if err != nil {
		return nil, err
	}
	for _, path := range seen.Masks {
		if rel, ok := strings.CutPrefix(path, strings.TrimSuffix(ws.Path, "/")+"/"); ok && !slices.ContainsFunc(hidden, func(above string) bool { return fsat.Within(rel, above) }) {
			hidden = append(hidden, rel)
		}
	}
	slices.Sort(hidden)
	return hidden, nil
}

// view decides what the box sees and by which name it knows its home.
func (c *cell) view() {
	home := c.user.Home
	if env := c.caller.get("HOME"); filepath.IsAbs(env) && c.user.UID == uint32(os.Geteuid()) {
		home = env
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	if home = filepath.Clean(home); home == "/" {
		home = "/tmp"
	}
	c.host = view.Host{
		User: c.user, Read: c.policy.Read, Write: c.policy.Write, Hide: c.policy.Hide, Toolchains: c.policy.Toolchains, WholeRoot: c.policy.WholeRoot,
		Nested: c.trusted, Refused: c.refused,
		Home: home, Path: filepath.SplitList(c.caller.get("PATH")), Env: c.caller, Workspace: c.ws.Path, StateDir: c.state,
	}
}

// furnish puts into the plan what the box sees beside its branch, and makes
// what that takes in the cell's directory.
func (c *cell) furnish() error {
	err := c.show()
	if err != nil {
		return err
	}
	if c.plan.CacheDirs, err = c.cacheDirs(c.plan.Caches()); err != nil {
		return err
	}
	c.plan.Copies, err = c.copies(c.plan.Parts)
	return err
}

// show puts into the plan what the box sees beside its branch.
func (c *cell) show() error {
	b := c.plan
	b.Workspace, b.Home = c.ws.Path, c.host.Home
	b.Show, b.Links, b.Masks, b.Files, b.Parts = c.seen.Shows, c.seen.Links, c.seen.Masks, c.seen.Files, c.seen.Parts
	var gitDirs []string
	var err error
	if c.policy.FSRead {
		if gitDirs, err = workspace.GitDirs(c.ws); err != nil {
			c.note("%v", err)
		}
	}
	for _, dir := range gitDirs {
		b.Show = append(b.Show, view.Show{Path: dir, Mode: view.CopyOnWrite})
	}
	b.ApartCaches = c.apartCaches || c.policy.WholeRoot
	for i := range b.Show {
		if slices.Contains(c.readOnly, b.Show[i].Path) {
			b.Show[i].Mode = view.ReadOnly
		}
	}
	return nil
}

// environ is the environment of a box's commands.
func (c *cell) environ(box string) []string {
	return view.Environ(c.caller, view.EnvOptions{
		Box: box, User: c.user.Name, Home: c.host.Home, Workspace: c.ws.Path, Shows: c.plan.Show, Links: c.plan.Links, Pass: c.policy.EnvPass, Set: c.policy.EnvSet, Fixed: c.fixed(),
	})
}

// target decides whom the command runs as.
func (c *cell) target() (view.User, error) {
	invoking := view.ID{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	owner := invoking
	if c.ws != nil {
		owner = view.ID{UID: c.ws.Stat.UID, GID: c.ws.Stat.GID}
	}
	return view.Target(owner, invoking, c.asUser)
}

// owner is whom a command's pipes are given to.
func (c *cell) owner() *supervise.Owner {
	if c.privileged && c.user.UID != 0 {
		return &supervise.Owner{UID: c.user.UID, GID: c.user.GID}
	}
	return nil
}

// yield gives up what the kernel refused of the plan, where the box can do
// without, and reports whether that is so.
func (c *cell) yield(step *jail.StepError) bool {
	switch {
	case step == nil:
		return false
	case step.Op == plan.Sysctl && !c.noPidMax:
		c.noPidMax = true
	case step.Op != plan.Overlay || step.Arg == c.ws.Path:
		return false
	case c.seen != nil && slices.ContainsFunc(c.seen.Parts, func(p view.Part) bool { return p.Path == step.Arg }):
		c.refused = append(c.refused, step.Arg)
	case !c.apartCaches && !c.policy.WholeRoot:
		c.apartCaches = true
	default:
		c.readOnly = append(c.readOnly, step.Arg)
	}
	return true
}

// came says of a box that has come to be what it is, and what it lacks.
func (c *cell) came(missing, notes []string) {
	if slices.Contains(missing, "proc") {
		c.missing("proc")
	}
	if slices.Contains(missing, "violations") {
		c.note("calls that the box refused were not counted: hutch itself runs under a seccomp filter with a listener")
	}
	c.out.Rung = "full"
	c.out.Notes = append(c.out.Notes, notes...)
	c.out.Notes = append(c.out.Notes, c.seen.Notes...)
	for _, path := range c.readOnly {
		c.note("%s is read-only in the box: the kernel makes no overlay of it", path)
	}
	if len(c.seen.Unwritable) > 0 {
		c.note("%s", cannotWrite(c.seen.Unwritable))
	}
}

// hostname is one that every resolver knows without asking a network: a
// program that asks for the address of its own name must not stall or fail.
const hostname = "localhost"

// jail decides in which namespaces the box lives, and what it may not do. Whom
// root's command runs as is decided later, by the workspace's owner.
func (c *cell) jail() (*policy.Box, error) {
	b := &policy.Box{
		Privileged: c.privileged, Trusted: c.trusted, Resident: c.resident,
		Policy:  c.policy,
		Network: c.policy.Network, Hostname: hostname, LandlockABI: landlockABI(), Filter: filter.Default(), Ports: filter.Ports(), Commands: commandFilters,
	}
	if b.LandlockABI == 0 {
		c.missing("landlock")
	}
	if c.privileged {
		var err error
		if b.UIDMap, err = policy.IDMap("/proc/self/uid_map"); err == nil {
			b.GIDMap, err = policy.IDMap("/proc/self/gid_map")
		}
		if err != nil {
			return nil, err
		}
	} else {
		user, err := c.target()
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
