//go:build linux

package promote

import (
	"encoding/gob"
	"encoding/hex"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/workspace"
)

// node is one path of a tree in memory.
type node struct {
	Type   fsat.Type
	Mode   uint32
	Data   string // content, or target of a symlink
	Xattrs string // "name=value;name=value", sorted
}

type mapTree map[string]node

func file(data string) node { return node{fsat.Regular, 0o644, data, ""} }
func dir() node             { return node{fsat.Directory, 0o755, "", ""} }
func sym(target string) node {
	return node{fsat.Symlink, 0o777, target, ""}
}
func (n node) mode(m uint32) node  { n.Mode = m; return n }
func (n node) xattr(x string) node { n.Xattrs = x; return n }
func (n node) attrs() map[string][]byte {
	if n.Xattrs == "" {
		return nil
	}
	m := map[string][]byte{}
	for part := range strings.SplitSeq(n.Xattrs, ";") {
		k, v, _ := strings.Cut(part, "=")
		m[k] = []byte(v)
	}
	return m
}

var testKey = Key{1, 2, 3}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// plant writes the paths of the tree beneath root.
func plant(t testing.TB, root string, tr mapTree) {
	t.Helper()
	check(t, os.MkdirAll(root, 0o755))
	paths := slices.Sorted(maps.Keys(tr))
	for i, p := range paths {
		n, at := tr[p], filepath.Join(root, p)
		check(t, os.MkdirAll(filepath.Dir(at), 0o755))
		switch n.Type {
		case fsat.Directory:
			if err := os.Mkdir(at, 0o755); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
		case fsat.Symlink:
			check(t, os.Symlink(n.Data, at))
		default:
			check(t, os.WriteFile(at, []byte(n.Data), 0o644))
		}
		when := plantedTime(i)
		ts := []unix.Timespec{{Sec: when.Sec}, {Sec: when.Sec, Nsec: when.Nsec}}
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, at, ts, unix.AT_SYMLINK_NOFOLLOW))
	}
	for _, p := range slices.Backward(paths) {
		n, at := tr[p], filepath.Join(root, p)
		for k, v := range n.attrs() {
			check(t, unix.Lsetxattr(at, k, v, 0))
		}
		if n.Type != fsat.Symlink {
			check(t, unix.Chmod(at, n.Mode))
		}
	}
}

// plantedTime is when the i-th path of a planted tree was last written.
func plantedTime(i int) fsat.Time { return fsat.Time{Sec: 1700000000 + int64(i), Nsec: int64(i)} }

// snap reads a tree back. Unreadable files and closed directories are opened
// for the purpose and closed again.
func snap(t testing.TB, root string) mapTree {
	t.Helper()
	tr := mapTree{}
	var walk func(rel string)
	walk = func(rel string) {
		abs := filepath.Join(root, rel)
		var st unix.Stat_t
		check(t, unix.Lstat(abs, &st))
		if rel != "" && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o500 != 0o500 {
			check(t, unix.Chmod(abs, st.Mode&0o7777|0o500))
			defer unix.Chmod(abs, st.Mode&0o7777)
		}
		if rel != "" {
			tr[rel] = snapNode(t, abs, &st)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return
		}
		names, err := os.ReadDir(abs)
		check(t, err)
		for _, d := range names {
			if rel == "" && d.Name() == home {
				continue
			}
			walk(filepath.Join(rel, d.Name()))
		}
	}
	walk("")
	return tr
}

func snapNode(t testing.TB, abs string, st *unix.Stat_t) node {
	n := node{Mode: st.Mode & 0o7777}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		n.Type = fsat.Directory
	case unix.S_IFLNK:
		n.Type = fsat.Symlink
		target, err := os.Readlink(abs)
		check(t, err)
		n.Data = target
		return n
	default:
		n.Type = fsat.Regular
		if n.Mode&0o400 == 0 {
			check(t, unix.Chmod(abs, 0o400))
			defer unix.Chmod(abs, n.Mode)
		}
		data, err := os.ReadFile(abs)
		check(t, err)
		n.Data = string(data)
	}
	fd, err := unix.Open(abs, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	names, err := fsat.Xattrs(fd)
	check(t, err)
	var parts []string
	for _, name := range names {
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "trusted.") {
			continue
		}
		v, _, err := fsat.Xattr(fd, name)
		check(t, err)
		parts = append(parts, name+"="+string(v))
	}
	n.Xattrs = strings.Join(parts, ";")
	return n
}

