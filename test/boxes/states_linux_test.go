package boxes

import (
	"encoding/json"
	"strings"
	"testing"
)

// each runs a test of what is the same with and without a daemon.
func each(t *testing.T, f func(t *testing.T, w *world)) {
	for name, daemon := range map[string]bool{"without a daemon": false, "with one": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if daemon {
				w.out("daemon", "start")
			}
			f(t, w)
		})
	}
}

// fill writes into a box without a jail that lasts: what a daemon wrote is let
// go of where the test is of none.
func (w *world) fill(id, line string) {
	w.T.Helper()
	running := w.daemonRuns()
	w.Want(w.exec(id, line), 0)
	if !running {
		w.out("daemon", "stop")
	}
}

// A box goes back to a checkpoint exactly, and a fork goes on from where its
// parent stood; neither sees the other.
func TestCheckpointRestoreFork(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.Sample()
		before := w.Snap()
		id := w.box("--name", "c")
		w.fill(id, "echo 1 > n; rm README.md; chmod 600 a.txt; mv dir moved")
		if got := w.out("box", "checkpoint", "c", "first"); got != "first" {
			t.Errorf("checkpoint printed %q", got)
		}
		made := w.out("box", "checkpoint", "c")
		if made == "" || made == "first" {
			t.Errorf("checkpoint printed %q", made)
		}
		diff := w.out("diff", "c")
		w.fill(id, "echo 2 > n; echo x > README.md; rm -r moved; chmod 644 a.txt; echo y > y")
		forks := strings.Fields(w.out("box", "fork", "c", "-n", "2", "--name", "f"))
		if len(forks) != 2 || !idForm.MatchString(forks[0]) {
			t.Fatalf("fork printed %q", forks)
		}
		if b := parsed[boxJSON](w, "box", "show", "f-2", "--json"); b.ID != forks[1] || b.Parent != id {
			t.Errorf("%+v", b)
		}
		w.out("box", "restore", "c", "first")
		if got := w.out("diff", "c"); got != diff {
			t.Errorf("after the restore:\n%s\nwant\n%s", got, diff)
		}
		w.fill("f-1", "test $(cat n) = 2; test $(cat README.md) = x; test ! -e moved; echo 3 > n")
		w.fill("f-2", "test $(cat n) = 2; cat y")
		w.fill(id, "test $(cat n) = 1; test ! -e README.md; test -e moved/deep/file.txt; test ! -e y")
		again := w.out("box", "fork", "f-1")
		w.fill(again, "test $(cat n) = 3")
		w.Untouched(before)
		b := parsed[boxJSON](w, "box", "show", "c", "--json")
		if len(b.Checkpoints) != 2 || b.Checkpoints[0].Name != "first" {
			t.Errorf("%+v", b)
		}
		w.fails("", "box", "restore", "c", "nothing")
		w.fails("first", "box", "checkpoint", "c", "first")
		w.Want(w.Run("box", "kill", again), 0)
		w.out("commit", again)
		if w.Read("n") != "3\n" || w.Read("README.md") != "x\n" || w.Exists("dir") {
			t.Error("the change of the fork did not arrive")
		}
		w.out("box", "rm", "c", "f-1", "f-2")
	})
}

// With --keep a box lives on after its commit, and its next change goes on from
// there.
func TestCommitKeep(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		id := w.box("--name", "k")
		w.fill(id, "echo 1 > a")
		w.out("commit", "k", "--keep")
		if w.Read("a") != "1\n" {
			t.Error("the first change did not arrive")
		}
		if got := w.out("diff", "k"); got != "" {
			t.Errorf("after the commit: %s", got)
		}
		w.fill(id, "test $(cat a) = 1; echo 2 > a; echo b > b")
		if got := w.out("diff", "k", "--name-status"); got != "M\ta\nA\tb" {
			t.Errorf("%q", got)
		}
		w.out("commit", "k")
		if w.Read("a") != "2\n" || w.Read("b") != "b\n" {
			t.Error("the second change did not arrive")
		}
	})
}

// Where the workspace changed too, or the guard holds, nothing is promoted, and
// each path is named, from here and through the daemon alike.
func TestCommitThatIsNotMade(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.Sample()
		id := w.box("--name", "n")
		w.fill(id, "echo box > a.txt; mkdir -p .vscode; echo '{}' > .vscode/tasks.json")
		r := w.Run("commit", "n")
		if r.Code != 125 || !strings.Contains(r.Stderr, "held: .vscode/tasks.json") || !strings.Contains(r.Stderr, "nothing was promoted") {
			t.Errorf("%v", r)
		}
		w.Write("a.txt", "host\n")
		r = w.Run("commit", "n", "--allow-path", ".vscode/**")
		if r.Code != 125 || !strings.Contains(r.Stderr, `conflict: "a.txt"`) {
			t.Errorf("%v", r)
		}
		r = w.Run("commit", "n", "--allow-path", ".vscode/**", "--json")
		var d struct {
			Status    string
			Conflicts []struct{ Path string }
		}
		if err := json.Unmarshal([]byte(r.Stdout), &d); err != nil || d.Status != "conflict" || len(d.Conflicts) != 1 || d.Conflicts[0].Path != "a.txt" || r.Code != 125 {
			t.Errorf("%v\n%v", err, r)
		}
		if w.Read("a.txt") != "host\n" || w.Exists(".vscode") {
			t.Error("something was promoted")
		}
		if got := w.out("diff", "n", "--name-status", "--", "a.*"); got != "M\ta.txt" {
			t.Errorf("%q", got)
		}
		if got := w.out("diff", "n", "--", "a.*"); !strings.Contains(got, "+box") || strings.Contains(got, "tasks.json") {
			t.Errorf("%q", got)
		}
		if got := w.out("diff", "n", "--stat"); !strings.Contains(got, "2 files changed") {
			t.Errorf("%q", got)
		}
		w.out("discard", "n", "--force")
	})
}

