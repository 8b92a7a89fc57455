package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// undone is the JSON of `hutch undo --json`.
type undone struct {
	Status string `json:"status"`
	Undone *struct {
		ID      string `json:"id"`
		Receipt string `json:"receipt"`
	} `json:"undone"`
	Conflicts []struct {
		Path string `json:"path"`
		Box  string `json:"box"`
		Host string `json:"host"`
	} `json:"conflicts"`
	Error string `json:"error"`
}

func undo(w *lab.World, code int, args ...string) undone {
	w.T.Helper()
	r := w.Run(append([]string{"undo", "--json"}, args...)...)
	w.Want(r, code)
	var u undone
	if err := json.Unmarshal([]byte(r.Stdout), &u); err != nil {
		w.T.Fatalf("%v\n%v", err, r)
	}
	if (code == 0) != (u.Status == "success" && u.Undone != nil && u.Error == "") {
		w.T.Errorf("exit %d, but it says %+v", code, u)
	}
	return u
}

// entry is one of `hutch log --json`.
type entry struct {
	ID       string   `json:"id"`
	State    string   `json:"state"`
	Argv     []string `json:"argv"`
	Created  int      `json:"created"`
	Modified int      `json:"modified"`
	Deleted  int      `json:"deleted"`
	Bytes    int64    `json:"undo_bytes"`
	CanUndo  bool     `json:"can_undo"`
	NoUndo   string   `json:"no_undo"`
}

func history(w *lab.World, args ...string) []entry {
	w.T.Helper()
	r := w.Run(append([]string{"log", "--json"}, args...)...)
	w.Want(r, 0)
	var list []entry
	if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil || list == nil {
		w.T.Fatalf("%v\n%v", err, r)
	}
	return list
}

// lasting is a tree without what an undo cannot or need not give back: the times
// of inode changes, and of a directory what the file system counts by itself.
func lasting(tree lab.Tree) lab.Tree {
	out := lab.Tree{}
	for path, n := range tree.Without(".hutch") {
		if n.Ctime = 0; n.Mode&unix.S_IFMT == unix.S_IFDIR {
			n.Size, n.Nlink = 0, 0
		}
		out[path] = n
	}
	return out
}

func asBefore(w *lab.World, before lab.Tree) {
	w.T.Helper()
	for _, d := range lasting(before).Diff(lasting(w.Snap())) {
		w.T.Errorf("not as before: %s", d)
	}
}

// age gives all files of the workspace a time of their own in the past, so that
// one which is not given back shows.
func age(w *lab.World) {
	w.T.Helper()
	at := time.Now().Add(-time.Hour)
	var paths []string
	filepath.WalkDir(w.Dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	for i := len(paths) - 1; i >= 0; i-- {
		at = at.Add(time.Second)
		ts := unix.NsecToTimespec(at.UnixNano())
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, paths[i], []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			w.T.Fatal(err)
		}
	}
}

// promoteChange commits the change of the tests of kept boxes.
func promoteChange(w *lab.World) (receipt string) {
	w.T.Helper()
	out, r := w.JSON("--commit", "--", "sh", "-ec", change+"; mkdir -p new/sub; echo n > new/sub/n; rm -r dir; chmod 700 run.sh")
	w.Want(r, 0)
	return out.Receipt
}

