package fsat

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const resolveBeneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// pathMax is the kernel's limit for one path string, with the final NUL
// (limits.h PATH_MAX); longer relative paths are walked in pieces.
const pathMax = 4096

func pathError(op, rel string, err error) error {
	return &fs.PathError{Op: op, Path: rel, Err: err}
}

// Open opens rel beneath dirfd, following no symlink in any component, with
// O_CLOEXEC added to flags. Paths longer than PATH_MAX are walked in pieces.
func Open(dirfd int, rel string, flags int, mode uint32) (int, error) {
	if err := Check(rel); err != nil {
		return -1, pathError("open", rel, err)
	}
	base, rest := dirfd, rel
	for len(rest) >= pathMax {
		cut := strings.LastIndexByte(rest[:pathMax-1], '/')
		if cut < 0 {
			return -1, pathError("open", rel, unix.ENAMETOOLONG)
		}
		next, err := openat2(base, rest[:cut], unix.O_PATH|unix.O_DIRECTORY, 0)
		if base != dirfd {
			unix.Close(base)
		}
		if err != nil {
			return -1, pathError("open", rel, err)
		}
		base, rest = next, rest[cut+1:]
	}
	fd, err := openat2(base, rest, flags, mode)
	if base != dirfd {
		unix.Close(base)
	}
	if err != nil {
		return -1, pathError("open", rel, err)
	}
	return fd, nil
}

func openat2(dirfd int, rel string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: resolveBeneath,
	}
	if flags&(unix.O_CREAT|unix.O_TMPFILE) != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := unix.Openat2(dirfd, rel, &how)
		// EAGAIN: a rename raced the walk and the kernel could not prove
		// that it stayed beneath (openat2(2)).
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if errors.Is(err, unix.EACCES) {
			if found, err := look.open(dirfd, rel, flags); err == nil || !errors.Is(err, unix.EACCES) {
				return found, err
			}
		}
		return fd, err
	}
}

