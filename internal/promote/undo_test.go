//go:build linux

package promote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// attributes are all that an undo gives back of a path. The number of the inode
// is among them: what was displaced returns, not a copy of it.
type attributes struct {
	Node     node
	UID, GID uint32
	Ino      uint64
	Nlink    uint64
	Size     int64
	Mtime    int64
}

// whole is a tree with all its attributes, its root included.
func whole(t testing.TB, root string) map[string]attributes {
	t.Helper()
	all := map[string]attributes{}
	nodes := snap(t, root)
	nodes["."] = node{}
	for path, n := range nodes {
		var st unix.Stat_t
		check(t, unix.Lstat(filepath.Join(root, path), &st))
		a := attributes{Node: n, UID: st.Uid, GID: st.Gid, Ino: st.Ino, Nlink: uint64(st.Nlink), Size: st.Size, Mtime: st.Mtim.Nano()}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			a.Size, a.Nlink = 0, 0 // the file system's own business, and .hutch counts
		}
		all[path] = a
	}
	return all
}

func undoLast(s *scene) (UndoResult, error) {
	return Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, Receipt: undoReceipt})
}

func undoReceipt(r UndoResult) ([]byte, error) { return []byte("undo of " + r.ID), nil }

// apply promotes what a scene is about.
func (s *scene) apply(t testing.TB) {
	t.Helper()
	_, err := Apply(context.Background(), s.req)
	check(t, err)
}

// quiet lets the clock of the file system move on, so that what follows shows
// in a time.
func quiet() { time.Sleep(12 * time.Millisecond) }

func TestUndo(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		for name, set := range map[string]func(*Request){
			"move":      func(*Request) {},
			"keepLayer": func(r *Request) { r.KeepLayer = true },
			"keepTimes": func(r *Request) { r.KeepTimes = true },
		} {
			t.Run(name, func(t *testing.T) {
				before, after := mixed()
				s := newScene(t, filepath.Join(base, name), before, after, "user.overlay.origin=o")
				defer s.remove(t)
				set(&s.req)
				was := whole(t, s.ws(""))
				s.req.Stamp = stamp(t, s.ws("")) // to look at it opens what is closed
				s.apply(t)
				res, err := undoLast(s)
				check(t, err)
				if d := cmp.Diff(was, whole(t, s.ws(""))); d != "" {
					t.Fatalf("not as before: %s", d)
				}
				if res.ID != "t1" || string(res.Promote) != string(s.req.Receipt) || res.Tally.Created == 0 || res.Tally.Modified == 0 || res.Tally.Deleted == 0 {
					t.Errorf("%+v", res)
				}
				if st, err := Status(s.req.Workspace, "t1"); st != Undone || err != nil {
					t.Errorf("status %v, %v", st, err)
				}
				if _, err := undoLast(s); !errors.Is(err, ErrNoUndo) {
					t.Errorf("again: %v", err)
				}
				_, err = Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "t1"})
				if !errors.Is(err, ErrNoUndo) || !strings.Contains(err.Error(), "undone already") {
					t.Errorf("again by its id: %v", err)
				}
				if rec, err := Recover(s.req.Workspace, testKey, nil); err != nil || len(rec) > 0 {
					t.Errorf("recovered %+v, %v", rec, err)
				}
			})
		}
	})
}

