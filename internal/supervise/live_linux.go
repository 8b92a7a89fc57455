package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/plan"
)

// Live follows a resident box: the commands that are started in it, many at
// once, and what they leave running.
//
// One goroutine a box reads what PID 1 reports and what the commands write. It
// waits in the runtime's poller, for an epoll instance of the box's own, so an
// idle box costs no thread, no timer and no buffer.
type Live struct {
	box    *jail.Box
	cgroup *jail.Cgroup
	FollowOptions

	poll  *os.File // the epoll instance
	epoll int      // the same
	ready chan struct{}
	gone  chan struct{}

	// Who looks at processes holds reaping, lest the number of PID 1 become
	// another's. It is taken before mu.
	reaping sync.RWMutex
	diskMu  sync.Mutex // Limits.Disk; taken after mu only by trying

	mu        sync.Mutex
	opened    *sync.Cond // gate or frozen has changed, or a command has started
	gate      int        // how many want no command to start
	frozen    bool
	pidfd     bool // is polled
	over      bool // PID 1 sends no more
	isReady   bool
	failure   error // why the box ended
	missing   []string
	fds       map[uint64]int // by tag, which the box handed out
	running   map[uint32]*Running
	late      map[uint32]*Running // ended, but something left running holds their pipes
	lastID    uint32
	oomKills  int64
	looking   bool // for a kill that was announced
	watch     *watcher
	watching  *time.Timer // begins the watch
	armed     bool        // that timer runs
	lookBegan uint64      // CLOCK_MONOTONIC ns, of the watch's last look
	lookIdle  bool        // no command ran then
	refused   []Violation // by what earlier commands left running
	usage     unix.Rusage
	reapError error
}

// What an event of the poll is about; the low half of its data, beside the
// command's number.
const (
	onControl = iota
	onPidfd
	onOOM
	onStdout
	onStderr
)

// Follow takes over a box whose plan serves many commands: from now on its
// reports are read here. The plan need not be complete yet.
func Follow(b *jail.Box, g *jail.Cgroup, o FollowOptions) (*Live, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	// Only what cannot block is waited for by the runtime's poller.
	if err := unix.SetNonblock(epoll, true); err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	l := &Live{
		box: b, cgroup: g, FollowOptions: o,
		poll: os.NewFile(uintptr(epoll), "box"), epoll: epoll, ready: make(chan struct{}), gone: make(chan struct{}),
		fds: map[uint64]int{}, running: map[uint32]*Running{}, late: map[uint32]*Running{},
	}
	l.opened = sync.NewCond(&l.mu)
	err = l.add(b.Control, unix.EPOLLIN, onControl, 0)
	if fd, events := g.OOMEvent(); err == nil && fd >= 0 {
		g.KillOne()
		l.oomKills = g.OOMKills()
		err = l.add(fd, uint32(events), onOOM, 0)
	}
	if err == nil {
		err = l.pollPidfd()
	}
	if err != nil {
		l.poll.Close()
		return nil, err
	}
	go l.follow()
	return l, nil
}

func (l *Live) add(fd int, events uint32, what int32, id uint32) error {
	err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: what, Pad: int32(id)})
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

func (l *Live) drop(fd int) {
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// pollPidfd waits for PID 1 too, once it is born.
func (l *Live) pollPidfd() error {
	if l.pidfd || l.box.Pidfd < 0 {
		return nil
	}
	l.pidfd = true
	return l.add(l.box.Pidfd, unix.EPOLLIN, onPidfd, 0)
}

// follow handles events until every process of the box is gone.
func (l *Live) follow() {
	raw, err := l.poll.SyscallConn()
	var events [8]unix.EpollEvent
	for err == nil {
		n := 0
		// The runtime tells of a change only, so nothing may be left that is not
		// looked at before it is asked to wait.
		if err = raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events[:], 0)
			return n > 0
		}); err != nil {
			break
		}
		l.mu.Lock()
		for _, e := range events[:n] {
			l.handle(int(e.Fd), uint32(e.Pad))
		}
		finished := l.finished()
		l.mu.Unlock()
		if finished {
			break
		}
	}
	l.bury(err)
}

