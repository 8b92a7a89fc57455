package run

import (
	"os"
	"strings"
	"testing"

	"hutch/test/lab"
)

// TestTheKernelEndsABoxBeforeTheHost: in want of memory the kernel's choice
// falls on what is in a box, and what root boxed cannot change that.
func TestTheKernelEndsABoxBeforeTheHost(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--", "sh", "-c", "cat /proc/1/oom_score_adj /proc/self/oom_score_adj; (echo 0 > /proc/self/oom_score_adj) 2>/dev/null; cat /proc/self/oom_score_adj")
	w.Want(r, 0)
	got := strings.Fields(r.Stdout)
	if len(got) != 3 || got[0] != "500" || got[1] != "500" {
		t.Fatalf("scores %q, want 500 of PID 1 and of the command", got)
	}
	if os.Geteuid() == 0 && got[2] != "500" {
		t.Errorf("a command of a box that root made lowered its score to %s", got[2])
	}
}
