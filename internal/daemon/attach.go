package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

type attachInput struct {
	BoxPath
	OnDisconnect string `query:"on_disconnect" enum:"end,keep" default:"end" doc:"what becomes of the command when the client has gone before its end"`
}

func (s *Server) attachRoute() {
	op := operation("GET", "/v1/boxes/{box}/attach", "attach", "Run a command with its input and output over a WebSocket", ofLive)
	op.Description = "The first text frame is a Run. Then binary frames of the client are input, and text frames are Inputs. " +
		"Binary frames of the server are output: the first byte is 1 for stdout and 2 for stderr. Its text frames are Events: exec first, outcome or error last."
	op.Errors = append(op.Errors, http.StatusUpgradeRequired)
	op = answers(op, "101", "a WebSocket", nil)
	register(s, op, s.attach)
}

// attach upgrades, then answers in frames.
func (s *Server) attach(ctx context.Context, in *attachInput) (*raw, error) {
	if _, err := s.boxes.Show(in.Box); err != nil {
		return nil, err
	}
	return &raw{func(c huma.Context) {
		r, w := humago.Unwrap(c)
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			w.Header().Set("Upgrade", "websocket")
			writeProblem(w, newProblem(http.StatusUpgradeRequired, api.Invalid, "attach needs a WebSocket: ask for an upgrade"))
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
		if err != nil {
			return // Accept has answered
		}
		s.work.Add(1)
		defer s.work.Add(-1)
		conn.SetReadLimit(maxBody)
		a := &attachment{s: s, conn: conn, keep: in.OnDisconnect == "keep"}
		a.serve(ctx, in.Box)
	}}, nil
}

// attachment is one WebSocket and its command.
type attachment struct {
	s    *Server
	conn *websocket.Conn
	keep bool
}

func (a *attachment) serve(ctx context.Context, ref string) {
	defer a.conn.CloseNow()
	// net/http watches a connection no more once it is a WebSocket: the reader
	// below tells when the client has gone.
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	run, err := a.first(ctx)
	if err != nil {
		a.fail(ctx, err)
		return
	}
	t := newTap(a.s.patience.stall)
	streams := t.streams()
	stdin := newFeed(tapSize)
	defer stdin.close()
	if run.Stdin == "" && len(run.StdinBase64) == 0 {
		streams.Stdin = stdin
	}
	r, err := a.s.start(ctx, ref, run, streams)
	if err != nil {
		a.fail(ctx, err)
		return
	}
	go func() {
		defer gone()
		defer stdin.close()
		a.read(ctx, r, stdin)
	}()
	out, err := a.follow(ctx, r, t)
	stdin.close()
	if r.settle(err, a.keep) {
		return
	}
	last := api.Event{Outcome: trimmed(out, run)}
	if out == nil {
		last = api.Event{Error: &problemOf(err).Problem}
	}
	if a.text(ctx, last) == nil {
		_ = a.conn.Close(websocket.StatusNormalClosure, "")
	}
}

// first reads what is to be run.
func (a *attachment) first(ctx context.Context) (run api.Run, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.s.patience.body)
	defer cancel()
	kind, text, err := a.conn.Read(ctx)
	if err != nil {
		return run, refuse(api.Invalid, "the first frame did not come: send a text frame with argv")
	}
	if kind != websocket.MessageText {
		return run, refuse(api.Invalid, "the first frame is binary: send a text frame with argv")
	}
	return run, strict(text, &run)
}

// strict reads JSON that may hold nothing but what is known.
func strict(text []byte, into any) error {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return refuse(api.Invalid, fmt.Sprintf("%s: a %s is no %s", kind.Field, kind.Value, kind.Type))
		}
		return refuse(api.Invalid, strings.TrimPrefix(err.Error(), "json: "))
	}
	if d.More() {
		return refuse(api.Invalid, "there is more than one value")
	}
	return nil
}

// read takes frames until the client has gone.
func (a *attachment) read(ctx context.Context, r *running, stdin *feed) {
	for {
		kind, frame, err := a.conn.Read(ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			stdin.add(frame)
			continue
		}
		var in api.Input
		if err := strict(frame, &in); err != nil {
			a.fail(ctx, err)
			return
		}
		switch {
		case in.Resize != nil:
			err = r.started.Resize(*in.Resize)
		case in.Signal != "":
			err = r.started.Signal(in.Signal)
		case in.EOF:
			stdin.end()
		}
		if err != nil {
			a.s.log.Info("attach", "box", r.exec.Box, "exec", r.exec.ID, "error", err)
		}
	}
}

func (a *attachment) follow(ctx context.Context, r *running, t *tap) (*outcome.Outcome, error) {
	if err := a.text(ctx, api.Event{Exec: &r.exec}); err != nil {
		t.close()
		return nil, err
	}
	return r.follow(ctx, t, func(pieces []chunk) error {
		for _, p := range pieces {
			which := byte(1)
			if p.stream == "stderr" {
				which = 2
			}
			if err := a.write(ctx, websocket.MessageBinary, append([]byte{which}, p.data...)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *attachment) text(ctx context.Context, e api.Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return a.write(ctx, websocket.MessageText, text)
}

// write sends a frame, to a client that reads.
func (a *attachment) write(ctx context.Context, kind websocket.MessageType, frame []byte) error {
	limit, cancel := context.WithTimeout(ctx, a.s.patience.stall)
	defer cancel()
	err := a.conn.Write(limit, kind, frame)
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && errors.Is(limit.Err(), context.DeadlineExceeded):
		return errStalled
	}
	return errLeft
}

// fail says what is wrong, and closes.
func (a *attachment) fail(ctx context.Context, err error) {
	if a.text(ctx, api.Event{Error: &problemOf(err).Problem}) == nil {
		_ = a.conn.Close(websocket.StatusPolicyViolation, "")
	}
}

// feed is the input of a command: a bounded buffer between frames and a
// reader, neither of which ever waits for what has ended.
type feed struct {
	size int
	mu   sync.Mutex
	cond sync.Cond
	buf  []byte
	eof  bool // there is no more
	off  bool // nobody reads any more
}

func newFeed(size int) *feed {
	f := &feed{size: size}
	f.cond.L = &f.mu
	return f
}

// add waits while the command does not read what it has.
func (f *feed) add(b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.buf) > 0 && len(f.buf)+len(b) > f.size && !f.off {
		f.cond.Wait()
	}
	if !f.off && !f.eof {
		f.buf = append(f.buf, b...)
		f.cond.Broadcast()
	}
}

// end says that there is no more.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eof = true
	f.cond.Broadcast()
}

// close ends both sides.
func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off, f.eof, f.buf = true, true, nil
	f.cond.Broadcast()
}

func (f *feed) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.buf) == 0 && !f.eof {
		f.cond.Wait()
	}
	if len(f.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.buf)
	if f.buf = f.buf[n:]; len(f.buf) == 0 {
		f.buf = nil
	}
	f.cond.Broadcast()
	return n, nil
}
