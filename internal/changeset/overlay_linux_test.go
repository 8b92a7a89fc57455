package changeset

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hutch/internal/fsat"
)

// branch is a workspace and a real overlay on it.
type branch struct {
	t       testing.TB
	dir     string
	host    string
	upper   string
	merged  string
	prefix  string
	hostFD  int
	upperFD int
	mergeFD int
	mounted bool
}

// requireMounts leaves the tests that mount to a process that can.
func requireMounts(t testing.TB) {
	if k := inside(); k != privateMount && k != userNS {
		t.Skip("runs in TestInUserNamespace")
	}
}

func newBranch(t testing.TB, dir string) *branch {
	b := &branch{t: t, dir: dir, host: dir + "/host", upper: dir + "/upper", merged: dir + "/merged", prefix: trustedPrefix, hostFD: -1, upperFD: -1, mergeFD: -1}
	if inside() == userNS {
		b.prefix = userPrefix
	}
	for _, d := range []string{b.host, b.upper, b.merged, dir + "/work"} {
		must(t, os.Mkdir(d, 0o755))
	}
	return b
}

func (b *branch) mount() {
	b.t.Helper()
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,", b.host, b.upper, b.dir+"/work")
	if b.prefix == userPrefix {
		options += "userxattr"
	} else {
		options += "redirect_dir=on,metacopy=off"
	}
	b.mountWith(options)
}

func (b *branch) mountWith(options string) {
	b.t.Helper()
	must(b.t, unix.Mount("overlay", b.merged, "overlay", 0, options))
	b.mounted = true
	b.hostFD, b.upperFD, b.mergeFD = openDir(b.t, b.host), openDir(b.t, b.upper), openDir(b.t, b.merged)
}

func (b *branch) close() {
	closeAll(b.hostFD, b.upperFD, b.mergeFD)
	if b.mounted {
		must(b.t, unix.Unmount(b.merged, 0))
		b.mounted = false
	}
}

func (b *branch) source() Source {
	return Source{Form: Overlay, Layer: b.upperFD, Workspace: b.hostFD, Merged: b.mergeFD, XattrPrefix: b.prefix}
}

func (b *branch) read() *Changeset {
	b.t.Helper()
	return readSource(b.t, b.source())
}

func readSource(t testing.TB, src Source) *Changeset {
	t.Helper()
	c, err := Read(src)
	must(t, err)
	return c
}

func must(t interface {
	Helper()
	Fatal(...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openDir(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	return fd
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// naive reads a whole tree into a description of each path.
func naive(t testing.TB, dir string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			content, err = os.Readlink(path)
		case info.Mode().IsRegular():
			var data []byte
			data, err = os.ReadFile(path)
			content = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		if err != nil {
			return err
		}
		value := make([]byte, 64)
		n, err := unix.Lgetxattr(path, "user.note", value)
		note := "no note"
		if err == nil {
			note = "note " + string(value[:n])
		}
		rel, _ := filepath.Rel(dir, path)
		tree[rel] = fmt.Sprintf("%v %s, %s", info.Mode(), content, note)
		return nil
	}))
	return tree
}

// differences is the naive changeset: path to operation.
func differences(before, after map[string]string) map[string]Op {
	ops := map[string]Op{}
	for path, was := range before {
		if is, ok := after[path]; !ok {
			ops[path] = Deleted
		} else if is != was {
			ops[path] = Modified
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			ops[path] = Created
		}
	}
	return ops
}

func opsOf(c *Changeset) map[string]Op {
	ops := map[string]Op{}
	for _, e := range c.Entries {
		ops[e.Path] = e.Op
	}
	return ops
}

func wantOps(t testing.TB, c *Changeset, want map[string]Op) {
	t.Helper()
	if diff := cmp.Diff(want, opsOf(c)); diff != "" {
		t.Fatalf("changes (-want +got):\n%s", diff)
	}
	checkWellFormed(t, c)
}

// checkWellFormed checks what holds for every changeset.
func checkWellFormed(t testing.TB, c *Changeset) {
	t.Helper()
	if !slices.IsSortedFunc(c.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) }) {
		t.Fatal("entries are not sorted")
	}
	for _, e := range c.Entries {
		if (e.Before == nil) != (e.Op == Created) || (e.After == nil) != (e.Op == Deleted) {
			t.Fatalf("%s %q with before %v and after %v", e.Op, e.Path, e.Before, e.After)
		}
		if e.After != nil && (e.Source == "" || fsat.Check(e.SourcePath) != nil) {
			t.Fatalf("%q has no source", e.Path)
		}
	}
	if c.Digest != digestOf(c.Entries) {
		t.Fatal("the digest is not that of the entries")
	}
}

