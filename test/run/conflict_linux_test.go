package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// hostEdits are what the user does to a workspace while a box has its branch of
// it. The box runs inBox; each edit conflicts, or does not, whatever the
// strategy.
const inBox = "echo box >> a.txt; echo box > new.txt; echo box >> dir/other.txt; rm README.md; rm -r dir/deep"

var hostEdits = []struct {
	name     string
	edit     func(w *lab.World)
	conflict string // a path that is named; "" for none
	linked   bool   // a.txt has another name outside of the workspace
}{
	{name: "nothing", edit: func(w *lab.World) {}, conflict: ""},
	{name: "another file", edit: func(w *lab.World) { w.Write("module.py", "host\n") }, conflict: ""},
	{name: "in place", edit: func(w *lab.World) { w.Write("a.txt", "host\n") }, conflict: "a.txt"},
	{name: "with its time put back", edit: func(w *lab.World) {
		st, err := os.Stat(filepath.Join(w.Dir, "a.txt"))
		must(w, err)
		w.Write("a.txt", "host\n")
		must(w, os.Chtimes(filepath.Join(w.Dir, "a.txt"), st.ModTime(), st.ModTime()))
	}, conflict: "a.txt"},
	{name: "by rename, as editors save", edit: func(w *lab.World) {
		w.Write("a.txt~", "host\n")
		must(w, os.Rename(filepath.Join(w.Dir, "a.txt~"), filepath.Join(w.Dir, "a.txt")))
	}, conflict: "a.txt"},
	{name: "by rename of an old file", edit: func(w *lab.World) {
		must(w, os.Rename(filepath.Join(w.Dir, "module.py"), filepath.Join(w.Dir, "a.txt")))
	}, conflict: "a.txt"},
	{name: "through another name", linked: true, edit: func(w *lab.World) {
		f, err := os.OpenFile(filepath.Join(w.Base, "name"), os.O_WRONLY|os.O_APPEND, 0)
		must(w, err)
		_, err = f.WriteString("host\n")
		must(w, err)
		must(w, f.Close())
	}, conflict: "a.txt"},
	{name: "through mmap", edit: func(w *lab.World) {
		f, err := os.OpenFile(filepath.Join(w.Dir, "a.txt"), os.O_RDWR, 0)
		must(w, err)
		defer f.Close()
		page, err := unix.Mmap(int(f.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(w, err)
		page[0] = 'H'
		must(w, unix.Msync(page, unix.MS_SYNC))
		must(w, unix.Munmap(page))
	}, conflict: "a.txt"},
	{name: "mode", edit: func(w *lab.World) { must(w, os.Chmod(filepath.Join(w.Dir, "a.txt"), 0o600)) }, conflict: "a.txt"},
	{name: "deleted", edit: func(w *lab.World) { must(w, os.Remove(filepath.Join(w.Dir, "a.txt"))) }, conflict: "a.txt"},
	{name: "deleted on both sides", edit: func(w *lab.World) { must(w, os.Remove(filepath.Join(w.Dir, "README.md"))) }, conflict: ""},
	{name: "edited what the box deleted", edit: func(w *lab.World) { w.Write("README.md", "host\n") }, conflict: "README.md"},
	{name: "created too", edit: func(w *lab.World) { w.Write("new.txt", "host\n") }, conflict: "new.txt"},
	{name: "created alike", edit: func(w *lab.World) { w.Write("new.txt", "box\n") }, conflict: ""},
	{name: "made a directory", edit: func(w *lab.World) {
		must(w, os.Remove(filepath.Join(w.Dir, "a.txt")))
		must(w, os.Mkdir(filepath.Join(w.Dir, "a.txt"), 0o755))
	}, conflict: "a.txt"},
	{name: "added in a deleted directory", edit: func(w *lab.World) { w.Write("dir/deep/stranger", "host\n") }, conflict: "dir/deep/stranger"},
	{name: "parent swapped for a copy", edit: func(w *lab.World) {
		w.Host("sh", "-ec", "mkdir copy; mv dir/* copy; rmdir dir; mv copy dir")
	}, conflict: "dir/other.txt"},
	{name: "parent made a symlink", edit: func(w *lab.World) {
		must(w, os.Rename(filepath.Join(w.Dir, "dir"), filepath.Join(w.Dir, "real")))
		must(w, os.Symlink("real", filepath.Join(w.Dir, "dir")))
	}, conflict: "dir/other.txt"},
	{name: "parent made a file", edit: func(w *lab.World) {
		must(w, os.RemoveAll(filepath.Join(w.Dir, "dir")))
		w.Write("dir", "host\n")
	}, conflict: "dir/other.txt"},
}

func must(w *lab.World, err error) {
	w.T.Helper()
	if err != nil {
		w.T.Fatal(err)
	}
}

// fresh is a world of its own for one case.
func fresh(t *testing.T, w *lab.World, name string) *lab.World {
	t.Helper()
	own := *w
	own.T, own.Dir = t, filepath.Join(w.Base, strings.ReplaceAll(name, " ", "-"))
	if err := os.Mkdir(own.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	own.Sample()
	return &own
}

// TestHostEdits makes each edit twice: between a run and its commit, and while
// the command runs.
func TestHostEdits(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.KeepsBoxes() // each conflict keeps its box
		for _, tt := range hostEdits {
			for _, live := range []bool{false, true} {
				when := map[bool]string{false: "kept", true: "live"}[live]
				t.Run(tt.name+"/"+when, func(t *testing.T) {
					w := fresh(t, w, tt.name+" "+when)
					if tt.linked {
						os.Remove(filepath.Join(w.Base, "name"))
						must(w, os.Link(filepath.Join(w.Dir, "a.txt"), filepath.Join(w.Base, "name")))
					}
					var before lab.Tree
					var r lab.Result
					if live {
						in, tell, err := os.Pipe()
						must(w, err)
						run := w.Start(lab.Options{Stdin: in}, "run", "--strategy", w.Strategy.Name, "--commit", "--", "sh", "-ec", inBox+"; echo ready; read go")
						in.Close()
						run.WaitFor("ready")
						tt.edit(w)
						before = w.Snap()
						tell.WriteString("go\n")
						tell.Close()
						r = run.Wait()
					} else {
						out, first := w.JSON("--preserve", "--", "sh", "-ec", inBox)
						w.Want(first, 0)
						tt.edit(w)
						before = w.Snap()
						r = w.Run("commit", out.ID)
					}
					if tt.conflict == "" {
						w.Want(r, 0)
						if got := w.Read("new.txt"); got != "box\n" {
							t.Errorf("new.txt holds %q", got)
						}
						return
					}
					w.Want(r, 125)
					if !strings.Contains(r.Stderr, tt.conflict) {
						t.Errorf("%q is not named\n%v", tt.conflict, r)
					}
					for _, d := range before.Without(".hutch", ".").Diff(w.Snap().Without(".hutch", ".")) {
						t.Errorf("touched in spite of a conflict: %s", d)
					}
				})
			}
		}
	})
}

// TestConflictIsExplained holds that a conflict is told in one line for each
// path, with what to type next, and that its report says the box is kept.
func TestConflictIsExplained(t *testing.T) {
	w := lab.New(t)
	w.KeepsBoxes()
	w.Sample()
	out, r := w.JSON("--preserve", "--", "sh", "-ec", inBox)
	w.Want(r, 0)
	w.Write("a.txt", "host\n")
	w.Write("new.txt", "host\n")

	r = w.Run("commit", out.ID)
	w.Want(r, 125)
	for _, want := range []string{
		"hutch: conflict: \"a.txt\": the box modified it, the host changed it\n",
		"hutch: conflict: \"new.txt\": the box created it, the host created it too\n",
		"hutch: nothing was promoted; to settle it by merge, ours or theirs: hutch commit " + out.ID + " --on-conflict merge\n",
	} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("stderr lacks %q\n%v", want, r)
		}
	}

	r = w.Run("commit", out.ID, "--json")
	w.Want(r, 125)
	var report struct {
		Status    string
		Kept      bool
		Conflicts []struct{ Path, Box, Host string }
	}
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil {
		t.Fatal(err)
	}
	if report.Status != "conflict" || !report.Kept || len(report.Conflicts) != 2 {
		t.Errorf("status %s kept %v conflicts %v", report.Status, report.Kept, report.Conflicts)
	}
}

