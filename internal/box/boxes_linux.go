package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/layers"
)

// Boxes are the boxes of one state directory as one process sees them. Its
// methods may be called from many goroutines at once. A box is given as its id,
// an unambiguous beginning of that, or its name. Errors that a caller may want
// to tell apart are *api.Error.
type Boxes struct {
	store *Store
	opts  Options
	work  sync.WaitGroup // what is done in the background

	keepers   keepers
	workers   workers
	pool      *pool
	closing   chan struct{} // closed when nothing is started any more
	closeOnce sync.Once

	mu   sync.Mutex
	open map[string]*held // by id

	layersMu sync.Mutex
	layers   map[string]*layers.Store // by the directory of boxes that they lie beside
}

// OpenBoxes opens the state directory, making it where it is missing.
func OpenBoxes(o Options) (*Boxes, error) {
	store, err := OpenStore()
	if err != nil {
		return nil, err
	}
	b := &Boxes{store: store, opts: o, open: map[string]*held{}, closing: make(chan struct{}), workers: make(workers)}
	b.pool = newPool(b, o.Pool)
	if o.Pool > 0 { // it is there for long, and what a crash left of one like it, nobody else may clear soon
		b.work.Go(b.sweep)
	}
	return b, nil
}

// sweep clears what crashes left: now, and again when what the last one left is
// old enough to be nobody's.
func (b *Boxes) sweep() {
	for pause := settled + time.Second; ; {
		jail.SweepCgroups()
		for _, base := range b.store.bases() {
			b.store.sweep(base)
		}
		b.store.sweepNames()
		_, _ = b.store.collectLayers() // what cannot be removed is still there for `hutch gc`, which says why
		if pause == 0 {
			return
		}
		select {
		case <-b.closing:
			return
		case <-time.After(pause):
			pause = 0
		}
	}
}

// Store is the state directory with its receipts.
func (b *Boxes) Store() *Store { return b.store }

// Close ends the boxes that live in this process: it waits until their commands
// have ended, or ctx has, and then for what is done in the background.
func (b *Boxes) Close(ctx context.Context) error {
	b.drain(ctx)
	// However little time is left: what the layers saw of the workspace is known
	// only as long as they are mounted.
	var ending sync.WaitGroup
	boxes := make(chan *held)
	for range 8 {
		ending.Go(func() {
			for h := range boxes {
				h.mu.Lock()
				h.end()
				h.mu.Unlock()
			}
		})
	}
	for _, h := range b.all() {
		boxes <- h
	}
	close(boxes)
	ending.Wait()
	done := make(chan struct{})
	go func() { b.work.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(goodbye):
			return context.Cause(ctx)
		}
	}
	for _, s := range b.layers {
		s.Close()
	}
	b.keepers.close()
	b.store.Close()
	return nil
}

// goodbye is how long what is done in the background may take after all when
// boxes are closed in a hurry.
const goodbye = time.Second

// all lists the boxes that this process holds.
func (b *Boxes) all() []*held {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.open))
}

// branch is what is to be mounted at the workspace's path: names and numbers of
// directories that are there.
type branch struct {
	lower       []string // absolute, the topmost first, the workspace last
	upper, work string   // absolute; for an overlay
	tree        string   // absolute; instead of an overlay
	trusted     bool
	hold        layers.Hold // on the frozen ones of lower: whose mount it becomes lets go of it
}

// jailed is the jail of a live box, as what is done to its layers needs it.
type jailed interface {
	// Quiet reports whether no process but PID 1 is there.
	Quiet() bool
	// Freeze stops every process of the box until thaw is called.
	Freeze() (thaw func(), err error)
	// Root is the root of the mounted workspace, open; -1 when there is none.
	Root() int
	// Remount puts another branch in the place of the one that is mounted.
	// On an error the old one is still there. The box is quiet.
	Remount(branch) error
	// End ends the box's processes and lets go of its mounts.
	End()
}

