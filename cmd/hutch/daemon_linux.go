package main

import (
	"bytes"
	"fmt"
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

// runs reports whether a process is there that has not ended. One that waits to be
// reaped has.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	end := bytes.LastIndexByte(stat, ')') // the name before may hold anything
	return end < 0 || !bytes.HasPrefix(stat[end+1:], []byte(" Z")) && !bytes.HasPrefix(stat[end+1:], []byte(" X"))
}