// diff works out the entries between two trees, as the reader of a layer
// would, and the paths that the layer holds.
func diff(before, after mapTree) (entries []changeset.Entry, layer mapTree) {
	layer = mapTree{}
	paths := map[string]bool{}
	for p := range before {
		paths[p] = true
	}
	for p := range after {
		paths[p] = true
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		b, hasB := before[p]
		a, hasA := after[p]
		if hasA && hasB && a == b {
			continue
		}
		e := changeset.Entry{Path: p}
		if hasB {
			e.Before = stateOf(b)
		}
		if hasA {
			e.After = stateOf(a)
			e.Source, e.SourcePath = changeset.Layer, p
			layer[p] = a
		}
		switch {
		case !hasB:
			e.Op = changeset.Created
		case !hasA:
			e.Op = changeset.Deleted
		default:
			e.Op = changeset.Modified
		}
		entries = append(entries, e)
	}
	return entries, layer
}

func stateOf(n node) *changeset.State {
	s := &changeset.State{
		Type: n.Type, Mode: n.Mode, Xattrs: n.attrs(),
		UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
	}
	switch n.Type {
	case fsat.Symlink:
		s.Target = n.Data
	case fsat.Regular:
		s.Size = int64(len(n.Data))
		sum := blake3.Sum256([]byte(n.Data))
		s.Digest = "blake3:" + hex.EncodeToString(sum[:])
	}
	return s
}

// scene is a workspace, a layer and what a promotion of it must lead to.
type scene struct {
	dir           string // holds ws and layer
	before, after mapTree
	req           Request
	layer         mapTree // as it was planted
}

// newScene plants both trees in dir. marks are xattrs that overlayfs would have
// left on the files of the layer.
func newScene(t testing.TB, dir string, before, after mapTree, marks string) *scene {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o755))
	s := &scene{dir: dir, before: before, after: after}
	entries, layer := diff(before, after)
	for p, n := range layer {
		if n.Type == fsat.Regular && marks != "" {
			n.Xattrs = strings.Trim(marks+";"+n.Xattrs, ";")
			layer[p] = n
		}
	}
	plant(t, filepath.Join(dir, "ws"), before)
	plant(t, filepath.Join(dir, "layer"), layer)
	s.req = Request{ID: "t1", Key: testKey, Changes: &changeset.Changeset{Entries: entries}, Receipt: []byte("receipt\xff")}
	planted := slices.Sorted(maps.Keys(layer))
	for i := range entries {
		e := &entries[i]
		var st unix.Stat_t
		switch at, planted := slices.BinarySearch(planted, e.Path); {
		case e.After == nil:
		case unix.Lstat(filepath.Join(dir, "layer", e.Path), &st) == nil:
			e.After.Mtime = fsat.Time{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}
		case planted: // in a directory that is closed to its owner
			e.After.Mtime = plantedTime(at)
		}
		if e.Before != nil && unix.Lstat(filepath.Join(dir, "ws", e.Path), &st) == nil {
			e.BaseIno = st.Ino
		}
	}
	s.layer = snap(t, filepath.Join(dir, "layer"))
	s.req.Stamp = stamp(t, filepath.Join(dir, "ws"))
	s.open(t)
	return s
}

func stamp(t testing.TB, dir string) workspace.Stamp {
	t.Helper()
	ws, err := workspace.Open(dir, true)
	check(t, err)
	defer ws.Close()
	s, err := workspace.TakeStamp(ws)
	check(t, err)
	return s
}