// TestUndoRefuses holds that whatever changed since is found, named, and left
// as it is, as are all other paths.
func TestUndoRefuses(t *testing.T) {
	write := func(rel, text string) func(*scene) error {
		return func(s *scene) error { return os.WriteFile(s.ws(rel), []byte(text), 0o644) }
	}
	slot := func(s *scene, path string) string {
		data, err := os.ReadFile(s.ws(".hutch/txn-t1/done"))
		if err != nil {
			return ""
		}
		j := new(journal)
		_, err = (&authority{key: testKey, accept: map[string]bool{"t1": true}}).unseal(aJournal, "t1", data, j)
		for i := range j.Steps {
			if err == nil && string(j.Steps[i].Path) == path {
				return s.ws(".hutch/txn-t1/" + slotName(i))
			}
		}
		return ""
	}
	sameSizeAndTime := func(s *scene, path string) error {
		st, err := os.Lstat(path)
		if err != nil {
			return err
		}
		data := strings.Repeat("#", int(st.Size()))
		return errors.Join(os.WriteFile(path, []byte(data), 0o644), os.Chtimes(path, st.ModTime(), st.ModTime()))
	}
	for name, c := range map[string]struct {
		edit func(*scene) error
		path string
		says string
	}{
		"written to":                {write("mod.txt", "mine"), "mod.txt", "written to"},
		"written, time restored":    {func(s *scene) error { return sameSizeAndTime(s, s.ws("mod.txt")) }, "mod.txt", "written to"},
		"new one written, restored": {func(s *scene) error { return sameSizeAndTime(s, s.ws("new.txt")) }, "new.txt", "written to"},
		"touched":                   {func(s *scene) error { return os.Chtimes(s.ws("new.txt"), time.Now(), time.Now()) }, "new.txt", "written to"},
		"replaced": {func(s *scene) error {
			return errors.Join(write("t", "new content")(s), os.Rename(s.ws("t"), s.ws("mod.txt")))
		}, "mod.txt", "replaced"},
		"mode":                       {func(s *scene) error { return os.Chmod(s.ws("new.txt"), 0o600) }, "new.txt", "mode changed from 644 to 600"},
		"mode of an altered":         {func(s *scene) error { return os.Chmod(s.ws("mode.sh"), 0o711) }, "mode.sh", "mode changed"},
		"content of an altered":      {func(s *scene) error { return os.WriteFile(s.ws("mode.sh"), []byte("x"), 0o755) }, "mode.sh", "written to"},
		"mode of an altered dir":     {func(s *scene) error { return os.Chmod(s.ws("chmod"), 0o750) }, "chmod", "mode changed"},
		"mode of a created dir":      {func(s *scene) error { return os.Chmod(s.ws("empty"), 0o700) }, "empty", "mode changed"},
		"xattr":                      {func(s *scene) error { return unix.Setxattr(s.ws("new.txt"), "user.mine", []byte("1"), 0) }, "new.txt", "extended attributes"},
		"xattr of a created dir":     {func(s *scene) error { return unix.Setxattr(s.ws("empty"), "user.mine", []byte("1"), 0) }, "empty", "extended attributes"},
		"deleted":                    {func(s *scene) error { return os.Remove(s.ws("new.txt")) }, "new.txt", "deleted"},
		"deleted within a created":   {func(s *scene) error { return os.Remove(s.ws("todir/in")) }, "todir/in", "deleted"},
		"became a directory":         {func(s *scene) error { return errors.Join(os.Remove(s.ws("new.txt")), os.Mkdir(s.ws("new.txt"), 0o755)) }, "new.txt", "made a dir"},
		"symlink replaced":           {func(s *scene) error { return errors.Join(os.Remove(s.ws("link")), os.Symlink("mod.txt", s.ws("link"))) }, "link", "replaced"},
		"deleted path occupied":      {write("del.txt", "mine"), "del.txt", "a file is there again"},
		"deleted directory occupied": {func(s *scene) error { return os.Mkdir(s.ws("deldir"), 0o755) }, "deldir", "a dir is there again"},
		"entry in a created":         {write("empty/mine", "mine"), "empty/mine", "made in a directory that would go"},
		"entry deep in a created":    {write("newro/sub/mine", "mine"), "newro/sub/mine", "made in a directory that would go"},
		"parent replaced": {func(s *scene) error {
			return errors.Join(os.Rename(s.ws("dir"), s.ws("moved")), os.Mkdir(s.ws("dir"), 0o755))
		}, "dir", "replaced by another directory"},
		"parent deleted":              {func(s *scene) error { return os.RemoveAll(s.ws("dir")) }, "dir", "deleted"},
		"slot written":                {func(s *scene) error { return os.WriteFile(slot(s, "mod.txt"), []byte("late"), 0o644) }, "mod.txt", "former content was written to"},
		"slot written, time restored": {func(s *scene) error { return sameSizeAndTime(s, slot(s, "mod.txt")) }, "mod.txt", "former content was written to"},
		"slot written within":         {func(s *scene) error { return os.WriteFile(slot(s, "deldir")+"/sub/y", []byte("late"), 0o644) }, "deldir/sub/y", "former content was written to"},
		"slot gone":                   {func(s *scene) error { return os.Remove(slot(s, "del.txt")) }, "del.txt", "not kept"},
		"slot lost a file":            {func(s *scene) error { return os.Remove(slot(s, "deldir") + "/x") }, "deldir/x", "deleted from .hutch"},
		"slot gained a file":          {func(s *scene) error { return os.WriteFile(slot(s, "deldir")+"/z", nil, 0o644) }, "deldir/z", "added"},
		"slot swapped": {func(s *scene) error {
			return errors.Join(os.Remove(slot(s, "del.txt")), os.WriteFile(slot(s, "del.txt"), []byte("delete me"), 0o644))
		}, "del.txt", "replaced in .hutch"},
		"slot of a created filled": {func(s *scene) error { return os.WriteFile(slot(s, "new.txt"), nil, 0o644) }, "new.txt", "tampered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := mixed()
			delete(after, "secret")
			s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
			t.Cleanup(s.close)
			s.apply(t)
			quiet()
			check(t, c.edit(s))
			was := whole(t, s.ws(""))
			_, err := undoLast(s)
			var changed *ChangedError
			if !errors.As(err, &changed) {
				t.Fatalf("undone: %v", err)
			}
			at := slices.IndexFunc(changed.Changes, func(c2 Conflict) bool { return c2.Path == c.path })
			if at < 0 || !strings.Contains(changed.Changes[at].Host, c.says) {
				t.Errorf("%v does not say %q of %q", err, c.says, c.path)
			}
			if len(changed.Changes) > 1 && !strings.HasPrefix(name, "parent") && !strings.Contains(name, "within") {
				t.Errorf("names paths that did not change: %v", err)
			}
			if d := cmp.Diff(was, whole(t, s.ws(""))); d != "" {
				t.Errorf("touched: %s", d)
			}
			if st, err := Status(s.req.Workspace, "t1"); st != Done || err != nil {
				t.Errorf("status %v, %v", st, err)
			}
		})
	}
}

