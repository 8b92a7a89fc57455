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
			if stopped[t.pid] == t.born || t.state != 't' && p.stands(t) {
				return // and shall stay so
			}
			moving = true
			if q.send(t, unix.SIGSTOP) {
				stopped[t.pid] = t.born
				ours = append(ours, *t)
			}
		}}
		all := l.look(&p, s)
		stoppedChild := map[int]bool{}
		for _, t := range all {
			if t.state == 'T' || t.state == 't' {
				stoppedChild[t.parent] = true
			}
		}
		for _, t := range all {
			// One that waits in vfork(2) for a child that is stopped does nothing
			// else, but is never seen as stopped itself.
			waits := t.state == 'D' && stoppedChild[t.pid] && time.Since(began) > stopping/10
			moving = moving || !waits && !p.stands(&t)
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

// stands tells whether every thread of a process is stopped.
func (p *proc) stands(t *task) bool {
	if t.state != 'T' && t.state != 't' {
		return false
	}
	return t.threads <= 1 || p.threadsStand(t.pid)
}

func (p *proc) threadsStand(pid int) bool {
	threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	for _, thread := range threads {
		text := p.read(pid, "task/"+thread.Name()+"/stat")
		end := bytes.LastIndexByte(text, ')')
		if end < 0 || end+2 >= len(text) {
			continue // it has ended
		}
		if s := text[end+2]; s != 'T' && s != 't' && s != 'Z' && s != 'X' {
			return false
		}
	}
	return err == nil
}
