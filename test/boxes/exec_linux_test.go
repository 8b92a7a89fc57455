package boxes

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// box makes a box and returns its id.
func (w *world) box(flags ...string) string {
	w.T.Helper()
	return w.out(append([]string{"box", "create"}, flags...)...)
}

// exec runs a line of sh in a box.
func (w *world) exec(id, line string) lab.Result {
	w.T.Helper()
	return w.Run("box", "exec", id, "--", "sh", "-c", line)
}

// input is a file that holds a text.
func (w *world) input(text string) lab.Options {
	w.T.Helper()
	path := filepath.Join(w.Base, "input")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.T.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { file.Close() })
	return lab.Options{Stdin: file}
}

// A command's output, input, environment, directory and end are as those of
// hutch run.
func TestExec(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	before := w.Snap()
	id := w.box()
	for _, c := range []struct {
		name           string
		args           []string
		stdin          string
		code           int
		stdout, stderr string
	}{
		{"both streams", []string{"--", "sh", "-c", "echo out; echo err >&2"}, "", 0, "out\n", "err\n"},
		{"its exit code", []string{"--", "sh", "-c", "exit 7"}, "", 7, "", ""},
		{"a signal", []string{"--", "sh", "-c", "kill -TERM $$"}, "", 143, "", ""},
		{"a hangup", []string{"--", "sh", "-c", "kill -HUP $$"}, "", 129, "", ""},
		{"no such directory", []string{"--cwd", "nowhere", "--", "true"}, "", 126, "", "true: the directory to start in: no such file or directory"},
		{"a directory that is none", []string{"--cwd", "a.txt", "--", "true"}, "", 126, "", "true: the directory to start in: not a directory"},
		{"not there", []string{"--", "no-such-program"}, "", 127, "", "no-such-program"},
		{"not to be run", []string{"--", "./README.md"}, "", 126, "", "README.md"},
		{"no input", []string{"--", "cat"}, "", 0, "", ""},
		{"piped input", []string{"--", "sh", "-c", "sort | head -1"}, "b\na\nc", 0, "a\n", ""},
		{"much input", []string{"--", "wc", "-c"}, strings.Repeat("x", 3<<20), 0, fmt.Sprintln(3 << 20), ""},
		{"its environment", []string{"--env", "A=b c", "-e", "LANG", "-e", "NOT_SET", "--", "sh", "-c", `echo "$A $LANG ${NOT_SET-none}"`}, "", 0, "b c C.UTF-8 none\n", ""},
		{"the workspace", []string{"--", "sh", "-c", "pwd; cat a.txt"}, "", 0, w.Dir + "\nfoo one\nfoo two\n", ""},
		{"a directory", []string{"--cwd", "dir/deep", "--", "pwd"}, "", 0, w.Dir + "/dir/deep\n", ""},
		{"an absolute directory", []string{"--cwd", "/tmp", "--", "pwd"}, "", 0, "/tmp\n", ""},
		{"the deadline", []string{"--timeout", "300ms", "--", "sleep", "100"}, "", 124, "", "timeout"},
		{"flags of its own", []string{"--", "echo", "--json", "-n"}, "", 0, "--json -n\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lab.Options{}
			if c.stdin != "" {
				o = w.input(c.stdin)
			}
			r := w.RunWith(o, append([]string{"box", "exec", id}, c.args...)...)
			if r.Code != c.code || r.Stdout != c.stdout || !strings.Contains(r.Stderr, c.stderr) || c.stderr == "" && r.Stderr != "" {
				t.Errorf("want %d, %q and %q\n%v", c.code, c.stdout, c.stderr, r)
			}
		})
	}
	w.Untouched(before)
	w.out("box", "rm", id)
}

func TestExecJSON(t *testing.T) {
	w := newWorld(t)
	id := w.box("--name", "j")
	r := w.RunWith(w.input("in\xff"), "box", "exec", "j", "--json", "--", "sh", "-c", "cat; echo err >&2; exit 3")
	o := lab.ParseOutcome(t, r)
	if r.Code != 3 || o.ExitCode != 3 || o.Status != "failed" || o.StdoutBase64 != "aW7/" || o.Stderr != "err\n" || r.Stderr != "" {
		t.Errorf("%+v\n%v", o, r)
	}
	r = w.Run("box", "exec", "nothing", "--json", "--", "true")
	var e struct{ Error, Code string }
	if err := json.Unmarshal([]byte(r.Stdout), &e); err != nil || e.Code != "not_found" || r.Code != 125 {
		t.Errorf("%v\n%v", err, r)
	}
	w.out("box", "rm", id)
}

