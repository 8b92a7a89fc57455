package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is the control group of one box: one directory on cgroup v2, one for
// each hierarchy on v1. Each is locked (flock) for as long as this process
// lives, so that what a killed one left can be told from what is in use.
type Cgroup struct {
	dirs  map[string]string // controller -> directory
	v2    string            // the directory on cgroup v2; ""
	locks []int
	procs []int
	oom   int // eventfd (v1) or memory.events (v2) that tells of an OOM kill; -1
}

// controllers are those that bound a box, and that count what it takes.
var controllers = []string{"memory", "pids", "cpu", "cpuacct"}

// groupName begins the name of every group that hutch makes.
const groupName = "hutch-"

// NewCgroup makes a control group that holds the limits, and returns with it
// the names of the limits that this host does not let us set ("memory", "swap",
// "pids", "cpus"). Where none can be had the group is nil. A group that is made
// counts memory and processor time, whatever it limits.
func NewCgroup(name string, limits Limits) (*Cgroup, []string) {
	places, err := findPlaces()
	group := &Cgroup{dirs: map[string]string{}, oom: -1}
	var missing []string
	for _, c := range []struct {
		limit, controller string
		wanted            bool
	}{{"memory", "memory", limits.Memory > 0}, {"pids", "pids", limits.Pids > 0}, {"cpus", "cpu", limits.CPUs > 0}} {
		if !c.wanted {
			continue
		}
		if err == nil && group.add(places, c.controller, name) == nil && group.limit(c.controller, limits) == nil {
			continue
		}
		missing = append(missing, c.limit)
	}
	if len(group.locks) > 0 || limits.CPUTime {
		_ = group.add(places, "cpuacct", name)
	}
	if len(group.locks) > 0 && group.dirs["memory"] == "" {
		_ = group.add(places, "memory", name)
	}
	if len(group.locks) == 0 {
		return nil, missing
	}
	if limits.Memory > 0 && !slices.Contains(missing, "memory") && !group.limitSwap(limits) {
		missing = append(missing, "swap")
	}
	if err := group.openProcs(); err != nil {
		group.Remove()
		missing = missing[:0]
		for _, l := range []struct {
			name   string
			wanted bool
		}{{"memory", limits.Memory > 0}, {"pids", limits.Pids > 0}, {"cpus", limits.CPUs > 0}} {
			if l.wanted {
				missing = append(missing, l.name)
			}
		}
		return nil, missing
	}
	group.watchOOM()
	return group, missing
}

// add makes the group in the hierarchy of a controller, unless it is there.
func (g *Cgroup) add(places map[string]place, controller, name string) error {
	at, ok := places[controller]
	if !ok {
		return errors.New("no cgroup hierarchy has this controller for us")
	}
	dir := filepath.Join(at.dir, groupName+name)
	if slices.Contains(g.list(), dir) {
		g.dirs[controller] = dir
		return nil
	}
	// Another hutch takes a group that is not locked yet for one that was left.
	for range 3 {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		fd, err := lockGroup(dir, unix.LOCK_EX)
		if err != nil {
			continue
		}
		g.locks = append(g.locks, fd)
		g.dirs[controller] = dir
		if at.unified {
			g.v2 = dir
		}
		return nil
	}
	return fmt.Errorf("%s: cannot be locked", dir)
}