func (l *Live) finished() bool {
	return l.over && (!l.pidfd || l.box.Pidfd < 0 || dead(l.box.Pidfd))
}

// dead tells whether every process of the box is gone, by PID 1's pidfd.
func dead(pidfd int) bool {
	n, _ := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return n > 0
}

func (l *Live) handle(what int, id uint32) {
	switch what {
	case onControl:
		l.receive()
	case onPidfd:
		l.drop(l.box.Pidfd)
		l.receive() // what PID 1 said before it ended
		l.over = true
	case onOOM:
		l.memoryEvent()
	case onStdout, onStderr:
		if r := l.running[id]; r != nil {
			r.read(what)
		} else if r := l.late[id]; r != nil {
			r.discard(what)
		}
	}
}

// receive takes in all reports that are there.
func (l *Live) receive() {
	for !l.over {
		r, ok, err := l.box.Receive()
		switch {
		case err != nil:
			l.over = true
			l.drop(l.box.Control)
			return
		case !ok:
			return
		}
		l.heed(r)
	}
}

func (l *Live) heed(r jail.Report) {
	c := l.running[r.Exec]
	switch r.Kind {
	case jail.Born:
		if err := l.pollPidfd(); err != nil {
			l.fail(err)
		}
	case jail.Ready:
		l.isReady = true
		close(l.ready)
	case jail.Missing:
		switch {
		case c != nil:
			c.result.Missing = append(c.result.Missing, r.Text)
		case r.Exec == 0:
			l.missing = append(l.missing, r.Text)
		}
	case jail.FD:
		l.handed(c, r)
	case jail.Started:
		if c != nil {
			c.started(r)
		}
	case jail.NotStarted:
		if c != nil {
			c.notStarted(r)
		}
	case jail.Exited:
		if c != nil {
			c.exited(r)
		}
	case jail.Denied:
		if c != nil {
			c.result.Violations = violated(c.result.Violations, r)
		} else {
			l.refused = violated(l.refused, r)
		}
	case jail.Failed:
		l.fail(&jail.StepError{Op: r.Op, Step: r.Step, Arg: r.Text, Err: r.Err})
	}
}

// handed takes a descriptor that the box sent.
func (l *Live) handed(c *Running, r jail.Report) {
	switch {
	case r.FD < 0:
	case r.A == plan.TagTerminal && c != nil:
		if err := c.adoptTerminal(r.FD); err != nil {
			c.result.Failure = err
			c.end(BoxFailed)
		}
	case r.A == plan.TagTerminal:
		unix.Close(r.FD)
	default:
		if old, ok := l.fds[r.A]; ok {
			unix.Close(old)
		}
		l.fds[r.A] = r.FD
	}
}

// fail ends a box with which something is wrong.
func (l *Live) fail(err error) {
	if l.failure == nil {
		l.failure = err
	}
	l.box.Kill()
}

// bury ends what still runs, when every process of the box is gone.
func (l *Live) bury(err error) {
	l.mu.Lock()
	if err != nil {
		l.fail(fmt.Errorf("poll: %w", err))
	}
	l.over = true
	watch := l.watch
	l.mu.Unlock()
	if watch != nil {
		watch.end()
	}
	l.reaping.Lock()
	defer l.reaping.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = errors.New("the box ended and the command's exit status is unknown")
	}
	for _, r := range l.running {
		r.lost()
	}
	for _, r := range l.late {
		r.closePipes()
	}
	if l.watching != nil {
		l.watching.Stop()
	}
	l.opened.Broadcast()
	l.usage, l.reapError = l.box.Reap()
	for tag, fd := range l.fds {
		unix.Close(fd)
		delete(l.fds, tag)
	}
	l.poll.Close()
	close(l.gone)
}

// Ready waits until the box can run commands. The error is a *jail.StepError
// when the kernel refused a step of its plan.
func (l *Live) Ready(ctx context.Context) error {
	select {
	case <-l.ready:
		return nil
	case <-l.gone:
		return l.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Err tells why the box is gone; nil while it is there.
func (l *Live) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// Missing lists the steps that this host could not give the box.
func (l *Live) Missing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.missing)
}