func TestUndoGivesAllBack(t *testing.T) {
	turn := 0
	lab.Each(t, func(t *testing.T, w *lab.World) {
		turn++
		for i, e := range edits {
			// A promotion is the same whatever the branch was made by: all of
			// it once, some of it with the others.
			if turn > 1 && i%5 != turn && !lab.Proof() {
				continue
			}
			t.Run(e.name, func(t *testing.T) {
				w := *w
				w.T, w.Dir = t, filepath.Join(w.Base, fmt.Sprintf("ws%d", i))
				if err := os.Mkdir(w.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
				w.Sample()
				if err := unix.Setxattr(filepath.Join(w.Dir, "README.md"), "user.note", []byte("mine"), 0); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(filepath.Join(w.Dir, "module.py"), 0o640); err != nil {
					t.Fatal(err)
				}
				if root() {
					for _, rel := range []string{"a.txt", "dir"} {
						if err := os.Chown(filepath.Join(w.Dir, rel), 0, 4321); err != nil {
							t.Fatal(err)
						}
					}
				}
				age(&w)
				before := w.Snap()
				out, r := w.JSON("--commit", "--", "sh", "-ec", e.script)
				w.Want(r, 0)
				if !out.FilesystemModified {
					undo(&w, 125)
					asBefore(&w, before)
					return
				}
				u := undo(&w, 0)
				if u.Undone.ID != out.Receipt {
					t.Errorf("undone %s, want %s", u.Undone.ID, out.Receipt)
				}
				asBefore(&w, before)
			})
		}
	})
}

// TestUndoGivesOwnersBack: what others own, the box may write to or remove.
func TestUndoGivesOwnersBack(t *testing.T) {
	if !root() {
		t.Skip("only root can give files away")
	}
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		for _, rel := range []string{"a.txt", "README.md", "module.py"} {
			path := filepath.Join(w.Dir, rel)
			if err := os.Chown(path, 1234, 4321); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		age(w)
		before := w.Snap()
		w.Want(w.Box("--commit", "--", "sh", "-ec", "echo x >> a.txt; rm README.md; sed -i s/add/sub/ module.py"), 0)
		undo(w, 0)
		asBefore(w, before)
	})
}

func TestUndoOfAKeptBoxesCommit(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		age(w)
		before := w.Snap()
		out, r := w.JSON("--preserve", "--", "sh", "-c", change)
		w.Want(r, 0)
		w.Want(w.Run("commit", out.ID), 0)
		undo(w, 0)
		asBefore(w, before)
		w.Want(w.Run("receipts", "verify"), 0)
	})
}

func TestUndoRefusesWhatChanged(t *testing.T) {
	chtimes := func(path string, st os.FileInfo) error { return os.Chtimes(path, st.ModTime(), st.ModTime()) }
	cases := []struct {
		name string
		edit func(w *lab.World) error
		path string
		says string
	}{
		{"written to", func(w *lab.World) error { return os.WriteFile(w.Dir+"/a.txt", []byte("mine"), 0o644) }, "a.txt", "written to"},
		{"written to, size and time kept", func(w *lab.World) error {
			st, err := os.Lstat(w.Dir + "/a.txt")
			if err != nil {
				return err
			}
			if err := os.WriteFile(w.Dir+"/a.txt", []byte("BAR one\nbar two\n"), 0o644); err != nil {
				return err
			}
			return chtimes(w.Dir+"/a.txt", st)
		}, "a.txt", "written to"},
		{"mode", func(w *lab.World) error { return os.Chmod(w.Dir+"/new.txt", 0o600) }, "new.txt", "mode changed from 644 to 600"},
		{"attribute", func(w *lab.World) error { return unix.Setxattr(w.Dir+"/new.txt", "user.x", []byte("1"), 0) }, "new.txt", "extended attributes changed"},
		{"replaced", func(w *lab.World) error {
			if err := os.WriteFile(w.Dir+"/t", []byte("x\n"), 0o644); err != nil {
				return err
			}
			return os.Rename(w.Dir+"/t", w.Dir+"/new.txt")
		}, "new.txt", "replaced by another file"},
		{"deleted", func(w *lab.World) error { return os.Remove(w.Dir + "/new.txt") }, "new.txt", "deleted"},
		{"path occupied", func(w *lab.World) error { return os.Mkdir(w.Dir+"/README.md", 0o755) }, "README.md", "a dir is there again"},
		{"directory has more", func(w *lab.World) error { return os.WriteFile(w.Dir+"/new/sub/mine", nil, 0o644) }, "new/sub/mine", "made in a directory that would go"},
		{"undo data written to", func(w *lab.World) error {
			found, err := filepath.Glob(w.Dir + "/.hutch/txn-*/*/deep/file.txt")
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%q, %v", found, err)
			}
			return os.WriteFile(found[0], []byte("late"), 0o644)
		}, "dir/deep/file.txt", "former content was written to"},
		{"undo data gone", func(w *lab.World) error {
			found, err := filepath.Glob(w.Dir + "/.hutch/txn-*/*/deep")
			if err != nil || len(found) != 1 {
				return fmt.Errorf("%q, %v", found, err)
			}
			return os.RemoveAll(filepath.Dir(found[0]))
		}, "dir", "not kept"},
	}
	lab.Each(t, func(t *testing.T, w *lab.World) {
		for i, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				w := *w
				w.T, w.Dir = t, filepath.Join(w.Base, fmt.Sprintf("ws%d", i))
				if err := os.Mkdir(w.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
				w.Sample()
				id := promoteChange(&w)
				time.Sleep(10 * time.Millisecond) // a tick of the file system's clock
				if err := c.edit(&w); err != nil {
					t.Fatal(err)
				}
				before := w.Snap()
				u := undo(&w, 125, id)
				if u.Status != "conflict" || len(u.Conflicts) != 1 || u.Conflicts[0].Path != c.path || !strings.Contains(u.Conflicts[0].Host, c.says) {
					t.Errorf("%+v does not say %q of %q alone", u, c.says, c.path)
				}
				r := w.Run("undo")
				w.Want(r, 125)
				oneLine(t, r.Stderr)
				if !strings.Contains(r.Stderr, c.path) {
					t.Errorf("%q is not named\n%v", c.path, r)
				}
				// What recovers and looks may not touch more than .hutch's own.
				for _, d := range before.Without(".hutch").Diff(w.Snap().Without(".hutch")) {
					t.Errorf("refused, but changed: %s", d)
				}
			})
		}
	})
}

