package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/fsat"
	"hutch/internal/view"
)

// The files of a box are reached through its root, as the box sees it, and with
// the rights of its user: whatever links it makes, and changes while we look, lead
// nowhere but into the box, and to nothing that it could not open itself. The
// kernel's own files, and what is no regular file, are not read or written: the
// one would tell of the host, and the other could make us wait for ever.

// openInRoot opens a path of a box with no way out of it. What is no regular file
// does not block.
func openInRoot(root int, name string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_PATH == 0 {
		how.Flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	for again := 0; ; {
		fd, err := unix.Openat2(root, name, &how)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN) && again < mostAgain:
			// Something was renamed while the kernel made sure that the way stays
			// below the root. A box can do that all the time.
			again++
		default:
			return fd, err
		}
	}
}

// mostAgain is how often a way is tried that renames get into.
const mostAgain = 1000

// files are those of one box.
type files struct {
	box  string
	at   string // the workspace's path in the box
	root int
	user *view.User // whose rights over files count; nil: this process's are the same
}

// rightly does something with the rights that the box's user has over files. Root
// has more: a link that the box made must not lead it to what is closed to the box
// itself.
func (f *files) rightly(do func() error) error {
	if f.user == nil {
		return do()
	}
	done := make(chan error)
	go func() {
		// Never unlocked: the thread is gone with the goroutine, whatever rights it
		// has by then.
		runtime.LockOSThread()
		err := become(f.user)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// become gives this thread the rights over files of a user.
func become(u *view.User) error {
	groups := []int{int(u.GID)}
	for _, g := range u.Groups {
		groups = append(groups, int(g))
	}
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("take the groups of the box's user: %w", err)
	}
	// They return what was, and no error.
	_, _ = unix.SetfsgidRetGid(int(u.GID))
	_, _ = unix.SetfsuidRetUid(int(u.UID))
	gid, _ := unix.SetfsgidRetGid(-1)
	if uid, _ := unix.SetfsuidRetUid(-1); uid != int(u.UID) || gid != int(u.GID) {
		return errors.New("the kernel does not let hutchd act as the box's user")
	}
	return nil
}

// within gives access to the files of a box, and starts its jail where it has
// none.
func (b *Boxes) within(name string, do func(f files) error) error {
	h, err := b.hold(name)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	j, err := b.awake(context.Background(), h)
	if err != nil {
		return err
	}
	f := files{box: h.id, at: j.at, root: -1}
	// Its own: the box may end while a large file is on its way.
	if f.root, err = unix.FcntlInt(uintptr(j.root), unix.F_DUPFD_CLOEXEC, 0); err == nil && j.owner() != nil {
		user := j.user
		f.user = &user
	}
	h.mu.RUnlock()
	if err != nil {
		return err
	}
	defer unix.Close(f.root)
	return do(f)
}

// name is a path in the box, clean; one that is not absolute begins in the
// workspace.
func (f *files) name(given string) (string, error) {
	if given == "" || strings.IndexByte(given, 0) >= 0 {
		return "", &api.Error{Code: api.Invalid, Text: fmt.Sprintf("%q is no path in a box", given)}
	}
	if !path.IsAbs(given) {
		given = path.Join(f.at, given)
	}
	return path.Clean(given), nil
}

// explain says of an error what it is about, with a code.
func (f *files) explain(name string, err error) error {
	code := api.Internal
	var known *api.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		code = api.NotFound
	case errors.Is(err, unix.EEXIST):
		code = api.Exists
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		code = api.Refused
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ENOTEMPTY),
		errors.Is(err, unix.EBUSY), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ETXTBSY):
		code = api.Invalid
	case errors.Is(err, unix.EAGAIN):
		code, err = api.InUse, errors.New("the way there is being renamed all the time; try again")
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		code = api.Full
	}
	return &api.Error{Code: code, Text: fmt.Sprintf("%s in box %s: %v", name, f.box, err)}
}

// kernels are file systems that hold no files but doors to the kernel.
var kernels = []uint32{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC, mqueueMagic, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC,
	unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.NSFS_MAGIC,
}

const mqueueMagic = 0x19800202

