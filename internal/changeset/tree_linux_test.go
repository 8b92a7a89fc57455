package changeset

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hutch/internal/fsat"
)

// copied is a workspace, a full copy of it, and the manifest of that.
type copied struct {
	t          testing.TB
	host, tree string
	manifest   *os.File
}

// newCopied copies host, which is in dir already.
func newCopied(t testing.TB, dir string) *copied {
	t.Helper()
	c := &copied{t: t, host: dir + "/host", tree: dir + "/tree"}
	must(t, os.Mkdir(c.tree, 0o755))
	var paths []string
	must(t, filepath.WalkDir(c.host, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(c.host, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		to := filepath.Join(c.tree, rel)
		paths = append(paths, rel)
		switch {
		case rel == ".":
		case d.IsDir():
			err = os.Mkdir(to, info.Mode())
		case d.Type()&fs.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(path); err == nil {
				err = os.Symlink(target, to)
			}
		default:
			var data []byte
			if data, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(to, data, info.Mode())
			}
		}
		if err == nil && d.Type()&fs.ModeSymlink == 0 {
			value := make([]byte, 64)
			if n, e := unix.Lgetxattr(path, "user.note", value); e == nil {
				err = unix.Lsetxattr(to, "user.note", value[:n], 0)
			}
			if err == nil {
				err = os.Chmod(to, info.Mode())
			}
		}
		return err
	}))
	hostFD, treeFD := openDir(t, c.host), openDir(t, c.tree)
	defer closeAll(hostFD, treeFD)
	var records []Record
	for _, path := range paths {
		st, err := fsat.Lstat(treeFD, path)
		must(t, err)
		records = append(records, Record{Path: path, Copy: st, HostIno: inode(t, c.host, path)})
	}
	var err error
	c.manifest, err = os.Create(dir + "/manifest")
	must(t, err)
	must(t, WriteManifest(c.manifest, records))
	return c
}

func (c *copied) read() *Changeset {
	c.t.Helper()
	src := Source{Form: Tree, Layer: openDir(c.t, c.tree), Workspace: openDir(c.t, c.host), Merged: -1, Manifest: int(c.manifest.Fd())}
	defer closeAll(src.Layer, src.Workspace)
	return readSource(c.t, src)
}

func TestTreeEqualsNaiveComparison(t *testing.T) {
	top := t.TempDir()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		dir := filepath.Join(top, fmt.Sprint(round))
		must(rt, os.MkdirAll(dir+"/host", 0o755))
		defer os.RemoveAll(dir)
		populate(t, dir+"/host")
		for _, op := range rapid.SliceOfN(operationGen, 0, 25).Draw(rt, "before") {
			_ = op.apply(dir + "/host")
		}
		b := newCopied(t, dir)
		defer b.manifest.Close()
		before := naive(t, b.host)
		if diff := cmp.Diff(before, naive(t, b.tree)); diff != "" {
			rt.Fatalf("the copy differs already:\n%s", diff)
		}
		for _, op := range rapid.SliceOfN(operationGen, 0, 25).Draw(rt, "in the box") {
			_ = op.apply(b.tree)
		}
		c := b.read()
		if diff := cmp.Diff(differences(before, naive(t, b.tree)), opsOf(c)); diff != "" {
			rt.Fatalf("changes (-want +got):\n%s", diff)
		}
		checkWellFormed(t, c)
		checkContent(t, c, b.tree, b.host, b.tree)
		for _, e := range c.Entries {
			want := uint64(0)
			if e.Before != nil {
				want = inode(t, b.host, e.Path)
			}
			if e.BaseIno != want {
				rt.Fatalf("%s %q has base inode %d, want %d", e.Op, e.Path, e.BaseIno, want)
			}
			parent, _ := fsat.Split(e.Path)
			if e.Before != nil && c.Ancestors[parent] != inode(t, b.host, parent) {
				rt.Fatalf("ancestor %q has base inode %d", parent, c.Ancestors[parent])
			}
		}
		if again := b.read(); cmp.Diff(c, again) != "" {
			rt.Fatal("a second reading differs")
		}
	})
}

func newWorkspace(t *testing.T, files ...string) string {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/host", 0o755))
	for _, f := range files {
		write(t, dir+"/host/"+f, f)
	}
	return dir
}

