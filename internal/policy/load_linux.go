package policy

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// userDocument reads the user's configuration. It may be a symlink: it is his.
// One that lies in the workspace is not his alone.
func userDocument(path, workspace string) (*document, []string, error) {
	if path == "" {
		return nil, nil, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil, nil
	}
	name := short(path)
	if err == nil && workspace != "" {
		if real, rerr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); rerr != nil || fsat.Within(real, workspace) {
			unix.Close(fd)
			return nil, nil, fmt.Errorf("%s: lies in the workspace, where a command's change can reach it; keep it elsewhere and name that directory's parent in XDG_CONFIG_HOME", name)
		}
	}
	text, err := content(fd, name, err)
	if err != nil {
		return nil, nil, err
	}
	return parseTOML(name, text, true)
}

// ReadWorkspace returns the content of the workspace's policy from its directory
// on the host; nil where there is none. A symlink is refused: what it leads to is
// not what is in the workspace.
func ReadWorkspace(dir int) ([]byte, error) {
	fd, err := fsat.Open(dir, WorkspaceFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return content(fd, WorkspaceFile, err)
}

func content(fd int, name string, err error) ([]byte, error) {
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, fmt.Errorf("%s: is a symlink; put a file in its place", name)
		}
		return nil, fmt.Errorf("%s: cannot be read: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: cannot be read: %w", name, err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s: is not a file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be read: %w", name, err)
	}
	if len(text) > maxDocument {
		return nil, fmt.Errorf("%s: larger than 1 MiB", name)
	}
	if text == nil {
		text = []byte{}
	}
	return text, nil
}

// hostMemory returns the bytes of RAM of the host.
func hostMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, err
	}
	return int64(info.Totalram) * int64(info.Unit), nil
}