// checkContent opens what each entry says it becomes.
func checkContent(t testing.TB, c *Changeset, layer, workspace, view string) {
	t.Helper()
	for _, e := range c.Entries {
		if e.After == nil || e.After.Type != fsat.Regular {
			continue
		}
		dir := layer
		if e.Source == Workspace {
			dir = workspace
		}
		got, err := os.ReadFile(filepath.Join(dir, e.SourcePath))
		must(t, err)
		want, err := os.ReadFile(filepath.Join(view, e.Path))
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("%q: the source %s %q holds something else", e.Path, e.Source, e.SourcePath)
		}
	}
}

// pathGen draws from few names, so that operations meet each other.
var pathGen = rapid.Custom(func(t *rapid.T) string {
	names := []string{"a", "b", "c", "d\xff", "e\n"}
	parts := rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "parts")
	return strings.Join(parts, "/")
})

type operation struct {
	Name     string
	Path, To string
	Content  string
	Mode     os.FileMode
}

var operationGen = rapid.Custom(func(t *rapid.T) operation {
	return operation{
		Name: rapid.SampledFrom([]string{
			"write", "write", "write", "append", "replace", "mkdir", "mkdir", "symlink", "remove", "removeall",
			"rename", "rename", "chmod", "link", "touch", "recreate", "open", "truncate", "xattr",
		}).Draw(t, "op"),
		Path:    pathGen.Draw(t, "path"),
		To:      pathGen.Draw(t, "to"),
		Content: rapid.SampledFrom([]string{"", "x", "y", "longer"}).Draw(t, "content"),
		Mode:    rapid.SampledFrom([]os.FileMode{0o600, 0o644, 0o755, 0o700}).Draw(t, "mode"),
	}
})

func (op operation) apply(dir string) error {
	path, to := filepath.Join(dir, op.Path), filepath.Join(dir, op.To)
	switch op.Name {
	case "write":
		return os.WriteFile(path, []byte(op.Content), op.Mode)
	case "append":
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(op.Content)
		return err
	case "replace": // as sed -i does
		tmp := filepath.Join(dir, "tmp")
		if err := os.WriteFile(tmp, []byte(op.Content), op.Mode); err != nil {
			return err
		}
		if err := os.Rename(tmp, path); err != nil {
			os.Remove(tmp)
			return err
		}
		return nil
	case "mkdir":
		return os.Mkdir(path, op.Mode)
	case "recreate": // the new directory hides the old
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		return os.Mkdir(path, op.Mode)
	case "symlink":
		return os.Symlink(op.Content+"t", path)
	case "remove":
		return os.Remove(path)
	case "removeall":
		return os.RemoveAll(path)
	case "rename":
		return unix.Rename(path, to)
	case "chmod":
		if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink != 0 {
			return errors.New("not this")
		}
		mode := op.Mode
		if st, err := os.Lstat(path); err == nil && st.IsDir() && os.Geteuid() != 0 {
			mode |= 0o700 // or the naive comparison could not look into it
		}
		return os.Chmod(path, mode)
	case "link":
		return os.Link(path, to)
	case "touch":
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Sec: 1}, {Sec: 1}}, unix.AT_SYMLINK_NOFOLLOW)
	case "open":
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			f.Close()
		}
		return err
	case "truncate":
		return os.Truncate(path, 1)
	case "xattr":
		return unix.Lsetxattr(path, "user.note", []byte(op.Content), 0)
	}
	return fmt.Errorf("no operation %q", op.Name)
}

// populate makes a tree for operations to meet.
func populate(t testing.TB, dir string) {
	for _, file := range []string{"a/b/c", "a/c", "b/a", "b/c/a", "c", "d\xff/a/b"} {
		write(t, filepath.Join(dir, file), file)
	}
}

