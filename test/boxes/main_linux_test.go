package boxes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// world is a world with a socket of its own. When its test ends the daemon is
// stopped, before it is looked whether anything is left.
type world struct{ *lab.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{lab.New(t)}
	w.Env = append(w.Env, "HUTCH_SOCKET="+filepath.Join(w.State, "s"))
	t.Cleanup(func() {
		if r := w.Run("daemon", "stop"); r.Code != 0 {
			t.Errorf("the daemon did not stop: %v", r)
		}
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(w.StateDir(), "hutchd.log"))
			if len(log) > 8000 {
				log = log[len(log)-8000:]
			}
			t.Logf("the daemon's log ends:\n%s", log)
		}
	})
	return w
}

// out runs hutch, wants it to succeed, and returns its output less the last
// newline.
func (w *world) out(args ...string) string {
	w.T.Helper()
	r := w.Run(args...)
	w.Want(r, 0)
	return strings.TrimSuffix(r.Stdout, "\n")
}

// fails runs hutch, and wants it to fail as hutch does, in one line that holds
// what is given.
func (w *world) fails(holds string, args ...string) {
	w.T.Helper()
	r := w.Run(args...)
	if r.Code != 125 || !strings.Contains(r.Stderr, holds) || strings.Count(r.Stderr, "\n") != 1 || !strings.HasPrefix(r.Stderr, "hutch: ") {
		w.T.Errorf("want 125 and one line with %q\n%v", holds, r)
	}
}

// parsed runs hutch with --json, wants it to succeed, and reads the one value it
// prints.
func parsed[T any](w *world, args ...string) T {
	w.T.Helper()
	r := w.Run(args...)
	w.Want(r, 0)
	var v T
	if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil {
		w.T.Fatalf("%v\n%v", err, r)
	}
	return v
}

// boxJSON is a box as programs read it, written down from the specification.
type boxJSON struct {
	ID, Name, State, Reason, Workspace, Parent, Strategy, Status string
	Live                                                         bool
	Created                                                      time.Time
	Ended                                                        *time.Time
	Layers, Execs                                                int
	Argv                                                         []string
	ExitCode                                                     int `json:"exit_code"`
	Checkpoints                                                  []struct{ Name string }
	Running                                                      []struct{ ID string }
}

// running reports whether a daemon runs.
func (w *world) daemonRuns() bool {
	w.T.Helper()
	r := w.Run("daemon", "status", "--json")
	var s struct {
		Alive bool
		PID   int
	}
	if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil || s.Alive != (r.Code == 0) || s.Alive != (s.PID > 0) {
		w.T.Fatalf("%v\n%v", err, r)
	}
	return s.Alive
}

// program is the hutch under test.
func program(t *testing.T) string { return lab.Hutch(t) }
