package supervise

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userHZ is how often proc_pid_stat(5) counts in a second.
const userHZ = 100

// ticksOf tells when in those ticks, since boot, something happened.
func ticksOf(monotonicNS uint64) uint64 {
	const near = 100_000 // ns between two readings
	for {
		var boot unix.Timespec
		before := monotonic()
		_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
		if after := monotonic(); after-before < near {
			return (monotonicNS + uint64(boot.Nano()) - before) / (1e9 / userHZ)
		}
	}
}

// task is what one look at /proc says of a process.
type task struct {
	pid, parent         int    // on the host
	group, session      int    // the same
	born                uint64 // ticks since boot
	state               byte
	threads             int
	own, waited         time.Duration // processor time
	rss                 int64
	inBox, sessionInBox int // of a child of PID 1
	owner               *Running
}

// living tells whether it can still do something: not a zombie, unless that is
// the first thread of several.
func (t *task) living() bool {
	return t.state != 'X' && (t.state != 'Z' || t.threads > 1)
}

// stat reads what the kernel says of a process; false when it is gone.
func (p *proc) stat(pid int) (t task, name string, ok bool) {
	text := p.read(pid, "stat")
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return t, "", false
	}
	var field [22]int64 // from the third on
	n := 0
	for word := range bytes.FieldsSeq(text[end+1:]) {
		if n == 0 {
			t.state = word[0]
		} else {
			field[n], _ = strconv.ParseInt(string(word), 10, 64)
		}
		if n++; n == len(field) {
			break
		}
	}
	if n < len(field) {
		return t, "", false
	}
	const tick = time.Second / userHZ
	t.pid, t.parent, t.group, t.session, t.threads, t.born = pid, int(field[1]), int(field[2]), int(field[3]), int(field[17]), uint64(field[19])
	t.own, t.waited = time.Duration(field[11]+field[12])*tick, time.Duration(field[13]+field[14])*tick
	t.rss = field[21] * int64(os.Getpagesize())
	return t, string(text[open+1 : end]), true
}

// inside returns the numbers that a process and its session have in its box; 0
// when they are not to be had.
func (p *proc) inside(pid int) (self, session int) {
	last := func(line []byte) int {
		fields := bytes.Fields(line)
		if len(fields) < 3 { // name, on the host, in the box
			return 0
		}
		n, _ := strconv.Atoi(string(fields[len(fields)-1]))
		return n
	}
	text := p.read(pid, "status")
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte("NSpid:")):
			self = last(line)
		case bytes.HasPrefix(line, []byte("NSsid:")):
			session = last(line)
		}
	}
	return self, session
}

// children appends the children of a process with so many threads.
func (p *proc) children(list []int, pid, threads int) []int {
	of := func(tid string) {
		for field := range bytes.FieldsSeq(p.read(pid, "task/"+tid+"/children")) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				list = append(list, child)
			}
		}
	}
	if threads == 1 {
		of(strconv.Itoa(pid))
		return list
	}
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return list
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, tid := range names {
		of(tid)
	}
	return list
}

// look lists the living processes of the box below its PID 1, parents before
// their children, each with the command it belongs to.
//
// A process is a command's when its parent is, or its session; or when it is an
// orphan, which falls to PID 1, that was born while that command alone ran. One in
// a session that is older than the command is somebody else's all the same.
func (l *Live) look(p *proc, s scan) []task {
	l.reaping.RLock()
	defer l.reaping.RUnlock()
	for {
		first, claims := l.claims()
		if first == 0 {
			return nil
		}
		all := p.tasks(first, s)
		assign(all, first, claims)
		if l.confirm(claims) || s.late() {
			return all
		}
	}
}

// scan says how to look.
type scan struct {
	see   func(t *task, name string) // is told of each process before its children are looked for
	until time.Time                  // when to give up; zero: never
}

func (s scan) late() bool { return !s.until.IsZero() && time.Now().After(s.until) }

// tasks lists the living processes below PID 1 of a box.
func (p *proc) tasks(first int, s scan) []task {
	var all []task
	queue := p.children(nil, first, 0)
	for i := 0; i < len(queue) && !s.late(); i++ {
		t, name, ok := p.stat(queue[i])
		if !ok {
			continue
		}
		if t.living() {
			if t.parent == first {
				t.inBox, t.sessionInBox = p.inside(t.pid)
			}
			if s.see != nil {
				s.see(&t, name)
			}
			all = append(all, t)
		}
		if t.threads > 0 { // else it is being taken away
			queue = p.children(queue, t.pid, t.threads)
		}
	}
	return all
}

// confirm tells whether the claims hold still: when a command has started since,
// what it is may have been taken for an orphan of the one that was alone.
func (l *Live) confirm(claims []claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range claims {
		if c.r.overlapped != c.overlapped {
			return false
		}
		c.r.host = c.host
	}
	return true
}

// claim is by what a command knows its processes.
type claim struct {
	r          *Running
	pid, host  int
	tick       uint64
	overlapped bool
}