// Many commands share the box's files, /tmp, HOME and what runs in the
// background, and nothing of it is in the workspace.
func TestExecsShareTheBox(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	before := w.Snap()
	id := w.box()
	w.Want(w.exec(id, "echo new > new.txt; rm README.md; echo t > /tmp/t; echo h > ~/h; setsid sleep 1000 > /dev/null 2>&1 &"), 0)
	w.Want(w.exec(id, "cat new.txt /tmp/t ~/h; test ! -e README.md; until pgrep -x sleep; do :; done"), 0)
	b := parsed[boxJSON](w, "box", "show", id, "--json")
	if !b.Live || b.Execs != 2 {
		t.Errorf("%+v", b)
	}
	diff := w.out("diff", id, "--name-status")
	if diff != "D\tREADME.md\nA\tnew.txt" {
		t.Errorf("diff: %q", diff)
	}
	w.Untouched(before)
	w.out("box", "kill", id)
	w.out("commit", id)
	if w.Read("new.txt") != "new\n" || w.Exists("README.md") {
		t.Error("the change did not arrive")
	}
	if list := w.Run("box", "list", "--json"); list.Stdout != "[]\n" {
		t.Errorf("%v", list)
	}
}

// Ctrl-C and SIGTERM reach the command, also where nobody reads its input.
func TestExecSignals(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	for sig, want := range map[syscall.Signal]int{unix.SIGINT: 130, unix.SIGTERM: 143, unix.SIGHUP: 129} {
		run := w.Start(lab.Options{}, "box", "exec", id, "--", "sh", "-c", "echo ready; exec sleep 100")
		run.WaitFor("ready")
		run.Signal(sig)
		if r := run.Wait(); r.Code != want {
			t.Errorf("%v: want %d\n%v", sig, want, r)
		}
	}
	run := w.Start(lab.Options{}, "box", "exec", id, "--", "sh", "-c", "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	run.WaitFor("ready")
	run.Signal(unix.SIGTERM)
	if r := run.Wait(); r.Code != 5 || !strings.Contains(r.Stdout, "caught") {
		t.Errorf("%v", r)
	}
	zeroes, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zeroes.Close()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = pipe.ReadFrom(zeroes) // until nobody reads
		pipe.Close()
	}()
	run = w.Start(lab.Options{Stdin: r}, "box", "exec", id, "--", "sh", "-c", "echo ready; exec sleep 100")
	r.Close()
	run.WaitFor("ready")
	time.Sleep(300 * time.Millisecond) // the pipes fill
	run.Signal(unix.SIGINT)
	if r := run.Wait(); r.Code != 130 || r.Duration > 20*time.Second {
		t.Errorf("with input that nobody reads: %v", r)
	}
	w.out("box", "rm", id)
}

// When hutch dies, its command ends; one that was detached goes on.
func TestExecDiesWithItsCaller(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	run := w.Start(lab.Options{}, "box", "exec", id, "--", "sh", "-c", "echo ready; exec sleep 1234")
	run.WaitFor("ready")
	if exec := w.out("box", "exec", id, "--detach", "--", "sleep", "4321"); exec == "" {
		t.Error("no id")
	}
	run.Signal(unix.SIGKILL)
	run.Wait()
	until(t, "ended", func() bool { return w.exec(id, "pgrep -f 'sleep 123[4]'").Code == 1 })
	if r := w.exec(id, "pgrep -f 'sleep 432[1]'"); r.Code != 0 {
		t.Errorf("the detached command is gone: %v", r)
	}
	w.out("box", "rm", id)
}

// until waits for something to hold.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never ", what)
		}
	}
}

// A detached command's id comes alone; its output and its end are there for who
// asks, while it runs and after.
func TestDetach(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	exec := w.out("box", "exec", id, "--detach", "--", "sh", "-c", "echo one; echo bad >&2; while test ! -e go; do sleep 0.02; done; echo two; exit 9")
	if exec == "" || strings.ContainsAny(exec, " \n") {
		t.Fatalf("detach printed %q", exec)
	}
	follow := w.Start(lab.Options{}, "box", "logs", id, exec, "--follow")
	follow.WaitFor("one\n")
	if e := parsed[execJSON](w, "box", "logs", id, exec, "--json"); e.ID != exec || !e.Running || e.Outcome != nil || len(e.Argv) != 3 {
		t.Errorf("%+v", e)
	}
	w.Want(w.exec(id, "touch go"), 0)
	r := follow.Wait()
	if r.Code != 0 || r.Stdout != "one\ntwo\n" || r.Stderr != "bad\n" {
		t.Errorf("%v", r)
	}
	if got := w.out("box", "logs", id, exec, "--stderr"); got != "bad" {
		t.Errorf("%q", got)
	}
	list := parsed[[]execJSON](w, "box", "logs", id, "--json")
	if len(list) != 2 || list[0].ID != exec || list[0].Running || list[0].Outcome == nil || list[0].Outcome.ExitCode != 9 {
		t.Errorf("%+v", list)
	}
	// Of the last command without a number.
	w.Want(w.exec(id, "echo last"), 0)
	if got := w.out("box", "logs", id); got != "last" {
		t.Errorf("%q", got)
	}
	w.fails("", "box", "logs", id, "999")
	r = w.RunWith(w.input("passed on"), "box", "exec", id, "--detach", "--json", "--", "cat")
	var e execJSON
	if err := json.Unmarshal([]byte(r.Stdout), &e); err != nil || e.Box != id {
		t.Errorf("%v\n%v", err, r)
	}
	if got := w.Run("box", "logs", id, e.ID, "-f"); got.Stdout != "passed on" {
		t.Errorf("%v", got)
	}
	w.out("box", "rm", id)
}

