package layers

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

const (
	upperName = "upper"
	seenName  = "seen"
	refsName  = "refs"
	// gonePrefix begins the name of a layer that is being removed.
	gonePrefix = ".gone-"
)

// Store is a directory of frozen layers.
type Store struct {
	path string
	fd   int
}

// Open opens a directory of layers, making it where it is missing. Its parent
// must be one that nobody else can write.
func Open(path string) (*Store, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Store{path: path, fd: fd}, nil
}

// Close closes the directory.
func (s *Store) Close() { unix.Close(s.fd) }

func newID() string {
	const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	var b [12]byte
	_, _ = rand.Read(b[:])
	for i := range b {
		b[i] = alphabet[b[i]&31]
	}
	return string(b[:])
}

// New makes a layer that has no upper yet, with a reference by owner.
func (s *Store) New(owner string) (id string, err error) {
	id = newID()
	fd, err := fsat.Mkdir(s.fd, id, 0o700)
	if err != nil {
		return "", fmt.Errorf("make a layer: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Mkdirat(fd, refsName, 0o700); err != nil {
		return "", fmt.Errorf("make a layer: %w", err)
	}
	return id, s.Ref(id, owner)
}

// Path is the absolute path of a layer's upper.
func (s *Store) Path(id string) string { return filepath.Join(s.path, id, upperName) }

// OpenUpper opens a layer's upper.
func (s *Store) OpenUpper(id string) (int, error) {
	fd, err := fsat.OpenDir(s.fd, id+"/"+upperName)
	if err != nil {
		return -1, fmt.Errorf("layer %s: %w", id, err)
	}
	return fd, nil
}

// Frozen reports whether a layer has its upper.
func (s *Store) Frozen(id string) (bool, error) {
	st, err := fsat.Lstat(s.fd, id+"/"+upperName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && st.Type == fsat.Directory, err
}

// Freeze moves an upper that nothing writes to any more into a layer: a rename.
func (s *Store) Freeze(id string, dirfd int, name string) error {
	fd, err := fsat.OpenDir(s.fd, id)
	if err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	defer unix.Close(fd)
	return fsat.Rename(dirfd, name, fd, upperName, unix.RENAME_NOREPLACE)
}

// MakeUpper makes the empty upper of a layer, for Merge or Copy to fill.
func (s *Store) MakeUpper(id string) (int, error) {
	fd, err := fsat.OpenDir(s.fd, id)
	if err != nil {
		return -1, fmt.Errorf("layer %s: %w", id, err)
	}
	defer unix.Close(fd)
	return fsat.Mkdir(fd, upperName, 0o700)
}

// Share notes that a box needs what another one needs already. It makes a second
// name for the note of that: a file system takes up to a millisecond to find room
// for a new file where many were deleted lately, as the ends of forks do.
func (s *Store) Share(id, with, owner string) error {
	dir, err := fsat.OpenDir(s.fd, id+"/"+refsName)
	if err == nil {
		err = unix.Linkat(dir, with, dir, owner, 0)
		unix.Close(dir)
	}
	if err != nil { // it has as many names as it may have
		return s.Ref(id, owner)
	}
	return nil
}

// Ref notes that a box needs a layer.
func (s *Store) Ref(id, owner string) error {
	fd, err := fsat.Open(s.fd, id+"/"+refsName+"/"+owner, unix.O_WRONLY|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	return unix.Close(fd)
}

// Unref notes that a box does not need a layer any more, and removes it where
// nobody does. One that is mounted yet is left to Collect.
func (s *Store) Unref(id, owner string) error {
	fd, err := fsat.OpenDir(s.fd, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unlink(fd, refsName+"/"+owner); err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	_, err = s.drop(id, fd)
	return err
}

func unlink(dirfd int, path string) error {
	parent, name, err := fsat.OpenParent(dirfd, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := unix.Unlinkat(parent, name, 0); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// drop removes a layer, open as fd, that nobody needs and nobody has mounted.
func (s *Store) drop(id string, fd int) (bool, error) {
	if refs, err := s.refs(id); err != nil || len(refs) > 0 {
		return false, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, nil
	}
	// Out of the way first: a removal that a crash cuts short must not leave
	// half a layer under the name of a whole one.
	if err := fsat.Rename(s.fd, id, s.fd, gonePrefix+id, 0); err != nil {
		return false, err
	}
	return true, fsat.RemoveAll(s.fd, gonePrefix+id)
}

func (s *Store) refs(id string) ([]string, error) {
	fd, err := fsat.OpenDir(s.fd, id+"/"+refsName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	var owners []string
	for _, e := range entries {
		owners = append(owners, e.Name)
	}
	return owners, err
}

// Hold is a shared lock of layers.
type Hold []int

// Lock keeps layers from being removed until Release is called, or the process
// ends.
func (s *Store) Lock(ids []string) (Hold, error) {
	var h Hold
	for _, id := range ids {
		fd, err := fsat.OpenDir(s.fd, id)
		if err == nil {
			h = append(h, fd)
			err = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
		}
		if err != nil {
			h.Release()
			return nil, fmt.Errorf("layer %s: %w", id, err)
		}
	}
	return h, nil
}

// Release lets go of the layers.
func (h Hold) Release() {
	for _, fd := range h {
		_ = unix.Flock(fd, unix.LOCK_UN) // a process that is being started has a copy of fd until its exec
		unix.Close(fd)
	}
}

// SaveSeen keeps what a layer's overlay told. It is not flushed: what a power
// cut takes of it is unknown then, and times decide.
func (s *Store) SaveSeen(id string, seen *changeset.Seen) error {
	var buf bytes.Buffer
	if err := seen.Encode(&buf); err != nil {
		return err
	}
	fd, err := fsat.Open(s.fd, id+"/"+seenName, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	file := os.NewFile(uintptr(fd), seenName)
	defer file.Close()
	_, err = file.Write(buf.Bytes())
	return err
}

// LinkSeen keeps what SaveSeen would, from a file of that form.
func (s *Store) LinkSeen(id string, dirfd int, name string) error {
	fd, err := fsat.OpenDir(s.fd, id)
	if err != nil {
		return fmt.Errorf("layer %s: %w", id, err)
	}
	defer unix.Close(fd)
	return unix.Linkat(dirfd, name, fd, seenName, 0)
}

// Seen returns what was kept of a layer; nil where nothing was, or it cannot be
// read.
func (s *Store) Seen(id string) *changeset.Seen {
	fd, err := fsat.Open(s.fd, id+"/"+seenName, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	file := os.NewFile(uintptr(fd), seenName)
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil
	}
	seen, err := changeset.DecodeSeen(bytes.NewReader(text))
	if err != nil {
		return nil
	}
	return seen
}

// Settled is how long a layer that nobody needs is left alone by Collect: who
// made it may not have noted that yet.
const Settled = time.Minute

// Collect removes what crashes left: references by boxes that do not need a
// layer, as needs tells, and layers that nobody needs and that are older than
// age.
func (s *Store) Collect(needs func(owner, id string) bool, age time.Duration) (removed int, err error) {
	fd, err := fsat.OpenDir(s.fd, ".")
	if err != nil {
		return 0, err
	}
	entries, err := fsat.ReadDir(fd)
	unix.Close(fd)
	for _, e := range entries {
		if strings.HasPrefix(e.Name, gonePrefix) {
			err = errors.Join(err, fsat.RemoveAll(s.fd, e.Name))
			continue
		}
		gone, cerr := s.collect(e.Name, needs, age)
		if gone {
			removed++
		}
		err = errors.Join(err, cerr)
	}
	return removed, err
}

func (s *Store) collect(id string, needs func(owner, id string) bool, age time.Duration) (bool, error) {
	fd, err := fsat.OpenDir(s.fd, id)
	if err != nil {
		return false, nil // removed just now
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil || time.Since(time.Unix(st.Mtime.Sec, st.Mtime.Nsec)) < age {
		return false, err
	}
	owners, err := s.refs(id)
	if err != nil {
		return false, err
	}
	for _, owner := range owners {
		if !needs(owner, id) {
			if err := unlink(fd, refsName+"/"+owner); err != nil {
				return false, err
			}
		}
	}
	return s.drop(id, fd)
}
