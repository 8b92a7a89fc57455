package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"hutch/internal/client"
)

func boxForwardCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("forward BOX [LOCAL:]PORT", "Reach a port in a box from this machine", words{2, 2, "give a box and a port in it, such as 8080, or 9000:8080 for another one here"}, func(ctx context.Context, args []string) error {
		here, there, err := parsePorts(args[1])
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		// A box that is not there is told now, not at the first connection.
		if _, err := c.Show(ctx, args[0]); err != nil {
			return err
		}
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(here))))
		if err != nil {
			return fmt.Errorf("listen at port %d: %w; choose another, as in 0:%d", here, errors.Unwrap(err), there)
		}
		defer listener.Close()
		defer context.AfterFunc(ctx, func() { listener.Close() })()
		if wantsJSON(cmd.Flags()) {
			if err := printJSON(struct {
				Local string `json:"local"`
				Port  uint16 `json:"port"`
			}{listener.Addr().String(), there}); err != nil {
				return err
			}
		}
		say("%s leads to port %d of box %s, until Ctrl-C", listener.Addr(), there, args[0])
		for {
			conn, err := listener.Accept()
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			go carry(ctx, c, args[0], there, conn)
		}
	})
	cmd.Long = `Listen at a port of this machine's loopback, and lead connections to a port in a
box. Nothing in the box can connect to anywhere by that. LOCAL is the same port
by default; 0 takes one that is free.`
	return cmd
}

// parsePorts reads PORT or LOCAL:PORT.
func parsePorts(text string) (here, there uint16, err error) {
	first, second, both := strings.Cut(text, ":")
	if !both {
		second = first
	}
	to, err := strconv.ParseUint(second, 10, 16)
	if err != nil || to == 0 {
		return 0, 0, invalid("%q: give a port, 1 to 65535, or LOCAL:PORT", text)
	}
	from, err := strconv.ParseUint(first, 10, 16)
	if err != nil {
		return 0, 0, invalid("%q: give a port, 1 to 65535, or LOCAL:PORT", text)
	}
	return uint16(from), uint16(to), nil
}

// halves is a connection of which each way ends by itself.
type halves interface {
	net.Conn
	CloseWrite() error
}

// carry carries one connection.
func carry(ctx context.Context, c *client.Client, id string, port uint16, here net.Conn) {
	defer here.Close()
	there, err := c.Dial(ctx, id, port)
	if err != nil {
		if ctx.Err() == nil {
			say("%v", err)
		}
		return
	}
	defer there.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{here, there}, {there, here}} {
		both.Go(func() {
			if _, err := io.Copy(struct{ io.Writer }{way[1]}, way[0]); err != nil {
				here.Close()
				there.Close()
			}
			if half, ok := way[1].(halves); ok {
				_ = half.CloseWrite() // it is gone already, then
			}
		})
	}
	both.Wait()
}