// regular refuses what is no file of the box's own.
func (f *files) regular(name string, fd int) (fsat.Stat, error) {
	st, err := fsat.Fstat(fd)
	if err != nil {
		return st, err
	}
	refuse := func(what string) (fsat.Stat, error) {
		return st, &api.Error{Code: api.Invalid, Text: fmt.Sprintf("%s in box %s is %s", name, f.box, what)}
	}
	switch st.Type {
	case fsat.Regular:
	case fsat.Directory:
		return refuse("a directory")
	default:
		return refuse("no regular file")
	}
	return st, f.notKernels(name, fd)
}

func (f *files) notKernels(name string, fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if slices.Contains(kernels, uint32(fs.Type)) {
		return &api.Error{Code: api.Invalid, Text: fmt.Sprintf("%s in box %s is the kernel's, and no file", name, f.box)}
	}
	return nil
}

// The years that JSON can tell; a box can give its files others.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

func (f *files) describe(name string, st fsat.Stat) api.File {
	changed := time.Unix(min(max(st.Mtime.Sec, firstTime.Unix()), lastTime.Unix()), st.Mtime.Nsec).UTC()
	file := api.File{Name: path.Base(name), Path: name, Type: "other", Size: st.Size, Mode: st.Mode & 0o7777, ModTime: changed}
	switch st.Type {
	case fsat.Regular:
		file.Type = "file"
	case fsat.Directory:
		file.Type = "directory"
	case fsat.Symlink:
		file.Type = "symlink"
	}
	return file
}

// ReadFile opens a regular file of a box. Links are followed as in the box.
func (b *Boxes) ReadFile(box, name string) (content io.ReadCloser, file *api.File, err error) {
	err = b.within(box, func(f files) error {
		name, err := f.name(name)
		if err != nil {
			return err
		}
		return f.explain(name, f.rightly(func() error {
			content, file, err = f.read(name)
			return err
		}))
	})
	return content, file, err
}

