package changeset

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// The layers here are made by hand, which needs no privilege.

// handmade is a workspace and a layer.
type handmade struct {
	t           testing.TB
	host, layer string
}

func newHandmade(t testing.TB) *handmade {
	dir := t.TempDir()
	h := &handmade{t: t, host: dir + "/host", layer: dir + "/layer"}
	must(t, os.Mkdir(h.host, 0o755))
	must(t, os.Mkdir(h.layer, 0o755))
	return h
}

func (h *handmade) source() Source {
	src := Source{Form: Overlay, Layer: openDir(h.t, h.layer), Workspace: openDir(h.t, h.host), Merged: -1, XattrPrefix: userPrefix}
	h.t.Cleanup(func() { closeAll(src.Layer, src.Workspace) })
	return src
}

func (h *handmade) read() *Changeset {
	h.t.Helper()
	return readSource(h.t, h.source())
}

func (h *handmade) whiteout(path string) {
	h.t.Helper()
	path = filepath.Join(h.layer, path)
	must(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(h.t, unix.Mknod(path, unix.S_IFCHR, 0))
}

func (h *handmade) mark(path, name, value string) {
	h.t.Helper()
	must(h.t, unix.Lsetxattr(filepath.Join(h.layer, path), name, []byte(value), 0))
}

func TestLayerWhiteoutsAndOpaque(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/gone", "1")
	write(t, h.host+"/tree/a/b", "2")
	write(t, h.host+"/tree/c", "3")
	write(t, h.host+"/opaque/old", "4")
	write(t, h.host+"/opaque/same", "5")
	write(t, h.host+"/dir2file/x", "6")
	write(t, h.host+"/file2dir", "7")
	write(t, h.host+"/xw/hidden", "8")
	write(t, h.host+"/xw/shown", "9")
	h.whiteout("gone")
	h.whiteout("never/was")
	h.whiteout("tree")
	write(t, h.layer+"/opaque/same", "5")
	write(t, h.layer+"/opaque/new", "x")
	h.mark("opaque", userPrefix+"opaque", "y")
	write(t, h.layer+"/dir2file", "")
	write(t, h.layer+"/file2dir/y", "")
	write(t, h.layer+"/xw/hidden", "")
	h.mark("xw", userPrefix+"opaque", "x")
	h.mark("xw/hidden", userPrefix+"whiteout", "")
	// A file of that mark elsewhere is a file.
	write(t, h.layer+"/never/plain", "")
	h.mark("never/plain", userPrefix+"whiteout", "")

	c := h.read()
	wantOps(t, c, map[string]Op{
		"gone": Deleted,
		"tree": Deleted, "tree/a": Deleted, "tree/a/b": Deleted, "tree/c": Deleted,
		"opaque/old": Deleted, "opaque/new": Created,
		"dir2file": Modified, "dir2file/x": Deleted,
		"file2dir": Modified, "file2dir/y": Created,
		"xw/hidden": Deleted,
		"never":     Created, "never/plain": Created,
	})
	checkContent(t, c, h.layer, h.host, h.layer)
	created, modified, deleted := c.Names()
	if want := []string{"never/", "never/plain", "file2dir/y", "opaque/new"}; !equalSorted(created, want) {
		t.Errorf("created %q", created)
	}
	if want := []string{"dir2file", "file2dir/"}; !equalSorted(modified, want) {
		t.Errorf("modified %q", modified)
	}
	if want := []string{"gone", "tree/", "tree/a/", "tree/a/b", "tree/c", "opaque/old", "dir2file/x", "xw/hidden"}; !equalSorted(deleted, want) {
		t.Errorf("deleted %q", deleted)
	}
}

func equalSorted(got, want []string) bool {
	return slices.Equal(got, slices.Sorted(slices.Values(want)))
}

func TestNamesAreNeverNil(t *testing.T) {
	created, modified, deleted := (&Changeset{}).Names()
	if created == nil || modified == nil || deleted == nil {
		t.Fatal("a list is nil")
	}
}

// A box under trusted attributes can plant user.overlay.* in its layer, raw.
func TestLayerBelievesOnlyItsOwnPrefix(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/d/precious", "1")
	write(t, h.layer+"/d/new", "")
	h.mark("d", userPrefix+"opaque", "y")
	h.mark("d", userPrefix+"redirect", "/elsewhere")
	src := h.source()
	src.XattrPrefix = trustedPrefix
	wantOps(t, readSource(t, src), map[string]Op{"d/new": Created})

	src.XattrPrefix = "user."
	if _, err := Read(src); err == nil {
		t.Fatal("any prefix is believed")
	}
}

func TestLayerForgedRedirects(t *testing.T) {
	for _, redirect := range []string{
		"..", "/..", "/../x", "/a/../../x", "a/b", "", "/", ".", "/.", "//a", "a\x00b", "/.hutch", "/.hutch/txn", ".hutch",
	} {
		h := newHandmade(t)
		write(t, h.host+"/a/f", "1")
		must(t, os.Mkdir(h.layer+"/moved", 0o755))
		fd := openDir(t, h.layer+"/moved")
		h.mark("moved", userPrefix+"redirect", redirect)
		_, err := Read(h.source())
		if err == nil || !strings.Contains(err.Error(), "forged") {
			t.Errorf("a layer without redirects: %q is believed: %v", redirect, err)
		}
		if os.Geteuid() != 0 || inside() == userNS {
			unix.Close(fd)
			continue
		}
		h.mark("moved", trustedPrefix+"redirect", redirect)
		src := h.source()
		src.XattrPrefix = trustedPrefix
		_, err = Read(src)
		if err == nil || !strings.Contains(err.Error(), "forged") {
			t.Errorf("%q is believed: %v", redirect, err)
		}
		unix.Close(fd)
	}
}

func TestLayerSpecialFiles(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/dir/keep", "1")
	must(t, unix.Mkfifo(h.layer+"/fifo", 0o644))
	must(t, unix.Mkfifo(h.layer+"/dir", 0o644))
	must(t, unix.Mknod(h.layer+"/socket", unix.S_IFSOCK|0o644, 0))
	write(t, h.layer+"/.hutch/txn-1/journal", "")
	// At any depth: the directory it lies in may be a workspace tomorrow, and
	// the journal would be believed.
	write(t, h.layer+"/sub/.hutch/txn-1/journal", "")
	want := []Skipped{
		{".hutch", "hutch's own directory"}, {"dir", "fifo"}, {"fifo", "fifo"}, {"socket", "socket"}, {"sub/.hutch", "hutch's own directory"},
	}
	if os.Geteuid() == 0 && inside() != userNS {
		must(t, unix.Mknod(h.layer+"/device", unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))))
		want = slices.Insert(want, 1, Skipped{"device", "device"})
	}
	c := h.read()
	wantOps(t, c, map[string]Op{"sub": Created})
	if !slices.Equal(c.Skipped, want) {
		t.Errorf("skipped %q", c.Skipped)
	}
}