// lockGroup opens and locks a group's directory. It fails when that was removed
// meanwhile.
func lockGroup(dir string, how int) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var open, named unix.Stat_t
	if err = unix.Flock(fd, how); err == nil {
		if err = unix.Fstat(fd, &open); err == nil {
			err = unix.Lstat(dir, &named)
		}
	}
	if err == nil && (open.Ino != named.Ino || open.Dev != named.Dev) {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// set writes a file of a controller's group.
func (g *Cgroup) set(controller, file, value string) error {
	return os.WriteFile(filepath.Join(g.dirs[controller], file), []byte(value), 0)
}

// get reads a file of a controller's group.
func (g *Cgroup) get(controller, file string) (string, bool) {
	if g == nil || g.dirs[controller] == "" {
		return "", false
	}
	text, err := os.ReadFile(filepath.Join(g.dirs[controller], file))
	return strings.TrimSpace(string(text)), err == nil
}

// number reads a file that holds one number.
func (g *Cgroup) number(controller, file string) (int64, bool) {
	text, ok := g.get(controller, file)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

func (g *Cgroup) unified(controller string) bool { return g.v2 != "" && g.dirs[controller] == g.v2 }

func (g *Cgroup) limit(controller string, limits Limits) error {
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	unified := g.unified(controller)
	switch {
	case controller == "memory" && unified:
		_ = g.set(controller, "memory.oom.group", "1") // the limit is the box's, not one process's
		return g.set(controller, "memory.max", decimal(limits.Memory))
	case controller == "memory":
		return g.set(controller, "memory.limit_in_bytes", decimal(limits.Memory))
	case controller == "pids":
		// PID 1 of the box is not the command's.
		return g.set(controller, "pids.max", decimal(limits.Pids+1))
	case unified:
		return g.set(controller, "cpu.max", fmt.Sprintf("%d 100000", int64(limits.CPUs*100000)))
	}
	if err := g.set(controller, "cpu.cfs_period_us", "100000"); err != nil {
		return err
	}
	return g.set(controller, "cpu.cfs_quota_us", decimal(int64(limits.CPUs*100000)))
}

// limitSwap bounds what the box may have swapped out; false where it may be
// more. The kernel has no such file where it has no swap, or does not count it.
func (g *Cgroup) limitSwap(limits Limits) bool {
	var err error
	if g.unified("memory") {
		err = g.set("memory", "memory.swap.max", strconv.FormatInt(limits.Swap, 10))
	} else {
		err = g.set("memory", "memory.memsw.limit_in_bytes", strconv.FormatInt(limits.Memory+limits.Swap, 10))
	}
	if err == nil {
		return true
	}
	swaps, err := os.ReadFile("/proc/swaps")
	return err == nil && strings.Count(string(swaps), "\n") <= 1 // a heading, and nothing below it
}

// list returns the group's directories, each once.
func (g *Cgroup) list() []string {
	var dirs []string
	for _, controller := range controllers {
		if dir, ok := g.dirs[controller]; ok && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (g *Cgroup) openProcs() error {
	for _, dir := range g.list() {
		fd, err := unix.Open(filepath.Join(dir, "cgroup.procs"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		g.procs = append(g.procs, fd)
	}
	return nil
}

// Holds tells whether the group has a controller's limit or count.
func (g *Cgroup) Holds(controller string) bool { return g != nil && g.dirs[controller] != "" }

// Procs returns the open cgroup.procs files that boxinit must join, before
// anything else, by writing "0". They are an escape should they leak into a box.
func (g *Cgroup) Procs() []int {
	if g == nil {
		return nil
	}
	return g.procs
}

// CloseProcs closes what Procs returned; boxinit has copies of its own.
func (g *Cgroup) CloseProcs() {
	if g == nil {
		return
	}
	for _, fd := range g.procs {
		unix.Close(fd)
	}
	g.procs = nil
}

func (g *Cgroup) watchOOM() {
	dir, ok := g.dirs["memory"]
	if !ok {
		return
	}
	if g.unified("memory") {
		if fd, err := unix.Open(filepath.Join(dir, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			g.oom = fd
		}
		return
	}
	control, err := unix.Open(filepath.Join(dir, "memory.oom_control"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(control)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return
	}
	register := fmt.Sprintf("%d %d", event, control)
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(register), 0); err != nil {
		unix.Close(event)
		return
	}
	g.oom = event
}

// OOMEvent returns a descriptor and the poll(2) events by which it tells that
// memory ran out, or -1.
func (g *Cgroup) OOMEvent() (fd int, events int16) {
	if g == nil {
		return -1, 0
	}
	if g.unified("memory") {
		return g.oom, unix.POLLPRI
	}
	return g.oom, unix.POLLIN
}

// OOMKilled reports whether the kernel killed a process of the group because
// the memory limit was reached. On v2 it reads OOMEvent's own descriptor, which
// makes that quiet again until the next event.
func (g *Cgroup) OOMKilled() bool {
	switch {
	case g == nil || g.dirs["memory"] == "":
		return false
	case g.unified("memory") && g.oom >= 0:
		text := make([]byte, 4096)
		n, err := unix.Pread(g.oom, text, 0)
		return err == nil && key(string(text[:n]), "oom_kill") > 0
	case g.unified("memory"):
		return false
	}
	text, ok := g.get("memory", "memory.oom_control")
	return ok && key(text, "oom_kill") > 0
}

// OOMKills returns how many processes of the group the kernel killed because the
// memory limit was reached. On v2 it makes OOMEvent quiet until the next.
func (g *Cgroup) OOMKills() int64 {
	if g == nil || g.dirs["memory"] == "" || g.oom < 0 {
		return 0
	}
	if g.unified("memory") {
		text := make([]byte, 4096)
		n, err := unix.Pread(g.oom, text, 0)
		if err != nil {
			return 0
		}
		return key(string(text[:n]), "oom_kill")
	}
	text, _ := g.get("memory", "memory.oom_control")
	return key(text, "oom_kill")
}

// KillOne lets the kernel kill one process, and not the whole group, when the
// memory limit is reached: in a box that lives on, PID 1 stays.
func (g *Cgroup) KillOne() {
	if g != nil && g.unified("memory") {
		_ = g.set("memory", "memory.oom.group", "0")
	}
}

// Freeze stops every process of the group within a time, in a way that none of
// them notices; ok is false where the group has no freezer (v1). Those that wait
// for PID 1, which answers for a system call, cannot stand still before it does:
// then it lets go and tries again.
func (g *Cgroup) Freeze(within time.Duration) (ok bool, err error) {
	if g == nil || g.v2 == "" || g.setFrozen("1") != nil {
		return false, nil
	}
	const turn = 100 * time.Millisecond
	began := time.Now()
	for again := began; ; time.Sleep(100 * time.Microsecond) {
		events, err := os.ReadFile(filepath.Join(g.v2, "cgroup.events"))
		switch {
		case err == nil && key(string(events), "frozen") == 1:
			return true, nil
		case err != nil || time.Since(began) > within:
			g.Thaw()
			return true, errors.New("the box's control group did not freeze; end what runs in it and try again")
		case time.Since(again) > turn:
			g.Thaw()
			time.Sleep(turn / 20)
			_ = g.setFrozen("1")
			again = time.Now()
		}
	}
}

// Thaw lets a frozen group go on.
func (g *Cgroup) Thaw() { _ = g.setFrozen("0") }

func (g *Cgroup) setFrozen(to string) error {
	return os.WriteFile(filepath.Join(g.v2, "cgroup.freeze"), []byte(to), 0)
}

// key returns the number after a name in a flat keyed file (cgroups(7)).
func key(text, name string) int64 {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n
		}
	}
	return 0
}

// PeakMemory returns the most memory, in bytes, that the group held at once,
// page cache included. Before Linux 5.19 cgroup v2 does not keep it: then ok is
// false, and Memory must be polled.
func (g *Cgroup) PeakMemory() (bytes int64, ok bool) {
	if g != nil && g.unified("memory") {
		return g.number("memory", "memory.peak")
	}
	return g.number("memory", "memory.max_usage_in_bytes")
}

// Memory returns how many bytes the group holds now.
func (g *Cgroup) Memory() (bytes int64, ok bool) {
	if g != nil && g.unified("memory") {
		return g.number("memory", "memory.current")
	}
	return g.number("memory", "memory.usage_in_bytes")
}

// CPUTime returns the processor time of all that ever ran in the group, the
// making of the box included.
func (g *Cgroup) CPUTime() (time.Duration, bool) {
	if g != nil && g.unified("cpuacct") {
		text, ok := g.get("cpuacct", "cpu.stat")
		return time.Duration(key(text, "usage_usec")) * time.Microsecond, ok
	}
	n, ok := g.number("cpuacct", "cpuacct.usage")
	return time.Duration(n), ok
}

// Kill ends every process in the group where the kernel can (cgroup.kill,
// since Linux 5.14).
func (g *Cgroup) Kill() {
	if g != nil && g.v2 != "" {
		_ = os.WriteFile(filepath.Join(g.v2, "cgroup.kill"), []byte("1"), 0)
	}
}

// Remove deletes the group. Its processes must be gone; the kernel may need a
// moment to notice.
func (g *Cgroup) Remove() {
	if g == nil {
		return
	}
	g.CloseProcs()
	if g.oom >= 0 {
		unix.Close(g.oom)
		g.oom = -1
	}
	for _, dir := range g.list() {
		for wait := time.Millisecond; unix.Rmdir(dir) == unix.EBUSY && wait < time.Second; wait *= 2 {
			time.Sleep(wait)
		}
		sweepGroups(filepath.Dir(dir))
	}
	for _, fd := range g.locks {
		unix.Close(fd)
	}
	g.dirs, g.locks = nil, nil
}

// SweepCgroups removes the groups that killed runs left where this process
// would make one.
func SweepCgroups() {
	places, _ := findPlaces()
	for _, at := range places {
		sweepGroups(at.dir)
	}
}

// sweepGroups removes the groups in a directory that nobody holds. One with
// processes in it stays: the kernel refuses.
func sweepGroups(parent string) {
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), groupName) {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		if fd, err := lockGroup(dir, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			_ = unix.Rmdir(dir)
			unix.Close(fd)
		}
	}
}

// place is where a group with some controller can be made.
type place struct {
	dir     string
	unified bool
}

// findPlaces finds, for each controller, the directory under which a group can
// be made: on v1 our own group in that hierarchy; on v2 our own group or the
// nearest above it that delegates controllers to us, the same for all, since a
// process is in one group of v2.
func findPlaces() (map[string]place, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	places := map[string]place{}
	unified := "" // our path on v2
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if parts[0] == "0" {
			unified = parts[2]
			continue
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if !slices.Contains(controllers, controller) {
				continue
			}
			if dir, _, err := mountedCgroup(string(mounts), "cgroup", controller, parts[2]); err == nil {
				places[controller] = place{dir: dir}
			}
		}
	}
	var wanted []string
	for _, controller := range controllers {
		if _, ok := places[controller]; !ok && controller != "cpuacct" {
			wanted = append(wanted, controller)
		}
	}
	if unified == "" || len(wanted) == 0 {
		return places, nil
	}
	dir, top, err := mountedCgroup(string(mounts), "cgroup2", "", unified)
	if err != nil {
		return places, nil
	}
	if dir, given := delegated(dir, top, wanted); len(given) > 0 {
		for _, controller := range given {
			places[controller] = place{dir, true}
		}
		if _, ok := places["cpuacct"]; !ok {
			places["cpuacct"] = place{dir, true} // every group of v2 has cpu.stat
		}
	}
	return places, nil
}

// delegated looks from dir upwards, as far as top, for the v2 group below which
// most of the controllers can be had, and where we may make a group and move
// ourselves into it. Processes of the user's that lie in the way are not moved.
func delegated(dir, top string, wanted []string) (best string, given []string) {
	for {
		// Moving a process takes the right to write to the common ancestor's
		// cgroup.procs as well: dir is that.
		if unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil && mayHaveChildren(dir) {
			if on := enable(dir, wanted); len(on) > len(given) {
				best, given = dir, on
			}
		}
		if len(given) == len(wanted) || dir == top || dir == "/" {
			return best, given
		}
		dir = filepath.Dir(dir)
	}
}

// mayHaveChildren tells whether groups below a v2 group can hold processes: not
// where it holds some itself. The kernel refuses the memory controller there
// (EBUSY), but gives those for threads, and thereby makes every group below one
// that no process may join (EOPNOTSUPP). The root, which has no type, is free.
func mayHaveChildren(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); errors.Is(err, os.ErrNotExist) {
		return true
	}
	inside, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return err == nil && len(inside) == 0
}

// enable gives the children of a v2 group the controllers, and returns those
// that they have.
func enable(dir string, wanted []string) []string {
	control := filepath.Join(dir, "cgroup.subtree_control")
	text, err := os.ReadFile(control)
	if err != nil {
		return nil
	}
	on := strings.Fields(string(text))
	var given []string
	for _, controller := range wanted {
		if slices.Contains(on, controller) || os.WriteFile(control, []byte("+"+controller), 0) == nil {
			given = append(given, controller)
		}
	}
	return given
}

// mountedCgroup translates a group's path into a directory, through the mount
// table's root field: inside a container the two differ. The top is the mount
// point.
func mountedCgroup(mountinfo, fstype, controller, path string) (dir, top string, err error) {
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		sep := slices.Index(fields, "-")
		if sep < 6 || len(fields) < sep+4 || fields[sep+1] != fstype {
			continue
		}
		if controller != "" && !slices.Contains(strings.Split(fields[sep+3], ","), controller) {
			continue
		}
		root, mountPoint := fields[3], fields[4]
		rest, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
		if !ok {
			rest = "/"
		}
		return filepath.Join(mountPoint, rest), mountPoint, nil
	}
	return "", "", fmt.Errorf("no %s mount for %s", fstype, controller)
}