// TestUndoBusy holds that a file which is open for writing is not taken away.
func TestUndoBusy(t *testing.T) {
	s := smallScene(t)
	s.apply(t)
	f, err := os.OpenFile(s.ws("a"), os.O_WRONLY, 0)
	check(t, err)
	defer f.Close()
	var changed *ChangedError
	if _, err := undoLast(s); !errors.As(err, &changed) || changed.Changes[0].Path != "a" || changed.Changes[0].Host != "open for writing" {
		t.Fatal(err)
	}
	f.Close()
	_, err = undoLast(s)
	check(t, err)
	s.want(t, "before")
}

// next makes the scene's workspace the start of another promotion.
func (s *scene) next(t testing.TB, id string, after mapTree) *scene {
	t.Helper()
	dir := filepath.Join(filepath.Dir(s.dir), filepath.Base(s.dir)+"-"+id)
	n := newScene(t, dir, snap(t, s.ws("")), after, "")
	unix.Close(n.req.Workspace)
	purge(t, filepath.Join(dir, "ws"))
	check(t, os.Symlink(s.ws(""), filepath.Join(dir, "ws")))
	var err error
	n.req.Workspace, err = unix.Dup(s.req.Workspace)
	check(t, err)
	n.req.ID = id
	for i := range n.req.Changes.Entries {
		n.req.Changes.Entries[i].BaseIno = 0
	}
	n.req.Stamp = stamp(t, s.ws(""))
	return n
}

