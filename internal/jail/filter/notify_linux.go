//go:build amd64 || arm64

package filter

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Notify returns a second program, for boxes in which directories are renamed by
// the mover of boxinit: it hands over what that has to see, and allows the rest,
// about which Default decides. The caller owns the bytes.
//
// Beside the renames these are the calls after which a process has fewer rights
// than the box (a Landlock domain of its own), or a parent that does not tell
// from whom it has its rights.
func Notify() []byte {
	return notify(nativeArch, renames, unix.SYS_LANDLOCK_RESTRICT_SELF, unix.SYS_PRCTL, unix.SYS_CLONE)
}

// In struct seccomp_data, little-endian.
const (
	offsetNR   = 0
	offsetArch = 4
	offsetArg0 = 16 // its low word
)

const retUserNotif = 0x7fc00000 // SECCOMP_RET_USER_NOTIF in linux/seccomp.h

func notify(arch uint32, renames []uint32, restrictSelf, prctl, clone uint32) []byte {
	var code []byte
	emit := func(op uint16, jt, jf uint8, k uint32) {
		code = binary.LittleEndian.AppendUint16(code, op)
		code = append(code, jt, jf)
		code = binary.LittleEndian.AppendUint32(code, k)
	}
	load := func(offset uint32) { emit(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, 0, 0, offset) }
	ret := func(verdict uint32) { emit(unix.BPF_RET|unix.BPF_K, 0, 0, verdict) }
	const equal, set = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K

	load(offsetArch)
	emit(equal, 1, 0, arch)
	ret(unix.SECCOMP_RET_ALLOW)
	load(offsetNR)
	for _, nr := range append(renames[:len(renames):len(renames)], restrictSelf) {
		emit(equal, 0, 1, nr)
		ret(retUserNotif)
	}
	for _, c := range []struct {
		nr   uint32
		test uint16
		k    uint32
	}{{prctl, equal, unix.PR_SET_CHILD_SUBREAPER}, {clone, set, unix.CLONE_PARENT}} {
		emit(equal, 0, 4, c.nr)
		load(offsetArg0)
		emit(c.test, 0, 1, c.k)
		ret(retUserNotif)
		ret(unix.SECCOMP_RET_ALLOW)
	}
	ret(unix.SECCOMP_RET_ALLOW)
	return code
}
