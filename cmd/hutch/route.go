package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/client"
	"hutch/internal/workspace"
)

// quiet is what can be asked of boxes whether or not they live: of the daemon
// where one runs, else of the state directory, in this process.
type quiet interface {
	Create(ctx context.Context, q api.Create) (*api.Box, error)
	List(ctx context.Context, all bool) ([]api.Box, error)
	Show(ctx context.Context, id string) (*api.Box, error)
	Remove(ctx context.Context, id string) error
	Discard(ctx context.Context, id string, force bool) error
	Checkpoint(ctx context.Context, id, name string) (*api.Checkpoint, error)
	Restore(ctx context.Context, id, name string) error
	Fork(ctx context.Context, id string, n int, names []string) ([]api.Box, error)
	Execs(ctx context.Context, id string) ([]api.Exec, error)
	Exec(ctx context.Context, id, exec string) (*api.Exec, error)
	Output(ctx context.Context, id, exec, stream string, offset int64, follow bool) (io.ReadCloser, error)
}

// local asks the state directory.
type local struct{ *box.Boxes }

func (l local) List(_ context.Context, all bool) ([]api.Box, error) { return l.Boxes.List(all) }

func (l local) Show(_ context.Context, id string) (*api.Box, error) { return l.Boxes.Show(id) }

func (l local) Execs(_ context.Context, id string) ([]api.Exec, error) { return l.Boxes.Execs(id) }

func (l local) Exec(_ context.Context, id, exec string) (*api.Exec, error) {
	return l.Boxes.ExecOf(id, exec)
}

func (l local) Output(_ context.Context, id, exec, stream string, offset int64, follow bool) (io.ReadCloser, error) {
	return l.Boxes.Output(id, exec, stream, offset, follow)
}

func (l local) Remove(_ context.Context, id string) error { return l.Boxes.Remove(id) }

// withBoxes does something with boxes, through the daemon where one runs.
func withBoxes(ctx context.Context, do func(quiet) error) error {
	c, err := runningDaemon(ctx)
	if err != nil {
		return err
	}
	if c != nil {
		return do(c)
	}
	return withLocal(ctx, func(b *box.Boxes) error { return do(local{b}) })
}

// withLocal does something with boxes in this process.
func withLocal(ctx context.Context, do func(*box.Boxes) error) error {
	boxes, err := box.OpenBoxes(box.Options{})
	if err != nil {
		return err
	}
	return errors.Join(do(boxes), boxes.Close(ctx))
}

// where says which daemon is meant.
type where struct {
	*client.Client
	socket string // "" for one that HUTCH_HOST names
	state  string // the state directory whose boxes are meant
}

func whereDaemon() (*where, error) {
	if host := os.Getenv("HUTCH_HOST"); host != "" {
		token := os.Getenv("HUTCH_TOKEN")
		if token == "" {
			return nil, invalid("HUTCH_HOST is set, but not HUTCH_TOKEN; set it to the token of the daemon there")
		}
		return &where{Client: client.TCP(host, token)}, nil
	}
	socket, err := workspace.Socket()
	if err != nil {
		return nil, err
	}
	state, err := workspace.StateDir()
	if err != nil {
		return nil, err
	}
	return &where{client.Unix(socket), socket, state}, nil
}

// another says that the daemon which answers is that of another state directory,
// or of another hutch.
func (w *where) another(ctx context.Context) error {
	s, err := w.Status(ctx)
	if err != nil {
		return err
	}
	if s.API != api.Version {
		return &api.Error{Code: api.Unsupported, Text: fmt.Sprintf("the daemon that runs is that of hutchd %s, whose protocol is version %d, and this hutch's is %d; end it with `hutch daemon stop`, and the right one is started", s.Version, s.API, api.Version)}
	}
	if w.socket == "" || sameDir(s.StateDir, w.state) {
		return nil
	}
	return &anotherState{fmt.Sprintf("the daemon at %s has the boxes of %s, not of %s; set HUTCH_SOCKET to a socket for a daemon of its own", w.socket, s.StateDir, w.state)}
}

type anotherState struct{ text string }

func (a *anotherState) Error() string { return a.text }

func sameDir(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// runningDaemon returns a client of the daemon that has the boxes of this state
// directory; nil when none runs.
func runningDaemon(ctx context.Context) (*client.Client, error) {
	w, err := whereDaemon()
	if err != nil {
		return nil, err
	}
	err = w.another(ctx)
	var other *anotherState
	switch {
	case err == nil:
		return w.Client, nil
	case errors.As(err, &other), w.socket != "" && errors.Is(err, client.ErrNoDaemon):
		return nil, nil
	}
	return nil, err
}

// liveDaemon returns a client of the daemon, which is started where none runs.
func liveDaemon(ctx context.Context) (*client.Client, error) {
	w, err := whereDaemon()
	if err != nil {
		return nil, err
	}
	err = w.another(ctx)
	if w.socket != "" && errors.Is(err, client.ErrNoDaemon) {
		if err = startDaemon(ctx, w); err == nil {
			err = w.another(ctx)
		}
	}
	if err != nil {
		return nil, err
	}
	return w.Client, nil
}

// holder returns a client of the daemon when a box lives there; nil when the box
// can be worked on in this process.
func holder(ctx context.Context, id string) (*client.Client, error) {
	c, err := runningDaemon(ctx)
	if c == nil || err != nil {
		return nil, err
	}
	b, err := c.Show(ctx, id)
	var known *api.Error
	if errors.As(err, &known) && known.Code == api.NotFound {
		return nil, nil // who looks for it says so
	}
	if err != nil || !b.Live {
		return nil, err
	}
	return c, nil
}
