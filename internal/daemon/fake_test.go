package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/changeset"
	"hutch/internal/outcome"
)

// memory is Boxes without a kernel: it behaves as boxes do, with files in a map
// and commands that are functions.
//
//	true · false · echo TEXT · cat · sleep SECONDS · yes BYTES · put FILE TEXT ·
//	get FILE · stubborn (ignores INT) · daemonise · split (a character in halves)
type memory struct {
	mu     sync.Mutex
	boxes  map[string]*memBox
	next   int
	opened int // readers of output that were not closed
	// started tells each start of a command, where it is set.
	started func(box string, r api.Run)
	starts  int
}

type memBox struct {
	api.Box
	files       map[string]string
	checkpoints map[string]map[string]string
	execs       []*memExec
	left        int // processes that commands left behind
	listener    net.Listener
}

type memExec struct {
	m              *memory
	e              api.Exec
	stdout, stderr bytes.Buffer // under m.mu
	changed        chan struct{}
	signals        chan string
	sizes          []api.Size
	done           chan struct{}
	out            *outcome.Outcome
}

func newMemory() *memory { return &memory{boxes: map[string]*memBox{}} }

func (m *memory) find(ref string) (*memBox, error) {
	if b := m.boxes[ref]; b != nil {
		return b, nil
	}
	var found *memBox
	for id, b := range m.boxes {
		if b.Name == ref && !b.State.Ended() {
			return b, nil
		}
		if strings.HasPrefix(id, ref) {
			if found != nil {
				return nil, refuse(api.Ambiguous, "several boxes begin with "+ref)
			}
			found = b
		}
	}
	if found == nil || ref == "" {
		return nil, refuse(api.NotFound, fmt.Sprintf("no box %q: `hutch box list` shows them", ref))
	}
	return found, nil
}

func (m *memory) create(name string) *memBox {
	m.next++
	b := &memBox{files: map[string]string{}, checkpoints: map[string]map[string]string{}}
	b.Box = api.Box{ID: fmt.Sprintf("b%05d", m.next), Name: name, State: api.Created, Created: time.Now(), Checkpoints: []api.Checkpoint{}, Running: []api.Exec{}}
	m.boxes[b.ID] = b
	return b
}

func (m *memory) Create(_ context.Context, c api.Create) (*api.Box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		if c.Name != "" && b.Name == c.Name && !b.State.Ended() {
			return nil, refuse(api.Exists, "there is a box "+c.Name)
		}
	}
	b := m.create(c.Name)
	b.Workspace = c.Workspace
	if limit := c.Policy.Limits.Memory; limit != nil {
		b.Memory = int64(*limit)
	}
	shown := b.Box
	return &shown, nil
}

