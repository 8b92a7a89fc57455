package box

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/layers"
	"hutch/internal/outcome"
	"hutch/internal/plan"
	"hutch/internal/policy"
	"hutch/internal/supervise"
	"hutch/internal/workspace"
)

// resident is the jail of a box that lives. It is made without the box's branch,
// and so before anybody knows of which box.
type resident struct {
	cell
	at      string // the workspace's path
	ns      *jail.Namespaces
	live    *supervise.Live
	root    int         // of the box, for access to its files; -1
	branch  int         // root of the branch as the box sees it; -1
	base    int         // directory of boxes, where what the disk limit counts lies; -1
	hold    layers.Hold // on the frozen layers that it has mounted
	env     []string
	keepers *keepers

	log     *execLog
	mu      sync.Mutex
	running map[uint32]*Started
	tracked sync.WaitGroup // commands whose end is not recorded yet
}

// jailName begins the name of a jail's own directory, which lies among the
// boxes: one that is neither locked nor recorded is what a crash left, and is
// cleared as such. No id of a box begins so.
const jailName = ".jail-"

// settling is how long the kernel may take to make a jail.
const settling = time.Minute

// inhabit makes a jail. On an error nothing is left of it.
func (b *Boxes) inhabit(ctx context.Context, r recipe, ws *workspace.Workspace) (_ *resident, err error) {
	j := &resident{cell: newCell(r.request, outcome.New()), at: ws.Path, root: -1, branch: -1, base: -1, keepers: &b.keepers, running: map[uint32]*Started{}}
	j.id, j.resident, j.policy, j.ws, j.state = newID(), true, *r.force, ws, b.store.Path
	j.out.Strategy = string(workspace.Overlay)
	if j.dir, err = createDir(r.base, jailName+j.id); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settling, fmt.Errorf("the kernel did not make the box within %v", settling))
	defer cancel()
	for {
		if err = j.attempt(ctx); err == nil {
			j.ws = nil // the caller's
			return j, nil
		}
		j.abolish()
		j.live = nil
		var step *jail.StepError
		if !errors.As(err, &step) || !j.yield(step) {
			break
		}
		if err = j.clearLayers(); err != nil {
			break
		}
	}
	err = explain(err)
	if cleanup := j.dir.remove(); cleanup != nil {
		err = errors.Join(err, cleanup)
	}
	j.dir.close()
	return nil, err
}