// TestUndoSeesTheWriterOfWhatWasDisplaced: a program that had the old file open
// goes on writing to it after it left the workspace.
func TestUndoSeesTheWriterOfWhatWasDisplaced(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		f, err := os.Open(filepath.Join(w.Dir, "a.txt"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		promoteChange(w)
		// Opened for reading, since a writer is a conflict of the promotion.
		late, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := late.WriteString("FOO"); err != nil {
			t.Fatal(err)
		}
		late.Close()
		old, err := filepath.Glob(w.Dir + "/.hutch/txn-*/[0-9]*")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range old { // and hides it
			if now, err := os.Lstat(path); err == nil && os.SameFile(now, st) {
				if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
					t.Fatal(err)
				}
			}
		}
		u := undo(w, 125)
		if len(u.Conflicts) != 1 || u.Conflicts[0].Path != "a.txt" || !strings.Contains(u.Conflicts[0].Host, "former content was written to") {
			t.Errorf("%+v", u)
		}
		changed(t, w)
	})
}

func TestUndoOneByOne(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		age(w)
		start := w.Snap()
		first, r := w.JSON("--commit", "--", "sh", "-c", "echo 1 >> a.txt; echo n > dir/n")
		w.Want(r, 0)
		middle := w.Snap()
		second, r := w.JSON("--commit", "--", "sh", "-c", "echo 2 >> a.txt; rm dir/n; echo p > p")
		w.Want(r, 0)
		third, r := w.JSON("--commit", "--", "sh", "-c", "echo 3 >> README.md")
		w.Want(r, 0)

		// The first lies beneath the second.
		u := undo(w, 125, first.Receipt)
		if u.Status != "conflict" || len(u.Conflicts) != 2 || !strings.Contains(u.Error, second.Receipt) {
			t.Errorf("%+v", u)
		}
		// The second has nothing in common with the third.
		if u := undo(w, 0, second.Receipt[:10]); u.Undone.ID != second.Receipt {
			t.Errorf("%+v", u)
		}
		if !strings.HasSuffix(w.Read("README.md"), "3\n") || w.Read("a.txt") != "foo one\nfoo two\n1\n" || w.Exists("p") {
			t.Errorf("README.md %q, a.txt %q", w.Read("README.md"), w.Read("a.txt"))
		}
		if u := undo(w, 0); u.Undone.ID != third.Receipt {
			t.Errorf("undone %s, want the last that is not", u.Undone.ID)
		}
		for _, path := range []string{"README.md", "a.txt", "dir/n"} {
			a, b := middle[path], w.Snap()[path]
			if a.Ctime, b.Ctime = 0, 0; a != b {
				t.Errorf("%s: %+v, want %+v", path, b, a)
			}
		}
		undo(w, 0)
		for path, n := range lasting(start) {
			got := lasting(w.Snap())[path]
			if path == "." { // undone out of order, its time is that of the undo
				got.Mtime = n.Mtime
			}
			if n != got {
				t.Errorf("%s: %+v, want %+v", path, got, n)
			}
		}
		u = undo(w, 125)
		if u.Status != "error" || !strings.Contains(u.Error, "nothing can be undone") {
			t.Errorf("%+v", u)
		}
		u = undo(w, 125, first.Receipt)
		if !strings.Contains(u.Error, "undone already") {
			t.Errorf("%+v", u)
		}
		list := history(w)
		if len(list) != 3 || list[0].ID != third.Receipt || list[2].ID != first.Receipt {
			t.Fatalf("%+v", list)
		}
		for _, e := range list {
			if e.State != "undone" || e.CanUndo || e.NoUndo == "" || e.Bytes == 0 {
				t.Errorf("%+v", e)
			}
		}
	})
}

