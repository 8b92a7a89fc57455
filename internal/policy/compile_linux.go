package policy

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/plan"
	"hutch/internal/view"
)

// Mount says what lies at the workspace's path in the box.
type Mount struct {
	// Tree is a directory on the host to mount as it is (reflink, copy). When
	// it is empty the rest describes an overlay.
	Tree        string
	Lower       string
	Upper, Work string // on the host; both empty: in RAM
	RAMSize     int64  // bytes
	RAMFiles    int64  // inodes; 0: no limit
	Mode        uint32 // of the upper in RAM
	// What is put into the upper in RAM first: whiteouts, and the directories
	// they lie in.
	Dirs   []view.Dir
	Absent []string
}

// Box is everything a plan is compiled from.
type Box struct {
	// Privileged: mounts are made as root of the current user namespace, and
	// the box's own user namespace is entered last. Else everything happens
	// inside it.
	Privileged bool
	// Trusted: overlays keep their marks in trusted.overlay.* and can rename
	// directories; only in the initial user namespace.
	Trusted bool

	// Resident: the box outlives its commands, and its branch is mounted from
	// outside, again and again; of Mount only Tree counts. What must be absent
	// from the workspace, its layer must hide.
	Resident bool

	User           view.User
	UIDMap, GIDMap string

	Workspace string
	Mount     Mount
	Home      string
	Show      []view.Show
	Links     []view.Symlink
	Masks     []string
	Files     []view.File       // of the home
	Parts     []view.Part       // shows with layers of their own, in memory
	Copies    map[string]string // directories on the host that are shown in place of parts
	// CacheDirs are directories on the host that hold "upper" and "work", as
	// many as Caches asks for.
	CacheDirs []string
	// ApartCaches gives each cache an overlay of its own, where one over the
	// whole home is refused (a mount lies in it).
	ApartCaches bool

	Policy      InForce // what of it is the plan's
	Network     bool
	Hostname    string
	CgroupFDs   []uint64 // descriptors of cgroup.procs files in boxinit
	LandlockABI int      // 0: none
	Filter      []byte   // struct sock_filter[]
	Owners      []byte   // the same: beside it where the box has one user only
	Ports       []byte   // the same: beside it where the policy names ports
	// Commands makes the filters that commands carry besides: one that tells
	// PID 1 what it refuses, and asks about renames; and one for where nobody
	// can be told.
	Commands   func(renames, debug, subprocess bool) (told, untold []byte)
	NoFile     uint64 // RLIMIT_NOFILE; 0: as it is
	Memory     int64  // bytes that private files may take; 0: half of the host's
	Processes  uint64 // RLIMIT_NPROC; 0: as it is
	PidMax     uint64 // the box's process numbers end below that; 0: as they do
	Core       uint64 // RLIMIT_CORE in bytes; 0: no core dump
	CountFiles bool   // its tmpfs is handed out, to be counted
}

