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

// look finds what the host holds at an entry's path, and what it did to it
// since the branch.
func (p *planner) look(e *changeset.Entry, d *decision) (difference, error) {
	st, err := p.host.lstat(e.Path)
	d.st, d.found = st, err == nil
	if err != nil && !absent(err) {
		return difference{}, err
	}
	if e.Path != "." {
		dir, _ := fsat.Split(e.Path)
		if diff, err := p.ancestor(dir); err != nil || diff.what != "" {
			return diff, err
		}
	}
	what := ""
	switch {
	case e.Before == nil && d.found:
		what = "created it too"
	case e.Before == nil && e.CopiedUp:
		if what, err = p.deletedSince(e.Path); err != nil || what == "" {
			return difference{}, err
		}
	case e.Before == nil:
		return difference{}, nil
	case !d.found:
		what = "deleted it"
	case st.Type != e.Before.Type:
		what = fmt.Sprintf("made it a %s", st.Type)
	case e.BaseIno != 0 && st.Ino != e.BaseIno:
		what = "replaced it"
	case e.Path == ".":
		// Any new name at the top changes its ctime, .hutch too.
		if st.Mode != e.Before.Mode {
			what = "changed its mode"
		}
	case e.BaseCtime != nil && st.Ctime == *e.BaseCtime:
		// A part of the change was promoted here; nobody was here since.
	case !st.Ctime.Before(p.req.Stamp.T):
		// >= and not >: an edit right after the stamp is in the same
		// tick of the file system's clock.
		same, err := p.standsAgain(e, st)
		if err != nil {
			return difference{}, err
		}
		if !same {
			what = "changed it"
		}
	}
	if d.found && st.Type == fsat.Regular {
		// An editor's open descriptor would go on writing to the file that
		// is about to be displaced.
		dir, name, err := p.host.parent(e.Path)
		if err != nil {
			return difference{}, err
		}
		if busy(dir, name) {
			return difference{"has it open for writing", stays}, nil
		}
	}
	return difference{what, soft}, nil
}

// standsAgain reports whether a path whose inode was changed since the branch is
// nevertheless in the state that the branch saw: hutch itself moved it away and
// back (a promotion that failed late, an undo), or somebody took back what he
// had done. Without BaseCtime the entry's Before may be the host's own edit.
func (p *planner) standsAgain(e *changeset.Entry, st fsat.Stat) (bool, error) {
	if e.BaseCtime == nil {
		return false, nil
	}
	now, same, err := changeset.Stands(p.req.Workspace, e.Path, e.Before)
	return same && now.Ino == st.Ino && now.Ctime == st.Ctime, err
}

// deletedSince judges a path that the host does not have, and that the layer
// has a copy of: the host deleted it, or the box moved it here. Where nothing
// was deleted from the directory since the branch, it was moved.
func (p *planner) deletedSince(path string) (string, error) {
	dir, _ := fsat.Split(path)
	st, err := p.host.lstat(dir)
	if err != nil {
		return "", err
	}
	if st.Ctime.Before(p.req.Stamp.T) {
		return "", nil
	}
	return "deleted it", nil
}

// ancestor tells why the directory dir is not the one the branch saw: a
// directory that was swapped leaves the ctimes of what it holds alone.
func (p *planner) ancestor(dir string) (difference, error) {
	if diff, ok := p.ancestors[dir]; ok {
		return diff, nil
	}
	var diff difference
	if dir != "." {
		above, _ := fsat.Split(dir)
		var err error
		if diff, err = p.ancestor(above); err != nil {
			return diff, err
		}
	}
	if diff.what == "" {
		st, err := p.host.lstat(dir)
		base := p.req.Changes.Ancestors[dir]
		switch {
		case err != nil && !absent(err):
			return diff, err
		case err != nil:
			diff = difference{fmt.Sprintf("deleted the directory %q above it", dir), stays}
		case st.Type == fsat.Symlink:
			// The path leads elsewhere now: even to leave it says nothing
			// of what is there.
			diff = difference{fmt.Sprintf("made %q above it a symlink", dir), hard}
		case st.Type != fsat.Directory:
			diff = difference{fmt.Sprintf("made %q above it a %s", dir, st.Type), stays}
		case base != 0 && st.Ino != base:
			diff = difference{fmt.Sprintf("replaced the directory %q above it", dir), stays}
		}
	}
	p.ancestors[dir] = diff
	return diff, nil
}

// strangers returns what a directory that is to go holds without the changeset
// naming it.
func (p *planner) strangers(e *changeset.Entry) (paths []string, err error) {
	fd, err := fsat.OpenDir(p.req.Workspace, e.Path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	if err != nil {
		return nil, err
	}
	for _, d := range entries {
		if path := fsat.Join(e.Path, d.Name); !p.deleted[path] {
			paths = append(paths, path)
		}
	}
	return paths, nil
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
