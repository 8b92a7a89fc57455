package guard

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Load reads the rules of the user, from the file userFile, and of the
// workspace, from [WorkspaceFile] in the directory workspaceFD: the host's
// copy, never the one a box changed. Either may be missing.
func Load(userFile string, workspaceFD int) (*Rules, error) {
	r := &Rules{}
	if userFile != "" {
		f, err := os.Open(userFile)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		case err != nil:
			return nil, fmt.Errorf("read the guard's rules: %w", err)
		default:
			err := r.addFile(userFile, f, false)
			f.Close()
			if err != nil {
				return nil, err
			}
		}
	}
	fd, err := fsat.Open(workspaceFD, WorkspaceFile, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return r, nil
	case err != nil: // a symlink too: what it leads to is not what is in the workspace
		return nil, fmt.Errorf("read the guard's rules: %w", err)
	}
	f := os.NewFile(uintptr(fd), WorkspaceFile)
	defer f.Close()
	return r, r.addFile(WorkspaceFile, f, true)
}

func (r *Rules) addFile(name string, f *os.File, workspace bool) error {
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read the guard's rules: %w", err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("read the guard's rules: %s is no file", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxRules+1))
	if err != nil {
		return fmt.Errorf("read the guard's rules: %w", err)
	}
	return r.add(name, text, workspace)
}
