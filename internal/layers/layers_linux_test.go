package layers

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

func testStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "layers"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// layer makes a frozen layer with the given files.
func layer(t *testing.T, s *Store, owner string, files map[string]string) string {
	t.Helper()
	id, err := s.New(owner)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := s.MakeUpper(id)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	fill(t, s.Path(id), files)
	return id
}

const (
	whiteout = "\x00whiteout"
	opaque   = "\x00opaque" // a directory
)

func fill(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, content := range files {
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case err != nil:
		case content == whiteout:
			err = unix.Mknod(path, unix.S_IFCHR, 0)
		case content == opaque:
			if err = os.MkdirAll(path, 0o755); err == nil {
				err = unix.Setxattr(path, User+"opaque", []byte("y"), 0)
			}
		default:
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func dirFD(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// look describes a path of an upper.
func look(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return ""
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		return whiteout
	case unix.S_IFDIR:
		if n, _ := unix.Getxattr(path, User+"opaque", make([]byte, 8)); n > 0 {
			return opaque
		}
		return "dir"
	}
	text, _ := os.ReadFile(path)
	return string(text)
}

func TestMergeIsWhatOverlayShows(t *testing.T) {
	dir := t.TempDir()
	low, high, union := filepath.Join(dir, "low"), filepath.Join(dir, "high"), filepath.Join(dir, "union")
	for _, d := range []string{low, high, union} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, low, map[string]string{"a": "low", "gone": "x", "kept": "k", "wiped": whiteout, "d/a": "1", "d/b": "2", "o/a": "1", "file": "f", "was/x": "1", "back": whiteout})
	fill(t, high, map[string]string{"a": "high", "gone": whiteout, "d/b": whiteout, "d/c": "3", "o": opaque, "o/b": "2", "file/in": "4", "was": "5", "back/x": "6"})
	if err := os.Chmod(filepath.Join(high, "d"), 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.Chmod(filepath.Join(high, "d"), 0o700)
		_ = os.Chmod(filepath.Join(union, "d"), 0o700)
	})
	if err := Merge(dirFD(t, union), []int{dirFD(t, high), dirFD(t, low)}, User); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"a": "high", "gone": whiteout, "kept": "k", "wiped": whiteout, "d": "dir", "d/a": "1", "d/b": whiteout, "d/c": "3",
		"o": opaque, "o/a": "", "o/b": "2",
		"file": opaque, "file/in": "4", // the file below hides what the workspace has there
		"was": "5", "back": opaque, "back/x": "6",
	} {
		if got := look(t, filepath.Join(union, path)); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	var a, b unix.Stat_t
	if unix.Stat(filepath.Join(low, "kept"), &a) != nil || unix.Stat(filepath.Join(union, "kept"), &b) != nil || a.Ino != b.Ino {
		t.Error("a file of a frozen layer was copied")
	}
	if info, err := os.Stat(filepath.Join(union, "d")); err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("d: %v, %v", info, err)
	}
}

// A copy shares no file with what it is of, is alike in all that a layer says,
// and keeps names of one file together.
func TestCopy(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, d := range []string{from, to} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	fill(t, from, map[string]string{"d/a": "1", "w": whiteout, "o": opaque, "o/x": "2"})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Link(filepath.Join(from, "d/a"), filepath.Join(from, "b")))
	must(os.Symlink("nowhere", filepath.Join(from, "l")))
	must(unix.Mkfifo(filepath.Join(from, "p"), 0o640))
	must(unix.Setxattr(filepath.Join(from, "b"), "user.note", []byte("n"), 0))
	must(os.Chmod(filepath.Join(from, "b"), 0o640))
	past := time.Unix(1_000_000_000, 5)
	must(os.Chtimes(filepath.Join(from, "d"), past, past))
	must(Copy(dirFD(t, to), dirFD(t, from), User))
	for path, want := range map[string]string{"d/a": "1", "b": "1", "w": whiteout, "o": opaque, "o/x": "2"} {
		if got := look(t, filepath.Join(to, path)); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	var src, a, b unix.Stat_t
	must(unix.Lstat(filepath.Join(from, "b"), &src))
	must(unix.Lstat(filepath.Join(to, "d/a"), &a))
	must(unix.Lstat(filepath.Join(to, "b"), &b))
	if a.Ino != b.Ino || b.Ino == src.Ino || b.Mode != src.Mode || b.Mtim != src.Mtim || b.Nlink != 2 {
		t.Errorf("copied %+v and %+v of %+v", a, b, src)
	}
	note := make([]byte, 8)
	if n, err := unix.Getxattr(filepath.Join(to, "b"), "user.note", note); err != nil || string(note[:n]) != "n" {
		t.Errorf("attribute: %q, %v", note, err)
	}
	if target, err := os.Readlink(filepath.Join(to, "l")); err != nil || target != "nowhere" {
		t.Errorf("link: %q, %v", target, err)
	}
	if info, err := os.Stat(filepath.Join(to, "d")); err != nil || !info.ModTime().Equal(past) {
		t.Errorf("time of a directory: %v, %v", info, err)
	}
	if info, err := os.Lstat(filepath.Join(to, "p")); err != nil || info.Mode()&os.ModeNamedPipe == 0 || info.Mode().Perm() != 0o640 {
		t.Errorf("fifo: %v, %v", info, err)
	}
}

