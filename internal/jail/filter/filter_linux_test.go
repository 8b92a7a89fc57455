package filter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary is its own box: with these set it puts the filter on, makes
// the calls of probes, and prints what the kernel said.
const (
	probeEnv = "HUTCH_TEST_FILTER" // on, closed, alone, or off for the counter-test
	uidEnv   = "HUTCH_TEST_UID"
	execEnv  = "HUTCH_TEST_EXEC" // execute this instead
)

// The filters of a child: those of a command that nobody listens to; the same
// where the policy grants neither debugging nor subprocesses; the one of PID 1.
const (
	on     = "on"
	closed = "closed"
	alone  = "alone"
	off    = "off"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(probeEnv); mode != "" {
		if err := child(mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(mode string) error {
	runtime.LockOSThread()
	if uid, err := strconv.Atoi(os.Getenv(uidEnv)); err == nil && uid != os.Getuid() {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
			return err
		}
	}
	if mode != off {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		if err := load(Default()); err != nil {
			return err
		}
	}
	if mode == on || mode == closed {
		if err := load(Command{NoDebug: mode == closed, NoSubprocess: mode == closed, Untold: true}.Program()); err != nil {
			return err
		}
	}
	if path := os.Getenv(execEnv); path != "" {
		return syscall.Exec(path, []string{path}, nil)
	}
	for _, p := range probes {
		fmt.Printf("%s\t%s\n", p.name, errnoName(p.call()))
	}
	return nil
}

// load puts a filter on every thread, as seccomp(2) wants it.
func load(program []byte) error {
	prog := unix.SockFprog{
		Len:    uint16(len(program) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program))),
	}
	const setModeFilter, tsync = 1, 1
	thread, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setModeFilter, tsync, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: thread %d did not follow", thread)
	}
	return nil
}

func errnoName(errno unix.Errno) string {
	if errno == 0 {
		return "ok"
	}
	return unix.ErrnoName(errno)
}

// A probe is one call and what the kernel says to it under the filter. Those
// that are denied are made so that without the filter nothing happens, and a
// kernel that has the call answers root otherwise.
type probe struct {
	name string
	want string
	call func() unix.Errno
	same bool // the kernel may say the same without the filter
	// closed is what it says where the policy grants less; "": the same.
	closed string
}

// alone is what it says where nobody is told and the second filter is missing.
func (p probe) alone() string {
	switch p.want {
	case "EPERM", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ENOTSUP":
		return "ENOSYS"
	}
	return p.want
}

// raw makes a call that changes nothing; descriptors it returns are closed
// when the child ends.
func raw(nr uintptr, args ...uintptr) func() unix.Errno {
	return func() unix.Errno {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		return errno
	}
}

const (
	bad   = ^uintptr(0) // a descriptor, pid or number that is none
	fault = uintptr(1)  // an address that is none
)

