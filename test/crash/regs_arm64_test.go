//go:build linux

package crash

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const ntARMSystemCall = 0x404 // NT_ARM_SYSTEM_CALL of linux/elf.h

// skipCall makes the call at whose entry the thread stands do nothing.
func skipCall(tid int) error {
	nr := int32(-1)
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&nr))}
	iov.SetLen(4)
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SETREGSET, uintptr(tid), ntARMSystemCall, uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// setResult sets what the call at whose exit the thread stands returns.
func setResult(tid int, result int64) error {
	return change(tid, func(r *syscall.PtraceRegs) { r.Regs[0] = uint64(result) })
}

// setLength sets the third argument of a call at its entry.
func setLength(tid int, n uint64) error {
	return change(tid, func(r *syscall.PtraceRegs) { r.Regs[2] = n })
}

func change(tid int, set func(*syscall.PtraceRegs)) error {
	var r syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	set(&r)
	return syscall.PtraceSetRegs(tid, &r)
}