// TestUndoneIsNoConflict holds that a promotion which was undone is no edit of
// the host's to another box, nor to the rest of its own; an edit between is.
func TestUndoneIsNoConflict(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.KeepsBoxes()
		for _, edited := range []bool{false, true} {
			t.Run(fmt.Sprintf("edited %v", edited), func(t *testing.T) {
				w := fresh(t, w, fmt.Sprint("undone ", edited))
				box := func() string {
					out, r := w.JSON("--preserve", "--", "sh", "-ec", inBox+"; chmod 700 src; echo 2 > src/box.txt")
					w.Want(r, 0)
					return out.ID
				}
				must(w, os.MkdirAll(filepath.Join(w.Dir, "src"), 0o755))
				first, second := box(), box()
				w.Want(w.Run("commit", "--only", "a.txt", "--only", "src/box.txt", first), 0)
				w.Want(w.Run("undo"), 0)
				if edited {
					w.Write("a.txt", "host\n")
					must(w, os.Chmod(filepath.Join(w.Dir, "src"), 0o711))
				}
				for _, id := range []string{first, second} {
					r := w.Run("commit", id)
					if !edited {
						w.Want(r, 0)
						w.Want(w.Run("undo"), 0)
						continue
					}
					w.Want(r, 125)
					if named := "src"; !strings.Contains(r.Stderr, named) {
						t.Errorf("%q is not named\n%v", named, r)
					}
				}
			})
		}
	})
}

