package crash

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
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
		return again()
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

func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inner+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "crash: a mount namespace of its own:", err)
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for s := range signals {
			cmd.Process.Signal(s)
		}
	}()
	if err := cmd.Wait(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			return exit.ExitCode()
		}
		return 1
	}
	return 0
}
