package layers

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// The prefixes of overlayfs's own attributes: of a mount by real root, and of
// one with the option userxattr.
const (
	Trusted = "trusted.overlay."
	User    = "user.overlay."
)

// maxPath bounds the paths in a layer, in bytes: a box can nest directories
// without end, and each costs a walk from the top.
const maxPath = 64 << 10

// Merge fills the empty directory dst with what overlayfs shows of a stack of
// uppers, the topmost first, in the form of one upper: their files as further
// names, their directories made anew, and whiteouts and marks of opaqueness as
// they stand towards what lies below all of them. None of the uppers may be
// written to meanwhile. prefix is Trusted or User.
func Merge(dst int, uppers []int, prefix string) error {
	m := &merger{dst: dst, src: uppers, prefix: prefix}
	return m.run()
}

// Copy fills the empty directory dst with a copy of an upper that shares no
// file with it, though blocks where the file system can. Nothing may write to
// the upper meanwhile.
func Copy(dst, upper int, prefix string) error {
	m := &merger{dst: dst, src: []int{upper}, prefix: prefix, apart: true}
	return m.run()
}

type merger struct {
	dst    int
	src    []int // the topmost first
	prefix string
	apart  bool // files are copied

	noReflink bool
	copied    map[uint64]string // of files with more names: the first copy
	made      []merged
}

// merged is a directory of the union.
type merged struct {
	path string
	in   []int // the uppers that are merged in it, the topmost first
	// opaque: nothing below the stack shows in it.
	opaque   bool
	redirect []byte // where below the stack it lies; nil: at its own path
}

func (m *merger) run() error {
	root := merged{path: "."}
	for i := range m.src {
		root.in = append(root.in, i)
	}
	for queue := []merged{root}; len(queue) > 0; {
		dir := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		m.made = append(m.made, dir)
		below, err := m.fill(dir)
		if err != nil {
			return fmt.Errorf("layer directory %.200q: %w", dir.path, err)
		}
		queue = append(queue, below...)
	}
	// Attributes last, and of what is deepest first: what is put into a
	// directory changes its times, and its mode may forbid that.
	for _, dir := range slices.Backward(m.made) {
		if err := m.dress(dir); err != nil {
			return fmt.Errorf("layer directory %.200q: %w", dir.path, err)
		}
	}
	return nil
}

// fill puts all but the content of directories into a directory of the union,
// and returns those.
func (m *merger) fill(dir merged) (below []merged, err error) {
	if len(dir.path) > maxPath {
		return nil, fmt.Errorf("paths of more than %d bytes are not supported", maxPath)
	}
	to, err := fsat.OpenDir(m.dst, dir.path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(to)
	fds := make([]int, len(dir.in))
	n := 0
	defer func() {
		for _, fd := range fds[:n] {
			unix.Close(fd)
		}
	}()
	done := map[string]bool{}
	for n < len(fds) {
		if fds[n], err = fsat.OpenDir(m.src[dir.in[n]], dir.path); err != nil {
			return nil, err
		}
		n++
	}
	for at, fd := range fds {
		entries, err := fsat.ReadDir(fd)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if done[e.Name] {
				continue
			}
			done[e.Name] = true
			st, err := fsat.LstatName(fd, e.Name)
			if err != nil {
				return nil, err
			}
			if st.Type != fsat.Directory {
				if err := m.place(to, fd, e.Name, fsat.Join(dir.path, e.Name), st); err != nil {
					return nil, fmt.Errorf("%q: %w", e.Name, err)
				}
				continue
			}
			child, err := m.stack(dir, fds, at, e.Name)
			if err == nil {
				err = unix.Mkdirat(to, e.Name, 0o700)
			}
			if err != nil {
				return nil, fmt.Errorf("%q: %w", e.Name, err)
			}
			below = append(below, child)
		}
	}
	return below, nil
}

// stack finds which uppers overlayfs merges in a directory, from the first that
// has it downwards.
func (m *merger) stack(dir merged, fds []int, first int, name string) (merged, error) {
	child := merged{path: fsat.Join(dir.path, name)}
	for at := first; at < len(fds); at++ {
		st, err := fsat.LstatName(fds[at], name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return child, err
		}
		if st.Type != fsat.Directory { // a whiteout, or a file: the end of the stack
			child.opaque = true
			return child, nil
		}
		child.in = append(child.in, dir.in[at])
		fd, err := fsat.OpenPath(fds[at], name)
		if err != nil {
			return child, err
		}
		opaque, _, err := fsat.Xattr(fd, m.prefix+"opaque")
		var redirect []byte
		if err == nil {
			redirect, _, err = fsat.Xattr(fd, m.prefix+"redirect")
		}
		unix.Close(fd)
		if err != nil {
			return child, err
		}
		if string(opaque) == "y" {
			child.opaque = true
			return child, nil
		}
		if redirect != nil {
			// Nothing makes one where another layer lies below: boxes that live
			// are mounted without redirects.
			if dir.in[at] != len(m.src)-1 {
				return child, fmt.Errorf("forged redirect to %q", redirect)
			}
			child.redirect = redirect
		}
	}
	return child, nil
}

