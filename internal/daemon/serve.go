package daemon

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// httpServer is a server with what a stranger may take at most.
func (s *Server) httpServer() *http.Server {
	return &http.Server{
		Handler: s, ConnContext: s.ConnContext,
		ReadHeaderTimeout: s.patience.body, IdleTimeout: idleConnection, MaxHeaderBytes: 64 << 10,
		ErrorLog: log.New(slogWriter{s.log}, "", 0),
	}
}

// idleConnection is how long a connection without a request stays open.
const idleConnection = 2 * time.Minute

type slogWriter struct{ log *slog.Logger }

func (w slogWriter) Write(b []byte) (int, error) {
	w.log.Debug("http", "message", string(b))
	return len(b), nil
}

// Times says when a daemon looks after itself, and ends.
type Times struct {
	Idle  time.Duration // with nobody connected and nothing running; 0: never
	Drain time.Duration // for commands to end by themselves, once it is told to end
}

// renewEvery is how often the count of live boxes is compared with what lives.
const renewEvery = 5 * time.Second

// closing bounds each of the last steps.
const closing = 5 * time.Second

// Serve serves at listeners until ctx ends, a client asks for the end, or the
// daemon was idle for long enough. Then it lets no more in, waits for the
// commands that run, and ends what is left with every jail. It closes Boxes.
func (s *Server) Serve(ctx context.Context, listeners []net.Listener, times Times) error {
	base, cut := context.WithCancel(context.Background())
	defer cut()
	h := s.httpServer()
	h.BaseContext = func(net.Listener) context.Context { return base }
	var connected atomic.Int64
	h.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connected.Add(1)
		case http.StateClosed, http.StateHijacked: // what was hijacked is counted by s.inflight
			connected.Add(-1)
		}
	}
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { failed <- h.Serve(l) }()
	}
	s.log.Info("serving", "listen", s.o.Listen, "version", s.o.Version)
	why, err := s.until(ctx, failed, times.Idle, func() bool { return connected.Load() == 0 && s.inflight.Load() == 0 })
	s.log.Info("ending", "why", why)

	s.draining.Store(true)
	for _, l := range listeners {
		l.Close()
	}
	s.drain(times.Drain)
	cut() // ends what follows and what tunnels, and the commands that are still waited for
	s.lives.killAll()
	done, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	closed := s.boxes.Close(done)
	_ = h.Shutdown(done)
	h.Close()
	s.log.Info("ended", "error", closed)
	return errors.Join(err, closed)
}

// until waits for what ends the daemon, and says what it was.
func (s *Server) until(ctx context.Context, failed <-chan error, idle time.Duration, alone func() bool) (why string, err error) {
	every := renewEvery
	if idle > 0 {
		every = min(every, max(idle/4, 10*time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	since, renewed := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return "asked to", nil
		case err := <-failed:
			return "a listener failed", err
		case <-tick.C:
		}
		if time.Since(renewed) >= renewEvery {
			renewed = time.Now()
			if live, _ := s.lives.counts(); live > 0 {
				if err := s.lives.renew(); err != nil {
					s.log.Warn("the boxes could not be listed", "error", err)
				}
			}
		}
		if running, waiting := s.queue.counts(); running+waiting > 0 || !alone() {
			since = time.Now()
			continue
		}
		if idle <= 0 || time.Since(since) < idle {
			continue
		}
		if s.lives.anyRuns() {
			since = time.Now()
			continue
		}
		return "idle", nil
	}
}

// drain waits until no command runs, no longer than it may.
func (s *Server) drain(most time.Duration) {
	for end := time.Now().Add(most); s.work.Load() > 0; time.Sleep(drainStep) {
		if time.Now().After(end) {
			running, _ := s.queue.counts()
			s.log.Warn("commands still run; they are ended", "running", running)
			return
		}
	}
}

const drainStep = 5 * time.Millisecond
