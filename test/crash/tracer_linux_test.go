package crash

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Strace counts the calls of each thread by itself, and Go moves work between
// threads: the n-th call of a thread is not the n-th of the process, and points
// would be missed. This tracer counts them all in the one order in which the
// kernel was asked.

// act is what the tracer does with a call.
type act struct {
	kill bool          // SIGKILL before the call
	fail syscall.Errno // the call is not made and returns this
	tear bool          // half of a write is made, then SIGKILL
}

// tracer runs one process and meets every call of it that changes the disk.
type tracer struct {
	// at is asked before the n-th such call, n from 1.
	at func(n int, name string) act

	calls  int
	names  []string
	main   int
	exits  map[int]func(tid int) error // what is due at a thread's exit from its call
	status syscall.WaitStatus
}

// trace starts cmd and returns when it has ended. Output must go to files.
func (tr *tracer) trace(cmd *exec.Cmd) error {
	// Every ptrace request must come from the thread that started the child,
	// and WNOTHREAD keeps wait away from children of other tests.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Process.Release()
	tr.main, tr.exits = cmd.Process.Pid, map[int]func(int) error{}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(tr.main, &ws, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait for exec: %w", err)
	}
	// Threads are followed; a child that Go makes by vfork is not.
	if err := unix.PtraceSetOptions(tr.main, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL); err != nil {
		return err
	}
	if err := unix.PtraceSyscall(tr.main, 0); err != nil {
		return err
	}
	known := map[int]bool{tr.main: true}
	for {
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if ws.Exited() || ws.Signaled() {
			if tid == tr.main {
				tr.status = syscall.WaitStatus(ws)
				return nil
			}
			continue
		}
		deliver := 0
		switch sig := ws.StopSignal(); {
		case sig == unix.SIGTRAP|0x80:
			if err := tr.stop(tid); err != nil && err != unix.ESRCH {
				return err
			}
		case sig == unix.SIGTRAP && ws.TrapCause() > 0:
		case sig == unix.SIGSTOP && !known[tid]:
			known[tid] = true // a new thread
		default:
			deliver = int(sig)
		}
		if err := unix.PtraceSyscall(tid, deliver); err != nil && err != unix.ESRCH {
			return err
		}
	}
}

// info is struct ptrace_syscall_info of linux/ptrace.h.
type info struct {
	op   uint8
	_    [3]uint8
	arch uint32
	_    [2]uint64
	nr   uint64
	args [6]uint64
	_    [2]uint64
}

const (
	opEntry = 1
	opExit  = 2
)

func (tr *tracer) stop(tid int) error {
	var in info
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(in), uintptr(unsafe.Pointer(&in)), 0, 0); errno != 0 {
		return errno
	}
	if in.op == opExit {
		if due := tr.exits[tid]; due != nil {
			delete(tr.exits, tid)
			return due(tid)
		}
		return nil
	}
	if in.op != opEntry {
		return nil
	}
	name := changes(tid, &in)
	if name == "" {
		return nil
	}
	tr.calls++
	tr.names = append(tr.names, name)
	a := tr.at(tr.calls, name)
	kill := func(int) error { return unix.Kill(tr.main, unix.SIGKILL) }
	switch {
	case a.kill:
		// A thread that is killed at the entry of a call does not make it.
		return kill(tid)
	case a.tear:
		tr.exits[tid] = kill
		return setLength(tid, in.args[2]/2)
	case a.fail != 0:
		tr.exits[tid] = func(tid int) error { return setResult(tid, -int64(a.fail)) }
		return skipCall(tid)
	}
	return nil
}

// ficlone is FICLONE of linux/fs.h.
const ficlone = 0x40049409

// changes names the call if it changes a disk; else it returns "".
func changes(tid int, in *info) string {
	switch in.nr {
	case unix.SYS_OPENAT:
		if in.args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0 {
			return "openat"
		}
	case unix.SYS_OPENAT2:
		// The flags are the first member of struct open_how.
		var how [8]byte
		if peek(tid, in.args[2], how[:]) == nil && binary.NativeEndian.Uint64(how[:])&(unix.O_CREAT|unix.O_TRUNC) != 0 {
			return "openat2"
		}
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_PWRITEV, unix.SYS_PWRITEV2:
		if onDisk(tid, in.args[0]) {
			return "write"
		}
	case unix.SYS_SENDFILE:
		if onDisk(tid, in.args[0]) {
			return "sendfile"
		}
	case unix.SYS_COPY_FILE_RANGE, unix.SYS_SPLICE:
		if onDisk(tid, in.args[2]) {
			return "copy_file_range"
		}
	case unix.SYS_IOCTL:
		if in.args[1] == ficlone {
			return "ficlone"
		}
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return "fsync"
	default:
		return always[in.nr]
	}
	return ""
}

// always lists the calls that change the disk whatever their arguments.
var always = map[uint64]string{
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_MKNODAT: "mknodat", unix.SYS_LINKAT: "linkat", unix.SYS_SYMLINKAT: "symlinkat",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_RENAMEAT: "renameat",
	unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHMODAT2: "fchmodat2",
	unix.SYS_FCHOWN: "fchown", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_UTIMENSAT: "utimensat",
	unix.SYS_SETXATTR: "setxattr", unix.SYS_LSETXATTR: "lsetxattr", unix.SYS_FSETXATTR: "fsetxattr",
	unix.SYS_REMOVEXATTR: "removexattr", unix.SYS_LREMOVEXATTR: "lremovexattr", unix.SYS_FREMOVEXATTR: "fremovexattr",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_TRUNCATE: "truncate", unix.SYS_FALLOCATE: "fallocate",
	unix.SYS_SYNCFS: "syncfs", unix.SYS_SYNC: "sync", unix.SYS_SYNC_FILE_RANGE: "sync_file_range",
	463: "setxattrat", 466: "removexattrat", // since Linux 6.13
}

func peek(tid int, addr uint64, buf []byte) error {
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(len(buf))
	n, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(buf)}}, 0)
	if err == nil && n != len(buf) {
		return unix.EIO
	}
	return err
}

// onDisk reports whether a descriptor is that of a file, and not hutch's own
// output, which the tests give it as a file.
func onDisk(tid int, fd uint64) bool {
	if fd <= 2 {
		return false
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, fd))
	if err != nil || !strings.HasPrefix(path, "/") {
		return false
	}
	for _, other := range []string{"/proc/", "/sys/", "/memfd:"} {
		if strings.HasPrefix(path, other) {
			return false
		}
	}
	return path != "/dev/null"
}