func (m *memory) List(all bool) ([]api.Box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []api.Box
	for _, b := range m.boxes {
		if all || !b.State.Ended() {
			list = append(list, b.Box)
		}
	}
	slices.SortFunc(list, func(a, b api.Box) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

func (m *memory) Show(id string) (*api.Box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	shown := b.Box
	return &shown, nil
}

// stop ends all that runs in a box.
func (m *memory) stop(id string) error {
	m.mu.Lock()
	b, err := m.find(id)
	if err != nil {
		m.mu.Unlock()
		return err
	}
	b.left = 0
	running := slices.Clone(b.execs)
	m.mu.Unlock()
	for _, e := range running {
		e.kill()
		<-e.done
	}
	return nil
}

func (e *memExec) kill() {
	select {
	case e.signals <- "KILL":
	case <-e.done:
	}
}

func (m *memory) end(id string, state api.State) error {
	if err := m.stop(id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return err
	}
	b.Live = false
	if state != "" {
		b.State = state
	}
	return nil
}

func (m *memory) Remove(id string) error {
	if err := m.stop(id); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err == nil {
		delete(m.boxes, b.ID)
	}
	return err
}

func (m *memory) Release(id string) error { return m.end(id, "") }

func (m *memory) Discard(_ context.Context, id string, force bool) error {
	if b, err := m.Show(id); err == nil && b.State == api.Busy && !force {
		return refuse(api.NotQuiet, "a command runs: end it, or force")
	}
	return m.end(id, api.Discarded)
}

func (m *memory) Checkpoint(_ context.Context, id, name string) (*api.Checkpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	if name == "" {
		name = "c" + strconv.Itoa(len(b.Checkpoints)+1)
	}
	b.checkpoints[name] = copyOf(b.files)
	c := api.Checkpoint{Name: name, Created: time.Now()}
	b.Checkpoints = append(b.Checkpoints, c)
	return &c, nil
}

func copyOf(files map[string]string) map[string]string {
	c := map[string]string{}
	for k, v := range files {
		c[k] = v
	}
	return c
}

func (m *memory) Restore(_ context.Context, id, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return err
	}
	files, ok := b.checkpoints[name]
	if !ok {
		return refuse(api.NotFound, "no checkpoint "+name)
	}
	if b.State == api.Busy || b.left > 0 {
		return refuse(api.NotQuiet, "processes run: end them first")
	}
	b.files = copyOf(files)
	return nil
}

func (m *memory) Fork(_ context.Context, id string, n int, names []string) ([]api.Box, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	var forks []api.Box
	for i := range n {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		f := m.create(name)
		f.files, f.Parent, f.Workspace = copyOf(b.files), b.ID, b.Workspace
		forks = append(forks, f.Box)
	}
	return forks, nil
}

func (m *memory) Commit(_ context.Context, id string, c api.Commit) (*box.Promoted, error) {
	m.mu.Lock()
	b, err := m.find(id)
	if err == nil && (b.State == api.Busy || b.left > 0) {
		err = refuse(api.NotQuiet, "processes run: end them first")
	}
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	if b.files["held"] != "" {
		m.mu.Unlock()
		p := box.NewPromoted()
		p.Kept = true
		return p, &box.HeldError{Box: id}
	}
	p := box.NewPromoted()
	for name := range b.files {
		p.Diff.FilesCreated = append(p.Diff.FilesCreated, name)
	}
	p.Kept = c.Keep
	m.mu.Unlock()
	if !c.Keep {
		return p, m.end(b.ID, api.Committed)
	}
	return p, nil
}

func (m *memory) View(_ context.Context, id string, _ bool, do func(*changeset.Changeset, changeset.Trees, box.Judge) error) error {
	if _, err := m.Show(id); err != nil {
		return err
	}
	return do(&changeset.Changeset{Digest: "blake3:0"}, changeset.Trees{Layer: -1, Workspace: -1, Picked: -1}, box.Judge(nil))
}

func (m *memory) Exec(_ context.Context, id string, r api.Run, s Streams) (Started, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	if b.State.Ended() {
		return nil, refuse(api.WrongState, "the box has ended")
	}
	if m.started != nil {
		m.started(b.ID, r)
	}
	m.starts++
	e := &memExec{m: m, changed: make(chan struct{}), signals: make(chan string, 8), done: make(chan struct{})}
	e.e = api.Exec{ID: strconv.Itoa(len(b.execs) + 1), Box: b.ID, Argv: r.Argv, Started: time.Now(), Running: true}
	b.execs = append(b.execs, e)
	b.Execs++
	b.Live, b.State = true, api.Busy
	b.Running = append(b.Running, e.e)
	go e.run(b, r, s)
	return e, nil
}

func (e *memExec) run(b *memBox, r api.Run, s Streams) {
	start := time.Now()
	code, err := e.act(b, r, s)
	out := outcome.New()
	out.ID, out.ExitCode, out.CommandExitCode, out.Status = b.ID, code, &code, outcome.Success
	out.DurationMS = float64(time.Since(start)) / 1e6
	if err != nil {
		out.Status, out.Signal, out.ExitCode, out.CommandExitCode = outcome.Killed, err.Error(), 130, nil
	} else if code != 0 {
		out.Status = outcome.Failed
	}
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	out.Stdout, out.Stderr, out.StdoutBytes = e.stdout.String(), e.stderr.String(), int64(e.stdout.Len())
	e.out, e.e.Outcome, e.e.Running = out, out, false
	b.Running = slices.DeleteFunc(slices.Clone(b.Running), func(x api.Exec) bool { return x.ID == e.e.ID })
	if len(b.Running) == 0 && b.State == api.Busy {
		b.State = api.Ready
	}
	close(e.done)
}

func (e *memExec) write(s io.Writer, kept *bytes.Buffer, p []byte) {
	e.m.mu.Lock()
	kept.Write(p)
	close(e.changed)
	e.changed = make(chan struct{})
	e.m.mu.Unlock()
	if s != nil {
		_, _ = s.Write(p)
	}
}

func (e *memExec) act(b *memBox, r api.Run, s Streams) (int, error) {
	stdin := s.Stdin
	if stdin == nil {
		stdin = strings.NewReader(r.Stdin)
	}
	arg := func(i int) string {
		if i < len(r.Argv) {
			return r.Argv[i]
		}
		return ""
	}
	say := func(p string) { e.write(s.Stdout, &e.stdout, []byte(p)) }
	switch arg(0) {
	case "true":
	case "false":
		return 1, nil
	case "daemonise":
		e.m.mu.Lock()
		b.left++
		e.m.mu.Unlock()
	case "echo":
		say(strings.Join(r.Argv[1:], " ") + "\n")
	case "complain":
		e.write(s.Stderr, &e.stderr, []byte("no\n"))
	case "split":
		say("a\xc3")
		time.Sleep(20 * time.Millisecond)
		say("\xa4 \xff")
	case "cat":
		lines := make(chan []byte)
		go func() {
			defer close(lines)
			for {
				p := make([]byte, 4096)
				n, err := stdin.Read(p)
				if n > 0 {
					lines <- p[:n]
				}
				if err != nil {
					return
				}
			}
		}()
		for {
			select {
			case p, ok := <-lines:
				if !ok {
					return 0, nil
				}
				say(string(p))
			case sig := <-e.signals:
				return 0, errors.New("SIG" + sig)
			}
		}
	case "yes":
		n, _ := strconv.Atoi(arg(1))
		piece := bytes.Repeat([]byte("y\n"), 16<<10)
		for n > 0 {
			k := min(n, len(piece))
			say(string(piece[:k]))
			n -= k
		}
	case "put":
		e.m.mu.Lock()
		b.files[arg(1)] = arg(2)
		e.m.mu.Unlock()
	case "get":
		e.m.mu.Lock()
		text := b.files[arg(1)]
		e.m.mu.Unlock()
		say(text)
	case "sleep", "stubborn":
		d, _ := strconv.ParseFloat(arg(1), 64)
		timer := time.NewTimer(time.Duration(d * float64(time.Second)))
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
				return 0, nil
			case sig := <-e.signals:
				if arg(0) == "stubborn" && sig == "INT" {
					continue
				}
				return 0, errors.New("SIG" + sig)
			}
		}
	default:
		return 127, nil
	}
	return 0, nil
}

