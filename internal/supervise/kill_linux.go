package supervise

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long what is to be killed may go on making new processes before
// the box is given up with it: nothing outlives a deadline.
const patience = 5 * time.Second

// destroy kills a command with all it started, and then tells its end.
func (l *Live) destroy(r *Running) {
	// At one blow, before its processes are looked for: they may be thousands.
	if !l.signal(r, unix.SIGSTOP) {
		return
	}
	l.killAll(r)
	if l.concluded(r) || !l.signal(r, unix.SIGKILL) {
		return
	}
	// PID 1 has yet to tell of its end.
	for pause := 200 * time.Microsecond; !l.concluded(r); pause = min(2*pause, 100*time.Millisecond) {
		time.Sleep(pause)
		l.killAll(r)
	}
}

// signal sends a signal to a command that is being killed; false when it is over.
func (l *Live) signal(r *Running, sig syscall.Signal) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || r.isOver {
		return false
	}
	l.box.Signal(r.id, sig)
	return true
}

// concluded tells whether a command that was killed is over, now that nothing it
// started is left.
func (l *Live) concluded(r *Running) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && !r.isOver && r.hasExited {
		r.finish()
	}
	return l.over || r.isOver
}

// sweep kills what was left running, where that alone takes too much. The gate is
// held meanwhile, so nothing else is there.
func (l *Live) sweep() {
	defer l.open()
	l.killAll(nil)
}

// open lets commands start again.
func (l *Live) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate--
	l.opened.Broadcast()
}

// KillAll ends every command and kills everything that runs in the box but PID 1.
// It returns when that is done, or the box is gone.
func (l *Live) KillAll() {
	l.mu.Lock()
	l.gate++
	defer l.open()
	for _, r := range l.running {
		r.end(Interrupted)
	}
	for l.starting() && !l.over {
		l.opened.Wait()
	}
	l.mu.Unlock()
	l.killAll(nil)
}

// killAll kills what belongs to a command, or everything but PID 1 when that is
// nil, again and again until nothing of it is left. Everything is stopped before
// anything is killed, each process before its children are looked for: what is
// stopped starts nothing and stays the parent of what it started, so that a
// process which forks all the time has no moment to slip away.
func (l *Live) killAll(r *Running) {
	k := killer{of: r, stopped: map[int]uint64{}}
	began := time.Now()
	for pause := 100 * time.Microsecond; ; {
		k.fresh, k.kin, k.groups = 0, map[int]bool{}, map[int]bool{}
		s := scan{see: func(t *task, _ string) { k.see(t) }, until: time.Now().Add(patience)}
		all := l.look(&k.proc, s)
		var victims []task
		var cpu time.Duration
		for i := range all {
			if t := &all[i]; r == nil || t.owner == r || k.kin[t.pid] {
				k.stop(t)
				cpu += t.own + t.waited
				victims = append(victims, *t)
			}
		}
		if r != nil {
			l.mu.Lock()
			r.cpu = max(r.cpu, cpu)
			l.mu.Unlock()
		}
		switch {
		case s.late() || k.fresh > 0 && time.Since(began) >= patience:
			l.mu.Lock()
			l.fail(errors.New("processes were made faster than they could be killed; the box was ended"))
			l.mu.Unlock()
			return
		case len(victims) == 0:
			return
		case k.fresh > 0:
			continue
		}
		for i := range victims {
			k.send(&victims[i], unix.SIGKILL)
		}
		time.Sleep(pause) // while they die
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// killer is the state of one killAll.
type killer struct {
	proc
	of      *Running
	stopped map[int]uint64 // birth of what was told to stop, by number on the host
	fresh   int            // told in this round
	kin     map[int]bool   // known to descend from the command, in this round
	groups  map[int]bool   // told as a whole, in this round
}

// see stops what surely is to be killed, before its children are looked for.
func (k *killer) see(t *task) {
	r := k.of
	if r != nil && !k.kin[t.parent] && (t.inBox == 0 || t.inBox != r.pid && t.sessionInBox != r.pid || t.born < r.tick) {
		return
	}
	k.kin[t.pid] = true
	k.stop(t)
}

func (k *killer) stop(t *task) {
	if k.stopped[t.pid] == t.born {
		return
	}
	k.stopped[t.pid] = t.born
	k.fresh++
	if k.send(t, unix.SIGSTOP) && !k.groups[t.group] {
		k.groups[t.group] = true
		k.stopGroup(t)
	}
}

// stopGroup stops the process group of a process that is stopped already: that
// keeps the group's number from becoming another's.
func (p *proc) stopGroup(t *task) {
	if now, _, ok := p.stat(t.pid); ok && now.born == t.born && now.group == t.group && t.group > 1 {
		_ = unix.Kill(-t.group, unix.SIGSTOP)
	}
}
