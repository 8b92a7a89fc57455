package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"hutch/internal/api"
	"hutch/internal/client"
	"hutch/internal/outcome"
	"hutch/internal/term"
)

// attachment is a command that is followed to its end.
type attachment struct {
	box      string
	run      api.Run
	terminal bool // it has one of its own, which ours shows
	asJSON   bool
}

// attach runs a command of a box: our input is its input, its output ours, and
// so are signals and its end.
func attach(ctx context.Context, what attachment) error {
	c, err := liveDaemon(ctx)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	forwarded := make(chan syscall.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	restore := func() {}
	var resized <-chan os.Signal
	if what.terminal {
		what.run.TTY = terminalSize(os.Stdin)
		what.run.Env = append(what.run.Env, "TERM="+os.Getenv("TERM"))
		resized, restore = enterRaw(os.Stdin)
		defer restore()
	}
	go forward(signals, forwarded, restore)

	a, err := c.Attach(ctx, what.box, what.run)
	if err != nil {
		return err
	}
	defer a.Close()
	go func() {
		for range resized {
			_ = a.Resize(*terminalSize(os.Stdin)) // what ends the command is told elsewhere
		}
	}()
	if what.terminal || piped(os.Stdin) {
		go func() {
			_, _ = io.Copy(a, struct{ io.Reader }{os.Stdin}) // a command need not read its input
			_ = a.CloseInput()
		}()
	} else if err := a.CloseInput(); err != nil {
		return err
	}
	out, err := follow(ctx, c, a, what, forwarded)
	if err != nil {
		return err
	}
	restore()
	if what.asJSON {
		if err := printJSON(out); err != nil {
			return err
		}
	}
	explainEnd(out, what.asJSON)
	if out.ExitCode != 0 {
		return exit(out.ExitCode)
	}
	return nil
}

// signalNames are the names of the signals that are passed on.
var signalNames = map[syscall.Signal]string{syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP"}

// follow carries output and signals until the command's end.
func follow(ctx context.Context, c *client.Client, a *client.Attached, what attachment, signals <-chan syscall.Signal) (*outcome.Outcome, error) {
	set := term.Lines
	if what.terminal {
		set = term.Screen
	}
	streams := map[string]*shown{}
	var out *outcome.Outcome
	for out == nil {
		e, err := a.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, &api.Error{Code: api.Unknown, Text: "hutchd did not say how the command ended; `hutch box logs " + what.box + "` tells what is known of it"}
		case err != nil:
			return nil, err
		case e.Exec != nil:
			exec := e.Exec.ID
			go func() {
				for s := range signals {
					_ = a.Signal(ctx, signalNames[s], exec) // one that cannot be sent finds nothing to end
				}
			}()
			if what.asJSON {
				break
			}
			for name, file := range map[string]*os.File{"stdout": os.Stdout, "stderr": os.Stderr} {
				streams[name] = newShown(file, set, func(from int64) (io.ReadCloser, error) {
					return c.Output(ctx, what.box, exec, name, from, true)
				})
			}
		case e.Outcome != nil:
			out = e.Outcome
		case e.Stream != "" && streams[e.Stream] != nil:
			streams[e.Stream].add(e.Base64)
		}
	}
	for _, name := range []string{"stdout", "stderr"} {
		if s := streams[name]; s != nil {
			if err := s.finish(); err != nil {
				say("%s: %v; `hutch box logs %s` has all of it", name, err, what.box)
			}
		}
	}
	return out, nil
}

// mostBehind is how much output is held for a reader that is slower than the
// command, in bytes.
const mostBehind = 4 << 20

// shown writes a stream to a file of ours, in a goroutine of its own: the daemon
// gives up whoever does not read, and somebody with a pager may pause for an
// hour. When too much is held, what comes is left out, and read from the daemon's
// disk when its turn has come.
type shown struct {
	w    io.WriteCloser
	rest func(from int64) (io.ReadCloser, error) // the stream, from an offset to its end

	mu     sync.Mutex
	wake   sync.Cond
	held   []byte
	taken  int64 // bytes of the stream that were held, or are
	missed bool  // what follows was not
	over   bool
	done   chan struct{}
	err    error // set when done is closed
}

type open struct{ io.Writer }

func (open) Close() error { return nil }

// showing is where a stream is written to: a terminal is told only what is safe.
func showing(file *os.File, set term.Set) io.WriteCloser {
	if isTerminal(file) {
		return term.NewWriter(file, set)
	}
	return open{file}
}

func newShown(file *os.File, set term.Set, rest func(from int64) (io.ReadCloser, error)) *shown {
	s := &shown{w: showing(file, set), rest: rest, done: make(chan struct{})}
	s.wake.L = &s.mu
	go func() {
		defer close(s.done)
		s.err = s.pump()
		if errors.Is(s.err, syscall.EPIPE) {
			s.err = nil // who read has enough
		}
	}()
	return s
}

func (s *shown) add(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missed || len(s.held) > mostBehind {
		s.missed = true
		return
	}
	s.held = append(s.held, p...)
	s.taken += int64(len(p))
	s.wake.Signal()
}

func (s *shown) pump() error {
	for {
		part, missed := s.next()
		if len(part) == 0 {
			if missed {
				return s.catchUp()
			}
			return nil
		}
		if _, err := s.w.Write(part); err != nil {
			return err
		}
	}
}

// next returns what is held; nothing at the end, or where something was missed.
func (s *shown) next() (part []byte, missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.held) == 0 && !s.over && !s.missed {
		s.wake.Wait()
	}
	part, s.held = s.held, nil
	return part, s.missed
}

// catchUp reads the rest of the stream, as often as the daemon loses patience.
func (s *shown) catchUp() error {
	for failures := 0; ; {
		r, err := s.rest(s.taken)
		if err == nil {
			var n int64
			to := &writing{w: s.w}
			n, err = io.Copy(to, r)
			r.Close()
			if err == nil || to.err != nil {
				return err
			}
			if s.taken += n; n > 0 {
				failures = 0
			}
		}
		if failures++; failures > 5 {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// writing remembers whether it was the writing that failed.
type writing struct {
	w   io.Writer
	err error
}

func (w *writing) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.err = err
	return n, err
}

// finish waits until all is written, and sets a terminal back.
func (s *shown) finish() error {
	s.mu.Lock()
	s.over = true
	s.wake.Signal()
	s.mu.Unlock()
	<-s.done
	_ = s.w.Close() // a terminal that is gone needs none of it
	return s.err
}
