package jail

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/plan"
)

//go:embed boxinit/boxinit
var boxinit []byte

// Box is a jail that was started. Its methods are for one goroutine, but Exec,
// Signal, End and Kill may be called from any until Reap is.
type Box struct {
	// Control is the seqpacket socket to boxinit. End of file on it means
	// that the box is gone, or on its way.
	Control int
	// Pidfd of PID 1 becomes readable when every process of the box is gone;
	// -1 until Born was received.
	Pidfd int
	// Pid of PID 1 on the host; 0 until Born was received.
	Pid int

	helper int           // pid of the process that made PID 1; 0 when reaped
	making time.Duration // processor time of that process
	kept   []Report      // received, but not asked for yet
}

// firstPassed is the descriptor number in boxinit of the first cgroup.procs
// file: after standard input, output, error and the control socket.
const firstPassed = 4

// CgroupFD is the number, in boxinit, of the i-th descriptor in Start's procs.
func CgroupFD(i int) uint64 { return uint64(firstPassed + i) }

// sealedBoxinit is boxinit in a sealed memfd, made once: a box that reopened
// /proc/1/exe would reach this copy, which nothing can write, and never a file
// of the host (CVE-2019-5736).
var sealedBoxinit = sync.OnceValues(func() (int, error) {
	const exec = 0x10 // MFD_EXEC, since Linux 6.3
	fd, err := unix.MemfdCreate("boxinit", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|exec)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("boxinit", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd for boxinit: %w", err)
	}
	for rest := boxinit; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil {
			return -1, fmt.Errorf("memfd for boxinit: %w", err)
		}
		rest = rest[n:]
	}
	if err := unix.Fchmod(fd, 0o555); err != nil {
		return -1, fmt.Errorf("memfd for boxinit: %w", err)
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return -1, fmt.Errorf("seal boxinit: %w", err)
	}
	// It is started by its number, and where that is one of those that a box is
	// handed, another file has it by then.
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, aboveHanded)
	unix.Close(fd)
	if err != nil {
		return -1, fmt.Errorf("memfd for boxinit: %w", err)
	}
	return high, nil
})

// aboveHanded is above the number of every descriptor that boxinit is handed, and
// below what a caller with few descriptors may have.
const aboveHanded = 32

var devNull = sync.OnceValues(func() (int, error) {
	return unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
})

// Start spawns boxinit and sends it the beginning of a plan; Send adds the rest,
// and reports tell how it went. The descriptors procs are passed on, numbered by
// CgroupFD.
//
// The calling goroutine must be locked to its thread for the life of the box:
// the kernel kills the box when the thread that made it ends (PR_SET_PDEATHSIG).
func Start(p *plan.Plan, procs []int) (*Box, error) {
	pid, control, err := spawn(procs)
	if err != nil {
		return nil, err
	}
	box := &Box{Control: control, Pidfd: -1, helper: pid}
	if err := box.Send(p); err != nil {
		box.Kill()
		_, _ = box.Reap()
		return nil, err
	}
	return box, nil
}

// spawn starts boxinit, which dies with the calling thread, and returns our end
// of its control socket.
func spawn(procs []int) (pid, control int, err error) {
	helper, err := sealedBoxinit()
	if err != nil {
		return 0, -1, err
	}
	null, err := devNull()
	if err != nil {
		return 0, -1, fmt.Errorf("/dev/null: %w", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, -1, fmt.Errorf("control socket: %w", err)
	}
	files := []uintptr{uintptr(null), uintptr(null), uintptr(null), uintptr(pair[1])}
	for _, fd := range procs {
		files = append(files, uintptr(fd))
	}
	// No Cloneflags here: with CLONE_NEWUSER the standard library gives up
	// vfork and copies our page tables, 17–21 ms with a heap of 512 MB. And no
	// Credential: through vfork it would make this process non-dumpable.
	pid, err = syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", helper), []string{"boxinit"}, &syscall.ProcAttr{
		Env:   []string{},
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	unix.Close(pair[1])
	if err != nil {
		unix.Close(pair[0])
		return 0, -1, fmt.Errorf("start boxinit: %w", err)
	}
	return pid, pair[0], nil
}

// Send gives the box more of its plan.
func (b *Box) Send(p *plan.Plan) error {
	messages, err := p.Messages()
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := b.send(m, nil); err != nil {
			break // boxinit ended; what it reported is in the socket
		}
	}
	return nil
}

