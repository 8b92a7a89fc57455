package daemon

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

const (
	ndjson = "application/x-ndjson"
	sse    = "text/event-stream"
)

// tapSize is how much output waits in memory for a client that reads slowly.
const tapSize = 1 << 20

// tap stands between a command and one client. A writer waits for the client
// at most for a while, once: then the client is cut off, and what comes
// afterwards is only on disk.
type tap struct {
	stall time.Duration
	ready chan struct{} // there is something to take
	room  chan struct{} // something was taken

	mu     sync.Mutex
	pieces []chunk
	held   int
	cut    bool
}

type chunk struct {
	stream string
	data   []byte
}

func newTap(stall time.Duration) *tap {
	return &tap{stall: stall, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func (t *tap) streams() Streams {
	return Streams{Stdout: tapWriter{t, "stdout"}, Stderr: tapWriter{t, "stderr"}}
}

type tapWriter struct {
	t      *tap
	stream string
}

// Write never fails: the command's output must be taken in any case.
func (w tapWriter) Write(b []byte) (int, error) {
	w.t.put(w.stream, b)
	return len(b), nil
}

func (t *tap) put(stream string, b []byte) {
	var late <-chan time.Time
	for len(b) > 0 {
		t.mu.Lock()
		if t.cut {
			t.mu.Unlock()
			return
		}
		if n := min(len(b), tapSize-t.held); n > 0 {
			t.pieces = append(t.pieces, chunk{stream, bytes.Clone(b[:n])})
			t.held += n
			b = b[n:]
			wake(t.ready)
		}
		t.mu.Unlock()
		if len(b) == 0 {
			return
		}
		if late == nil {
			timer := time.NewTimer(t.stall)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-t.room:
		case <-late:
			t.close()
		}
	}
}

// take returns what waits, and whether the client was cut off.
func (t *tap) take() ([]chunk, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pieces := t.pieces
	t.pieces, t.held = nil, 0
	wake(t.room)
	return pieces, t.cut
}

// close cuts the client off.
func (t *tap) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut = true
	t.pieces, t.held = nil, 0
	wake(t.ready)
	wake(t.room)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// follow hands what a command writes to send, then returns its outcome. Where
// the client cannot be reached it returns errLeft (it has gone: ctx has ended) or
// errStalled (it does not read). The command goes on then.
func (r *running) follow(ctx context.Context, t *tap, send func([]chunk) error) (*outcome.Outcome, error) {
	type result struct {
		out *outcome.Outcome
		err error
	}
	ended := make(chan result, 1)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		out, err := r.started.Wait(waiting)
		ended <- result{out, err}
	}()
	// away lets go of the outcome that is waited for: whoever goes on waits anew.
	away := func(err error) (*outcome.Outcome, error) {
		t.close()
		stop()
		<-ended
		return nil, err
	}
	for {
		select {
		case <-t.ready:
			pieces, cut := t.take()
			if cut {
				return away(errStalled)
			}
			if err := send(pieces); err != nil {
				return away(err)
			}
		case end := <-ended:
			if end.out == nil && ctx.Err() != nil {
				t.close()
				return nil, errLeft
			}
			pieces, _ := t.take()
			if len(pieces) > 0 {
				if err := send(pieces); err != nil {
					t.close()
					return nil, err
				}
			}
			return end.out, end.err
		}
	}
}

type clientError string

func (e clientError) Error() string { return string(e) }

const (
	errLeft    = clientError("the client has gone")
	errStalled = clientError("the client does not read")
)

// stream answers with events.
func (s *Server) stream(ctx context.Context, in *execInput, kind string) (*raw, error) {
	t := newTap(s.patience.stall)
	r, err := s.start(ctx, in.Box, in.Body, t.streams())
	if err != nil {
		return nil, err
	}
	return &raw{func(c huma.Context) {
		_, w := humago.Unwrap(c)
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-store")
		e := &events{w: w, sse: kind == sse}
		out, err := e.run(ctx, r, t)
		if r.settle(err, in.OnDisconnect == "keep") {
			panic(http.ErrAbortHandler) // an end without the last event must not look like a whole answer
		}
		last := api.Event{Outcome: trimmed(out, in.Body)}
		if out == nil {
			last = api.Event{Error: &problemOf(err).Problem}
		}
		_ = e.send(last)
	}}, nil
}

// settle ends what follow began, and tells whether the client is lost.
func (r *running) settle(err error, keep bool) (lost bool) {
	switch err {
	case errLeft:
		r.left(keep)
	case errStalled:
		r.s.log.Warn("a client that does not read was cut off; its command goes on", "box", r.exec.Box, "exec", r.exec.ID, "client", r.client)
		r.keep()
	default:
		_, _ = r.wait(context.Background()) // it has ended
		return false
	}
	return true
}

// trimmed leaves the output, which was streamed, out of an outcome.
func trimmed(out *outcome.Outcome, run api.Run) *outcome.Outcome {
	if out == nil || run.Return > 0 {
		return out
	}
	o := *out
	o.Stdout, o.Stderr, o.StdoutBase64, o.StderrBase64 = "", "", "", ""
	return &o
}

// events writes events as lines of JSON, or as Server-Sent Events.
type events struct {
	w    http.ResponseWriter
	sse  bool
	buf  bytes.Buffer
	text map[string]*[]byte // the beginning of a character whose rest has not come
}

func (e *events) run(ctx context.Context, r *running, t *tap) (*outcome.Outcome, error) {
	e.text = map[string]*[]byte{"stdout": new([]byte), "stderr": new([]byte)}
	if err := e.send(api.Event{Exec: &r.exec}); err != nil {
		t.close()
		return nil, e.why(err)
	}
	out, err := r.follow(ctx, t, func(pieces []chunk) error {
		for _, p := range pieces {
			e.output(p.stream, p.data, false)
		}
		return e.why(e.flush())
	})
	if out != nil || err == nil {
		e.output("stdout", nil, true)
		e.output("stderr", nil, true)
	}
	return out, err
}

// why tells a client that has gone from one that does not read.
func (e *events) why(err error) error {
	if err == nil {
		return nil
	}
	if p, ok := e.w.(*patient); ok && p.stalled {
		return errStalled
	}
	return errLeft
}

// output adds a piece as events, text where it is UTF-8. A character that is cut
// in two waits for its rest.
func (e *events) output(stream string, b []byte, last bool) {
	rest := e.text[stream]
	b = append(*rest, b...)
	*rest = nil
	if n := incomplete(b); n > 0 && !last {
		*rest = bytes.Clone(b[len(b)-n:])
		b = b[:len(b)-n]
	}
	if len(b) == 0 {
		return
	}
	if utf8.Valid(b) {
		e.add(api.Event{Stream: stream, Data: string(b)})
	} else {
		e.add(api.Event{Stream: stream, Base64: b})
	}
}

// incomplete is how many bytes at the end are the beginning of a character.
func incomplete(b []byte) int {
	for n := 1; n <= min(utf8.UTFMax-1, len(b)); n++ {
		c := b[len(b)-n]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

func (e *events) add(v api.Event) {
	line, err := marshal(v)
	if err != nil {
		return // of texts, numbers and times
	}
	if e.sse {
		e.buf.WriteString("data: ")
	}
	e.buf.Write(line)
	if e.sse {
		e.buf.WriteByte('\n')
	}
}

func (e *events) send(v api.Event) error {
	e.add(v)
	return e.flush()
}

func (e *events) flush() error {
	_, err := e.w.Write(e.buf.Bytes())
	e.buf.Reset()
	if err != nil {
		return err
	}
	return flush(e.w)
}

// flush sends what net/http holds back.
func flush(w http.ResponseWriter) error {
	if p, ok := w.(*patient); ok {
		return p.flush()
	}
	return http.NewResponseController(w).Flush()
}

// copyOut writes all of r; with each piece at once where somebody follows it.
func copyOut(w http.ResponseWriter, r io.Reader, follow bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil || (follow && flush(w) != nil) {
				panic(http.ErrAbortHandler)
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // a part must not look like the whole
		}
	}
}
