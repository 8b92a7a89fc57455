package run

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// A person at an interactive shell in a box: every key has the meaning that the
// box's own terminal gives it.
func TestTerminal(t *testing.T) {
	w := lab.New(t)
	w.Env = append(w.Env, "PS1=$ ", "HISTFILE=")
	s := lab.NewSession(t, w)
	wait := s.Start(lab.Hutch(t), "run", "--tty", "--timeout", "120s", "--", "bash", "--norc", "--noediting", "-i")

	// What is typed is echoed, so what is awaited must not be in it.
	s.Types("test -t 0 && test -t 1 && echo is'-'terminal; stty size\n")
	s.Next("is-terminal\r\n33 77\r\n")
	s.Types("(trap 'echo interru''pted; exit' INT; echo read''y; while :; do sleep 0.05; done)\n")
	s.Next("ready")
	s.Types("\x03")
	s.Next("interrupted")
	s.Types("sh -c 'echo read''y; read x; echo go''t $x'\n")
	s.Next("ready")
	s.Types("\x1a")
	s.Next("Stopped")
	s.Types("jobs; echo in''front\n")
	s.Next("Stopped")
	s.Next("infront")
	s.Types("fg\nline\n")
	s.Next("got line")
	s.Next("\r\nbash-") // or the prompt may come between what is typed and what cat says
	s.Types("cat; echo ended $?\nhalf\x04\x04")
	s.Next("halfhalfended 0")
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
}

// The terminal of a command is one of the box's own: it has a name there, can be
// opened by every name, and is the user's.
func TestTerminalHasAName(t *testing.T) {
	w := lab.New(t)
	r := w.Run("run", "--tty", "--", "sh", "-c", `
tty; echo status $?
python3 -c 'import os; print(*(os.ttyname(fd) for fd in range(3)))'
for name in /dev/stdout /dev/stderr /dev/tty /dev/pts/0 /proc/self/fd/0; do echo to $name > $name; done
echo $(ls /dev/pts) $(stat -c '%u %a' /dev/pts/0) is $(id -u)
for fd in /proc/1/fd/*; do readlink $fd; (: > $fd) 2> /dev/null && echo opened $fd; done
exec < /dev/null > /dev/null 2>&1
sleep 0.2
echo back > /dev/tty; echo again > /dev/pts/0`)
	w.Want(r, 0)
	lines := strings.Split(r.Stdout, "\r\n")
	uid := ""
	if len(lines) > 8 {
		uid = strings.Fields(lines[8] + " ?")[2]
	}
	want := []string{"/dev/pts/0", "status 0", "/dev/pts/0 /dev/pts/0 /dev/pts/0", "to /dev/stdout", "to /dev/stderr", "to /dev/tty", "to /dev/pts/0",
		"to /proc/self/fd/0", "0 ptmx " + uid + " 620 is " + uid, "back", "again", ""}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("got\n%q, want\n%q", lines, want)
	}
}

// A program that hands terminals out itself runs on it, with the size it had at
// the first look.
func TestTerminalMultiplexer(t *testing.T) {
	w := lab.New(t)
	w.Env = append(w.Env, "TERM=xterm")
	s := lab.NewSession(t, w)
	wait := s.Start(lab.Hutch(t), "run", "--tty", "--timeout", "120s", "--", "tmux", "-f", "/dev/null", "new-session", "tty; stty size; read x; echo got $x; read x")
	s.Next("/dev/pts/1")
	s.Next("32 77") // less its status line
	s.Types("line\n")
	s.Next("got line")
	if err := unix.IoctlSetWinsize(int(s.Master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 20, Col: 60}); err != nil {
		t.Fatal(err)
	}
	s.Next("\x1b[1;20r") // it paints anew
	s.Types("\n")
	s.Next("[exited]")
	if code := wait(); code != 0 {
		t.Errorf("hutch ended with %d", code)
	}
}