var probes = []probe{
	{name: "clone newuser", want: "EPERM", call: raw(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS)},
	{name: "clone newns", want: "EPERM", call: raw(unix.SYS_CLONE, unix.CLONE_NEWNS|unix.CLONE_FS)},
	{name: "clone3", want: "ENOSYS", call: raw(unix.SYS_CLONE3, 0, 0)},
	{name: "unshare newuser", want: "EPERM", call: raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
	{name: "unshare fs", want: "EPERM", call: raw(unix.SYS_UNSHARE, unix.CLONE_FS)},
	{name: "setns", want: "EPERM", call: raw(unix.SYS_SETNS, bad, 0)},

	{name: "mount", want: "EPERM", call: raw(unix.SYS_MOUNT, fault, fault, fault, 0, 0)},
	{name: "umount2", want: "EPERM", call: raw(unix.SYS_UMOUNT2, fault, 0)},
	{name: "pivot_root", want: "EPERM", call: raw(unix.SYS_PIVOT_ROOT, fault, fault)},
	{name: "chroot", want: "EPERM", call: raw(unix.SYS_CHROOT, fault)},
	{name: "fsopen", want: "EPERM", call: raw(unix.SYS_FSOPEN, fault, 0)},
	{name: "fsmount", want: "EPERM", call: raw(unix.SYS_FSMOUNT, bad, 0, 0)},
	{name: "fsconfig", want: "EPERM", call: raw(unix.SYS_FSCONFIG, bad, 0, 0, 0, 0)},
	{name: "fspick", want: "EPERM", call: raw(unix.SYS_FSPICK, bad, fault, 0)},
	{name: "move_mount", want: "EPERM", call: raw(unix.SYS_MOVE_MOUNT, bad, fault, bad, fault, 0)},
	{name: "open_tree", want: "EPERM", call: raw(unix.SYS_OPEN_TREE, bad, fault, 0)},
	{name: "open_tree_attr", want: "EPERM", call: raw(unix.SYS_OPEN_TREE_ATTR, bad, fault, 0, 0, 0)},
	{name: "mount_setattr", want: "EPERM", call: raw(unix.SYS_MOUNT_SETATTR, bad, fault, 0, 0, 0)},

	{name: "kcmp", want: "EPERM", call: raw(unix.SYS_KCMP, bad, bad, 0, 0, 0)},
	{name: "pidfd_getfd", want: "EPERM", call: raw(unix.SYS_PIDFD_GETFD, bad, 0, 0)},
	{name: "bpf", want: "EPERM", call: raw(unix.SYS_BPF, bad, 0, 0)},
	{name: "perf_event_open", want: "EPERM", call: raw(unix.SYS_PERF_EVENT_OPEN, fault, 0, 0, bad, 0)},
	{name: "userfaultfd", want: "EPERM", call: raw(unix.SYS_USERFAULTFD, 0xffff)},
	{name: "io_uring_setup", want: "EPERM", call: raw(unix.SYS_IO_URING_SETUP, 1, 0)},
	{name: "io_uring_enter", want: "EPERM", call: raw(unix.SYS_IO_URING_ENTER, bad, 0, 0, 0, 0, 0)},
	{name: "io_uring_register", want: "EPERM", call: raw(unix.SYS_IO_URING_REGISTER, bad, 0, 0, 0)},
	{name: "keyctl", want: "EPERM", call: raw(unix.SYS_KEYCTL, bad)},
	{name: "add_key", want: "EPERM", call: raw(unix.SYS_ADD_KEY, fault, fault, 0, 0, 0)},
	{name: "request_key", want: "EPERM", call: raw(unix.SYS_REQUEST_KEY, fault, fault, 0, 0)},

	{name: "kexec_load", want: "EPERM", call: raw(unix.SYS_KEXEC_LOAD, 0, 1<<20, 0, 0)},
	{name: "finit_module", want: "EPERM", call: raw(unix.SYS_FINIT_MODULE, bad, fault, 0)},
	{name: "delete_module", want: "EPERM", call: raw(unix.SYS_DELETE_MODULE, fault, 0)},
	{name: "reboot", want: "EPERM", call: raw(unix.SYS_REBOOT, 0, 0, 0, 0)},
	{name: "swapon", want: "EPERM", call: raw(unix.SYS_SWAPON, fault, 0)},
	{name: "acct", want: "EPERM", call: raw(unix.SYS_ACCT, fault)},
	{name: "quotactl", want: "EPERM", call: raw(unix.SYS_QUOTACTL, bad, fault, 0, 0)},
	{name: "quotactl_fd", want: "EPERM", call: raw(unix.SYS_QUOTACTL_FD, bad, 0, 0, 0)},
	{name: "fanotify_init", want: "EPERM", call: raw(unix.SYS_FANOTIFY_INIT, 0xffffffff, 0)},
	{name: "open_by_handle_at", want: "EPERM", call: raw(unix.SYS_OPEN_BY_HANDLE_AT, bad, fault, 0)},
	{name: "name_to_handle_at", want: "EPERM", call: raw(unix.SYS_NAME_TO_HANDLE_AT, bad, fault, fault, fault, 0)},
	{name: "settimeofday", want: "EPERM", call: raw(unix.SYS_SETTIMEOFDAY, fault, 0)},
	{name: "clock_settime", want: "EPERM", call: raw(unix.SYS_CLOCK_SETTIME, 0xffff, fault)},
	{name: "clock_adjtime", want: "EPERM", call: raw(unix.SYS_CLOCK_ADJTIME, 0, fault)},
	{name: "adjtimex", want: "EPERM", call: raw(unix.SYS_ADJTIMEX, fault)},
	{name: "sethostname", want: "EPERM", call: raw(unix.SYS_SETHOSTNAME, fault, 1)},
	{name: "syslog", want: "EPERM", call: raw(unix.SYS_SYSLOG, 99, 0, 0)},
	{name: "personality read implies exec", want: "EPERM", call: raw(unix.SYS_PERSONALITY, 0x400000)},

	{name: "ioctl tiocsti", want: "EPERM", call: raw(unix.SYS_IOCTL, bad, unix.TIOCSTI, 0)},
	{name: "ioctl tiocsti, high bits", want: "EPERM", call: raw(unix.SYS_IOCTL, bad, 1<<32|unix.TIOCSTI, 0)},
	{name: "ioctl tioclinux", want: "EPERM", call: raw(unix.SYS_IOCTL, bad, unix.TIOCLINUX, 0)},
	{name: "ioctl tioclinux, high bits", want: "EPERM", call: raw(unix.SYS_IOCTL, bad, 0xdead<<32|unix.TIOCLINUX, 0)},
	{name: "ioctl tiocsetd", want: "EPERM", call: raw(unix.SYS_IOCTL, bad, unix.TIOCSETD, 0)},
	{name: "ioctl tcgets", want: "EBADF", same: true, call: raw(unix.SYS_IOCTL, bad, unix.TCGETS, 0)},

	{name: "socket vsock", want: "EAFNOSUPPORT", same: true, call: raw(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	{name: "socket vsock, high bits", want: "EAFNOSUPPORT", same: true, call: raw(unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	{name: "socket alg", want: "EAFNOSUPPORT", same: true, call: raw(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
	{name: "socket packet", want: "EAFNOSUPPORT", call: raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)},
	{name: "socket inet, as packet", want: "EPROTONOSUPPORT", call: raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_PACKET, 0)},
	{name: "socket sctp", want: "EPROTONOSUPPORT", same: true, call: raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
	{name: "socket netlink audit", want: "EPROTONOSUPPORT", same: true, call: raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)},
	{name: "socket netlink generic", want: "EPROTONOSUPPORT", call: raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)},
	{name: "socket netlink route", want: "ok", same: true, call: raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
	{name: "socket unix", want: "ok", same: true, call: raw(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)},
	{name: "socket inet", want: "ok", same: true, call: raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP)},
	{name: "socketpair inet", want: "ENOTSUP", same: true, call: raw(unix.SYS_SOCKETPAIR, unix.AF_INET, unix.SOCK_STREAM, 0, 0)},

	{name: "number 1000", want: "ENOSYS", same: true, call: raw(1000)},
	{name: "number -1", want: "ENOSYS", same: true, call: raw(bad)},
	{name: "x32 getpid", want: "ENOSYS", same: true, call: raw(0x40000000 | 39)},
	{name: "file_getattr", want: "ENOSYS", same: true, call: raw(unix.SYS_FILE_GETATTR, bad, fault, 0, 0, 0)},

	{name: "memfd_create", want: "ok", same: true, call: func() unix.Errno { _, err := unix.MemfdCreate("x", 0); return errnoOf(err) }},
	{name: "pidfd_open", want: "ok", same: true, call: func() unix.Errno { _, err := unix.PidfdOpen(os.Getpid(), 0); return errnoOf(err) }},
	{name: "openat2", want: "ok", same: true, call: func() unix.Errno {
		_, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH})
		return errnoOf(err)
	}},
	{name: "statx", want: "ok", same: true, call: func() unix.Errno { return errnoOf(unix.Statx(unix.AT_FDCWD, "/", 0, 0, new(unix.Statx_t))) }},
	{name: "faccessat2", want: "ok", same: true, call: func() unix.Errno { return errnoOf(unix.Faccessat(unix.AT_FDCWD, "/", 0, unix.AT_EACCESS)) }},
	{name: "close_range", want: "ok", same: true, call: raw(unix.SYS_CLOSE_RANGE, 1<<20, 1<<20, 0)},
	{name: "futex_waitv", want: "EINVAL", same: true, call: raw(unix.SYS_FUTEX_WAITV, 0, 0, 0, 0, 0)},
	{name: "rseq", want: "EINVAL", same: true, call: raw(unix.SYS_RSEQ, 0, 0, 0xff, 0)},
	{name: "personality query", want: "ok", same: true, call: raw(unix.SYS_PERSONALITY, 0xffffffff)},
	{name: "personality no randomize", want: "ok", same: true, call: raw(unix.SYS_PERSONALITY, 0x40000)},
	{name: "a thread", want: "ok", same: true, call: func() unix.Errno {
		done := make(chan bool)
		go func() { runtime.LockOSThread(); done <- true }() // ends with its goroutine, and another is made
		<-done
		return 0
	}},
	{name: "a process", want: "EINVAL", same: true, closed: "EPERM", call: raw(unix.SYS_CLONE, unix.CLONE_SIGHAND)}, // without CLONE_VM
	{name: "execve", want: "EFAULT", same: true, closed: "EPERM", call: raw(unix.SYS_EXECVE, fault, 0, 0)},
	{name: "execve with the nonce of the file", want: "EFAULT", same: true, call: raw(unix.SYS_EXECVE, fault, 0, 0,
		uintptr(Nonce[0])<<32|uintptr(Nonce[1]), uintptr(Nonce[2])<<32|uintptr(Nonce[3]))},
	{name: "execveat", want: "EFAULT", same: true, closed: "EPERM", call: raw(unix.SYS_EXECVEAT, bad, fault, 0, 0, 0)},
	{name: "ptrace of nobody", want: "ESRCH", same: true, closed: "EPERM", call: raw(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 0, 0, 0)},
	{name: "process_vm_writev", want: "EINVAL", same: true, closed: "EPERM", call: raw(unix.SYS_PROCESS_VM_WRITEV, uintptr(os.Getpid()), 0, 0, 0, 0, 1)},
	{name: "a child of its own", want: "ok", same: true, closed: "EPERM", call: func() unix.Errno { return errnoOf(exec.Command("/bin/true").Run()) }},
	{name: "ptrace of a child", want: "ok", same: true, closed: "EPERM", call: traceChild},
	{name: "process_vm_readv", want: "ok", same: true, closed: "EPERM", call: func() unix.Errno {
		from, to := [1]byte{7}, [1]byte{}
		_, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &to[0], Len: 1}}, []unix.RemoteIovec{{Base: uintptr(unsafe.Pointer(&from)), Len: 1}}, 0)
		return errnoOf(err)
	}},
	// Last, for it stays: a filter on top may not open what ours closes.
	{name: "a filter on top that allows all", want: "ok", same: true, call: func() unix.Errno {
		if unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != nil {
			return unix.EINVAL
		}
		allowAll := binary.LittleEndian.AppendUint32([]byte{unix.BPF_RET, 0, 0, 0}, unix.SECCOMP_RET_ALLOW)
		return errnoOf(load(allowAll))
	}},
	{name: "unshare, after that", want: "EPERM", call: raw(unix.SYS_UNSHARE, unix.CLONE_FS)},
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.EIO
	}
	return errno
}