// place puts one file that is no directory, a whiteout too, into the union.
func (m *merger) place(to, from int, name, path string, st fsat.Stat) error {
	if !m.apart {
		err := link(to, from, name)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EMLINK), errors.Is(err, unix.EPERM), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP):
		default:
			return err
		}
	}
	if st.Nlink > 1 {
		if first, ok := m.copied[st.Ino]; ok {
			return m.again(to, name, first)
		}
		if m.copied == nil {
			m.copied = map[uint64]string{}
		}
		m.copied[st.Ino] = path
	}
	return m.copy(to, from, name, st)
}

// link gives a file a second name. The magic link leads to the very file where
// the directory that it lies in is closed to its owner.
func link(to, from int, name string) error {
	err := unix.Linkat(from, name, to, name, 0)
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	fd, err := fsat.OpenPath(from, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), to, name, unix.AT_SYMLINK_FOLLOW)
}

func (m *merger) again(to int, name, first string) error {
	dir, base, err := fsat.OpenParent(m.dst, first)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return unix.Linkat(dir, base, to, name, 0)
}

func (m *merger) copy(to, from int, name string, st fsat.Stat) error {
	var err error
	switch st.Type {
	case fsat.Symlink:
		var target string
		if target, err = fsat.Readlink(from, name); err == nil {
			err = unix.Symlinkat(target, to, name)
		}
	case fsat.Regular:
		err = m.content(to, from, name, st)
	default:
		// A whiteout is a device 0:0, which anyone may make (mknod(2)).
		kind := map[fsat.Type]uint32{fsat.CharDevice: unix.S_IFCHR, fsat.BlockDevice: unix.S_IFBLK, fsat.FIFO: unix.S_IFIFO, fsat.Socket: unix.S_IFSOCK}[st.Type]
		err = unix.Mknodat(to, name, kind|0o600, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	src, err := fsat.OpenPath(from, name)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, err := fsat.OpenPath(to, name)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := copyXattrs(dst, src, func(string) bool { return true }); err != nil {
		return err
	}
	return own(dst, st)
}

func (m *merger) content(to, from int, name string, st fsat.Stat) error {
	in, err := fsat.Open(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := fsat.Open(to, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	if !m.noReflink && st.Size > 0 {
		err := fsat.Reflink(out, in)
		if err == nil {
			return nil
		}
		m.noReflink = errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EXDEV)
	}
	return fsat.CopyData(out, in, st.Size)
}

// dress gives a directory of the union the attributes of the topmost one.
func (m *merger) dress(dir merged) error {
	dst, err := fsat.OpenPath(m.dst, dir.path)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	src, err := fsat.OpenPath(m.src[dir.in[0]], dir.path)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	st, err := fsat.Fstat(src)
	if err != nil {
		return err
	}
	// What says how it lies upon others is told for the whole stack.
	err = copyXattrs(dst, src, func(name string) bool { return name != m.prefix+"opaque" && name != m.prefix+"redirect" })
	if err == nil && dir.opaque {
		err = fsat.SetXattr(dst, m.prefix+"opaque", []byte("y"))
	}
	if err == nil && dir.redirect != nil {
		err = fsat.SetXattr(dst, m.prefix+"redirect", dir.redirect)
	}
	for i := 1; err == nil && i < len(dir.in); i++ {
		err = m.impure(dst, dir, i)
	}
	if err != nil {
		return err
	}
	return own(dst, st)
}

// impure carries over the mark that something in the directory was copied from
// below, by which overlayfs knows that its entries have other inode numbers.
func (m *merger) impure(dst int, dir merged, i int) error {
	src, err := fsat.OpenPath(m.src[dir.in[i]], dir.path)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	value, ok, err := fsat.Xattr(src, m.prefix+"impure")
	if err != nil || !ok {
		return err
	}
	return fsat.SetXattr(dst, m.prefix+"impure", value)
}

// Like gives the root of a fresh upper what that of another has, but for what
// overlayfs notes there.
func Like(dst, src int, prefix string) error {
	st, err := fsat.Fstat(src)
	if err != nil {
		return err
	}
	if err := copyXattrs(dst, src, func(name string) bool { return !strings.HasPrefix(name, prefix) }); err != nil {
		return err
	}
	return own(dst, st)
}

// copyXattrs copies extended attributes, overlayfs's own too.
func copyXattrs(dst, src int, wanted func(string) bool) error {
	names, err := fsat.Xattrs(src)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !wanted(name) || strings.HasPrefix(name, "security.") && name != "security.capability" { // labels are the system's to give
			continue
		}
		value, ok, err := fsat.Xattr(src, name)
		if err != nil {
			return err
		}
		if ok {
			if err := fsat.SetXattr(dst, name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// own gives an open file the owner (as root), mode and times in st, in the
// order that the kernel asks for: a change of owner clears bits of the mode.
func own(fd int, st fsat.Stat) error {
	if unix.Geteuid() == 0 {
		if err := unix.Fchownat(fd, "", int(st.UID), int(st.GID), unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	whiteout := st.Type == fsat.CharDevice && st.Rdev == 0
	if st.Type != fsat.Symlink && !whiteout {
		if err := fsat.Chmod(fd, st.Mode); err != nil {
			return err
		}
	}
	return fsat.SetTimesFD(fd, st.Atime, st.Mtime)
}
