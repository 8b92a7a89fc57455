package daemon

import (
	"bytes"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// credentials are whom the kernel says a unix socket was connected by.
func credentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var got error
	if err := raw.Control(func(fd uintptr) {
		cred, got = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, got
}

// soPeerPidfd is SO_PEERPIDFD, of Linux 6.5.
const soPeerPidfd = 77

// outside tells whether whoever connected runs in this process's own PID namespace.
// What runs in a box does not, and must not command its daemon, should it be shown
// the socket: it has our uid. Nor does what runs in another container; of a process
// that is gone, nobody knows.
func outside(c *net.UnixConn, pid int32) bool {
	raw, err := c.SyscallConn()
	if err != nil || pid <= 0 { // 0: it is not below us
		return false
	}
	process := -1
	if raw.Control(func(fd uintptr) { process, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPeerPidfd) }) == nil && err == nil {
		defer unix.Close(process)
	} else {
		process = -1
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	// NSpid has a number for each namespace from ours on.
	_, rest, ok := bytes.Cut(text, []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	if !ok || len(bytes.Fields(line)) != 1 {
		return false
	}
	// Its number is still its own: what was read was of nobody else. EPERM: it is
	// root's, and there.
	return process < 0 || unix.PidfdSendSignal(process, 0, nil, 0) != unix.ESRCH
}

func peerOf(c net.Conn) peer {
	u, ok := c.(*net.UnixConn)
	if !ok {
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			host = "unknown"
		}
		return peer{client: "tcp:" + host}
	}
	cred, err := credentials(u)
	if err != nil {
		return peer{client: "unknown"} // and not of a unix socket: a token is asked for
	}
	return peer{client: fmt.Sprintf("%d:%d", cred.Uid, cred.Pid), unix: true}
}
