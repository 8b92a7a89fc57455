package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
)

// Running is one command of a resident box. What is not said otherwise is under
// the lock of its box.
type Running struct {
	live    *Live
	id      uint32
	command LiveCommand
	result  Result // complete when done is closed

	stdout, stderr int // our ends; -1 when closed
	input          *os.File
	stopInput      chan struct{} // nil: nothing is fed
	timer          *time.Timer   // of the deadline, or of the grace after a signal

	began      uint64 // CLOCK_MONOTONIC ns; 0 before it started
	tick       uint64 // the same as proc_pid_stat(5) counts
	pid        int    // in the box
	host       int    // pid on the host; 0: not looked for yet
	overlapped bool   // with another command
	isOver     bool   // its Result is complete
	hasExited  bool
	ending     bool          // something kills what it started
	cpu        time.Duration // of its processes, when last looked at
	done       chan struct{}
}

// ID is the command's number in its box.
func (r *Running) ID() uint32 { return r.id }

// Done is closed when the command has ended and its output is complete. What it
// left running goes on, and what that still writes is not kept.
func (r *Running) Done() <-chan struct{} { return r.done }

// Result waits for the end and returns what happened.
func (r *Running) Result() Result {
	<-r.done
	return r.result
}

// Signal sends a signal to the command's process group.
func (r *Running) Signal(sig syscall.Signal) {
	r.live.mu.Lock()
	defer r.live.mu.Unlock()
	if !r.isOver && !r.hasExited {
		r.live.box.Signal(r.id, sig)
	}
}

// Interrupt ends the command by a signal: with all it started after a grace of
// two seconds, or at the second call.
func (r *Running) Interrupt(sig syscall.Signal) {
	r.live.mu.Lock()
	defer r.live.mu.Unlock()
	if r.isOver || r.ending {
		return
	}
	if r.result.End != ByItself {
		r.end(Interrupted)
		return
	}
	r.result.End, r.result.Signal = Interrupted, sig
	r.live.box.Signal(r.id, sig)
	r.setTimer(grace, Interrupted)
}

// Kill ends the command with everything it started, and says why.
func (r *Running) Kill(why End) {
	r.live.mu.Lock()
	defer r.live.mu.Unlock()
	r.end(why)
}

// Resize gives the command's terminal a size.
func (r *Running) Resize(rows, cols uint16) {
	if r.command.Terminal != nil {
		r.command.Terminal.SetSize(rows, cols)
	}
}

// begin makes the pipes and hands the command over.
func (r *Running) begin() error {
	c, l := &r.command, r.live
	if c.Terminal != nil {
		c.Exec.Terminal, c.Exec.Size = true, c.Terminal.wanted()
		return l.box.Exec(&c.Exec)
	}
	ours, theirs, err := makePipes(c.Stdin != nil, l.Owner)
	defer closeAll(theirs[:])
	if err != nil {
		return err
	}
	r.stdout, r.stderr = ours[1], ours[2]
	c.Exec.Stdin, c.Exec.Stdout, c.Exec.Stderr = theirs[0], theirs[1], theirs[2]
	if err = l.add(r.stdout, unix.EPOLLIN, onStdout, r.id); err == nil {
		err = l.add(r.stderr, unix.EPOLLIN, onStderr, r.id)
	}
	if err == nil {
		err = l.box.Exec(&c.Exec)
	}
	if c.Stdin == nil {
		return err
	}
	if err != nil {
		unix.Close(ours[0])
		return err
	}
	return r.feed(ours[0], false)
}