func (f *files) read(name string) (io.ReadCloser, *api.File, error) {
	// Not opened before it is known to be a file: that alone can do something to a
	// device.
	at, err := openInRoot(f.root, name, unix.O_PATH)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(at)
	if _, err := f.regular(name, at); err != nil {
		return nil, nil, err
	}
	fd, err := reopen(at, unix.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.regular(name, fd)
	if err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	file := f.describe(name, st)
	return os.NewFile(uintptr(fd), name), &file, nil
}

// reopen opens what a descriptor stands for, and nothing else.
func reopen(fd, flags int) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// WriteFile puts a regular file in a box, whole or not at all: it takes the place
// of what has the name, a link too, as the user's whom the box runs as. Its mode
// is that of the file which it replaces where mode is 0, else 0644.
func (b *Boxes) WriteFile(box, name string, mode uint32, content io.Reader) error {
	return b.within(box, func(f files) error {
		name, err := f.name(name)
		if err != nil {
			return err
		}
		return f.explain(name, f.write(name, mode, content))
	})
}

func (f *files) write(name string, mode uint32, content io.Reader) (err error) {
	var dir int
	var base string
	var file *os.File
	temp := ".hutch-write-" + newID()
	if err := f.rightly(func() (err error) {
		if dir, base, err = f.parent(name); err != nil {
			return err
		}
		switch st, serr := fsat.LstatName(dir, base); {
		case errors.Is(serr, unix.ENOENT):
		case serr != nil:
			err = serr
		case st.Type == fsat.Directory:
			err = unix.EISDIR
		case st.Type == fsat.Regular:
			mode = cmp.Or(mode, st.Mode&0o777)
		}
		var fd int
		if err == nil {
			fd, err = unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
		}
		if err != nil {
			unix.Close(dir)
			return err
		}
		file = os.NewFile(uintptr(fd), name)
		return nil
	}); err != nil {
		return err
	}
	defer unix.Close(dir)
	defer file.Close()
	_, err = io.Copy(file, content)
	return f.rightly(func() error {
		if err == nil {
			err = unix.Fchmod(int(file.Fd()), cmp.Or(mode, 0o644)&0o7777)
		}
		if err == nil {
			err = unix.Renameat(dir, temp, dir, base)
		}
		if err != nil {
			_ = unix.Unlinkat(dir, temp, 0)
		}
		return bare(err)
	})
}

// bare is an error without the path that os put around it.
func bare(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// parent opens the directory that a path lies in.
func (f *files) parent(name string) (dir int, base string, err error) {
	if name == "/" {
		return -1, "", unix.EISDIR
	}
	dir, err = openInRoot(f.root, path.Dir(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, "", err
	}
	if err = f.notKernels(name, dir); err != nil {
		unix.Close(dir)
		return -1, "", err
	}
	return dir, path.Base(name), nil
}

// How much of a directory is listed, so that a box cannot fill our memory.
const (
	mostEntries = 100_000
	mostListed  = 32 << 20 // bytes of names and of where links lead
)

// ListDir lists a directory of a box, sorted by name.
func (b *Boxes) ListDir(box, name string) (list []api.File, err error) {
	err = b.within(box, func(f files) error {
		name, err := f.name(name)
		if err != nil {
			return err
		}
		return f.explain(name, f.rightly(func() error {
			list, err = f.list(name)
			return err
		}))
	})
	return list, err
}

func (f *files) list(name string) ([]api.File, error) {
	fd, err := openInRoot(f.root, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := f.notKernels(name, fd); err != nil {
		return nil, err
	}
	entries, err := fsat.ReadDirMost(fd, mostEntries)
	if err != nil {
		return nil, err
	}
	many := &api.Error{Code: api.Invalid, Text: fmt.Sprintf("%s in box %s holds more than can be listed here; `hutch box exec %s -- ls -f` lists it", name, f.box, f.box)}
	if len(entries) > mostEntries {
		return nil, many
	}
	list := make([]api.File, 0, len(entries))
	room := mostListed
	for _, e := range entries {
		st, err := fsat.LstatName(fd, e.Name)
		if err != nil {
			continue // it is gone
		}
		file := f.describe(path.Join(name, e.Name), st)
		if st.Type == fsat.Symlink {
			buf := make([]byte, unix.PathMax)
			if n, err := unix.Readlinkat(fd, e.Name, buf); err == nil {
				file.Target = string(buf[:n])
			}
		}
		if room -= len(file.Name) + len(file.Path) + len(file.Target); room < 0 {
			return nil, many
		}
		list = append(list, file)
	}
	slices.SortFunc(list, func(a, b api.File) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Stat tells what a path of a box is; a link is not followed.
func (b *Boxes) Stat(box, name string) (file *api.File, err error) {
	err = b.within(box, func(f files) error {
		name, err := f.name(name)
		if err != nil {
			return err
		}
		return f.explain(name, f.rightly(func() error {
			file, err = f.stat(name)
			return err
		}))
	})
	return file, err
}

func (f *files) stat(name string) (*api.File, error) {
	fd, err := openInRoot(f.root, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return nil, err
	}
	file := f.describe(name, st)
	if st.Type == fsat.Symlink {
		buf := make([]byte, unix.PathMax)
		if n, err := unix.Readlinkat(fd, "", buf); err == nil {
			file.Target = string(buf[:n])
		}
	}
	return &file, nil
}

// MakeDir makes a directory in a box, and those above it that are missing. One
// that is there stays as it is.
func (b *Boxes) MakeDir(box, name string) error {
	return b.within(box, func(f files) error {
		name, err := f.name(name)
		if err != nil {
			return err
		}
		return f.explain(name, f.rightly(func() error { return f.makeDir(name) }))
	})
}

func (f *files) makeDir(name string) error {
	fd, err := openInRoot(f.root, name, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		unix.Close(fd)
		return nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := f.makeDir(path.Dir(name)); err != nil {
		return err
	}
	dir, base, err := f.parent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Mkdirat(dir, base, 0o755) // EEXIST: a link that leads nowhere
}

// RemoveFile removes a file, a link or an empty directory of a box.
func (b *Boxes) RemoveFile(box, name string) error {
	return b.within(box, func(f files) error {
		name, err := f.name(name)
		if err != nil {
			return err
		}
		return f.explain(name, f.rightly(func() error { return f.removeFile(name) }))
	})
}

func (f *files) removeFile(name string) error {
	dir, base, err := f.parent(name)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err = unix.Unlinkat(dir, base, 0); errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
	}
	return err
}
