package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"hutch/internal/api"
)

// Attached is a command that was started and is followed.
type Attached struct {
	c   *Client
	box string
	ws  *websocket
}

// Attach starts a command in a box. Its output, and its end, come by Next; what
// is written is its input, until CloseInput.
func (c *Client) Attach(ctx context.Context, box string, run api.Run) (*Attached, error) {
	ws, err := c.websocket(ctx, boxPath(box, "attach"), nil)
	if err != nil {
		return nil, err
	}
	a := &Attached{c: c, box: box, ws: ws}
	if err := a.send(run); err != nil {
		ws.Close()
		return nil, errCut
	}
	return a, nil
}

func (a *Attached) send(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return a.ws.write(opText, text)
}

// Next returns the next event. Pieces of output have their stream and, whatever
// they hold, Base64. After the outcome comes io.EOF; what the daemon refuses is
// an *api.Error.
func (a *Attached) Next() (*api.Event, error) {
	text, data, err := a.ws.message()
	var closed *closedError
	switch {
	case errors.As(err, &closed) && closed.code == closeNormal:
		return nil, io.EOF
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return nil, errCut
	case err != nil:
		return nil, err
	case !text:
		if len(data) == 0 || data[0] != 1 && data[0] != 2 {
			return nil, broken("a piece of output is of no stream")
		}
		stream := "stdout"
		if data[0] == 2 {
			stream = "stderr"
		}
		return &api.Event{Stream: stream, Base64: data[1:]}, nil
	}
	var e api.Event
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, broken("%w", err)
	}
	if e.Error != nil {
		return nil, explained(e.Error, e.Error.Status)
	}
	return &e, nil
}

// Write hands input to the command. It waits as long as the command does not
// read.
func (a *Attached) Write(p []byte) (int, error) {
	const most = 32 << 10 // so that a signal has not long to wait
	done := 0
	for done < len(p) {
		part := p[done:min(len(p), done+most)]
		if err := a.ws.write(opBinary, part); err != nil {
			return done, err
		}
		done += len(part)
	}
	return done, nil
}

// CloseInput says that there is no more input.
func (a *Attached) CloseInput() error { return a.send(api.Input{EOF: true}) }

// Resize gives its terminal another size.
func (a *Attached) Resize(size api.Size) error { return a.send(api.Input{Resize: &size}) }

// signalPatience is how long a signal waits for input that the command does not
// read, before it goes another way.
const signalPatience = 300 * time.Millisecond

// Signal sends the command, whose id is exec when that is known, a signal such as
// INT. It comes through where input that nobody reads is in the way.
func (a *Attached) Signal(ctx context.Context, name, exec string) error {
	sent := make(chan error, 1)
	go func() { sent <- a.send(api.Input{Signal: name}) }()
	select {
	case err := <-sent:
		return err
	case <-time.After(signalPatience):
	}
	if exec == "" {
		return nil
	}
	return a.c.Kill(ctx, a.box, api.Kill{Exec: exec, Signal: name})
}

// Close lets go of the command.
func (a *Attached) Close() error {
	// A farewell, if the other end takes it at once.
	_ = a.ws.conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_ = a.ws.sendClose(closeNormal)
	return a.ws.Close()
}
