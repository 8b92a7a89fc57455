package policy

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/plan"
)

// Mount says what lies at the workspace's path in the box.
type Mount struct {
	// Tree is a directory on the host to mount as it is (reflink, copy). When
	// it is empty the rest describes an overlay.
	Tree        string
	Lower       string
	Upper, Work string // on the host; both empty: in RAM
	RAMSize     int64  // bytes
	Mode        uint32 // of the upper in RAM
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

	User           User
	UIDMap, GIDMap string

	Workspace string
	Mount     Mount
	Home      string
	Show      []Show
	Links     []Symlink
	Masks     []string
	// CacheDirs are directories on the host that hold "upper" and "work", as
	// many as Caches asks for.
	CacheDirs []string
	// ApartCaches gives each cache an overlay of its own, where one over the
	// whole home is refused (a mount lies in it).
	ApartCaches bool

	Network     bool
	Hostname    string
	CgroupFDs   []uint64 // descriptors of cgroup.procs files in boxinit
	LandlockABI int      // 0: none
	Filter      []byte   // struct sock_filter[]
	Notify      []byte   // the same: what the mover has to see
	NoFile      uint64   // RLIMIT_NOFILE; 0: as it is
	Memory      int64    // bytes that private files may take; 0: half of the host's
	Processes   uint64   // RLIMIT_NPROC, where no cgroup limits them; 0: as it is
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

// Base is the beginning of a plan: what every box has, whatever it sees, so that
// the kernel is busy with it while View and the branch are still being prepared.
func (b *Box) Base() *plan.Plan {
	p := &plan.Plan{}
	for _, fd := range b.CgroupFDs {
		p.Add(plan.Cgroup, fd, 0, 0)
	}
	b.namespaces(p)
	p.Add(plan.Hostname, 0, 0, 0, b.Hostname)
	if !b.Network {
		p.Add(plan.Loopback, 0, 0, 0)
	}
	p.Add(plan.Root, 0, 0, 0, "mode=0755,size=16m,nr_inodes=16k")
	b.system(p)
	return p
}

// View is the rest of the plan: what this box sees, and giving up every right.
func (b *Box) View() (*plan.Plan, error) {
	p := &plan.Plan{}
	if err := b.mounts(p); err != nil {
		return nil, err
	}
	p.Add(plan.Pivot, 0, 0, 0)
	p.Add(plan.SendFD, plan.TagWorkspace, 0, 0, b.Workspace)
	b.rights(p)
	return p, nil
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
	p.Add(plan.Sysfs, attrProc|unix.MOUNT_ATTR_RDONLY, 1, 0, "/sys")
	p.Add(plan.Dir, 0o755, 0, 0, "/dev")
	for _, name := range devices {
		// Read-only: a device can be written all the same, but the host's node
		// not be given another mode by a box that runs as its owner.
		p.Add(plan.Bind, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC, 0, 0, "/dev/"+name, "/dev/"+name)
	}
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

// mounts shows the host and the workspace, parents before what lies in them.
func (b *Box) mounts(p *plan.Plan) error {
	inHome := func(path string) bool { return within(path, b.Home) }
	inWorkspace := func(path string) bool { return within(path, b.Workspace) }
	caches := b.CacheDirs
	overlay := func(lower, path string) error {
		if len(caches) == 0 {
			return fmt.Errorf("no layer for the caches in %s", lower)
		}
		dir := caches[0]
		caches = caches[1:]
		p.Add(plan.Overlay, attrData, 0, 0, lower, filepath.Join(dir, "upper"), filepath.Join(dir, "work"), path, b.overlayOptions())
		return nil
	}
	home := b.homeCaches()
	show := func(s Show) error {
		switch {
		case s.Mode != CopyOnWrite:
			p.Add(plan.Bind, attrSystem, plan.BindOptional, 0, s.Path, s.Path)
		case slices.Contains(home, s.Path):
			p.Add(plan.Rebind, 0, 0, 0, strings.TrimPrefix(s.Path, b.Home+"/"), s.Path)
		default:
			return overlay(s.Path, s.Path)
		}
		return nil
	}
	// What lies in a private directory must wait until that is there.
	private := func(path string) bool {
		return inHome(path) || within(path, "/tmp") || within(path, "/run") || within(path, "/dev")
	}
	for _, link := range b.Links {
		if !private(link.Path) {
			p.Add(plan.Symlink, 0, 0, 0, link.Target, link.Path)
		}
	}
	for _, s := range b.Show {
		if !private(s.Path) && !inWorkspace(s.Path) {
			if err := show(s); err != nil {
				return err
			}
		}
	}

	if !inWorkspace(b.Home) && !within("/tmp", b.Home) {
		p.Add(plan.Rebind, 0o755, owner(b.User), 0, "home", b.Home)
	}
	if b.Network {
		// Where a resolver writes its file under /run, names need it.
		if path, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && !within(path, "/etc") {
			p.Add(plan.Bind, attrSystem|unix.MOUNT_ATTR_NOEXEC, plan.BindOptional, 0, path, path)
		}
	}

	for _, link := range b.Links {
		if private(link.Path) && !inWorkspace(link.Path) {
			b.ownDirs(p, link.Path)
			p.Add(plan.Symlink, 0, 0, 0, link.Target, link.Path)
		}
	}
	if len(home) > 0 {
		if err := overlay(b.Home, ""); err != nil {
			return err
		}
	}
	for _, s := range b.Show {
		if private(s.Path) && !inWorkspace(s.Path) {
			b.ownDirs(p, s.Path)
			if err := show(s); err != nil {
				return err
			}
		}
	}

	if inHome(b.Workspace) {
		b.ownDirs(p, b.Workspace)
	}
	switch {
	case b.Mount.Tree != "":
		p.Add(plan.Bind, attrData, 0, 0, b.Mount.Tree, b.Workspace)
	default:
		if b.Mount.Upper == "" {
			options := fmt.Sprintf("mode=0700,size=%d", b.Mount.RAMSize)
			p.Add(plan.RAMLayer, uint64(b.Mount.Mode), owner(b.User), plan.TagLayer, options)
		}
		p.Add(plan.Overlay, attrData, 0, 0, b.Mount.Lower, b.Mount.Upper, b.Mount.Work, b.Workspace, b.overlayOptions())
	}
	// A transaction's directory travels with the workspace; what is in it
	// decides what a recovery writes.
	p.Add(plan.Mask, 0, 0, 0, filepath.Join(b.Workspace, ".hutch"))
	for _, path := range b.Masks {
		p.Add(plan.Mask, 0, 0, 0, path)
	}
	if b.Privileged && b.User.UID == 0 {
		// Most of /proc is owned by uid 0 of the host, and the kernel keeps a
		// mode that its owner gives it, for every mount of it.
		p.Add(plan.ReadOnly, 0, 0, 0, "/proc")
	}
	return nil
}

// homeCaches lists the caches that share one overlay over the whole home, of
// which only they are shown: an overlay costs a dozen directories made and
// removed, a bind mount next to nothing.
func (b *Box) homeCaches() []string {
	var paths []string
	for _, s := range b.Show {
		if s.Mode == CopyOnWrite && within(s.Path, b.Home) && !within(s.Path, b.Workspace) && !b.ApartCaches {
			paths = append(paths, s.Path)
		}
	}
	return paths
}

// Caches returns how many CacheDirs the box needs.
func (b *Box) Caches() int {
	shared := len(b.homeCaches())
	apart := -shared
	for _, s := range b.Show {
		if s.Mode == CopyOnWrite && !within(s.Path, b.Workspace) {
			apart++
		}
	}
	return apart + min(shared, 1)
}

// ownDirs makes the directories between HOME and path the user's own; mount
// points made on the way would be root's.
func (b *Box) ownDirs(p *plan.Plan, path string) {
	if !b.Privileged {
		return
	}
	rest, ok := strings.CutPrefix(filepath.Dir(path), b.Home+"/")
	if !ok {
		return
	}
	dir := b.Home
	for part := range strings.SplitSeq(rest, "/") {
		dir += "/" + part
		p.Add(plan.Dir, 0o755, owner(b.User), 1, dir)
	}
}

// overlayOptions: volatile, since the last unmount would otherwise sync the
// layer's whole file system (79 ms with 200 MB dirty); promotion syncs what it
// takes. metacopy would leave content behind in the workspace, and an index
// keeps a layer from being mounted again.
func (b *Box) overlayOptions() string {
	if b.Trusted {
		return "redirect_dir=on,metacopy=off,index=off,volatile"
	}
	return "userxattr,index=off,volatile"
}

// rights gives up everything, in the order that the kernel demands.
func (b *Box) rights(p *plan.Plan) {
	if b.NoFile > 0 {
		p.Add(plan.Rlimit, unix.RLIMIT_NOFILE, b.NoFile, b.NoFile)
	}
	p.Add(plan.Rlimit, unix.RLIMIT_CORE, 0, 0)
	if b.Privileged {
		p.Add(plan.UserNS, 0, 0, 0)
	}
	p.Add(plan.MaxUserNS, 0, 0, 0)
	p.Add(plan.BoundCaps, 0, 0, 0)
	if b.Privileged {
		var groups []byte
		for _, gid := range b.User.Groups {
			groups = binary.LittleEndian.AppendUint32(groups, gid)
		}
		p.AddRaw(plan.IDs, uint64(b.User.UID), uint64(b.User.GID), 1<<16|uint64(len(b.User.Groups)), groups)
	}
	if b.Processes > 0 {
		p.Add(plan.Rlimit, unix.RLIMIT_NPROC, b.Processes, b.Processes)
	}
	p.Add(plan.DropCaps, 0, 0, 0)
	b.landlock(p)
	p.AddRaw(plan.Seccomp, uint64(len(b.Filter)), 0, 0, b.Filter)
	if b.Mount.Tree == "" && !b.Trusted {
		// The workspace is an overlay that cannot rename directories.
		p.AddRaw(plan.Mover, uint64(len(b.Notify)), 0, 0, b.Notify)
	}
	p.Add(plan.Assert, plan.AssertNoUserNS|plan.AssertReadOnlyRoot|plan.AssertNoCaps, 0, 0)
	p.Add(plan.Serve, plan.ServeOneShot, 0, 0)
}

// Landlock's file rights (landlock(7)) by the ABI that brought them.
const (
	landlockRead  = 1<<0 | 1<<2 | 1<<3 // execute, read file, read directory
	landlockWrite = 1 << 1
	landlockV1    = 1<<13 - 1
	landlockNodes = 1<<6 | 1<<11 // character and block devices
	landlockRefer = 1 << 13      // v2
	landlockTrunc = 1 << 14      // v3
	landlockIoctl = 1 << 15      // v5

	landlockScopes = 1<<0 | 1<<1 // v6: abstract sockets, signals
)

// landlock is the second wall: the same view again, for the case that a mount
// is not what it should be.
func (b *Box) landlock(p *plan.Plan) {
	abi := b.LandlockABI
	if abi < 1 {
		return
	}
	handled, scopes := uint64(landlockV1), uint64(0)
	if abi >= 2 {
		handled |= landlockRefer
	}
	if abi >= 3 {
		handled |= landlockTrunc
	}
	if abi >= 5 {
		handled |= landlockIoctl
	}
	if abi >= 6 {
		scopes = landlockScopes
	}
	p.Add(plan.Landlock, handled, 0, scopes)
	p.Add(plan.LandlockPath, landlockRead, 0, 0, "/")
	device := handled & (landlockRead | landlockWrite | landlockTrunc | landlockIoctl)
	p.Add(plan.LandlockPath, device, 0, 0, "/dev")
	p.Add(plan.LandlockPath, handled&(landlockRead|landlockWrite|landlockTrunc), 1, 0, "/proc")
	write := handled &^ landlockNodes
	writable := []string{b.Workspace, b.Home, "/tmp", "/dev/shm"}
	for _, s := range b.Show {
		if s.Mode == CopyOnWrite && !within(s.Path, b.Home) {
			writable = append(writable, s.Path)
		}
	}
	for _, path := range slices.Compact(writable) {
		p.Add(plan.LandlockPath, write, 0, 0, path)
	}
	p.Add(plan.LandlockApply, 0, 0, 0)
}

func owner(u User) uint64 { return uint64(u.UID)<<32 | uint64(u.GID) }

// within reports whether path is dir or lies in it; both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

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