// TestUndoOfACommitInGit: what git points at comes back with it, and a git that
// is at work is not disturbed.
func TestUndoOfACommitInGit(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Env = append(w.Env, "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=T", "GIT_CONFIG_KEY_1=user.email", "GIT_CONFIG_VALUE_1=t@example.com")
		w.Host("sh", "-ec", "git init -q -b main; git add -A; git commit -qm one")
		age(w)
		before := w.Snap()
		out, r := w.JSON("--commit", "--git", "include", "--", "sh", "-ec",
			"echo 2 >> a.txt; git -c user.name=B -c user.email=b@example.com commit -qam two; git branch other")
		w.Want(r, 0)
		if !out.Committed {
			t.Fatal(r)
		}
		lock := filepath.Join(w.Dir, ".git", "index.lock")
		if err := os.WriteFile(lock, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		promoted := w.Snap()
		if u := undo(w, 125); !strings.Contains(u.Error, ".git/index.lock exists") {
			t.Errorf("%+v", u)
		}
		for _, d := range lasting(promoted).Diff(lasting(w.Snap())) {
			t.Errorf("refused, but changed: %s", d)
		}
		if err := os.Remove(lock); err != nil {
			t.Fatal(err)
		}
		// The user's lock changed the time of .git since.
		was := before[".git"]
		undo(w, 0)
		now := w.Snap()
		was.Mtime = now[".git"].Mtime
		before[".git"] = was
		asBefore(w, before)
		w.Host("git", "fsck", "--strict")
	})
}

func TestLog(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	if list := history(w); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	w.Want(w.Box("--", "true"), 0)
	id := promoteChange(w)
	w.Want(w.Box("--commit", "--", "sh", "-c", "echo 2 > new.txt"), 0)
	list := history(w)
	if len(list) != 2 || list[1].ID != id || list[1].State != "done" || !list[1].CanUndo || list[1].Argv[0] != "sh" {
		t.Fatalf("%+v", list)
	}
	if e := list[1]; e.Created != 4 || e.Modified != 2 || e.Deleted != 5 || e.Bytes == 0 {
		t.Errorf("%+v", e)
	}
	if one := history(w, "-n", "1"); len(one) != 1 || one[0].ID != list[0].ID {
		t.Errorf("%+v", one)
	}
	r := w.Run("log")
	w.Want(r, 0)
	if strings.Count(r.Stdout, "\n") != 3 || !strings.Contains(r.Stdout, id) {
		t.Error(r)
	}

	// Pruned, they are known from the receipts, and cannot be undone.
	w.Want(w.Run("gc", "--age", "0"), 0)
	for i, e := range history(w) {
		if e.ID != list[i].ID || e.State != "pruned" || e.CanUndo || e.NoUndo == "" {
			t.Errorf("%+v", e)
		}
	}
	u := undo(w, 125, id)
	if u.Status != "error" || !strings.Contains(u.Error, "no undo data of promotion "+id) {
		t.Errorf("%+v", u)
	}
	undo(w, 125)
	changed := w.Read("new.txt")
	if changed != "2\n" {
		t.Error(changed)
	}
}

