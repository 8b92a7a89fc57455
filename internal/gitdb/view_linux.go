package gitdb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Dir is one git directory of those that a [Repo] reads.
type Dir struct {
	FD int // open directory
	// Overlay is set for a directory in the upper of an overlay: the prefix
	// of the mount's own attributes, "trusted.overlay." or "user.overlay.".
	// The next Dir is then what it was merged with.
	Overlay string
}

// view is the directories as one, the first on top.
type view []Dir

// errRedirect is of what overlayfs takes from elsewhere in the lower tree.
var errRedirect = fmt.Errorf("%w: the box moved a directory inside .git, or changed only the mode of a file there", ErrUnsupported)

// walk opens the directory path of one Dir. hidden says that the Dirs beneath
// have no part in it.
func (d Dir) walk(path string) (fd int, hidden bool, err error) {
	fd, err = fsat.OpenDir(d.FD, ".")
	if err != nil {
		return -1, false, err
	}
	hidden, err = d.opaque(fd)
	if path != "." {
		for name := range strings.SplitSeq(path, "/") {
			if err != nil {
				break
			}
			parent := fd
			fd, err = fsat.OpenDir(parent, name)
			unix.Close(parent)
			if errors.Is(err, unix.ENOTDIR) { // a whiteout, or a file over a directory
				return -1, true, unix.ENOENT
			}
			if err != nil {
				return -1, hidden, err
			}
			var over bool
			over, err = d.opaque(fd)
			hidden = hidden || over
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, hidden, err
	}
	return fd, hidden, nil
}

// opaque reports whether a directory of an upper hides the one beneath.
func (d Dir) opaque(fd int) (bool, error) {
	if d.Overlay == "" {
		return false, nil
	}
	if _, ok, err := fsat.Xattr(fd, d.Overlay+"redirect"); ok || err != nil {
		return false, errors.Join(errRedirect, err)
	}
	value, ok, err := fsat.Xattr(fd, d.Overlay+"opaque")
	// "x" marks a directory that holds whiteouts made of attributes, which
	// only a nested overlay makes.
	if ok && string(value) == "x" {
		return false, errRedirect
	}
	return ok && string(value) == "y", err
}

func isWhiteout(st fsat.Stat) bool { return st.Type == fsat.CharDevice && st.Rdev == 0 }

// open opens the regular file path for reading.
func (v view) open(path string) (*os.File, fsat.Stat, error) {
	for _, d := range v {
		f, st, hidden, err := d.open(path)
		if err == nil || !errors.Is(err, unix.ENOENT) {
			return f, st, err
		}
		if hidden {
			break
		}
	}
	return nil, fsat.Stat{}, &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
}

func (d Dir) open(path string) (f *os.File, st fsat.Stat, hidden bool, err error) {
	if err := fsat.Check(path); err != nil {
		return nil, st, false, err
	}
	parent, name := fsat.Split(path)
	dir, hidden, err := d.walk(parent)
	if err != nil {
		return nil, st, hidden, err
	}
	defer unix.Close(dir)
	// Looked at before it is opened: to open a FIFO may wait for ever, and to
	// open a device may act.
	st, err = fsat.LstatName(dir, name)
	if err != nil {
		return nil, st, hidden, err
	}
	if isWhiteout(st) {
		return nil, st, true, unix.ENOENT
	}
	if st.Type != fsat.Regular {
		return nil, st, hidden, fmt.Errorf("%w: %q is a %s where git keeps a file", ErrUnsupported, path, st.Type)
	}
	fd, err := fsat.Open(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, hidden, err
	}
	f = os.NewFile(uintptr(fd), path)
	if st, err = fsat.Fstat(fd); err == nil && st.Type != fsat.Regular {
		err = fmt.Errorf("%q changed while it was read", path)
	}
	if err == nil && d.Overlay != "" {
		var ok bool
		if _, ok, err = fsat.Xattr(fd, d.Overlay+"metacopy"); ok {
			err = errRedirect
		}
	}
	if err != nil {
		f.Close()
		return nil, st, hidden, err
	}
	return f, st, hidden, nil
}

// read returns the content of a file of at most limit bytes, and nil when there
// is none.
func (v view) read(path string, limit int64) ([]byte, error) {
	f, _, err := v.open(path)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%w: %q", ErrTooLarge, path)
	}
	if err != nil {
		return nil, err
	}
	return slices.Grow(content, 1), nil // never nil
}

// list returns the entries of a directory, sorted by name; none when there is
// no such directory.
func (v view) list(path string) ([]fsat.Dirent, error) {
	var all []fsat.Dirent
	seen := map[string]bool{}
	for _, d := range v {
		entries, hidden, err := d.list(path)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		for _, e := range entries {
			if seen[e.Name] {
				continue
			}
			seen[e.Name] = true
			if e.Type != fsat.CharDevice { // a whiteout
				all = append(all, e)
			}
		}
		if hidden {
			break
		}
	}
	slices.SortFunc(all, func(a, b fsat.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (d Dir) list(path string) (entries []fsat.Dirent, hidden bool, err error) {
	fd, hidden, err := d.walk(path)
	if err != nil {
		return nil, hidden, err
	}
	defer unix.Close(fd)
	entries, err = fsat.ReadDir(fd)
	for i := range entries {
		if entries[i].Type == fsat.Unknown && err == nil {
			var st fsat.Stat
			st, err = fsat.LstatName(fd, entries[i].Name)
			entries[i].Type = st.Type
		}
	}
	return entries, hidden, err
}