func TestLayerHutchDirectoryIsHiddenByAWhiteout(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/.hutch/txn-1/journal", "")
	h.whiteout(".hutch")
	c := h.read()
	if !c.Empty() || c.Skipped != nil {
		t.Errorf("%v, skipped %q", c.Entries, c.Skipped)
	}
}

func TestLayerGit(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/.git/HEAD", "ref: refs/heads/main\n")
	write(t, h.host+"/.git/index", "index")
	write(t, h.host+"/sub/.git/HEAD", "1")
	write(t, h.layer+"/.git/index", "index") // git status wrote the same again
	c := h.read()
	if !c.Empty() || c.GitChanged {
		t.Fatalf("%v, git changed %v", c.Entries, c.GitChanged)
	}

	write(t, h.layer+"/.git/index", "xedni")
	write(t, h.layer+"/sub/.git/HEAD", "2") // a nested one is somebody's file
	write(t, h.layer+"/clone/.git/HEAD", "3")
	must(t, unix.Mkfifo(h.layer+"/.git/fifo", 0o644))
	nested := map[string]Op{
		"sub/.git/HEAD": Modified,
		"clone":         Created, "clone/.git": Created, "clone/.git/HEAD": Created,
	}
	c = h.read()
	wantOps(t, c, nested)
	if !c.GitChanged || c.Skipped != nil {
		t.Fatalf("git changed %v, skipped %q", c.GitChanged, c.Skipped)
	}

	src := h.source()
	src.Git = true
	c = readSource(t, src)
	nested[".git/index"] = Modified
	wantOps(t, c, nested)
	if c.GitChanged || len(c.Skipped) != 1 {
		t.Fatalf("git changed %v, skipped %q", c.GitChanged, c.Skipped)
	}

	for name, change := range map[string]func(*handmade){
		"deleted":      func(h *handmade) { h.whiteout(".git") },
		"now a file":   func(h *handmade) { write(t, h.layer+"/.git", "gitdir: /elsewhere\n") },
		"a new ref":    func(h *handmade) { write(t, h.layer+"/.git/refs/heads/new", "") },
		"HEAD deleted": func(h *handmade) { h.whiteout(".git/HEAD") },
	} {
		h := newHandmade(t)
		write(t, h.host+"/.git/HEAD", "ref: refs/heads/main\n")
		change(h)
		if c := h.read(); !c.Empty() || !c.GitChanged {
			t.Errorf("%s: %v, git changed %v", name, c.Entries, c.GitChanged)
		}
	}
}

