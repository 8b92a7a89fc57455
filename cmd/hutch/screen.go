package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// screen is where a person or a program reads a diff.
type screen struct {
	io.Writer
	human   bool // what could steer a terminal, or mislead the eye, is made visible
	colour  bool
	columns int
	pager   *exec.Cmd
	pipe    io.WriteCloser
	gone    bool // the reader has left, who wants no more
}

// openScreen decides as git does: colours and a pager where standard output is a
// terminal that knows them.
func openScreen(colour string, page bool) *screen {
	terminal := isTerminal(os.Stdout)
	s := &screen{Writer: os.Stdout, columns: 80}
	switch colour {
	case "always":
		s.colour = true
	case "auto":
		s.colour = terminal && !dumb() && os.Getenv("NO_COLOR") == "" // no-color.org
	}
	s.human = terminal || s.colour
	if terminal {
		s.columns = columns(os.Stdout)
		if page && !dumb() {
			s.startPager()
		}
	}
	return s
}

// startPager starts the user's pager; where that fails the diff goes to the
// terminal itself. The command is given to sh where it is more than words, as
// git does.
func (s *screen) startPager() {
	command, ok := os.LookupEnv("HUTCH_PAGER")
	if !ok {
		command, ok = os.LookupEnv("PAGER")
	}
	if !ok {
		command = "less"
	}
	words := strings.Fields(command)
	if len(words) == 0 || command == "cat" {
		return
	}
	if strings.ContainsAny(command, "|&;<>()$`\\\"'*?[#~=%") {
		words = []string{"sh", "-c", command}
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = os.Environ()
	if _, set := os.LookupEnv("LESS"); !set {
		cmd.Env = append(cmd.Env, "LESS=FRX") // end when it fits, let colours through, leave the screen as it is
	}
	if _, set := os.LookupEnv("LV"); !set {
		cmd.Env = append(cmd.Env, "LV=-c")
	}
	pipe, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return
	}
	// The pager decides what an interrupt means.
	signal.Ignore(os.Interrupt)
	s.Writer, s.pager, s.pipe = pipe, cmd, pipe
}

// end is the error of writing, less that of a reader who has left.
func (s *screen) end(err error) error {
	if errors.Is(err, syscall.EPIPE) && s.pager != nil {
		s.gone = true
		return nil
	}
	return err
}

// close waits for the pager to be left.
func (s *screen) close() {
	if s.pager != nil {
		s.pipe.Close()
		_ = s.pager.Wait() // its exit code says nothing of the diff
		s.pager = nil
	}
}

// The colours of git.
const (
	bold   = "\x1b[1m"
	cyan   = "\x1b[36m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	normal = "\x1b[m"
)

// paint writes a patch for a terminal: every line made visible, and coloured
// where that is wanted.
func paint(w *bufio.Writer, patch string, colour bool) error {
	inHunk, inBinary := false, false
	for line := range strings.Lines(patch) {
		text, end := strings.CutSuffix(line, "\n")
		start := ""
		switch {
		case strings.HasPrefix(text, "diff --git "):
			inHunk, inBinary, start = false, false, bold
		case strings.HasPrefix(text, "@@ "):
			inHunk, start = true, cyan
		case inBinary:
		case text == "GIT binary patch":
			inBinary = true
		case !inHunk:
			start = bold
		case strings.HasPrefix(text, "+"):
			start = green
		case strings.HasPrefix(text, "-"):
			start = red
		}
		text = visible(text)
		if colour && start != "" && text != "" {
			text = start + text + normal
		}
		w.WriteString(text)
		if end {
			w.WriteByte('\n')
		}
	}
	_, err := w.Write(nil)
	return err
}

// visible writes every character that could steer a terminal, or show a line in
// another order than it is in (CVE-2021-42574) or not at all, as less does: a
// control character as ^X, the others as <U+202E>, a byte that is no UTF-8 as
// <FF>.
func visible(s string) string {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] < 0x7f || s[i] == '\t'
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "<%02X>", s[i])
		case r == '\t', unicode.IsPrint(r):
			b.WriteString(s[i : i+n])
		case r < ' ' || r == 0x7f:
			b.WriteByte('^')
			b.WriteByte(byte(r) ^ 0x40)
		default:
			fmt.Fprintf(&b, "<U+%04X>", r)
		}
		i += n
	}
	return b.String()
}
