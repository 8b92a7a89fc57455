package disk

import (
	"math/rand/v2"
	"sync"
)

// Page is the piece of a write that is kept or lost as a whole: the sector of
// today's disks.
const Page = 4096

// Kind tells events apart.
type Kind byte

// The kinds of event.
const (
	Write Kind = 'W'
	Flush Kind = 'F' // all writes of the disk before it are on it
	Mark  Kind = 'M'
)

// Event is something that happened to one of the disks of a log.
type Event struct {
	Kind Kind
	Disk *Disk
	Off  int64
	Data []byte
	Note string // of a mark
}

// Log is what happened to some disks, in one order.
type Log struct {
	mu     sync.Mutex
	on     bool
	events []Event
}

func (l *Log) add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on {
		l.events = append(l.events, e)
	}
}

// Start begins to write events down.
func (l *Log) Start() { l.mu.Lock(); l.on = true; l.mu.Unlock() }

// Stop ends it.
func (l *Log) Stop() { l.mu.Lock(); l.on = false; l.mu.Unlock() }

// Mark notes a moment.
func (l *Log) Mark(note string) { l.add(Event{Kind: Mark, Note: note}) }

// Events returns what was written down.
func (l *Log) Events() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events
}

// At returns the index of the first mark of that name, or the end.
func (l *Log) At(note string) int {
	for i, e := range l.Events() {
		if e.Kind == Mark && e.Note == note {
			return i
		}
	}
	return len(l.events)
}

// Pages is content that lies over what a disk held when the log was started.
type Pages map[int64][]byte

// Cut returns what each disk holds when the power goes after the first n events:
// all that was flushed, and of each page written since, with probability keep,
// what was written. A disk in safe loses nothing that reached it.
func (l *Log) Cut(n int, keep float64, r *rand.Rand, safe ...*Disk) map[*Disk]Pages {
	events := l.Events()[:n]
	flushed := map[*Disk]int{}
	for i, e := range events {
		if e.Kind == Flush {
			flushed[e.Disk] = i
		}
	}
	for _, d := range safe {
		flushed[d] = n
	}
	content := map[*Disk]Pages{}
	for i, e := range events {
		if e.Kind != Write {
			continue
		}
		if content[e.Disk] == nil {
			content[e.Disk] = Pages{}
		}
		for off, data := e.Off, e.Data; len(data) > 0; {
			piece := min(int64(len(data)), Page-off%Page)
			if i < flushed[e.Disk] || r.Float64() < keep {
				e.Disk.overlay(content[e.Disk], off, data[:piece])
			}
			off, data = off+piece, data[piece:]
		}
	}
	return content
}
