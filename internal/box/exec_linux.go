package box

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/supervise"
	"hutch/internal/term"
)

// Started is a command of a box that was started. Its methods may be called from
// many goroutines at once.
type Started struct {
	in      *resident
	boxes   *Boxes
	held    *held
	id      uint32
	argv    []string
	began   time.Time
	limit   int64 // bytes of each stream in the outcome
	shown   bool  // who started it reads its output as it comes, and none in the outcome
	run     *supervise.Running
	stdout  *supervise.Capture
	stderr  *supervise.Capture
	through []*term.Writer
	spilled int64          // bytes of output in files
	readers sync.WaitGroup // of its output, beside the one it was started with

	ended chan struct{} // closed when the outcome is recorded
	done  chan struct{} // closed when the output is streamed, too
	out   *outcome.Outcome
	err   error
}

// Exec starts a command in a box, and the box's jail where it has none. The end
// of ctx gives up the start, not the command. A policy that refuses the command,
// and a command that cannot be started, are no errors but outcomes.
func (b *Boxes) Exec(ctx context.Context, name string, r api.Run, streams Streams) (*Started, error) {
	input, err := inputOf(&r, streams)
	if err != nil {
		return nil, err
	}
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	j, err := b.awake(ctx, h)
	if err != nil {
		b.letGo(h)
		return nil, err
	}
	s, err := j.start(b, h, &r, input, streams)
	h.mu.RUnlock()
	if err != nil {
		b.letGo(h)
	}
	return s, err
}

// inputOf checks what is asked for and returns the command's input; nil: none.
func inputOf(r *api.Run, streams Streams) (io.Reader, error) {
	invalid := func(text string) (io.Reader, error) { return nil, &api.Error{Code: api.Invalid, Text: text} }
	switch {
	case len(r.Argv) == 0 || r.Argv[0] == "":
		return invalid("argv is empty: name a command")
	case r.Stdin != "" && len(r.StdinBase64) > 0, (r.Stdin != "" || len(r.StdinBase64) > 0) && streams.Stdin != nil:
		return invalid("the input is given twice; give it once")
	case r.Timeout != nil && !(*r.Timeout >= 0 && *r.Timeout < 1e9):
		return invalid("timeout_seconds must be 0, for none, or a number of seconds")
	case r.Return < 0:
		return invalid("return must be a number of bytes")
	}
	for _, text := range slices.Concat(r.Argv, r.Env, []string{r.Dir}) {
		if strings.IndexByte(text, 0) >= 0 {
			return invalid("a NUL byte is in what no command can be given one")
		}
	}
	for _, e := range r.Env {
		if name, _, ok := strings.Cut(e, "="); !ok || name == "" {
			return invalid(fmt.Sprintf("%q is no variable; write it as NAME=VALUE", e))
		}
	}
	switch {
	case len(r.StdinBase64) > 0:
		return bytes.NewReader(r.StdinBase64), nil
	case r.Stdin != "":
		return strings.NewReader(r.Stdin), nil
	}
	return streams.Stdin, nil
}

