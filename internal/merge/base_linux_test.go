package merge

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/gitdb"
)

// host is a workspace with a repository, as it is up to the moment of a branch and
// after it.
type host struct {
	t    *testing.T
	path string
	fd   int
}

func newHost(t *testing.T) *host {
	h := &host{t: t, path: t.TempDir()}
	fd, err := unix.Open(h.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	h.fd = fd
	h.git("init", "-q")
	return h
}

func (h *host) git(args ...string) {
	h.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = h.path
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + h.path, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

func (h *host) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.path, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// pause lets the clock of the file system move on: it ticks in up to 10 ms.
func pause() { time.Sleep(30 * time.Millisecond) }

// settle makes the index newer than every file in it, so that none is racily
// clean.
func (h *host) settle() {
	h.t.Helper()
	pause()
	h.git("update-index", "-q", "--force-write-index", "--refresh")
	pause()
}

func (h *host) commit() {
	h.t.Helper()
	h.git("add", "-A")
	h.git("commit", "-q", "-m", "x")
	h.settle()
}

func (h *host) stat(name string) fsat.Stat {
	h.t.Helper()
	st, err := fsat.Lstat(h.fd, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return st
}

// branch takes the stamp of a branch.
func (h *host) branch() Branch {
	h.t.Helper()
	pause()
	h.write(".git/stamp", time.Now().String())
	stamp := h.stat(".git/stamp").Ctime
	pause()
	return Branch{Stamp: stamp}
}

// copied makes a record of a file, as a copied tree has it.
func (h *host) copied(b *Branch, name string) {
	st := h.stat(name)
	record := &changeset.Record{Path: name, Copy: st, HostIno: st.Ino}
	record.Copy.Ino = 1
	record.Copy.Ctime = fsat.Time{}
	b.Record = func(path string) *changeset.Record {
		if path == name {
			return record
		}
		return nil
	}
}

func (h *host) base(b Branch, e *changeset.Entry) ([]byte, bool, error) {
	h.t.Helper()
	dir, err := fsat.OpenDir(h.fd, ".git")
	if err != nil {
		h.t.Fatal(err)
	}
	defer unix.Close(dir)
	repo, err := gitdb.Open(gitdb.Dir{FD: dir})
	if err != nil {
		h.t.Fatal(err)
	}
	defer repo.Close()
	f, err := NewFinder(h.fd, repo, b)
	if err != nil {
		h.t.Fatal(err)
	}
	return f.Base(e)
}

func (h *host) known(what string, b Branch, e *changeset.Entry, want string, exactly bool) {
	h.t.Helper()
	content, exact, err := h.base(b, e)
	if err != nil || string(content) != want || exact != exactly {
		h.t.Errorf("%s: %q, exact %v, %v; want %q", what, content, exact, err, want)
	}
}

func (h *host) unknown(what string, b Branch, e *changeset.Entry, want error) {
	h.t.Helper()
	if content, _, err := h.base(b, e); !errors.Is(err, want) {
		h.t.Errorf("%s: %q, %v; want %v", what, content, err, want)
	}
}

func entry(name string, ino uint64) *changeset.Entry {
	return &changeset.Entry{Path: name, Op: changeset.Modified, BaseIno: ino, Before: &changeset.State{Type: fsat.Regular}}
}

func TestBase(t *testing.T) {
	h := newHost(t)
	h.write("clean", "clean\n")
	h.write("dir/packed", "packed\n")
	h.write("dirty", "in git\n")
	h.write("flagged", "x\n")
	h.commit()
	h.git("gc", "-q")
	h.git("update-index", "--assume-unchanged", "flagged")
	h.write("dirty", "saved later\n")
	h.write("untracked", "x\n")
	h.write("meant", "x\n")
	h.git("add", "-N", "meant")
	if err := os.Symlink("x", filepath.Join(h.path, "link")); err != nil {
		t.Fatal(err)
	}
	h.git("add", "link")
	h.settle()
	clean, packed, dirty := h.stat("clean").Ino, h.stat("dir/packed").Ino, h.stat("dirty").Ino
	b := h.branch()
	tree := b
	h.copied(&tree, "clean")
	dirtyTree := b
	h.copied(&dirtyTree, "dirty")

	// The user edits; this is why a base is wanted.
	for _, name := range []string{"clean", "dir/packed", "dirty", "untracked"} {
		h.write(name, "edited by the user\n")
	}
	h.known("clean", b, entry("clean", clean), "clean\n", false)
	h.known("clean, inode not known", b, entry("clean", 0), "clean\n", false)
	h.known("clean, in a copied tree", tree, entry("clean", 0), "clean\n", true)
	h.known("packed", b, entry("dir/packed", packed), "packed\n", false)
	h.unknown("another inode", b, entry("clean", clean+1), errUnsaved)
	h.unknown("untracked", b, entry("untracked", 0), errUntracked)
	h.unknown("to be added", b, entry("meant", 0), errUntracked)
	h.unknown("a symlink", b, entry("link", 0), errUntracked)
	h.unknown("a directory", b, entry("dir", 0), errUntracked)
	h.unknown("assumed unchanged", b, entry("flagged", 0), errFlagged)
	h.unknown("dirty, in a copied tree", dirtyTree, entry("dirty", dirty), errUnsaved)
	// The blind spot that the docstring names.
	h.known("dirty, in an overlay", b, entry("dirty", dirty), "in git\n", false)

	// What the branch saw decides alone.
	seen := b
	seen.Seen = func(*changeset.Entry) bool { return true }
	e := entry("clean", clean+1)
	e.Before.Digest = changeset.DigestOf([]byte("clean\n"))
	h.known("seen", seen, e, "clean\n", true)
	e.Before.Digest = changeset.DigestOf([]byte("saved later\n"))
	e.Path = "dirty"
	h.unknown("seen dirty", seen, e, errUnsaved)
	e.Path = "untracked"
	h.unknown("seen untracked", seen, e, errUntracked)

	// The user tells git of the edit: the index now knows no more than that.
	h.git("add", "clean", "dir/packed")
	h.settle()
	h.unknown("added since", b, entry("clean", 0), errNewer)
	e = entry("clean", 0)
	e.Before.Digest = changeset.DigestOf([]byte("clean\n"))
	h.known("added since, but seen, and in HEAD", seen, e, "clean\n", true)
}

func TestBaseAfterCheckoutAndRename(t *testing.T) {
	h := newHost(t)
	h.write("f", "one\n")
	h.commit()
	b := h.branch()
	// Replaced after the branch, with an old time: only the inode change time
	// tells, and the index with it.
	old := h.stat("f").Mtime
	h.write("new", "two\n")
	if err := os.Rename(filepath.Join(h.path, "new"), filepath.Join(h.path, "f")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(h.path, "f"), time.Time{}, time.Unix(old.Sec, old.Nsec)); err != nil {
		t.Fatal(err)
	}
	h.git("add", "f")
	h.settle()
	h.unknown("replaced and added", b, entry("f", 0), errNewer)
}

func TestBaseRacilyClean(t *testing.T) {
	h := newHost(t)
	h.write("f", "one\n")
	h.git("add", "f")
	// As if the index had been written in the same tick.
	st := h.stat("f")
	index := filepath.Join(h.path, ".git/index")
	if err := os.Chtimes(index, time.Time{}, time.Unix(st.Mtime.Sec, st.Mtime.Nsec)); err != nil {
		t.Fatal(err)
	}
	h.unknown("as new as the index", h.branch(), entry("f", st.Ino), errRacy)
}

func TestBaseConverted(t *testing.T) {
	h := newHost(t)
	h.git("config", "core.autocrlf", "true")
	h.git("config", "filter.rot.clean", "tr a-z n-za-m")
	h.git("config", "filter.rot.smudge", "tr a-z n-za-m")
	h.write(".gitattributes", "*.rot filter=rot\n*.ident ident\n/lfs/** filter=rot\nenc working-tree-encoding=UTF-16\n* text=auto\n")
	h.write("sub/.gitattributes", "[attr]odd filter=rot\n")
	for name, text := range map[string]string{
		"crlf": "a\r\nb\r\n", "lf": "a\nb\n", "x.rot": "abc\n", "x.ident": "$Id$\n", "lfs/x": "abc\n", "lfsx": "plain\n", "sub/x": "x\n", "sub2/x": "x\n",
	} {
		h.write(name, text)
	}
	h.commit()
	os.Remove(filepath.Join(h.path, "x.ident"))
	h.git("checkout", "x.ident")
	h.settle()
	b := h.branch()
	h.unknown("CRLF", b, entry("crlf", 0), errConverted)
	h.known("LF where CRLF is configured", b, entry("lf", 0), "a\nb\n", false)
	h.unknown("a filter that keeps the size", b, entry("x.rot", 0), errConverted)
	h.unknown("ident", b, entry("x.ident", 0), errConverted)
	h.unknown("a filter of a directory", b, entry("lfs/x", 0), errConverted)
	h.known("beside that directory", b, entry("lfsx", 0), "plain\n", false)
	h.unknown("a macro may do anything", b, entry("sub/x", 0), errConverted)
	h.known("beside the macro", b, entry("sub2/x", 0), "x\n", false)

	// git takes them from the index when they are gone.
	os.Remove(filepath.Join(h.path, ".gitattributes"))
	h.unknown("attributes only in the index", b, entry("x.rot", 0), errConverted)
	h.write(".git/info/attributes", "lf filter=rot\n")
	h.unknown("attributes of the repository", b, entry("lf", 0), errConverted)
}

// TestConvertsAgainstGit asks git which paths of many have a filter: none of them
// may be called plain.
func TestConvertsAgainstGit(t *testing.T) {
	names := []string{"a", "B", "a.txt", "dir/a", "dir/a.txt", "dir/sub/a", "A.TXT", "b[1].c", "b1.c", "sp ace", "dir/b1.c", `back\slash`}
	filtered := 0
	for _, pattern := range []string{
		"a", "*", "*.txt", "/a", "dir/a", "dir/*", "dir/**", "**/a", "dir/**/a", "b[1].c", "b[0-9].c", `b\[1\].c`, `"sp ace"`, "?.txt", "a*", "dir/", "/dir/*.c", "*.[ct]*", "[!b]*", "sub/a", "*/a", `back\\slash`,
	} {
		for _, ignoreCase := range []string{"true", "false"} {
			h := newHost(t)
			h.git("config", "core.ignoreCase", ignoreCase)
			text := "# comment filter=x\n" + pattern + " -text filter=x\n"
			h.write(".gitattributes", text)
			cmd := exec.Command("git", append([]string{"check-attr", "-z", "filter", "--"}, names...)...)
			cmd.Dir = h.path
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.path, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1"}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			fields := strings.Split(string(out), "\x00")
			for i, name := range names {
				if fields[3*i+2] != "x" {
					continue
				}
				if filtered++; !converts(text, name) {
					t.Errorf("%s gives %q a filter and it is called plain", pattern, name)
				}
			}
		}
	}
	if filtered == 0 {
		t.Error("git gives no path a filter: the test shows nothing")
	}
	if converts("*.bin filter=lfs\nassets/** filter=lfs\n", "src/main.go") {
		t.Error("LFS for some files makes all of them unknown")
	}
}

// TestUnseenEdit merges with the blob as base what both began with an edit that git
// was not told of, as Base says it goes.
func TestUnseenEdit(t *testing.T) {
	blob, edited := "a\nb\nc\nd\ne\n", "a\nEDIT\nc\nd\ne\n"
	for _, c := range []struct{ what, host, box, want string }{
		{"both keep it", edited + "host\n", "box\n" + edited, "box\n" + edited + "host\n"},
		{"one goes on editing there", "a\nEDIT more\nc\nd\ne\n", "box\n" + edited, ""},
		{"one has undone it", blob + "host\n", edited, edited + "host\n"}, // the undoing is lost
	} {
		merged, _, err := Text([]byte(blob), []byte(c.host), []byte(c.box), Labels{})
		if err != nil || string(merged) != c.want {
			t.Errorf("%s: %q, %v, want %q", c.what, merged, err, c.want)
		}
	}
}

func TestMerge(t *testing.T) {
	h := newHost(t)
	h.write("f", "a\nb\nc\nd\n")
	h.commit()
	b := h.branch()
	dir, err := fsat.OpenDir(h.fd, ".git")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	repo, err := gitdb.Open(gitdb.Dir{FD: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	f, err := NewFinder(h.fd, repo, b)
	if err != nil {
		t.Fatal(err)
	}
	merge := f.Merge(Labels{"workspace", "box"})
	for _, c := range []struct{ host, box, want, why string }{
		{"A\nb\nc\nd\n", "a\nb\nc\nD\n", "A\nb\nc\nD\n", ""},
		{"A\nb\nc\nd\n", "X\nb\nc\nd\n", "<<<<<<< workspace\nA\n=======\nX\n>>>>>>> box\nb\nc\nd\n", "1 place"},
		{"A\nb\nc\nd\n", "a\x00b", "", "NUL"},
	} {
		merged, clean, why := merge("f", entry("f", 0), []byte(c.host), []byte(c.box))
		if string(merged) != c.want || clean != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%q, %q: %q, %v, %q", c.host, c.box, merged, clean, why)
		}
	}
	if merged, clean, why := merge("g", entry("g", 0), nil, nil); merged != nil || clean || !strings.Contains(why, "does not track") {
		t.Errorf("untracked: %q %v %q", merged, clean, why)
	}
}
