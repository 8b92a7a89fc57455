package daemon

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

// running is a command that the daemon started and waits for.
type running struct {
	s       *Server
	started Started
	exec    api.Exec
	life    *life
	client  string
}

// start waits for the turn of a client, starts a command, and follows it.
// Whoever gets it must call wait, or leave it alone.
func (s *Server) start(ctx context.Context, ref string, r api.Run, streams Streams) (*running, error) {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return nil, refuse(api.Invalid, "argv is empty: name a command")
	}
	if r.Stdin != "" && len(r.StdinBase64) > 0 {
		return nil, refuse(api.Invalid, "stdin and stdin_base64 exclude each other")
	}
	began := time.Now()
	client := peerIn(ctx).client
	if err := s.queue.enter(ctx, client); err != nil {
		return nil, err
	}
	turn := time.Now()
	s.metrics.took(phaseQueue, turn.Sub(began))
	l, err := s.lives.enter(ref)
	if err != nil {
		s.queue.leave()
		return nil, err
	}
	started, err := s.boxes.Exec(context.WithoutCancel(ctx), l.id, r, streams)
	if err != nil {
		s.lives.leave(l)
		s.queue.leave()
		return nil, err
	}
	s.metrics.took(phaseJail, time.Since(turn))
	s.work.Add(1)
	return &running{s: s, started: started, exec: started.Exec(), life: l, client: client}, nil
}

// wait returns the outcome, or ctx's error when that comes first: then the
// command goes on, and wait must be called again.
func (r *running) wait(ctx context.Context) (*outcome.Outcome, error) {
	out, err := r.started.Wait(ctx)
	if out == nil && err != nil && ctx.Err() != nil {
		return nil, err
	}
	r.s.lives.leave(r.life)
	r.s.queue.leave()
	if out != nil {
		r.s.metrics.ended(out)
		r.s.log.Info("exec", "box", r.exec.Box, "exec", r.exec.ID, "client", r.client, "status", out.Status, "exit_code", out.ExitCode, "ms", out.DurationMS)
	} else {
		r.s.log.Error("exec", "box", r.exec.Box, "exec", r.exec.ID, "client", r.client, "error", err)
	}
	r.s.work.Add(-1)
	return out, err
}

// keep lets the command go on without the client.
func (r *running) keep() { go func() { _, _ = r.wait(context.Background()) }() }

// farewell is how long a command has to end by itself after an interrupt.
const farewell = 2 * time.Second

// end interrupts the command, as Ctrl-C does, and kills it when that is not
// enough.
func (r *running) end() {
	r.s.log.Info("the client has gone: its command is ended", "box", r.exec.Box, "exec", r.exec.ID, "client", r.client)
	_ = r.started.Signal("INT")
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	if _, err := r.wait(ctx); err == nil || ctx.Err() == nil {
		return
	}
	if err := r.s.boxes.Kill(r.exec.Box, api.Kill{Exec: r.exec.ID, Signal: "KILL"}); err != nil {
		r.s.log.Warn("a command could not be ended", "box", r.exec.Box, "exec", r.exec.ID, "error", err)
	}
	r.keep()
}

// left is called when the client has gone before the end.
func (r *running) left(keep bool) {
	if keep {
		r.keep()
		return
	}
	r.end()
}

type execInput struct {
	BoxPath
	Accept       string `header:"Accept" doc:"application/x-ndjson or text/event-stream for a stream of events"`
	Detach       bool   `query:"detach" doc:"answer when it has started; it goes on without the client"`
	OnDisconnect string `query:"on_disconnect" enum:"end,keep" default:"end" doc:"what becomes of the command when the client has gone before its end: it is interrupted as by Ctrl-C, or goes on"`
	Body         api.Run
}

