package model

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is one file as far as anyone could tell it apart.
type Node struct {
	Mode     uint32 // type and permission bits
	UID, GID uint32
	Size     int64 // of regular files
	Blocks   int64 // bytes allocated; of regular files
	Mtime    int64 // nanoseconds
	Dev, Ino uint64
	Nlink    uint64
	Target   string
	Xattrs   string
	Content  string // a hash, or why it cannot be read
	Listed   string // why a directory cannot be listed
}

// Tree maps paths relative to its root, which is ".", to nodes.
type Tree map[string]Node

func (n Node) kind() uint32  { return n.Mode & unix.S_IFMT }
func (n Node) isDir() bool   { return n.kind() == unix.S_IFDIR }
func (n Node) special() bool { return n.kind() == unix.S_IFIFO || n.kind() == unix.S_IFSOCK }

// snapshot reads a tree, by descriptors: it may be deeper than any path is
// long. With force what its owner may not read is opened up for the moment.
func snapshot(root string, force bool) Tree {
	tree := Tree{}
	var walk func(dir int, name, path string)
	walk = func(dir int, name, path string) {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			tree[path] = Node{Listed: err.Error()}
			return
		}
		n := Node{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano(), Dev: st.Dev, Ino: st.Ino, Nlink: uint64(st.Nlink)}
		open := func(flags int) (int, error) {
			fd, err := unix.Openat(dir, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOATIME, 0)
			if err == unix.EPERM {
				fd, err = unix.Openat(dir, name, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			}
			return fd, err
		}
		if force && n.kind() != unix.S_IFLNK && !n.special() && st.Mode&0o400 == 0 || force && n.isDir() && st.Mode&0o500 != 0o500 {
			if unix.Fchmodat(dir, name, st.Mode&0o7777|0o700, 0) == nil {
				defer unix.Fchmodat(dir, name, st.Mode&0o7777, 0)
			}
		}
		n.Xattrs = xattrs(dir, name, n.kind() == unix.S_IFLNK)
		switch n.kind() {
		case unix.S_IFLNK:
			buf := make([]byte, 5000)
			k, _ := unix.Readlinkat(dir, name, buf)
			n.Target = string(buf[:max(k, 0)])
		case unix.S_IFREG:
			n.Size, n.Blocks = st.Size, st.Blocks*512
			fd, err := open(0)
			if err != nil {
				n.Content = err.Error()
				break
			}
			if n.Content, err = contentHash(fd); err != nil {
				n.Content = err.Error()
			}
			unix.Close(fd)
		case unix.S_IFDIR:
			fd, err := open(unix.O_DIRECTORY)
			if err != nil {
				n.Listed = err.Error()
				break
			}
			names, err := readNames(fd)
			if err != nil {
				n.Listed = err.Error()
			}
			for _, sub := range names {
				child := sub
				if path != "." {
					child = path + "/" + sub
				}
				walk(fd, sub, child)
			}
			unix.Close(fd)
		}
		tree[path] = n
	}
	walk(unix.AT_FDCWD, root, ".")
	return tree
}

// xattrs returns the user.* attributes of a file, which is named by way of its
// directory's descriptor: there is no getxattrat(2) everywhere.
func xattrs(dir int, name string, symlink bool) string {
	if symlink {
		return "" // has none of the kind
	}
	path := name
	if dir != unix.AT_FDCWD {
		path = fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)
	}
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil || n == 0 {
		return ""
	}
	var out strings.Builder
	names := strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	for _, name := range names {
		// Those that overlayfs believes are never promoted.
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			fmt.Fprintf(&out, "%s: %v;", name, err)
			continue
		}
		fmt.Fprintf(&out, "%s=%x;", name, value[:n])
	}
	return out.String()
}

// contentHash hashes the size and every block that is not zero, with its
// place: how a file is laid out does not show.
func contentHash(fd int) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return "", unix.EISDIR
	}
	h := sha256.New()
	binary.Write(h, binary.LittleEndian, st.Size)
	var buf, zero [4096]byte
	for at := int64(0); at < st.Size; {
		data, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			break
		}
		if err != nil {
			return "", err
		}
		at = data - data%int64(len(buf))
		n, err := unix.Pread(fd, buf[:], at)
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			binary.Write(h, binary.LittleEndian, at)
			h.Write(buf[:n])
		}
		at += int64(n)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// without drops the named top-level entries and what is beneath them.