func TestUndoTwoInTurn(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		before, middle := mixed()
		delete(middle, "secret")
		last := maps.Clone(middle)
		last["mod.txt"] = file("once more")
		last["todir/more"] = file("more")
		last["dir/a"] = file("a again")
		delete(last, "new.txt")
		delete(last, "newro/sub/deep")
		last["chmod"] = dir().mode(0o755)
		s := newScene(t, filepath.Join(base, "s"), before, middle, "")
		defer s.remove(t)
		first := whole(t, s.ws(""))
		s.req.Stamp = stamp(t, s.ws(""))
		s.apply(t)
		second := whole(t, s.ws(""))
		n := s.next(t, "t2", last)
		defer n.remove(t)
		n.apply(t)
		quiet()

		var changed *ChangedError
		_, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "t1"})
		if !errors.As(err, &changed) || !strings.Contains(err.Error(), "promotion t2; undo that first") {
			t.Fatalf("the first was undone beneath the second: %v", err)
		}
		var paths []string
		for _, c := range changed.Changes {
			paths = append(paths, c.Path)
		}
		if want := []string{"chmod", "dir/a", "mod.txt", "new.txt", "newro", "todir"}; !slices.Equal(slices.Sorted(slices.Values(paths)), want) {
			t.Errorf("overlap in %q, want %q", paths, want)
		}
		res, err := undoLast(s)
		check(t, err)
		if d := cmp.Diff(second, whole(t, s.ws(""))); d != "" || res.ID != "t2" {
			t.Fatalf("%s: not as after the first: %s", res.ID, d)
		}
		res, err = undoLast(s)
		check(t, err)
		if d := cmp.Diff(first, whole(t, s.ws(""))); d != "" || res.ID != "t1" {
			t.Fatalf("%s: not as before: %s", res.ID, d)
		}
	})
}

// TestUndoOlder undoes a promotion that a newer one does not overlap, though
// they share directories.
func TestUndoOlder(t *testing.T) {
	before := mapTree{"a": file("a"), "b": file("b"), "d": dir(), "d/x": file("x"), "d/y": file("y"), "e": dir(), "e/z": file("z")}
	middle := maps.Clone(before)
	middle["a"], middle["d/n"], middle["e/n"] = file("a2"), file("n"), file("n")
	delete(middle, "d/x")
	last := maps.Clone(middle)
	last["b"], last["d/m"] = file("b2"), file("m")
	delete(last, "d/y")
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, middle, "")
	defer s.close()
	start := whole(t, s.ws(""))
	s.apply(t)
	n := s.next(t, "t2", last)
	defer n.close()
	quiet()
	n.apply(t)
	end := whole(t, s.ws(""))
	_, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "t1"})
	check(t, err)
	want := maps.Clone(end)
	for _, path := range []string{"a", "d/x", "e", "e/z"} {
		want[path] = start[path]
	}
	delete(want, "d/n")
	delete(want, "e/n")
	got := whole(t, s.ws(""))
	for _, shared := range []string{".", "d"} { // changed by both: the time is that of the undo
		if got[shared].Mtime <= end[shared].Mtime {
			t.Errorf("%s: its mtime hides that it changed", shared)
		}
		a := want[shared]
		a.Mtime = got[shared].Mtime
		want[shared] = a
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// And the newer one can still go.
	res, err := undoLast(s)
	check(t, err)
	if s.want(t, "before"); res.ID != "t2" {
		t.Error(res.ID)
	}
}

