package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Node is one file of a tree as far as a user could tell it apart.
type Node struct {
	Mode    uint32 // type and permission bits
	UID     uint32
	GID     uint32
	Nlink   uint64
	Size    int64
	Mtime   int64 // nanoseconds
	Ctime   int64 // nanoseconds; shows a write whose mtime was restored
	Target  string
	Xattrs  string
	Content string // SHA-256, or why it cannot be read
}

// Tree maps paths relative to its root ("." itself included) to nodes.
type Tree map[string]Node

// Snapshot reads the tree at root without changing it. Sparse files are read
// where they hold data.
func Snapshot(t testing.TB, root string) Tree {
	t.Helper()
	tree := Tree{}
	var walk func(rel string)
	walk = func(rel string) {
		path := filepath.Join(root, rel)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatalf("snapshot: lstat %q: %v", path, err)
		}
		n := Node{
			Mode: st.Mode, UID: st.Uid, GID: st.Gid, Nlink: uint64(st.Nlink), Size: st.Size,
			Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Xattrs: xattrs(path),
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			n.Target, _ = os.Readlink(path)
		case unix.S_IFREG:
			n.Content = digest(path, st.Size)
		case unix.S_IFDIR:
			entries, err := os.ReadDir(path)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				t.Fatalf("snapshot: read %q: %v", path, err)
			}
			for _, e := range entries {
				walk(filepath.Join(rel, e.Name()))
			}
		}
		tree[rel] = n
	}
	walk(".")
	return tree
}

func xattrs(path string) string {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil || n == 0 {
		return ""
	}
	names := strings.Split(strings.TrimRight(string(buf[:n]), "\x00"), "\x00")
	slices.Sort(names)
	var out strings.Builder
	for _, name := range names {
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			continue
		}
		fmt.Fprintf(&out, "%s=%x;", name, value[:n])
	}
	return out.String()
}

func digest(path string, size int64) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME, 0)
	if errors.Is(err, unix.EPERM) {
		f, err = os.Open(path)
	}
	if err != nil {
		return "unreadable: " + errors.Unwrap(err).Error()
	}
	defer f.Close()
	h := sha256.New()
	for at := int64(0); at < size; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if err != nil {
			break // a hole up to the end
		}
		hole, err := f.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			hole = size
		}
		fmt.Fprintf(h, "%d+%d:", data, hole-data)
		if _, err := io.Copy(h, io.NewSectionReader(f, data, hole-data)); err != nil {
			return "unreadable: " + err.Error()
		}
		at = hole
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Diff names each path in which two trees differ, and how.
func (before Tree) Diff(after Tree) []string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(before)) {
		b := before[path]
		a, ok := after[path]
		if !ok {
			out = append(out, fmt.Sprintf("%q is gone", path))
			continue
		}
		if a == b {
			continue
		}
		var what []string
		for _, f := range []struct {
			name string
			b, a any
		}{
			{"mode", fmt.Sprintf("%o", b.Mode), fmt.Sprintf("%o", a.Mode)},
			{"uid", b.UID, a.UID},
			{"gid", b.GID, a.GID},
			{"nlink", b.Nlink, a.Nlink},
			{"size", b.Size, a.Size},
			{"mtime", b.Mtime, a.Mtime},
			{"ctime", b.Ctime, a.Ctime},
			{"target", b.Target, a.Target},
			{"xattrs", b.Xattrs, a.Xattrs},
			{"content", b.Content, a.Content},
		} {
			if f.b != f.a {
				what = append(what, fmt.Sprintf("%s %v -> %v", f.name, f.b, f.a))
			}
		}
		out = append(out, fmt.Sprintf("%q: %s", path, strings.Join(what, ", ")))
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[path]; !ok {
			out = append(out, fmt.Sprintf("%q is new", path))
		}
	}
	return out
}

// Without returns the tree less the named entries and what is beneath them.
func (tree Tree) Without(names ...string) Tree {
	out := Tree{}
	for path, n := range tree {
		if !slices.ContainsFunc(names, func(name string) bool {
			return path == name || strings.HasPrefix(path, name+"/")
		}) {
			out[path] = n
		}
	}
	return out
}
