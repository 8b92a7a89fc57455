package boxes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hutch/test/lab"
)

var idForm = regexp.MustCompile(`^[0-9a-z]{12}$`)

// A box is made, listed, shown by its id, by a beginning of it and by its name,
// and removed, all without a daemon; ids come alone on standard output.
func TestBoxesWithoutADaemon(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	before := w.Snap()
	id := w.out("box", "create", "--name", "fix-1")
	if !idForm.MatchString(id) {
		t.Fatalf("create printed %q", id)
	}
	other := parsed[boxJSON](w, "box", "create", "--json", "--memory", "64M")
	if !idForm.MatchString(other.ID) || other.State != "created" || other.Workspace != w.Dir || other.Live || other.Checkpoints == nil || other.Running == nil {
		t.Errorf("%+v", other)
	}
	list := parsed[[]boxJSON](w, "box", "list", "--json")
	if len(list) != 2 || list[0].ID != id || list[0].Name != "fix-1" || list[1].ID != other.ID {
		t.Errorf("%+v", list)
	}
	if table := w.out("box", "list"); !strings.Contains(table, id) || !strings.Contains(table, "fix-1") || strings.Count(table, "\n") != 2 {
		t.Errorf("%s", table)
	}
	for _, name := range []string{id, id[:11], "fix-1"} {
		if b := parsed[boxJSON](w, "box", "show", name, "--json"); b.ID != id {
			t.Errorf("%s shows %+v", name, b)
		}
	}
	if text := w.out("box", "show", "fix-1"); !strings.Contains(text, id) || !strings.Contains(text, "created") {
		t.Errorf("%s", text)
	}
	if got := w.out("box", "rm", "fix-1", other.ID); got != "" {
		t.Errorf("rm printed %q", got)
	}
	if list := w.Run("box", "list", "--json"); list.Stdout != "[]\n" {
		t.Errorf("%v", list)
	}
	w.Untouched(before)
	if w.daemonRuns() {
		t.Error("a daemon was started for what works without one")
	}
}

// A box that was dropped is in the list of all, as that.
func TestEndedBoxesAreListed(t *testing.T) {
	w := newWorld(t)
	id := w.out("box", "create", "--name", "gone")
	w.out("discard", "gone")
	if list := parsed[[]boxJSON](w, "box", "list", "--json"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	list := parsed[[]boxJSON](w, "box", "list", "--all", "--json")
	if len(list) != 1 || list[0].ID != id || list[0].State != "discarded" || list[0].Ended == nil {
		t.Errorf("%+v", list)
	}
	w.out("box", "create", "--name", "gone") // the name is free again
	w.out("box", "rm", "gone")
}

// What is wrong is told in one line that says what to do; with --json as an
// object on standard output too, with a code that programs can rely on.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	id := w.out("box", "create", "--name", "one")
	for _, c := range []struct {
		code  string
		holds string
		args  []string
	}{
		{"not_found", "hutch box list", []string{"box", "show", "nothing"}},
		{"not_found", "hutch box list", []string{"box", "rm", "nothing"}},
		{"not_found", "hutch box list", []string{"discard", "nothing"}},
		{"exists", "one", []string{"box", "create", "--name", "one"}},
		{"invalid", "name", []string{"box", "create", "--name", "a/b"}},
		{"invalid", "name", []string{"box", "create", "--name", "../x"}},
		{"invalid", "--name", []string{"box", "create", "--name", ""}},
		{"invalid", "--workspace", []string{"box", "create", "--workspace", ""}},
		{"invalid", "", []string{"box", "create", "--workspace", "/nowhere"}},
		{"invalid", "no arguments", []string{"box", "create", "argument"}},
		{"invalid", "--memory", []string{"box", "create", "--memory", "much"}},
		{"invalid", "unknown flag", []string{"box", "create", "--nope"}},
		{"invalid", "unknown flag", []string{"box", "list", "--nope"}},
		{"invalid", "one box", []string{"box", "show"}},
		{"invalid", "one box", []string{"box", "show", "a", "b"}},
		{"invalid", "empty", []string{"box", "show", ""}},
		{"invalid", "at least one", []string{"box", "rm"}},
		{"invalid", "no command", []string{"box", "exec", "one"}},
		{"invalid", "no command", []string{"box", "exec", "one", "--"}},
		{"invalid", "before --", []string{"box", "exec", "--", "true"}},
		{"invalid", "before --", []string{"box", "exec", "a", "b", "--", "true"}},
		{"invalid", "--env", []string{"box", "exec", "one", "--env", "=x", "--", "true"}},
		{"invalid", "exclude", []string{"box", "exec", "one", "--detach", "--tty", "--", "true"}},
		{"invalid", "names a box", []string{"box", "cp", "a", "b"}},
		{"invalid", "names a box", []string{"box", "cp", "./a:b", "/c:d"}},
		{"invalid", "port", []string{"box", "forward", "one", "http"}},
		{"invalid", "port", []string{"box", "forward", "one", "1:0"}},
		{"invalid", "port", []string{"box", "forward", "one", "70000"}},
		{"invalid", "--mode", []string{"box", "write", "one", "x", "--mode", "9"}},
		{"invalid", "--mode", []string{"box", "write", "one", "x", "--mode", "4755"}},
		{"invalid", "--pid", []string{"box", "kill", "one", "--pid", "-1"}},
		{"invalid", "-n", []string{"box", "fork", "one", "-n", "0"}},
		{"invalid", "-n", []string{"race", "--", "true"}},
		{"invalid", "-n", []string{"race", "a", "b", "-n", "2", "--", "true"}},
		{"invalid", "no command", []string{"race", "-n", "2"}},
		{"invalid", "--memory", []string{"race", "a", "b", "--memory", "1G", "--", "true"}},
		{"invalid", "no arguments", []string{"daemon", "status", "x"}},
	} {
		w.fails(c.holds, c.args...)
		at := len(c.args)
		for i, arg := range c.args {
			if arg == "--" {
				at = i
				break
			}
		}
		args := append(append(append([]string{}, c.args[:at]...), "--json"), c.args[at:]...)
		r := w.Run(args...)
		var e struct{ Error, Code string }
		if err := json.Unmarshal([]byte(r.Stdout), &e); err != nil || r.Code != 125 || e.Code != c.code || e.Error == "" || !strings.Contains(e.Error, c.holds) {
			t.Errorf("want code %q: %v\n%v", c.code, err, r)
		}
	}
	w.out("box", "rm", id)
	if w.daemonRuns() {
		t.Error("a daemon was started for what is wrong")
	}
}

