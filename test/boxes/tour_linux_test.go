package boxes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// step is a line that a document has somebody type, and what it says comes of
// it.
type step struct{ typed, shown string }

// steps reads the blocks of a document.
func steps(t *testing.T, path string) []step {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []step
	for line := range strings.Lines(string(text)) {
		block, ok := strings.CutPrefix(line, "    ")
		if typed, is := strings.CutPrefix(block, "$ "); ok && is {
			list = append(list, step{typed: strings.TrimSuffix(typed, "\n")})
		} else if ok && len(list) > 0 {
			list[len(list)-1].shown += block
		}
	}
	if len(list) < 20 {
		t.Fatalf("only %d steps in %s", len(list), path)
	}
	return list
}

// The tour in the documentation goes as it says.
func TestTour(t *testing.T) {
	w := newWorld(t)
	w.Env = append(w.Env, "PATH="+filepath.Dir(lab.Hutch(t))+":"+os.Getenv("PATH"))
	for _, s := range steps(t, "../../docs/boxes.md") {
		cmd := exec.Command("sh", "-c", s.typed)
		cmd.Dir, cmd.Env = w.Dir, w.Environ()
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.WaitDelay = 5 * time.Second
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := lab.Expect(cmd.Process.Pid)
		limit := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		err := cmd.Wait()
		limit.Stop()
		done()
		if err != nil || out.String() != s.shown {
			t.Fatalf("$ %s\n%s(%v), want\n%s", s.typed, out.String(), err, s.shown)
		}
	}
}