const (
	attrSystem = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrData   = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrProc   = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// procMasked and procReadOnly are what every container runtime hides of /proc
// and /sys: kernel memory and keys, switches for the whole machine. They matter
// most for a box whose user is uid 0 of the host, for whom the kernel checks
// only the owner's mode bits there.
var (
	procMasked = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/latency_stats", "/proc/pagetypeinfo", "/proc/sched_debug", "/proc/scsi", "/proc/slabinfo", "/proc/timer_list", "/proc/timer_stats",
		"/proc/vmallocinfo", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel/mm/damon",
	}
	procReadOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

var devices = []string{"full", "null", "random", "tty", "urandom", "zero"}

// oomScore makes the kernel, when the host runs out of memory, end what is in a
// box before what is not. Where root made the box, nothing in it can lower it.
const oomScore = 500

// Base is the beginning of a plan: what every box has, whatever it sees, so that
// the kernel is busy with it while View and the branch are still being prepared.
func (b *Box) Base() *plan.Plan {
	p := &plan.Plan{}
	for _, fd := range b.CgroupFDs {
		p.Add(plan.Cgroup, fd, 0, 0)
	}
	p.Add(plan.OOMScore, oomScore, 0, 0)
	b.namespaces(p)
	p.Add(plan.Hostname, 0, 0, 0, b.Hostname)
	if !b.Network {
		p.Add(plan.Loopback, 0, 0, 0)
	}
	p.Add(plan.Root, 0, 0, 0, "mode=0755,size=16m,nr_inodes=16k")
	b.system(p)
	return leaveOut(p)
}

// View is the rest of the plan: what this box sees, and giving up every right.
func (b *Box) View() (*plan.Plan, error) {
	p := &plan.Plan{}
	if err := b.holdsPorts(); err != nil {
		return nil, err
	}
	if err := b.mounts(p); err != nil {
		return nil, err
	}
	p.Add(plan.Pivot, 0, 0, 0)
	if b.Resident {
		p.Add(plan.SendFD, plan.TagRoot, 0, 0, "/")
	} else {
		p.Add(plan.SendFD, plan.TagWorkspace, 0, 0, b.Workspace)
	}
	if b.CountFiles {
		p.Add(plan.SendFD, plan.TagPrivate, 0, 0, "/dev/shm")
	}
	b.rights(p)
	return leaveOut(p), nil
}

func (b *Box) namespaces(p *plan.Plan) {
	flags := uint64(unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP)
	if !b.Network {
		flags |= unix.CLONE_NEWNET
	}
	if b.Privileged {
		p.Add(plan.Unshare, flags, 0, 0, "namespaces")
		p.Add(plan.Fork, plan.ForkMaps, 0, 0, b.UIDMap, b.GIDMap)
		return
	}
	p.Add(plan.Unshare, flags|unix.CLONE_NEWUSER, 0, 0, "namespaces")
	p.Add(plan.Map, 0, 0, 0, b.UIDMap, b.GIDMap)
	p.Add(plan.Fork, 0, 0, 0, "", "")
}

// system mounts what no policy changes.
func (b *Box) system(p *plan.Plan) {
	p.Add(plan.Proc, attrProc, 1, 0, "/proc")
	if b.PidMax > 0 {
		// Namespaced since Linux 6.14; before that it is the host's.
		p.Add(plan.Sysctl, 0, 0, 0, "/proc/sys/kernel/pid_max", fmt.Sprint(b.PidMax))
	}
	p.Add(plan.Sysfs, attrProc|unix.MOUNT_ATTR_RDONLY, 1, 0, "/sys")
	p.Add(plan.Dir, 0o755, 0, 0, "/dev")
	for _, name := range devices {
		// Read-only: a device can be written all the same, but the host's node
		// not be given another mode by a box that runs as its owner.
		p.Add(plan.Bind, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, 0, 0, "/dev/"+name, "/dev/"+name)
	}
	p.Add(plan.Mqueue, attrProc, 1, 0, "/dev/mqueue")
	p.Add(plan.Devpts, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, 0, 0, "/dev/pts")
	for _, link := range [][2]string{{"pts/ptmx", "/dev/ptmx"}, {"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"}} {
		p.Add(plan.Symlink, 0, 0, 0, link[0], link[1])
	}
	// One tmpfs for all that is private, and so one bound for all of it.
	size := "50%"
	if b.Memory > 0 {
		size = fmt.Sprint(b.Memory) // where no cgroup counts it
	}
	p.Add(plan.Tmpfs, attrData, 0, 0, "", "mode=0700,size="+size)
	p.Add(plan.Rebind, 0o1777, 0, 0, "shm", "/dev/shm")
	p.Add(plan.Rebind, 0o1777, 0, 0, "tmp", "/tmp")
	p.Add(plan.Dir, 0o755, 0, 0, "/run")
	for _, link := range [][2]string{{"/tmp", "/var/tmp"}, {"/run", "/var/run"}} {
		p.Add(plan.Symlink, 0, 0, 0, link[0], link[1])
	}
	for _, path := range procMasked {
		p.Add(plan.Mask, 0, 0, 0, path)
	}
	for _, path := range procReadOnly {
		p.Add(plan.ReadOnly, 0, 0, 0, path)
	}
}

func owner(u view.User) uint64 { return uint64(u.UID)<<32 | uint64(u.GID) }

// IDMap returns the map text by which a user namespace below the current one
// has the same ids, as /proc/self/uid_map lists them.
func IDMap(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return "", fmt.Errorf("%s: %q is not three numbers", path, line)
		}
		fmt.Fprintf(&out, "%s %s %s\n", fields[0], fields[0], fields[2])
	}
	return out.String(), nil
}