// All that is typed ahead or piped in arrives, with its end; all that is written
// comes out, up to whatever ends the command.
func TestTerminalStream(t *testing.T) {
	w := lab.New(t)
	var text strings.Builder
	for i := range 60000 {
		fmt.Fprintln(&text, i)
	}
	w.Write("in", text.String())
	w.Write("half", "half")
	input := func(name string) lab.Options {
		file, err := os.Open(w.Dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return lab.Options{Stdin: file}
	}
	crlf := strings.ReplaceAll(text.String(), "\n", "\r\n")
	for _, c := range []struct {
		name   string
		input  string
		flags  []string
		script string
		code   int
		suffix string // of the output
	}{
		{"much input", "in", nil, "echo $(wc -lc)", 0, fmt.Sprintf("60000 %d\r\n", text.Len())},
		{"half a line", "half", nil, "cat", 0, "halfhalf"},
		{"nobody reads", "in", nil, "stty -echo; sleep 0.5; echo over", 0, "over\r\n"},
		{"stopped output", "in", nil, `python3 -c 'import termios; termios.tcflow(1, termios.TCOOFF)'; exit 3`, 3, ""},
		{"much output", "", nil, "cat in", 0, crlf},
		{"killed", "", nil, "cat in; kill -9 $$", 137, crlf},
		{"at the deadline", "", []string{"--timeout", "2s"}, "stty -opost; echo begin; exec sleep 100", 124, "begin\n"},
		{"too much output", "", []string{"--output-limit", "100K"}, "yes", 137, "y\r\ny"},
		{"exclusive", "in", nil, `python3 -c 'import fcntl, termios; fcntl.ioctl(0, termios.TIOCEXCL)'; echo over`, 0, "over\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := lab.Options{}
			if c.input != "" {
				o = input(c.input)
			}
			r := w.RunWith(o, append(append([]string{"run", "--tty"}, c.flags...), "--", "sh", "-c", c.script)...)
			if r.Code != c.code || !strings.HasSuffix(r.Stdout, c.suffix) {
				t.Errorf("exit %d after %v, want %d; the output of %d bytes ends in %q (%s)", r.Code, r.Duration, c.code, len(r.Stdout), r.Stdout[max(0, len(r.Stdout)-100):], r.Stderr)
			}
		})
	}
}

// While hutch is stopped the caller's terminal is as it was; when it goes on,
// keys are the command's again, and the size is the new one.
func TestTerminalWhileStopped(t *testing.T) {
	w := lab.New(t)
	s := lab.NewSession(t, w)
	before := s.State()
	wait := s.Start("sh", "-c", `echo pid $$.; exec "$@"`, "sh", lab.Hutch(t), "run", "--tty", "--timeout", "120s", "--", "sh", "-c",
		`echo read'y'; for i in 1 2 3; do read x; until [ "$(stty size)" = "$x" ]; do sleep 0.05; done; echo got $x; done`)
	pid, err := strconv.Atoi(regexp.MustCompile(`pid (\d+)\.`).FindStringSubmatch(s.Said(".\r\n"))[1])
	if err != nil {
		t.Fatal(err)
	}
	s.Next("ready")
	raw := func() bool {
		termios, err := unix.IoctlGetTermios(int(s.Slave.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return termios.Lflag&unix.ICANON == 0
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("never ", what)
			}
		}
	}
	stopped := func() bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(text), ") ")
		return strings.HasPrefix(rest, "T")
	}
	if !raw() {
		t.Error("the terminal is not raw while the command runs")
	}
	for i, signal := range []syscall.Signal{syscall.SIGTSTP, syscall.SIGTSTP, syscall.SIGSTOP} {
		if err := syscall.Kill(pid, signal); err != nil {
			t.Fatal(err)
		}
		until("stopped", stopped)
		if now := s.State(); signal == syscall.SIGTSTP && now.Termios != before.Termios {
			t.Errorf("stopped for the %d. time: the terminal is not as it was: %+v, want %+v", i+1, now, before)
		}
		// As a shell does that was in front meanwhile.
		if err := unix.IoctlSetTermios(int(s.Slave.Fd()), unix.TCSETS, &before.Termios); err != nil {
			t.Fatal(err)
		}
		size := unix.Winsize{Row: uint16(40 + i), Col: 80}
		if err := unix.IoctlSetWinsize(int(s.Master.Fd()), unix.TIOCSWINSZ, &size); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		until("raw again", raw)
		s.Types(fmt.Sprintf("%d 80\n", size.Row))
		s.Next(fmt.Sprintf("got %d 80", size.Row))
	}
	if code := wait(); code != 0 {
		t.Errorf("hutch ended with %d", code)
	}
	after := s.State()
	if after.Size = before.Size; after != before {
		t.Errorf("the terminal is not as it was:\nbefore %+v\nafter  %+v", before, after)
	}
}

// A command with a terminal of its own cannot reach the caller's: there is none
// in the box.
func TestTerminalOfTheCallerIsAbsent(t *testing.T) {
	w := lab.New(t)
	r := w.Run("run", "--", "sh", "-c", "test -t 0 || test -t 1 || test -t 2 || echo none; : < /dev/tty")
	if !strings.Contains(r.Stdout, "none") || r.Code == 0 {
		t.Errorf("a terminal could be reached: %v", r)
	}
	r = w.Run("run", "--tty", "--", "sh", "-c", "test -t 1 && echo is-terminal")
	w.Want(r, 0)
	if !strings.Contains(r.Stdout, "is-terminal\r\n") {
		t.Errorf("no terminal: %q", r.Stdout)
	}
}