func (e *memExec) Exec() api.Exec {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	return e.e
}

func (e *memExec) Wait(ctx context.Context) (*outcome.Outcome, error) {
	select {
	case <-e.done:
		return e.out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *memExec) Resize(s api.Size) error {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.sizes = append(e.sizes, s)
	return nil
}

func (e *memExec) Signal(name string) error {
	select {
	case e.signals <- name:
	case <-e.done:
	}
	return nil
}

func (m *memory) exec(id, exec string) (*memBox, *memExec, error) {
	b, err := m.find(id)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range b.execs {
		if e.e.ID == exec {
			return b, e, nil
		}
	}
	return nil, nil, refuse(api.NotFound, fmt.Sprintf("box %s has no command %s", b.ID, exec))
}

func (m *memory) Execs(id string) ([]api.Exec, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	var list []api.Exec
	for _, e := range b.execs {
		list = append(list, e.e)
	}
	return list, nil
}

func (m *memory) ExecOf(id, exec string) (*api.Exec, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, e, err := m.exec(id, exec)
	if err != nil {
		return nil, err
	}
	shown := e.e
	return &shown, nil
}

type memReader struct {
	e      *memExec
	buf    *bytes.Buffer
	offset int
	follow bool
	closed chan struct{}
	once   sync.Once
}

func (m *memory) Output(id, exec, stream string, offset int64, follow bool) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, e, err := m.exec(id, exec)
	if err != nil {
		return nil, err
	}
	r := &memReader{e: e, buf: &e.stdout, offset: int(offset), follow: follow, closed: make(chan struct{})}
	if stream == "stderr" {
		r.buf = &e.stderr
	}
	m.opened++
	return r, nil
}

