package workspace

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// place is a pair of strategy and file system to test.
type place struct {
	strategy Strategy
	dir      string
}

func (p place) String() string { return string(p.strategy) + "@" + filepath.Base(p.dir) }

func places() []place {
	all := []place{{Copy, os.TempDir()}}
	for _, dir := range reflinkDirs {
		all = append(all, place{Copy, dir}, place{Reflink, dir})
	}
	return all
}

// everything builds a workspace with all that one can hold.
func everything(t testing.TB, root string) {
	write(t, root+"/plain", "hello", 0o644)
	write(t, root+"/empty", "", 0o600)
	write(t, root+"/script", "#!/bin/sh\n", 0o755)
	write(t, root+"/read-only", "r", 0o444)
	write(t, root+"/setuid", "s", 0o4755)
	write(t, root+"/a/b/c/deep", "deep", 0o640)
	write(t, root+"/.git/HEAD", "ref: refs/heads/main\n", 0o644)
	write(t, root+"/.hutch/txn-1/slot", "staged", 0o644)
	write(t, root+"/a/.hutch/kept", "not at the top", 0o644)
	write(t, root+"/odd\nname", "newline", 0o644)
	write(t, root+"/bad\xff\xfeutf8", "bytes", 0o644)
	write(t, root+"/-rf", "dash", 0o644)
	write(t, root+"/"+strings.Repeat("n", 255), "long", 0o644)
	must(t, os.MkdirAll(root+"/hollow", 0o755))
	must(t, os.Mkdir(root+"/sticky", 0o700))
	must(t, unix.Chmod(root+"/sticky", 0o1777))
	must(t, os.Mkdir(root+"/setgid", 0o700))
	must(t, unix.Chmod(root+"/setgid", 0o2755))
	must(t, os.Symlink("a/b", root+"/link"))
	must(t, os.Symlink("/etc/passwd", root+"/outward"))
	must(t, os.Symlink("no/such\xff", root+"/dangling"))
	must(t, os.Symlink(strings.Repeat("x/", 500), root+"/longlink"))
	must(t, unix.Mkfifo(root+"/fifo", 0o640))
	must(t, unix.Mknod(root+"/socket", unix.S_IFSOCK|0o755, 0))
	// Hard links in and across directories, and one to outside.
	write(t, root+"/hard1", "linked", 0o644)
	must(t, os.Link(root+"/hard1", root+"/a/hard2"))
	must(t, os.Link(root+"/hard1", root+"/a/b/hard3"))
	must(t, os.Symlink("target", root+"/hardlink1"))
	must(t, unix.Linkat(unix.AT_FDCWD, root+"/hardlink1", unix.AT_FDCWD, root+"/a/hardlink2", 0))
	write(t, root+".outside", "store", 0o644)
	t.Cleanup(func() { os.Remove(root + ".outside") })
	must(t, os.Link(root+".outside", root+"/from-store"))
	// Sparse: a hole, data, a hole.
	f, err := os.Create(root + "/sparse")
	must(t, err)
	must(t, f.Truncate(8<<20))
	_, err = f.WriteAt([]byte("island"), 4<<20)
	must(t, err)
	must(t, f.Close())
	if err := unix.Setxattr(root+"/plain", "user.note", []byte("v\x00w"), 0); err != nil {
		must(t, ignore(err, unix.ENOTSUP))
	} else {
		must(t, unix.Setxattr(root+"/a", "user.dir", []byte("d"), 0))
		must(t, unix.Setxattr(root, "user.root", []byte("r"), 0))
	}
	write(t, root+"/locked/inside", "x", 0o400)
	must(t, unix.Chmod(root+"/locked", 0o555))
	if os.Getuid() == 0 {
		must(t, os.Chown(root+"/setuid", 1234, 4321))
		must(t, unix.Chmod(root+"/setuid", 0o4755))
		must(t, os.Lchown(root+"/link", 1234, 4321))
		must(t, os.Chown(root+"/a", 1234, 4321))
		must(t, unix.Mknod(root+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		must(t, unix.Mknod(root+"/whiteout", unix.S_IFCHR, 0))
	}
	// Times that nothing has by chance, with nanoseconds.
	when := time.Unix(1_000_000_000, 123_456_789)
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		when = when.Add(time.Second)
		ts := []unix.Timespec{{Sec: when.Unix(), Nsec: 1}, {Sec: when.Unix(), Nsec: int64(when.Nanosecond())}}
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW)
	}))
}