func TestLayerDSStore(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/a/.DS_Store", "1")
	write(t, h.host+"/b/.DS_Store", "1")
	write(t, h.host+"/c/.DS_Store", "1")
	h.whiteout("a/.DS_Store")
	write(t, h.layer+"/b/.DS_Store", "2")
	write(t, h.layer+"/new/.DS_Store", "3")
	h.whiteout("c") // the directory could not go without it
	c := h.read()
	wantOps(t, c, map[string]Op{"new": Created, "c": Deleted, "c/.DS_Store": Deleted})

	src := h.source()
	src.Git = true
	wantOps(t, readSource(t, src), map[string]Op{
		"a/.DS_Store": Deleted, "b/.DS_Store": Modified, "new": Created, "new/.DS_Store": Created,
		"c": Deleted, "c/.DS_Store": Deleted,
	})
}

func TestLayerHostileNames(t *testing.T) {
	h := newHandmade(t)
	want := map[string]Op{}
	for _, name := range []string{"new\nline", "\xff\xfe", strings.Repeat("n", 255), " ", "-rf", `"\`, "\x01", "a b"} {
		write(t, filepath.Join(h.layer, name), name)
		want[name] = Created
	}
	must(t, os.Symlink("/etc/passwd", h.layer+"/link"))
	must(t, os.Symlink("/etc", h.layer+"/dirlink"))
	want["link"], want["dirlink"] = Created, Created
	// A directory of the layer where the workspace has a symlink.
	must(t, os.Symlink("/etc", h.host+"/swapped"))
	write(t, h.layer+"/swapped/passwd", "")
	want["swapped"], want["swapped/passwd"] = Modified, Created
	c := h.read()
	wantOps(t, c, want)
	for _, e := range c.Entries {
		if e.Path == "link" && (e.After.Target != "/etc/passwd" || e.After.Digest != "") {
			t.Errorf("link: %+v", e.After)
		}
		if e.Path == "swapped" && e.Before.Target != "/etc" {
			t.Errorf("swapped: %+v", e.Before)
		}
	}
}

func TestLayerVeryDeep(t *testing.T) {
	const depth = 5_000 // deeper makes no difference: at 4,096 levels the walk stops
	h := newHandmade(t)
	fd := openDir(t, h.layer)
	for range depth {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	layer := openDir(t, filepath.Dir(h.layer))
	defer unix.Close(layer)
	defer func() { must(t, fsat.RemoveAll(layer, "layer")) }()

	before := openDescriptors(t)
	start := time.Now()
	c := h.read()
	t.Logf("read in %v", time.Since(start))
	if got, limit := len(c.Entries), (maxPath+1)/2; got != limit || len(c.Skipped) != 1 {
		t.Errorf("%d entries, %d skipped, want %d and 1", got, len(c.Skipped), limit)
	}
	if after := openDescriptors(t); after > before+2 { // those of h.source
		t.Errorf("%d descriptors became %d", before, after)
	}
}

func openDescriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// Reading leaves no trace in the workspace, access times included.
func TestLayerReadingLeavesNoTrace(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/d/f", "1")
	write(t, h.host+"/gone/g", "1")
	write(t, h.layer+"/d/f", "2")
	h.whiteout("gone")
	old := time.Unix(1e9, 0)
	paths := []string{"d/f", "gone/g", "d", "gone", ""}
	for _, p := range paths {
		must(t, os.Chtimes(filepath.Join(h.host, p), old, time.Unix(2e9, 0))) // relatime would move it
	}
	want := map[string]unix.Stat_t{}
	for _, p := range paths {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(h.host, p), &st))
		want[p] = st
	}
	src := h.source()
	readSource(t, src)
	for _, p := range paths {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(h.host, p), &st))
		if st != want[p] {
			t.Errorf("%q: %+v became %+v", p, want[p], st)
		}
	}
}

func TestDigestIsThatOfTheChange(t *testing.T) {
	build := func(content string, mode os.FileMode, mtime time.Time) *Changeset {
		h := newHandmade(t)
		write(t, h.host+"/f", "old")
		write(t, h.layer+"/f", content)
		must(t, os.Chmod(h.layer+"/f", mode))
		must(t, os.Chtimes(h.layer+"/f", mtime, mtime))
		return h.read()
	}
	c := build("new", 0o644, time.Unix(1, 0))
	if again := build("new", 0o644, time.Unix(2, 0)); again.Digest != c.Digest {
		t.Error("equal changes have different digests")
	}
	for _, other := range []*Changeset{build("NEW", 0o644, time.Unix(1, 0)), build("new", 0o755, time.Unix(1, 0)), build("old", 0o644, time.Unix(1, 0))} {
		if other.Digest == c.Digest {
			t.Error("different changes have one digest")
		}
	}
	h := newHandmade(t)
	write(t, h.layer+"/empty", "")
	// The BLAKE3 of nothing, from its specification's test vectors.
	const want = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
	if got := h.read().Entries[0].After.Digest; got != want {
		t.Error(got)
	}
}

func TestOrdinaryUser(t *testing.T) {
	if inside() == privateMount {
		again(t, ordinaryUser, "^Test(Unreadable|Layer)")
	}
}

// Files and directories that deny their owner. Root reads them all the same;
// TestOrdinaryUser runs this as somebody who does not.
func TestUnreadable(t *testing.T) {
	h := newHandmade(t)
	for path, mode := range map[string]os.FileMode{
		"file000": 0, "same000": 0, "dir000/sub000/f000": 0, "dir0400/f": 0o644, "dir0100/f": 0o200,
	} {
		write(t, filepath.Join(h.layer, path), path)
		must(t, os.Chmod(filepath.Join(h.layer, path), mode))
	}
	modes := map[string]os.FileMode{
		"dir000/sub000": 0, "dir000": 0, "dir0400": 0o400, "dir0100": 0o100,
	}
	for _, path := range []string{"dir000/sub000", "dir000", "dir0400", "dir0100"} {
		must(t, os.Chmod(filepath.Join(h.layer, path), modes[path]))
	}
	must(t, os.Symlink("x", h.layer+"/link"))
	t.Cleanup(func() {
		for _, path := range []string{"dir000", "dir000/sub000", "dir0400", "dir0100"} {
			os.Chmod(filepath.Join(h.layer, path), 0o700)
		}
	})

	write(t, h.host+"/same000", "same000")
	must(t, os.Chmod(h.host+"/same000", 0))
	write(t, h.host+"/gone000/f", "")
	must(t, os.Chmod(h.host+"/gone000", 0))
	t.Cleanup(func() { os.Chmod(h.host+"/gone000", 0o700) })
	h.whiteout("gone000")

	want := map[string]Op{
		"file000": Created, "link": Created,
		"dir000": Created, "dir000/sub000": Created, "dir000/sub000/f000": Created,
		"dir0400": Created, "dir0400/f": Created, "dir0100": Created, "dir0100/f": Created,
		"gone000": Deleted,
	}
	if os.Geteuid() == 0 {
		want["gone000/f"] = Deleted
	} else {
		want["same000"] = Modified // who knows
	}
	c := h.read()
	wantOps(t, c, want)
	for _, e := range c.Entries {
		if e.After != nil && e.After.Type == fsat.Regular && e.After.Digest == "" {
			t.Errorf("%q has no digest", e.Path)
		}
		if e.Path == "dir000" && e.After.Mode != 0 || e.Path == "dir0400" && e.After.Mode != 0o400 {
			t.Errorf("%q has mode %#o", e.Path, e.After.Mode)
		}
	}
	src := h.source()
	var patch strings.Builder
	must(t, Patch(&patch, c, src.Layer, src.Workspace))
	if !strings.Contains(patch.String(), "+dir000/sub000/f000\n") {
		t.Errorf("the patch lacks it:\n%s", patch.String())
	}
	for path, mode := range map[string]os.FileMode{"file000": 0, "dir000": 0, "dir0400": 0o400, "dir0100": 0o100} {
		info, err := os.Lstat(filepath.Join(h.layer, path))
		must(t, err)
		if info.Mode().Perm() != mode {
			t.Errorf("%q was left with mode %v", path, info.Mode())
		}
	}
	for _, path := range []string{"dir000", "dir000/sub000"} {
		must(t, os.Chmod(filepath.Join(h.layer, path), 0o700))
		if path == "dir000" {
			info, err := os.Lstat(filepath.Join(h.layer, "dir000/sub000"))
			must(t, err)
			if info.Mode().Perm() != 0 {
				t.Errorf("the inner directory was left with mode %v", info.Mode())
			}
		}
	}
}

func TestReadRefusesAnUnknownForm(t *testing.T) {
	h := newHandmade(t)
	src := h.source()
	src.Form = "tar"
	if _, err := Read(src); err == nil {
		t.Fatal("it was read")
	}
}
