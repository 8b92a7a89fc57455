package box

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/receipt"
	"hutch/internal/workspace"
)

// Store is hutch's state directory: boxes and receipts.
type Store struct {
	Path     string
	Receipts *receipt.Log

	once sync.Once
	own  *Boxes
}

// OpenStore opens the state directory, making it where it is missing.
func OpenStore() (*Store, error) {
	path, err := workspace.StateDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(path, "boxes"), 0o700); err != nil {
		return nil, stateError(err)
	}
	log, err := receipt.Open(path)
	if err != nil {
		return nil, err
	}
	if err := log.Writable(); err != nil {
		log.Close()
		return nil, stateError(err)
	}
	return &Store{Path: path, Receipts: log}, nil
}

// boxes are the boxes of a store that was opened by itself.
func (s *Store) boxes() *Boxes {
	s.once.Do(func() { s.own = &Boxes{store: s, open: map[string]*held{}} })
	return s.own
}

// Close closes the store.
func (s *Store) Close() { s.Receipts.Close() }

func stateError(err error) error {
	return fmt.Errorf("state directory: %w; free space there, or set XDG_STATE_HOME to a directory you can write", err)
}

// dir is the open directory of one box.
type dir struct {
	id   string
	path string
	fd   int
}

// close lets go of the box. The lock is given up and not only closed: a process
// that is being started has a copy of the descriptor until its exec.
func (d *dir) close() {
	_ = unix.Flock(d.fd, unix.LOCK_UN)
	unix.Close(d.fd)
}

// newID returns an id that is unique in practice: 60 random bits.
func newID() string {
	var b [idLength]byte
	_, _ = rand.Read(b[:])
	for i := range b {
		b[i] = idAlphabet[b[i]&31]
	}
	return string(b[:])
}

// createDir makes and locks the directory of a new box under base.
func createDir(base, id string) (*dir, error) {
	path := filepath.Join(base, id)
	if err := unix.Mkdir(path, 0o700); err != nil {
		return nil, stateError(&fs.PathError{Op: "mkdir", Path: path, Err: err})
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, stateError(&fs.PathError{Op: "open", Path: path, Err: err})
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return nil, stateError(err)
	}
	return &dir{id: id, path: path, fd: fd}, nil
}

// rescued ends the name of a directory that no command but its user may touch.
const rescued = ".rescued"

// errBusy says that another process holds the box.
var errBusy = errors.New("in use by another hutch process")

func openDir(path string) (*dir, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, err
	}
	return &dir{id: filepath.Base(path), path: path, fd: fd}, nil
}

