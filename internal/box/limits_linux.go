package box

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/jail"
	"hutch/internal/policy"
	"hutch/internal/supervise"
)

// limits decides what holds each limit: a cgroup where one can be had, else the
// kernel's limits of a process, else the watch of supervise.
func (c *cell) limits(b *policy.Box) {
	l := c.policy
	b.Memory = l.Memory
	b.Core = hard(unix.RLIMIT_CORE, l.Core, "core", c)
	if b.Core == 0 {
		// 1 also keeps the kernel from starting the program that the host's
		// core_pattern pipes to (core(5)), as root and outside; 0 does not.
		b.Core = atMost(unix.RLIMIT_CORE, 1)
	}
	b.NoFile = hard(unix.RLIMIT_NOFILE, l.OpenFiles, "open_files", c)
	held := jail.Limits{Memory: l.Memory, Swap: l.Swap, CPUs: l.CPUs, CPUTime: l.CPUTime > 0}
	if l.Pids > 0 {
		pids := l.Pids
		if c.resident { // the thread of PID 1 that starts commands is not theirs
			pids++
		}
		// Counted for this box alone: in a user namespace of its own (since
		// Linux 5.14). It refuses a fork before the work for it is done, unlike
		// a cgroup. PID 1 is not the command's.
		b.Processes = atMost(unix.RLIMIT_NPROC, pids+1)
		if c.trusted { // the kernel does not count processes of the host's uid 0
			b.PidMax = c.pidMax(pids)
			if b.PidMax == 0 || l.Pids < fewPids {
				held.Pids = pids
			}
		}
	}
	c.group, c.ungiven = nil, nil
	if held != (jail.Limits{}) {
		c.group, c.ungiven = jail.NewCgroup(c.id, held)
	}
	for i := range c.group.Procs() {
		b.CgroupFDs = append(b.CgroupFDs, jail.CgroupFD(i))
	}
	if held.Pids > 0 && !slices.Contains(c.ungiven, "pids") {
		b.PidMax = 0
	}
	b.CountFiles = slices.Contains(c.ungiven, "memory")
	if slices.ContainsFunc(c.ungiven, func(limit string) bool { return limit != "pids" }) {
		c.missing("limits")
	}
	if slices.Contains(c.ungiven, "swap") {
		c.note("swap is not limited: this kernel does not count it (swapaccount)")
	}
}

// hard returns what a limit of processes can be here, and notes where that is
// less than was asked for.
func hard(resource int, want int64, key string, c *cell) uint64 {
	got := atMost(resource, want)
	if got < uint64(max(want, 0)) {
		c.note("limits.%s: %d is more than this user may have; it is %d", key, want, got)
	}
	return got
}

// atMost returns a limit, or the own hard one where that is lower: in a user
// namespace not even root can have more.
func atMost(resource int, want int64) uint64 {
	var own unix.Rlimit
	if want <= 0 || unix.Getrlimit(resource, &own) != nil {
		return uint64(max(want, 0))
	}
	return min(uint64(want), own.Max)
}

const (
	// reservedPids are never given twice: when the numbers have been all used,
	// the kernel goes on behind them (RESERVED_PIDS).
	reservedPids = 300
	// fewPids is below what a limit by process numbers, which is wrong by
	// reservedPids, does not come near enough.
	fewPids = 3000
)

// pidMax returns below which process numbers a box of the host's root stays so
// that it has no more processes than that, 0 where that cannot be set.
func (c *cell) pidMax(pids int64) uint64 {
	switch {
	case c.noPidMax || !kernelAtLeast(6, 14): // there it is the whole host's
		return 0
	case pids < fewPids:
		return uint64(pids) + reservedPids + 1
	}
	return uint64(pids) + 2 // 0 is none, and 1 is not the command's
}

// kernelAtLeast tells whether the running kernel is of a release or later.
func kernelAtLeast(major, minor int) bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var have [2]int
	n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &have[0], &have[1])
	return n == 2 && (have[0] > major || have[0] == major && have[1] >= minor)
}

// watchTasks stands in, once it is known whom the command runs as, for a limit
// of processes that the kernel does not hold.
func (c *cell) watchTasks() {
	c.tasks = 0
	pids := c.policy.Pids
	if pids <= 0 || !c.trusted || c.user.UID != 0 || c.group.Holds("pids") {
		return
	}
	switch {
	case c.plan.PidMax == 0:
		c.tasks = pids
		c.missing("limits")
		c.note("no cgroup counts processes here, and the kernel does not count those of uid 0: a watch ends the box when they are more than %d", pids)
	case pids < fewPids:
		c.missing("limits")
		c.note("no cgroup counts processes here: of the host's uid 0 there may be %d more than %d", reservedPids, pids)
	}
}

// boundLayers limits what the layers take, of memory by the size of the file
// system there, else by a watch.
func (r *run) boundLayers(b *policy.Box) error {
	l := r.policy
	var names []string
	overlays := len(b.CacheDirs)
	switch {
	case r.RAM:
		b.Mount.RAMSize = cmp.Or(r.RAMSize, DefaultRAM)
		if l.Disk > 0 {
			b.Mount.RAMSize = min(b.Mount.RAMSize, l.Disk)
		}
		b.Mount.RAMFiles = l.Files
	case r.branch.Form == changeset.Tree:
		names = append(names, r.branch.Layer)
	default:
		names = append(names, r.branch.Layer, r.branch.Work)
		overlays++
	}
	for _, dir := range b.CacheDirs {
		names = append(names, filepath.Base(dir))
	}
	return r.watchDisk(r.dir.fd, names, overlays)
}

// watchDisk bounds what is written to directories of one that is open, into
// which so many overlays have yet to be mounted.
func (c *cell) watchDisk(dir int, names []string, overlays int) error {
	c.disk = nil
	l := c.policy
	if l.Disk <= 0 && l.Files <= 0 {
		return nil
	}
	c.disk = &supervise.Disk{Dir: dir, Names: names, Bytes: l.Disk, Files: l.Files}
	return c.disk.Begin(overlays)
}

// watched are the limits that supervise has to hold.
func (c *cell) watched() supervise.Limits {
	l := c.policy
	w := supervise.Limits{Timeout: l.Timeout, Output: l.Output, CPU: l.CPUTime, Tasks: c.tasks, Disk: c.disk}
	if slices.Contains(c.ungiven, "memory") {
		w.Memory, w.Swap = l.Memory, l.Swap
	}
	return w
}

// pinCPUs stands in for a processor limit that no cgroup holds: the box may use
// no more processors than that, rounded up. The helper inherits the mask.
func (c *cell) pinCPUs() (restore func()) {
	cpus := c.policy.CPUs
	if !slices.Contains(c.ungiven, "cpus") || cpus <= 0 {
		return func() {}
	}
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return func() {}
	}
	want := int(math.Ceil(cpus))
	for cpu := 0; cpu < len(all)*64 && some.Count() < want; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if unix.SchedSetaffinity(0, &some) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &all) }
}