// start starts a command. h.mu is held for reading.
func (j *resident) start(b *Boxes, h *held, r *api.Run, input io.Reader, streams Streams) (*Started, error) {
	select {
	case <-b.closing:
		return nil, &api.Error{Code: api.Full, Text: "hutchd is ending; start it again"}
	default:
	}
	id, err := h.begin()
	if err != nil {
		return nil, err
	}
	s := &Started{
		in: j, boxes: b, held: h, id: id, argv: r.Argv, began: time.Now().UTC(), limit: cmp.Or(r.Return, DefaultReturn),
		shown: r.Return == 0 && (streams.Stdout != nil || streams.Stderr != nil),
		ended: make(chan struct{}), done: make(chan struct{}),
	}
	s.stdout = supervise.NewSmallCapture(inLine, s.spill("stdout"), s.streamed(streams.Stdout, r.TTY != nil))
	s.stderr = supervise.NewSmallCapture(inLine, s.spill("stderr"), s.streamed(streams.Stderr, r.TTY != nil))
	dir := r.Dir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(j.at, dir)
	}
	j.track(s)
	if err := j.log.append(execLine{ID: id, Argv: clip(r.Argv), Dir: r.Dir, Started: s.began}, 0, j.isRunning); err != nil {
		j.untrack(s)
		h.finish()
		return nil, err
	}
	if denied := j.denied(r); len(denied) > 0 {
		b.workers.do(func() { s.refuse(denied) })
		return s, nil
	}
	env := j.environOf(r.Env)
	command := supervise.LiveCommand{
		Exec:   jail.Command{ID: id, Argv: r.Argv, Env: env, Dir: dir, Search: search(env)},
		Limits: supervise.Limits{Timeout: j.policy.Timeout, Output: j.policy.Output, CPU: j.policy.CPUTime},
		Stdout: s.stdout, Stderr: s.stderr,
	}
	if r.Timeout != nil {
		command.Limits.Timeout = time.Duration(*r.Timeout * float64(time.Second))
	}
	if input != nil {
		command.Stdin = &supervise.Input{Reader: input}
	}
	if r.TTY != nil {
		command.Terminal = supervise.NewTerminalOf(r.TTY.Rows, r.TTY.Cols)
	}
	if s.run, err = j.live.Start(command); err != nil {
		b.workers.do(func() { s.fail(err) })
		return s, nil
	}
	b.workers.do(s.follow)
	return s, nil
}

// workers are goroutines that do one thing after another: to grow the stack of a
// new one each time takes as long as a receipt.
type workers chan func()

func (w workers) do(f func()) {
	select {
	case w <- f: // one waits
	default:
		go w.work(f)
	}
}

// work does f, and what comes within a while.
func (w workers) work(f func()) {
	const idle = 10 * time.Second
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		f()
		timer.Reset(idle)
		select {
		case f = <-w:
		case <-timer.C:
			return
		}
	}
}

// denied lists what the box's policy refuses of a command before it is started.
func (j *resident) denied(r *api.Run) []outcome.Denial {
	var list []outcome.Denial
	for _, d := range j.policy.Check(policy.Call{Workspace: j.at, Command: r.Argv, Terminal: r.TTY != nil}) {
		list = append(list, outcome.Denial(d))
	}
	return list
}

// environOf is the environment of a command: the box's, and what is given for
// this one, which is the stronger.
func (j *resident) environOf(given []string) []string {
	if len(given) == 0 {
		return j.env
	}
	named := make(map[string]bool, len(given))
	var env []string
	for i := len(given) - 1; i >= 0; i-- { // of two, the last
		if name, _, _ := strings.Cut(given[i], "="); !named[name] {
			named[name] = true
			env = append(env, given[i])
		}
	}
	for _, e := range j.env {
		if name, _, _ := strings.Cut(e, "="); !named[name] {
			env = append(env, e)
		}
	}
	slices.Sort(env)
	return env
}

// spill makes the file of a stream that is too large for the log.
func (s *Started) spill(stream string) func() (*os.File, error) {
	return func() (*os.File, error) {
		d := s.held.dir
		if err := unix.Mkdirat(d.fd, outputsDir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, stateError(err)
		}
		dir, err := fsat.OpenDir(d.fd, outputsDir)
		if err != nil {
			return nil, stateError(err)
		}
		defer unix.Close(dir)
		name := outputName(s.id, stream)
		fd, err := fsat.Open(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, stateError(err)
		}
		return os.NewFile(uintptr(fd), filepath.Join(d.path, outputsDir, name)), nil
	}
}

// streamed is what a stream is written to; less what acts on terminals, where
// the policy says so. Whether a client's is one, the client knows.
func (s *Started) streamed(w io.Writer, terminal bool) io.Writer {
	if w == nil || !s.in.policy.StripEscapes {
		return w
	}
	through := term.NewWriter(w, term.Lines)
	s.through = append(s.through, through)
	return through
}