// traceChild debugs a process of its own, as gdb would.
func traceChild() unix.Errno {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return errnoOf(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil {
		return errnoOf(err)
	}
	if err := unix.PtraceDetach(cmd.Process.Pid); err != nil {
		return errnoOf(err)
	}
	return errnoOf(cmd.Wait())
}

func uids() []int {
	if os.Getuid() == 0 {
		return []int{0, 1000}
	}
	return []int{os.Getuid()}
}

func box(mode string, uid int, path string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), probeEnv+"="+mode, uidEnv+"="+strconv.Itoa(uid), execEnv+"="+path)
	return cmd
}

// answers runs the probes in a child.
func answers(t *testing.T, mode string, uid int) map[string]string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := box(mode, uid, "")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("filter %s, uid %d: %v\n%s%s", mode, uid, err, out, stderr.Bytes())
	}
	got := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		name, errno, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		got[name] = errno
	}
	return got
}

func TestKernel(t *testing.T) {
	if Default() == nil {
		t.Skip("no filter for this architecture")
	}
	for _, uid := range uids() {
		for _, mode := range []string{on, closed, alone} {
			got := answers(t, mode, uid)
			for _, p := range probes {
				want := p.want
				if mode == alone {
					want = p.alone()
				}
				if mode == closed && p.closed != "" {
					want = p.closed
				}
				if got[p.name] != want {
					t.Errorf("filter %s, uid %d: %s: %s, want %s", mode, uid, p.name, got[p.name], want)
				}
			}
		}
	}
}