// execJSON is a command as programs read it.
type execJSON struct {
	ID, Box string
	Argv    []string
	Running bool
	Started time.Time
	Outcome *struct {
		Status   string
		ExitCode int `json:"exit_code"`
		Stdout   string
		Error    string
	}
}

// A reader that pauses longer than the daemon waits for, as with a pager, gets
// all of the output in the end; and the command does not wait for it.
func TestExecWithASlowReader(t *testing.T) {
	w := newWorld(t)
	w.Env = append(w.Env, "HUTCHD_STALL=300ms")
	id := w.box()
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	run := w.Start(lab.Options{Stdout: pipe}, "box", "exec", id, "--", "sh", "-c", "seq 3000000; touch done; echo err >&2; exit 4")
	pipe.Close()
	until(t, "done", func() bool { return w.exec(id, "test -e done").Code == 0 })
	time.Sleep(time.Second)
	var text strings.Builder
	buf := make([]byte, 1<<16)
	for {
		n, err := r.Read(buf)
		text.Write(buf[:n])
		if err != nil {
			break
		}
	}
	res := run.Wait()
	if got := text.String(); res.Code != 4 || !strings.HasSuffix(got, "\n2999999\n3000000\n") || strings.Count(got, "\n") != 3000000 || res.Stderr != "err\n" {
		t.Errorf("%d bytes, ending in %.30q\n%v", len(got), got[max(0, len(got)-30):], res)
	}
	w.out("box", "rm", id)
}

// A shell has the size of the caller's terminal and follows it; every key is the
// shell's.
func TestShell(t *testing.T) {
	w := newWorld(t)
	w.Env = append(w.Env, "PS1=$ ", "HISTFILE=")
	id := w.box()
	s := lab.NewSession(t, w.World)
	before := s.State()
	wait := s.Start(lab.Hutch(t), "box", "shell", id, "--", "bash", "--norc", "--noediting", "-i")
	s.Types("test -t 0 && test -t 1 && echo is'-'terminal; stty size; echo $TERM\n")
	s.Next("is-terminal\r\n33 77\r\ndumb\r\n")
	s.Types("(trap 'echo interru''pted; exit' INT; echo read''y; while :; do sleep 0.05; done)\n")
	s.Next("ready")
	s.Types("\x03")
	s.Next("interrupted")
	s.Types("(trap 'stty size; exit' WINCH; echo read''y; while :; do sleep 0.05; done)\n")
	s.Next("ready")
	if err := unix.IoctlSetWinsize(int(s.Master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 44, Col: 88}); err != nil {
		t.Fatal(err)
	}
	s.Next("44 88")
	s.Types("(exit 7)\n\x04")
	if code := wait(); code != 7 {
		t.Errorf("hutch ended with %d, want 7", code)
	}
	after := s.State()
	if after.Size = before.Size; after != before {
		t.Errorf("the terminal is not as it was:\nbefore %+v\nafter  %+v", before, after)
	}
	// Without a command it is a shell that is there.
	s = lab.NewSession(t, w.World)
	wait = s.Start(lab.Hutch(t), "box", "shell", id)
	s.Types("echo in ${BASH:+ba}sh; exit 3\n")
	s.Next("in bash")
	if code := wait(); code != 3 {
		t.Errorf("hutch ended with %d, want 3", code)
	}
	w.out("box", "rm", id)
}

// What a box writes does nothing to the caller's terminal but show text.
func TestExecOnATerminal(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	on := func(holds string, args ...string) {
		t.Helper()
		s := lab.NewSession(t, w.World)
		s.Run(lab.Hutch(t), args...)
		if shown := s.Said(holds); strings.Contains(shown, "\x1b]") || strings.Contains(shown, "\x1b[c") {
			t.Errorf("%q", shown)
		}
	}
	on("red", "box", "exec", id, "--", "printf", `\033]0;title\007\033[31mred\033[m\033[c\n`)
	on("red", "box", "logs", id)
	w.Want(w.exec(id, `printf '\033]0;title\007yellow\n' > f`), 0)
	on("yellow", "box", "cat", id, "f")
	w.out("box", "rm", id)
}