func (r *memReader) Read(p []byte) (int, error) {
	for {
		r.e.m.mu.Lock()
		all, changed := r.buf.Bytes(), r.e.changed
		n := 0
		if r.offset < len(all) {
			n = copy(p, all[r.offset:])
			r.offset += n
		}
		running := r.e.e.Running
		r.e.m.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		if !running || !r.follow {
			return 0, io.EOF
		}
		select {
		case <-changed:
		case <-r.e.done:
		case <-r.closed:
			return 0, io.ErrClosedPipe
		}
	}
}

func (r *memReader) Close() error {
	r.once.Do(func() {
		r.e.m.mu.Lock()
		r.e.m.opened--
		r.e.m.mu.Unlock()
		close(r.closed)
	})
	return nil
}

func (m *memory) Processes(id string) ([]api.Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	var list []api.Process
	for _, e := range b.Running {
		list = append(list, api.Process{Exec: e.ID, Name: e.Argv[0], Argv: e.Argv})
	}
	for range b.left {
		list = append(list, api.Process{Name: "daemon", Argv: []string{"daemon"}})
	}
	return list, nil
}

func (m *memory) Kill(id string, k api.Kill) error {
	if k.All {
		return m.stop(id)
	}
	m.mu.Lock()
	_, e, err := m.exec(id, k.Exec)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if k.Signal == "" {
		k.Signal = "KILL"
	}
	return e.Signal(k.Signal)
}

func (m *memory) ReadFile(id, name string) (io.ReadCloser, *api.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, nil, err
	}
	text, ok := b.files[name]
	if !ok {
		return nil, nil, refuse(api.NotFound, "no file "+name)
	}
	return io.NopCloser(strings.NewReader(text)), &api.File{Name: path.Base(name), Path: name, Type: "file", Size: int64(len(text)), Mode: 0o644, ModTime: time.Now()}, nil
}

func (m *memory) WriteFile(id, name string, _ uint32, r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err == nil {
		b.files[name] = string(text)
	}
	return err
}

func (m *memory) ListDir(id, name string) ([]api.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return nil, err
	}
	var list []api.File
	for at := range b.files {
		if path.Dir(at) == path.Clean(name) {
			list = append(list, api.File{Name: path.Base(at), Path: at, Type: "file"})
		}
	}
	return list, nil
}

func (m *memory) MakeDir(id, _ string) error {
	_, err := m.Show(id)
	return err
}

func (m *memory) RemoveFile(id, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil {
		return err
	}
	if _, ok := b.files[name]; !ok {
		return refuse(api.NotFound, "no file "+name)
	}
	delete(b.files, name)
	return nil
}

func (m *memory) Ports(id string) ([]api.Port, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.find(id)
	if err != nil || b.listener == nil {
		return nil, err
	}
	return []api.Port{{Port: 80, Address: "127.0.0.1", Proto: "tcp"}}, nil
}

func (m *memory) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	m.mu.Lock()
	b, err := m.find(id)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if b.listener == nil || port != 80 {
		return nil, errors.New("connection refused")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", b.listener.Addr().String())
}

func (m *memory) Close(context.Context) error {
	list, _ := m.List(false)
	for _, b := range list {
		_ = m.Release(b.ID)
	}
	return nil
}