func TestUndoLeavesAReceipt(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := promoteChange(w)
	u := undo(w, 0)
	r := w.Run("receipts", "show", u.Undone.Receipt)
	w.Want(r, 0)
	var f struct{ Undid, Workspace, Status string }
	if err := json.Unmarshal([]byte(r.Stdout), &f); err != nil || f.Undid != id || f.Workspace != w.Dir || f.Status != "success" {
		t.Errorf("%+v, %v\n%v", f, err, r)
	}
	w.Want(w.Run("receipts", "verify"), 0)
	if u := undo(w, 125, u.Undone.Receipt); !strings.Contains(u.Error, "is of an undo") {
		t.Errorf("%+v", u)
	}
	plain, _ := w.JSON("--", "true")
	if u := undo(w, 125, plain.Receipt); !strings.Contains(u.Error, "promoted nothing") {
		t.Errorf("%+v", u)
	}
}

func TestUndoOfTheInterrupted(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := promoteChange(w)
	txn := filepath.Join(w.Dir, ".hutch", "txn-"+id)
	if err := os.Rename(txn+"/done", txn+"/aborted"); err != nil {
		t.Fatal(err)
	}
	before := w.Snap()
	u := undo(w, 125, id)
	if u.Status != "error" || !strings.Contains(u.Error, "was interrupted and taken back") {
		t.Errorf("%+v", u)
	}
	undo(w, 125)
	w.Untouched(before)
	if list := history(w); len(list) != 1 || list[0].State != "aborted" || list[0].CanUndo {
		t.Errorf("%+v", list)
	}
	// Without the record of what stood after it, nothing can be compared.
	if err := os.Rename(txn+"/aborted", txn+"/done"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(txn + "/after"); err != nil {
		t.Fatal(err)
	}
	if u := undo(w, 125, id); !strings.Contains(u.Error, "not written down") {
		t.Errorf("%+v", u)
	}
	if list := history(w); len(list) != 1 || list[0].CanUndo {
		t.Errorf("%+v", list)
	}
}

func TestUndoBeyondTheBudget(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	small := promoteChange(w)
	w.Host("truncate", "-s", "300M", "big")
	out, r := w.JSON("--commit", "--", "rm", "big")
	w.Want(r, 0)
	if notes := strings.Join(out.Notes, "\n"); !strings.Contains(notes, "undo will not be possible") || !strings.Contains(notes, "314572800 bytes, 46137344 over the budget") {
		t.Errorf("notes %q", out.Notes)
	}
	list := history(w)
	if len(list) != 2 || list[1].ID != small || !list[1].CanUndo || list[0].ID != out.Receipt || list[0].CanUndo {
		t.Errorf("the large one cost the small one its undo: %+v", list)
	}
}

// TestForeignTransactions: what another state directory wrote, or a copy of the
// workspace brought along, is not followed.
func TestForeignTransactions(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := promoteChange(w)
	other := *w
	other.State = filepath.Join(w.Base, "other")
	if err := os.Mkdir(other.State, 0o755); err != nil {
		t.Fatal(err)
	}
	before := w.Snap()
	if u := undo(&other, 125, id); u.Status != "error" || !strings.Contains(u.Error, "another state directory") {
		t.Errorf("%+v", u)
	}
	undo(&other, 125)
	if list := history(&other); len(list) != 1 || list[0].State != "foreign" || list[0].CanUndo || list[0].Created != 0 {
		t.Errorf("%+v", list)
	}
	w.Untouched(before)

	// A copy has other files under the same paths.
	copied := *w
	copied.Dir = filepath.Join(w.Base, "copy")
	w.Host("cp", "-a", w.Dir, copied.Dir)
	if u := undo(&copied, 125, id); !strings.Contains(u.Error, "a copy of this workspace") {
		t.Errorf("%+v", u)
	}

	// An order to go on is refused as well, by every command.
	txn := filepath.Join(w.Dir, ".hutch", "txn-"+id)
	if err := os.Rename(txn+"/done", txn+"/journal"); err != nil {
		t.Fatal(err)
	}
	before = w.Snap()
	for _, args := range [][]string{{"recover"}, {"undo"}, {"log"}, {"run", "--", "true"}, {"recover", "--foreign", "x"}} {
		r := other.Run(args...)
		w.Want(r, 125)
		oneLine(t, r.Stderr)
		if !strings.Contains(r.Stderr, "hutch recover --foreign "+id) {
			t.Errorf("does not say what to do\n%v", r)
		}
	}
	w.Untouched(before)
	w.Want(other.Run("recover", "--foreign", id), 0)
	changed(t, w)
	if r := other.Run("receipts", "show", id); r.Code == 0 {
		t.Errorf("a stranger's receipt was written down\n%v", r)
	}
	w.Want(other.Box("--", "true"), 0)
}

// TestUndoInAMovedWorkspace: the workspace may have another name by then.
func TestUndoInAMovedWorkspace(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		age(w)
		before := w.Snap()
		id := promoteChange(w)
		moved := *w
		moved.Dir = filepath.Join(w.Base, "moved")
		if err := os.Rename(w.Dir, moved.Dir); err != nil {
			t.Fatal(err)
		}
		w.Want(w.RunWith(lab.Options{Dir: w.Base}, "undo", "--workspace", moved.Dir, id), 0)
		asBefore(&moved, before)
		if err := os.Rename(moved.Dir, w.Dir); err != nil {
			t.Fatal(err)
		}
	})
}

