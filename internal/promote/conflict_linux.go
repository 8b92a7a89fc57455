package promote

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// absent reports whether err means that nothing can be at the path, or that it
// can no longer be reached without following a symlink.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// look finds what the host holds at an entry's path and, in what, why that is
// a conflict; "" when it is as the branch saw it.
func (p *planner) look(e *changeset.Entry) (st fsat.Stat, found bool, what string, err error) {
	st, err = p.host.lstat(e.Path)
	found = err == nil
	if err != nil && !absent(err) {
		return st, false, "", err
	}
	if e.Path != "." {
		dir, _ := fsat.Split(e.Path)
		if what, err = p.ancestor(dir); err != nil || what != "" {
			return st, found, what, err
		}
	}
	switch {
	case e.Before == nil && found:
		return st, found, "created it too", nil
	case e.Before == nil:
		return st, found, "", nil
	case !found:
		return st, found, "deleted it", nil
	case st.Type != e.Before.Type:
		return st, found, fmt.Sprintf("made it a %s", st.Type), nil
	case e.BaseIno != 0 && st.Ino != e.BaseIno:
		return st, found, "replaced it", nil
	case e.Path == ".":
		// Any new name at the top changes its ctime, .hutch too.
		if st.Mode != e.Before.Mode {
			return st, found, "changed its mode", nil
		}
	case e.BaseCtime != nil && st.Ctime == *e.BaseCtime:
		// A part of the change was promoted here; nobody was here since.
	case !st.Ctime.Before(p.req.Stamp):
		// >= and not >: an edit right after the stamp is in the same
		// tick of the file system's clock.
		return st, found, "changed it", nil
	}
	if st.Type == fsat.Regular {
		// An editor's open descriptor would go on writing to the file that
		// is about to be displaced.
		dir, name, err := p.host.parent(e.Path)
		if err != nil {
			return st, found, "", err
		}
		if busy(dir, name) {
			return st, found, "has it open for writing", nil
		}
	}
	return st, found, "", nil
}

// ancestor tells why the directory dir is not the one the branch saw: a
// directory that was swapped leaves the ctimes of what it holds alone.
func (p *planner) ancestor(dir string) (string, error) {
	if what, ok := p.ancestors[dir]; ok {
		return what, nil
	}
	what := ""
	if dir != "." {
		above, _ := fsat.Split(dir)
		var err error
		if what, err = p.ancestor(above); err != nil {
			return "", err
		}
	}
	if what == "" {
		st, err := p.host.lstat(dir)
		base := p.req.Changes.Ancestors[dir]
		switch {
		case err != nil && !absent(err):
			return "", err
		case err != nil:
			what = fmt.Sprintf("deleted the directory %q above it", dir)
		case st.Type != fsat.Directory:
			what = fmt.Sprintf("made %q above it a %s", dir, st.Type)
		case base != 0 && st.Ino != base:
			what = fmt.Sprintf("replaced the directory %q above it", dir)
		}
	}
	p.ancestors[dir] = what
	return what, nil
}

// strangers finds what a directory that is to go holds without the changeset
// naming it: the box never saw it, so it must not be lost. It returns how much
// it found.
func (p *planner) strangers(e *changeset.Entry) (n int, err error) {
	fd, err := fsat.OpenDir(p.req.Workspace, e.Path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	if err != nil {
		return 0, err
	}
	for _, d := range entries {
		if path := fsat.Join(e.Path, d.Name); !p.deleted[path] {
			p.conflicts = append(p.conflicts, Conflict{path, string(changeset.Deleted), "has it, unknown to the box"})
			n++
		}
	}
	return n, nil
}

// equal reports whether the host already is what the box made: then both
// agree and nothing is to do.
func (p *planner) equal(e *changeset.Entry, st fsat.Stat, found bool) (bool, error) {
	if e.After == nil || !found {
		return e.After == nil && !found, nil
	}
	a := e.After
	had := uint32(0)
	if e.Before != nil {
		had = e.Before.Mode
	}
	if st.Type != a.Type || st.Type != fsat.Symlink && st.Mode != finalMode(a, had) {
		return false, nil
	}
	if os.Geteuid() == 0 && (st.UID != a.UID || st.GID != a.GID) {
		return false, nil
	}
	switch a.Type {
	case fsat.Symlink:
		target, err := fsat.Readlink(p.req.Workspace, e.Path)
		return err == nil && target == a.Target, err
	case fsat.Regular:
		if st.Size != a.Size || a.Digest == "" {
			return false, nil
		}
	}
	fd, err := fsat.OpenPath(p.req.Workspace, e.Path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if same, err := sameXattrs(fd, a.Xattrs); err != nil || !same || a.Type == fsat.Directory {
		return same, err
	}
	sum, err := digest(p.req.Workspace, e.Path)
	return err == nil && sum == a.Digest, err
}

func sameXattrs(fd int, want map[string][]byte) (bool, error) {
	names, err := fsat.Xattrs(fd)
	if err != nil {
		return false, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !promotableXattr(n) })
	wanted := slices.DeleteFunc(slices.Sorted(maps.Keys(want)), func(n string) bool { return !promotableXattr(n) })
	if !slices.Equal(names, wanted) {
		return false, nil
	}
	for _, name := range names {
		value, _, err := fsat.Xattr(fd, name)
		if err != nil || string(value) != string(want[name]) {
			return false, err
		}
	}
	return true, nil
}

// digest hashes a regular file in the changeset's notation.
func digest(dir int, rel string) (string, error) {
	fd, err := fsat.Open(dir, rel, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	return digestOf(f)
}

func digestOf(r io.Reader) (string, error) {
	h := blake3.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return "blake3:" + hex.EncodeToString(h.Sum(nil)), nil
}