func TestTreeFindsARewriteWithItsTimesSetBack(t *testing.T) {
	c := newCopied(t, newWorkspace(t, "f"))
	info, err := os.Stat(c.tree + "/f")
	must(t, err)
	f, err := os.OpenFile(c.tree+"/f", os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("g")
	must(t, err)
	must(t, f.Close())
	must(t, os.Chtimes(c.tree+"/f", info.ModTime(), info.ModTime()))
	wantOps(t, c.read(), map[string]Op{"f": Modified})
}

func TestTreeTouchIsNoChange(t *testing.T) {
	c := newCopied(t, newWorkspace(t, "f", "d/g"))
	must(t, os.Chtimes(c.tree+"/f", time.Unix(1, 0), time.Unix(1, 0)))
	must(t, os.WriteFile(c.tree+"/d/tmp", []byte("d/g"), 0o644))
	must(t, os.Rename(c.tree+"/d/tmp", c.tree+"/d/g"))
	if got := c.read(); !got.Empty() {
		t.Errorf("%+v", got.Entries)
	}
}

func TestTreeTrustsAnUntouchedFile(t *testing.T) {
	c := newCopied(t, newWorkspace(t, "f"))
	write(t, c.host+"/f", "the host went on")
	if got := c.read(); !got.Empty() {
		t.Errorf("a change of the host is taken for the box's: %+v", got.Entries)
	}
}

func TestTreeWhileTheHostDeletes(t *testing.T) {
	c := newCopied(t, newWorkspace(t, "modified", "deleted", "d/f"))
	want := inode(t, c.host, "modified")
	write(t, c.tree+"/modified", "x")
	must(t, os.Remove(c.tree+"/deleted"))
	must(t, os.RemoveAll(c.tree+"/d"))
	must(t, os.Remove(c.host+"/modified"))
	must(t, os.Remove(c.host+"/deleted"))
	// What the host put in the place of a deleted directory is not entered.
	must(t, os.RemoveAll(c.host+"/d"))
	must(t, os.Symlink("/etc", c.host+"/d"))
	got := c.read()
	wantOps(t, got, map[string]Op{"modified": Created, "d": Deleted})
	for _, e := range got.Entries {
		if e.Path == "modified" && (e.BaseIno != want || !e.CopiedUp) {
			t.Errorf("%+v", e)
		}
		if e.Path == "d" && e.Before.Target != "/etc" {
			t.Errorf("%+v", e.Before)
		}
	}
}

func TestTreeLeavesOut(t *testing.T) {
	c := newCopied(t, newWorkspace(t, ".git/HEAD", ".git/index", "a/.DS_Store", "b/.DS_Store", "replaced/f"))
	write(t, c.tree+"/.git/index", ".git/index")
	must(t, os.Remove(c.tree+"/a/.DS_Store"))
	must(t, os.RemoveAll(c.tree+"/b"))
	must(t, os.RemoveAll(c.tree+"/replaced"))
	must(t, unix.Mkfifo(c.tree+"/replaced", 0o644))
	write(t, c.tree+"/.hutch/x", "")
	got := c.read()
	wantOps(t, got, map[string]Op{"b": Deleted, "b/.DS_Store": Deleted})
	if got.GitChanged {
		t.Error("git changed")
	}
	want := []Skipped{{".hutch", "hutch's own directory"}, {"replaced", "fifo"}}
	if diff := cmp.Diff(want, got.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	must(t, os.Remove(c.tree+"/.git/HEAD"))
	if got = c.read(); !got.GitChanged {
		t.Error("git did not change")
	}
	wantOps(t, got, map[string]Op{"b": Deleted, "b/.DS_Store": Deleted})
}

func TestTreeRefusesABadManifest(t *testing.T) {
	c := newCopied(t, newWorkspace(t, "f"))
	must(t, c.manifest.Truncate(20))
	src := Source{Form: Tree, Layer: openDir(t, c.tree), Workspace: openDir(t, c.host), Merged: -1, Manifest: int(c.manifest.Fd())}
	defer closeAll(src.Layer, src.Workspace)
	if _, err := Read(src); err == nil {
		t.Fatal("it was read")
	}
}

func TestTreeRefusesPathsThatLeave(t *testing.T) {
	for _, path := range []string{"../f", "/f", "a/../f", ""} {
		f, err := os.CreateTemp(t.TempDir(), "")
		must(t, err)
		must(t, WriteManifest(f, []Record{{Path: path, Copy: fsat.Stat{Type: fsat.Regular}}}))
		if _, err := ReadManifest(&fdReader{fd: int(f.Fd())}); err == nil {
			t.Errorf("%q is believed", path)
		}
		f.Close()
	}
}
