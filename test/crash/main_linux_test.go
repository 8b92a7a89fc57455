package crash

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// inner marks the process that has a mount namespace of its own.
const inner = "HUTCH_CRASH_INNER"

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run makes sure that nothing is left even when the tests are killed: in a
// mount namespace of its own a mount goes with the last process, and a loop
// device that clears itself goes with its mount.
func run(m *testing.M) int {
	syscall.Umask(0o022)
	if os.Geteuid() == 0 && os.Getenv(inner) == "" {
		return lab.Again("crash", inner, syscall.SIGKILL)
	}
	if err := lab.BecomeReaper(); err != nil {
		fmt.Fprintln(os.Stderr, "crash: subreaper:", err)
		return 1
	}
	before := lab.TakeCensus(marker)
	code := m.Run()
	for _, left := range lab.Leftovers(before, 10*time.Second, marker) {
		fmt.Fprintln(os.Stderr, "crash: left behind:", left)
		code = max(code, 1)
	}
	return code
}
