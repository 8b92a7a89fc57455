package fsat

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// RemoveAll removes name and all beneath it from the directory dirfd, as
// deep as it goes and with directories that deny their owner entry. A name
// that is not there is no error.
//
// It holds a bounded number of descriptors whatever the depth: 100,000 nested
// directories are an attack on whoever cleans up. A directory that lies too
// deep is renamed up into the top first.
func RemoveAll(dirfd int, name string) error {
	if err := Check(name); err != nil || name == "." || strings.IndexByte(name, '/') >= 0 {
		return pathError("remove", name, ErrEscape)
	}
	dir, err := unlink(dirfd, name)
	if !dir || err != nil {
		return err
	}
	var r remover
	for {
		before := r.moved
		if err := r.empty(dirfd, name, 0); err != nil {
			return err
		}
		err := unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if r.moved == before { // not by what was moved there
			return pathError("remove", name, err)
		}
	}
}

// unlink removes one entry, an empty directory included, and reports whether
// it is a directory that has to be emptied first.
func unlink(dirfd int, name string) (dir bool, err error) {
	err = unix.Unlinkat(dirfd, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return true, nil
		}
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return false, pathError("remove", name, err)
}

// removeDepth is how many directories RemoveAll holds open at most.
const removeDepth = 64

type remover struct {
	topFD int
	moved int
}

func (r *remover) empty(dirfd int, name string, depth int) error {
	fd, err := openWritableDir(dirfd, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if depth == 0 {
		r.topFD = fd
	}
	entries, err := ReadDir(fd)
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir, err := unlink(fd, e.Name)
		if err != nil {
			return err
		}
		if !dir {
			continue
		}
		if depth >= removeDepth {
			// The top looks again until it is empty.
			if err := r.moveUp(fd, e.Name); err != nil {
				return err
			}
			continue
		}
		if err := r.empty(fd, e.Name, depth+1); err != nil {
			return err
		}
		if err := unix.Unlinkat(fd, e.Name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
			return pathError("remove", e.Name, err)
		}
	}
	return nil
}

func (r *remover) moveUp(fd int, name string) error {
	// To give a directory another parent is to write to it (its "..").
	child, err := openWritableDir(fd, name)
	if err != nil {
		return err
	}
	unix.Close(child)
	for {
		r.moved++
		err := Rename(fd, name, r.topFD, fmt.Sprintf(".hutch-remove-%d", r.moved), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) { // the box may have made that very name
			return err
		}
	}
}

// openWritableDir opens a directory for reading and gives its owner the right
// to change it: a box may leave modes 000 and 0555.
func openWritableDir(dirfd int, name string) (int, error) {
	const rwx = 0o700
	fd, err := OpenDir(dirfd, name)
	if err == nil {
		st, err := Fstat(fd)
		if err == nil && st.Mode&rwx != rwx {
			err = Chmod(fd, st.Mode|rwx)
		}
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	if !errors.Is(err, unix.EACCES) {
		return -1, err
	}
	p, err := OpenPath(dirfd, name)
	if err != nil {
		return -1, err
	}
	defer unix.Close(p)
	st, err := Fstat(p)
	if err != nil {
		return -1, err
	}
	if st.Type == Directory {
		if err := Chmod(p, st.Mode|rwx); err != nil {
			return -1, err
		}
	}
	return OpenDir(dirfd, name)
}