func ignore(err error, these ...error) error {
	for _, e := range these {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}

// view is what a copy must have in common with its source.
type view struct {
	Type         fsat.Type
	Mode         uint32
	UID, GID     uint32
	Size         int64
	Mtime        fsat.Time
	Content      string
	Xattrs       map[string]string
	Twin         string // the first path with the same inode
	Blocks       bool   // holds far fewer blocks than bytes
	AccessedLate bool
}

func look(t testing.TB, root string, skip ...string) map[string]view {
	t.Helper()
	fd := openFD(t, root)
	seen := map[uint64]string{}
	all := map[string]view{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if slices.Contains(skip, rel) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		st, err := fsat.Lstat(fd, rel)
		if err != nil {
			return err
		}
		v := view{Type: st.Type, Mode: st.Mode, UID: st.UID, GID: st.GID, Mtime: st.Mtime, Xattrs: map[string]string{}}
		// There is no O_NOATIME for readlink(2).
		v.AccessedLate = st.Type != fsat.Symlink && st.Atime.Sec > 1_500_000_000
		p, err := fsat.OpenPath(fd, rel)
		if err != nil {
			return err
		}
		defer unix.Close(p)
		switch st.Type {
		case fsat.Regular:
			v.Size = st.Size
			f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOATIME, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			content := make([]byte, st.Size)
			if _, err := f.ReadAt(content, 0); err != nil && st.Size > 0 {
				return err
			}
			v.Content = strings.TrimLeft(string(content), "\x00")
			var x unix.Stat_t
			must(t, unix.Fstat(int(f.Fd()), &x))
			v.Blocks = x.Blocks*512 < x.Size/2
			v.Blocks = v.Blocks && x.Size > 1<<20
		case fsat.Symlink:
			if v.Content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		names, err := fsat.Xattrs(p)
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, "user.") {
				value, _, err := fsat.Xattr(p, name)
				must(t, err)
				v.Xattrs[name] = hex.EncodeToString(value)
			}
		}
		if first, ok := seen[st.Ino]; ok {
			v.Twin = first
		} else {
			seen[st.Ino] = rel
		}
		all[rel] = v
		return nil
	}))
	return all
}

func makeIn(t testing.TB, ctx context.Context, ws *Workspace, s Strategy, in string) (*Branch, string, error) {
	t.Helper()
	box := tempDir(t, in)
	b, err := Make(ctx, Request{Workspace: ws, Strategy: s, BoxFD: openFD(t, box), BoxPath: box})
	return b, box, err
}

// empty checks that nothing of a failed branch was left.
func empty(t testing.TB, box string) {
	t.Helper()
	entries, err := os.ReadDir(box)
	must(t, err)
	if len(entries) > 0 {
		t.Errorf("left behind in the box: %v", entries)
	}
}

func TestTreeIsFaithful(t *testing.T) {
	for _, p := range places() {
		t.Run(p.String(), func(t *testing.T) {
			root := tempDir(t, p.dir) + "/ws"
			must(t, os.Mkdir(root, 0o755))
			everything(t, root)
			skip := []string{".hutch", "null", "whiteout"}
			before := look(t, root)
			ws := open(t, root)
			b, box, err := makeIn(t, t.Context(), ws, p.strategy, p.dir)
			must(t, err)
			want, got := look(t, root, skip...), look(t, box+"/"+b.Layer)
			if os.Getuid() != 0 {
				// The owner is the same: an ordinary user made both.
				for _, v := range want {
					if v.UID != uint32(os.Getuid()) {
						t.Fatal("the test's own files have another owner")
					}
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("workspace (-) and copy (+) differ:\n%s", d)
			}
			if d := cmp.Diff(before, look(t, root)); d != "" {
				t.Errorf("the workspace was changed:\n%s", d)
			}
			if b.FilesCloned != int64(countFiles(got)) {
				t.Errorf("FilesCloned = %d, want %d", b.FilesCloned, countFiles(got))
			}
			if os.Getuid() == 0 && !strings.Contains(strings.Join(b.Notes, "\n"), `"null"`) {
				t.Errorf("no note of the device left out: %q", b.Notes)
			}
			// Never one inode with the host: a write there would go through.
			fd := openFD(t, root)
			tree := openFD(t, box+"/"+b.Layer)
			for rel := range got {
				h, err := fsat.Lstat(fd, rel)
				must(t, err)
				c, err := fsat.Lstat(tree, rel)
				must(t, err)
				if h.Ino == c.Ino && h.Dev == c.Dev {
					t.Errorf("%q is the host's own inode", rel)
				}
			}
			checkManifest(t, box, b, fd, tree, got)
			if p.strategy == Reflink {
				if slices.ContainsFunc(b.Notes, func(s string) bool { return strings.Contains(s, "were copied") }) {
					t.Errorf("not all was cloned: %q", b.Notes)
				}
			}
		})
	}
}

func countFiles(all map[string]view) (n int) {
	for _, v := range all {
		if v.Type == fsat.Regular && v.Twin == "" {
			n++
		}
	}
	return n
}

// TestSetuidOfAnother: setuid and setgid do not pass to the one who copies.
func TestSetuidOfAnother(t *testing.T) {
	st := fsat.Stat{Type: fsat.Regular, Mode: 0o6755, UID: uint32(os.Geteuid()) + 1, GID: uint32(os.Getegid()) + 1}
	if os.Geteuid() == 0 {
		t.Skip("root keeps the owner")
	}
	path := tempDir(t, "") + "/f"
	write(t, path, "", 0o600)
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, setAttributes(fd, st))
	if st, err = fsat.Fstat(fd); err != nil || st.Mode != 0o755 {
		t.Errorf("mode %o, %v; want 755", st.Mode, err)
	}
}