func (t Tree) without(names ...string) Tree {
	out := Tree{}
	for path, n := range t {
		top, _, _ := strings.Cut(path, "/")
		if !slices.Contains(names, top) {
			out[path] = n
		}
	}
	return out
}

// beneath reports whether path is one of the others or lies in one.
func beneath(path string, others map[string]bool) bool {
	for p := path; ; {
		if others[p] {
			return true
		}
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			return false
		}
		p = p[:i]
	}
}

// same names what differs between two nodes of trees that should be equal, but
// for times and numbers of inodes.
func (n Node) differs(m Node) string {
	var what []string
	add := func(name string, a, b any) {
		if a != b {
			what = append(what, fmt.Sprintf("%s %v, want %v", name, a, b))
		}
	}
	add("mode", fmt.Sprintf("%o", n.Mode), fmt.Sprintf("%o", m.Mode))
	add("uid", n.UID, m.UID)
	add("gid", n.GID, m.GID)
	add("size", n.Size, m.Size)
	add("target", n.Target, m.Target)
	add("xattrs", n.Xattrs, m.Xattrs)
	add("content", n.Content, m.Content)
	add("listing", n.Listed, m.Listed)
	return strings.Join(what, ", ")
}

// slack is by how much the space of a file may exceed that of its like: the
// kernel copies a sparse file up in pieces of 1 MiB.
const slack = 4 << 20

// compare names where two trees differ that should not.
func compare(what string, got, want Tree) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(want)) {
		w := want[path]
		g, ok := got[path]
		if !ok {
			out = append(out, fmt.Sprintf("%s: %s is missing", what, short(path)))
			continue
		}
		if d := g.differs(w); d != "" {
			out = append(out, fmt.Sprintf("%s: %s has %s", what, short(path), d))
		}
		if g.Blocks > w.Blocks+slack {
			out = append(out, fmt.Sprintf("%s: %s takes %d bytes of disk, want %d", what, short(path), g.Blocks, w.Blocks))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[path]; !ok {
			out = append(out, fmt.Sprintf("%s: %s should not be there", what, short(path)))
		}
	}
	return out
}

// compareLinks compares which names are one file, and names what differs.
func compareLinks(what string, got, want map[string]bool) []string {
	var out []string
	for _, group := range slices.Sorted(maps.Keys(want)) {
		if !got[group] {
			out = append(out, fmt.Sprintf("%s: %s are not one file", what, group))
		}
	}
	for _, group := range slices.Sorted(maps.Keys(got)) {
		if !want[group] {
			out = append(out, fmt.Sprintf("%s: %s are one file and should not be", what, group))
		}
	}
	return out
}

// groups lists the names of each file that has several in the tree, of those
// that pass.
func (t Tree) groups(pass func(path string) bool) map[string]bool {
	names := map[[2]uint64][]string{}
	for path, n := range t {
		if !n.isDir() && n.Nlink > 1 && pass(path) {
			id := [2]uint64{n.Dev, n.Ino}
			names[id] = append(names[id], short(path))
		}
	}
	groups := map[string]bool{}
	for _, list := range names {
		if len(list) > 1 {
			slices.Sort(list)
			groups[strings.Join(list, " = ")] = true
		}
	}
	return groups
}

// untouched names in what a tree is not what it was, inodes and times included.
func untouched(before, after Tree) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(before)) {
		b, a := before[path], after[path]
		b.Blocks, a.Blocks = 0, 0 // the file system's own business: delayed allocation
		if b != a {
			out = append(out, fmt.Sprintf("untouched: %s was %+v, is %+v", short(path), b, a))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[path]; !ok {
			out = append(out, fmt.Sprintf("untouched: %s is new", short(path)))
		}
	}
	return out
}

func short(path string) string {
	if len(path) > 80 {
		return fmt.Sprintf("%q…(%d bytes)", path[:80], len(path))
	}
	return fmt.Sprintf("%q", path)
}
