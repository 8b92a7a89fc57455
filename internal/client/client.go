package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"hutch/internal/api"
)

// Client asks one daemon. Its methods may be called from several goroutines.
type Client struct {
	network, address string
	token            string // "" over a unix socket
}

// Unix returns a client of the daemon at a socket. Nothing is connected yet.
func Unix(path string) *Client { return &Client{network: "unix", address: path} }

// TCP returns a client of a daemon at HOST:PORT that wants a token. The token
// and all else travel in the clear: use it over a loopback or a tunnel.
func TCP(address, token string) *Client {
	return &Client{network: "tcp", address: address, token: token}
}

// ErrNoDaemon is in the chain of an error of a request that found no daemon to
// ask.
var ErrNoDaemon = errors.New("no daemon answers")

// connectLimit bounds connecting: a daemon that cannot accept in that time is
// stuck.
const connectLimit = 10 * time.Second

// longestPath is how many bytes the path of a socket may have: all but the last
// of sockaddr_un, on every system.
const longestPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// CanConnect says why no daemon can be there, nor come to be.
func (c *Client) CanConnect() error {
	if c.network == "unix" && len(c.address) > longestPath {
		return fmt.Errorf("the socket %s: a path of a socket has at most %d bytes, and this one %d; set HUTCH_SOCKET to a shorter one", c.address, longestPath, len(c.address))
	}
	return nil
}

func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	if err := c.CanConnect(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDaemon, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, c.network, c.address)
	if err == nil {
		return conn, nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w at %s: %w", ErrNoDaemon, c.address, errors.Unwrap(err))
	}
	return nil, fmt.Errorf("connect to hutchd: %w", err)
}

// Running reports whether a daemon accepts connections.
func (c *Client) Running(ctx context.Context) bool {
	conn, err := c.connect(ctx)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// broken says of an answer that it is not one of HTTP, or of hutchd.
func broken(format string, args ...any) error {
	return fmt.Errorf("hutchd's answer makes no sense: "+format, args...)
}

// cut says that a daemon went away in the middle of an answer.
var errCut = &api.Error{Code: api.Internal, Text: "hutchd went away before it had answered; `hutch daemon status` tells whether it runs"}