// checkManifest checks that every path is in it as it is now: had an attribute
// been set after its stat, the ctime would differ.
func checkManifest(t *testing.T, box string, b *Branch, host, tree int, got map[string]view) {
	t.Helper()
	records := readManifest(t, box+"/"+b.Manifest)
	if len(records) != len(got) {
		t.Errorf("the manifest has %d records for %d paths", len(records), len(got))
	}
	var latest fsat.Time
	for _, r := range records {
		st, err := fsat.Lstat(tree, r.Path)
		must(t, err)
		// Of a Stat the manifest keeps what follows.
		st = fsat.Stat{Type: st.Type, Mode: st.Mode, UID: st.UID, GID: st.GID, Size: st.Size, Ino: st.Ino, Mtime: st.Mtime, Ctime: st.Ctime}
		if d := cmp.Diff(r.Copy, st); d != "" {
			t.Errorf("%q: manifest (-) and file (+) differ:\n%s", r.Path, d)
		}
		h, err := fsat.Lstat(host, r.Path)
		must(t, err)
		if r.HostIno != h.Ino {
			t.Errorf("%q: host inode %d, want %d", r.Path, r.HostIno, h.Ino)
		}
		if latest.Before(st.Ctime) {
			latest = st.Ctime
		}
	}
	// And the next change is seen.
	for range 50 {
		path := box + "/" + b.Layer + "/plain"
		old, err := fsat.Lstat(tree, "plain")
		must(t, err)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		f.Write([]byte("H"))
		f.Close()
		st, err := fsat.Lstat(tree, "plain")
		must(t, err)
		if !old.Ctime.Before(st.Ctime) || !latest.Before(st.Ctime) {
			t.Fatalf("a write after the branch has ctime %v, not after %v and %v", st.Ctime, old.Ctime, latest)
		}
	}
}

func TestReflinkRefused(t *testing.T) {
	root, box := tempDir(t, ""), tempDir(t, "")
	if err := clones(root); err == nil {
		t.Skipf("%s has reflinks", os.TempDir())
	}
	refused := func(files bool) {
		ws := open(t, root)
		_, err := Make(t.Context(), Request{Workspace: ws, Strategy: Reflink, BoxFD: openFD(t, box), BoxPath: box})
		var errno unix.Errno
		if !errors.Is(err, ErrUnsupported) || !errors.As(err, &errno) {
			t.Errorf("with files %v: %v, want ErrUnsupported with an errno", files, err)
		}
		empty(t, box)
	}
	refused(false)
	write(t, root+"/f", "x", 0o644)
	refused(true)
}

func clones(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = probeReflink(fd, fd)
	return err
}

