package guard

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// Judge holds a change against the table and the rules, and returns what was
// found, sorted by tier, then path; of each path the strictest finding. An
// error means that the change was not judged to the end, and must not be
// promoted.
func Judge(r Request) ([]Finding, error) {
	d := &descriptors{layer: r.Layer, workspace: r.Workspace, picked: r.Picked, path: r.WorkspacePath, parent: -1}
	defer d.close()
	return judgeOn(r, d)
}

// descriptors is the real host, reached from two open directories.
type descriptors struct {
	layer, workspace, picked int
	path                     string // of the workspace

	// parent is the directory of the layer that was looked into last: entries
	// come sorted, so most share it with the one before. -1 for none.
	parent    int
	parentDir string
}

func (d *descriptors) close() {
	if d.parent >= 0 {
		unix.Close(d.parent)
		d.parent = -1
	}
}

// layerParent opens the directory in the layer that holds path.
func (d *descriptors) layerParent(path string) (fd int, name string, err error) {
	dir, name := fsat.Split(path)
	if d.parent >= 0 && d.parentDir == dir {
		return d.parent, name, nil
	}
	d.close()
	d.parent, err = fsat.Open(d.layer, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	d.parentDir = dir
	return d.parent, name, err
}

func (d *descriptors) open(dir int, path string, flags int) (int, error) {
	flags |= unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := fsat.Open(dir, path, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) { // O_NOATIME is the owner's to ask for
		fd, err = fsat.Open(dir, path, flags, 0)
	}
	return fd, err
}

func (d *descriptors) read(root changeset.Root, path string) ([]byte, error) {
	dir := d.workspace
	switch root {
	case changeset.Layer:
		dir = d.layer
	case changeset.Picked:
		dir = d.picked
	}
	fd, err := d.open(dir, path, unix.O_RDONLY)
	if err != nil {
		return nil, errUnreadable
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	st, err := fsat.Fstat(fd)
	switch {
	case err != nil:
		return nil, errUnreadable
	case st.Type != fsat.Regular:
		return nil, errNoFile
	case st.Size > maxContent:
		return nil, errTooLarge
	}
	text := make([]byte, st.Size+1)
	n, err := io.ReadFull(f, text)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return text[:n], nil
	case err != nil:
		return nil, errUnreadable
	}
	return nil, errors.New("it grew while it was read")
}

// absent tells "nothing is there" from an error. EACCES: what the user may not
// look up is beyond what the promotion reaches.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENAMETOOLONG)
}

func (d *descriptors) stat(path string) (fsat.Stat, bool, error) {
	st, err := fsat.Lstat(d.workspace, path)
	if err != nil && absent(err) {
		return st, false, nil
	}
	return st, err == nil, err
}

func (d *descriptors) list(path string) ([]fsat.Dirent, error) {
	fd, err := d.open(d.workspace, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		if absent(err) {
			return nil, nil
		}
		return nil, err
	}
	defer unix.Close(fd)
	return fsat.ReadDir(fd)
}

func (d *descriptors) readlink(path string) (string, error) { return fsat.Readlink(d.workspace, path) }

func (d *descriptors) layerStat(path string, executable bool) (fsat.Stat, bool, error) {
	parent, name, err := d.layerParent(path)
	if err != nil {
		return fsat.Stat{}, false, err
	}
	if !executable {
		st, err := fsat.LstatName(parent, name)
		return st, false, err
	}
	fd, err := fsat.OpenPath(parent, name)
	if err != nil {
		return fsat.Stat{}, false, err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return st, false, err
	}
	_, capable, err := fsat.Xattr(fd, "security.capability")
	return st, capable, err
}

// names walks the layer. It is called only where some file has more names than
// the change shows.
func (d *descriptors) names() (map[uint64]uint64, error) {
	counts := map[uint64]uint64{}
	var walk func(dir int, depth int) error
	walk = func(dir, depth int) error {
		entries, err := fsat.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			st, err := fsat.LstatName(dir, e.Name)
			if err != nil {
				return err
			}
			if st.Type == fsat.Regular && st.Nlink > 1 {
				counts[st.Ino]++
			}
			// A directory beyond the depth of any path hides names, and what
			// is hidden counts as outside.
			if st.Type == fsat.Directory && depth < 256 {
				inner, err := fsat.OpenDir(dir, e.Name)
				if errors.Is(err, unix.EACCES) {
					continue
				}
				if err != nil {
					return err
				}
				err = walk(inner, depth+1)
				unix.Close(inner)
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	top, err := fsat.OpenDir(d.layer, ".")
	if err != nil {
		return nil, err
	}
	defer unix.Close(top)
	return counts, walk(top, 0)
}

// outside follows a path of the host as the user's programs would, with an
// O_PATH descriptor: nothing is opened, mounted or waited for.
func (d *descriptors) outside(path string) (place, error) {
	p := place{path: path, exists: true}
	rest := ""
	for at, links := path, 0; ; {
		fd, err := unix.Open(at, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err != nil {
				return p, err
			}
			p.path = filepath.Join(real, rest)
			// access(2) asks for the real user, which is what is meant; for
			// a directory, to write is to make names in it.
			p.writable = p.writable || unix.Faccessat2(fd, "", unix.W_OK, unix.AT_EMPTY_PATH) == nil
			break
		}
		if at == "/" {
			return p, err
		}
		p.exists = false
		// What is not there may be made by whoever follows the path: a link
		// that leads to nothing too.
		if target, err := os.Readlink(at); err == nil && links < maxLinks {
			links++
			if !filepath.IsAbs(target) {
				target = filepath.Dir(at) + "/" + target
			}
			at = target
			continue
		}
		if !absent(err) {
			p.writable = true // not to be looked at: the worst is assumed
		}
		at = strings.TrimRight(at, "/")
		slash := strings.LastIndexByte(at, '/')
		at, rest = cmp.Or(at[:max(slash, 0)], "/"), filepath.Join(at[slash+1:], rest)
	}
	if d.path != "" {
		if p.path == d.path {
			p.inside = "."
		} else if rest, ok := strings.CutPrefix(p.path, strings.TrimSuffix(d.path, "/")+"/"); ok {
			p.inside = rest
		}
	}
	return p, nil
}

func (d *descriptors) userFile(path string) []byte {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxContent))
	if err != nil {
		return nil
	}
	return text
}

func (d *descriptors) leadsHere(path string) string {
	st, err := os.Lstat(path)
	if err != nil || st.Mode()&os.ModeSymlink == 0 {
		return ""
	}
	p, err := d.outside(path)
	if err != nil {
		return ""
	}
	return p.inside
}