// held is a box that this process holds: its directory is locked.
type held struct {
	*dir
	boxes *Boxes
	users int // guarded by Boxes.mu

	// mu is held while layers or the record change, and for reading while a
	// command is started, so that a box stays quiet for who found it so.
	mu     sync.RWMutex
	record *Record
	live   jailed // nil for a quiet box
	gone   bool   // it has ended
	// flattening: its layers are made one.
	flattening bool

	markMu sync.Mutex
	mark   mark
	markFD int // -1 until something runs
	// interrupted: whoever held the box before died while commands ran.
	interrupted bool
}

// patience is how long a box that another process holds is waited for: other
// commands that only look are done by then.
const patience = 200 * time.Millisecond

// hold finds a box, and locks it for this process. Whoever holds it must let it
// go.
func (b *Boxes) hold(name string) (*held, error) {
	deadline := time.Now().Add(patience)
	for {
		h, err := b.tryHold(name)
		if !errors.Is(err, errBusy) {
			return h, err
		}
		if time.Now().After(deadline) {
			return nil, told{errBusy, &api.Error{Code: api.InUse, Text: fmt.Sprintf("box %s is %v; if that is hutchd, ask it, or let go of the box with `hutch box release %s`", name, errBusy, name)}}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// told is an error of this room, as those outside of it are told.
type told struct {
	is error
	as *api.Error
}

func (e told) Error() string { return e.as.Error() }

func (e told) Unwrap() []error { return []error{e.as, e.is} }

func (b *Boxes) tryHold(name string) (*held, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.open[name]
	if h == nil {
		path, err := b.store.find(name)
		if err != nil {
			return nil, err
		}
		if h = b.open[filepath.Base(path)]; h == nil {
			d, err := openDir(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil, noBox(name)
			}
			if err != nil {
				return nil, err
			}
			if h, err = b.take(d); err != nil {
				d.close()
				return nil, err
			}
		}
	}
	h.users++
	return h, nil
}

// take makes a locked directory a box of this process. Boxes.mu is held.
func (b *Boxes) take(d *dir) (*held, error) {
	r, err := d.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &api.Error{Code: api.NotFound, Text: fmt.Sprintf("box %s was left behind by a crash and holds nothing to keep; `hutch gc` clears it", d.id)}
	}
	if err != nil {
		return nil, err
	}
	h := &held{dir: d, boxes: b, record: r, markFD: -1}
	if text, err := d.readFile(markName); err == nil {
		h.mark = parseMark(text)
	}
	err = h.mend()
	if err == nil && h.mark.Live { // it held the lock, and we have it
		h.interrupted = h.mark.Running > 0
		// What the own layer came to hold since it was last looked at did not
		// stand in the workspace for all we know.
		if r.Form == changeset.Overlay {
			err = h.look(-1)
		}
		if err == nil {
			h.mark.Live, h.mark.Running = false, 0
			h.writeMark()
		}
	}
	if err != nil {
		h.closeMark()
		return nil, err
	}
	b.open[d.id] = h
	return h, nil
}

// letGo is the end of a verb on a box: the lock goes with the last, unless the
// box lives in this process.
func (b *Boxes) letGo(h *held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.users--; h.users > 0 { // one of them is the box's jail
		return
	}
	if b.open[h.id] == h {
		delete(b.open, h.id)
	}
	h.closeMark()
	h.close()
}

// end ends the jail of a live box. h.mu is held.
func (h *held) end() {
	if h.live == nil {
		return
	}
	// What is not seen now is unknown from now on: then times alone decide.
	_ = h.see()
	h.kill()
}

// kill is end where nobody will ask what the branch saw.
func (h *held) kill() {
	if h.live == nil {
		return
	}
	h.live.End()
	h.live = nil
	h.remark(func(m *mark) { m.Live, m.Running = false, 0 })
}

// state is where the box stands.
func (h *held) state() api.State {
	h.markMu.Lock()
	defer h.markMu.Unlock()
	return h.mark.over(h.record.State)
}

// may reports whether the box can move to a state from where it is.
func (h *held) may(to api.State) error {
	if h.gone {
		return noBox(h.id)
	}
	return move(h.id, h.state(), to)
}

const markName = "state"

// remark changes the mark, in memory and in place on disk: nothing is flushed,
// so that it costs 2 µs.
func (h *held) remark(change func(*mark)) {
	h.markMu.Lock()
	defer h.markMu.Unlock()
	change(&h.mark)
	h.writeMark()
}

func (h *held) writeMark() {
	if h.markFD < 0 {
		fd, err := fsat.Open(h.fd, markName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return // the box's own disk is full: what it says is lost at a crash only
		}
		h.markFD = fd
	}
	_, _ = unix.Pwrite(h.markFD, h.mark.encode(), 0)
}

func (h *held) closeMark() {
	if h.markFD >= 0 {
		unix.Close(h.markFD)
		h.markFD = -1
	}
}

// begin notes that a command starts, and gives it its number. The first makes
// a created box ready; it is busy while one runs.
func (h *held) begin() (exec uint32, err error) {
	if err := h.may(api.Busy); err != nil {
		return 0, err
	}
	h.remark(func(m *mark) {
		m.Running++
		m.Execs++
		exec = m.Execs
	})
	return exec, nil
}

// finish notes that a command has ended.
func (h *held) finish() {
	h.remark(func(m *mark) { m.Running = max(0, m.Running-1) })
}

// attach makes the box a live one. h.mu is held.
func (h *held) attach(j jailed) {
	h.live = j
	h.remark(func(m *mark) { m.Live, m.Running, m.PID, m.Started = true, 0, os.Getpid(), ownStart() })
}

var ownStart = sync.OnceValue(func() uint64 { return startOf(os.Getpid()) })

// startOf is when a process began, in ticks since boot; 0: there is none.
func startOf(pid int) uint64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text[max(0, strings.LastIndexByte(string(text), ')')):]), " ")
	const start = 22 - 3 // proc_pid_stat(5): field 22; rest begins with field 3
	fields := strings.Fields(rest)
	if len(fields) <= start || fields[0] == "Z" || fields[0] == "X" { // ended, and not yet reaped
		return 0
	}
	began, _ := strconv.ParseUint(fields[start], 10, 64)
	return began
}