// follow waits for the command and records how it ended.
func (s *Started) follow() {
	res := s.run.Result()
	if res.End == supervise.Interrupted && res.Signal == 0 {
		res.Signal = unix.SIGKILL // nobody said more than that it should end
	}
	out := s.outcome()
	if res.End == supervise.BoxFailed {
		judge(out, &supervise.Result{Duration: res.Duration, CPU: res.CPU, CPUSource: res.CPUSource, PeakSource: "none", End: supervise.Interrupted}, s.argv, 0)
		out.Status, out.ExitCode, out.Signal, out.Error = outcome.Error, outcome.ExitHutch, "", unknownExit
		if res.Failure != nil {
			out.Error = fmt.Sprintf("%s: %v", unknownExit, explain(res.Failure))
		}
	} else {
		judge(out, &res, s.argv, s.in.tasks)
	}
	s.conclude(out)
}

// unknownExit is said of a command whose end nobody saw.
const unknownExit = "its exit status is unknown"

func (s *Started) refuse(denied []outcome.Denial) {
	out := s.outcome()
	out.Status, out.Denied = outcome.Denied, denied
	out.Error = "denied: " + denied[0].Why + "; " + denied[0].Do
	s.conclude(out)
}

func (s *Started) fail(err error) {
	out := s.outcome()
	out.Error = explain(err).Error()
	s.conclude(out)
}

// outcome is what the outcome of every command of the box begins with.
func (s *Started) outcome() *outcome.Outcome {
	out := outcome.New()
	out.ID, out.Strategy, out.Rung = s.name(), s.in.out.Strategy, s.in.out.Rung
	out.Missing, out.Notes = append(out.Missing, s.in.out.Missing...), append(out.Notes, s.in.out.Notes...)
	out.Kept = true
	return out
}

// name is that of the command's receipt.
func (s *Started) name() string { return fmt.Sprintf("%s-%d", s.held.id, s.id) }

// conclude records how the command ended, and then waits for those who read its
// output: nobody knows how long they take.
func (s *Started) conclude(out *outcome.Outcome) {
	logged := *out
	out.Notes, logged.Notes = slices.Clone(out.Notes), slices.Clone(out.Notes)
	cut := s.fill(out, s.limit)
	s.fill(&logged, inLine)
	for _, c := range []struct {
		capture *supervise.Capture
		path    *string
		logged  *string
		text    *string
		encoded *string
		stream  string
	}{
		{s.stdout, &out.StdoutPath, &logged.StdoutPath, &logged.Stdout, &logged.StdoutBase64, "stdout"},
		{s.stderr, &out.StderrPath, &logged.StderrPath, &logged.Stderr, &logged.StderrBase64, "stderr"},
	} {
		if c.capture.Size() > inLine {
			*c.path = filepath.Join(s.held.path, outputsDir, outputName(s.id, c.stream))
			*c.logged, *c.text, *c.encoded = *c.path, "", ""
			s.spilled += c.capture.Size()
		}
	}
	if cut && !s.shown {
		out.Notes = append(out.Notes, fmt.Sprintf("not all of the output is here; `hutch box logs %s %d` shows it", s.held.id, s.id))
	}
	receipt, err := s.boxes.store.Receipts.Append(s.name(), fieldsOf(out, s.in.at, s.argv), false)
	if err == nil {
		out.Receipt, logged.Receipt = receipt.ID, receipt.ID
	} else {
		err = fmt.Errorf("the command is over, but its receipt could not be written: %w", err)
	}
	if lost := s.in.log.append(execLine{ID: s.id, Outcome: &logged}, s.spilled, s.in.isRunning); lost != nil {
		err = errors.Join(err, fmt.Errorf("the command is over, but its end could not be noted: %w", lost))
	}
	s.unspill(s.stdout, "stdout")
	s.unspill(s.stderr, "stderr")
	if err != nil {
		out.Status, out.ExitCode, out.Error = outcome.Error, outcome.ExitHutch, err.Error()
	}
	s.out, s.err = out, err
	s.held.finish()
	s.in.untrack(s)
	close(s.ended)
	s.boxes.letGo(s.held)

	s.stdout.Flush()
	s.stderr.Flush()
	for _, w := range s.through {
		_ = w.Close()
	}
	close(s.done)
	s.readers.Wait()
	s.stdout.Close()
	s.stderr.Close()
}

