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
func userDocument(path string) (*document, []string, error) {
	if path == "" {
		return nil, nil, nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil, nil
	}
	name := short(path)
	text, err := content(fd, name, err)
	if err != nil {
		return nil, nil, err
	}
	return parseTOML(name, text, true)
}

// workspaceFile reads the workspace's policy from the directory on the host.
// A symlink is refused: what it leads to is not what is in the workspace.
func workspaceFile(dir int) (*workspaceDocument, []string, error) {
	text, err := ReadWorkspace(dir)
	if text == nil || err != nil {
		return nil, nil, err
	}
	return parseWorkspace(text)
}

// ReadWorkspace returns the content of the workspace's policy; nil where there
// is none.
func ReadWorkspace(dir int) ([]byte, error) {
	if dir < 0 {
		return nil, nil
	}
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
