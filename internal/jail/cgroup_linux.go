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
// each controller on v1.
type Cgroup struct {
	dirs    map[string]string // controller ("memory", "pids", "cpu") -> directory
	unified bool
	procs   []int
	oom     int // eventfd (v1) or memory.events (v2) that tells of an OOM kill; -1
}

// NewCgroup makes a control group that holds the limits, and returns with it
// the names of the limits that this host does not let us set ("memory", "pids",
// "cpus"). Where nothing can be had the group is nil and all are missing.
func NewCgroup(name string, limits Limits) (*Cgroup, []string) {
	wanted := map[string]bool{"memory": limits.Memory > 0, "pids": limits.Pids > 0, "cpu": limits.CPUs > 0}
	group := &Cgroup{dirs: map[string]string{}, oom: -1}
	var missing []string
	for _, controller := range []string{"memory", "pids", "cpu"} {
		if !wanted[controller] {
			continue
		}
		if err := group.add(controller, name, limits); err != nil {
			missing = append(missing, map[string]string{"memory": "memory", "pids": "pids", "cpu": "cpus"}[controller])
		}
	}
	if len(group.dirs) == 0 {
		return nil, missing
	}
	group.openProcs()
	if len(group.procs) == 0 {
		group.Remove()
		return nil, []string{"memory", "pids", "cpus"}
	}
	group.watchOOM()
	return group, missing
}

func (g *Cgroup) add(controller, name string, limits Limits) error {
	parent, unified, err := cgroupParent(controller)
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, "hutch-"+name)
	if err := os.Mkdir(dir, 0o755); err != nil && !(errors.Is(err, os.ErrExist) && slices.Contains(g.list(), dir)) {
		return err
	}
	g.unified = unified
	set := func(file, value string) error {
		return os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
	}
	switch {
	case controller == "memory" && unified:
		err = set("memory.max", strconv.FormatInt(limits.Memory, 10))
		_ = set("memory.swap.max", "0")  // absent without swap
		_ = set("memory.oom.group", "1") // the limit is the box's, not one process's
	case controller == "memory":
		err = set("memory.limit_in_bytes", strconv.FormatInt(limits.Memory, 10))
		_ = set("memory.memsw.limit_in_bytes", strconv.FormatInt(limits.Memory, 10))
	case controller == "pids":
		// PID 1 of the box is not the command's.
		err = set("pids.max", strconv.FormatInt(limits.Pids+1, 10))
	case unified:
		err = set("cpu.max", fmt.Sprintf("%d 100000", int64(limits.CPUs*100000)))
	default:
		err = set("cpu.cfs_period_us", "100000")
		if err == nil {
			err = set("cpu.cfs_quota_us", strconv.FormatInt(int64(limits.CPUs*100000), 10))
		}
	}
	if err != nil {
		if !slices.Contains(g.list(), dir) {
			_ = unix.Rmdir(dir)
		}
		return err
	}
	g.dirs[controller] = dir
	return nil
}

// list returns the group's directories, each once.
func (g *Cgroup) list() []string {
	var dirs []string
	for _, controller := range []string{"memory", "pids", "cpu"} {
		if dir, ok := g.dirs[controller]; ok && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func (g *Cgroup) openProcs() {
	for _, dir := range g.list() {
		fd, err := unix.Open(filepath.Join(dir, "cgroup.procs"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			g.procs = append(g.procs, fd)
		}
	}
}

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
	if g.unified {
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
	if g.unified {
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
	case g.unified && g.oom >= 0:
		text := make([]byte, 4096)
		n, err := unix.Pread(g.oom, text, 0)
		return err == nil && key(string(text[:n]), "oom_kill") > 0
	case g.unified:
		return false
	}
	text, err := os.ReadFile(filepath.Join(g.dirs["memory"], "memory.oom_control"))
	return err == nil && key(string(text), "oom_kill") > 0
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
// page cache included.
func (g *Cgroup) PeakMemory() (int64, bool) {
	if g == nil {
		return 0, false
	}
	file := "memory.max_usage_in_bytes"
	if g.unified {
		file = "memory.peak" // since Linux 5.19
	}
	dir, ok := g.dirs["memory"]
	if !ok {
		return 0, false
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// Kill ends every process in the group where the kernel can (cgroup.kill,
// since Linux 5.14).
func (g *Cgroup) Kill() {
	if g == nil || !g.unified {
		return
	}
	for _, dir := range g.list() {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
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
	}
	g.dirs = nil
}

// cgroupParent finds the directory under which a group with the controller can
// be made: on v1 our own group in that hierarchy, on v2 our own group or the
// nearest above it that delegates the controller to us.
func cgroupParent(controller string) (dir string, unified bool, err error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", false, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if slices.Contains(strings.Split(parts[1], ","), controller) {
			dir, err := mountedCgroup(string(mounts), "cgroup", controller, parts[2])
			return dir, false, err
		}
	}
	for line := range strings.Lines(string(own)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		dir, err := mountedCgroup(string(mounts), "cgroup2", "", path)
		if err != nil {
			return "", false, err
		}
		return delegated(dir, controller)
	}
	return "", false, errors.New("no cgroup hierarchy has this controller")
}

// delegated looks from dir upwards for a v2 group whose children may have the
// controller and where we may make one.
func delegated(dir, controller string) (string, bool, error) {
	for range 4 {
		control := filepath.Join(dir, "cgroup.subtree_control")
		text, err := os.ReadFile(control)
		if err != nil {
			break
		}
		on := slices.Contains(strings.Fields(string(text)), controller)
		if !on {
			// Refused with EBUSY where the group holds processes itself.
			on = os.WriteFile(control, []byte("+"+controller), 0) == nil
		}
		if on && unix.Access(dir, unix.W_OK) == nil && unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil {
			return dir, true, nil
		}
		dir = filepath.Dir(dir)
	}
	return "", true, errors.New("no cgroup with this controller is delegated to us")
}

// mountedCgroup translates a group's path into a directory, through the mount
// table's root field: inside a container the two differ.
func mountedCgroup(mountinfo, fstype, controller, path string) (string, error) {
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
		return filepath.Join(mountPoint, rest), nil
	}
	return "", fmt.Errorf("no %s mount for %s", fstype, controller)
}