// unspill removes the file of output that is in the command's line by now.
func (s *Started) unspill(c *supervise.Capture, stream string) {
	if c.Size() > inLine || !c.InFile() {
		return
	}
	if dir, err := fsat.OpenDir(s.held.fd, outputsDir); err == nil {
		_ = unix.Unlinkat(dir, outputName(s.id, stream), 0) // at worst it is there twice
		unix.Close(dir)
	}
}

// reader reads a stream of a command that runs, to its end however soon the
// command ends.
func (s *Started) reader(stream string, offset int64, follow bool) io.ReadCloser {
	capture := s.stdout
	if stream == "stderr" {
		capture = s.stderr
	}
	return &streamReader{ReadCloser: capture.Reader(offset, follow), done: s.readers.Done}
}

// streamReader tells when it is closed.
type streamReader struct {
	io.ReadCloser
	once sync.Once
	done func()
}

func (r *streamReader) Close() error {
	defer r.once.Do(r.done)
	return r.ReadCloser.Close()
}

// fill puts the output into an outcome, and reports whether some is left out.
func (s *Started) fill(out *outcome.Outcome, limit int64) bool {
	strip := s.in.policy.StripEscapes
	first := shown{s.stdout, "stdout", &out.Stdout, &out.StdoutBase64, nil, &out.StdoutTruncated, &out.StdoutBytes}
	second := shown{s.stderr, "stderr", &out.Stderr, &out.StderrBase64, nil, &out.StderrTruncated, &out.StderrBytes}
	cut := first.fill(out, limit, strip)
	return second.fill(out, limit, strip) || cut
}

// Exec is what is known of the command.
func (s *Started) Exec() api.Exec {
	e := api.Exec{ID: strconv.FormatUint(uint64(s.id), 10), Box: s.held.id, Argv: s.argv, Started: s.began, Running: true}
	select {
	case <-s.ended:
		e.Running, e.Outcome = false, s.out
	default:
	}
	return e
}