// TestProbesCanFail runs the same without the filter: a denied call that the
// kernel would deny root by itself proves nothing.
func TestProbesCanFail(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("an ordinary user is denied most of it without a filter")
	}
	got := answers(t, off, 0)
	for _, p := range probes {
		if !p.same && got[p.name] == p.want {
			t.Errorf("%s: %s without the filter, too", p.name, p.want)
		}
	}
}

// TestCompat executes programs that make system calls of the i386 interface:
// a 64-bit one, through int 0x80, and a 32-bit one.
func TestCompat(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("amd64 only")
	}
	for name, image := range map[string][]byte{"64-bit": elf64(int80), "32-bit": elf32(int80)} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "prog")
			if err := os.WriteFile(path, image, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, uid := range uids()[:1] {
				var exit *exec.ExitError
				if err := box(off, uid, path).Run(); !errors.As(err, &exit) || exit.ExitCode() != 42 {
					t.Skipf("this kernel does not run it: %v", err)
				}
				err := box(on, uid, path).Run()
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSYS {
					t.Errorf("uid %d: %v, want SIGSYS", uid, err)
				}
			}
		})
	}
}

// int80 is exit(42) in i386: mov eax, 1; mov ebx, 42; int 0x80; and for ever
// after, jmp $.
var int80 = []byte{0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xfe}

