//go:build linux

package crash

import "syscall"

// skipCall makes the call at whose entry the thread stands do nothing.
func skipCall(tid int) error {
	return change(tid, func(r *syscall.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// setResult sets what the call at whose exit the thread stands returns.
func setResult(tid int, result int64) error {
	return change(tid, func(r *syscall.PtraceRegs) { r.Rax = uint64(result) })
}

// setLength sets the third argument of a call at its entry.
func setLength(tid int, n uint64) error {
	return change(tid, func(r *syscall.PtraceRegs) { r.Rdx = n })
}

func change(tid int, set func(*syscall.PtraceRegs)) error {
	var r syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	set(&r)
	return syscall.PtraceSetRegs(tid, &r)
}