// readMark reads the mark of a box that another process may hold. What a
// process that is gone left of it is no life.
func readMark(path string) mark {
	text, err := os.ReadFile(filepath.Join(path, markName))
	if err != nil {
		return mark{}
	}
	m := parseMark(text)
	if m.Live && startOf(m.PID) != m.Started {
		m.Live, m.Running = false, 0
	}
	return m
}

func noBox(name string) error {
	return &api.Error{Code: api.NotFound, Text: fmt.Sprintf("no box %s; see `hutch box list`", name)}
}

// find returns the path of a box's directory.
func (s *Store) find(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, "/.\x00") {
		return "", &api.Error{Code: api.NotFound, Text: fmt.Sprintf("%q is not the id of a box; see `hutch box list`", name)}
	}
	bases := s.bases()
	exact := func(id string) string {
		for _, base := range bases {
			path := filepath.Join(base, id)
			if st, err := os.Lstat(path); err == nil && st.IsDir() {
				return path
			}
		}
		return ""
	}
	if path := exact(name); path != "" {
		return path, nil
	}
	if id, err := os.Readlink(filepath.Join(s.Path, "names", name)); err == nil && isID(id) {
		if path := exact(id); path != "" {
			return path, nil
		}
	}
	var found []string
	for _, base := range bases {
		entries, _ := os.ReadDir(base)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), name) {
				found = append(found, filepath.Join(base, e.Name()))
			}
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", &api.Error{Code: api.Ambiguous, Text: fmt.Sprintf("%s is the beginning of %d boxes' ids; give more of it", name, len(found))}
	}
	if r, err := s.ended(name); err == nil {
		return "", move(r.ID, r.State, api.Busy)
	}
	return "", noBox(name)
}

