package receipt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const fileName = "receipts.jsonl"

// Log is the log of receipts in one state directory. Any number of processes
// and goroutines may append and read at once.
type Log struct {
	path     string
	mu       sync.Mutex // flock does not exclude users of one descriptor
	file     *os.File
	named    bool  // the file's name is on the disk too
	readOnly error // why nothing can be appended
	// What the last append of this Log made of the file: as long as that has the
	// same size, nobody has appended since.
	size int64
	head string
}

// Open opens the log in stateDir and makes both where they are missing. A log
// that can only be read is opened for reading; Writable says why.
func Open(stateDir string) (*Log, error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("open receipts: %w; set XDG_STATE_HOME to a directory you can write", err)
	}
	l := &Log{path: filepath.Join(stateDir, fileName)}
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Log) open() error {
	file, err := openFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE)
	if errors.Is(err, fs.ErrPermission) || isReadOnlyFS(err) {
		l.readOnly = fmt.Errorf("receipts cannot be written: %w; make it writable or set XDG_STATE_HOME to a directory you can write", err)
		if file, err = openFile(l.path, os.O_RDONLY); err != nil {
			return l.readOnly
		}
	}
	if err != nil {
		return fmt.Errorf("open receipts: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("open receipts: %s: %w", l.path, err)
	}
	l.file, l.named, l.size = file, false, 0
	return nil
}

// Close closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// Path names the file of the log.
func (l *Log) Path() string { return l.path }

// Writable returns nil when receipts can be appended, else the reason: to be
// asked before a command runs, since afterwards is too late.
func (l *Log) Writable() error { return l.readOnly }

// Append writes one receipt: the chain's fields, then those of record, which
// must encode as a JSON object with no field named schema, id, time or prev.
// With sync it is on the disk when Append returns: wanted for a promotion,
// whose trace must not be lost by a power cut that the promotion survived.
func (l *Log) Append(id string, record any, sync bool) (Receipt, error) {
	r, err := l.append(id, record, sync)
	if err != nil {
		return Receipt{}, fmt.Errorf("write receipt %s: %w", id, err)
	}
	return r, nil
}

func (l *Log) append(id string, record any, sync bool) (Receipt, error) {
	if l.readOnly != nil {
		return Receipt{}, l.readOnly
	}
	if id == "" {
		return Receipt{}, errors.New("no id")
	}
	fields, err := fieldsOf(record)
	if err != nil {
		return Receipt{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	size, err := l.lockCurrent()
	if err != nil {
		return Receipt{}, err
	}
	defer unlock(l.file)

	end := tail{prev: l.head, terminated: true}
	if size == 0 || size != l.size {
		if end, err = readTail(l.file, size); err != nil {
			return Receipt{}, err
		}
	}
	now := time.Now().UTC()
	var out []byte
	prev := end.prev
	if !end.terminated {
		out = append(out, '\n')
	}
	if end.tornBytes > 0 {
		fixed := Receipt{Schema: RepairSchema, ID: "repair", Time: now, Prev: prev}
		line, err := format(fixed, fmt.Appendf(nil, `{"torn":%q,"torn_bytes":%d}`, end.torn, end.tornBytes))
		if err != nil {
			return Receipt{}, err
		}
		out = append(out, line...)
		prev = digest(bytes.TrimSuffix(line, []byte("\n")))
	}
	r := Receipt{Schema: Schema, ID: id, Time: now, Prev: prev}
	line, err := format(r, fields)
	if err != nil {
		return Receipt{}, err
	}
	if len(line) > MaxLine {
		return Receipt{}, fmt.Errorf("the record has %d bytes, more than %d", len(line), MaxLine)
	}
	r.Raw = bytes.TrimSuffix(line, []byte("\n"))
	r.Hash = digest(r.Raw)

	// One write, so that other readers see all of it or, after a crash, a
	// torn end. What a full disk cut short was never acknowledged and is
	// taken back, as long as the lock is held.
	out = append(out, line...)
	if _, err := l.file.Write(out); err != nil {
		l.file.Truncate(size)
		return Receipt{}, fmt.Errorf("%w; free space, or set XDG_STATE_HOME to another directory", err)
	}
	l.size, l.head = size+int64(len(out)), r.Hash
	if sync {
		if err := datasync(l.file); err != nil {
			return Receipt{}, err
		}
		if !l.named {
			if err := syncDir(filepath.Dir(l.path)); err != nil {
				return Receipt{}, err
			}
			l.named = true
		}
	}
	return r, nil
}

// lockCurrent locks the file that the log's name stands for now, which is not
// the open one when it was moved aside meanwhile, and returns its size.
func (l *Log) lockCurrent() (int64, error) {
	for {
		if err := lock(l.file, true); err != nil {
			return 0, err
		}
		open, err := l.file.Stat()
		if err != nil {
			unlock(l.file)
			return 0, err
		}
		named, err := os.Lstat(l.path)
		if err == nil && os.SameFile(open, named) {
			return open.Size(), nil
		}
		unlock(l.file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		l.file.Close()
		if err := l.open(); err != nil {
			return 0, err
		}
		if l.readOnly != nil {
			return 0, l.readOnly
		}
	}
}

// List returns every receipt, oldest first, repairs and torn lines left out.
func (l *Log) List() ([]Receipt, error) {
	var all []Receipt
	err := l.read(func(e entry) bool {
		if e.err == nil && e.Schema == Schema {
			r := e.Receipt
			r.Raw = bytes.Clone(r.Raw)
			r.Line = e.line
			all = append(all, r)
		}
		return true
	})
	return all, err
}

// ErrNotFound says that no receipt has the id.
var ErrNotFound = errors.New("no such receipt")

// Show returns the newest receipt whose id is the given one or, when there is
// none, begins with it. A prefix of several ids is an error that names two.
func (l *Log) Show(id string) (Receipt, error) {
	if id == "" {
		return Receipt{}, fmt.Errorf("%w: no id was given", ErrNotFound)
	}
	all, err := l.List()
	if err != nil {
		return Receipt{}, err
	}
	return pick(all, id)
}

// Verify reads the whole chain. It returns how many lines are sound and, where
// the chain breaks, the number of the first broken line (else 0) and why.
func (l *Log) Verify() (n int, brokenLine int, reason string, err error) {
	var c chain
	err = l.read(c.next)
	c.end()
	return c.sound, c.broken, c.reason, err
}

// read calls next for each line, until it returns false. A line that another
// process is just writing is not seen.
func (l *Log) read(next func(entry) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := lock(l.file, false); err != nil {
		return fmt.Errorf("read receipts: %w", err)
	}
	info, err := l.file.Stat()
	unlock(l.file)
	if err != nil {
		return fmt.Errorf("read receipts: %w", err)
	}
	// What was appended under the lock never changes: no need to hold it.
	if err := scan(io.NewSectionReader(l.file, 0, info.Size()), next); err != nil {
		return fmt.Errorf("read receipts: %w", err)
	}
	return nil
}
