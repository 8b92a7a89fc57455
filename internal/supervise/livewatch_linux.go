package supervise

import (
	"sync/atomic"
	"time"

	"hutch/internal/plan"
)

// backgroundLook is how often a box is looked at while only what earlier commands
// left running is there.
const backgroundLook = time.Second

// bounded tells whether a limit of the box has to be watched.
func (l *Live) bounded() bool {
	return l.Limits.Disk != nil ||
		l.Limits.Memory > 0 && !l.cgroup.Holds("memory") ||
		l.Limits.Tasks > 0 && !l.cgroup.Holds("pids")
}

// wantWatch sees to it that somebody watches the box soon, now that a command has
// started: not at once, since most end soon.
func (l *Live) wantWatch() {
	switch {
	case l.watch != nil:
		select {
		case l.watch.hurry <- struct{}{}:
		default: // it was told already
		}
	case l.armed:
	case l.watching == nil:
		l.armed = true
		l.watching = time.AfterFunc(firstLook, l.startWatch)
	default:
		l.armed = true
		l.watching.Reset(firstLook)
	}
}

func (l *Live) startWatch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = false
	if l.over || l.watch != nil || l.box.Pid == 0 || l.rest() < 0 {
		return
	}
	limits := l.Limits
	limits.CPU = 0
	w := &watcher{
		Limits: limits, Cgroup: l.cgroup, pid1: l.box.Pid, private: l.handedOut(plan.TagPrivate), layer: l.handedOut(plan.TagLayer),
		hurry: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	w.begin = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lookBegan, l.lookIdle = monotonic(), len(l.running) == 0
	}
	w.over = l.exceeded
	w.diskMu = &l.diskMu
	w.seen = l.peak
	w.more = l.processorTimes
	w.rest = func() time.Duration {
		l.mu.Lock()
		defer l.mu.Unlock()
		wait := l.rest()
		if wait < 0 && l.watch == w {
			l.watch = nil
		}
		return wait
	}
	l.watch = w
	go w.run()
}

// exceeded ends all commands because a look has found a limit of the box passed.
// Where none runs it is what was left running that takes too much. What started
// since the look began has no part in what it found: that may be gone already.
func (l *Live) exceeded(why End) {
	if why == TooManyTasks { // zombies of what was killed are none
		var p proc
		if int64(len(l.look(&p, scan{until: time.Now().Add(time.Second)}))) <= l.Limits.Tasks {
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.running {
		if r.began != 0 && r.began < l.lookBegan {
			r.end(why)
		}
	}
	// With the gate held somebody is at it, or everything is stopped.
	if l.lookIdle && len(l.running) == 0 && l.gate == 0 {
		l.gate++
		go l.sweep()
	}
}

// rest tells how long the watch may wait at least: less than 0, there is nothing
// to watch any more.
func (l *Live) rest() time.Duration {
	switch {
	case len(l.running) > 0:
		return 0
	case !l.bounded() || l.still():
		return -1
	}
	return backgroundLook
}

// peak notes what the box holds in memory for every command that runs.
func (l *Live) peak(bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.running {
		r.result.PeakMemory = max(r.result.PeakMemory, bytes)
	}
}

// processorTimes looks at what commands with a limit of processor time have used.
func (l *Live) processorTimes() time.Duration {
	l.mu.Lock()
	limited := false
	for _, r := range l.running {
		limited = limited || r.command.Limits.CPU > 0
	}
	l.mu.Unlock()
	if !limited {
		return longestLook
	}
	began := time.Now()
	var p proc
	used := map[*Running]time.Duration{}
	for _, t := range l.look(&p, scan{}) {
		if t.owner != nil {
			used[t.owner] += t.own + t.waited
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for r, cpu := range used {
		r.cpu = max(r.cpu, cpu)
		if limit := r.command.Limits.CPU; limit > 0 && r.cpu >= limit {
			r.end(OutOfTime)
		}
	}
	return max(limitedLook, share*time.Since(began))
}

// handedOut returns a descriptor that the box gave out, or -1.
func (l *Live) handedOut(tag uint64) int {
	if fd, ok := l.fds[tag]; ok {
		return fd
	}
	return -1
}

// SetDisk says in which directories, names in Limits.Disk.Dir, what the box takes
// of a file system counts from now on. It needs to be known only before the first
// command, and whenever a layer has taken another's place.
func (l *Live) SetDisk(names []string) error {
	l.diskMu.Lock()
	defer l.diskMu.Unlock()
	l.Limits.Disk.Names = names
	return l.Limits.Disk.Begin(0)
}

// outOfDisk looks once more when a command has ended: what it wrote last, nobody
// has looked at. Where somebody is just looking, he will tell.
func (l *Live) outOfDisk() bool {
	if l.Limits.Disk == nil || l.over || !l.diskMu.TryLock() {
		return false
	}
	defer l.diskMu.Unlock()
	over, _ := l.Limits.Disk.look(l.box.Pid, new(atomic.Bool))
	return over
}
