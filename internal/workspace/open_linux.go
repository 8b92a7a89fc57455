package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Open opens path as a workspace. Directories whose loss would cost more than
// a project ("/", a home, what holds hutch's own state) are refused unless
// force is set.
func Open(path string, force bool) (*Workspace, error) {
	if err := fsat.CheckArgument(path, fsat.Any); err != nil {
		return nil, fmt.Errorf("workspace: %w; name a directory", err)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("workspace %q: %w; change to a directory that exists", path, err)
	}
	resolved, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, openError(abs, err)
	}
	return openAt(resolved, force)
}

// Reopen opens the workspace of a box that was made earlier, whose path had no
// link on its way then. One that has is another directory: nothing of the box may
// come there, and root's least of all, at a user's bidding.
func Reopen(path string) (*Workspace, error) {
	ws, err := openAt(path, true)
	if err != nil {
		if real, lerr := filepath.EvalSymlinks(path); lerr == nil && real != path {
			return nil, fmt.Errorf("workspace %q is reached by a symbolic link now, and was not when the box was made; put the directory back in its place", path)
		}
	}
	return ws, err
}

func openAt(resolved string, force bool) (*Workspace, error) {
	// A component that became a symlink since EvalSymlinks must not lead the
	// descriptor elsewhere than Path says: Path is what the jail mounts.
	fd, err := unix.Openat2(unix.AT_FDCWD, resolved, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, openError(resolved, err)
	}
	ws, err := check(fd, resolved, force)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return ws, nil
}

func check(fd int, path string, force bool) (*Workspace, error) {
	st, err := fsat.Fstat(fd)
	if err != nil {
		return nil, fmt.Errorf("workspace %q: %w", path, err)
	}
	// A directory opens with read permission alone; nothing in it can then
	// be reached.
	if err := unix.Faccessat(fd, ".", unix.X_OK, 0); err != nil {
		return nil, openError(path, err)
	}
	if path == "/dev" || ofTheKernel(fd) {
		return nil, fmt.Errorf("workspace %q belongs to the kernel, and no box can have a branch of it; change to a project directory", path)
	}
	if !force {
		if what := precious(path, st.UID); what != "" {
			return nil, fmt.Errorf("workspace %q is %s; change to a project directory, or pass --force to use it all the same", path, what)
		}
	}
	return &Workspace{Path: path, FD: fd, Stat: st}, nil
}

// ofTheKernel reports whether a directory lies on a file system that holds no
// files but doors to the kernel, such as /proc: a branch of that would show in a
// box what is masked there.
func ofTheKernel(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false // what follows will say why
	}
	switch uint32(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.BPF_FS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.BINFMTFS_MAGIC, unix.EFIVARFS_MAGIC, unix.NSFS_MAGIC, unix.PSTOREFS_MAGIC, unix.SELINUX_MAGIC:
		return true
	}
	return false
}

// Missing is the error of a workspace that is not there.
type Missing struct{ Path string }

func (m *Missing) Error() string {
	return fmt.Sprintf("workspace %q does not exist; create it or name another with --workspace", m.Path)
}

func openError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Missing{path}
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("workspace %q is not a directory; name the directory that holds it", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("workspace %q cannot be read and searched by uid %d; change its mode (chmod u+rx) or run hutch as its owner", path, os.Geteuid())
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("workspace %q: a symlink in it leads in a circle, or was changed just now; name the real directory", path)
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("workspace %q cannot be opened: %w", path, err)
}

// precious says what a resolved path is that should not be a workspace by
// accident, or "".
func precious(path string, owner uint32) string {
	if path == "/" {
		return "the root of the file system"
	}
	for _, home := range homes(owner) {
		switch {
		case path == home:
			return "a home directory"
		case fsat.Within(home, path):
			return fmt.Sprintf("above home directory %q", home)
		}
	}
	if state, err := StateDir(); err == nil {
		if state = resolve(state); fsat.Within(state, path) {
			return fmt.Sprintf("where hutch keeps its own state (%q)", state)
		}
	}
	return ""
}

// homes returns the user's home directories, and that of the workspace's owner,
// as whom root's command runs: $HOME can be set to anything, so the one in the
// password file counts too.
func homes(owner uint32) []string {
	var found []string
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		found = append(found, resolve(home))
	}
	for _, uid := range []int{os.Getuid(), int(owner)} {
		u, err := user.LookupId(strconv.Itoa(uid))
		if err != nil || !filepath.IsAbs(u.HomeDir) || filepath.Clean(u.HomeDir) == "/" {
			continue
		}
		found = append(found, resolve(u.HomeDir))
	}
	return found
}

// resolve resolves the symlinks of as much of path as exists.
func resolve(path string) string {
	path = filepath.Clean(path)
	rest := ""
	for dir := path; ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, rest)
		}
		if dir == filepath.Dir(dir) {
			return path
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// Close releases the workspace's descriptor.
func (ws *Workspace) Close() error {
	ws.dropIndex()
	fd := ws.FD
	ws.FD = -1
	return unix.Close(fd)
}