// Wait returns the outcome when the command has ended and its output has been
// streamed; or, when ctx ends first, that error, and it can be called again.
// With an outcome the error, when there is one, is hutch's own and is in it too.
func (s *Started) Wait(ctx context.Context) (*outcome.Outcome, error) {
	select {
	case <-s.done:
		return s.out, s.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Resize gives the command's terminal a size.
func (s *Started) Resize(size api.Size) error {
	if s.run != nil {
		s.run.Resize(size.Rows, size.Cols)
	}
	return nil
}

// Signal sends a signal, by name or number, to the command's process group.
func (s *Started) Signal(name string) error {
	sig, err := parseSignal(name)
	if err == nil && s.run != nil {
		s.run.Signal(sig)
	}
	return err
}

// Execs lists the commands of a box, the first first. Of the output of those that
// wrote much, only ExecOf and Output tell.
func (b *Boxes) Execs(name string) ([]api.Exec, error) {
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	return h.execs()
}

func (h *held) execs() ([]api.Exec, error) {
	execs, lost, err := h.readOver(nil)
	if len(lost) > 0 && h.lives() != nil {
		// Those that began just then are found to run, or to have ended, now.
		execs, _, err = h.readOver(lost)
	}
	return execs, err
}

// readOver reads the log of commands, and tells of which it knows the beginning
// alone: lost. Where it is told what was lost before, all others run.
func (h *held) readOver(before map[uint32]bool) (execs []api.Exec, lost map[uint32]bool, err error) {
	lost = make(map[uint32]bool)
	running := h.running() // before the log is read: what ends meanwhile has its end there
	lines, err := h.readExecs()
	if err != nil {
		return nil, nil, err
	}
	execs = []api.Exec{}
	at := make(map[uint32]int)
	for _, line := range lines {
		i, known := at[line.ID]
		if !known {
			i = len(execs)
			at[line.ID] = i
			execs = append(execs, api.Exec{ID: strconv.FormatUint(uint64(line.ID), 10), Box: h.id, Argv: []string{}})
		}
		if line.Outcome != nil {
			execs[i].Outcome = line.Outcome
			continue
		}
		execs[i].Argv, execs[i].Started = line.Argv, line.Started
	}
	for id, i := range at {
		switch e := &execs[i]; {
		case e.Outcome != nil:
		case running[id] != nil, before != nil && !before[id]:
			e.Running = true
		default:
			e.Outcome, lost[id] = unseen(h.id, id), true
		}
	}
	return execs, lost, nil
}

// unseen is the outcome of a command that ran when whoever held its box was
// killed.
func unseen(box string, id uint32) *outcome.Outcome {
	out := outcome.New()
	out.ID, out.Kept = fmt.Sprintf("%s-%d", box, id), true
	out.Error = "the process that held the box was killed while this command ran, and " + unknownExit
	return out
}

// ExecOf is what is known of one command of a box, by its number.
func (b *Boxes) ExecOf(name, exec string) (*api.Exec, error) {
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	e, id, err := h.execOf(exec)
	if err != nil {
		return nil, err
	}
	if out := e.Outcome; out != nil {
		for _, s := range []struct{ path, text, encoded *string }{
			{&out.StdoutPath, &out.Stdout, &out.StdoutBase64}, {&out.StderrPath, &out.Stderr, &out.StderrBase64},
		} {
			if *s.path != "" {
				h.fillFrom(id, filepath.Ext(*s.path)[1:], s.text, s.encoded)
			}
		}
	}
	return e, nil
}

func (h *held) execOf(exec string) (*api.Exec, uint32, error) {
	none := &api.Error{Code: api.NotFound, Text: fmt.Sprintf("box %s has no command %q; see `hutch box logs %s`", h.id, exec, h.id)}
	id, err := strconv.ParseUint(exec, 10, 32)
	if err != nil {
		return nil, 0, none
	}
	execs, err := h.execs()
	if err != nil {
		return nil, 0, err
	}
	for i := range execs {
		if execs[i].ID == strconv.FormatUint(id, 10) {
			return &execs[i], uint32(id), nil
		}
	}
	return nil, 0, none
}

func (h *held) fillFrom(id uint32, stream string, text, encoded *string) {
	file, err := h.openOutput(id, stream)
	if err != nil {
		return
	}
	defer file.Close()
	head, _ := io.ReadAll(io.LimitReader(file, DefaultReturn))
	*text, *encoded = asText(head)
}

func (h *held) openOutput(id uint32, stream string) (*os.File, error) {
	dir, err := fsat.OpenDir(h.fd, outputsDir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	name := outputName(id, stream)
	fd, err := fsat.Open(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Output reads what a command wrote to a stream, "stdout" or "stderr", from an
// offset on; with follow until the command has ended. Closing it wakes a reader
// that waits.
func (b *Boxes) Output(name, exec, stream string, offset int64, follow bool) (io.ReadCloser, error) {
	if stream != "stdout" && stream != "stderr" {
		return nil, &api.Error{Code: api.Invalid, Text: fmt.Sprintf("%q is no stream; it is stdout or stderr", stream)}
	}
	if offset < 0 {
		return nil, &api.Error{Code: api.Invalid, Text: "offset must not be negative"}
	}
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	if id, err := strconv.ParseUint(exec, 10, 32); err == nil {
		if s := h.reading(uint32(id)); s != nil {
			return s.reader(stream, offset, follow), nil
		}
	}
	e, id, err := h.execOf(exec)
	if err != nil {
		return nil, err
	}
	out := e.Outcome
	text, encoded, path := out.Stdout, out.StdoutBase64, out.StdoutPath
	if stream == "stderr" {
		text, encoded, path = out.Stderr, out.StderrBase64, out.StderrPath
	}
	if path == "" && encoded == "" && text == "" || path != "" {
		// Of a command whose end nobody saw there may be a file all the same.
		file, err := h.openOutput(id, stream)
		switch {
		case err == nil:
			if _, err := file.Seek(offset, io.SeekStart); err != nil {
				file.Close()
				return nil, err
			}
			return file, nil
		case path != "":
			return nil, fmt.Errorf("%s of command %s of box %s is gone: %w", stream, exec, h.id, err)
		}
	}
	content := []byte(text)
	if encoded != "" {
		if content, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return nil, fmt.Errorf("%s of command %s of box %s: %w", stream, exec, h.id, err)
		}
	}
	return io.NopCloser(bytes.NewReader(content[min(offset, int64(len(content))):])), nil
}