// attempt makes the jail, all but the branch.
func (j *resident) attempt(ctx context.Context) error {
	if err := j.spawn(); err != nil {
		return err
	}
	if err := j.look(); err != nil {
		return err
	}
	if err := j.furnish(); err != nil {
		return err
	}
	view, err := j.plan.View()
	if err != nil {
		return err
	}
	if j.ns, err = j.box.Namespaces(); err != nil {
		return err
	}
	if l := j.policy; l.Disk > 0 || l.Files > 0 {
		if j.base, err = unix.Open(filepath.Dir(j.dir.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
		j.disk = &supervise.Disk{Dir: j.base, Bytes: l.Disk, Files: l.Files}
	}
	if j.live, err = supervise.Follow(j.box, j.group, supervise.FollowOptions{Owner: j.owner(), Limits: j.watched()}); err != nil {
		return err
	}
	if err := j.box.Send(view); err != nil {
		return err
	}
	if err := j.live.Ready(ctx); err != nil {
		return err
	}
	if j.root = j.live.TakeFD(plan.TagRoot); j.root < 0 {
		return errors.New("the box did not hand out its root")
	}
	j.came(j.live.Missing(), nil)
	return nil
}

// abolish ends the jail's processes and lets go of all but its directory.
func (j *resident) abolish() {
	if j.live != nil {
		j.live.Kill()
		_ = j.live.Reap()
		j.box = nil
	}
	j.abandon()
	if j.ns != nil {
		j.ns.Close()
		j.ns = nil
	}
	for _, fd := range []*int{&j.root, &j.branch, &j.base} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	j.hold.Release()
	j.hold = nil
}

// awake returns the jail of a box, made where there is none, with h.mu held for
// reading.
func (b *Boxes) awake(ctx context.Context, h *held) (*resident, error) {
	for {
		h.mu.RLock()
		if j, ok := h.live.(*resident); ok && !j.isGone() {
			return j, nil
		}
		h.mu.RUnlock()
		if err := b.wake(ctx, h); err != nil {
			return nil, err
		}
	}
}

// wake makes the jail of a quiet box.
func (b *Boxes) wake(ctx context.Context, h *held) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if j, ok := h.live.(*resident); ok {
		if !j.isGone() {
			return nil
		}
		h.end() // it ended by itself, and whoever waits for that comes later
	}
	select {
	case <-b.closing:
		return &api.Error{Code: api.Full, Text: "hutchd is ending; start it again"}
	default:
	}
	if err := h.may(api.Busy); err != nil {
		return err
	}
	defer b.pool.request()()
	terms, err := h.terms()
	if err != nil {
		return err
	}
	ws, err := workspace.Reopen(string(h.record.RawWorkspace))
	if err != nil {
		return ofBox(h.id, err)
	}
	defer ws.Close()
	if err := b.store.recover(ws.FD); err != nil {
		return err
	}
	if err := h.stillHides(ws, terms); err != nil {
		return err
	}
	j, err := b.jailFor(ctx, recipe{request(terms.Create), &terms.InForce, filepath.Dir(h.path)}, ws)
	if err != nil {
		return err
	}
	if err := j.receive(h, ws, terms.Require); err != nil {
		j.End()
		return err
	}
	h.attach(j)
	b.mu.Lock()
	h.users++ // the jail's
	b.mu.Unlock()
	b.work.Go(func() { b.watch(h, j) })
	return nil
}

// stillHides refuses to show what the policy hides, and what was not there when
// the branch was made without it.
func (h *held) stillHides(ws *workspace.Workspace, t *terms) error {
	if len(t.InForce.Hide) == 0 || h.record.Form != changeset.Overlay {
		return nil
	}
	hidden, err := hiddenFrom(ws, &t.InForce, h.boxes.store.Path, request(t.Create))
	if err != nil {
		return err
	}
	known := h.record.hidden()
	hidden = slices.DeleteFunc(hidden, func(path string) bool {
		return fsat.Within(path, ".hutch") || slices.ContainsFunc(known, func(above string) bool { return fsat.Within(path, above) })
	})
	if len(hidden) == 0 {
		return nil
	}
	s, err := h.layers()
	if err != nil {
		return err
	}
	over := []int{}
	defer func() {
		for _, fd := range over {
			unix.Close(fd)
		}
	}()
	own, err := fsat.OpenDir(h.fd, h.record.Layer)
	if err != nil {
		return stateError(err)
	}
	over = append(over, own)
	for _, id := range h.record.Layers {
		fd, err := s.OpenUpper(id)
		if err != nil {
			return err
		}
		over = append(over, fd)
	}
	for _, path := range hidden {
		// What the box has in its place is its own.
		if !slices.ContainsFunc(over, func(layer int) bool { _, err := fsat.Lstat(layer, path); return err == nil }) {
			return &api.Error{Code: api.Refused, Text: fmt.Sprintf("box %s would see %q, which its policy hides: it is in the workspace only since the box was made; make another box, or move the file away", h.id, path)}
		}
	}
	return nil
}

// receive gives the jail its box.
func (j *resident) receive(h *held, ws *workspace.Workspace, require []string) error {
	for _, what := range require {
		if slices.Contains(j.out.Missing, what) {
			return &api.Error{Code: api.Unsupported, Text: fmt.Sprintf("box %s asked for %s, which this host does not give; nothing was run", h.id, what)}
		}
	}
	branch, err := h.branch()
	if err != nil {
		return err
	}
	j.hold = branch.hold
	if err := j.mount(branch, false); err != nil {
		return ofBox(h.id, err)
	}
	j.ws = ws
	j.env = j.environ(h.id)
	j.ws = nil
	j.log = newExecLog(h.dir)
	return nil
}

// watch waits for the end of a jail, and then lets go of its box.
func (b *Boxes) watch(h *held, j *resident) {
	<-j.live.Gone()
	h.mu.Lock()
	if h.live == j {
		h.end()
	}
	h.mu.Unlock()
	b.letGo(h)
}

func (j *resident) isGone() bool {
	select {
	case <-j.live.Gone():
		return true
	default:
		return false
	}
}

// Quiet reports whether no process but PID 1 is there.
func (j *resident) Quiet() bool { return j.live.Quiet() }

// Freeze stops every process of the box until thaw is called.
func (j *resident) Freeze() (thaw func(), err error) { return j.live.Freeze() }

// Root is the root of the mounted branch, open; -1 when there is none.
func (j *resident) Root() int { return j.branch }

// Remount puts another branch in the place of the one that is mounted.
func (j *resident) Remount(b branch) error {
	err := j.mount(b, true)
	if err != nil {
		b.hold.Release()
		return err
	}
	j.hold.Release()
	j.hold = b.hold
	return nil
}

// shortUse bounds how long a mount is in use that no process of the box uses.
const shortUse = 64 * time.Millisecond

// mount mounts a branch where the workspace is in the box.
func (j *resident) mount(b branch, replace bool) error {
	if !j.policy.FSRead {
		return nil // an empty directory lies there
	}
	r := jail.Remount{
		NS: j.ns, Lower: b.lower, Upper: b.upper, Work: b.work, Tree: b.tree, Options: policy.BranchOptions(b.trusted), Attr: policy.BranchAttr(j.policy.FSWrite), Target: j.at, Replace: replace,
	}
	for _, lower := range b.lower {
		var st unix.Stat_t
		if err := unix.Lstat(lower, &st); err != nil {
			return fmt.Errorf("layer %s: %w", lower, err)
		}
		r.LowerID = append(r.LowerID, [2]uint64{st.Dev, st.Ino})
	}
	if replace {
		var err error
		if r.Was, err = jail.MountID(j.branch); err != nil {
			return err
		}
		// Open, it would keep the old mount in use.
		syscall.ForkLock.RLock()
		unix.Close(j.branch)
		syscall.ForkLock.RUnlock()
		j.branch = -1
	}
	root, err := j.keepers.remount(r)
	// A process that is being started has a copy of every descriptor that we had
	// in there: until its exec, and the kernel lets us go on before it is through
	// with that.
	for wait := time.Millisecond; errors.Is(err, jail.ErrBusyMount) && wait < shortUse; wait *= 2 {
		time.Sleep(wait)
		root, err = j.keepers.remount(r)
	}
	if err != nil {
		switch {
		case errors.Is(err, jail.ErrLostMount):
			j.live.Kill() // what runs there has lost its files
		case replace:
			j.branch, _ = openInRoot(j.root, j.at, unix.O_PATH|unix.O_DIRECTORY)
		}
		return err
	}
	j.branch = root
	return j.boundDisk(b)
}

// boundDisk makes the limit of what the layers take that of a branch.
func (j *resident) boundDisk(b branch) error {
	if j.disk == nil {
		return nil
	}
	var names []string
	for _, path := range append([]string{b.upper, b.work, b.tree}, j.plan.CacheDirs...) {
		if rel, ok := strings.CutPrefix(path, filepath.Dir(j.dir.path)+"/"); ok {
			names = append(names, rel)
		}
	}
	return j.live.SetDisk(names)
}

// End ends every process of the box, and with them what is mounted in it. The
// commands that ran have their ends recorded when it returns.
func (j *resident) End() {
	if j.live != nil {
		j.live.Kill()
	}
	j.tracked.Wait()
	j.abolish()
	if j.log != nil {
		j.log.close()
	}
	_ = j.dir.remove()
	j.dir.close()
}

// track counts a command in, until its end is recorded.
func (j *resident) track(s *Started) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running[s.id] = s
	j.tracked.Add(1)
}

