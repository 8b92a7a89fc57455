package workspace

import (
	"fmt"
	"strings"
	"sync"
)

// noteList gathers paths of which one thing is to be said, and names a few.
type noteList struct {
	what  string
	mu    sync.Mutex
	n     int
	paths []string
}

const notedPaths = 5

func (l *noteList) add(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	if len(l.paths) < notedPaths {
		l.paths = append(l.paths, fmt.Sprintf("%q", path))
	}
}

// note returns a plain sentence, or none.
func (l *noteList) note() []string {
	if l.n == 0 {
		return nil
	}
	paths := strings.Join(l.paths, ", ")
	if more := l.n - len(l.paths); more > 0 {
		paths += fmt.Sprintf(" and %d more", more)
	}
	return []string{paths + ": " + l.what}
}
