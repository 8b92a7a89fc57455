package run

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// answer runs hutch with lines on its standard input.
func answer(t *testing.T, w *lab.World, lines string, args ...string) lab.Result {
	t.Helper()
	path := filepath.Join(w.Base, "answers")
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	return w.RunWith(lab.Options{Stdin: in}, args...)
}

// numbered is a file of n lines; with some replaced.
func numbered(n int, edited map[int]string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		line, ok := edited[i]
		if !ok {
			line = fmt.Sprintf("line %d\n", i)
		}
		b.WriteString(line)
	}
	return b.String()
}

func TestPickHunks(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Write("long", numbered(60, nil))
		id := box(t, w, `sed -i -e '5s/.*/five/' -e '8s/.*/eight/' -e '50s/.*/fifty/' long; chmod 755 long; rm a.txt; echo new > new; ln -sfn module.py link`)
		// In order: a.txt goes (n), link (y), long: mode (n), the first hunk is
		// split (s): n, y; the last: n. new: y.
		r := answer(t, w, "n\ny\nn\ns\nn\ny\nn\ny\n", "commit", id, "-p")
		w.Want(r, 0)
		if got, want := w.Read("long"), numbered(60, map[int]string{8: "eight\n"}); got != want {
			t.Fatalf("long is not what was chosen:\n%s\n%v", got, r)
		}
		if info, err := os.Stat(filepath.Join(w.Dir, "long")); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("the mode was not chosen: %v, %v", info, err)
		}
		if target, _ := os.Readlink(filepath.Join(w.Dir, "link")); target != "module.py" || !w.Exists("a.txt") || w.Read("new") != "new\n" {
			t.Errorf("what was chosen did not arrive, or more\n%v", r)
		}
		for _, want := range []string{"\n--- a/long\n+++ b/long\n", "Split into 2 hunks.", "(1/3) Promote this change of mode and attributes [y,n,q,a,d,j,?]?", "(2/3) Promote this hunk [y,n,q,a,d,j,k,s,?]?", "Promote this deletion [y,n,q,?]?", "Promote this addition [y,n,q,?]?"} {
			if !strings.Contains(r.Stdout, want) {
				t.Errorf("it lacks %q\n%v", want, r)
			}
		}
		diff := w.Run("diff", id)
		if !strings.Contains(diff.Stdout, "-line 5\n+five\n") || strings.Contains(diff.Stdout, "+eight") || !strings.Contains(diff.Stdout, " eight\n") || !strings.Contains(diff.Stdout, "new mode 100755") {
			t.Errorf("the box does not hold the rest\n%v", diff)
		}
		// Again: everything of the file, and no more.
		w.Want(answer(t, w, "n\na\n", "commit", id, "-p"), 0)
		if got, want := w.Read("long"), numbered(60, map[int]string{5: "five\n", 8: "eight\n", 50: "fifty\n"}); got != want || !w.Exists("a.txt") {
			t.Fatalf("long is not whole:\n%s", got)
		}
		w.Want(w.Run("commit", id), 0)
		if w.Exists("a.txt") {
			t.Error("the rest did not arrive")
		}
		w.Want(w.Run("receipts", "verify"), 0)
	})
}

// Whatever is answered, what was chosen arrives, and with the rest all does.
func TestPickAnything(t *testing.T) {
	rounds := 6
	if lab.Proof() {
		rounds = 200
	}
	const script = `sed -i -e '3s/.*/three/' -e '20d' -e '39a more' long; printf 'end' >> noeol; sed -i 1d noeol; chmod 700 run.sh; echo x >> run.sh
		mv dir moved; mkdir -p dir/of/new; echo 1 > dir/of/new/file; rm README.md; mkdir README.md; echo 2 > README.md/in; rm -r turned; echo 3 > turned; mkdir empty; printf '\000\001' > bin; chmod 600 module.py; ln -s x link2; rm -r gone`
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 9))
			w := lab.New(t)
			w.Sample()
			w.Write("long", numbered(60, nil))
			w.Write("noeol", "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten")
			w.Write("turned/a/b", "b\n")
			w.Write("turned/c", "c\n")
			w.Write("gone/a/b", "b\n")
			plain := filepath.Join(w.Base, "plain")
			w.Host("cp", "-a", w.Dir, plain)
			w.Host("sh", "-c", `cd "$1" && eval "$2"`, "sh", plain, script)

			id := box(t, w, script)
			for range 2 {
				var lines strings.Builder
				for range 60 {
					lines.WriteString(string("yyynnnsjkad?"[rng.IntN(12)]) + "\n")
				}
				r := answer(t, w, lines.String(), "commit", id, "-p")
				if r.Code != 0 && !strings.Contains(r.Stderr, "is selected") {
					t.Fatal(r)
				}
				if list := w.Run("box", "list"); !strings.Contains(list.Stdout, id) {
					break // all of it was chosen
				}
			}
			if list := w.Run("box", "list"); strings.Contains(list.Stdout, id) {
				w.Want(w.Run("commit", id), 0)
			}
			for _, d := range withoutTimes(lab.Snapshot(t, plain)).Diff(withoutTimes(w.Snap().Without(".hutch"))) {
				t.Errorf("promoted in parts, against a plain copy: %s", d)
			}
		})
	}
}

