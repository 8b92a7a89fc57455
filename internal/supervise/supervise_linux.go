package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/plan"
)

const (
	// grace is how long a command that was sent a signal may take to end.
	grace = 2 * time.Second
	// setup is how long the kernel may take to make a box.
	setup = time.Minute
)

// follower is the state of one Run.
type follower struct {
	*Command
	result    Result
	stdout    int // our ends of the pipes; -1 when closed
	stderr    int
	wake      int // eventfd: something is in calls
	calls     chan call
	stop      chan struct{} // closed when the box is gone
	listening sync.WaitGroup
	began     uint64 // CLOCK_MONOTONIC ns; 0 before the command started
	killAt    time.Time
	deadline  time.Time
	killed    bool
	exited    bool
	ended     time.Time
	watchAt   time.Time // when the watch begins; zero: it has, or need not
	watch     *watcher
	private   int           // directory on the box's own tmpfs; -1
	making    time.Duration // processor time that making PID 1 took
	unreaped  time.Duration // processor time of what was alive when the box was killed
	setupBy   time.Time
	buf       []byte
}

type call struct {
	signal syscall.Signal // 0: the caller gave up
	over   End            // a limit that is passed, instead; ByItself: none
}

// Run starts the command in its box, follows it to its end, and waits until
// every process of the box is gone. The box cannot be used afterwards. The
// goroutine must be the one that called jail.Start, still locked to its thread.
func (c *Command) Run() Result {
	f := &follower{Command: c, stdout: -1, stderr: -1, wake: -1, private: -1, calls: make(chan call, 8), stop: make(chan struct{})}
	f.result = Result{Workspace: -1, Layer: -1, PeakSource: "none"}
	f.setupBy = time.Now().Add(setup)
	err := f.begin()
	if err != nil {
		f.result.End, f.result.Failure = BoxFailed, err
		f.kill()
	}
	f.loop()
	if f.watch != nil {
		f.watch.end()
	}
	close(f.stop)
	f.listening.Wait() // before its descriptor is closed, and becomes another's
	f.drain(&f.stdout, c.Stdout)
	f.drain(&f.stderr, c.Stderr)
	f.finish()
	return f.result
}

// begin makes the pipes and hands the command over.
func (f *follower) begin() error {
	var err error
	if f.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if f.Signals != nil || f.Done != nil {
		f.listening.Go(func() { f.listen(f.stop) })
	}
	if f.Terminal != nil {
		f.Exec.Terminal, f.Exec.Size = true, f.Terminal.wanted()
		return f.Box.Exec(&f.Exec) // the rest follows when it has come: adoptTerminal
	}
	ours, theirs, err := makePipes(f.Stdin != nil, f.Owner)
	defer closeAll(theirs[:])
	if err != nil {
		return err
	}
	f.stdout, f.stderr = ours[1], ours[2]
	if f.Stdin != nil {
		go feed(pipeEnd(ours[0]), f.Stdin.Reader, f.stop, false)
	}
	f.Exec.Stdin, f.Exec.Stdout, f.Exec.Stderr = theirs[0], theirs[1], theirs[2]
	return f.Box.Exec(&f.Exec)
}

// makePipes makes the pipes of a command: of its input, where it has one, its
// output and its errors. Where a command reads or writes is given to the owner;
// our ends for reading do not block.
func makePipes(input bool, owner *Owner) (ours, theirs [3]int, err error) {
	ours, theirs = [3]int{-1, -1, -1}, [3]int{-1, -1, -1}
	defer func() {
		if err != nil {
			closeAll(ours[:])
		}
	}()
	for i := range ours {
		if i == 0 && !input {
			continue
		}
		var p [2]int // to read, to write
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			return ours, theirs, fmt.Errorf("pipe: %w", err)
		}
		if ours[i], theirs[i] = p[0], p[1]; i == 0 {
			ours[i], theirs[i] = p[1], p[0]
		} else if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
			return ours, theirs, fmt.Errorf("pipe: %w", err)
		}
		if owner == nil {
			continue
		}
		if err := unix.Fchown(theirs[i], int(owner.UID), int(owner.GID)); err != nil {
			return ours, theirs, fmt.Errorf("give the command its pipes: %w", err)
		}
	}
	return ours, theirs, nil
}

func closeAll(fds []int) {
	for i, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
			fds[i] = -1
		}
	}
}

