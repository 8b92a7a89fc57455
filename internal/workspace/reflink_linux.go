package workspace

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// ErrUnsupported says that files of the workspace cannot be cloned into the
// box's directory. The errors that match it wrap the kernel's errno.
var ErrUnsupported = errors.New("no reflinks from the workspace to the layer (FICLONE); use --strategy overlay or copy, or keep both on one btrfs or xfs")

func unsupported(err error) error { return fmt.Errorf("%w: %w", ErrUnsupported, err) }

// cannotClone reports whether FICLONE refused for good, so that copying is
// what is left. A full disk, say, is something else.
func cannotClone(err error) bool {
	switch {
	case errors.Is(err, unix.EXDEV), // another file system
		errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS), // one without clones
		errors.Is(err, unix.EINVAL),  // btrfs: one of them nodatacow
		errors.Is(err, unix.ETXTBSY), // a swap file
		errors.Is(err, unix.EPERM):
		return true
	}
	return false
}

// probeReflink clones one small file, before anything is walked. Best is one
// from the workspace to the box; it has no name in either. Where the workspace
// takes no such file, a clone within the box shows that its file system can,
// and the first file of the walk shows the rest: proven is then false.
func probeReflink(ws, box int) (proven bool, err error) {
	dst, err := unnamedFile(box)
	if err != nil {
		return false, fmt.Errorf("probe for reflinks: %w", err)
	}
	defer unix.Close(dst)
	src, err := unnamedFile(ws)
	proven = err == nil
	if !proven {
		if src, err = unnamedFile(box); err != nil {
			return false, fmt.Errorf("probe for reflinks: %w", err)
		}
	}
	defer unix.Close(src)
	if _, err := unix.Write(src, []byte("x")); err != nil {
		return false, fmt.Errorf("probe for reflinks: %w", err)
	}
	if err := fsat.Reflink(dst, src); err != nil {
		return false, unsupported(err)
	}
	return proven, nil
}

func unnamedFile(dirfd int) (int, error) {
	return unix.Openat(dirfd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
}