// feed pumps the command's input through one of our ends, which it takes over.
func (r *Running) feed(w int, terminal bool) error {
	if err := unix.SetNonblock(w, true); err != nil {
		unix.Close(w)
		return fmt.Errorf("input: %w", err)
	}
	from := r.command.Stdin.Reader
	if all, ok := from.(interface{ Len() int }); ok && !terminal && all.Len() <= unix.PathMax {
		// What a pipe surely holds needs nobody to wait for it.
		var buf [unix.PathMax]byte
		n, _ := io.ReadFull(from, buf[:all.Len()])
		if n == 0 {
			unix.Close(w)
			return nil
		}
		if wrote, err := unix.Write(w, buf[:n]); err != nil || wrote == n {
			unix.Close(w)
			return nil
		}
	}
	r.input, r.stopInput = os.NewFile(uintptr(w), "input"), make(chan struct{})
	go feed(fileEnd{r.input}, from, r.stopInput, terminal)
	return nil
}

// fileEnd is our end of an input that the runtime waits for.
type fileEnd struct{ *os.File }

func (e fileEnd) put(p []byte) bool {
	_, err := e.Write(p)
	return err == nil
}

func (e fileEnd) close() { e.Close() }

// adoptTerminal follows the command on the pseudo-terminal that the box made for
// it: one stream.
func (r *Running) adoptTerminal(master int) error {
	t := r.command.Terminal
	if t == nil {
		unix.Close(master)
		return errors.New("pseudo-terminal: the box made one that nobody asked for")
	}
	err := t.adopt(master)
	if err == nil {
		r.stdout, err = t.dupMaster()
	}
	if err == nil {
		err = r.live.add(r.stdout, unix.EPOLLIN, onStdout, r.id)
	}
	if err != nil || r.command.Stdin == nil {
		return err
	}
	w, err := t.dupMaster()
	if err != nil {
		return err
	}
	return r.feed(w, true)
}

func (r *Running) started(s jail.Report) {
	r.pid, r.began = int(s.A), s.B
	r.tick = ticksOf(s.B)
	if r.live.gate > 0 {
		r.live.opened.Broadcast()
	}
	if r.ending { // before it began
		go r.live.destroy(r)
		return
	}
	if limit := r.command.Limits.Timeout; limit > 0 && r.result.End == ByItself {
		r.setTimer(limit-time.Duration(monotonic()-s.B), AtDeadline)
	}
}

// setTimer ends the command after a while.
func (r *Running) setTimer(after time.Duration, why End) {
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(after, func() { r.Kill(why) })
}

func (r *Running) notStarted(s jail.Report) {
	r.result.StartError, r.result.StartWhat, r.result.StartDir = s.Err, s.Text, s.A != 0
	r.result.End = firstOf(r.result.End, NeverStarted)
	r.finish()
}

func (r *Running) exited(s jail.Report) {
	r.result.Wait, r.result.Known = syscall.WaitStatus(s.A), true
	r.result.Duration = time.Duration(s.B - r.began)
	r.cpu = max(r.cpu, time.Duration(s.C+s.D)*time.Microsecond)
	r.hasExited = true
	if !r.ending {
		r.finish()
	}
}

// end ends the command with all it started. The first reason counts.
func (r *Running) end(why End) {
	if r.isOver || r.live.over {
		return
	}
	r.result.End = firstOf(r.result.End, why)
	if r.ending {
		return
	}
	r.ending = true
	if r.began != 0 {
		go r.live.destroy(r)
	}
}

// lost ends a command of a box that is gone.
func (r *Running) lost() {
	if r.began != 0 && !r.result.Known {
		r.result.Duration = time.Duration(monotonic() - r.began)
	}
	if !r.result.Known {
		if r.live.cgroup.OOMKills() > r.live.oomKills {
			r.result.End = firstOf(r.result.End, OutOfMemory)
		}
		r.result.End = firstOf(r.result.End, BoxFailed)
	}
	r.finish()
}

