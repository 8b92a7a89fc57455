package run

import (
	"strings"
	"testing"

	"hutch/test/lab"
)

const original = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"

// tracked makes a repository that has original as file.txt.
func tracked(w *lab.World) {
	w.Sample()
	w.Write("file.txt", original)
	w.Host("git", "init", "-q", ".")
	w.Host("git", "-c", "user.name=a", "-c", "user.email=a@b", "add", ".")
	w.Host("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
	// Git trusts its index only about files that are older than it.
	w.Host("touch", "-d", "1 hour ago", "file.txt")
	w.Host("git", "update-index", "--refresh")
}

func TestMergeOfBothSides(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		tracked(w)
		id := box(t, w, "sed -i 's/^two$/TWO (box)/' file.txt; echo new > new.txt")
		w.Write("file.txt", strings.Replace(original, "nine", "NINE (host)", 1))
		r := w.Run("commit", id, "--on-conflict", "merge")
		w.Want(r, 0)
		want := strings.NewReplacer("two", "TWO (box)", "nine", "NINE (host)").Replace(original)
		if got := w.Read("file.txt"); got != want {
			t.Errorf("merged into %q", got)
		}
		if w.Read("new.txt") != "new\n" || !strings.Contains(r.Stderr, "file.txt") {
			t.Errorf("%v", r)
		}
		w.Want(w.Run("undo"), 0)
		if got := w.Read("file.txt"); got != strings.Replace(original, "nine", "NINE (host)", 1) {
			t.Errorf("undo left %q", got)
		}
	})
}

func TestMergeThatIsNotClean(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		tracked(w)
		id := box(t, w, "sed -i 's/^two$/TWO (box)/' file.txt; echo new > new.txt")
		w.Write("file.txt", strings.Replace(original, "two", "TWO (host)", 1))
		before := w.Snap().Without(".hutch", ".")
		r := w.Run("commit", id, "--on-conflict", "merge")
		w.Want(r, 125)
		for _, d := range before.Diff(w.Snap().Without(".hutch", ".")) {
			t.Errorf("promoted in spite of a conflict: %s", d)
		}
		if !strings.Contains(r.Stderr, "file.txt") || !strings.Contains(r.Stderr, "1 place") {
			t.Errorf("%v", r)
		}
		w.Want(w.Run("commit", id, "--on-conflict", "merge", "--conflict-markers"), 0)
		got := w.Read("file.txt")
		for _, want := range []string{"<<<<<<< workspace\nTWO (host)\n", "=======\nTWO (box)\n>>>>>>> box " + id + "\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("lacks %q: %q", want, got)
			}
		}
	})
}

func TestMergeWithoutABase(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Write("file.txt", original)
		id := box(t, w, "sed -i 's/^two$/TWO (box)/' file.txt")
		w.Write("file.txt", strings.Replace(original, "nine", "NINE (host)", 1))
		r := w.Run("commit", id, "--on-conflict", "merge")
		w.Want(r, 125)
		if !strings.Contains(r.Stderr, "no git repository") {
			t.Errorf("it does not say why\n%v", r)
		}
		w.Want(w.Run("discard", id), 0)
	})
}

func TestMergeDuringTheRun(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		tracked(w)
		run := w.Start(lab.Options{}, "run", "--strategy", w.Strategy.Name, "--commit", "--on-conflict", "merge", "--",
			"sh", "-c", "sed -i 's/^two$/TWO (box)/' file.txt; echo ready; sleep 0.5")
		run.WaitFor("ready")
		w.Write("file.txt", strings.Replace(original, "nine", "NINE (host)", 1))
		w.Want(run.Wait(), 0)
		want := strings.NewReplacer("two", "TWO (box)", "nine", "NINE (host)").Replace(original)
		if got := w.Read("file.txt"); got != want {
			t.Errorf("merged into %q", got)
		}
	})
}

// A copied tree keeps what both began with, when it is asked to in time.
func TestMergeWithAKeptBase(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		if w.Strategy.Name == "overlay" {
			return // has git's knowledge only: TestMergeWithoutABase
		}
		w.Sample()
		w.Write("file.txt", original)
		out, r := w.JSON("--preserve", "--on-conflict", "merge", "--", "sh", "-c", "sed -i 's/^two$/TWO (box)/' file.txt")
		w.Want(r, 0)
		w.Write("file.txt", strings.Replace(original, "nine", "NINE (host)", 1))
		w.Want(w.Run("commit", out.ID, "--on-conflict", "merge"), 0)
		want := strings.NewReplacer("two", "TWO (box)", "nine", "NINE (host)").Replace(original)
		if got := w.Read("file.txt"); got != want {
			t.Errorf("merged into %q", got)
		}
	})
}
