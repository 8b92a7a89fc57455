package daemon

import (
	"fmt"
	"sync"
	"time"

	"hutch/internal/api"
)

// lives admits live boxes: so many, and so much memory promised to them. Where
// there is no room, the box that was used least recently, and in which nothing
// runs, is put to rest. It learns what it is not told by looking, in renew.
type lives struct {
	boxes    Boxes
	max      int   // 0: any number
	memory   int64 // bytes; 0: any
	perBox   int64 // counted for a box without a limit
	onRest   func(id string)
	mu       sync.Mutex
	live     map[string]*life
	promised int64
	making   sync.Mutex // one at a time makes room
}

// life is a box that has a jail, or is about to.
type life struct {
	id      string
	memory  int64
	users   int // requests that need it
	used    time.Time
	resting chan struct{} // closed when it is at rest; nil while it is not going there
}

func newLives(boxes Boxes, max int, memory, perBox int64) *lives {
	return &lives{boxes: boxes, max: max, memory: memory, perBox: perBox, live: map[string]*life{}, onRest: func(string) {}}
}

// enter says that a request needs a box alive; leave, when it no longer does.
func (l *lives) enter(ref string) (*life, error) {
	for {
		if b, wait := l.use(ref); wait != nil {
			<-wait
			continue
		} else if b != nil {
			return b, nil
		}
		b, err := l.boxes.Show(ref) // ref may be a name
		if err != nil {
			return nil, err
		}
		if known, wait := l.use(b.ID); wait != nil {
			<-wait
			continue
		} else if known != nil {
			return known, nil
		}
		if b.State.Ended() {
			return nil, refuse(api.WrongState, fmt.Sprintf("box %s is %s: nothing can run in it", b.ID, b.State))
		}
		return l.admit(b)
	}
}

func (l *lives) use(id string) (*life, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.live[id]
	if b == nil {
		return nil, nil
	}
	if b.resting != nil {
		return nil, b.resting
	}
	b.users++
	return b, nil
}

func (l *lives) leave(b *life) {
	l.mu.Lock()
	b.users--
	b.used = time.Now()
	l.mu.Unlock()
}

// admit counts a box in, putting others to rest where there is no room.
func (l *lives) admit(b *api.Box) (*life, error) {
	l.making.Lock()
	defer l.making.Unlock()
	if known, wait := l.use(b.ID); wait != nil {
		<-wait
	} else if known != nil {
		return known, nil
	}
	memory := b.Memory
	if memory <= 0 {
		memory = l.perBox
	}
	tried := map[string]bool{}
	for !b.Live { // what lives already only has to be counted
		lack := l.lack(memory)
		if lack == "" {
			break
		}
		victim := l.oldest(tried)
		if victim == nil {
			return nil, refuse(api.Full, lack+", and something runs in each: end a command, release a box, or start hutchd with a higher limit")
		}
		tried[victim.id] = true
		l.rest(victim)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &life{id: b.ID, memory: memory, users: 1, used: time.Now()}
	l.live[b.ID] = n
	l.promised += memory
	return n, nil
}

// lack says of what there is not enough for one more box.
func (l *lives) lack(memory int64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.max > 0 && len(l.live) >= l.max {
		return fmt.Sprintf("%d boxes live, which is the limit (--max-boxes)", len(l.live))
	}
	if l.memory > 0 && l.promised+memory > l.memory {
		return fmt.Sprintf("%d MiB of memory are promised to live boxes, and %d MiB more would be over the limit (--max-memory)", l.promised>>20, memory>>20)
	}
	return ""
}

// oldest marks the box that was used least recently, and that no request
// needs, as going to rest.
func (l *lives) oldest(tried map[string]bool) *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found *life
	for _, b := range l.live {
		if b.users == 0 && b.resting == nil && !tried[b.id] && (found == nil || b.used.Before(found.used)) {
			found = b
		}
	}
	if found != nil {
		found.resting = make(chan struct{})
	}
	return found
}

// rest releases a box that is marked, unless something runs in it.
func (l *lives) rest(b *life) {
	gone := false
	if runs, err := l.runs(b.id); err == nil && !runs {
		gone = l.boxes.Release(b.id) == nil
	} else if err != nil {
		gone = true // there is no such box any more
	}
	l.mu.Lock()
	done := b.resting
	b.resting = nil
	if gone {
		l.forgetLocked(b.id)
	}
	l.mu.Unlock()
	close(done)
	if gone {
		l.onRest(b.id)
	}
}

// runs tells whether a command or anything that one left behind runs in a box.
func (l *lives) runs(id string) (bool, error) {
	processes, err := l.boxes.Processes(id)
	if err != nil {
		return false, err
	}
	return len(processes) > 0, nil
}

// forget counts a box out.
func (l *lives) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLocked(id)
}

func (l *lives) forgetLocked(id string) {
	if b := l.live[id]; b != nil {
		l.promised -= b.memory
		delete(l.live, id)
	}
}

// settled is how long a box that no request needs is left out of renew: what it
// is found to be may be older than what was done with it.
const settled = 2 * time.Second

// renew makes the count that of the boxes that do live: a jail can end without
// a request.
func (l *lives) renew() error {
	list, err := l.boxes.List(false)
	if err != nil {
		return err
	}
	found := map[string]*api.Box{}
	for i := range list {
		if list[i].Live {
			found[list[i].ID] = &list[i]
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, b := range l.live {
		if found[id] == nil && b.users == 0 && b.resting == nil && time.Since(b.used) > settled {
			l.forgetLocked(id)
		}
	}
	for id, b := range found {
		if l.live[id] == nil {
			memory := b.Memory
			if memory <= 0 {
				memory = l.perBox
			}
			l.live[id] = &life{id: id, memory: memory, used: time.Now()}
			l.promised += memory
		}
	}
	return nil
}

func (l *lives) counts() (live int, memory int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.live), l.promised
}

// anyRuns tells whether something runs in any live box.
func (l *lives) anyRuns() bool {
	l.mu.Lock()
	var ids []string
	for id, b := range l.live {
		if b.users > 0 {
			l.mu.Unlock()
			return true
		}
		ids = append(ids, id)
	}
	l.mu.Unlock()
	for _, id := range ids {
		if runs, err := l.runs(id); err == nil && runs {
			return true
		}
	}
	return false
}

// killAll ends what runs in the boxes that requests still need.
func (l *lives) killAll() {
	l.mu.Lock()
	var ids []string
	for id, b := range l.live {
		if b.users > 0 {
			ids = append(ids, id)
		}
	}
	l.mu.Unlock()
	for _, id := range ids {
		_ = l.boxes.Kill(id, api.Kill{All: true}) // the box may have gone
	}
}
