package changeset

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// root is one of the two trees, opened.
type root struct {
	name Root
	fd   int

	mu       sync.Mutex
	unlocked []mode // in the order in which they were unlocked, parents first
}

type mode struct {
	path string
	mode uint32
}

// openDir opens a directory for its entries.
func (r *root) openDir(path string) (int, error) {
	return r.open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

// openFile opens a regular file for its content. O_NONBLOCK: should a FIFO
// stand there by now, the open must not wait for its writer.
func (r *root) openFile(path string) (int, error) {
	return r.open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
}

// openSearch opens a directory to look names up in it.
func (r *root) openSearch(path string) (int, error) {
	return fsat.Open(r.fd, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// open asks for O_NOATIME, which is the owner's to ask for: looking at the
// user's workspace leaves no trace in it.
func (r *root) open(path string, flags int) (int, error) {
	fd, err := fsat.Open(r.fd, path, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		fd, err = fsat.Open(r.fd, path, flags, 0)
	}
	if r.name != Layer || !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	if err := r.unlock(path); err != nil {
		return -1, err
	}
	return fsat.Open(r.fd, path, flags, 0)
}

// unlock gives the owner the right to read path and to search the directories
// above it, from the top down, and remembers their modes for relock. A box
// leaves modes like 000, and outside of its user namespace hutch has no
// capability to look past them.
func (r *root) unlock(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for end := 0; end < len(path); end++ {
		next := strings.IndexByte(path[end:], '/')
		if next < 0 {
			end = len(path)
		} else {
			end += next
		}
		if err := r.unlockOne(path[:end]); err != nil {
			return err
		}
	}
	return nil
}

// Unlock gives the owner of a layer the right to look at the content of a
// change, where the box took it from files or from directories above them, until
// relock is called. It is for an ordinary user; root has it anyway.
func Unlock(c *Changeset, layerFD int) (relock func() error, err error) {
	r := &root{name: Layer, fd: layerFD}
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.After == nil || e.Source != Layer {
			continue
		}
		fd, err := fsat.OpenPath(layerFD, e.SourcePath)
		if err == nil {
			unix.Close(fd)
		}
		if err == nil && (e.After.Type == fsat.Symlink || e.After.Mode&0o500 == 0o500 || e.After.Type == fsat.Regular && e.After.Mode&0o400 != 0) {
			continue
		}
		if err := r.unlock(e.SourcePath); err != nil {
			return nil, errors.Join(fmt.Errorf("read %q in the layer: %w", e.Path, err), r.relock())
		}
	}
	return r.relock, nil
}

func (r *root) unlockOne(path string) error {
	fd, err := fsat.OpenPath(r.fd, path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return err
	}
	if st.Type == fsat.Symlink {
		return nil
	}
	need := uint32(0o400)
	if st.Type == fsat.Directory {
		need = 0o500
	}
	if st.Mode&need == need {
		return nil
	}
	if err := fsat.Chmod(fd, st.Mode|need); err != nil {
		return err
	}
	r.unlocked = append(r.unlocked, mode{path, st.Mode})
	return nil
}

// relock gives everything that was unlocked its mode back, the deepest first.
func (r *root) relock() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed error
	for i := len(r.unlocked) - 1; i >= 0; i-- {
		if err := r.relockOne(r.unlocked[i]); err != nil {
			failed = errors.Join(failed, fmt.Errorf("give %q its mode back: %w", r.unlocked[i].path, err))
		}
	}
	r.unlocked = nil
	return failed
}

func (r *root) relockOne(m mode) error {
	fd, err := fsat.OpenPath(r.fd, m.path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fsat.Chmod(fd, m.mode)
}

// list returns the entries of a directory.
func (r *root) list(path string) ([]fsat.Dirent, error) {
	fd, err := r.openDir(path)
	if r.name == Workspace && absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return fsat.ReadDir(fd)
}

// lookup describes name in dir, which is open as dirfd, and says whether it is
// there.
func (r *root) lookup(dirfd int, dir, name string) (fsat.Stat, bool, error) {
	st, err := fsat.LstatName(dirfd, name)
	if errors.Is(err, unix.EACCES) && r.name == Layer {
		if err := r.unlock(dir); err != nil {
			return st, false, err
		}
		st, err = fsat.LstatName(dirfd, name)
	}
	return r.found(st, dir, err)
}

// lookupPath is lookup for a path from the root.
func (r *root) lookupPath(path string) (fsat.Stat, bool, error) {
	dir, _ := fsat.Split(path)
	st, err := fsat.Lstat(r.fd, path)
	return r.found(st, dir, err)
}

// found tells "not there" from an error.
func (r *root) found(st fsat.Stat, dir string, err error) (fsat.Stat, bool, error) {
	switch {
	case absent(err):
		return st, false, nil
	case errors.Is(err, unix.EACCES) && r.name == Workspace:
		return st, false, shut(dir)
	}
	return st, err == nil, err
}

// shut refuses a change in a directory of the workspace that hutch may not look
// into: what was there before is not known, so that a deletion in it would be
// lost and a change pass for something new.
func shut(dir string) error {
	return fmt.Errorf("the workspace's directory %q is closed to uid %d, and the change reaches into it: open it (chmod u+rwx) and try again", dir, os.Geteuid())
}

// absent reports whether err means that nothing can be at a path. ENOTDIR and
// ELOOP: a file or a symlink stands where a directory of that path would be.
// The workspace's user may bring any of them about between two looks.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
