package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// detach gives a command a session of its own: no signal of our terminal
// reaches it.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// lockStart waits for whoever else starts a daemon for this state directory.
func lockStart(state string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(state, "hutchd.start"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

// runs reports whether a process is there that has not ended.
func runs(pid int) bool { return pid > 0 && unix.Kill(pid, 0) != unix.ESRCH }
