package run

import (
	"testing"

	"hutch/test/lab"
)

func intp(i int) *int { return &i }

func TestExitCodes(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	for _, c := range []struct {
		name    string
		args    []string
		code    int
		status  string
		command *int // want null when nil
	}{
		{"zero", []string{"--", "true"}, 0, "success", intp(0)},
		{"one", []string{"--", "false"}, 1, "failed", intp(1)},
		{"42", []string{"--", "sh", "-c", "exit 42"}, 42, "failed", intp(42)},
		{"255", []string{"--", "sh", "-c", "exit 255"}, 255, "failed", intp(255)},
		{"own 124", []string{"--", "sh", "-c", "exit 124"}, 124, "failed", intp(124)},
		{"own 125", []string{"--", "sh", "-c", "exit 125"}, 125, "failed", intp(125)},
		{"SIGTERM", []string{"--", "sh", "-c", "kill -TERM $$"}, 143, "killed", nil},
		{"SIGKILL", []string{"--", "sh", "-c", "kill -KILL $$"}, 137, "killed", nil},
		{"SIGSEGV", []string{"--", "sh", "-c", "kill -SEGV $$"}, 139, "killed", nil},
		{"timeout", []string{"--timeout", "300ms", "--", "sleep", "60"}, 124, "timeout", nil},
		{"output", []string{"--output-limit", "64K", "--", "yes"}, 137, "output_exceeded", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, r := w.JSON(c.args...)
			if r.Code != c.code || out.Status != c.status {
				t.Errorf("exit %d status %q, want %d %q\n%v", r.Code, out.Status, c.code, c.status, r)
			}
			switch {
			case c.command == nil && out.CommandExitCode != nil:
				t.Errorf("command_exit_code %d, want null", *out.CommandExitCode)
			case c.command != nil && (out.CommandExitCode == nil || *out.CommandExitCode != *c.command):
				t.Errorf("command_exit_code %v, want %d", out.CommandExitCode, *c.command)
			}
			if out.TimedOut != (c.status == "timeout") {
				t.Errorf("timed_out %v", out.TimedOut)
			}
			// The same without --json.
			w.Want(w.Box(c.args...), c.code)
		})
	}
	w.Untouched(before)
}

func TestSignalIsNamed(t *testing.T) {
	w := lab.New(t)
	out, _ := w.JSON("--", "sh", "-c", "kill -TERM $$")
	if out.Signal != "SIGTERM" {
		t.Errorf("signal %v, want SIGTERM", out.Signal)
	}
}

func TestNotFoundAndNotExecutable(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	for _, c := range []struct {
		name    string
		command string
		code    int
	}{
		{"not found by PATH", "no-such-command-anywhere", 127},
		{"not found by path", "./no/such/file", 127},
		{"a file without the bit", "./a.txt", 126},
		{"a directory", "./dir", 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.Box("--", c.command)
			w.Want(r, c.code)
			oneLine(t, r.Stderr)
			_, rj := w.JSON("--", c.command)
			w.Want(rj, c.code)
		})
	}
	w.Untouched(before)
}
