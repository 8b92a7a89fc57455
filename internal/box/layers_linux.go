package box

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/view"
	"hutch/internal/workspace"
)

// cacheDirs makes layers for the caches that are shown copy-on-write. They go
// with the box.
func (c *cell) cacheDirs(count int) ([]string, error) {
	var dirs []string
	for range count {
		dir := filepath.Join(c.dir.path, fmt.Sprintf("cache%d", len(dirs)))
		for _, d := range []string{dir, filepath.Join(dir, "upper"), filepath.Join(dir, "work")} {
			if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return nil, stateError(err)
			}
		}
		if c.privileged && c.user.UID != 0 {
			if err := os.Chown(filepath.Join(dir, "upper"), int(c.user.UID), int(c.user.GID)); err != nil {
				return nil, stateError(err)
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// unwritable lists what a box of a whole root could not write to, without
// making one.
func unwritable(req Request, force *policy.InForce) ([]string, error) {
	c := newCell(req, outcome.New())
	c.policy = *force
	var err error
	if c.ws, err = workspace.Open(cmp.Or(req.Workspace, "."), true); err != nil {
		return nil, err
	}
	defer c.ws.Close()
	if c.user, err = c.target(); err != nil {
		return nil, err
	}
	if c.state, err = workspace.StateDir(); err != nil {
		return nil, err
	}
	c.view()
	return view.Unwritable(c.host)
}

func cannotWrite(lines []string) string {
	return "cannot be written to in this box: " + strings.Join(lines, "; ")
}

// copies copies the directories that the box is shown as its own. They go with
// the box.
func (c *cell) copies(parts []view.Part) (map[string]string, error) {
	copies := make(map[string]string)
	for i := range parts {
		p := &parts[i]
		if !p.Copy {
			continue
		}
		to := filepath.Join(c.dir.path, fmt.Sprintf("copy%d", i))
		copying := copyOf{from: p.Path, to: to, absent: p.Absent, user: c.user}
		if c.privileged {
			copying.give = func(path string) error { return os.Lchown(path, int(c.user.UID), int(c.user.GID)) }
		}
		if err := copying.dir(""); err != nil {
			return nil, fmt.Errorf("copy %s for the box: %w", p.Path, err)
		}
		copies[p.Path] = to
	}
	return copies, nil
}

// copyOf copies a directory of the system: what its user may read, as his own.
type copyOf struct {
	from, to string
	absent   []string // below from
	user     view.User
	give     func(path string) error // to the user; nil: what is made is his
	bytes    int64
}

// maxCopy bounds the bytes of a copy. A file beyond it is left out.
const maxCopy = 256 << 20

func (c *copyOf) dir(rel string) error {
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(c.from, rel), &st); err != nil || !c.user.MayRead(st.Uid, st.Gid, st.Mode) || !c.user.MayRead(st.Uid, st.Gid, st.Mode<<2) {
		return nil
	}
	to := filepath.Join(c.to, rel)
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(c.from, rel))
	if err != nil {
		return nil // it changed just now
	}
	for _, e := range entries {
		below := filepath.Join(rel, e.Name())
		if slices.ContainsFunc(c.absent, func(a string) bool { return fsat.Within(below, a) }) {
			continue
		}
		switch {
		case e.IsDir():
			err = c.dir(below)
		case e.Type()&os.ModeSymlink != 0:
			err = c.link(below)
		case e.Type().IsRegular():
			err = c.file(below)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Chmod(to, os.FileMode(st.Mode&0o777|0o700)); err != nil {
		return err
	}
	return c.owned(to)
}

func (c *copyOf) owned(path string) error {
	if c.give == nil {
		return nil
	}
	return c.give(path)
}

func (c *copyOf) link(rel string) error {
	target, err := os.Readlink(filepath.Join(c.from, rel))
	if err != nil {
		return nil
	}
	to := filepath.Join(c.to, rel)
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	return c.owned(to)
}

func (c *copyOf) file(rel string) error {
	fd, err := unix.Open(filepath.Join(c.from, rel), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // what the user cannot read stays out
	}
	from := os.NewFile(uintptr(fd), rel)
	defer from.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || !c.user.MayRead(st.Uid, st.Gid, st.Mode) || c.bytes+st.Size > maxCopy {
		return nil
	}
	c.bytes += st.Size
	path := filepath.Join(c.to, rel)
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := to.ReadFrom(from); err != nil {
		return err
	}
	if err := to.Chmod(os.FileMode(st.Mode&0o777 | 0o600)); err != nil {
		return err
	}
	return c.owned(path)
}
