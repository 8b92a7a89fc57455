//go:build amd64 || arm64

package filter

import (
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"
)

// Owners is a further program for a box in whose user namespace there is only
// one user and one group. The kernel answers a chown(2) to anyone else with
// EINVAL there; this answers as it would answer an ordinary user outside,
// with EPERM, which is the one error that fakeroot, say, is prepared for.
func Owners(uid, gid uint32) []byte {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		end   = unix.BPF_RET | unix.BPF_K
		same  = 1<<32 - 1 // an id that is left as it is
	)
	low := func(arg uint32) uint32 { return 16 + 8*arg } // of struct seccomp_data, on a little-endian machine
	var program []unix.SockFilter
	add := func(code uint16, k uint32, yes, no uint8) {
		program = append(program, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
	}
	// The ids are the arguments arg and arg+1.
	check := func(arg uint32) {
		add(load, low(arg), 0, 0)
		add(equal, same, 1, 0)
		add(equal, uid, 0, 4)
		add(load, low(arg+1), 0, 0)
		add(equal, same, 1, 0)
		add(equal, gid, 0, 1)
		add(end, unix.SECCOMP_RET_ALLOW, 0, 0)
		add(end, unix.SECCOMP_RET_ERRNO|uint32(unix.EPERM), 0, 0)
	}
	const checked = 8 // instructions of a check
	chowns := []uint32{unix.SYS_FCHOWN}
	if runtime.GOARCH == "amd64" {
		chowns = append(chowns, 92, 94) // chown and lchown, which arm64 does not have
	}

	add(load, 0, 0, 0) // the number of the call
	for i, nr := range chowns {
		add(equal, nr, uint8(len(chowns)-i+1), 0)
	}
	add(equal, unix.SYS_FCHOWNAT, 1+checked, 0)
	add(end, unix.SECCOMP_RET_ALLOW, 0, 0)
	check(1)
	check(2)

	var out []byte
	for _, f := range program {
		out = binary.LittleEndian.AppendUint16(out, f.Code)
		out = append(out, f.Jt, f.Jf)
		out = binary.LittleEndian.AppendUint32(out, f.K)
	}
	return out
}