// TakeFD hands over a descriptor that the box gave out, by its tag, to be closed
// by the caller; -1 when there is none.
func (l *Live) TakeFD(tag uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	fd, ok := l.fds[tag]
	if !ok {
		return -1
	}
	delete(l.fds, tag)
	return fd
}

// Refused lists the calls that the box refused to what earlier commands left
// running.
func (l *Live) Refused() []Violation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.refused)
}

// Running returns the commands that have not ended, in the order of their IDs.
func (l *Live) Running() []*Running {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list()
}

func (l *Live) list() []*Running {
	all := make([]*Running, 0, len(l.running))
	for _, r := range l.running {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Running) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

// Kill ends the box with every process in it. What ran is Interrupted.
func (l *Live) Kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = errors.New("the box was ended")
	}
	for _, r := range l.running {
		r.result.End = firstOf(r.result.End, Interrupted)
	}
	l.cgroup.Kill()
	l.box.Kill()
}

// Gone is closed when every process of the box is gone and PID 1 is reaped.
func (l *Live) Gone() <-chan struct{} { return l.gone }

// Reap waits until the box is gone. Call it after Kill, or after Gone.
func (l *Live) Reap() error {
	<-l.gone
	return l.reapError
}

// memoryEvent is told that the kernel may have killed a process of the box
// because its memory limit was reached. On v1 it says so just before it does.
func (l *Live) memoryEvent() {
	fd, events := l.cgroup.OOMEvent()
	if events != unix.POLLIN {
		l.outOfMemory()
		return
	}
	var count [8]byte
	_, _ = unix.Read(fd, count[:])
	if l.outOfMemory() || l.looking {
		return
	}
	l.looking = true
	go func() {
		defer func() { l.looking = false; l.mu.Unlock() }()
		for range 20 {
			time.Sleep(time.Millisecond)
			l.mu.Lock()
			if l.over || l.outOfMemory() {
				return
			}
			l.mu.Unlock()
		}
		l.mu.Lock()
	}()
}

// starting tells whether PID 1 has yet to say of a command that it has started.
func (l *Live) starting() bool {
	for _, r := range l.running {
		if r.began == 0 {
			return true
		}
	}
	return false
}

// outOfMemory ends the commands when the kernel has killed one more process.
func (l *Live) outOfMemory() bool {
	n := l.cgroup.OOMKills()
	if n <= l.oomKills {
		return false
	}
	l.oomKills = n
	for _, r := range l.running {
		r.end(OutOfMemory)
	}
	return true
}

func firstOf(first, second End) End {
	if first != ByItself {
		return first
	}
	return second
}

// violated notes a call that the box refused; a later report of the same kind has
// a higher count.
func violated(list []Violation, r jail.Report) []Violation {
	v := Violation{Call: int(int64(r.A)), First: r.B, Third: r.D, Errno: r.Err, Count: r.C, Process: r.Text}
	for i, seen := range list {
		if seen.Call == v.Call && seen.First == v.First {
			list[i] = v
			return list
		}
	}
	return append(list, v)
}

var errGone = fmt.Errorf("no command can be started: %w", jail.ErrGone)

// Start starts a command. An error is hutch's or the box's; that the command
// itself cannot be started is in its Result.
func (l *Live) Start(c LiveCommand) (*Running, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.gate > 0 && !l.over {
		l.opened.Wait()
	}
	if l.over || l.failure != nil {
		return nil, errGone
	}
	if c.Exec.ID == 0 {
		c.Exec.ID = l.lastID + 1
	}
	l.lastID = max(l.lastID, c.Exec.ID)
	r := &Running{live: l, id: c.Exec.ID, command: c, stdout: -1, stderr: -1, done: make(chan struct{})}
	r.result = Result{Workspace: -1, Layer: -1, PeakSource: "none", CPUSource: "none"}
	if l.running[r.id] != nil || l.late[r.id] != nil {
		return nil, fmt.Errorf("command %d is there already", r.id)
	}
	if err := r.begin(); err != nil {
		r.closePipes()
		return nil, err
	}
	for _, other := range l.running {
		other.overlapped, r.overlapped = true, true
	}
	l.running[r.id] = r
	l.wantWatch()
	return r, nil
}