func TestOverlayEqualsNaiveComparison(t *testing.T) {
	requireMounts(t)
	top := t.TempDir()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		dir := filepath.Join(top, fmt.Sprint(round))
		must(rt, os.Mkdir(dir, 0o755))
		defer os.RemoveAll(dir)
		b := newBranch(t, dir)

		populate(t, b.host)
		for _, op := range rapid.SliceOfN(operationGen, 0, 25).Draw(rt, "before") {
			_ = op.apply(b.host)
		}
		before := naive(t, b.host)
		b.mount()
		defer b.close()
		for _, op := range rapid.SliceOfN(operationGen, 1, 25).Draw(rt, "in the box") {
			_ = op.apply(b.merged)
		}
		after := naive(t, b.merged)

		c := b.read()
		want := differences(before, after)
		if diff := cmp.Diff(want, opsOf(c)); diff != "" {
			rt.Fatalf("changes (-want +got):\n%s", diff)
		}
		checkWellFormed(t, c)
		checkContent(t, c, b.upper, b.host, b.merged)
		for _, e := range c.Entries {
			if e.BaseIno != 0 && (e.Before == nil || e.BaseIno != inode(t, b.host, e.Path)) {
				rt.Fatalf("%s %q has base inode %d", e.Op, e.Path, e.BaseIno)
			}
		}
		for path, ino := range c.Ancestors {
			if ino != inode(t, b.host, path) {
				rt.Fatalf("ancestor %q has base inode %d", path, ino)
			}
		}
		if again := b.read(); cmp.Diff(c, again) != "" {
			rt.Fatal("a second reading differs")
		}
	})
}

func inode(t testing.TB, dir, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(filepath.Join(dir, path), &st))
	return st.Ino
}

func setUp(t *testing.T) *branch {
	requireMounts(t)
	b := newBranch(t, t.TempDir())
	t.Cleanup(b.close)
	return b
}

func TestOverlayCopyUpIsNoChange(t *testing.T) {
	b := setUp(t)
	for _, f := range []string{"touched", "opened", "chowned", "chmodded", "d/in"} {
		write(t, b.host+"/"+f, "same")
	}
	write(t, b.host+"/d/changed", "old")
	b.mount()
	must(t, os.Chtimes(b.merged+"/touched", time.Unix(1, 0), time.Unix(1, 0)))
	f, err := os.OpenFile(b.merged+"/opened", os.O_RDWR, 0)
	must(t, err)
	must(t, f.Close())
	must(t, os.Chown(b.merged+"/chowned", os.Getuid(), os.Getgid()))
	must(t, os.Chmod(b.merged+"/chmodded", 0o600))
	must(t, os.Chmod(b.merged+"/chmodded", 0o644))
	write(t, b.merged+"/d/changed", "new")
	if entries, err := os.ReadDir(b.upper); err != nil || len(entries) != 5 {
		t.Fatalf("not all was copied up: %v, %v", entries, err)
	}
	wantOps(t, b.read(), map[string]Op{"d/changed": Modified})
}

func TestOverlayBaseInodes(t *testing.T) {
	b := setUp(t)
	for _, f := range []string{"d/inplace", "d/replaced", "d/target", "d/moved", "d/gone", "d/linked", "d/hostreplaced", "d/hostdeleted", "hostgone/f", "hostgone/g", "solo", "renamed"} {
		write(t, b.host+"/"+f, f)
	}
	must(t, os.Link(b.host+"/d/linked", b.host+"/d/linked2"))
	base := func(path string) uint64 { return inode(t, b.host, path) }
	want := map[string]uint64{
		"d/inplace":      base("d/inplace"),
		"d/replaced":     0,
		"d/target":       0, // holds what d/moved was
		"d/moved":        0,
		"d/gone":         0,
		"d/linked":       0, // overlayfs gives a hard link the layer's number
		"d/hostreplaced": 0, // nor that of a file without links
		"d/hostdeleted":  0,
		"d":              base("d"),
		"new":            0,
		"new/f":          0,
		"copy":           0,
		"renamed":        0,
		"d/renamed":      0,
		"hostgone":       0,
		"hostgone/f":     0,
		"solo":           base("solo"),
	}
	b.mount()
	m := b.merged
	write(t, m+"/d/inplace", "x")
	write(t, m+"/d/tmp", "x")
	must(t, os.Rename(m+"/d/tmp", m+"/d/replaced"))
	must(t, os.Rename(m+"/d/moved", m+"/d/target"))
	must(t, os.Remove(m+"/d/gone"))
	must(t, os.Rename(m+"/renamed", m+"/d/renamed"))
	write(t, m+"/d/linked", "x")
	write(t, m+"/d/hostreplaced", "x")
	write(t, m+"/d/hostdeleted", "x")
	write(t, m+"/hostgone/f", "x")
	must(t, os.Chmod(m+"/d", 0o700))
	write(t, m+"/new/f", "x")
	write(t, m+"/solo", "solo") // the same again; its new link is new
	must(t, os.Link(m+"/solo", m+"/copy"))
	// The host goes on meanwhile.
	write(t, b.host+"/d/other", "by the host")
	must(t, os.Rename(b.host+"/d/other", b.host+"/d/hostreplaced"))
	must(t, os.Remove(b.host+"/d/hostdeleted"))
	must(t, os.RemoveAll(b.host+"/hostgone"))

	c := b.read()
	checkWellFormed(t, c)
	got := map[string]uint64{}
	var copied []string
	for _, e := range c.Entries {
		got[e.Path] = e.BaseIno
		if e.CopiedUp && e.Path != "copy" { // of a link only the trusted mode can tell
			copied = append(copied, e.Path)
		}
	}
	delete(want, "solo")
	if diff := cmp.Diff([]string{"d/hostdeleted", "hostgone", "hostgone/f"}, copied); diff != "" {
		t.Errorf("copied up, but not there (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("base inodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]uint64{"d": base("d")}, c.Ancestors); diff != "" {
		t.Errorf("ancestors (-want +got):\n%s", diff)
	}

	src := b.source()
	src.Merged = -1
	c = readSource(t, src)
	for _, e := range c.Entries {
		if e.BaseIno != 0 {
			t.Errorf("%q has a base inode out of nowhere", e.Path)
		}
	}
	if c.Ancestors != nil {
		t.Error("ancestors out of nowhere")
	}
}

