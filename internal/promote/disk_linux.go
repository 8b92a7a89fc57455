package promote

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// fault is nil except under test: it is asked before every call that changes
// the disk, and may kill the process or return the error of the call. Every
// such call of this package is in this file.
var fault func(op string) error

func trip(op string) error {
	if fault == nil {
		return nil
	}
	if err := fault(op); err != nil {
		return &fs.PathError{Op: op, Path: "injected", Err: err}
	}
	return nil
}

func rename(fromDir int, from string, toDir int, to string, flags uint) error {
	op := "rename"
	switch flags {
	case unix.RENAME_EXCHANGE:
		op = "exchange"
	case unix.RENAME_NOREPLACE:
		op = "noreplace"
	}
	if err := trip(op); err != nil {
		return err
	}
	return fsat.Rename(fromDir, from, toDir, to, flags)
}

func link(fromDir int, from string, toDir int, to string) error {
	if err := trip("link"); err != nil {
		return err
	}
	if err := unix.Linkat(fromDir, from, toDir, to, 0); err != nil {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: err}
	}
	return nil
}

func symlink(target string, dir int, name string) error {
	if err := trip("symlink"); err != nil {
		return err
	}
	if err := unix.Symlinkat(target, dir, name); err != nil {
		return &os.LinkError{Op: "symlink", Old: target, New: name, Err: err}
	}
	return nil
}

func mkdir(dir int, name string, mode uint32) error {
	return onName("mkdir", name, func() error { return unix.Mkdirat(dir, name, mode) })
}

func unlink(dir int, name string) error {
	return onName("unlink", name, func() error { return unix.Unlinkat(dir, name, 0) })
}

func rmdir(dir int, name string) error {
	return onName("rmdir", name, func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
}

func lchown(dir int, name string, uid, gid uint32) error {
	return onName("chown", name, func() error {
		return unix.Fchownat(dir, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
	})
}

func fchown(fd int, uid, gid uint32) error {
	return onName("chown", "", func() error {
		return unix.Fchownat(fd, "", int(uid), int(gid), unix.AT_EMPTY_PATH)
	})
}

func onName(op, name string, call func() error) error {
	if err := trip(op); err != nil {
		return err
	}
	if err := call(); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func chmod(fd int, mode uint32) error {
	if err := trip("chmod"); err != nil {
		return err
	}
	return fsat.Chmod(fd, mode)
}

func setXattr(fd int, name string, value []byte) error {
	if err := trip("setxattr"); err != nil {
		return err
	}
	return fsat.SetXattr(fd, name, value)
}

func removeXattr(fd int, name string) error {
	if err := trip("removexattr"); err != nil {
		return err
	}
	return fsat.RemoveXattr(fd, name)
}

func setMtime(dir int, name string, mtime fsat.Time) error {
	if err := trip("utimens"); err != nil {
		return err
	}
	return fsat.SetTimes(dir, name, fsat.Time{Nsec: unix.UTIME_OMIT}, mtime)
}

// createFile makes a new empty file, open for reading and writing.
func createFile(dir int, name string) (int, error) {
	if err := trip("create"); err != nil {
		return -1, err
	}
	return fsat.Open(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
}

func write(fd int, data []byte) error {
	for len(data) > 0 {
		if err := trip("write"); err != nil {
			return err
		}
		n, err := unix.Write(fd, data[:min(len(data), 1<<20)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "write", Path: "journal", Err: err}
		}
		data = data[n:]
	}
	return nil
}

func reflink(dst, src int) error {
	if err := trip("reflink"); err != nil {
		return err
	}
	return fsat.Reflink(dst, src)
}

func copyData(dst, src int, size int64) error {
	if err := trip("copy"); err != nil {
		return err
	}
	return fsat.CopyData(dst, src, size)
}

func removeAll(dir int, name string) error {
	if err := trip("removeall"); err != nil {
		return err
	}
	return fsat.RemoveAll(dir, name)
}

func fsync(fd int) error {
	if err := trip("fsync"); err != nil {
		return err
	}
	return fsat.Fsync(fd)
}

func syncfs(fd int) error {
	return onName("syncfs", "", func() error { return unix.Syncfs(fd) })
}

// tree resolves paths beneath a directory. It keeps the last parent open,
// since sorted paths share theirs.
type tree struct {
	root int
	dir  string
	fd   int
}

func newTree(root int) *tree { return &tree{root: root, dir: ".", fd: root} }

// parent returns the directory that holds rel, until the next call, and the
// last component.
func (t *tree) parent(rel string) (int, string, error) {
	dir, name := fsat.Split(rel)
	if dir == t.dir {
		return t.fd, name, nil
	}
	if dir == "." {
		t.close()
		return t.root, name, nil
	}
	fd, name, err := fsat.OpenParent(t.root, rel)
	if err != nil {
		return -1, "", err
	}
	t.close()
	t.dir, t.fd = dir, fd
	return fd, name, nil
}

func (t *tree) lstat(rel string) (fsat.Stat, error) {
	if rel == "." {
		return fsat.Fstat(t.root)
	}
	dir, name, err := t.parent(rel)
	if err != nil {
		return fsat.Stat{}, err
	}
	return fsat.LstatName(dir, name)
}

func (t *tree) close() {
	if t.fd != t.root {
		unix.Close(t.fd)
	}
	t.dir, t.fd = ".", t.root
}
