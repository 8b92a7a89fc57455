package run

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"hutch/test/lab"
)

const change = "echo x > new.txt; rm README.md; sed -i s/foo/bar/ a.txt"

// changed fails the test unless the workspace holds what change makes.
func changed(t *testing.T, w *lab.World) {
	t.Helper()
	if got := w.Read("new.txt"); got != "x\n" {
		t.Errorf("new.txt holds %q", got)
	}
	if got := w.Read("a.txt"); got != "bar one\nbar two\n" {
		t.Errorf("a.txt holds %q", got)
	}
	if w.Exists("README.md") {
		t.Error("README.md is still there")
	}
}

func TestPreservedBox(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, r := w.JSON("--preserve", "--", "sh", "-c", change)
		w.Want(r, 0)
		if !out.Kept || out.RollbackPerformed || out.Committed {
			t.Errorf("kept %v rolled back %v committed %v", out.Kept, out.RollbackPerformed, out.Committed)
		}
		w.Untouched(before)

		list := w.Run("box", "list")
		w.Want(list, 0)
		if !strings.Contains(list.Stdout, out.ID) {
			t.Errorf("box list does not show %s\n%v", out.ID, list)
		}

		diff := w.Run("diff", out.ID)
		w.Want(diff, 0)
		for _, want := range []string{"-foo one\n", "+bar one\n", "new.txt", "README.md"} {
			if !strings.Contains(diff.Stdout, want) {
				t.Errorf("diff lacks %q\n%v", want, diff)
			}
		}
		w.Untouched(before)

		w.Want(w.Run("commit", out.ID), 0)
		changed(t, w)
		if list := w.Run("box", "list"); strings.Contains(list.Stdout, out.ID) {
			t.Errorf("a committed box is still listed\n%v", list)
		}
		w.Want(w.Run("receipts", "verify"), 0)
	})
}

func TestDiscardedBox(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, r := w.JSON("--preserve", "--", "sh", "-c", change+"; mkdir d; chmod 000 d")
		w.Want(r, 0)
		w.Want(w.Run("discard", out.ID), 0)
		w.Untouched(before)
		for _, verb := range []string{"diff", "commit", "discard"} {
			r := w.Run(verb, out.ID)
			w.Want(r, 125)
			oneLine(t, r.Stderr)
		}
		w.Untouched(before)
	})
}

func TestPreservedBoxOfAFailedCommand(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, r := w.JSON("--preserve", "--commit", "--", "sh", "-c", change+"; exit 7")
		w.Want(r, 7)
		if !out.Kept || out.Committed {
			t.Errorf("kept %v committed %v", out.Kept, out.Committed)
		}
		w.Untouched(before)
		w.Want(w.Run("commit", out.ID), 0)
		changed(t, w)
	})
}

func TestConflictKeepsTheBox(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		out, r := w.JSON("--preserve", "--", "sh", "-c", change)
		w.Want(r, 0)
		w.Write("a.txt", "the host was here\n")
		before := w.Snap()
		c := w.Run("commit", out.ID)
		w.Want(c, 125)
		if !strings.Contains(c.Stderr+c.Stdout, "a.txt") {
			t.Errorf("the conflict does not name a.txt\n%v", c)
		}
		for _, d := range before.Without(".hutch", ".").Diff(w.Snap().Without(".hutch", ".")) {
			t.Errorf("promoted in spite of a conflict: %s", d)
		}
		if list := w.Run("box", "list"); !strings.Contains(list.Stdout, out.ID) {
			t.Errorf("the box is gone after a conflict\n%v", list)
		}
		w.Want(w.Run("discard", out.ID), 0)
	})
}

func TestConflictDuringTheRun(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		in, tell, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		run := w.Start(lab.Options{Stdin: in}, "run", "--strategy", w.Strategy.Name, "--commit", "--",
			"sh", "-c", change+"; echo ready; read go; exit 0")
		in.Close()
		run.WaitFor("ready")
		w.Write("a.txt", "the host was here\n")
		before := w.Snap()
		tell.WriteString("go\n")
		tell.Close()
		r := run.Wait()
		w.Want(r, 125)
		if !strings.Contains(r.Stderr, "a.txt") {
			t.Errorf("the conflict does not name a.txt\n%v", r)
		}
		for _, d := range before.Without(".hutch", ".").Diff(w.Snap().Without(".hutch", ".")) {
			t.Errorf("promoted in spite of a conflict: %s", d)
		}
		// The box is kept; gc may not take it, discard does.
		w.Want(w.Run("gc"), 0)
		id := strings.Fields(w.Run("box", "list").Stdout)
		found := false
		for _, word := range id {
			if w.Run("discard", word).Code == 0 {
				found = true
			}
		}
		if !found {
			t.Errorf("no box was kept: box list says %q", id)
		}
	})
}

