package workspace

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// makeOverlay makes the two empty directories that overlayfs needs. The
// workspace is not read: the cost does not depend on its size.
func makeOverlay(req Request) (_ *Branch, err error) {
	upper, work := cmp.Or(req.Layer, "upper"), cmp.Or(req.Work, "work")
	ws := req.Workspace
	fail := func(err error) (*Branch, error) {
		return nil, fmt.Errorf("make an overlay branch of %q in %q: %w", ws.Path, req.BoxPath, err)
	}
	st, err := fsat.Fstat(ws.FD)
	if err != nil {
		return fail(err)
	}
	fd, err := fsat.Mkdir(req.BoxFD, upper, 0o700)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	defer func() {
		if err != nil {
			fsat.RemoveAll(req.BoxFD, upper)
		}
	}()
	workFD, err := fsat.Mkdir(req.BoxFD, work, 0o700)
	if err != nil {
		return fail(err)
	}
	unix.Close(workFD)
	// The root of an overlay shows its upper's attributes.
	if err = whiteOut(fd, ws.FD, req.Hidden); err == nil {
		err = copyXattrs(fd, ws.FD)
	}
	if err == nil && req.UserAttrs {
		err = keepsUserAttrs(fd)
	}
	if err == nil {
		err = setAttributes(fd, st)
	}
	if err != nil {
		fsat.RemoveAll(req.BoxFD, work)
		return fail(err)
	}
	return &Branch{Strategy: Overlay, Form: changeset.Overlay, Layer: upper, Work: work, FilesCloned: -1}, nil
}

// ErrNoUserAttrs says that an ordinary user's overlay cannot note in a layer
// there that a directory hides another: making one where the workspace's was
// removed would fail with EIO.
var ErrNoUserAttrs = errors.New("the layer's file system keeps no extended attributes of users (a tmpfs before Linux 6.6 does not): use --strategy copy, or --layer-dir on another")

func keepsUserAttrs(fd int) error {
	const probe = "user.overlay.hutch"
	err := unix.Fsetxattr(fd, probe, []byte("y"), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoUserAttrs
	}
	if err == nil {
		err = unix.Fremovexattr(fd, probe)
	}
	return err
}

// whiteOut makes paths of the workspace absent before anybody looks: overlayfs
// shows nothing at a whiteout, and the directories above are as they were.
func whiteOut(layer, ws int, paths []string) error {
	var dirs []string
	for _, path := range paths {
		parent, name := fsat.Split(path)
		if err := makeDirs(layer, parent, &dirs); err != nil {
			return err
		}
		fd, err := fsat.OpenDir(layer, parent)
		if err != nil {
			return err
		}
		err = unix.Mknodat(fd, name, unix.S_IFCHR, 0)
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("hide %q: %w", path, err)
		}
	}
	// Attributes last, and of what is deepest first: a mode can forbid to put
	// anything in.
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := likeWorkspace(layer, ws, dirs[i]); err != nil {
			return err
		}
	}
	return nil
}

func makeDirs(layer int, path string, made *[]string) error {
	if path == "." {
		return nil
	}
	parent, name := fsat.Split(path)
	if err := makeDirs(layer, parent, made); err != nil {
		return err
	}
	fd, err := fsat.OpenDir(layer, parent)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Mkdirat(fd, name, 0o700)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	*made = append(*made, path)
	return err
}

func likeWorkspace(layer, ws int, path string) error {
	src, err := fsat.OpenDir(ws, path)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	st, err := fsat.Fstat(src)
	if err != nil {
		return err
	}
	dst, err := fsat.OpenDir(layer, path)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := copyXattrs(dst, src); err != nil {
		return err
	}
	return setAttributes(dst, st)
}

// setAttributes gives an open file the owner (as root), mode and times in st,
// in the order that the kernel asks for. An O_PATH descriptor will do.
func setAttributes(fd int, st fsat.Stat) error {
	mode, err := chown(fd, st)
	if err != nil {
		return err
	}
	if st.Type != fsat.Symlink { // has no mode
		// After the owner: chown(2) clears setuid and setgid.
		if err := fsat.Chmod(fd, mode); err != nil {
			return err
		}
	}
	return fsat.SetTimesFD(fd, st.Atime, st.Mtime)
}

// copyXattrs copies what users may set on files. Overlayfs's own are left out:
// in a layer they would be orders to the kernel.
func copyXattrs(dst, src int) error {
	names, err := fsat.Xattrs(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		value, ok, err := fsat.Xattr(src, name)
		if err != nil {
			return err
		}
		if !ok {
			continue // removed meanwhile
		}
		if err := fsat.SetXattr(dst, name, value); err != nil {
			return err
		}
	}
	return nil
}

var euid, egid = uint32(os.Geteuid()), uint32(os.Getegid())

// chown gives an open file the owner in st when hutch runs as root, and
// returns the mode that is right for the owner it has now: what is setuid must
// not become setuid to someone else.
func chown(fd int, st fsat.Stat) (mode uint32, err error) {
	if euid == st.UID && egid == st.GID {
		return st.Mode, nil
	}
	if euid == 0 {
		err := unix.Fchownat(fd, "", int(st.UID), int(st.GID), unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH)
		switch err {
		case nil:
			return st.Mode, nil
		case unix.EPERM, unix.EINVAL:
			// Root of a user namespace in which that id has no number.
		default:
			return 0, fmt.Errorf("chown to %d:%d: %w", st.UID, st.GID, err)
		}
	}
	mode = st.Mode
	if st.Type != fsat.Directory {
		if euid != st.UID {
			mode &^= unix.S_ISUID
		}
		if egid != st.GID {
			mode &^= unix.S_ISGID
		}
	}
	return mode, nil
}
