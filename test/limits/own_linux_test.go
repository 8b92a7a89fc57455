package limits

import (
	"strings"
	"testing"

	"hutch/test/lab"
)

// TestOwnLimitsAreNoObstacle: nobody but root can have more than his own hard
// limits, and a default of hutch's that is above them stops no box.
func TestOwnLimitsAreNoObstacle(t *testing.T) {
	w := lab.New(t)
	for flag, want := range map[string]string{"--nproc=4000:4000": "-u 4000", "--core=0:0": "-c 0", "--nofile=700:700": "-n 700"} {
		option, value, _ := strings.Cut(want, " ")
		got := w.Host("prlimit", flag, lab.Hutch(t), "run", "--", "bash", "-c", "ulimit -H "+option)
		if lines := strings.Fields(got); len(lines) == 0 || lines[len(lines)-1] != value {
			t.Errorf("%s: in the box the limit is %q", flag, got)
		}
	}
}