// adoptTerminal follows the command on the pseudo-terminal that the box has made
// for it: one stream.
func (f *follower) adoptTerminal(master int) error {
	if f.Terminal == nil {
		unix.Close(master)
		return errors.New("pseudo-terminal: the box made one that nobody asked for")
	}
	if err := f.Terminal.adopt(master); err != nil {
		return err
	}
	var err error
	if f.stdout, err = f.Terminal.dupMaster(); err != nil || f.Stdin == nil {
		return err
	}
	w, err := f.Terminal.dupMaster()
	if err != nil {
		return err
	}
	go feed(pipeEnd(w), f.Stdin.Reader, f.stop, true)
	return nil
}

// inputEnd is our end of a command's input. put writes all of p; false when
// nobody reads it any more.
type inputEnd interface {
	put(p []byte) bool
	close()
}

// feed copies the caller's input to the command. It ends with the input, with
// the command, or with the first write that nobody will read.
func feed(w inputEnd, from io.Reader, stop <-chan struct{}, terminal bool) {
	defer w.close()
	file, _ := from.(*os.File)
	buf := make([]byte, 32<<10)
	line := false // is not ended
	for {
		if file != nil && !readable(int(file.Fd()), stop) {
			return
		}
		n, err := from.Read(buf)
		if !w.put(buf[:n]) {
			return
		}
		if n > 0 {
			line = buf[n-1] != '\n'
		}
		if err != nil {
			break
		}
	}
	// Closing is no end of file on a terminal, but ^D is: where a line stands,
	// the first only hands that over.
	const endOfFile = 4
	switch {
	case terminal && line:
		w.put([]byte{endOfFile, endOfFile})
	case terminal:
		w.put([]byte{endOfFile})
	}
}

// pipeEnd is one that a goroutine may wait in.
type pipeEnd int

func (w pipeEnd) close() { unix.Close(int(w)) }

func (w pipeEnd) put(p []byte) bool {
	for len(p) > 0 {
		n, err := unix.Write(int(w), p)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN): // a terminal's input is full
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(w), Events: unix.POLLOUT}}, 100)
		case err != nil:
			return false
		default:
			p = p[n:]
		}
	}
	return true
}

// readable waits until fd has something to read, and gives up when stop closes.
func readable(fd int, stop <-chan struct{}) bool {
	for {
		select {
		case <-stop:
			return false
		default:
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return true
		}
	}
}

