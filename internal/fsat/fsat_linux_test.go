package fsat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir opens a directory that is removed by the code under test.
func tempDir(t testing.TB) (fd int, path string) {
	t.Helper()
	path, err := os.MkdirTemp("", "hutch-fsat-")
	must(t, err)
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() {
		entries, err := ReadDir(fd)
		for _, e := range entries {
			err = errors.Join(err, RemoveAll(fd, e.Name))
		}
		unix.Close(fd)
		if err = errors.Join(err, os.Remove(path)); err != nil {
			t.Error(err)
		}
	})
	return fd, path
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func openFDs(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// nest makes depth directories within each other and returns the innermost.
func nest(t testing.TB, fd int, name string, depth int) int {
	t.Helper()
	at, err := unix.Dup(fd)
	must(t, err)
	for range depth {
		next, err := Mkdir(at, name, 0o755)
		must(t, err)
		unix.Close(at)
		at = next
	}
	return at
}

func gone(t testing.TB, fd int, name string) {
	t.Helper()
	if _, err := LstatName(fd, name); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%q is still there: %v", name, err)
	}
}

func TestEscapes(t *testing.T) {
	fd, path := tempDir(t)
	write(t, path+"/in/f", "x")
	must(t, os.Symlink("/etc", path+"/abs"))
	must(t, os.Symlink("..", path+"/in/up"))
	must(t, os.Symlink("in", path+"/same"))
	must(t, os.Symlink("/proc/self/root", path+"/magic"))
	for _, rel := range []string{"", "..", "/", "/etc", "../x", "in/../..", "in/..", "./in", "in/.", "in//f", "in/", "a\x00b", "."} {
		if rel != "." {
			if err := Check(rel); !errors.Is(err, ErrEscape) {
				t.Errorf("Check(%q) = %v", rel, err)
			}
			if fd, err := OpenPath(fd, rel); !errors.Is(err, ErrEscape) {
				unix.Close(fd)
				t.Errorf("OpenPath(%q) = %v", rel, err)
			}
		}
		if err := RemoveAll(fd, rel); !errors.Is(err, ErrEscape) {
			t.Errorf("RemoveAll(%q) = %v", rel, err)
		}
		if _, err := Mkdir(fd, rel, 0o755); !errors.Is(err, ErrEscape) {
			t.Errorf("Mkdir(%q) = %v", rel, err)
		}
		if _, err := LstatName(fd, rel); !errors.Is(err, ErrEscape) && rel != "." {
			t.Errorf("LstatName(%q) = %v", rel, err)
		}
	}
	for _, rel := range []string{"abs/passwd", "in/up/in", "same/f", "magic/etc"} {
		if got, err := OpenPath(fd, rel); !errors.Is(err, unix.ELOOP) {
			unix.Close(got)
			t.Errorf("OpenPath(%q) = %v", rel, err)
		}
		if _, err := Lstat(fd, rel); !errors.Is(err, unix.ELOOP) {
			t.Errorf("Lstat(%q) = %v", rel, err)
		}
		if _, err := Readlink(fd, rel); !errors.Is(err, unix.ELOOP) {
			t.Errorf("Readlink(%q) = %v", rel, err)
		}
	}
	for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY | unix.O_CREAT, unix.O_RDONLY | unix.O_DIRECTORY} {
		if got, err := Open(fd, "abs", flags, 0o600); err == nil {
			unix.Close(got)
			t.Errorf("a symlink was opened with flags %#x", flags)
		}
	}
	got, err := Open(fd, "in/f", unix.O_RDONLY, 0)
	must(t, err)
	if flags, err := unix.FcntlInt(uintptr(got), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor would leak into commands")
	}
	unix.Close(got)
}

func TestCheckAgreesWithJoinAndSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a./\x00é]{0,8}`).Draw(t, "path")
		if Check(name) != nil {
			return
		}
		parent, last := Split(name)
		if Check(parent) != nil || Join(parent, last) != name {
			t.Fatalf("Split(%q) = %q, %q", name, parent, last)
		}
		if clean := filepath.Clean(name); clean != name || filepath.IsAbs(name) || !filepath.IsLocal(name) {
			t.Fatalf("%q passed Check", name)
		}
	})
}

func TestBeyondPathMax(t *testing.T) {
	before := openFDs(t)
	fd, _ := tempDir(t)
	name := strings.Repeat("n", 200)
	const depth = 100 // 20,000 bytes
	at := nest(t, fd, name, depth)
	defer unix.Close(at)
	must(t, unix.Symlinkat("text", at, "link"))
	rel := strings.Repeat(name+"/", depth)
	if got, err := Readlink(fd, rel+"link"); got != "text" || err != nil {
		t.Error(got, err)
	}
	if st, err := Lstat(fd, rel+"link"); st.Type != Symlink || err != nil {
		t.Error(st, err)
	}
	f, err := Open(fd, rel+"new", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	unix.Close(f)
	d, err := OpenDir(fd, strings.TrimSuffix(rel, "/"))
	must(t, err)
	entries, err := ReadDir(d)
	must(t, err)
	unix.Close(d)
	if len(entries) != 2 {
		t.Errorf("%v", entries)
	}
	if _, err := OpenPath(fd, rel+"none"); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	// A symlink where the path is cut must not be followed either.
	must(t, os.Symlink("/", fmt.Sprintf("/proc/self/fd/%d/s", fd)))
	if _, err := OpenPath(fd, "s/"+strings.TrimSuffix(rel, "/")); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
		t.Error(err)
	}
	if _, err := OpenPath(fd, strings.Repeat("x", 5000)); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Error(err)
	}
	for range 20 {
		OpenPath(fd, rel+"none/none")
	}
	if after := openFDs(t); after > before+2 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestReadDir(t *testing.T) {
	fd, path := tempDir(t)
	want := []string{"\x01", " ", "...", "-rf", "a\nb", "bad\xff", "é", strings.Repeat("n", 255)}
	for i := range 3000 {
		want = append(want, fmt.Sprintf("file-%d", i))
	}
	for _, name := range want {
		write(t, path+"/"+name, "")
	}
	slices.Sort(want)
	for range 2 { // from the start each time
		entries, err := ReadDir(fd)
		must(t, err)
		var got []string
		for _, e := range entries {
			got = append(got, e.Name)
			if e.Type != Regular || e.Ino == 0 {
				t.Errorf("%+v", e)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d names, want %d", len(got), len(want))
		}
	}
	must(t, os.Mkdir(path+"/empty", 0o755))
	d, err := OpenDir(fd, "empty")
	must(t, err)
	defer unix.Close(d)
	if entries, err := ReadDir(d); len(entries) > 0 || err != nil {
		t.Error(entries, err)
	}
}

func TestLstatTypes(t *testing.T) {
	fd, path := tempDir(t)
	write(t, path+"/file", "text")
	must(t, os.Mkdir(path+"/dir", 0o755))
	must(t, os.Symlink("x", path+"/link"))
	must(t, unix.Mkfifo(path+"/fifo", 0o600))
	must(t, unix.Mknod(path+"/socket", unix.S_IFSOCK|0o600, 0))
	want := map[string]Type{"file": Regular, "dir": Directory, "link": Symlink, "fifo": FIFO, "socket": Socket, ".": Directory}
	if os.Getuid() == 0 {
		must(t, unix.Mknod(path+"/white", unix.S_IFCHR, 0))
		want["white"] = CharDevice
	}
	for name, typ := range want {
		if st, err := Lstat(fd, name); st.Type != typ || err != nil || st.Ino == 0 || st.MntID == 0 {
			t.Errorf("%s: %+v %v", name, st, err)
		}
		text, _ := typ.MarshalText()
		var back Type
		if err := back.UnmarshalText(text); err != nil || back != typ {
			t.Errorf("%s: %q %v", name, text, err)
		}
	}
	must(t, SetTimes(fd, "link", Time{1, 2}, Time{3, 4}))
	if st, _ := LstatName(fd, "link"); st.Mtime != (Time{3, 4}) {
		t.Errorf("%+v", st)
	}
	p, err := OpenPath(fd, "link")
	must(t, err)
	defer unix.Close(p)
	must(t, SetTimesFD(p, Time{1, 2}, Time{5, 6}))
	if st, _ := Fstat(p); st.Mtime != (Time{5, 6}) || st.Type != Symlink {
		t.Errorf("%+v", st)
	}
}

func TestMkdirIsExact(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	fd, _ := tempDir(t)
	for _, mode := range []uint32{0o777, 0o1777, 0o2775, 0o000, 0o755} {
		name := fmt.Sprintf("%o", mode)
		d, err := Mkdir(fd, name, mode)
		must(t, err)
		unix.Close(d)
		if st, err := LstatName(fd, name); st.Mode != mode || err != nil {
			t.Errorf("%o: %+v %v", mode, st, err)
		}
		if _, err := Mkdir(fd, name, mode); !errors.Is(err, unix.EEXIST) {
			t.Error(err)
		}
	}
}

func TestXattrs(t *testing.T) {
	fd, path := tempDir(t)
	write(t, path+"/f", "")
	must(t, os.Symlink("f", path+"/link"))
	for _, flags := range []int{unix.O_RDONLY, unix.O_PATH} {
		f, err := Open(fd, "f", flags, 0)
		must(t, err)
		defer unix.Close(f)
		if err := SetXattr(f, "user.big", []byte(strings.Repeat("v", 1000))); errors.Is(err, unix.ENOTSUP) {
			t.Skip("no xattrs here")
		} else {
			must(t, err)
		}
		must(t, SetXattr(f, "user.empty", nil))
		must(t, SetXattr(f, "user.bytes", []byte("a\x00\xff")))
		names, err := Xattrs(f)
		must(t, err)
		names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "user.") })
		if strings.Join(names, " ") != "user.big user.bytes user.empty" {
			t.Errorf("%q", names)
		}
		for name, want := range map[string]string{"user.big": strings.Repeat("v", 1000), "user.empty": "", "user.bytes": "a\x00\xff"} {
			if got, ok, err := Xattr(f, name); string(got) != want || !ok || err != nil {
				t.Errorf("%s: %q %v %v", name, got, ok, err)
			}
		}
		if _, ok, err := Xattr(f, "user.none"); ok || err != nil {
			t.Error(ok, err)
		}
		for range 2 { // the second time it is not there
			must(t, RemoveXattr(f, "user.big"))
		}
		must(t, Chmod(f, 0o600))
	}
	// A symlink itself, not what it leads to.
	link, err := OpenPath(fd, "link")
	must(t, err)
	defer unix.Close(link)
	if names, err := Xattrs(link); slices.Contains(names, "user.bytes") || err != nil {
		t.Error(names, err)
	}
	if _, ok, err := Xattr(link, "user.bytes"); ok || err != nil {
		t.Error(ok, err)
	}
	if err := SetXattr(link, "user.x", nil); err == nil {
		t.Error("a symlink took a user xattr: was its target meant?")
	}
	if os.Getuid() == 0 {
		must(t, SetXattr(link, "trusted.x", []byte("v")))
		if got, ok, err := Xattr(link, "trusted.x"); string(got) != "v" || !ok || err != nil {
			t.Error(got, ok, err)
		}
		if names, err := Xattrs(link); !slices.Contains(names, "trusted.x") || err != nil {
			t.Error(names, err)
		}
		must(t, RemoveXattr(link, "trusted.x"))
	}
	if err := Chmod(link, 0o777); err == nil {
		t.Error("a symlink has no mode: was its target meant?")
	}
}

func TestCopyData(t *testing.T) {
	fd, path := tempDir(t)
	for i, c := range []struct {
		size int64
		data map[int64]string
	}{
		{0, nil},
		{5, map[int64]string{0: "hello"}},
		{16 << 20, nil},
		{16 << 20, map[int64]string{0: "start", 8 << 20: "middle", 16<<20 - 3: "end"}},
		{3 << 20, map[int64]string{1<<20 - 2: strings.Repeat("x", 1<<20+5)}},
	} {
		src, err := os.Create(fmt.Sprintf("%s/src%d", path, i))
		must(t, err)
		defer src.Close()
		must(t, src.Truncate(c.size))
		for at, text := range c.data {
			_, err := src.WriteAt([]byte(text), at)
			must(t, err)
		}
		must(t, src.Sync())
		for _, how := range []string{"kernel", "by hand"} {
			name := fmt.Sprintf("dst%d-%s", i, how)
			dst, err := Open(fd, name, unix.O_CREAT|unix.O_RDWR|unix.O_EXCL, 0o600)
			must(t, err)
			if how == "kernel" {
				must(t, CopyData(dst, int(src.Fd()), c.size))
			} else {
				must(t, unix.Ftruncate(dst, c.size))
				must(t, copyReadWrite(t.Context(), dst, int(src.Fd()), 0, c.size))
			}
			unix.Close(dst)
			want, err := os.ReadFile(src.Name())
			must(t, err)
			got, err := os.ReadFile(path + "/" + name)
			must(t, err)
			if string(got) != string(want) {
				t.Errorf("%s differs: %d bytes, want %d", name, len(got), len(want))
			}
			var a, b unix.Stat_t
			must(t, unix.Stat(src.Name(), &a))
			must(t, unix.Stat(path+"/"+name, &b))
			if how == "kernel" && b.Blocks > a.Blocks+64 {
				t.Errorf("%s has %d blocks, the source %d", name, b.Blocks, a.Blocks)
			}
		}
	}
	// A source that is shorter than was said, and a context that ended.
	src, err := os.Open(path + "/src1")
	must(t, err)
	defer src.Close()
	dst, err := os.Create(path + "/short")
	must(t, err)
	defer dst.Close()
	must(t, CopyData(int(dst.Fd()), int(src.Fd()), 100))
	if text, _ := os.ReadFile(path + "/short"); string(text) != "hello"+strings.Repeat("\x00", 95) {
		t.Errorf("%q", text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := CopyDataContext(ctx, int(dst.Fd()), int(src.Fd()), 5); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRemoveAll(t *testing.T) {
	fd, path := tempDir(t)
	outside, outsidePath := tempDir(t)
	write(t, outsidePath+"/keep/precious", "p")
	write(t, outsidePath+"/linked", "l")
	must(t, os.Chmod(outsidePath+"/keep", 0o500))

	must(t, RemoveAll(fd, "none"))
	write(t, path+"/file", "")
	must(t, RemoveAll(fd, "file"))
	gone(t, fd, "file")
	must(t, os.Symlink(outsidePath+"/keep", path+"/link"))
	must(t, RemoveAll(fd, "link"))
	gone(t, fd, "link")

	write(t, path+"/d/a/b/c", "")
	write(t, path+"/d/.hutch-remove-1", "a name of ours")
	must(t, os.Symlink(outsidePath+"/keep", path+"/d/dir-link"))
	must(t, os.Symlink(outsidePath+"/keep/precious", path+"/d/file-link"))
	must(t, os.Link(outsidePath+"/linked", path+"/d/hard"))
	must(t, unix.Mkfifo(path+"/d/fifo", 0))
	write(t, path+"/d/odd\n\xff/x", "")
	for _, mode := range []os.FileMode{0, 0o555, 0o111, 0o444, 0o200} {
		dir := fmt.Sprintf("%s/d/m%o", path, mode)
		write(t, dir+"/sub/f", "")
		must(t, os.Chmod(dir+"/sub/f", 0))
		must(t, os.Chmod(dir+"/sub", mode))
		must(t, os.Chmod(dir, mode))
	}
	must(t, os.Chmod(path+"/d", 0))
	before := openFDs(t)
	must(t, RemoveAll(fd, "d"))
	gone(t, fd, "d")
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	for name, mode := range map[string]uint32{"keep": 0o500, "keep/precious": 0o644, "linked": 0o644} {
		if st, err := Lstat(outside, name); err != nil || st.Mode != mode {
			t.Errorf("outside %s: %+v %v", name, st, err)
		}
	}
}

// TestRemoveDeep: a box nests directories, some of which deny their owner
// entry, deeper than descriptors or paths reach.
func TestRemoveDeep(t *testing.T) {
	for _, c := range []struct {
		depth int
		mode  uint32
	}{{20_000, 0o755}, {500, 0o555}, {500, 0}} {
		t.Run(fmt.Sprintf("%d-%o", c.depth, c.mode), func(t *testing.T) {
			fd, _ := tempDir(t)
			at, err := unix.Dup(fd)
			must(t, err)
			for range c.depth {
				next, err := Mkdir(at, "d", 0o755)
				must(t, err)
				if c.mode != 0o755 {
					// Its siblings and a name of RemoveAll's own.
					must(t, unix.Mkdirat(next, "e", c.mode))
					must(t, unix.Mkdirat(next, ".hutch-remove-2", c.mode))
				}
				unix.Close(at)
				at = next
			}
			unix.Close(at)
			if c.mode != 0o755 {
				lock(t, fd, c.depth, c.mode)
			}
			var old unix.Rlimit
			must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
			defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
			low := unix.Rlimit{Cur: 128, Max: old.Max}
			must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
			must(t, RemoveAll(fd, "d"))
			gone(t, fd, "d")
		})
	}
}

// TestRemoveDeepNames: the names that RemoveAll would move directories to are
// taken, by directories that it meets later.
func TestRemoveDeepNames(t *testing.T) {
	fd, path := tempDir(t)
	must(t, os.Mkdir(path+"/top", 0o755))
	top, err := OpenDir(fd, "top")
	must(t, err)
	for i := range 5 {
		write(t, fmt.Sprintf("%s/top/.hutch-remove-%d/f", path, i), "")
	}
	unix.Close(nest(t, top, "!", 300)) // sorts first
	unix.Close(top)
	must(t, RemoveAll(fd, "top"))
	gone(t, fd, "top")
}

// lock gives nested directories a mode, the innermost first.
func lock(t testing.TB, fd, depth int, mode uint32) {
	for n := depth; n > 0; n-- {
		p, err := OpenPath(fd, strings.TrimSuffix(strings.Repeat("d/", n), "/"))
		must(t, err)
		must(t, Chmod(p, mode))
		unix.Close(p)
	}
}

// TestRemoveWhileSwapped: what is removed may be swapped for a symlink by a
// process that is still there.
func TestRemoveWhileSwapped(t *testing.T) {
	outside, outsidePath := tempDir(t)
	for i := range 50 {
		write(t, fmt.Sprintf("%s/keep/f%d", outsidePath, i), "")
	}
	fd, path := tempDir(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.MkdirAll(path+"/d/x/y", 0o755)
			os.Rename(path+"/d/x", path+"/d/z")
			os.Symlink(outsidePath+"/keep", path+"/d/x")
			os.Remove(path + "/d/x")
			os.Rename(path+"/d/z", path+"/d/x")
		}
	}()
	for range 300 {
		RemoveAll(fd, "d") // may fail, since there is always more
	}
	close(stop)
	<-done
	if entries, err := os.ReadDir(outsidePath + "/keep"); len(entries) != 50 || err != nil {
		t.Errorf("%d files are left outside, %v", len(entries), err)
	}
	if st, err := Lstat(outside, "keep"); st.Mode != 0o755 || err != nil {
		t.Errorf("%+v %v", st, err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, s := range []string{"a", "a/b", "../x", "/x", "l/x", "a\x00", "", ".", "a//b"} {
		f.Add(s)
	}
	dir, err := os.MkdirTemp("", "hutch-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	os.MkdirAll(dir+"/a/b", 0o755)
	os.Symlink("/", dir+"/l")
	os.Symlink("..", dir+"/a/u")
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, rel string) {
		got, err := OpenPath(fd, rel)
		if err != nil {
			return
		}
		defer unix.Close(got)
		path, err := os.Readlink(procPath(got))
		if err != nil || path != dir && !strings.HasPrefix(path, dir+"/") {
			t.Errorf("%q leads to %q", rel, path)
		}
	})
}

func BenchmarkRemoveAll(b *testing.B) {
	fd, path := tempDir(b)
	for _, c := range []struct {
		name  string
		files int
	}{{"empty dir", 0}, {"box of 3", 3}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				must(b, os.Mkdir(path+"/d", 0o755))
				for i := range c.files {
					must(b, os.Mkdir(fmt.Sprintf("%s/d/%d", path, i), 0o755))
				}
				b.StartTimer()
				must(b, RemoveAll(fd, "d"))
			}
		})
	}
}