func TestLayerGoesWithItsLastReference(t *testing.T) {
	s := testStore(t)
	id := layer(t, s, "one", map[string]string{"a": "1"})
	there := func() bool { _, err := os.Stat(s.Path(id)); return err == nil }
	if err := s.Ref(id, "two"); err != nil {
		t.Fatal(err)
	}
	if err := s.Unref(id, "one"); err != nil || !there() {
		t.Fatalf("with a reference left: %v, there %t", err, there())
	}
	hold, err := s.Lock([]string{id})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Unref(id, "two"); err != nil || !there() {
		t.Errorf("while it is mounted: %v, there %t", err, there())
	}
	hold.Release()
	if _, err := s.Collect(func(string, string) bool { return true }, time.Hour); err != nil || !there() {
		t.Errorf("one that is young: %v, there %t", err, there())
	}
	if n, err := s.Collect(func(string, string) bool { return true }, 0); err != nil || n != 1 || there() {
		t.Errorf("collected %d, %v, there %t", n, err, there())
	}
	if err := s.Unref(id, "two"); err != nil {
		t.Errorf("of a layer that is gone: %v", err)
	}
}

// References by boxes that are gone are dropped, others stay.
func TestCollect(t *testing.T) {
	s := testStore(t)
	dead, alive := layer(t, s, "dead", nil), layer(t, s, "alive", nil)
	if err := s.Ref(alive, "dead"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.path, gonePrefix+"half"), 0o700); err != nil {
		t.Fatal(err)
	}
	n, err := s.Collect(func(owner, _ string) bool { return owner == "alive" }, 0)
	if err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	entries, _ := os.ReadDir(s.path)
	if len(entries) != 1 || entries[0].Name() != alive {
		t.Errorf("left %v, want %s without %s", entries, alive, dead)
	}
	if refs, err := s.refs(alive); err != nil || len(refs) != 1 {
		t.Errorf("references %v, %v", refs, err)
	}
}

func TestSeenIsKeptWithTheLayer(t *testing.T) {
	s := testStore(t)
	id := layer(t, s, "one", nil)
	if s.Seen(id) != nil {
		t.Error("something is known of a layer that nobody looked at")
	}
	seen := changeset.NewSeen()
	seen.Paths["a"] = 7
	if err := s.SaveSeen(id, seen); err != nil {
		t.Fatal(err)
	}
	if got := s.Seen(id); got == nil || got.Paths["a"] != 7 {
		t.Errorf("%+v", got)
	}
	if err := os.Truncate(filepath.Join(s.path, id, seenName), 3); err != nil {
		t.Fatal(err)
	}
	if s.Seen(id) != nil {
		t.Error("half a file is believed")
	}
}

// A box makes directories without end at no cost; a union of them is refused
// with a line, not with the memory of the host.
func TestPathsAreBounded(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, d := range []string{from, to} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := dirFD(t, dir)
	t.Cleanup(func() {
		for _, name := range []string{"from", "to"} {
			if err := fsat.RemoveAll(root, name); err != nil {
				t.Error(err)
			}
		}
	})
	name := string(make([]byte, 0))
	for range 250 {
		name += "x"
	}
	at := dirFD(t, from)
	for range maxPath/250 + 2 {
		if err := unix.Mkdirat(at, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(next)
		at = next
	}
	if err := Copy(dirFD(t, to), dirFD(t, from), User); err == nil {
		t.Error("a path without end is copied")
	}
}