func (b *Box) send(message []byte, fds []int) error { return send(b.Control, message, fds) }

func send(socket int, message []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(socket, message, oob, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Exec tells the box to start a command. It may be called at once after Start:
// the message waits until the box is ready. Started or NotStarted tells how it
// went, and then Exited, all with the command's ID: in a box that serves many,
// no command that cannot start ends the box (EAGAIN: 256 run already).
func (b *Box) Exec(c *Command) error {
	body, err := c.encode()
	if err != nil {
		return err
	}
	message := plan.Message(plan.MessageStart, uint64(c.ID)<<32)
	var fds []int
	if len(body) <= inlineBytes && len(c.Argv)+len(c.Env) <= inlineStrings {
		message = append(message, body...)
		binary.LittleEndian.PutUint32(message[4:], uint32(len(message)))
	} else {
		fd, err := bodyFile(body)
		if err != nil {
			return fmt.Errorf("memfd for the command: %w", err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if !c.Terminal {
		fds = append(fds, c.Stdout, c.Stderr)
		if c.Stdin >= 0 {
			fds = append(fds, c.Stdin)
		}
	}
	// An error here is a box that is gone already; its report says why.
	_ = b.send(message, fds)
	return nil
}

// What is sent in the message itself: a file takes 10 µs to make, and as long to
// map.
const (
	inlineBytes   = 32 << 10
	inlineStrings = 1024
)

func bodyFile(body []byte) (int, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	for len(body) > 0 {
		n, err := unix.Write(fd, body)
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		body = body[n:]
	}
	return fd, nil
}

func (c *Command) encode() ([]byte, error) {
	terminal := uint32(0)
	if c.Terminal {
		terminal = 1
	}
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(c.Argv)))
	body = binary.LittleEndian.AppendUint32(body, uint32(len(c.Env)))
	body = binary.LittleEndian.AppendUint32(body, terminal)
	for _, n := range c.Size {
		body = binary.LittleEndian.AppendUint16(body, n)
	}
	for _, list := range [][]string{{c.Dir, c.Search}, c.Argv, c.Env} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return nil, fmt.Errorf("%q holds a NUL byte, which no command can be given", s)
			}
			body = append(append(body, s...), 0)
		}
	}
	return body, nil
}

// Signal sends a signal to the process group of the command with that ID; to
// nobody when it has ended.
func (b *Box) Signal(exec uint32, sig syscall.Signal) {
	_ = b.send(plan.Message(plan.MessageSignal, uint64(exec)<<32|uint64(sig)), nil)
}

// End asks the box to end: what it still has to report comes before its end.
func (b *Box) End() {
	_ = b.send(plan.Message(plan.MessageEnd, 0), nil)
}

// Kill ends every process of the box at once: the kernel kills a pid namespace
// with its PID 1, however its processes forked or ignored signals.
func (b *Box) Kill() {
	if b.Pidfd >= 0 {
		_ = unix.PidfdSendSignal(b.Pidfd, unix.SIGKILL, nil, 0)
		return
	}
	if b.helper > 0 {
		_ = unix.Kill(b.helper, unix.SIGKILL)
	}
	_ = unix.Shutdown(b.Control, unix.SHUT_RDWR) // PID 1, if there is one, ends at end of file
}

const reportSize = 24 + 32 + 256

// Receive returns the next report without waiting: ok is false when there is
// none yet, and err is io.EOF-like (errGone) when the box is gone.
func (b *Box) Receive() (r Report, ok bool, err error) {
	if len(b.kept) > 0 {
		r, b.kept = b.kept[0], b.kept[1:]
		return r, true, nil
	}
	return b.next(unix.MSG_DONTWAIT)
}