// tell hands a call to the loop.
func (f *follower) tell(c call, stop <-chan struct{}) {
	select {
	case f.calls <- c:
	case <-stop:
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(f.wake, one[:])
}

func (f *follower) listen(stop <-chan struct{}) {
	done := f.Done
	for {
		select {
		case s := <-f.Signals:
			f.tell(call{signal: s}, stop)
		case <-done:
			done = nil
			f.tell(call{}, stop)
		case <-stop:
			return
		}
	}
}

// loop runs until every process of the box is gone.
func (f *follower) loop() {
	const control, wake, stdout, stderr, pidfd, oom = 0, 1, 2, 3, 4, 5
	oomFD, oomEvents := f.Cgroup.OOMEvent()
	gone := false // the control socket is at its end
	for {
		if gone && f.Box.Pidfd < 0 {
			return
		}
		// A negative descriptor is ignored by poll(2).
		fds := [...]unix.PollFd{
			control: {Fd: int32(f.Box.Control), Events: unix.POLLIN},
			wake:    {Fd: int32(f.wake), Events: unix.POLLIN},
			stdout:  {Fd: int32(f.stdout), Events: unix.POLLIN},
			stderr:  {Fd: int32(f.stderr), Events: unix.POLLIN},
			pidfd:   {Fd: int32(f.Box.Pidfd), Events: unix.POLLIN},
			oom:     {Fd: int32(oomFD), Events: oomEvents},
		}
		if gone {
			fds[control].Fd = -1
		}
		timeout := f.untilNextEvent()
		if _, err := unix.Ppoll(fds[:], timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
			f.fail(fmt.Errorf("poll: %w", err))
			return
		}
		if fds[control].Revents != 0 {
			gone = f.receive()
		}
		if fds[wake].Revents != 0 {
			f.obey()
		}
		if fds[stdout].Revents != 0 {
			f.read(&f.stdout, f.Stdout)
		}
		if fds[stderr].Revents != 0 {
			f.read(&f.stderr, f.Stderr)
		}
		if fds[oom].Revents != 0 && f.Cgroup.OOMKilled() {
			oomFD = -1
			f.end(OutOfMemory)
		}
		f.checkTime()
		if fds[pidfd].Revents != 0 {
			f.ended = time.Now()
			for !gone { // what PID 1 said before it ended
				gone = f.receive()
			}
			return
		}
	}
}

// untilNextEvent returns how long poll may sleep; nil: for ever.
func (f *follower) untilNextEvent() *unix.Timespec {
	if f.killed || f.exited {
		return nil // only the end of the box is waited for
	}
	next := f.setupBy
	if f.began != 0 {
		next = time.Time{}
	}
	for _, at := range []time.Time{f.deadline, f.killAt, f.watchAt} {
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		return nil
	}
	ts := unix.NsecToTimespec(max(int64(time.Until(next)), 0))
	return &ts
}

func (f *follower) checkTime() {
	if f.killed {
		return
	}
	now := time.Now()
	switch {
	case f.began == 0 && now.After(f.setupBy):
		f.fail(fmt.Errorf("the kernel did not make the box within %v", setup))
	case !f.deadline.IsZero() && !now.Before(f.deadline) && !f.exited:
		f.end(AtDeadline)
	case !f.killAt.IsZero() && !now.Before(f.killAt):
		f.kill()
	}
	if !f.watchAt.IsZero() && !now.Before(f.watchAt) && !f.exited && !f.killed {
		f.startWatch()
	}
}

// startWatch begins to watch the box: not at once, since most commands end soon.
func (f *follower) startWatch() {
	f.watchAt = time.Time{}
	f.watch = &watcher{
		Limits: f.Limits, Cgroup: f.Cgroup, pid1: f.Box.Pid, private: f.private, layer: f.result.Layer, making: f.making + f.Box.HelperCPU(),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	stop := f.watch.stop
	f.watch.over = func(why End) { f.tell(call{over: why}, stop) }
	go f.watch.run()
}

// receive takes in all reports that are there; true when there will be no more.
func (f *follower) receive() (gone bool) {
	for {
		r, ok, err := f.Box.Receive()
		if err != nil {
			return true
		}
		if !ok {
			return false
		}
		switch r.Kind {
		case jail.Missing:
			f.result.Missing = append(f.result.Missing, r.Text)
		case jail.FD:
			switch r.A {
			case plan.TagWorkspace:
				f.result.Workspace = r.FD
			case plan.TagLayer:
				f.result.Layer = r.FD
			case plan.TagPrivate:
				f.private = r.FD
			case plan.TagTerminal:
				if err := f.adoptTerminal(r.FD); err != nil {
					f.fail(err)
				}
			}
		case jail.Started:
			f.began = r.B
			f.making = time.Duration(r.C+r.D) * time.Microsecond
			age := time.Duration(monotonic() - r.B)
			now := time.Now()
			if f.Limits.Timeout > 0 {
				f.deadline = now.Add(f.Limits.Timeout - age)
			}
			f.watchAt = now.Add(firstLook)
		case jail.NotStarted:
			f.result.StartError, f.result.StartWhat, f.result.StartDir = r.Err, r.Text, r.A != 0
			if f.result.End == ByItself {
				f.result.End = NeverStarted
			}
			f.exited = true
		case jail.Exited:
			f.result.Wait, f.result.Known = syscall.WaitStatus(r.A), true
			f.result.Duration = time.Duration(r.B - f.began)
			f.exited = true
		case jail.Denied:
			f.result.Violations = violated(f.result.Violations, r)
		case jail.Traffic:
			f.result.NoRoute, f.result.NoPort = r.A, r.B
		case jail.Failed:
			if f.result.End == ByItself {
				f.result.End = BoxFailed
				f.result.Failure = &jail.StepError{Op: r.Op, Step: r.Step, Arg: r.Text, Err: r.Err}
			}
		}
	}
}

// obey does what the caller asked for.
func (f *follower) obey() {
	var count [8]byte
	_, _ = unix.Read(f.wake, count[:])
	for {
		select {
		case c := <-f.calls:
			if f.exited || f.killed {
				continue
			}
			if c.over != ByItself {
				f.end(c.over)
				continue
			}
			first := f.result.End == ByItself
			if first {
				f.result.End, f.result.Signal = Interrupted, c.signal
			}
			if c.signal == 0 || !first || f.began == 0 {
				f.kill()
				continue
			}
			f.Box.Signal(f.Exec.ID, c.signal)
			f.killAt = time.Now().Add(grace)
		default:
			return
		}
	}
}

func (f *follower) end(why End) {
	if f.result.End == ByItself {
		f.result.End = why
	}
	f.kill()
}

func (f *follower) fail(err error) {
	if f.result.End == ByItself {
		f.result.End, f.result.Failure = BoxFailed, err
	}
	f.kill()
}

func (f *follower) kill() {
	if _, counted := f.Cgroup.CPUTime(); !f.killed && f.Box.Pid > 0 && !counted {
		// The kernel drops the times of processes that die with their pid
		// namespace.
		f.unreaped = cpuTime(f.Box.Pid)
	}
	f.killed = true
	f.Cgroup.Kill()
	f.Box.Kill()
}

// read takes what is in a pipe, once.
func (f *follower) read(fd *int, to *Capture) {
	n, err := unix.Read(*fd, f.buffer())
	if n > 0 {
		f.take(f.buf[:n], to)
	}
	if (n == 0 && err == nil) || (err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)) || to.unread.Load() {
		unix.Close(*fd) // a command that goes on writing gets SIGPIPE, as in any pipeline
		*fd = -1
	}
}

// buffer grows once: most commands write less than a page, and fresh pages cost
// more than the call.
func (f *follower) buffer() []byte {
	if f.buf == nil {
		f.buf = make([]byte, 4<<10)
	} else if len(f.buf) < 64<<10 && (f.Stdout.Size() > 4<<10 || f.Stderr.Size() > 4<<10) {
		f.buf = make([]byte, 64<<10)
	}
	return f.buf
}

// take keeps output up to the limit; one byte more ends the command.
func (f *follower) take(p []byte, to *Capture) {
	if to.keep(p, f.Limits.Output) {
		f.end(TooMuchOutput)
	}
}

// keep keeps output up to a limit of the whole, 0 being none; true when there is
// more than that.
func (c *Capture) keep(p []byte, limit int64) (more bool) {
	if limit > 0 {
		if room := max(limit-c.Size(), 0); int64(len(p)) > room {
			p, more = p[:room], true
		}
	}
	c.write(p)
	return more
}

// drain takes the rest: all writers are dead, so the pipe ends.
func (f *follower) drain(fd *int, to *Capture) {
	for *fd >= 0 {
		n, err := unix.Read(*fd, f.buffer())
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 {
			f.take(f.buf[:n], to)
			continue
		}
		unix.Close(*fd)
		*fd = -1
	}
	to.finish()
}

// finish reaps and counts.
func (f *follower) finish() {
	r := &f.result
	usage, err := f.Box.Reap()
	f.count(usage)
	if err != nil && r.End != BoxFailed {
		r.End, r.Failure = BoxFailed, fmt.Errorf("wait for the box: %w", err)
	}
	if f.began != 0 && !r.Known && !f.ended.IsZero() {
		r.Duration = time.Duration(monotonic()-f.began) - time.Since(f.ended)
	}
	if r.End == ByItself && f.Cgroup.OOMKilled() && !(r.Known && r.Wait.Exited() && r.Wait.ExitStatus() == 0) {
		r.End = OutOfMemory
	}
	if r.Known && !r.Wait.Exited() && !r.Wait.Signaled() {
		r.Known = false
	}
	if r.End == ByItself && !r.Known {
		r.End, r.Failure = BoxFailed, errors.New("the box ended and the command's exit status is unknown")
	}
	if r.End == ByItself && f.Limits.Disk != nil {
		// What it wrote last, nobody has looked at.
		if over, _ := f.Limits.Disk.look(0, new(atomic.Bool)); over {
			r.End = OutOfDisk
		}
	}
	if f.private >= 0 {
		unix.Close(f.private)
	}
	if f.wake >= 0 {
		unix.Close(f.wake)
	}
}

// count fills in what the box took. What making it took is not the command's.
func (f *follower) count(usage unix.Rusage) {
	r := &f.result
	making := f.making + f.Box.HelperCPU()
	if cpu, ok := f.Cgroup.CPUTime(); ok {
		r.CPU, r.CPUSource = max(cpu-making, 0), "cgroup"
	} else {
		r.CPU, r.CPUSource = max(time.Duration(usage.Utime.Nano()+usage.Stime.Nano())-f.making, 0)+f.unreaped, "polled"
	}
	if peak, ok := f.Cgroup.PeakMemory(); ok {
		r.PeakMemory, r.PeakSource = peak, "cgroup"
	}
	if f.watch == nil {
		return
	}
	if r.CPUSource == "polled" {
		// Of those that ran to the end of the box, nobody waited for.
		r.CPU = max(r.CPU, f.watch.cpu)
	}
	if r.PeakSource == "none" && f.watch.peak > 0 {
		r.PeakMemory, r.PeakSource = f.watch.peak, "polled"
	}
}

func monotonic() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}
