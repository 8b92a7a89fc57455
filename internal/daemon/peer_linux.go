package daemon

import (
	"fmt"
	"net"

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