// OpenDir opens a directory beneath dirfd for reading its entries.
func OpenDir(dirfd int, rel string) (int, error) {
	return Open(dirfd, rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// OpenPath opens anything beneath dirfd, a symlink itself included, as an
// O_PATH descriptor: no permission on the file is needed.
func OpenPath(dirfd int, rel string) (int, error) {
	return Open(dirfd, rel, unix.O_PATH|unix.O_NOFOLLOW, 0)
}

// OpenParent opens the directory that holds rel and returns it with the last
// component. The caller closes the descriptor.
func OpenParent(dirfd int, rel string) (fd int, name string, err error) {
	parent, name := Split(rel)
	fd, err = Open(dirfd, parent, unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, name, err
}

// Lstat describes rel beneath dirfd without following it.
func Lstat(dirfd int, rel string) (Stat, error) {
	if rel == "." {
		return Fstat(dirfd)
	}
	if strings.IndexByte(rel, '/') < 0 {
		return LstatName(dirfd, rel)
	}
	parent, name, err := OpenParent(dirfd, rel)
	if err != nil {
		return Stat{}, err
	}
	defer unix.Close(parent)
	st, err := LstatName(parent, name)
	if err != nil {
		err = pathError("lstat", rel, errors.Unwrap(err))
	}
	return st, err
}

// LstatName describes one entry, name, of the directory dirfd.
func LstatName(dirfd int, name string) (Stat, error) {
	if err := Check(name); err != nil || strings.IndexByte(name, '/') >= 0 {
		return Stat{}, pathError("lstat", name, ErrEscape)
	}
	st, err := statx(dirfd, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if errors.Is(err, unix.EACCES) {
		var fd int
		if fd, err = look.open(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW); err == nil {
			defer unix.Close(fd)
			st, err = statx(fd, "", unix.AT_EMPTY_PATH)
		}
	}
	if err != nil {
		return Stat{}, pathError("lstat", name, err)
	}
	return st, nil
}

// Fstat describes an open descriptor, an O_PATH one included.
func Fstat(fd int) (Stat, error) {
	st, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return Stat{}, pathError("fstat", fmt.Sprintf("fd %d", fd), err)
	}
	return st, nil
}

func statx(dirfd int, name string, flags int) (Stat, error) {
	var x unix.Statx_t
	for {
		err := unix.Statx(dirfd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &x)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Stat{}, err
		}
		break
	}
	st := Stat{
		Type:  typeOfMode(uint32(x.Mode)),
		Mode:  uint32(x.Mode) & 0o7777,
		UID:   x.Uid,
		GID:   x.Gid,
		Size:  int64(x.Size),
		Nlink: uint64(x.Nlink),
		Ino:   x.Ino,
		Dev:   unix.Mkdev(x.Dev_major, x.Dev_minor),
		Rdev:  unix.Mkdev(x.Rdev_major, x.Rdev_minor),
		Atime: Time{x.Atime.Sec, int64(x.Atime.Nsec)},
		Mtime: Time{x.Mtime.Sec, int64(x.Mtime.Nsec)},
		Ctime: Time{x.Ctime.Sec, int64(x.Ctime.Nsec)},
	}
	if x.Mask&unix.STATX_MNT_ID != 0 {
		st.MntID = x.Mnt_id
	}
	return st, nil
}

func typeOfMode(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return Regular
	case unix.S_IFDIR:
		return Directory
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return FIFO
	case unix.S_IFSOCK:
		return Socket
	case unix.S_IFCHR:
		return CharDevice
	case unix.S_IFBLK:
		return BlockDevice
	}
	return Unknown
}

func typeOfDirent(t uint8) Type {
	return typeOfMode(uint32(t) << 12)
}

// ReadDir returns the entries of the open directory fd, sorted by name as
// bytes, without "." and "..". It reads from the start each time.
func ReadDir(fd int) ([]Dirent, error) { return ReadDirMost(fd, math.MaxInt) }

// ReadDirMost is ReadDir of a directory that may be too large: once it has found
// more entries than most it reads no further, and returns those.
func ReadDirMost(fd, most int) ([]Dirent, error) {
	if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
		return nil, pathError("readdir", fmt.Sprintf("fd %d", fd), err)
	}
	var entries []Dirent
	var few [1 << 10]byte // most directories are small, and need no allocation
	buf := few[:]
	for len(entries) <= most {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EINVAL) && len(buf) == len(few) { // one name may be longer
			buf = make([]byte, 32<<10)
			continue
		}
		if err != nil {
			return nil, pathError("readdir", fmt.Sprintf("fd %d", fd), err)
		}
		if n == 0 {
			break
		}
		// linux_dirent64: u64 ino, s64 off, u16 reclen, u8 type, name.
		for rest := buf[:n]; len(rest) >= 19; {
			reclen := int(binary.NativeEndian.Uint16(rest[16:]))
			name := rest[19:reclen]
			if end := slices.Index(name, 0); end >= 0 {
				name = name[:end]
			}
			if s := string(name); s != "." && s != ".." {
				entries = append(entries, Dirent{Name: s, Type: typeOfDirent(rest[18]), Ino: binary.NativeEndian.Uint64(rest)})
			}
			rest = rest[reclen:]
		}
		if len(buf) == len(few) && n > len(few)/2 {
			buf = make([]byte, 32<<10)
		}
	}
	slices.SortFunc(entries, func(a, b Dirent) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// Readlink returns the target text of the symlink rel beneath dirfd.
func Readlink(dirfd int, rel string) (string, error) {
	link, err := OpenPath(dirfd, rel)
	if err != nil {
		return "", err
	}
	defer unix.Close(link)
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(link, "", buf)
		if errors.Is(err, unix.ENOENT) {
			err = unix.EINVAL // not a symlink, as readlink(2) of a path has it
		}
		if err != nil {
			return "", pathError("readlink", rel, err)
		}
		if n < size {
			return string(buf[:n]), nil
		}
	}
}

