package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// Again runs this very program, with its arguments, in a mount namespace of its
// own and returns its exit code: whatever happens to it, what it mounts, and the
// loop devices of that, go when it does. marker is a variable that is set in its
// environment, who begins the messages, and death is the signal that it gets
// when this process dies; 0 for none.
func Again(who, marker string, death syscall.Signal) int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: death}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: a mount namespace of its own: %v\n", who, err)
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
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