// named gives a box its name, which no other may have.
func (s *Store) named(name, id string) error {
	if name == "" {
		return nil
	}
	if err := checkName("the name of a box", name); err != nil {
		return err
	}
	names := filepath.Join(s.Path, "names")
	if err := os.Mkdir(names, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return stateError(err)
	}
	unlock, err := lockNames(names)
	if err != nil {
		return stateError(err)
	}
	defer unlock()
	link := filepath.Join(names, name)
	if old, err := os.Readlink(link); err == nil {
		if s.holds(old) {
			return &api.Error{Code: api.Exists, Text: fmt.Sprintf("box %s has the name %s; choose another, or drop that box", old, name)}
		}
		if err := os.Remove(link); err != nil {
			return stateError(err)
		}
	}
	if err := os.Symlink(id, link); err != nil {
		return stateError(err)
	}
	return nil
}

func lockNames(path string) (unlock func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		dir.Close()
		return nil, err
	}
	return func() {
		_ = unix.Flock(int(dir.Fd()), unix.LOCK_UN) // a process that is being started has a copy of it
		dir.Close()
	}, nil
}

// sweepNames drops the names that crashes left of boxes which are gone.
func (s *Store) sweepNames() {
	names := filepath.Join(s.Path, "names")
	unlock, err := lockNames(names)
	if err != nil {
		return
	}
	defer unlock()
	entries, _ := os.ReadDir(names)
	for _, e := range entries {
		if id, err := os.Readlink(filepath.Join(names, e.Name())); err == nil && !s.holds(id) {
			_ = os.Remove(filepath.Join(names, e.Name()))
		}
	}
}

// holds reports whether there is a box, or one is being made: not what a crash left
// of one, which has no record and is nobody's.
func (s *Store) holds(id string) bool {
	for _, base := range s.bases() {
		path := filepath.Join(base, id)
		if _, err := os.Lstat(filepath.Join(path, recordName)); err == nil {
			return true
		}
		d, err := openDir(path)
		if err == nil {
			d.close()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

func (s *Store) unnamed(name, id string) {
	if link := filepath.Join(s.Path, "names", name); name != "" {
		if at, err := os.Readlink(link); err == nil && at == id {
			_ = os.Remove(link)
		}
	}
}

// List lists the boxes, the oldest first; with all, those that have ended too.
func (b *Boxes) List(all bool) ([]api.Box, error) {
	boxes := []api.Box{}
	for _, base := range b.store.bases() {
		entries, err := os.ReadDir(base)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if box := b.look(filepath.Join(base, e.Name())); box != nil {
				boxes = append(boxes, *box)
			}
		}
	}
	if all {
		for _, r := range b.store.allEnded() {
			boxes = append(boxes, r.api(mark{}))
		}
	}
	slices.SortStableFunc(boxes, func(x, y api.Box) int { return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.ID, y.ID)) })
	return boxes, nil
}

// Show tells what is known of a box, one that has ended too.
func (b *Boxes) Show(name string) (*api.Box, error) {
	path, err := b.store.find(name)
	if err != nil {
		if r, ended := b.store.ended(name); ended == nil {
			box := r.api(mark{})
			return &box, nil
		}
		return nil, err
	}
	if box := b.look(path); box != nil {
		return box, nil
	}
	return nil, noBox(name)
}

// look reads what is known of a box without holding it; nil where there is none.
func (b *Boxes) look(path string) *api.Box {
	b.mu.Lock()
	h := b.open[filepath.Base(path)]
	if h != nil {
		h.users++
	}
	b.mu.Unlock()
	if h != nil {
		defer b.letGo(h)
		if h.mu.TryRLock() { // else something long is done to it
			defer h.mu.RUnlock()
			return h.api()
		}
	}
	text, err := os.ReadFile(filepath.Join(path, recordName))
	if err != nil {
		return nil
	}
	r, err := parseRecord(text)
	if err != nil {
		return nil
	}
	box := r.api(readMark(path))
	return &box
}

// api tells what is known of a box. h.mu is held, if only for reading.
func (h *held) api() *api.Box {
	if h.gone {
		return nil
	}
	h.markMu.Lock()
	m := h.mark
	h.markMu.Unlock()
	box := h.record.api(m)
	if j, ok := h.live.(*resident); ok {
		box.Running = j.runningNow()
	}
	return &box
}