// TestOnlyOpenedIsNoChange holds that a file which the box only opened for
// writing, or gave the mode it has, takes no later edit of the host back, and
// brings no deleted file back.
func TestOnlyOpenedIsNoChange(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.KeepsBoxes()
		for _, mode := range []string{"fail", "ours", "theirs"} {
			for what, edit := range map[string]func(w *lab.World){
				"edited":  func(w *lab.World) { w.Write("a.txt", "host\n") },
				"deleted": func(w *lab.World) { must(w, os.Remove(filepath.Join(w.Dir, "a.txt"))) },
			} {
				t.Run(mode+"/"+what, func(t *testing.T) {
					w := fresh(t, w, mode+" "+what)
					in, tell, err := os.Pipe()
					must(w, err)
					run := w.Start(lab.Options{Stdin: in}, "run", "--strategy", w.Strategy.Name, "--commit", "--on-conflict", mode, "--",
						"sh", "-ec", ": >> a.txt; chmod 644 a.txt; echo box > new.txt; echo ready; read go")
					in.Close()
					run.WaitFor("ready")
					edit(w)
					tell.WriteString("go\n")
					tell.Close()
					r := run.Wait()
					if r.Code != 0 && r.Code != 125 {
						t.Errorf("%v", r)
					}
					if what == "edited" && w.Read("a.txt") != "host\n" {
						t.Errorf("the host's edit is gone: %q\n%v", w.Read("a.txt"), r)
					}
					if what == "deleted" && w.Exists("a.txt") {
						t.Errorf("a deleted file is back\n%v", r)
					}
					if mode == "ours" {
						w.Want(r, 0)
						if w.Read("new.txt") != "box\n" {
							t.Error("the rest was not promoted")
						}
					}
				})
			}
		}
	})
}

// TestGitOfTheHostMeanwhile holds that a git status on the host is no conflict
// with a commit made in the box, that a git at work there is refused, and that
// no lock is left.
func TestGitOfTheHostMeanwhile(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Host("sh", "-ec", "git init -q; git add .; git -c user.name=a -c user.email=a@b commit -qm one")
		in, tell, err := os.Pipe()
		must(w, err)
		run := w.Start(lab.Options{Stdin: in}, "run", "--strategy", w.Strategy.Name, "--commit", "--git", "include", "--", "sh", "-ec",
			"echo n > n; git add n; git -c user.name=a -c user.email=a@b commit -qm two; echo ready; read go")
		in.Close()
		run.WaitFor("ready")
		w.Host("sh", "-ec", "touch -d 2001-01-01 module.py; git status >/dev/null")
		tell.WriteString("go\n")
		tell.Close()
		w.Want(run.Wait(), 0)
		if log := w.Host("git", "log", "--format=%s"); log != "two\none\n" {
			t.Errorf("log %q", log)
		}
		w.Host("git", "fsck", "--strict")
		if status := w.Host("git", "status", "--porcelain", "--", "n"); status != "" {
			t.Errorf("status %q", status)
		}
		if w.Exists(".git/index.lock") {
			t.Error("the lock is left")
		}

		out, r := w.JSON("--preserve", "--", "sh", "-ec", "echo m > m; git add m")
		w.Want(r, 0)
		w.Write(".git/index.lock", "")
		before := w.Snap()
		busy := w.Run("commit", out.ID, "--git", "include")
		w.Want(busy, 125)
		if !strings.Contains(busy.Stderr, "git is running here") {
			t.Errorf("%v", busy)
		}
		for _, d := range before.Without(".hutch", ".").Diff(w.Snap().Without(".hutch", ".")) {
			t.Errorf("touched while git was running: %s", d)
		}
		must(w, os.Remove(filepath.Join(w.Dir, ".git/index.lock")))
		w.Want(w.Run("commit", out.ID, "--git", "include"), 0)
	})
}