// remove deletes the box's directory with all that is in it.
func (d *dir) remove() error {
	// The record first: without it the rest is what a crash left, and with it a
	// box that has lost some of its layers.
	if err := unix.Unlinkat(d.fd, recordName, 0); err != nil && err != unix.ENOENT {
		return err
	}
	// What is left of a box that changed nothing, by name: the marks that the
	// kernel makes for a volatile overlay. A box cannot reach any of it.
	_ = unix.Unlinkat(d.fd, "work/work/incompat/volatile/dirty", 0)
	for _, name := range []string{"work/work/incompat/volatile", "work/work/incompat", "work/work", "work", "upper"} {
		_ = unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
	}
	if unix.Rmdir(d.path) == nil {
		return nil
	}
	parent, err := unix.Open(filepath.Dir(d.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	return fsat.RemoveAll(parent, filepath.Base(d.path))
}

const recordName = "box.json"

// write puts the record in place, durably: what it says of a box must outlive
// a power cut.
func (d *dir) write(r *Record) error {
	text, err := r.encode()
	if err != nil {
		return err
	}
	return d.save(recordName, text)
}

func (d *dir) save(name string, content []byte) error {
	if err := d.replace(name, content, true); err != nil {
		return err
	}
	return fsat.Fsync(d.fd)
}

// replace puts a file in place as a whole. Where it is flushed, a power cut
// leaves the old content or the new.
func (d *dir) replace(name string, content []byte, flush bool) error {
	temp := name + ".new"
	file, err := d.createFile(temp)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return stateError(err)
	}
	if flush {
		if err := file.Sync(); err != nil {
			return stateError(err)
		}
	}
	if err := fsat.Rename(d.fd, temp, d.fd, name, 0); err != nil {
		return stateError(err)
	}
	return nil
}

// put writes a file that nobody looks for before a record that is yet to be
// written, durably, says that it is there.
func (d *dir) put(name string, content []byte) error {
	file, err := d.createFile(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return stateError(err)
	}
	if err := file.Sync(); err != nil {
		return stateError(err)
	}
	return nil
}

// place writes a small new file at once, without a flush.
func (d *dir) place(name string, content []byte) error {
	file, err := d.createFile(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return stateError(err)
	}
	return nil
}

func (d *dir) list() ([]fsat.Dirent, error) {
	fd, err := fsat.OpenDir(d.fd, ".")
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return fsat.ReadDir(fd)
}

func (d *dir) createFile(name string) (*os.File, error) {
	fd, err := fsat.Open(d.fd, name, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, stateError(err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.path, name)), nil
}

func (d *dir) readFile(name string) ([]byte, error) {
	fd, err := fsat.Open(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	return io.ReadAll(file)
}

func (d *dir) read() (*Record, error) {
	text, err := d.readFile(recordName)
	if err == nil && len(text) == 0 { // of a fork that a power cut came upon
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	r, err := parseRecord(text)
	if err != nil {
		return nil, fmt.Errorf("box %s: its record is damaged: %w", d.id, err)
	}
	return r, nil
}

// bases lists the directories that hold boxes: the one in the state directory,
// and those that --layer-dir named.
func (s *Store) bases() []string {
	bases := []string{filepath.Join(s.Path, "boxes")}
	text, err := os.ReadFile(filepath.Join(s.Path, "layer-dirs"))
	if err != nil {
		return bases
	}
	for line := range strings.Lines(string(text)) {
		if base := strings.TrimSuffix(line, "\n"); filepath.IsAbs(base) && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
	}
	return bases
}

// base returns the directory for new boxes under a layer directory, and
// remembers it. A layer in the workspace would be part of what it is laid over.
func (s *Store) base(layerDir, workspacePath string) (string, error) {
	bases := s.bases()
	if layerDir == "" {
		return bases[0], nil
	}
	if err := fsat.CheckArgument(layerDir, fsat.Any); err != nil {
		return "", fmt.Errorf("--layer-dir: %w", err)
	}
	if info, err := os.Stat(layerDir); err != nil || !info.IsDir() {
		return "", fmt.Errorf("--layer-dir %s: not a directory; make it first", layerDir)
	}
	layerDir, err := filepath.EvalSymlinks(layerDir)
	if err == nil {
		layerDir, err = filepath.Abs(layerDir)
	}
	if err != nil {
		return "", fmt.Errorf("--layer-dir: %w", err)
	}
	if fsat.Within(layerDir, workspacePath) {
		return "", fmt.Errorf("--layer-dir %s lies in the workspace; name a directory outside it", layerDir)
	}
	if strings.ContainsRune(layerDir, '\n') {
		return "", fmt.Errorf("--layer-dir %q: a newline is not supported", layerDir)
	}
	base := filepath.Join(layerDir, fmt.Sprintf("hutch-%d", os.Geteuid()))
	if err := os.Mkdir(base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("--layer-dir: %w", err)
	}
	// Where others can write, it may be another's, or lead to another's: whoever
	// can write a layer decides what is promoted.
	var st unix.Stat_t
	if err := unix.Lstat(base, &st); err != nil {
		return "", fmt.Errorf("--layer-dir: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return "", fmt.Errorf("--layer-dir: %s is not a directory of yours that nobody else can write; remove it, or name another directory", base)
	}
	if slices.Contains(bases, base) {
		return base, nil
	}
	file, err := os.OpenFile(filepath.Join(s.Path, "layer-dirs"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return "", stateError(err)
	}
	defer file.Close()
	if _, err := file.WriteString(base + "\n"); err != nil {
		return "", stateError(err)
	}
	return base, nil
}

// Boxes lists the kept boxes, oldest first.
func (s *Store) Boxes() ([]Record, error) {
	var records []Record
	for _, base := range s.bases() {
		entries, err := os.ReadDir(base)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(base, e.Name(), recordName))
			if err != nil {
				continue
			}
			if r, err := parseRecord(text); err == nil {
				records = append(records, *r)
			}
		}
	}
	slices.SortFunc(records, func(a, b Record) int { return a.Created.Compare(b.Created) })
	return records, nil
}