// TestUndoKeepsOthersTimes holds that a directory that the user changed since
// does not get an older time than his change.
func TestUndoKeepsOthersTimes(t *testing.T) {
	s := smallScene(t)
	s.apply(t)
	quiet()
	check(t, os.WriteFile(s.ws("mine"), nil, 0o644))
	st, err := os.Lstat(s.ws(""))
	check(t, err)
	quiet()
	_, err = undoLast(s)
	check(t, err)
	if now, err := os.Lstat(s.ws("")); err != nil || now.ModTime().Before(st.ModTime()) {
		t.Errorf("mtime %v, was %v (%v)", now.ModTime(), st.ModTime(), err)
	}
	s.before["mine"] = file("")
	s.want(t, "before")
}

func TestUndoNothing(t *testing.T) {
	s := smallScene(t)
	if _, err := undoLast(s); !errors.Is(err, ErrNoUndo) {
		t.Error(err)
	}
	s.apply(t)
	_, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "t9"})
	if !errors.Is(err, ErrNoUndo) || !strings.Contains(err.Error(), "no undo data of promotion t9") {
		t.Error(err)
	}
	if _, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "../t1"}); err == nil {
		t.Error("a path was taken for an id")
	}
	if _, err := Prune(s.req.Workspace, testKey, Budget{}); err != nil {
		t.Error(err)
	}
	if _, err := undoLast(s); !errors.Is(err, ErrNoUndo) {
		t.Error(err)
	}
	s.want(t, "after")
}

// TestUndoUnvouched refuses where the record of the state after is not whole.
func TestUndoUnvouched(t *testing.T) {
	for name, damage := range map[string]func(string) error{
		"missing": os.Remove,
		"cut":     func(p string) error { return os.Truncate(p, 300) },
		"empty":   func(p string) error { return os.Truncate(p, 0) },
		"of another kind": func(p string) error {
			data, err := os.ReadFile(filepath.Join(filepath.Dir(p), doneFile))
			return errors.Join(err, os.WriteFile(p, data, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := smallScene(t)
			s.apply(t)
			check(t, damage(s.ws(".hutch/txn-t1/after")))
			if _, err := undoLast(s); err == nil {
				t.Error("undone")
			}
			s.want(t, "after")
		})
	}
}

// TestUndoOfRecovered: what the user changed before the recovery is not vouched
// for.
func TestUndoOfRecovered(t *testing.T) {
	s := smallScene(t)
	cutShort(t, s)
	rec, err := Recover(s.req.Workspace, testKey, nil)
	check(t, err)
	if len(rec) != 1 || !rec[0].Forward {
		t.Fatalf("%+v", rec)
	}
	_, err = undoLast(s)
	check(t, err)
	s.want(t, "before")

	s = smallScene(t)
	cutShort(t, s)
	check(t, os.WriteFile(s.ws("b"), []byte("mine"), 0o644))
	_, err = Recover(s.req.Workspace, testKey, nil)
	check(t, err)
	if _, err = undoLast(s); !errors.Is(err, ErrNoUndo) {
		t.Errorf("undid what was taken back: %v", err)
	}
}

func TestLog(t *testing.T) {
	before := mapTree{"a": file("a"), "b": file("bb"), "d": dir(), "d/x": file("x")}
	middle := mapTree{"a": file("a2"), "b": file("bb"), "n": file("nnn")}
	last := mapTree{"a": file("a2"), "b": file("b2"), "n": file("nnn")}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, middle, "")
	defer s.close()
	if list, err := Log(s.req.Workspace, testKey); err != nil || len(list) > 0 {
		t.Errorf("%+v, %v", list, err)
	}
	start := time.Now()
	s.apply(t)
	n := s.next(t, "t2", last)
	defer n.close()
	n.apply(t)
	list, err := Log(s.req.Workspace, testKey)
	check(t, err)
	if len(list) != 2 || list[0].ID != "t2" || list[1].ID != "t1" {
		t.Fatalf("%+v", list)
	}
	if got, want := list[1].Tally, (Tally{1, 1, 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, p := range list {
		if p.State != Done || p.NoUndo != "" || string(p.Receipt) != string(s.req.Receipt) || p.Bytes < 2 || time.Since(p.Time) > time.Since(start)+time.Second {
			t.Errorf("%+v", p)
		}
	}
	_, err = undoLast(s)
	check(t, err)
	list, err = Log(s.req.Workspace, testKey)
	check(t, err)
	if list[0].State != Undone || list[0].NoUndo == "" || list[0].Bytes != 2 || list[1].State != Done {
		t.Errorf("%+v", list)
	}
	list, err = Log(s.req.Workspace, Key{9})
	check(t, err)
	for _, p := range list {
		if p.State != Foreign || p.NoUndo == "" || p.Receipt != nil {
			t.Errorf("with another key: %+v", p)
		}
	}
	if _, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: Key{9}, ID: "t1"}); !errors.Is(err, ErrForeign) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := Log(s.req.Workspace, Key{}); err == nil {
		t.Error("listed without a key")
	}
}