// procPath names an open descriptor for the calls that have no *at form and
// refuse an O_PATH descriptor (EBADF). The magic link leads to the very file
// that is open, a symlink itself included, whatever its name is now.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Xattrs returns the names of the extended attributes of the open file fd; an
// O_PATH descriptor, of a symlink too, will do. A file system without them has
// none.
func Xattrs(fd int) ([]string, error) {
	var buf []byte
	for {
		n, err := unix.Flistxattr(fd, buf)
		if errors.Is(err, unix.EBADF) {
			n, err = unix.Listxattr(procPath(fd), buf)
		}
		switch {
		case errors.Is(err, unix.ENOTSUP), err == nil && n == 0:
			return nil, nil
		case errors.Is(err, unix.ERANGE):
			buf = nil // grew meanwhile: ask again
		case err != nil:
			return nil, pathError("listxattr", procPath(fd), err)
		case buf == nil:
			buf = make([]byte, n)
		default:
			names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
			slices.Sort(names)
			return names, nil
		}
	}
}

// Xattr returns one extended attribute of the open file fd, and false when the
// file does not have it. An O_PATH descriptor will do.
func Xattr(fd int, name string) (value []byte, ok bool, err error) {
	buf := make([]byte, 256)
	for {
		n, err := getxattr(fd, name, buf)
		switch {
		case errors.Is(err, unix.ERANGE):
			// A buffer of size 0 asks for the size. The value may grow
			// before the next call, which then asks again.
			if n, err = getxattr(fd, name, nil); err == nil {
				buf = make([]byte, n+256)
				continue
			}
		case err == nil:
			return buf[:n], true, nil
		}
		if errors.Is(err, unix.EACCES) {
			if value, err = look.xattr(fd, name); err == nil {
				return value, true, nil
			}
		}
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			return nil, false, nil
		}
		return nil, false, pathError("getxattr "+name, procPath(fd), err)
	}
}

func getxattr(fd int, name string, buf []byte) (int, error) {
	n, err := unix.Fgetxattr(fd, name, buf)
	if errors.Is(err, unix.EBADF) {
		n, err = unix.Getxattr(procPath(fd), name, buf)
	}
	return n, err
}

// SetXattr sets one extended attribute of the open file fd, an O_PATH one
// included.
func SetXattr(fd int, name string, value []byte) error {
	err := unix.Fsetxattr(fd, name, value, 0)
	if errors.Is(err, unix.EBADF) {
		err = unix.Setxattr(procPath(fd), name, value, 0)
	}
	if err != nil {
		return pathError("setxattr "+name, procPath(fd), err)
	}
	return nil
}

// RemoveXattr removes one extended attribute of the open file fd; one that is
// not there is no error.
func RemoveXattr(fd int, name string) error {
	err := unix.Fremovexattr(fd, name)
	if errors.Is(err, unix.EBADF) {
		err = unix.Removexattr(procPath(fd), name)
	}
	if err != nil && !errors.Is(err, unix.ENODATA) {
		return pathError("removexattr "+name, procPath(fd), err)
	}
	return nil
}

// Chmod sets the permission bits of the open file fd, an O_PATH one included.
// Symlinks have none and are refused by the kernel.
func Chmod(fd int, mode uint32) error {
	err := unix.Fchmod(fd, mode)
	if errors.Is(err, unix.EBADF) {
		err = unix.Chmod(procPath(fd), mode)
	}
	if err != nil {
		return pathError("chmod", procPath(fd), err)
	}
	return nil
}

// SetTimes sets access and modification time of one entry of the directory
// dirfd, without following it.
func SetTimes(dirfd int, name string, atime, mtime Time) error {
	ts := []unix.Timespec{{Sec: atime.Sec, Nsec: atime.Nsec}, {Sec: mtime.Sec, Nsec: mtime.Nsec}}
	err := unix.UtimesNanoAt(dirfd, name, ts, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EACCES) { // times are the owner's to set, but dirfd may be closed to him
		var fd int
		if fd, err = look.open(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW); err == nil {
			defer unix.Close(fd)
			return SetTimesFD(fd, atime, mtime)
		}
	}
	if err != nil {
		return pathError("utimensat", name, err)
	}
	return nil
}