// TestReflinkAcross: workspace and box on different file systems, both with
// reflinks, where the workspace takes no probe file.
func TestReflinkAcross(t *testing.T) {
	if len(reflinkDirs) < 2 {
		t.Skip("needs two file systems with reflinks")
	}
	root := tempDir(t, reflinkDirs[0])
	write(t, root+"/d/f", "x", 0o644)
	_, box, err := makeIn(t, t.Context(), open(t, root), Reflink, reflinkDirs[1])
	if !errors.Is(err, ErrUnsupported) || !errors.Is(err, unix.EXDEV) {
		t.Errorf("%v, want ErrUnsupported with EXDEV", err)
	}
	empty(t, box)

	if os.Getuid() != 0 {
		return
	}
	mnt := tempDir(t, "")
	must(t, unix.Mount(root, mnt, "", unix.MS_BIND, ""))
	defer unix.Unmount(mnt, unix.MNT_DETACH)
	must(t, unix.Mount("", mnt, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	ws := open(t, mnt)
	defer ws.Close()
	_, box, err = makeIn(t, t.Context(), ws, Reflink, reflinkDirs[1])
	if !errors.Is(err, ErrUnsupported) || !errors.Is(err, unix.EXDEV) {
		t.Errorf("read-only: %v, want ErrUnsupported with EXDEV", err)
	}
	empty(t, box)
	_, _, err = makeIn(t, t.Context(), ws, Reflink, reflinkDirs[0])
	must(t, err)
}

func TestUnreadable(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	for _, what := range []string{"file", "dir"} {
		root := tempDir(t, "")
		write(t, root+"/a/ok", "x", 0o644)
		path := root + "/a/secret"
		if what == "file" {
			write(t, path, "x", 0)
		} else {
			must(t, os.Mkdir(path, 0o700))
			must(t, unix.Chmod(path, 0))
		}
		_, box, err := makeIn(t, t.Context(), open(t, root), Copy, "")
		if err == nil || !strings.Contains(err.Error(), `"a/secret"`) || !strings.Contains(err.Error(), "use --strategy overlay, or make it readable") {
			t.Errorf("%s: %v", what, err)
		}
		empty(t, box)
	}
}

func TestMountsAreNotCrossed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	root := tempDir(t, "")
	write(t, root+"/mnt/covered", "x", 0o644)
	write(t, root+"/bound", "under", 0o644)
	write(t, root+".file", "over", 0o644)
	defer os.Remove(root + ".file")
	must(t, unix.Mount("tmpfs", root+"/mnt", "tmpfs", 0, "mode=0751"))
	defer unix.Unmount(root+"/mnt", unix.MNT_DETACH)
	write(t, root+"/mnt/inside", "x", 0o644)
	must(t, unix.Mount(root+".file", root+"/bound", "", unix.MS_BIND, ""))
	defer unix.Unmount(root+"/bound", unix.MNT_DETACH)
	b, box, err := makeIn(t, t.Context(), open(t, root), Copy, "")
	must(t, err)
	empty(t, box+"/tree/mnt")
	if len(b.Notes) != 1 || !strings.Contains(b.Notes[0], `"mnt"`) {
		t.Errorf("notes %q", b.Notes)
	}
	if text, err := os.ReadFile(box + "/tree/bound"); string(text) != "over" {
		t.Errorf("a mounted file: %q %v", text, err)
	}
}

func TestForcedWorkspaceHoldsTheBox(t *testing.T) {
	root := tempDir(t, "")
	t.Setenv("XDG_STATE_HOME", root+"/state")
	write(t, root+"/f", "x", 0o644)
	write(t, root+"/state/hutch/boxes/other/f", "x", 0o644)
	box := root + "/elsewhere/box"
	must(t, os.MkdirAll(box, 0o700))
	ws, err := Open(root, true)
	must(t, err)
	defer ws.Close()
	b, err := Make(t.Context(), Request{Workspace: ws, Strategy: Copy, BoxFD: openFD(t, box), BoxPath: box})
	must(t, err)
	var got []string
	for rel := range look(t, box+"/tree") {
		got = append(got, rel)
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{".", "elsewhere", "f", "state"}, got); d != "" {
		t.Error(d)
	}
	if len(b.Notes) != 1 {
		t.Errorf("notes %q", b.Notes)
	}
}

func TestDeepTree(t *testing.T) {
	const depth = 2200 // paths of 4,400 bytes, more than PATH_MAX
	root := tempDir(t, "")
	fd := openFD(t, root)
	defer fsat.RemoveAll(fd, "d")
	at, err := unix.Dup(fd)
	must(t, err)
	for range depth {
		must(t, unix.Mkdirat(at, "d", 0o755))
		next, err := fsat.OpenDir(at, "d")
		must(t, err)
		unix.Close(at)
		at = next
	}
	f, err := fsat.Open(at, "leaf", unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, err)
	unix.Close(f)
	unix.Close(at)
	box := tempDir(t, "")
	boxFD := openFD(t, box)
	defer fsat.RemoveAll(boxFD, "tree")
	before := openFDs(t)
	_, err = Make(t.Context(), Request{Workspace: open(t, root), Strategy: Copy, BoxFD: boxFD, BoxPath: box})
	must(t, err)
	if _, err := fsat.Lstat(boxFD, "tree/"+strings.Repeat("d/", depth)+"leaf"); err != nil {
		t.Error("the leaf was not copied")
	}
	if after := openFDs(t); after > before+1 { // the workspace's own
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func openFDs(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// TestFewDescriptors copies with a limit that a walk which holds a descriptor
// a level or an entry would exceed.
func TestFewDescriptors(t *testing.T) {
	root := tempDir(t, "")
	for i := range 20 {
		write(t, fmt.Sprintf("%s/w%d/%s/f", root, i, strings.Repeat("x/", 60)), "x", 0o644)
	}
	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	low := old
	low.Cur = 48
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	_, _, err := makeIn(t, t.Context(), open(t, root), Copy, "")
	must(t, err)
}

func TestChangesDuringTheWalk(t *testing.T) {
	root := tempDir(t, "")
	for i := range 400 {
		write(t, fmt.Sprintf("%s/d%d/f%d", root, i%20, i), "x", 0o644)
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := fmt.Sprintf("%s/d%d/f%d", root, i%20, i%400)
			os.Remove(p)
			switch i % 5 {
			case 0:
				os.WriteFile(p, []byte("y"), 0o644)
			case 1:
				os.Symlink("/etc/passwd", p)
			case 2:
				os.Mkdir(p, 0o755)
			case 3:
				unix.Mkfifo(p, 0o644)
			case 4:
				os.WriteFile(p, []byte("z"), 0o644)
				os.Link(p, p+"x")
				os.Remove(p + "x")
			}
			if i%50 == 0 {
				os.Rename(fmt.Sprintf("%s/d%d", root, i%20), fmt.Sprintf("%s/moved", root))
				os.Rename(fmt.Sprintf("%s/moved", root), fmt.Sprintf("%s/d%d", root, i%20))
			}
		}
	}()
	for range 20 {
		_, box, err := makeIn(t, t.Context(), open(t, root), Copy, "")
		if err != nil {
			t.Error(err)
			empty(t, box)
		}
	}
	close(stop)
	<-done
}

func TestCancel(t *testing.T) {
	root := tempDir(t, "")
	for i := range 2000 {
		write(t, fmt.Sprintf("%s/d%d/f%d", root, i%7, i), "x", 0o644)
	}
	ws := open(t, root)
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, box, err := makeIn(t, ctx, ws, Copy, "")
		cancel()
		if err == nil {
			continue // was faster
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", after, err)
		}
		empty(t, box)
	}
}

func TestSubvolumes(t *testing.T) {
	for _, dir := range reflinkDirs {
		root := tempDir(t, dir)
		write(t, root+"/f", "x", 0o644)
		if out, err := exec.Command("btrfs", "subvolume", "create", root+"/sub").CombinedOutput(); err != nil {
			t.Logf("%s: %v %s", dir, err, out)
			continue
		}
		write(t, root+"/sub/f", "y", 0o644)
		b, box, err := makeIn(t, t.Context(), open(t, root), Reflink, dir)
		must(t, err)
		if text, err := os.ReadFile(box + "/tree/sub/f"); string(text) != "y" || len(b.Notes) > 0 {
			t.Errorf("%q %v %q", text, err, b.Notes)
		}
		exec.Command("btrfs", "subvolume", "delete", root+"/sub").Run()
	}
}

func BenchmarkTree(b *testing.B) {
	for _, p := range places() {
		b.Run(p.String(), func(b *testing.B) {
			root := tempDir(b, p.dir)
			for i := range 10_000 {
				write(b, fmt.Sprintf("%s/d%d/e%d/f%d", root, i%10, i%100, i), strings.Repeat("x", 1000+i%3000), 0o644)
			}
			unix.Sync()
			ws := open(b, root)
			for b.Loop() {
				b.StopTimer()
				box := tempDir(b, p.dir)
				fd := openFD(b, box)
				b.StartTimer()
				_, err := Make(b.Context(), Request{Workspace: ws, Strategy: p.strategy, BoxFD: fd, BoxPath: box})
				must(b, err)
				b.StopTimer()
				must(b, fsat.RemoveAll(fd, "tree"))
				must(b, fsat.RemoveAll(fd, "manifest"))
				b.StartTimer()
			}
		})
	}
}