// The end of the answers, or q, leaves what follows in the box; and so does an
// answer that nobody gave.
func TestPickEnds(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, "echo 1 > b1; echo 2 > b2; echo 3 > b3")
	w.Want(answer(t, w, "y\nq\n", "commit", id, "-p"), 0)
	if !w.Exists("b1") || w.Exists("b2") || w.Exists("b3") {
		t.Error("q did not end it")
	}
	w.Want(answer(t, w, "y\n", "commit", id, "-p"), 0)
	if !w.Exists("b2") || w.Exists("b3") {
		t.Error("the end of the answers did not end it")
	}
	before := w.Snap()
	for _, answers := range []string{"", "n\n", "what\nyes\nY\n"} {
		if r := answer(t, w, answers, "commit", id, "-p"); r.Code != 125 || !strings.Contains(r.Stderr, "nothing of its change is selected") {
			t.Errorf("%q: %v", answers, r)
		}
	}
	w.Untouched(before)
	w.Want(w.Run("discard", id), 0)
}

// What is asked is safe to show, and the host's edits meanwhile are conflicts.
func TestPickOnATerminal(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, `printf '\033[2Jowned\n' >> a.txt; echo more >> module.py`)
	shown := onTerminal(t, w, "y\nn\n", nil, "commit", id, "-p")
	if !strings.Contains(shown, "+^[[2Jowned") || strings.Contains(shown, "\x1b[2J") || !strings.Contains(shown, "Promote this hunk [y,n,q,?]?") {
		t.Errorf("%q", shown)
	}
	if !strings.Contains(w.Read("a.txt"), "owned") || strings.Contains(w.Read("module.py"), "more") {
		t.Error("the answers were not followed")
	}
	w.Write("module.py", "mine\n")
	r := answer(t, w, "y\n", "commit", id, "-p")
	if r.Code != 125 || w.Read("module.py") != "mine\n" {
		t.Errorf("the host's edit was lost: %v", r)
	}
	w.Want(w.Run("discard", id), 0)
}

// Whenever the promotion of a part is killed, the rest can still follow, and is
// not in conflict with what hutch itself promoted.
func TestKilledBetweenPartAndRest(t *testing.T) {
	rounds := 10
	if lab.Proof() {
		rounds = 200
	}
	w := lab.New(t)
	w.Sample()
	arrived := 0
	for i := range rounds {
		w.Write("long", numbered(60, nil))
		id := box(t, w, `sed -i -e '5s/.*/five/' -e '50s/.*/fifty/' long; mkdir -p d/e; echo 1 > d/e/f; echo 2 > d/g; echo 3 >> a.txt`)
		path := filepath.Join(w.Base, "answers")
		if err := os.WriteFile(path, []byte("n\nn\ny\ny\nn\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		running := w.Start(lab.Options{Stdin: in}, "commit", id, "-p")
		if i%2 == 0 { // in the middle of it, or in the wait for the next tick after it
			time.Sleep(time.Duration(i*3) * time.Millisecond)
		} else {
			for deadline := time.Now().Add(10 * time.Second); !strings.Contains(w.Read("long"), "five") && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			arrived++
		}
		running.Signal(syscall.SIGKILL)
		running.Wait()
		in.Close()
		for n := 0; strings.Contains(w.Run("box", "list").Stdout, id); n++ {
			if r := w.Run("commit", id); r.Code != 0 || n > 3 {
				t.Fatalf("round %d: %v", i, r)
			}
		}
		if got, want := w.Read("long"), numbered(60, map[int]string{5: "five\n", 50: "fifty\n"}); got != want || w.Read("d/e/f") != "1\n" || w.Read("d/g") != "2\n" || !strings.HasSuffix(w.Read("a.txt"), "3\n") {
			t.Fatalf("round %d: not all arrived:\n%s", i, got)
		}
		w.Host("rm", "-r", "d")
		w.Write("a.txt", "foo one\n")
	}
	if arrived == 0 {
		t.Error("it was never killed after the part had arrived")
	}
}
