package workspace

import (
	"errors"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// CopyLayer copies the upper directory of an overlay that is no longer used,
// whiteouts and overlay's own marks included, into the empty directory to.
func CopyLayer(to, from int) error {
	type pair struct{ to, from string }
	if err := copyMarks(to, ".", from, "."); err != nil {
		return err
	}
	for queue := []pair{{".", "."}}; len(queue) > 0; queue = queue[1:] {
		dir := queue[0]
		fd, err := fsat.OpenDir(from, dir.from)
		if err != nil {
			return err
		}
		entries, err := fsat.ReadDir(fd)
		unix.Close(fd)
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := fsat.Join(dir.from, e.Name)
			if err := copyNode(to, from, path); err != nil {
				return err
			}
			if e.Type == fsat.Directory {
				queue = append(queue, pair{path, path})
			}
		}
	}
	return nil
}

func copyNode(to, from int, path string) error {
	st, err := fsat.Lstat(from, path)
	if err != nil {
		return err
	}
	parent, name, err := fsat.OpenParent(to, path)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	switch st.Type {
	case fsat.Directory:
		err = unix.Mkdirat(parent, name, 0o700)
	case fsat.Symlink:
		var target string
		if target, err = fsat.Readlink(from, path); err == nil {
			err = unix.Symlinkat(target, parent, name)
		}
	case fsat.Regular:
		err = copyFile(parent, name, from, path, st.Size)
	default:
		// A whiteout is a device 0:0, which anyone may make (mknod(2)).
		kind := map[fsat.Type]uint32{fsat.CharDevice: unix.S_IFCHR, fsat.BlockDevice: unix.S_IFBLK, fsat.FIFO: unix.S_IFIFO, fsat.Socket: unix.S_IFSOCK}[st.Type]
		err = unix.Mknodat(parent, name, kind|0o600, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	if unix.Geteuid() == 0 {
		if err := unix.Fchownat(parent, name, int(st.UID), int(st.GID), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if st.Type != fsat.CharDevice {
		if err := copyMarks(to, path, from, path); err != nil {
			return err
		}
	}
	return fsat.SetTimes(parent, name, st.Atime, st.Mtime)
}

func copyFile(parent int, name string, from int, path string, size int64) error {
	in, err := fsat.Open(from, path, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.EACCES) {
		p, perr := fsat.OpenPath(from, path)
		if perr != nil {
			return err
		}
		defer unix.Close(p)
		// The layer is ours and its box is gone; the copy gets the mode.
		st, serr := fsat.Fstat(p)
		if serr != nil {
			return serr
		}
		if err := fsat.Chmod(p, st.Mode|0o400); err != nil {
			return err
		}
		defer func() { _ = fsat.Chmod(p, st.Mode) }()
		in, err = fsat.Open(from, path, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	}
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := fsat.Open(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	return fsat.CopyData(out, in, size)
}

// copyMarks copies extended attributes and the mode.
func copyMarks(to int, toPath string, from int, fromPath string) error {
	in, err := fsat.OpenPath(from, fromPath)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := fsat.OpenPath(to, toPath)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	names, err := fsat.Xattrs(in)
	if err != nil {
		return err
	}
	for _, name := range names {
		value, ok, err := fsat.Xattr(in, name)
		if err != nil {
			return err
		}
		if ok {
			if err := fsat.SetXattr(out, name, value); err != nil {
				return err
			}
		}
	}
	st, err := fsat.Fstat(in)
	if err != nil || st.Type == fsat.Symlink {
		return err
	}
	return fsat.Chmod(out, st.Mode)
}
