package run

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

//go:embed testdata/terminal.py
var attackTerminal []byte

// attacker writes a program that tries whatever a terminal can be misused for,
// and returns the command to run it.
func attacker(w *lab.World, s *lab.Session) []string {
	w.Write("attack.py", string(attackTerminal))
	return []string{"python3", "attack.py", "/dev/pts/" + strconv.Itoa(s.Number)}
}

// A box does nothing to the terminal that hutch was started on, whether it has
// one of its own or not.
func TestTerminalOfTheCallerIsOutOfReach(t *testing.T) {
	for name, flags := range map[string][]string{"with its own": {"--tty"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			w := lab.New(t)
			s := lab.NewSession(t, w)
			before := s.State()
			code := s.Run(lab.Hutch(t), append(append(append([]string{"run"}, flags...), "--"), attacker(w, s)...)...)
			shown := s.Said("attacked")
			if code != 0 {
				t.Errorf("hutch exited %d: %s", code, shown)
			}
			if after := s.State(); after != before {
				t.Errorf("the terminal is not as it was:\nbefore %+v\nafter  %+v\n%s", before, after, shown)
			}
			terminals := 0
			for line := range strings.Lines(shown) {
				what, answer, _ := strings.Cut(strings.TrimSpace(line), ": ")
				if strings.HasPrefix(what, "terminal ") {
					terminals++
				}
				for _, typing := range []string{"TIOCSTI", "TIOCLINUX", "TIOCSETD"} {
					if strings.HasPrefix(what, typing) && answer != "EPERM" {
						t.Errorf("%s: %s, want EPERM", what, answer)
					}
				}
				if strings.HasPrefix(what, "opened") {
					t.Errorf("%s: %s", what, answer)
				}
			}
			if want := map[bool]int{true: 4, false: 0}[len(flags) > 0]; terminals != want {
				t.Errorf("the box had %d terminals, want %d:\n%s", terminals, want, shown)
			}
		})
	}
}

// The same program without a box: what the test above looks at does change.
func TestTerminalAttackWorksWithoutABox(t *testing.T) {
	w := lab.New(t)
	s := lab.NewSession(t, w)
	before := s.State()
	args := append(attacker(w, s), "gently")
	s.Run(args[0], args[1:]...)
	s.Said("attacked")
	after := s.State()
	if after.Termios == before.Termios || after.Size == before.Size || after.Mode == before.Mode || after.Exclusive == before.Exclusive {
		t.Errorf("something held:\nbefore %+v\nafter  %+v", before, after)
	}
	legacy, _ := os.ReadFile("/proc/sys/dev/tty/legacy_tiocsti")
	if may := root() || strings.TrimSpace(string(legacy)) == "1"; may && !strings.Contains(after.Typed, "typed") {
		t.Errorf("nothing was typed: %q", after.Typed)
	}
	unix.IoctlSetInt(int(s.Slave.Fd()), unix.TIOCNXCL, 0)
}

// What is waiting to be read at a terminal is not the box's, whose input is at
// its end.
func TestTerminalIsNoInput(t *testing.T) {
	w := lab.New(t)
	s := lab.NewSession(t, w)
	if _, err := s.Master.WriteString("secret\n"); err != nil {
		t.Fatal(err)
	}
	s.Run(lab.Hutch(t), "run", "--", "sh", "-c", "cat; cat /proc/self/fd/0; cat < /dev/tty; cat < /dev/pts/0; echo end")
	s.Said("end")
	if after := s.State(); after.Typed != "secret\n" {
		t.Errorf("left of what was typed: %q", after.Typed)
	}
}