// TestUndoRandom applies random changes to random trees and takes them back:
// the last alone, or both in turn, or the first beneath the second where they
// have nothing in common.
func TestUndoRandom(t *testing.T) {
	base, round := tempDir(t), 0
	defer func() { fault = nil }()
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		before := drawTree(rt, "before")
		middle := drawTree(rt, "middle")
		for _, p := range slices.Sorted(maps.Keys(before)) {
			if rapid.Bool().Draw(rt, "keep") {
				addTo(middle, p, before[p], before)
			}
		}
		last := maps.Clone(middle)
		for range rapid.IntRange(0, 3).Draw(rt, "further") {
			if p := rapid.SampledFrom(append(slices.Sorted(maps.Keys(middle)), "z")).Draw(rt, "path"); last[p].Type != 0 || p == "z" {
				last[p] = file(rapid.SampledFrom([]string{"l", "ll"}).Draw(rt, "data"))
				for q := range last { // a directory that became a file holds nothing
					if strings.HasPrefix(q, p+"/") {
						delete(last, q)
					}
				}
			}
		}
		round++
		s := newScene(t, filepath.Join(base, fmt.Sprint(round)), before, middle, "")
		defer s.remove(t)
		first := whole(t, s.ws(""))
		s.req.Stamp = stamp(t, s.ws(""))
		s.apply(t)
		if cmp.Equal(before, middle) {
			return // nothing to undo
		}
		second := whole(t, s.ws(""))
		n := s.next(t, "t2", last)
		defer n.remove(t)
		n.apply(t)
		twice := !cmp.Equal(middle, last)
		third := whole(t, s.ws(""))

		same := func(what string, want map[string]attributes) {
			rt.Helper()
			if d := cmp.Diff(want, whole(t, s.ws(""))); d != "" {
				rt.Fatalf("not as %s: %s", what, d)
			}
		}
		_, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "t1"})
		var changed *ChangedError
		switch {
		case err == nil && twice:
			seen["disjoint"]++
			// Every path is of one of the three: what the second changed, else
			// as before the first.
			now := whole(t, s.ws(""))
			for p := range third {
				want := first[p]
				if d := third[p]; !cmp.Equal(d.Node, second[p].Node) {
					want = d
				}
				if got := now[p]; !cmp.Equal(got.Node, want.Node) || got.Ino != want.Ino {
					rt.Fatalf("%q: %+v, want %+v", p, got, want)
				}
			}
			return
		case err == nil:
			seen["alone"]++
			same("before", first)
			return
		case !errors.As(err, &changed) || !twice:
			rt.Fatalf("%v", err)
		}
		seen["overlap"]++
		same("it was when the undo was refused", third)
		_, err = undoLast(s)
		check(t, err)
		same("after the first", second)
		_, err = undoLast(s)
		check(t, err)
		same("before", first)
	})
	t.Log(seen)
	if seen["disjoint"] == 0 || seen["overlap"] == 0 || seen["alone"] == 0 {
		t.Errorf("a case never came up: %v", seen)
	}
}
