package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// logSize is how large a log may grow before another is begun; one old one is
// kept beside it.
const logSize = 16 << 20

// logFile is a file that is moved aside when it has grown large.
type logFile struct {
	path string
	max  int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

// OpenLog opens a log, in lines of JSON. An empty path, or "-", is standard
// error.
func OpenLog(path string, level slog.Level) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: level}
	if path == "" || path == "-" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	l := &logFile{path: path, max: logSize}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("log: %w; give another with --log, or - for standard error", err)
	}
	return slog.New(slog.NewJSONHandler(l, options)), nil
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.size = f, st.Size()
	return nil
}

// Write appends a line. What cannot be written is lost: a full disk must not
// end the daemon.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(line)) > l.max && l.size > 0 {
		l.turn()
	}
	n, err := l.f.Write(line)
	l.size += int64(n)
	return n, err
}

// turn begins a new file. Where that fails the old one grows on, and the next
// line tries again.
func (l *logFile) turn() {
	if os.Rename(l.path, l.path+".1") != nil {
		return
	}
	old := l.f
	if l.open() == nil {
		old.Close()
	}
}