func (s *scene) open(t testing.TB) {
	t.Helper()
	var err error
	s.req.Workspace, err = unix.Open(filepath.Join(s.dir, "ws"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	s.req.Layer, err = unix.Open(filepath.Join(s.dir, "layer"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
}

func (s *scene) close() {
	unix.Close(s.req.Workspace)
	unix.Close(s.req.Layer)
}

// remove takes the scene off the disk.
func (s *scene) remove(t testing.TB) {
	t.Helper()
	s.close()
	purge(t, s.dir)
}

func purge(t testing.TB, path string) {
	t.Helper()
	fd, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	check(t, fsat.RemoveAll(fd, filepath.Base(path)))
}

func (s *scene) ws(rel string) string { return filepath.Join(s.dir, "ws", rel) }

// save writes the request for a child process.
func (s *scene) save(t testing.TB) {
	t.Helper()
	f, err := os.Create(filepath.Join(s.dir, "request"))
	check(t, err)
	defer f.Close()
	check(t, gob.NewEncoder(f).Encode(s.req))
}

func loadScene(t testing.TB, dir string) *scene {
	s := &scene{dir: dir}
	f, err := os.Open(filepath.Join(dir, "request"))
	check(t, err)
	defer f.Close()
	check(t, gob.NewDecoder(f).Decode(&s.req))
	s.open(t)
	return s
}

// outcome says which of its two states the workspace is in.
func (s *scene) outcome(t testing.TB) string {
	t.Helper()
	now := snap(t, s.ws(""))
	switch {
	case cmp.Equal(now, s.before):
		return "before"
	case cmp.Equal(now, s.after):
		return "after"
	}
	return "a mix:\nagainst before " + cmp.Diff(s.before, now) + "\nagainst after " + cmp.Diff(s.after, now)
}

func (s *scene) want(t testing.TB, what string) {
	t.Helper()
	if got := s.outcome(t); got != what {
		t.Fatalf("the workspace is not %s but %s", what, got)
	}
}

// wantLayer fails unless the layer still holds all it held.
func (s *scene) wantLayer(t testing.TB) {
	t.Helper()
	if d := cmp.Diff(s.layer, snap(t, filepath.Join(s.dir, "layer"))); d != "" {
		t.Fatalf("the layer is not as it was: %s", d)
	}
	for i := range s.req.Changes.Entries {
		e := &s.req.Changes.Entries[i]
		if e.After == nil {
			continue
		}
		var st unix.Stat_t
		check(t, unix.Lstat(filepath.Join(s.dir, "layer", e.Path), &st))
		if at := (fsat.Time{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}); e.After.Type == fsat.Regular && at != e.After.Mtime {
			t.Fatalf("%q in the layer: mtime %v, was %v", e.Path, at, e.After.Mtime)
		}
	}
}

// mixed is a change of every kind at once.
func mixed() (before, after mapTree) {
	ro := func(n node) node { return n.mode(0o555) }
	before = mapTree{
		"keep.txt":         file("keep"),
		"mod.txt":          file("old"),
		"mod0444.txt":      file("old").mode(0o444),
		"mode.sh":          file("#!/bin/sh\n"),
		"attr.txt":         file("attr").xattr("user.gone=1;user.stay=2").mode(0o444),
		"del.txt":          file("delete me"),
		"link":             sym("keep.txt"),
		"dir":              dir(),
		"dir/a":            file("a"),
		"dir/b":            file("b"),
		"dir-x":            file("sorts between dir and dir/a"),
		"deldir":           dir(),
		"deldir/x":         file("x"),
		"deldir/sub":       dir(),
		"deldir/sub/y":     file("y"),
		"todir":            file("becomes a directory"),
		"tofile":           dir(),
		"tofile/in":        file("in"),
		"tolink":           file("becomes a link"),
		"fromlink":         sym("/etc/passwd"),
		"ro":               ro(dir()),
		"ro/f":             file("old in ro"),
		"ro/dir":           ro(dir()),
		"ro/dir/g":         file("g"),
		"rodel":            ro(dir()),
		"rodel/f":          file("f"),
		"chmod":            dir(),
		"chmod/f":          file("f"),
		"we\xffird\nna%me": file("raw"),

		".git": dir(), ".git/HEAD": file("ref: refs/heads/main\n"), ".git/index": file("index"),
		".git/objects": dir(), ".git/objects/aa": dir(), ".git/objects/aa/1": file("1").mode(0o444),
		".git/refs": dir(), ".git/refs/heads": dir(), ".git/refs/heads/main": file("1"), ".git/refs/heads/gone": file("1"),
	}
	after = mapTree{
		"keep.txt":         file("keep"),
		"mod.txt":          file("new content"),
		"mod0444.txt":      file("new content").mode(0o444),
		"mode.sh":          file("#!/bin/sh\n").mode(0o755),
		"attr.txt":         file("attr").xattr("user.new=3;user.stay=4").mode(0o444),
		"link":             sym("mod.txt"),
		"dir":              dir(),
		"dir/a":            file("a changed").xattr("user.note=hi"),
		"dir/c":            file(""),
		"dir-x":            file("sorts between dir and dir/a"),
		"todir":            dir(),
		"todir/in":         file("in"),
		"todir/ro":         ro(dir()),
		"todir/ro/f":       file("f").mode(0o400),
		"tofile":           file("a file now").mode(0o600),
		"tolink":           sym("../outside"),
		"fromlink":         file("a file now"),
		"ro":               ro(dir()),
		"ro/f":             file("new in ro"),
		"ro/n":             file("new"),
		"chmod":            dir().mode(0o700),
		"chmod/f":          file("f2"),
		"new.txt":          file("new"),
		"secret":           file("nobody reads it").mode(0),
		"newro":            ro(dir()),
		"newro/sub":        dir().mode(0o700),
		"newro/sub/deep":   file("deep").mode(0o444),
		"newro/l":          sym("sub/deep"),
		"empty":            dir(),
		"we\xffird\nna%me": file("raw changed"),

		".git": dir(), ".git/HEAD": file("ref: refs/heads/main\n"), ".git/index": file("index with more"),
		".git/objects": dir(), ".git/objects/bb": dir(), ".git/objects/bb/2": file("2").mode(0o444),
		".git/refs": dir(), ".git/refs/heads": dir(), ".git/refs/heads/main": file("2"), ".git/refs/heads/new": file("2"),
	}
	return before, after
}

// fileSystems runs f on a tmpfs, where a sync costs nothing, and, as root, on
// fresh images of other file systems in it. To kill a process loses nothing
// that was not synced; power cuts are tested elsewhere.
func fileSystems(t *testing.T, f func(t *testing.T, dir string)) {
	t.Run("tmp", func(t *testing.T) { f(t, tempDir(t)) })
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) { f(t, loopMount(t, fs)) })
	}
}

// fastDir is a directory in memory where there is one with xattrs.
func fastDir() string {
	d, err := os.MkdirTemp("/dev/shm", "promote")
	if err != nil {
		return ""
	}
	defer os.Remove(d)
	if unix.Setxattr(d, "user.probe", []byte("1"), 0) != nil {
		return ""
	}
	return "/dev/shm"
}

// tempDir is t.TempDir, but a directory of mode 0555 does not stop its removal.
func tempDir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp(fastDir(), "promote")
	check(t, err)
	t.Cleanup(func() { purge(t, d) })
	return d
}

func loopMount(t *testing.T, fs string) string {
	t.Helper()
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root, and not -short")
	}
	if _, err := exec.LookPath("mkfs." + fs); err != nil {
		t.Skip(err)
	}
	base := tempDir(t)
	img, at := filepath.Join(base, "img"), filepath.Join(base, "mnt")
	check(t, os.WriteFile(img, nil, 0o600))
	check(t, os.Truncate(img, 320<<20))
	check(t, os.Mkdir(at, 0o755))
	if out, err := exec.Command("mkfs."+fs, "-q", img).CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", img, at).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return at
}