// next returns the next report from the socket.
func (b *Box) next(flags int) (r Report, ok bool, err error) {
	r, ok, err = receive(b.Control, flags)
	if ok && r.Kind == Born {
		b.Pid, b.Pidfd = int(r.A), r.FD
	}
	return r, ok, err
}

// receive reads one report; ok is false when there is none yet (MSG_DONTWAIT).
func receive(socket, how int) (r Report, ok bool, err error) {
	var buf [reportSize + 1]byte
	var oob [64]byte
	var n, oobn, flags int
	for {
		n, oobn, flags, _, err = unix.Recvmsg(socket, buf[:], oob[:], how|unix.MSG_CMSG_CLOEXEC)
		// ECONNRESET: boxinit ended without reading all we sent. The kernel
		// says that once, ahead of what boxinit said last.
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNRESET) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return Report{}, false, nil
	case err != nil || n == 0:
		return Report{}, false, ErrGone
	}
	r.FD = -1
	if oobn > 0 {
		if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
			for _, m := range messages {
				fds, _ := unix.ParseUnixRights(&m)
				for _, fd := range fds {
					if r.FD >= 0 {
						unix.Close(fd)
						continue
					}
					r.FD = fd
				}
			}
		}
	}
	if n != reportSize || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		if r.FD >= 0 {
			unix.Close(r.FD)
		}
		return Report{}, false, fmt.Errorf("boxinit sent a report of %d bytes: %w", n, ErrGone)
	}
	le := binary.LittleEndian
	r.Kind, r.Op, r.Step, r.Err = ReportKind(le.Uint32(buf[:])), plan.Code(le.Uint32(buf[4:])), int(le.Uint32(buf[8:])), syscall.Errno(le.Uint32(buf[12:]))
	r.Exec = le.Uint32(buf[16:])
	r.A, r.B, r.C, r.D = le.Uint64(buf[24:]), le.Uint64(buf[32:]), le.Uint64(buf[40:]), le.Uint64(buf[48:])
	text := buf[56:reportSize]
	if end := strings.IndexByte(string(text), 0); end >= 0 {
		text = text[:end]
	}
	r.Text = string(text)
	return r, true, nil
}

// ErrGone says that boxinit has closed its end.
var ErrGone = errors.New("the box is gone")

// Reap waits until every process of the box is gone and returns the resources
// that PID 1 and all it waited for have used. Call it after Kill, or after the
// command ended.
func (b *Box) Reap() (unix.Rusage, error) {
	var usage unix.Rusage
	if b.helper > 0 {
		b.reapHelper(0)
	}
	// The helper is gone, so Born is in the socket if it ever was sent.
	for b.Pid == 0 {
		r, ok, err := b.Receive()
		if err != nil || !ok {
			break
		}
		if r.Kind != Born && r.FD >= 0 {
			unix.Close(r.FD)
		}
	}
	var err error
	if b.Pid > 0 {
		err = waitFor(b.Pid, &usage)
		unix.Close(b.Pidfd)
		b.Pid, b.Pidfd = 0, -1
	}
	unix.Close(b.Control)
	b.Control = -1
	return usage, err
}

// HelperCPU returns the processor time of the process that made PID 1, which
// ends before a command starts.
func (b *Box) HelperCPU() time.Duration {
	b.reapHelper(unix.WNOHANG)
	return b.making
}

func (b *Box) reapHelper(options int) {
	if b.helper <= 0 {
		return
	}
	var usage unix.Rusage
	for {
		pid, err := unix.Wait4(b.helper, nil, options, &usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if pid == 0 {
			return
		}
		b.helper, b.making = 0, time.Duration(usage.Utime.Nano()+usage.Stime.Nano())
		return
	}
}

func waitFor(pid int, usage *unix.Rusage) error {
	for {
		_, err := unix.Wait4(pid, nil, 0, usage)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