// claims returns those of the commands that run, and the number of PID 1; 0 when
// there is none.
func (l *Live) claims() (first int, all []claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.list() {
		if r.pid != 0 {
			all = append(all, claim{r, r.pid, r.host, r.tick, r.overlapped})
		}
	}
	return l.box.Pid, all
}

// assign finds the owner of each process.
func assign(all []task, first int, claims []claim) {
	if len(claims) == 0 {
		return
	}
	oldest := map[int]uint64{} // birth of the first living process of a session
	for _, t := range all {
		if born, ok := oldest[t.session]; !ok || t.born < born {
			oldest[t.session] = t.born
		}
	}
	owners, sessions := make(map[int]*Running, len(all)), map[int]*Running{}
	for i := range all {
		t := &all[i]
		orphan := t.parent == first
		if !orphan {
			t.owner = owners[t.parent]
		}
		for j := range claims {
			c := &claims[j]
			switch {
			case t.owner != nil:
			case orphan && t.inBox == c.pid && t.born >= c.tick:
				c.host, t.owner = t.pid, c.r
			case orphan && t.sessionInBox == c.pid, c.host != 0 && t.session == c.host:
				t.owner = c.r
			case orphan && !c.overlapped && c.bore(t) && oldest[t.session] >= c.tick:
				t.owner = c.r
			}
		}
		if t.owner != nil {
			owners[t.pid], sessions[t.session] = t.owner, t.owner
		}
	}
	// Whoever is in a session with one of a command's is of its kin, even where
	// the parent between them is gone.
	for i := range all {
		t := &all[i]
		if t.owner == nil {
			t.owner = sessions[t.session]
		}
		if t.owner == nil && t.parent != first {
			t.owner = owners[t.parent]
		}
		if t.owner != nil {
			owners[t.pid] = t.owner
		}
	}
}

// bore tells whether an orphan was born since the command began. Within the same
// hundredth of a second it is the order of their numbers that tells.
func (c *claim) bore(t *task) bool {
	return t.born > c.tick || t.born == c.tick && t.inBox > c.pid
}

// send sends a signal to a process that was looked at, and to no other that has
// its number since.
func (p *proc) send(t *task, sig syscall.Signal) bool {
	fd, err := unix.PidfdOpen(t.pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	now, _, ok := p.stat(t.pid)
	return ok && now.born == t.born && unix.PidfdSendSignal(fd, sig, nil, 0) == nil
}

// Quiet tells whether nothing runs in the box: no command, and nothing that one
// left behind.
func (l *Live) Quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.running) == 0 && l.still()
}

// still tells whether PID 1 has no living child. All else descends from one.
func (l *Live) still() bool {
	if l.over || l.box.Pid == 0 {
		return true
	}
	var p proc
	for _, pid := range p.children(nil, l.box.Pid, 0) {
		if t, _, ok := p.stat(pid); ok && (t.living() || t.threads > 1) {
			return false
		}
		// What a zombie has not lost yet, its children, has come to PID 1.
	}
	return true
}

// longestArgv is how much of a process's arguments is read: it chooses them.
const longestArgv = 32 << 10

// Processes lists what runs in the box, PID 1 left out, parents before children.
func (l *Live) Processes() []Process {
	var p, q proc
	var list []Process
	names := map[int]string{}
	all := l.look(&p, scan{see: func(t *task, name string) { names[t.pid] = name }})
	var boot unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)
	started := time.Now().Add(-time.Duration(boot.Nano()))
	for _, t := range all {
		x := Process{Host: t.pid, Parent: t.parent, Name: names[t.pid], State: t.state, RSS: t.rss, CPU: t.own}
		x.Started = started.Add(time.Duration(t.born) * time.Second / userHZ)
		if x.PID = t.inBox; x.PID == 0 {
			x.PID, _ = q.inside(t.pid)
		}
		if t.owner != nil {
			x.Exec = t.owner.id
		}
		x.Argv = q.argv(t.pid)
		list = append(list, x)
	}
	return list
}

// argv reads the beginning of a process's arguments.
func (p *proc) argv(pid int) []string {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return nil
	}
	defer file.Close()
	buf := make([]byte, longestArgv)
	n, _ := file.Read(buf)
	text := strings.TrimSuffix(string(buf[:max(n, 0)]), "\x00")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\x00")
}

// ErrNoProcess says that a box has no such process.
var ErrNoProcess = errors.New("no such process in the box")

// SignalProcess sends a signal to one process, by its number in the box.
func (l *Live) SignalProcess(pid int, sig syscall.Signal) error {
	var p, q proc
	for _, t := range l.look(&p, scan{}) {
		inBox := t.inBox
		if inBox == 0 {
			inBox, _ = q.inside(t.pid)
		}
		if inBox == pid && q.send(&t, sig) {
			return nil
		}
	}
	return fmt.Errorf("process %d: %w", pid, ErrNoProcess)
}

// SignalAll sends a signal to every process of the box but PID 1.
func (l *Live) SignalAll(sig syscall.Signal) {
	var p, q proc
	for _, t := range l.look(&p, scan{}) {
		q.send(&t, sig)
	}
}
