package workspace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// openSource opens something in the workspace for reading. It leaves no trace
// there where the kernel allows that (O_NOATIME is the owner's to ask for) and
// does not wait for a FIFO's writer should one stand there by now.
func openSource(dirfd int, rel string, flags int) (int, error) {
	flags |= unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	fd, err := fsat.Open(dirfd, rel, flags|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		fd, err = fsat.Open(dirfd, rel, flags, 0)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE):
		return -1, errGone
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return -1, errChanged
	}
	return fd, err
}

// sourceError explains why something in the workspace could not be read.
func sourceError(rel string, err error) error {
	if errors.Is(err, errGone) || errors.Is(err, errChanged) {
		return err
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%q cannot be read by uid %d: use --strategy overlay, or make it readable", rel, os.Geteuid())
	}
	return fmt.Errorf("read %q: %w", rel, err)
}

// fillFile copies one regular file and records it. One that has more names is
// copied only when linked is set, and not recorded: it is not complete before
// they are made.
func (c *copier) fillFile(src, dst int, n name, linked bool) (fsat.Stat, error) {
	in, err := openSource(src, n.name, 0)
	if err != nil {
		return fsat.Stat{}, sourceError(n.rel(), err)
	}
	defer unix.Close(in)
	st, err := fsat.Fstat(in)
	if err != nil {
		return st, sourceError(n.rel(), err)
	}
	if st.Type != fsat.Regular {
		return st, errChanged
	}
	if st.Nlink > 1 && !linked {
		return st, errPutOff
	}
	out, err := fsat.Open(dst, n.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return st, fmt.Errorf("write %q: %w", n.rel(), err)
	}
	defer unix.Close(out)
	if err := c.fillData(out, in, st); err != nil {
		return st, fmt.Errorf("copy %q: %w", n.rel(), err)
	}
	// While the file is still writable: user xattrs need that.
	if err := copyXattrs(out, in); err != nil {
		return st, fmt.Errorf("copy %q: %w", n.rel(), err)
	}
	if err := setAttributes(out, st); err != nil {
		return st, fmt.Errorf("copy %q: %w", n.rel(), err)
	}
	c.files.Add(1)
	if linked {
		return st, nil
	}
	copied, err := fsat.Fstat(out)
	if err != nil {
		return st, err
	}
	c.record(n.rel(), copied, st.Ino)
	return st, nil
}

func (c *copier) fillData(out, in int, st fsat.Stat) error {
	if st.Size == 0 {
		return nil
	}
	if c.reflink && !c.elsewhere(st) {
		err := fsat.Reflink(out, in)
		if err == nil {
			c.cloned.Add(1)
			return nil
		}
		if !cannotClone(err) {
			return err
		}
		if !c.proven && c.cloned.Load() == 0 {
			return unsupported(err)
		}
	}
	if c.reflink {
		c.copied.Add(1)
		c.copiedBytes.Add(st.Size)
	}
	return fsat.CopyDataContext(c.ctx, out, in, st.Size)
}

// makeNode makes the like of a symlink, FIFO or socket, and describes it.
func (c *copier) makeNode(src, dst int, n name, st fsat.Stat) (fsat.Stat, error) {
	fail := func(err error) (fsat.Stat, error) {
		return fsat.Stat{}, fmt.Errorf("copy %q: %w", n.rel(), err)
	}
	switch st.Type {
	case fsat.Symlink:
		target, err := fsat.Readlink(src, n.name)
		if errors.Is(err, unix.ENOENT) {
			return fsat.Stat{}, errGone
		}
		if errors.Is(err, unix.EINVAL) {
			return fsat.Stat{}, errChanged
		}
		if err != nil {
			return fsat.Stat{}, sourceError(n.rel(), err)
		}
		if err := unix.Symlinkat(target, dst, n.name); err != nil {
			return fail(err)
		}
	case fsat.FIFO:
		if err := unix.Mknodat(dst, n.name, unix.S_IFIFO|0o600, 0); err != nil {
			return fail(err)
		}
	case fsat.Socket: // nobody listens on it, as on one left over
		if err := unix.Mknodat(dst, n.name, unix.S_IFSOCK|0o600, 0); err != nil {
			return fail(err)
		}
	}
	fd, err := fsat.OpenPath(dst, n.name)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	if err := setAttributes(fd, st); err != nil {
		return fail(err)
	}
	copied, err := fsat.Fstat(fd)
	if err != nil {
		return fail(err)
	}
	return copied, nil
}