// finish takes what is left of the output and tells what happened.
func (r *Running) finish() {
	l, res := r.live, &r.result
	r.isOver = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.stopFeeding()
	r.drain(&r.stdout, r.command.Stdout)
	r.drain(&r.stderr, r.command.Stderr)
	for _, c := range []*Capture{r.command.Stdout, r.command.Stderr} {
		if c != nil {
			c.finish()
		}
	}
	if r.command.Terminal != nil {
		r.closePipes()
		r.command.Terminal.Close()
	}
	delete(l.running, r.id)
	if l.gate > 0 {
		l.opened.Broadcast()
	}
	if r.stdout >= 0 || r.stderr >= 0 {
		l.late[r.id] = r
	}
	if res.Known && !res.Wait.Exited() && !res.Wait.Signaled() {
		res.Known = false
	}
	if res.End == ByItself && res.Known && (res.Wait.Signaled() || res.Wait.ExitStatus() != 0) && l.outOfMemory() {
		res.End = OutOfMemory // its event is still to come
	}
	if res.End == ByItself && l.outOfDisk() {
		res.End = OutOfDisk
	}
	if res.End == ByItself && !res.Known {
		res.End = BoxFailed
	}
	if res.End == BoxFailed && res.Failure == nil {
		res.Failure = l.failure
	}
	if res.Failure == nil && res.End == BoxFailed {
		res.Failure = errors.New("the command's exit status is unknown")
	}
	if r.began != 0 {
		res.CPU, res.CPUSource = r.cpu, "polled"
	}
	if res.PeakMemory > 0 {
		res.PeakSource = "polled"
	}
	close(r.done)
}

func (r *Running) stopFeeding() {
	if r.stopInput != nil {
		close(r.stopInput)
		r.input.Close() // a write that waits ends
		r.stopInput = nil
	}
}

// buffers are shared by all boxes, since one that is idle needs none.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// stream tells what belongs to an event.
func (r *Running) stream(what int) (fd *int, to *Capture) {
	if what == onStdout {
		return &r.stdout, r.command.Stdout
	}
	return &r.stderr, r.command.Stderr
}

// read takes what is in a pipe, once.
func (r *Running) read(what int) {
	fd, to := r.stream(what)
	if *fd < 0 {
		return
	}
	buf := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buf)
	n, err := unix.Read(*fd, buf[:])
	if n > 0 {
		r.keep(buf[:n], to)
	}
	if ended(n, err) || to.unread.Load() {
		unix.Close(*fd) // a command that goes on writing gets SIGPIPE, as in any pipeline
		*fd = -1
	}
}

func ended(n int, err error) bool {
	return (n == 0 && err == nil) || (err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR))
}

// keep keeps output up to the limit; one byte more ends the command.
func (r *Running) keep(p []byte, to *Capture) {
	if to.keep(p, r.command.Limits.Output) {
		r.end(TooMuchOutput)
	}
}

// drain takes what is in a pipe when the command has ended, and no more: what it
// left running may write for ever.
func (r *Running) drain(fd *int, to *Capture) {
	if *fd < 0 {
		return
	}
	buf := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buf)
	left := -1
	if r.command.Terminal != nil {
		left = 16 << 20 // its end hangs it up, and nobody else can write
	}
	for left != 0 {
		n, err := unix.Read(*fd, buf[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		case ended(n, err):
			unix.Close(*fd)
			*fd = -1
			return
		}
		if left < 0 {
			if left, err = unix.IoctlGetInt(*fd, unix.TIOCINQ); err != nil {
				left = 0
			}
			left += n
		}
		n = min(n, left)
		left -= n
		if to.keep(buf[:n], r.command.Limits.Output) {
			r.result.End = firstOf(r.result.End, TooMuchOutput)
		}
	}
}

// discard reads what is written after the command ended, so that what it left
// running is neither stopped nor killed by its own messages.
func (r *Running) discard(what int) {
	fd, _ := r.stream(what)
	if *fd < 0 {
		return
	}
	buf := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buf)
	if n, err := unix.Read(*fd, buf[:]); !ended(n, err) {
		return
	}
	unix.Close(*fd)
	*fd = -1
	if r.stdout < 0 && r.stderr < 0 {
		delete(r.live.late, r.id)
	}
}

func (r *Running) closePipes() {
	r.stopFeeding()
	for _, fd := range []*int{&r.stdout, &r.stderr} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}
