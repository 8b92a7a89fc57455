package run

import (
	"encoding/json"
	"strings"
	"testing"

	"hutch/test/lab"
)

// box keeps a box in which a command ran, and returns its id.
func box(t *testing.T, w *lab.World, script string) string {
	t.Helper()
	out, r := w.JSON("--preserve", "--", "sh", "-c", script)
	w.Want(r, 0)
	return out.ID
}

const manyFiles = "mkdir -p src/deep docs; echo 1 > src/a.go; echo 2 > src/deep/b.go; echo 3 > docs/x.md; echo 4 > top.lock; rm README.md"

func TestCommitOnly(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		id := box(t, w, manyFiles)
		r := w.Run("commit", id, "--only", "src/**")
		w.Want(r, 0)
		if w.Read("src/a.go") != "1\n" || w.Read("src/deep/b.go") != "2\n" {
			t.Error("what was selected did not arrive")
		}
		if w.Exists("docs") || w.Exists("top.lock") || !w.Exists("README.md") {
			t.Error("what was not selected arrived")
		}
		if !strings.Contains(r.Stderr, "stay in box "+id) {
			t.Errorf("it does not say what stays\n%v", r)
		}
		diff := w.Run("diff", id)
		w.Want(diff, 0)
		if strings.Contains(diff.Stdout, "src/a.go") || !strings.Contains(diff.Stdout, "docs/x.md") {
			t.Errorf("the box does not hold the rest\n%v", diff)
		}
		w.Want(w.Run("commit", id), 0)
		if w.Read("docs/x.md") != "3\n" || w.Read("top.lock") != "4\n" || w.Exists("README.md") {
			t.Error("the rest did not arrive")
		}
		if list := w.Run("box", "list"); strings.Contains(list.Stdout, id) {
			t.Errorf("an empty box is still listed\n%v", list)
		}
		w.Want(w.Run("receipts", "verify"), 0)
	})
}

func TestCommitExcept(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		id := box(t, w, manyFiles)
		w.Want(w.Run("commit", id, "--except", "*.lock", "--except", "docs/"), 0)
		if w.Read("src/a.go") != "1\n" || w.Exists("README.md") {
			t.Error("what was selected did not arrive")
		}
		if w.Exists("docs") || w.Exists("top.lock") {
			t.Error("what was excepted arrived")
		}
		w.Want(w.Run("discard", id), 0)
	})
}

// The box's own copy must not be the workspace's file: what the user writes
// there later would change what stays in the box.
func TestPartSharesNothingWithTheBox(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		id := box(t, w, "echo one > a.new; ln a.new b.new")
		w.Want(w.Run("commit", id, "--only", "a.new"), 0)
		w.Host("sh", "-c", "echo two > a.new")
		w.Want(w.Run("commit", id), 0)
		if got := w.Read("b.new"); got != "one\n" {
			t.Errorf("b.new holds %q", got)
		}
		if got := w.Read("a.new"); got != "two\n" {
			t.Errorf("a.new holds %q", got)
		}
	})
}

func TestSelectionOfARun(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		out, r := w.JSON("--commit", "--only", "*.go", "--", "sh", "-c", manyFiles)
		w.Want(r, 0)
		if !out.Committed || !out.Kept {
			t.Errorf("committed %v kept %v", out.Committed, out.Kept)
		}
		if w.Read("src/a.go") != "1\n" || w.Exists("docs") {
			t.Error("not what was selected arrived")
		}
		w.Want(w.Run("commit", out.ID), 0)
		if w.Read("docs/x.md") != "3\n" {
			t.Error("the rest did not arrive")
		}
	})
}

func TestSelectionOfNothing(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, manyFiles)
	before := w.Snap()
	for _, args := range [][]string{{"--only", "nothing-of-that-name"}, {"--except", "*"}, {"--only", ""}} {
		r := w.Run(append([]string{"commit", id}, args...)...)
		w.Want(r, 125)
		oneLine(t, r.Stderr)
		w.Untouched(before)
	}
	w.Want(w.Run("commit", id), 0)
}

func TestCommitSaysWhatArrived(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, manyFiles)
	r := w.Run("commit", id, "--only", "src/**", "--json")
	w.Want(r, 0)
	var got struct {
		Status string
		Diff   struct {
			Created []string `json:"files_created"`
		}
		Left    int
		Kept    bool
		Receipt string
	}
	if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil {
		t.Fatalf("%v\n%v", err, r)
	}
	if got.Status != "success" || strings.Join(got.Diff.Created, " ") != "src/ src/a.go src/deep/ src/deep/b.go" || got.Left != 4 || !got.Kept {
		t.Errorf("%+v", got)
	}
	w.Want(w.Run("receipts", "show", got.Receipt), 0)
	w.Want(w.Run("discard", id), 0)
}
