package changeset

import (
	"bytes"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// MarkSeen notes, right after a change was read, what of the workspace still is
// what the branch saw: nothing was done to it since the branch's stamp. There
// Before is known to be the base of the change, and not what the host made of
// it, however the path changes from now on; and of a file with a mark of having
// been copied from the workspace it is known that the box moved it here.
func MarkSeen(c *Changeset, workspace int, stamp fsat.Time) {
	for i := range c.Entries {
		e := &c.Entries[i]
		switch {
		case e.CopiedUp:
			dir, _ := fsat.Split(e.Path)
			if above := c.Find(dir); above != nil && above.Op == Created && !above.CopiedUp {
				e.CopiedUp = false // the branch saw no such directory, so nothing in it either
				break
			}
			st, err := fsat.Lstat(workspace, dir)
			if err == nil && st.Type == fsat.Directory && st.Ino == c.Ancestors[dir] && st.Ctime.Before(stamp) {
				e.CopiedUp = false
			}
		case e.Before != nil && e.BaseCtime == nil:
			st, err := fsat.Lstat(workspace, e.Path)
			if err == nil && st.Type == e.Before.Type && st.Ctime.Before(stamp) && (e.BaseIno == 0 || e.BaseIno == st.Ino) {
				e.BaseCtime = &st.Ctime
			}
		}
	}
}

// Stands reports whether a path of the workspace is in exactly the given state,
// times of its content included, and describes the file that it looked at. Only
// the time of the inode's last change may be another than when the state was
// read: a promotion that was taken back, or undone, moves a file there and back,
// and nobody can set that time.
func Stands(workspace int, path string, want *State) (fsat.Stat, bool, error) {
	host := &root{name: Workspace, fd: workspace}
	st, ok, err := host.standing(path, want)
	if err != nil || !ok || st.Mode != want.Mode || st.UID != want.UID || st.GID != want.GID {
		return st, false, err
	}
	// The time of a directory tells of the names in it, and each of those that
	// matters is looked at by itself.
	if st.Type != fsat.Directory && st.Mtime != want.Mtime || st.Type == fsat.Regular && st.Size != want.Size {
		return st, false, nil
	}
	if same, err := standingXattrs(workspace, path, want); err != nil || !same {
		return st, false, err
	}
	after, ok, err := host.lookupPath(path)
	return st, ok && after.Ino == st.Ino && after.Ctime == st.Ctime, err
}

// standingXattrs compares what a state has of them. Capabilities are not in it,
// and a promotion drops them, so a file that has any is not known.
func standingXattrs(workspace int, path string, want *State) (bool, error) {
	if want.Type != fsat.Regular && want.Type != fsat.Directory {
		return true, nil
	}
	fd, err := fsat.OpenPath(workspace, path)
	if absent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	names, err := fsat.Xattrs(fd)
	if errors.Is(err, unix.EACCES) {
		return false, nil
	}
	if err != nil || slices.Contains(names, "security.capability") {
		return false, err
	}
	xattrs, err := userXattrs(fd)
	if errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return maps.EqualFunc(xattrs, want.Xattrs, bytes.Equal), err
}