func (j *resident) untrack(s *Started) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.running, s.id)
	j.tracked.Done()
}

func (j *resident) isRunning(id uint32) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.running[id] != nil
}

// runningNow tells of the commands that run, the first first.
func (j *resident) runningNow() []api.Exec {
	j.mu.Lock()
	defer j.mu.Unlock()
	list := []api.Exec{}
	for _, s := range j.running {
		if e := s.Exec(); e.Running {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b api.Exec) int { return a.Started.Compare(b.Started) })
	return list
}

// lives returns the box's jail; nil where it has none.
func (h *held) lives() *resident {
	h.mu.RLock()
	defer h.mu.RUnlock()
	j, _ := h.live.(*resident)
	return j
}

// running are the commands of the box whose end is not recorded.
func (h *held) running() map[uint32]*Started {
	all := map[uint32]*Started{}
	if j := h.lives(); j != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		for id, s := range j.running {
			all[id] = s
		}
	}
	return all
}

// reading returns a command that runs, for a reader of its output; nil where it
// does not.
func (h *held) reading(id uint32) *Started {
	j := h.lives()
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.running[id]
	if s != nil {
		s.readers.Add(1)
	}
	return s
}

// Processes lists what runs in a box; nothing in one that is quiet.
func (b *Boxes) Processes(name string) ([]api.Process, error) {
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	list := []api.Process{}
	j := h.lives()
	if j == nil {
		return list, nil
	}
	for _, p := range j.live.Processes() {
		one := api.Process{
			PID: p.PID, HostPID: p.Host, PPID: p.Parent, Name: printable(p.Name), Argv: clip(p.Argv), State: string(rune(p.State)),
			RSS: p.RSS, CPUMS: float64(p.CPU.Microseconds()) / 1000, Started: p.Started,
		}
		if one.Argv == nil {
			one.Argv = []string{}
		}
		if p.Exec != 0 {
			one.Exec = fmt.Sprint(p.Exec)
		}
		list = append(list, one)
	}
	return list, nil
}

