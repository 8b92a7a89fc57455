package run

import (
	"os"
	"path/filepath"
	"testing"

	"hutch/test/lab"
)

// places are where a workspace may lie, beneath a world's base.
var places = []string{
	"home/project", "home/deep/er/project", "with space", "with:colon", "with,comma", `with\backslash`, `all:of,them\ =here`,
	"new\nline", "lowerdir=x,upperdir=y", "\xff\xfe", "日本語", "-dash", "%41", `trailing\`,
}

func TestWorkspaceInAwkwardPlaces(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		for _, place := range places {
			t.Run(place, func(t *testing.T) {
				w := *w
				w.T, w.Dir = t, filepath.Join(w.Base, place)
				if err := os.MkdirAll(w.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
				w.Sample()
				w.Write("../neighbour", "of the workspace")
				before := w.Snap()
				r := w.Box("--", "sh", "-c", "pwd; echo x > new.txt; rm README.md; [ -e ../neighbour ] && echo sees the neighbour; exit 1")
				w.Want(r, 1)
				if r.Stdout != w.Dir+"\n" {
					t.Errorf("inside: %q, want %q", r.Stdout, w.Dir+"\n")
				}
				w.Untouched(before)
				w.Want(w.Box("--commit", "--", "sh", "-c", "echo x > new.txt; rm README.md"), 0)
				if w.Read("new.txt") != "x\n" || w.Exists("README.md") {
					t.Error("the change did not arrive")
				}
			})
		}
	})
}

func TestWorkspaceDirectlyBelowTmp(t *testing.T) {
	w := lab.New(t)
	dir, err := os.MkdirTemp("/tmp", "hutch-ws-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	w.Dir = dir
	w.Sample()
	before := w.Snap()
	other, err := os.MkdirTemp("/tmp", "hutch-other-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(other)
	r := w.Box("--", "sh", "-c", `cat a.txt; echo x > /tmp/private; cat /tmp/private; [ -e "$0" ] && echo sees the host; true`, other)
	w.Want(r, 0)
	if want := "foo one\nfoo two\nx\n"; r.Stdout != want {
		t.Errorf("inside: %q, want %q", r.Stdout, want)
	}
	if _, err := os.Lstat("/tmp/private"); err == nil {
		t.Error("what the box wrote to /tmp is on the host")
	}
	w.Untouched(before)
	w.Want(w.Box("--commit", "--", "sh", "-c", "echo x > new.txt"), 0)
	if w.Read("new.txt") != "x\n" {
		t.Error("the change did not arrive")
	}
}

func TestWorkspaceThroughASymlink(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		link := filepath.Join(w.Base, "link-to-ws")
		if err := os.Symlink(w.Dir, link); err != nil {
			t.Fatal(err)
		}
		r := w.RunWith(lab.Options{Dir: "/"}, "run", "--strategy", w.Strategy.Name, "--workspace", link, "--commit", "--", "sh", "-c", "/bin/pwd -P; echo x > new.txt")
		w.Want(r, 0)
		if r.Stdout != w.Dir+"\n" {
			t.Errorf("inside: %q, want the real path %q", r.Stdout, w.Dir)
		}
		if w.Read("new.txt") != "x\n" {
			t.Error("the change did not arrive")
		}
		// Entered through the link, with PWD naming it.
		r = w.RunWith(lab.Options{Dir: link, Env: []string{"PWD=" + link}}, "run", "--strategy", w.Strategy.Name, "--", "sh", "-c", "cat new.txt")
		w.Want(r, 0)
		if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
			t.Errorf("the link itself changed: %v %v", st, err)
		}
	})
}

func TestWorkspaceIsTheDirectoryItself(t *testing.T) {
	// A directory inside a repository is a workspace of its own, not the
	// repository.
	w := lab.New(t)
	repository(w)
	w.Write("below/f", "x\n")
	r := w.RunWith(lab.Options{Dir: filepath.Join(w.Dir, "below")}, "run", "--", "sh", "-c", "pwd; ls -A; [ -e ../f.txt ] && echo sees the parent; true")
	w.Want(r, 0)
	if want := w.Dir + "/below\nf\n"; r.Stdout != want {
		t.Errorf("inside: %q, want %q", r.Stdout, want)
	}
}

func TestLayerInRAM(t *testing.T) {
	w := lab.NewWith(t, lab.Strategy{Name: "overlay"})
	w.Sample()
	before := w.Snap()
	out, r := w.JSON("--layer", "ram", "--", "sh", "-c", change)
	w.Want(r, 0)
	if out.Layer != "ram" {
		t.Errorf("layer %q", out.Layer)
	}
	equal(t, "created", out.Diff.FilesCreated, "new.txt")
	equal(t, "modified", out.Diff.FilesModified, "a.txt")
	equal(t, "deleted", out.Diff.FilesDeleted, "README.md")
	w.Untouched(before)
	// It has a size; filling it ends the command's write, not the machine.
	r = w.Box("--layer", "ram", "--", "sh", "-c", "head -c 64G /dev/zero > big 2>/dev/null; echo $?")
	w.Want(r, 0)
	if r.Stdout != "1\n" {
		t.Errorf("64 GB into a layer in RAM: %q", r.Stdout)
	}
	w.Untouched(before)
	w.Want(w.Box("--layer", "ram", "--commit", "--", "sh", "-c", change), 0)
	changed(t, w)
}

func TestEmptyWorkspace(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		before := w.Snap()
		w.Want(w.Box("--", "sh", "-c", "echo x > f; exit 1"), 1)
		w.Untouched(before)
		w.Want(w.Box("--commit", "--", "sh", "-c", "echo x > f"), 0)
		if w.Read("f") != "x\n" {
			t.Error("the change did not arrive")
		}
	})
}