func TestUnrelatedHostEditIsNoConflict(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		out, r := w.JSON("--preserve", "--", "sh", "-c", change)
		w.Want(r, 0)
		w.Write("dir/other.txt", "the host was here\n")
		w.Write("hostnew.txt", "too\n")
		w.Want(w.Run("commit", out.ID), 0)
		changed(t, w)
		if got := w.Read("dir/other.txt"); got != "the host was here\n" {
			t.Errorf("the host's edit is gone: %q", got)
		}
	})
}

func TestGC(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	w.Want(w.Run("gc"), 0)
	w.Untouched(before)
	w.Want(w.Box("--commit", "--", "sh", "-c", change), 0)
	w.Want(w.Run("gc"), 0)
	changed(t, w)
	w.Want(w.Run("receipts", "verify"), 0)
}

func TestBoxesOfAnotherStateDirectoryAreUnknown(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	for _, id := range []string{"nosuchbox", "../../etc", "", "a/b", "."} {
		for _, verb := range []string{"diff", "commit", "discard"} {
			r := w.Run(verb, id)
			w.Want(r, 125)
			oneLine(t, r.Stderr)
		}
	}
}

func TestReceipts(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	var ids []string
	for _, args := range [][]string{
		{"--", "true"}, {"--", "false"}, {"--commit", "--", "sh", "-c", change}, {"--", "echo", "last"},
	} {
		out, _ := w.JSON(args...)
		ids = append(ids, out.Receipt)
	}
	list := w.Run("receipts", "list")
	w.Want(list, 0)
	for _, id := range ids {
		if !strings.Contains(list.Stdout, id) {
			t.Errorf("the list lacks %s\n%v", id, list)
		}
	}
	show := w.Run("receipts", "show", ids[2])
	w.Want(show, 0)
	if !json.Valid([]byte(show.Stdout)) || !strings.Contains(show.Stdout, "new.txt") {
		t.Errorf("the receipt is no JSON that names what changed\n%v", show)
	}
	r := w.Run("receipts", "show", "no-such-receipt")
	w.Want(r, 125)
	oneLine(t, r.Stderr)

	w.Want(w.Run("receipts", "verify"), 0)
	path := w.StateDir() + "/receipts.jsonl"
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(whole), "\n"), "\n")
	lines[len(lines)-1] += "\n"
	if len(lines) != len(ids) {
		t.Fatalf("%d lines for %d runs", len(lines), len(ids))
	}
	for _, c := range []struct {
		name  string
		lines []string
		names string // what verify must say
	}{
		{"a line changed", []string{lines[0], strings.Replace(lines[1], `"failed"`, `"success"`, 1), lines[2], lines[3]}, "2"},
		{"the last line changed", []string{lines[0], lines[1], lines[2], strings.Replace(lines[3], `"success"`, `"failed"`, 1)}, "4"},
		{"the last line cut short", []string{lines[0], lines[1], lines[2], lines[3][:len(lines[3])/2]}, "4"},
		{"a line dropped", []string{lines[0], lines[2], lines[3]}, "2"},
		{"the first dropped", []string{lines[1], lines[2], lines[3]}, "1"},
		{"two swapped", []string{lines[0], lines[2], lines[1], lines[3]}, "2"},
		{"a line twice", []string{lines[0], lines[0], lines[1], lines[2], lines[3]}, "2"},
		{"not JSON", []string{lines[0], lines[1], "garbage\n", lines[3]}, "3"},
		{"a blank line", []string{lines[0], "\n", lines[1], lines[2], lines[3]}, "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken := strings.Join(c.lines, "")
			if broken == string(whole) {
				t.Fatal("nothing was changed")
			}
			if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile(path, whole, 0o600)
			r := w.Run("receipts", "verify")
			if r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "line "+c.names) {
				t.Errorf("verify does not name line %s\n%v", c.names, r)
			}
		})
	}
	w.Want(w.Run("receipts", "verify"), 0)
}
