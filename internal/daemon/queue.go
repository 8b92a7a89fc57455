package daemon

import (
	"context"
	"fmt"
	"sync"

	"hutch/internal/api"
)

// queue admits commands: limit run at once, the others wait in a line of their
// client, and the lines take turns. A client that asks for a thousand holds up
// another by no more than the command that runs.
type queue struct {
	limit int // commands that run at once; 0: any number
	most  int // that may wait, of one client
	all   int // that may wait, of all clients

	mu      sync.Mutex
	running int
	waiting int
	lines   map[string]*line
	turns   []*line // lines that are not empty, in the order of their turns
}

type line struct {
	client string
	places []*place
}

type place struct {
	granted chan struct{}
}

// shareOfAll is how many clients' full lines there may be at once.
const shareOfAll = 16

func newQueue(limit, most int) *queue {
	return &queue{limit: limit, most: most, all: shareOfAll * most, lines: map[string]*line{}}
}

// enter waits for a place. leave must be called once.
func (q *queue) enter(ctx context.Context, client string) error {
	q.mu.Lock()
	if q.limit <= 0 || (q.running < q.limit && q.waiting == 0) {
		q.running++
		q.mu.Unlock()
		return nil
	}
	l := q.lines[client]
	if l == nil {
		l = &line{client: client}
	}
	if len(l.places) >= q.most || q.waiting >= q.all {
		waiting := len(l.places)
		q.mu.Unlock()
		return refuse(api.Full, fmt.Sprintf("%d commands run and %d of yours wait: try again when some have ended, or start hutchd with a larger --max-running or --queue", q.limit, waiting))
	}
	p := &place{granted: make(chan struct{})}
	if len(l.places) == 0 {
		q.lines[client] = l
		q.turns = append(q.turns, l)
	}
	l.places = append(l.places, p)
	q.waiting++
	q.mu.Unlock()

	select {
	case <-p.granted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	select {
	case <-p.granted: // at the same moment: it goes to the next
		q.mu.Unlock()
		q.leave()
	default:
		q.drop(l, p)
		q.mu.Unlock()
	}
	return ctx.Err()
}

// leave gives a place back.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	for q.running < q.limit && len(q.turns) > 0 {
		l := q.turns[0]
		q.turns = q.turns[1:]
		p := l.places[0]
		l.places = l.places[1:]
		if len(l.places) > 0 {
			q.turns = append(q.turns, l)
		} else {
			delete(q.lines, l.client)
		}
		q.waiting--
		q.running++
		close(p.granted)
	}
}

// drop takes a place out of its line. The lock is held.
func (q *queue) drop(l *line, gone *place) {
	for i, p := range l.places {
		if p != gone {
			continue
		}
		l.places = append(l.places[:i], l.places[i+1:]...)
		q.waiting--
		break
	}
	if len(l.places) > 0 {
		return
	}
	delete(q.lines, l.client)
	for i, other := range q.turns {
		if other == l {
			q.turns = append(q.turns[:i], q.turns[i+1:]...)
			break
		}
	}
}

func (q *queue) counts() (running, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.running, q.waiting
}