// Only what is safe reaches a terminal; what is no terminal gets all.
func TestTerminalIsToldOnlyWhatIsSafe(t *testing.T) {
	const hostile = `red\033[31m\033]52;c;ZXZpbA==\007\033]0;title\033\\\033[6n\033[c\033P$q"p\033\\\033[?1003h\033c\302\2332J\005\033[3J`
	const paints = `\033[?1049h\033[2;2Hup\033[?25l`
	for _, c := range []struct {
		name, script string
		flags        []string
		want         string
	}{
		{"stdout", "printf '" + hostile + paints + "'", nil, "red\x1b[31mup\x1b[m"},
		{"stderr", "printf '" + hostile + paints + "' >&2", nil, "red\x1b[31mup\x1b[m"},
		{"its own", "stty raw; printf '" + hostile + paints + "'", []string{"--tty"}, "red\x1b[31m\x1b[2J\x1b[?1049h\x1b[2;2Hup\x1b[?25l\x1b[?1049l\x1b[?25h\x1b[m"},
		{"killed on the screen", "stty raw; printf '" + paints + "'; kill -9 $$", []string{"--tty"}, "\x1b[?1049h\x1b[2;2Hup\x1b[?25l\x1b[?1049l\x1b[?25h"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := lab.New(t)
			s := lab.NewSession(t, w)
			before := s.State()
			s.Run(lab.Hutch(t), append(append([]string{"run"}, c.flags...), "--", "sh", "-c", c.script)...)
			if shown := s.Said(c.want); shown != c.want {
				t.Errorf("the terminal was told %q, want %q", shown, c.want)
			}
			if after := s.State(); after != before {
				t.Errorf("the terminal is not as it was:\nbefore %+v\nafter  %+v", before, after)
			}
		})
	}
	const stripped = "red\x1b[31m\x1b[m"
	t.Run("stripped", func(t *testing.T) {
		w := lab.New(t)
		out, _ := w.JSON("--strip-escapes", "--preserve", "--", "sh", "-c", "printf '"+hostile+paints+"'; printf '"+hostile+"\\377' >&2")
		if out.Stdout != "red\x1b[31mup\x1b[m" {
			t.Errorf("stdout %q", out.Stdout)
		}
		if text, err := base64.StdEncoding.DecodeString(out.StderrBase64); err != nil || string(text) != "red\x1b[31m\xff\x1b[m" {
			t.Errorf("stderr %q, %v", text, err)
		}
		raw, err := exec.Command("printf", hostile+paints).Output()
		if kept, err2 := os.ReadFile(out.StdoutPath); err != nil || err2 != nil || !bytes.Equal(kept, raw) || out.StdoutBytes != int64(len(raw)) {
			t.Errorf("kept %q of %d bytes, want %q (%v, %v)", kept, out.StdoutBytes, raw, err, err2)
		}
		w.KeepsBoxes()
		if r := w.Box("--strip-escapes", "--", "printf", hostile); r.Stdout != stripped {
			t.Errorf("streamed %q", r.Stdout)
		}
		if r := w.Box("--strip-escapes", "--tty", "--", "printf", hostile+paints); r.Stdout != "red\x1b[31mup\x1b[m" {
			t.Errorf("streamed from its own %q", r.Stdout)
		}
		if r := w.Box("--profile", "offline-agent", "--", "printf", hostile); r.Stdout != stripped {
			t.Errorf("streamed from an offline agent %q\n%v", r.Stdout, r)
		}
	})
	t.Run("a pipe", func(t *testing.T) {
		w := lab.New(t)
		r := w.Box("--", "printf", hostile)
		want, err := exec.Command("printf", hostile).Output()
		if err != nil || r.Stdout != string(want) {
			t.Errorf("%q, want %q (%v)", r.Stdout, want, err)
		}
	})
}

// Messages that quote what a box named hold no controls.
func TestMessagesHoldNoControls(t *testing.T) {
	w := lab.New(t)
	const evil = "\x1b]0;evil\x07\u009b2J\u202e"
	for name, args := range map[string][]string{
		"a command":   {"run", "--", "./" + evil},
		"not there":   {"run", "--workspace", evil, "--", "true"},
		"a held file": {"run", "--commit", "--", "sh", "-c", `mkdir -p .vscode "$1" && echo '{}' > .vscode/tasks.json && echo '{"folders":[]}' > "$1.code-workspace" && echo 'all:' > "$1/Makefile" && mkfifo "$1/fifo"`, "sh", evil},
		"a diff":      {"run", "--diff", "--", "touch", evil},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.Run(args...)
			if i := strings.IndexAny(r.Stderr, "\x1b\a\u009b\u202e"); i >= 0 || r.Stderr == "" && name != "a diff" {
				t.Errorf("standard error: %q", r.Stderr)
			}
			r = w.Run(append([]string{"run", "--json"}, args[1:]...)...)
			if strings.ContainsAny(r.Stdout, "\x1b\a\u009b") {
				t.Errorf("outcome: %q", r.Stdout)
			}
		})
	}
	for _, id := range boxes(w) {
		for _, args := range [][]string{{"diff", id, "--stat"}, {"diff", id, "--name-status"}, {"commit", id}, {"commit", id, "--hold"}} {
			s := lab.NewSession(t, w)
			s.Run(lab.Hutch(t), args...)
			time.Sleep(20 * time.Millisecond)
			if shown := s.Said(""); strings.ContainsAny(shown, "\a\u009b\u202e") || strings.Contains(shown, "\x1b]") {
				t.Errorf("hutch %q: %q", args, shown)
			}
		}
	}
	w.KeepsBoxes()
}

func boxes(w *lab.World) []string {
	found, _ := filepath.Glob(filepath.Join(w.StateDir(), "boxes", "*", "box.json"))
	var ids []string
	for _, path := range found {
		ids = append(ids, filepath.Base(filepath.Dir(path)))
	}
	return ids
}