// Kill sends a signal to what runs in a box: a command, with all it started where
// the signal is KILL; one process; or everything.
func (b *Boxes) Kill(name string, k api.Kill) error {
	sig, err := parseSignal(k.Signal)
	if err != nil {
		return err
	}
	chosen := 0
	for _, is := range []bool{k.Exec != "", k.PID != 0, k.All} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return &api.Error{Code: api.Invalid, Text: "name what to end: a command, a process, or all of the box"}
	}
	h, err := b.hold(name)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	j := h.lives()
	switch {
	case j == nil && k.All:
		return nil
	case j == nil:
		return &api.Error{Code: api.NotFound, Text: fmt.Sprintf("nothing runs in box %s", h.id)}
	case k.Exec != "":
		return j.killExec(h.id, k.Exec, sig)
	case k.PID != 0:
		if err := j.live.SignalProcess(k.PID, sig); err != nil {
			return &api.Error{Code: api.NotFound, Text: fmt.Sprintf("box %s: %v", h.id, err)}
		}
	case sig == unix.SIGKILL:
		ending := j.commands()
		j.live.KillAll()
		for _, s := range ending {
			<-s.ended // the box is quiet for whoever asks next
		}
	default:
		j.live.SignalAll(sig)
	}
	return nil
}

// commands are those whose end is not recorded yet.
func (j *resident) commands() []*Started {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Values(j.running))
}

func (j *resident) killExec(box, exec string, sig unix.Signal) error {
	for _, r := range j.live.Running() {
		if fmt.Sprint(r.ID()) != exec {
			continue
		}
		if sig != unix.SIGKILL {
			r.Signal(sig)
			return nil
		}
		ending := j.commands()
		r.Kill(supervise.Interrupted)
		for _, s := range ending {
			if s.id == r.ID() {
				<-s.ended
			}
		}
		return nil
	}
	return &api.Error{Code: api.NotFound, Text: fmt.Sprintf("no command %s runs in box %s", exec, box)}
}

// Release ends a box's jail, with what was left running, and lets go of the box:
// another process may take it. A box whose commands run is not quiet.
func (b *Boxes) Release(name string) error {
	h, err := b.hold(name)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	if j, ok := h.live.(*resident); ok {
		j.mu.Lock()
		n := len(j.running)
		j.mu.Unlock()
		if n > 0 {
			return &api.Error{Code: api.NotQuiet, Text: fmt.Sprintf("commands run in box %s (%d of them); wait for them, or end them with `hutch box kill %s`", h.id, n, h.id)}
		}
	}
	h.end()
	return nil
}

// drain waits until no command runs in any box, or ctx ends. No command is
// started any more.
func (b *Boxes) drain(ctx context.Context) {
	b.closeOnce.Do(func() {
		close(b.closing)
		b.pool.close()
	})
	for _, h := range b.all() {
		j := h.lives()
		if j == nil {
			continue
		}
		done := make(chan struct{})
		go func() { j.tracked.Wait(); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// keepers is what mounts branches in boxes for this process, started when it is
// first wanted, and again should it have ended.
type keepers struct {
	mu     sync.Mutex
	keeper *jail.Keeper
}

func (k *keepers) get() (*jail.Keeper, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeper != nil {
		return k.keeper, nil
	}
	var err error
	k.keeper, err = jail.StartKeeper()
	return k.keeper, err
}

func (k *keepers) remount(r jail.Remount) (int, error) {
	keeper, err := k.get()
	if err != nil {
		return -1, err
	}
	return keeper.Remount(r)
}

func (k *keepers) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keeper != nil {
		_ = k.keeper.Close()
		k.keeper = nil
	}
}

var _ jailed = (*resident)(nil)