// Layer and workspace on two file systems: their inode numbers overlap.
func TestOverlayBaseInodesAcrossFileSystems(t *testing.T) {
	for _, xino := range []string{"on", "off"} {
		b := setUp(t)
		must(t, unix.Mount("tmpfs", b.host, "tmpfs", 0, "size=1m,inode64"))
		t.Cleanup(func() { must(t, unix.Unmount(b.host, unix.MNT_DETACH)) })
		write(t, b.host+"/d/f", "1")
		options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,xino=%s", b.host, b.upper, b.dir+"/work", xino)
		if b.prefix == userPrefix {
			options += ",userxattr"
		}
		b.mountWith(options)
		write(t, b.merged+"/d/f", "2")
		c := b.read()
		wantOps(t, c, map[string]Op{"d/f": Modified})
		want := inode(t, b.host, "d/f")
		if xino == "off" {
			want = 0
		}
		if c.Entries[0].BaseIno != want {
			t.Errorf("xino=%s: base inode %d, want %d", xino, c.Entries[0].BaseIno, want)
		}
		b.close()
	}
}

func TestOverlayRenamedDirectories(t *testing.T) {
	b := setUp(t)
	if b.prefix == userPrefix {
		return // EXDEV there: a layer without redirects
	}
	write(t, b.host+"/a/b/c/file", "1")
	write(t, b.host+"/a/b/stays", "2")
	write(t, b.host+"/a/edited", "3")
	b.mount()
	m := b.merged
	must(t, os.Rename(m+"/a", m+"/moved"))
	must(t, os.Rename(m+"/moved/b/c", m+"/c"))
	must(t, os.Rename(m+"/moved/b", m+"/moved/sibling"))
	write(t, m+"/moved/edited", "4")
	c := b.read()
	wantOps(t, c, map[string]Op{
		"a": Deleted, "a/b": Deleted, "a/b/c": Deleted, "a/b/c/file": Deleted, "a/b/stays": Deleted, "a/edited": Deleted,
		"moved": Created, "moved/sibling": Created, "moved/sibling/stays": Created, "moved/edited": Created,
		"c": Created, "c/file": Created,
	})
	sources := map[string]string{}
	for _, e := range c.Entries {
		if e.After != nil && e.After.Type == fsat.Regular {
			sources[e.Path] = string(e.Source) + " " + e.SourcePath
		}
		if e.BaseIno != 0 {
			t.Errorf("%q has base inode %d", e.Path, e.BaseIno)
		}
	}
	want := map[string]string{
		"c/file":              "workspace a/b/c/file",
		"moved/sibling/stays": "workspace a/b/stays",
		"moved/edited":        "layer moved/edited",
	}
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	checkContent(t, c, b.upper, b.host, b.merged)

	// The host moves it too: what the box saw is there no more.
	must(t, os.Rename(b.host+"/a", b.host+"/elsewhere"))
	if _, err := Read(b.source()); err == nil || !strings.Contains(err.Error(), "renamed from") {
		t.Errorf("a directory whose content is gone: %v", err)
	}
}