const base = 0x400000

func elf64(code []byte) []byte {
	var b bytes.Buffer
	put(&b, []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		uint16(2), uint16(62), uint32(1), uint64(base+120), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), uint64(120+len(code)), uint64(120+len(code)), uint64(4096), code)
	return b.Bytes()
}

func elf32(code []byte) []byte {
	var b bytes.Buffer
	put(&b, []byte("\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		uint16(2), uint16(3), uint32(1), uint32(base+84), uint32(52), uint32(0), uint32(0), uint16(52), uint16(32), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(0), uint32(base), uint32(base), uint32(84+len(code)), uint32(84+len(code)), uint32(5), uint32(4096), code)
	return b.Bytes()
}

func put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		binary.Write(b, binary.LittleEndian, v)
	}
}

func TestDescribe(t *testing.T) {
	if Default() == nil {
		t.Skip("no filter for this architecture")
	}
	for _, c := range []struct {
		nr           int
		first, third uint64
		want         string
	}{
		{unix.SYS_MOUNT, 1, 2, "mount"},
		{unix.SYS_UNSHARE, unix.CLONE_NEWUSER | unix.CLONE_NEWNS, 0, "unshare CLONE_NEWUSER|CLONE_NEWNS"},
		{unix.SYS_CLONE, 17, 0, "clone"},
		{unix.SYS_SETNS, unix.CLONE_NEWUSER, 0, "setns"},
		{unix.SYS_SOCKET, unix.AF_ALG, 0, "socket AF_ALG"},
		{unix.SYS_SOCKET, 1<<32 | unix.AF_VSOCK, 0, "socket AF_VSOCK"},
		{unix.SYS_SOCKET, 300, 0, "socket of an unknown family"},
		{unix.SYS_SOCKET, unix.AF_NETLINK, unix.NETLINK_AUDIT, "socket AF_NETLINK, protocol 9"},
		{unix.SYS_IOCTL, unix.TIOCSTI, 0, "ioctl TIOCSTI"},
		{unix.SYS_PERSONALITY, 0x400000, 0, "personality 0x400000"},
		{-1, 0, 0, "other calls"},
		{100000, 0, 0, "call 100000"},
	} {
		if got := Describe(c.nr, c.first, c.third); got != c.want {
			t.Errorf("Describe(%d, %#x, %d) is %q, want %q", c.nr, c.first, c.third, got, c.want)
		}
	}
}

func TestDefaultIsACopy(t *testing.T) {
	p := Default()
	if p == nil {
		t.Skip("no filter for this architecture")
	}
	if len(p) == 0 || len(p)%8 != 0 {
		t.Fatalf("%d bytes are no array of struct sock_filter", len(p))
	}
	p[0]++
	if bytes.Equal(p, Default()) {
		t.Error("a caller's change shows in the next copy")
	}
}
