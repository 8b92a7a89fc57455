package box

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/outcome"
)

// execLine is a line of a box's execs.jsonl: one when a command starts, and one
// with its outcome when it ends. A start without an end is a command that ran
// when whoever held the box was killed.
type execLine struct {
	ID      uint32           `json:"id"`
	Argv    []string         `json:"argv,omitempty"`
	Dir     string           `json:"dir,omitempty"`
	Started time.Time        `json:"started,omitzero"`
	Outcome *outcome.Outcome `json:"outcome,omitempty"`
}

const (
	execsName  = "execs.jsonl"
	outputsDir = "execs" // in the box's directory, for output too large for a line
	// inLine is how much of each stream goes into a line, in bytes.
	inLine = 8 << 10
	// maxExecs bounds the log, in bytes: then the older half of what ended goes.
	maxExecs = 16 << 20
	// maxOutputs bounds what one process writes beside the log, likewise.
	maxOutputs = 1 << 30
)

// execLog is the log of a box's commands. It is flushed to the disk by nobody: it
// survives a crash of hutch, not a power cut.
type execLog struct {
	dir *dir

	mu    sync.Mutex
	fd    int // -1 until something is appended
	size  int64
	kept  int64 // bytes of output beside it, as far as this process wrote them
	limit int64 // of size, before it is trimmed
}

func newExecLog(d *dir) *execLog { return &execLog{dir: d, fd: -1, limit: maxExecs} }

// append adds a line about a command of which so many bytes of output lie beside
// the log. Commands that are running stay when it is trimmed.
func (l *execLog) append(line execLine, output int64, running func(id uint32) bool) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(); err != nil {
		return err
	}
	if l.kept += output; l.size+int64(len(text)) > l.limit || l.kept > maxOutputs {
		if err := l.trim(running); err != nil {
			return err
		}
	}
	n, err := unix.Write(l.fd, text)
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	if err != nil {
		_ = unix.Ftruncate(l.fd, l.size) // half a line would swallow the next
		return stateError(err)
	}
	l.size += int64(n)
	return nil
}

func (l *execLog) open() error {
	if l.fd >= 0 {
		return nil
	}
	fd, err := fsat.Open(l.dir.fd, execsName, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return stateError(err)
	}
	st, err := fsat.Fstat(fd)
	if err == nil && st.Size > 0 {
		var last [1]byte
		if _, err = unix.Pread(fd, last[:], st.Size-1); err == nil && last[0] != '\n' {
			_, err = unix.Write(fd, []byte("\n")) // a power cut tore the last line
			st.Size++
		}
	}
	if err != nil {
		unix.Close(fd)
		return stateError(err)
	}
	l.fd, l.size = fd, st.Size
	return nil
}

// trim drops the older half of the commands that have ended, with their output.
func (l *execLog) trim(running func(uint32) bool) error {
	lines, err := l.dir.readExecs()
	if err != nil {
		return err
	}
	var ended []uint32
	for _, line := range lines {
		if line.Outcome != nil {
			ended = append(ended, line.ID)
		}
	}
	slices.Sort(ended)
	last := uint32(0)
	if len(ended) > 0 {
		last = ended[len(ended)/2]
	}
	var text bytes.Buffer
	gone := make(map[uint32]bool)
	for _, line := range lines {
		if line.ID <= last && !running(line.ID) {
			gone[line.ID] = true
			continue
		}
		one, err := json.Marshal(line)
		if err != nil {
			return err
		}
		text.Write(append(one, '\n'))
	}
	if err := l.dir.save(execsName, text.Bytes()); err != nil {
		return err
	}
	for id := range gone {
		for _, stream := range []string{"stdout", "stderr"} {
			if dir, err := fsat.OpenDir(l.dir.fd, outputsDir); err == nil {
				_ = unix.Unlinkat(dir, outputName(id, stream), 0)
				unix.Close(dir)
			}
		}
	}
	unix.Close(l.fd)
	l.fd, l.kept = -1, 0
	return l.open()
}

func (l *execLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		unix.Close(l.fd)
		l.fd = -1
	}
}

// outputName is that of a command's output that is too large for a line.
func outputName(id uint32, stream string) string { return fmt.Sprintf("%d.%s", id, stream) }

// readExecs reads the lines of a box's log. One that is no line is what a power
// cut left.
func (d *dir) readExecs() ([]execLine, error) {
	text, err := d.readFile(execsName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var lines []execLine
	for one := range bytes.Lines(text) {
		var line execLine
		if json.Unmarshal(one, &line) == nil && line.ID > 0 {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