func (s *Server) execRoutes() {
	registry := s.api.OpenAPI().Components.Schemas
	exec := operation("POST", "/v1/boxes/{box}/execs", "exec", "Run a command in a box", ofLive)
	exec.Description = "The answer is its outcome; with detach the command; or a stream of events, of which the last holds the outcome or an error. " +
		"A stream's outcome holds no output unless return is given. A client that does not read is cut off after a while; its command goes on, and its output stays on disk."
	exec = answers(exec, "200", "it has ended; or a stream", map[string]*huma.Schema{
		"application/json": schemaOf[outcome.Outcome](registry), "application/x-ndjson": eventSchema(registry), "text/event-stream": eventSchema(registry),
	})
	exec = answers(exec, "201", "it has started (detach)", map[string]*huma.Schema{"application/json": schemaOf[api.Exec](registry)})
	register(s, exec, s.exec)
	register(s, operation("GET", "/v1/boxes/{box}/execs", "list-execs", "List the commands of a box, the last ones last", ofBox), func(_ context.Context, in *BoxPath) (*reply[[]api.Exec], error) {
		list, err := s.boxes.Execs(in.Box)
		return &reply[[]api.Exec]{orEmpty(list)}, err
	})
	register(s, operation("GET", "/v1/boxes/{box}/execs/{exec}", "show-exec", "Show a command, and its outcome when it has ended", ofBox), func(_ context.Context, in *struct {
		BoxPath
		Exec string `path:"exec" maxLength:"32"`
	}) (*reply[*api.Exec], error) {
		e, err := s.boxes.ExecOf(in.Box, in.Exec)
		return &reply[*api.Exec]{e}, err
	})
	output := operation("GET", "/v1/boxes/{box}/execs/{exec}/output", "exec-output", "What a command wrote, as far as it is kept", ofBox)
	output = answers(output, "200", "the bytes", map[string]*huma.Schema{"application/octet-stream": binary()})
	register(s, output, s.output)
}

func (s *Server) exec(ctx context.Context, in *execInput) (*raw, error) {
	keep := in.OnDisconnect == "keep"
	switch {
	case in.Detach:
		r, err := s.start(ctx, in.Box, in.Body, Streams{})
		if err != nil {
			return nil, err
		}
		r.keep()
		return &raw{func(c huma.Context) {
			_, w := humago.Unwrap(c)
			writeJSON(w, "application/json", http.StatusCreated, r.exec)
		}}, nil
	case accepts(in.Accept, ndjson):
		return s.stream(ctx, in, ndjson)
	case accepts(in.Accept, sse):
		return s.stream(ctx, in, sse)
	}
	r, err := s.start(ctx, in.Box, in.Body, Streams{})
	if err != nil {
		return nil, err
	}
	out, err := r.wait(ctx)
	if out == nil && ctx.Err() != nil {
		r.left(keep)
		return nil, s.deserted()
	}
	if out == nil {
		return nil, err
	}
	return &raw{func(c huma.Context) {
		_, w := humago.Unwrap(c)
		writeJSON(w, "application/json", http.StatusOK, out)
	}}, nil
}

// deserted is the answer to a client that has gone, which nobody reads but the
// counters; or to one that is there still, since it is the daemon that goes.
func (s *Server) deserted() error {
	if s.draining.Load() {
		return newProblem(http.StatusServiceUnavailable, api.Full, "the daemon ends, and with it what ran: the records of the boxes say how far it came")
	}
	return newProblem(499, api.Invalid, "the client has gone")
}

// accepts tells whether a header names a type.
func accepts(header, kind string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), kind) {
			return true
		}
	}
	return false
}

func (s *Server) output(ctx context.Context, in *struct {
	BoxPath
	Exec   string `path:"exec" maxLength:"32"`
	Stream string `query:"stream" enum:"stdout,stderr" default:"stdout"`
	Offset int64  `query:"offset" minimum:"0" doc:"bytes to leave out at the beginning"`
	Follow bool   `query:"follow" doc:"go on until the command has ended"`
}) (*raw, error) {
	from, err := s.boxes.Output(in.Box, in.Exec, in.Stream, in.Offset, in.Follow)
	if err != nil {
		return nil, err
	}
	return &raw{func(c huma.Context) {
		defer context.AfterFunc(ctx, func() { from.Close() })()
		defer from.Close()
		_, w := humago.Unwrap(c)
		w.Header().Set("Content-Type", "application/octet-stream")
		copyOut(w, from, in.Follow)
	}}, nil
}