func TestOverlayMetadataOnlyCopyUp(t *testing.T) {
	b := setUp(t)
	if b.prefix == userPrefix {
		return // refused there
	}
	write(t, b.host+"/d/f", "content")
	write(t, b.host+"/plain", "content")
	b.mountWith(fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=on,metacopy=on", b.host, b.upper, b.dir+"/work"))
	must(t, os.Chmod(b.merged+"/plain", 0o755))
	must(t, os.Chmod(b.merged+"/d/f", 0o600))
	must(t, os.Rename(b.merged+"/d/f", b.merged+"/g"))
	if zeros, err := os.ReadFile(b.upper + "/plain"); err != nil || string(zeros) == "content" {
		t.Fatalf("the content was copied up: %q, %v", zeros, err)
	}
	c := b.read()
	wantOps(t, c, map[string]Op{"plain": Modified, "d/f": Deleted, "g": Created})
	checkContent(t, c, b.upper, b.host, b.merged)
	for _, e := range c.Entries {
		if e.Path == "plain" && (e.Source != Workspace || e.After.Mode != 0o755 || e.After.Digest != e.Before.Digest) {
			t.Errorf("plain: %+v", e)
		}
	}
}

func TestOverlayOwners(t *testing.T) {
	b := setUp(t)
	if b.prefix == userPrefix {
		return // one owner for all
	}
	write(t, b.host+"/f", "1")
	b.mount()
	must(t, os.Chown(b.merged+"/f", 1000, 1000))
	c := b.read()
	wantOps(t, c, map[string]Op{"f": Modified})
	if c.Entries[0].After.UID != 1000 {
		t.Errorf("owner %d", c.Entries[0].After.UID)
	}
}

func BenchmarkTenChangesIn100000Files(bench *testing.B) {
	requireMounts(bench)
	dir := bench.TempDir()
	must(bench, unix.Mount("tmpfs", dir, "tmpfs", 0, ""))
	defer func() { must(bench, unix.Unmount(dir, unix.MNT_DETACH)) }()
	b := newBranch(bench, dir)
	for d := range 1000 {
		dir := fmt.Sprintf("%s/d%d/e%d", b.host, d/32, d)
		must(bench, os.MkdirAll(dir, 0o755))
		for f := range 100 {
			must(bench, os.WriteFile(fmt.Sprintf("%s/f%d", dir, f), []byte("content\n"), 0o644))
		}
	}
	b.mount()
	defer b.close()
	for i := range 10 {
		path := fmt.Sprintf("%s/d%d/e%d/f%d", b.merged, i*97/32, i*97, i)
		switch i {
		case 8:
			must(bench, os.Remove(path))
		case 9:
			path += "-new"
			fallthrough
		default:
			must(bench, os.WriteFile(path, []byte("changed content\n"), 0o644))
		}
	}
	var start, end unix.Rusage
	must(bench, unix.Getrusage(unix.RUSAGE_SELF, &start))
	best := time.Hour
	for bench.Loop() {
		begin := time.Now()
		if c := b.read(); len(c.Entries) != 10 {
			bench.Fatal(len(c.Entries))
		}
		best = min(best, time.Since(begin))
	}
	must(bench, unix.Getrusage(unix.RUSAGE_SELF, &end))
	cpu := end.Utime.Nano() - start.Utime.Nano() + end.Stime.Nano() - start.Stime.Nano()
	bench.ReportMetric(float64(best.Nanoseconds())/1e3, "best-µs")
	bench.ReportMetric(float64(cpu)/1e3/float64(bench.N), "cpu-µs/op")
}

// A file moved to where a directory was takes its own number along, which is
// not the directory's.
func TestOverlayFileInPlaceOfADirectory(t *testing.T) {
	b := setUp(t)
	must(t, os.Mkdir(b.host+"/dir", 0o755))
	write(t, b.host+"/dir/inside", "x")
	write(t, b.host+"/file", "y")
	b.mount()
	defer b.close()
	must(t, os.RemoveAll(b.merged+"/dir"))
	must(t, os.Rename(b.merged+"/file", b.merged+"/dir"))
	c := b.read()
	want := inode(t, b.host, "dir")
	if got, ok := c.Ancestors["dir"]; ok && got != want {
		t.Errorf("the directory that was there is said to have inode %d; it had %d", got, want)
	}
	if len(c.Entries) != 3 {
		t.Errorf("entries %+v", c.Entries)
	}
}