func TestKey(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := promoteChange(w)
	path := filepath.Join(w.StateDir(), "key")
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != 0o600 || st.Size() != 32 {
		t.Fatalf("%v, %v", st, err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"short":    func() error { return os.WriteFile(path, good[:31], 0o600) },
		"empty":    func() error { return os.WriteFile(path, nil, 0o600) },
		"zeros":    func() error { return os.WriteFile(path, make([]byte, 32), 0o600) },
		"readable": func() error { return os.Chmod(path, 0o644) },
		"link":     func() error { return os.Symlink("/dev/zero", path) },
		"dir":      func() error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "link" || name == "dir" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			r := w.Run("undo", id)
			w.Want(r, 125)
			oneLine(t, r.Stderr)
			os.Remove(path)
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	undo(w, 0, id)
}

func TestUndoBadInput(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	for _, args := range [][]string{
		{"undo"}, {"undo", ""}, {"undo", "a", "b"}, {"undo", "--workspace", ""}, {"undo", "--workspace", "nowhere"},
		{"undo", "../../x"}, {"undo", "no-such"}, {"undo", "a\nb"}, {"log", "x"}, {"log", "-n", "0"}, {"log", "-n", "x"}, {"log", "--workspace", ""}, {"log", "--workspace", "a.txt"},
	} {
		r := w.Run(args...)
		w.Want(r, 125)
		oneLine(t, r.Stderr)
	}
	if w.Exists(".hutch") {
		t.Error("asking made a .hutch")
	}
}

// An undo without a name is of the last promotion, never of an earlier one
// because the last one's data is gone.
func TestUndoNeverSkipsTheLast(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	w.Host("truncate", "-s", "300M", "big")
	w.Want(w.Box("--commit", "--", "sh", "-c", "echo first > first.txt"), 0)
	out, r := w.JSON("--commit", "--", "sh", "-c", "rm big")
	w.Want(r, 0)
	log := w.Run("log")
	if lines := strings.Split(log.Stdout, "\n"); len(lines) < 3 || !strings.HasPrefix(lines[1], out.ID) {
		t.Errorf("the log is not newest first\n%v", log)
	}
	r = w.Run("undo")
	w.Want(r, 125)
	if !strings.Contains(r.Stderr, out.ID) || !w.Exists("first.txt") {
		t.Errorf("%v", r)
	}
}