// Verbs that need a quiet box say so while something runs, and what ends it.
func TestBusyBoxes(t *testing.T) {
	w := newWorld(t)
	id := w.box("--name", "b")
	w.out("box", "exec", "b", "--detach", "--", "sh", "-c", "while :; do date >> now; sleep 0.01; done")
	until(t, "busy", func() bool { return w.exec(id, "test -s now").Code == 0 })
	if b := parsed[boxJSON](w, "box", "show", "b", "--json"); b.State != "busy" || len(b.Running) != 1 {
		t.Errorf("%+v", b)
	}
	w.out("box", "checkpoint", "b", "busy")
	fork := w.out("box", "fork", "b")
	w.Want(w.exec(fork, "test -e now"), 0) // empty between truncation and writing
	for _, args := range [][]string{{"box", "restore", "b", "busy"}, {"commit", "b"}, {"discard", "b"}} {
		r := w.Run(append(args, "--json")...)
		var e struct{ Error, Code string }
		if err := json.Unmarshal([]byte(r.Stdout), &e); err != nil || r.Code != 125 || e.Error == "" {
			t.Errorf("%v\n%v", err, r)
		}
	}
	if diff := w.out("diff", "b", "--name-status"); diff != "A\tnow" {
		t.Errorf("%q", diff)
	}
	w.out("box", "kill", "b")
	w.out("box", "restore", "b", "busy")
	w.out("box", "rm", "b", fork)
}

// Of several commands side by side the first success is committed, and nothing
// else stays; with a score the best.
func TestRace(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	r := w.Run("race", "-n", "3", "--", "sh", "-c", `echo $HUTCH_RACER > winner; case $HUTCH_RACER in 2) exit 0;; 1) exit 1;; esac; sleep 1000`)
	w.Want(r, 0)
	if w.Read("winner") != "2\n" || !idForm.MatchString(strings.TrimSpace(r.Stdout)) {
		t.Errorf("%q\n%v", w.Read("winner"), r)
	}
	result := parsed[struct {
		Winner string
		Racers []struct {
			Box, Fate string
			Won       bool
			Score     *float64
		}
	}](w, "race", "-n", "3", "--score", "cat score", "--json", "--", "sh", "-c", `echo $HUTCH_RACER > winner; echo $((HUTCH_RACER % 3 * 10)) > score`)
	if w.Read("winner") != "2\n" || w.Read("score") != "20\n" || len(result.Racers) != 3 || !result.Racers[1].Won || *result.Racers[1].Score != 20 || result.Racers[1].Box != result.Winner {
		t.Errorf("%q %+v", w.Read("winner"), result)
	}
	before := w.Snap()
	if r := w.Run("race", "-n", "2", "--", "false"); r.Code != 125 || r.Stdout != "" || !strings.Contains(r.Stderr, "no racer") {
		t.Errorf("%v", r)
	}
	w.Untouched(before)
	if list := w.Run("box", "list", "--json"); list.Stdout != "[]\n" {
		t.Errorf("%v", list)
	}
	one, two := w.box("--name", "one"), w.box("--name", "two")
	w.Want(w.exec(one, "echo 1 > mine"), 0)
	w.Want(w.exec(two, "echo 2 > mine"), 0)
	w.Want(w.Run("race", "one", "two", "--", "grep", "2", "mine"), 0)
	if w.Read("mine") != "2\n" {
		t.Errorf("%q", w.Read("mine"))
	}
	for _, b := range parsed[[]boxJSON](w, "box", "list", "--json") {
		t.Errorf("left: %+v", b)
		w.Run("box", "rm", b.ID)
	}
	w.Want(w.Run("race", "--cmd", "false", "--cmd", "echo different > way", "--cmd", "sleep 1000"), 0)
	if w.Read("way") != "different\n" {
		t.Errorf("%q", w.Read("way"))
	}
	for _, args := range [][]string{{"-n", "3", "--cmd", "a", "--cmd", "b"}, {"--cmd", "a"}, {"-n", "2"}} {
		w.fails("give", append([]string{"race"}, args...)...)
	}
	w.fails("exclude", "race", "--cmd", "a", "--", "b")
	base := w.box()
	w.Want(w.exec(base, "echo base > base"), 0)
	w.Want(w.Run("race", base, "-n", "2", "--", "sh", "-c", "cat base && echo $HUTCH_RACER > forked"), 0)
	if w.Read("base") != "base\n" || w.Read("forked") == "" {
		t.Error("the winner's change did not arrive")
	}
	w.out("box", "rm", base)
}
