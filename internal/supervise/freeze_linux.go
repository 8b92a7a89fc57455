package supervise

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// stopping is how long a box may take to stand still.
const stopping = 10 * time.Second

// guessing is when what seems to wait in vfork(2) is believed to, on a kernel
// that does not tell whose memory a process has.
var guessing = stopping / 10

// Freeze stops every process of the box: by its cgroup where that has a freezer,
// else by SIGSTOP, again until all are stopped, which programs can notice. No
// command is started until thaw is called, which has to be once.
func (l *Live) Freeze() (thaw func(), err error) {
	l.mu.Lock()
	for l.frozen && !l.over {
		l.opened.Wait()
	}
	l.frozen = true
	l.gate++
	for l.starting() && !l.over { // PID 1 was told already
		l.opened.Wait()
	}
	l.mu.Unlock()
	resume, err := l.stop()
	if err != nil {
		l.unfreeze()
		return nil, err
	}
	return func() { resume(); l.unfreeze() }, nil
}

func (l *Live) unfreeze() {
	l.mu.Lock()
	l.frozen = false
	l.mu.Unlock()
	l.open()
}

func (l *Live) stop() (thaw func(), err error) {
	if ok, err := l.cgroup.Freeze(stopping); ok {
		return func() { l.cgroup.Thaw() }, err
	}
	var p, q proc
	var ours []task
	stopped := map[int]uint64{}
	thaw = func() {
		// Children first: a shell that finds one stopped takes its terminal back.
		for i := range ours {
			p.send(&ours[len(ours)-1-i], unix.SIGCONT)
		}
	}
	began := time.Now()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		moving := false
		s := scan{until: began.Add(stopping), see: func(t *task, _ string) {
			if stopped[t.pid] == t.born {
				return
			}
			if waits, ok := p.stopped(t); t.state != 't' && ok && waits == 0 {
				return // and shall stay so
			}
			moving = true
			if q.send(t, unix.SIGSTOP) {
				stopped[t.pid] = t.born
				ours = append(ours, *t)
			}
		}}
		all := l.look(&p, s)
		guess := time.Since(began) > guessing
		for i := range all {
			moving = moving || !p.stands(&all[i], all, guess)
		}
		switch {
		case l.Err() != nil:
			return nil, errGone
		case !moving && !s.late():
			return thaw, nil
		case s.late():
			thaw()
			return nil, errors.New("the processes of the box did not stop within 10 s; end what waits in it and try again")
		}
		time.Sleep(pause)
	}
}

// stands tells whether no thread of a process does anything: each is stopped, or
// waits in vfork(2) for a child until that is another program, which no SIGSTOP
// ends and which looks like a wait for the disk. There are as many such children,
// and they have the memory of their parent.
func (p *proc) stands(t *task, all []task, guess bool) bool {
	waits, ok := p.stopped(t)
	if !ok || waits == 0 {
		return ok
	}
	for _, child := range all {
		if child.parent != t.pid {
			continue
		}
		if same, err := sameMemory(t.pid, child.pid); same || err != nil && guess {
			waits--
		}
	}
	return waits <= 0
}

// stopped counts the threads of a process that wait where no signal reaches them;
// false when one neither waits so nor is stopped.
func (p *proc) stopped(t *task) (waits int, ok bool) {
	if t.threads <= 1 {
		return stoppedIn(t.state)
	}
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(t.pid) + "/task")
	for _, thread := range threads {
		text := p.read(t.pid, "task/"+thread.Name()+"/stat")
		end := bytes.LastIndexByte(text, ')')
		if end < 0 || end+2 >= len(text) {
			continue // it has ended
		}
		n, ok := stoppedIn(text[end+2])
		if !ok {
			return 0, false
		}
		waits += n
	}
	return waits, err == nil
}

func stoppedIn(state byte) (waits int, ok bool) {
	switch state {
	case 'T', 't', 'Z', 'X':
		return 0, true
	case 'D':
		return 1, true
	}
	return 0, false
}

// sameMemory asks kcmp(2) whether two processes share their memory.
func sameMemory(a, b int) (bool, error) {
	const kcmpVM = 1
	r, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	if err != 0 {
		return false, err
	}
	return r == 0, nil
}
