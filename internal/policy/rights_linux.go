package policy

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/plan"
	"hutch/internal/view"
)

// rights gives up everything, in the order that the kernel demands.
func (b *Box) rights(p *plan.Plan) {
	if b.NoFile > 0 {
		p.Add(plan.Rlimit, unix.RLIMIT_NOFILE, b.NoFile, b.NoFile)
	}
	p.Add(plan.Rlimit, unix.RLIMIT_CORE, b.Core, b.Core)
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
	if b.Policy.Deterministic {
		const noRandomize = 0x0040000 // ADDR_NO_RANDOMIZE in linux/personality.h
		p.Add(plan.Personality, noRandomize, 0, 0)
		p.Add(plan.Umask, 0o022, 0, 0)
	}
	p.Add(plan.DropCaps, 0, 0, 0)
	b.landlock(p)
	if len(b.Policy.Bind) > 0 || len(b.Policy.Connect) > 0 {
		p.AddRaw(plan.Seccomp, uint64(len(b.Ports)), 0, 0, b.Ports)
	}
	if len(b.Owners) > 0 {
		p.AddRaw(plan.Seccomp, uint64(len(b.Owners)), 0, 0, b.Owners)
	}
	p.AddRaw(plan.Seccomp, uint64(len(b.Filter)), 0, 0, b.Filter)
	// An overlay with user attributes cannot rename directories, and in one that
	// becomes the lower layer of others, no directory may lead elsewhere.
	renames := b.Mount.Tree == "" && (!b.Trusted || b.Resident)
	told, untold := b.Commands(renames, b.Policy.Debug, b.Policy.Subprocess)
	flags := uint64(0)
	if renames {
		flags |= plan.CommandsRename
	}
	if !b.Policy.Subprocess {
		flags |= plan.CommandsNoSubprocess
	}
	p.AddRaw(plan.Commands, uint64(len(told)), uint64(len(untold)), flags, slices.Concat(told, untold))
	p.Add(plan.Assert, plan.AssertNoUserNS|plan.AssertReadOnlyRoot|plan.AssertNoCaps, 0, 0)
	serve := uint64(plan.ServeOneShot)
	if b.Resident {
		serve = 0
	}
	p.Add(plan.Serve, serve, 0, 0)
}

// Landlock's file rights (landlock(7)) by the ABI that brought them.
const (
	landlockRead  = 1<<0 | 1<<2 | 1<<3 // execute, read file, read directory
	landlockWrite = 1 << 1
	landlockNames = 1<<5 | 1<<8 // remove file, make regular file
	landlockV1    = 1<<13 - 1
	landlockNodes = 1<<6 | 1<<11 // character and block devices
	landlockRefer = 1 << 13      // v2
	landlockTrunc = 1 << 14      // v3
	landlockIoctl = 1 << 15      // v5

	landlockBind    = 1 << 0 // v4, of TCP ports
	landlockConnect = 1 << 1

	landlockScopes = 1<<0 | 1<<1 // v6: abstract sockets, signals

	landlockPorts = 4 // the ABI that brought ports: Linux 6.7
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
	narrowed := uint64(0)
	if len(b.Policy.Bind) > 0 {
		narrowed |= landlockBind
	}
	if len(b.Policy.Connect) > 0 {
		narrowed |= landlockConnect
	}
	p.Add(plan.Landlock, handled, narrowed, scopes)
	p.Add(plan.LandlockPath, landlockRead, 0, 0, "/")
	device := handled & (landlockRead | landlockWrite | landlockTrunc | landlockIoctl)
	p.Add(plan.LandlockPath, device, 0, 0, "/dev")
	p.Add(plan.LandlockPath, handled&(landlockRead|landlockWrite|landlockTrunc), 1, 0, "/proc")
	// Landlock finds the rights to a message queue where its file system is
	// mounted, mq_open(3) or not.
	p.Add(plan.LandlockPath, handled&(landlockRead|landlockWrite|landlockNames), 1, 0, "/dev/mqueue")
	write := handled &^ landlockNodes
	writable := []string{"/tmp", "/dev/shm"}
	if !b.Resident || !fsat.Within(b.Home, b.Workspace) { // else it is not there yet
		writable = append(writable, b.Home)
	}
	switch { // in a home, rights to which hold for all below, the mount alone refuses
	case !b.Policy.FSWrite:
	case b.Resident:
		// A rule is about an inode, and every new mount brings another; the one
		// beneath the mounts is asked for nothing. What else is in the directory
		// above, its own mount alone refuses.
		writable = append(writable, filepath.Dir(b.Workspace))
	default:
		writable = append(writable, b.Workspace)
	}
	for _, s := range b.Show {
		if s.Mode == view.CopyOnWrite && !fsat.Within(s.Path, b.Home) {
			writable = append(writable, s.Path)
		}
	}
	slices.Sort(writable)
	for _, path := range slices.Compact(writable) {
		p.Add(plan.LandlockPath, write, 0, 0, path)
	}
	for _, port := range b.Policy.Bind {
		p.Add(plan.LandlockPort, landlockBind, uint64(port), 0)
	}
	for _, port := range b.Policy.Connect {
		p.Add(plan.LandlockPort, landlockConnect, uint64(port), 0)
	}
	p.Add(plan.LandlockApply, 0, 0, 0)
}

// holdsPorts refuses a policy that names ports where nothing could hold it.
func (b *Box) holdsPorts() error {
	if len(b.Policy.Bind) == 0 && len(b.Policy.Connect) == 0 || b.LandlockABI >= landlockPorts {
		return nil
	}
	return fmt.Errorf("network.connect and network.bind need Landlock ABI %d (Linux 6.7), and this kernel gives %d; leave the ports out, or the whole network", landlockPorts, b.LandlockABI)
}