func TestAmbiguousNames(t *testing.T) {
	w := newWorld(t)
	seen := map[byte]string{}
	for {
		id := w.out("box", "create")
		if first := seen[id[0]]; first != "" {
			w.fails("give more of it", "box", "show", id[:1])
			break
		}
		seen[id[0]] = id
		if len(seen) > 40 {
			t.Fatal("no two ids begin alike")
		}
	}
	for _, b := range parsed[[]boxJSON](w, "box", "list", "--json") {
		w.out("box", "rm", b.ID)
	}
}

// Without a hutchd to start, what needs a live box says what is missing.
func TestNoDaemonToStart(t *testing.T) {
	w := newWorld(t)
	alone := filepath.Join(w.Base, "bin")
	if err := os.Mkdir(alone, 0o755); err != nil {
		t.Fatal(err)
	}
	copyProgram(t, alone, "hutch")
	t.Setenv("HUTCH_BIN", filepath.Join(alone, "hutch"))
	id := w.out("box", "create")
	w.fails("hutchd", "box", "exec", id, "--", "true")
	// One that ends at once is told with what it said.
	if err := os.WriteFile(filepath.Join(alone, "hutchd"), []byte("#!/bin/sh\necho out of luck >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.fails("out of luck", "box", "exec", id, "--", "true")
	w.out("box", "rm", id)
}

// A socket that no daemon can have is said to be none, and what needs no daemon
// does without.
func TestSocketPathThatIsTooLong(t *testing.T) {
	w := newWorld(t)
	env := w.Env
	w.Env = append(w.Env, "HUTCH_SOCKET="+filepath.Join(w.Base, strings.Repeat("x", 110)))
	id := w.out("box", "create")
	w.out("box", "show", id)
	w.fails("HUTCH_SOCKET", "box", "exec", id, "--", "true")
	w.fails("HUTCH_SOCKET", "daemon", "start")
	if r := w.Run("daemon", "status"); r.Code != 1 {
		t.Errorf("%v", r)
	}
	w.out("box", "rm", id)
	w.Env = env
}

// A box whose workspace was moved away waits for it to come back.
func TestWorkspaceThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	id := w.box()
	w.Want(w.exec(id, "echo new > new.txt"), 0)
	w.out("box", "release", id)
	away := w.Dir + "-away"
	if err := os.Rename(w.Dir, away); err != nil {
		t.Fatal(err)
	}
	o := lab.Options{Dir: w.Base}
	for _, args := range [][]string{{"box", "exec", id, "--", "true"}, {"diff", id}, {"commit", id}} {
		r := w.RunWith(o, args...)
		if r.Code != 125 || !strings.Contains(r.Stderr, "its workspace") || !strings.Contains(r.Stderr, "hutch discard "+id) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%v", r)
		}
	}
	if err := os.Rename(away, w.Dir); err != nil {
		t.Fatal(err)
	}
	w.out("commit", id)
	if w.Read("new.txt") != "new\n" {
		t.Error("the change did not arrive")
	}
}

// copyProgram puts a program beside others: a link would lead hutch to the
// hutchd beside the original.
func copyProgram(t *testing.T, dir, name string) {
	t.Helper()
	text, err := os.ReadFile(program(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}
