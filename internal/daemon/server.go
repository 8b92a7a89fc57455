package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"hutch/internal/api"
)

// Options say how a server serves. The zero value of a limit is none.
type Options struct {
	Version  string
	StateDir string   // told in /v1/status
	Listen   []string // told in /v1/status

	MaxBoxes   int   // live boxes
	MaxMemory  int64 // bytes promised to live boxes
	BoxMemory  int64 // bytes counted for a box that has no limit of its own
	MaxRunning int   // commands that run at once
	Queue      int   // commands of one client that may wait; 256 by default

	Idle  time.Duration // told in /v1/status
	Body  time.Duration // to send a body of JSON; 10 s by default
	Stall time.Duration // for which a client may neither read nor send what it is to; 30 s by default

	Token []byte // what clients over TCP must know; they are refused when it is empty
	Hosts []string
	Log   *slog.Logger
	// End is called when a client asks for the end of the daemon.
	End func()
}

// Server answers HTTP requests about boxes.
type Server struct {
	o        Options
	boxes    Boxes
	mux      *http.ServeMux
	api      huma.API
	queue    *queue
	lives    *lives
	metrics  *metrics
	log      *slog.Logger
	proxy    http.Handler
	patience patience
	started  time.Time
	draining atomic.Bool
	work     atomic.Int64 // commands that run, and what was hijacked
	inflight atomic.Int64
}

// New returns a server over boxes.
func New(boxes Boxes, o Options) *Server {
	if o.Queue == 0 {
		o.Queue = 256
	}
	if o.Body == 0 {
		o.Body = 10 * time.Second
	}
	if o.Stall == 0 {
		o.Stall = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		o: o, boxes: boxes, mux: http.NewServeMux(), log: o.Log, started: time.Now(),
		queue: newQueue(o.MaxRunning, o.Queue), lives: newLives(boxes, o.MaxBoxes, o.MaxMemory, o.BoxMemory),
		patience: patience{body: o.Body, stall: o.Stall},
	}
	s.lives.onRest = func(id string) { s.log.Info("put to rest, to make room", "box", id) }
	s.metrics = newMetrics(s)
	s.api = newAPI(s.mux, o.Version)
	s.proxy = s.newProxy()
	s.routes()
	return s
}

// peer is whom a connection belongs to.
type peer struct {
	client string // "uid:pid" of a unix socket, "tcp:address" else
	unix   bool
}

type peerKey struct{}

// ConnContext puts the peer of a connection into the context of its requests.
func (s *Server) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}

func peerIn(ctx context.Context) peer {
	p, _ := ctx.Value(peerKey{}).(peer)
	return p
}

// ServeHTTP lets in who may, and answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	s.inflight.Add(1)
	defer s.inflight.Add(-1)
	pw := &patient{ResponseWriter: w, control: http.NewResponseController(w), stall: s.patience.stall}
	defer func() {
		if e := recover(); e != nil {
			if e == http.ErrAbortHandler {
				panic(e)
			}
			s.log.Error("a request made the daemon panic", "method", r.Method, "path", r.URL.Path, "panic", fmt.Sprint(e), "stack", string(debug.Stack()))
			if pw.status == 0 {
				writeProblem(pw, newProblem(http.StatusInternalServerError, api.Internal, "the daemon failed on this request; its log says where"))
			}
		}
		s.metrics.request(r, pw.status, time.Since(start))
	}()
	if err := s.admit(r); err != nil {
		if p := problemOf(err); p.Status == http.StatusUnauthorized {
			pw.Header().Set("WWW-Authenticate", "Bearer")
		}
		writeProblem(pw, err)
		return
	}
	if r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
		body := &patientBody{ReadCloser: r.Body, control: pw.control, header: pw.Header()}
		if streamed(r) {
			body.stall = s.patience.stall
		} else {
			body.until = start.Add(s.patience.body)
		}
		r.Body = body
	}
	s.mux.ServeHTTP(pw, r)
}

// streamed tells a body that may be of any length from one of JSON.
func streamed(r *http.Request) bool {
	return r.Method == http.MethodPut || strings.Contains(r.URL.Path, "/proxy/")
}

// whileDraining are what is answered until the very end.
func whileDraining(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || strings.HasSuffix(r.URL.Path, "/kill") || r.URL.Path == "/v1/shutdown"
}

// admit refuses whom the daemon does not serve.
func (s *Server) admit(r *http.Request) error {
	// A page in a browser could send what needs no preflight, and read answers
	// when its own name was made to point here (DNS rebinding). No program sends
	// an Origin, and no name but our own is in a program's Host.
	if r.Header.Get("Origin") != "" {
		return newProblem(http.StatusForbidden, api.Refused, "requests of web pages are refused (they have an Origin): ask from a program")
	}
	p := peerIn(r.Context())
	if !p.unix {
		if !s.ours(r.Host) {
			return newProblem(http.StatusForbidden, api.Refused, fmt.Sprintf("the Host %q is not this daemon: name it by its address, as --listen does", r.Host))
		}
		if !s.knows(r.Header.Get("Authorization")) {
			return newProblem(http.StatusUnauthorized, api.Refused, "over TCP a token is needed: send Authorization: Bearer TOKEN")
		}
	}
	if s.draining.Load() && !whileDraining(r) {
		e := newProblem(http.StatusServiceUnavailable, api.Full, "the daemon is about to end: try again, another one will be started")
		e.retryAfter = retryFull
		return e
	}
	return nil
}

// nowhere answers what has no endpoint.
func (s *Server) nowhere(w http.ResponseWriter, r *http.Request) {
	var allow []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := s.mux.Handler(other); pattern != "/" {
			allow = append(allow, method)
		}
	}
	if len(allow) > 0 {
		w.Header().Set("Allow", strings.Join(allow, ", "))
		writeProblem(w, newProblem(http.StatusMethodNotAllowed, api.Invalid, fmt.Sprintf("%s is not for %s: use %s", r.Method, r.URL.Path, strings.Join(allow, " or "))))
		return
	}
	writeProblem(w, newProblem(http.StatusNotFound, api.NotFound, fmt.Sprintf("there is nothing at %s: /openapi.json lists what there is", r.URL.Path)))
}