// SetTimesFD sets access and modification time of the open file fd, an O_PATH
// one included.
func SetTimesFD(fd int, atime, mtime Time) error {
	ts := []unix.Timespec{{Sec: atime.Sec, Nsec: atime.Nsec}, {Sec: mtime.Sec, Nsec: mtime.Nsec}}
	if err := unix.UtimesNanoAt(fd, "", ts, unix.AT_EMPTY_PATH); err != nil {
		return pathError("utimensat", procPath(fd), err)
	}
	return nil
}

// Mkdir makes the directory name in dirfd with exactly that mode, whatever the
// umask says, and opens it for reading its entries.
func Mkdir(dirfd int, name string, mode uint32) (int, error) {
	if err := Check(name); err != nil || name == "." || strings.IndexByte(name, '/') >= 0 {
		return -1, pathError("mkdir", name, ErrEscape)
	}
	if err := unix.Mkdirat(dirfd, name, 0o700); err != nil {
		return -1, pathError("mkdir", name, err)
	}
	fd, err := OpenDir(dirfd, name)
	if err != nil {
		return -1, err
	}
	if err := Chmod(fd, mode); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Rename renames between two open directories with renameat2(2) flags.
func Rename(fromDir int, from string, toDir int, to string, flags uint) error {
	if err := unix.Renameat2(fromDir, from, toDir, to, flags); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// Fsync flushes the open file or directory fd to the disk.
func Fsync(fd int) error {
	for {
		err := unix.Fsync(fd)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return pathError("fsync", procPath(fd), err)
		}
		return nil
	}
}

// Syncfs flushes the whole file system that holds the open file fd.
func Syncfs(fd int) error {
	for {
		err := unix.Syncfs(fd)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return pathError("syncfs", procPath(fd), err)
		}
		return nil
	}
}

// Reflink makes dst share the blocks of src (ioctl_ficlone(2)).
func Reflink(dst, src int) error {
	for {
		err := unix.IoctlFileClone(dst, src)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// CopyData copies the content of the open regular file src, of size bytes,
// into the empty file dst, leaving the holes of src as holes.
func CopyData(dst, src int, size int64) error {
	return CopyDataContext(context.Background(), dst, src, size)
}

// CopyDataContext is CopyData, given up soon after ctx ends.
func CopyDataContext(ctx context.Context, dst, src int, size int64) error {
	if err := unix.Ftruncate(dst, size); err != nil {
		return pathError("ftruncate", procPath(dst), err)
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(src, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			data = at // no SEEK_DATA here: all is data
		}
		hole, err := unix.Seek(src, data, unix.SEEK_HOLE)
		if err != nil || hole > size {
			hole = size
		}
		if err := copyRange(ctx, dst, src, data, hole); err != nil {
			return err
		}
		at = hole
	}
	return nil
}

// copyPiece is how much is copied between two looks at the context.
const copyPiece = 64 << 20

func copyRange(ctx context.Context, dst, src int, from, to int64) error {
	for from < to {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		in, out := from, from
		n, err := unix.CopyFileRange(src, &in, dst, &out, int(min(to-from, copyPiece)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			// EXDEV before 5.19, EINVAL or EOPNOTSUPP between some file
			// systems, and 0 on some that cannot do it (or the source
			// shrank): read and write instead.
			return copyReadWrite(ctx, dst, src, from, to)
		}
		from += int64(n)
	}
	return nil
}

func copyReadWrite(ctx context.Context, dst, src int, from, to int64) error {
	buf := make([]byte, min(to-from, 1<<20))
	for from < to {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := unix.Pread(src, buf[:min(to-from, int64(len(buf)))], from)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return pathError("read", procPath(src), err)
		}
		if n == 0 {
			return nil
		}
		for done := 0; done < n; {
			w, err := unix.Pwrite(dst, buf[done:n], from+int64(done))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return pathError("write", procPath(dst), err)
			}
			done += w
		}
		from += int64(n)
	}
	return nil
}
