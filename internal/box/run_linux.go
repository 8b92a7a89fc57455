package box

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/jail/filter"
	"hutch/internal/outcome"
	"hutch/internal/plan"
	"hutch/internal/policy"
	"hutch/internal/promote"
	"hutch/internal/supervise"
	"hutch/internal/workspace"
)

// run is the state of one Run.
type run struct {
	Request
	store  *Store
	out    *outcome.Outcome
	ws     *workspace.Workspace
	dir    *dir
	stamp  workspace.Stamp
	branch *workspace.Branch
	host   policy.Host
	user   policy.User
	env    []string
	result supervise.Result
	stdout *supervise.Capture
	stderr *supervise.Capture

	privileged, trusted bool
	apartCaches         bool     // each cache has an overlay of its own
	readOnly            []string // caches of which the kernel makes no overlay

	layer   int // directory of the layer; -1
	changes *changeset.Changeset
	keep    string // why the box must stay; "" when it need not
}

// Run runs one command on a branch of a workspace and returns what became of
// it. An outcome is returned in any case; the error, when there is one, is
// hutch's own and is in the outcome too.
func Run(req Request) (*outcome.Outcome, error) {
	out := &outcome.Outcome{
		Schema: outcome.Schema, ExitCode: outcome.ExitHutch, Status: outcome.Error, PeakMemorySource: "none", Layer: "disk",
		Missing: []string{}, Skipped: []changeset.Skipped{}, Held: []string{}, Flagged: []string{}, Conflicts: []promote.Conflict{}, Notes: []string{},
		Diff: outcome.Diff{FilesCreated: []string{}, FilesModified: []string{}, FilesDeleted: []string{}},
	}
	r := &run{Request: req, out: out, layer: -1}
	err := r.run()
	if err != nil && out.Error == "" {
		out.Error = err.Error()
	}
	return out, err
}

func (r *run) run() error {
	if len(r.Argv) == 0 {
		return errors.New("no command: give one after --, or --cmd STRING")
	}
	// PR_SET_PDEATHSIG is about the thread that made the box.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var err error
	if r.ws, err = workspace.Open(cmp.Or(r.Workspace, "."), r.Force); err != nil {
		return err
	}
	defer r.ws.Close()
	if r.store, err = OpenStore(); err != nil {
		return err
	}
	defer r.store.Close()
	if err := r.store.recover(r.ws.FD); err != nil {
		return err
	}
	base, err := r.store.base(r.LayerDir, r.ws.Path)
	if err != nil {
		return err
	}
	if r.dir, err = createDir(base); err != nil {
		return err
	}
	r.out.ID = r.dir.id
	defer r.dir.close()
	err = r.inBox()
	if r.keep == "" || r.branch == nil {
		if cleanup := r.dir.remove(); cleanup != nil && err == nil {
			r.note("the box's directory could not be removed: %v; `hutch gc` will try again", cleanup)
		}
	}
	r.store.sweep(base)
	return err
}

func (r *run) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}

// inBox does everything for which the box's directory exists.
func (r *run) inBox() error {
	var err error
	if r.user, err = policy.Target(policy.ID{UID: r.ws.Stat.UID, GID: r.ws.Stat.GID}, policy.ID{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, r.User); err != nil {
		return err
	}
	r.stdout = supervise.NewCapture(func() (*os.File, error) { return r.dir.createFile("stdout") }, r.Stdout)
	r.stderr = supervise.NewCapture(func() (*os.File, error) { return r.dir.createFile("stderr") }, r.Stderr)
	defer r.stdout.Close()
	defer r.stderr.Close()
	defer func() {
		for _, fd := range []int{r.layer, r.result.Workspace} {
			if fd > 2 {
				unix.Close(fd)
			}
		}
	}()
	if err := r.execute(); err != nil {
		return err
	}
	r.judge()
	if err := r.settle(); err != nil {
		r.out.Status, r.out.ExitCode, r.out.Error = outcome.Error, outcome.ExitHutch, err.Error()
		r.output()
		_ = r.record()
		return err
	}
	r.output()
	return r.record()
}

// view decides what the box sees and by which name it knows its home.
func (r *run) view() {
	home := r.user.Home
	if env := os.Getenv("HOME"); filepath.IsAbs(env) && r.user.UID == uint32(os.Geteuid()) {
		home = env
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	if home = filepath.Clean(home); home == "/" {
		home = "/tmp"
	}
	r.host = policy.Host{
		Home: home, Path: filepath.SplitList(os.Getenv("PATH")), Env: os.Environ(), Workspace: r.ws.Path, StateDir: r.store.Path,
	}
}

// strategies lists what to try, in order.
func (r *run) strategies() ([]workspace.Strategy, error) {
	switch r.Strategy {
	case "", workspace.Auto:
		if r.RAM {
			return []workspace.Strategy{workspace.Overlay}, nil
		}
		return []workspace.Strategy{workspace.Overlay, workspace.Reflink, workspace.Copy}, nil
	case workspace.Overlay:
		return []workspace.Strategy{workspace.Overlay}, nil
	case workspace.Reflink, workspace.Copy:
		if r.RAM {
			return nil, fmt.Errorf("--layer ram needs --strategy overlay, not %s", r.Strategy)
		}
		return []workspace.Strategy{r.Strategy}, nil
	}
	return nil, fmt.Errorf("unknown strategy %q: use auto, overlay, reflink or copy", r.Strategy)
}

// execute branches, builds the jail and runs the command, falling back to the
// next strategy where the kernel refuses one.
func (r *run) execute() error {
	strategies, err := r.strategies()
	if err != nil {
		return err
	}
	r.privileged, r.trusted = privileges()
	var refused []string
	for len(strategies) > 0 {
		err = r.attempt(strategies[0])
		var step *jail.StepError
		isOverlay := errors.As(err, &step) && step.Op == plan.Overlay
		switch {
		case isOverlay && step.Arg != r.ws.Path && !r.apartCaches:
			r.apartCaches = true
		case isOverlay && step.Arg != r.ws.Path:
			r.readOnly = append(r.readOnly, step.Arg)
		case len(strategies) > 1 && (isOverlay || errors.Is(err, workspace.ErrUnsupported)):
			refused = append(refused, fmt.Sprintf("%s: %v", strategies[0], err))
			strategies = strategies[1:]
		default:
			strategies = nil
		}
		if len(strategies) > 0 {
			r.branch = nil
			if err := r.clearLayers(); err != nil {
				return err
			}
		}
	}
	if err != nil {
		return explain(err)
	}
	for _, why := range refused {
		r.note("not used: %s", why)
	}
	return nil
}

func (r *run) clearLayers() error {
	fd, err := fsat.OpenDir(r.dir.fd, ".")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	for _, e := range entries {
		if err := fsat.RemoveAll(r.dir.fd, e.Name); err != nil {
			return err
		}
	}
	return err
}

func (r *run) attempt(strategy workspace.Strategy) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if r.Done != nil {
		go func() {
			select {
			case <-r.Done:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	r.out.FilesCloned = nil
	group, missing := r.limits()
	defer group.Remove()
	b, err := r.jail(group)
	if err != nil {
		return err
	}
	restore := r.pinCPUs(missing)
	box, err := jail.Start(b.Namespaces(), group.Procs())
	restore()
	group.CloseProcs()
	if err != nil {
		return err
	}
	// The kernel makes the namespaces while we prepare what goes into them.
	if err := r.prepare(ctx, b, strategy); err == nil {
		var view *plan.Plan
		if view, err = b.View(); err == nil {
			err = box.Send(view)
		}
	}
	if err != nil {
		box.Kill()
		_, _ = box.Reap()
		return err
	}
	watch := int64(0)
	if slices.Contains(missing, "memory") {
		watch = r.Limits.Memory
	}
	command := supervise.Command{
		Box: box, Cgroup: group,
		Exec:   jail.Command{Argv: r.Argv, Env: r.env, Dir: r.ws.Path, Search: search(r.env)},
		Limits: supervise.Limits{Timeout: r.Timeout, Output: r.OutputLimit, Memory: watch},
		Stdout: r.stdout, Stderr: r.stderr, Signals: r.Signals, Done: r.Done,
	}
	if r.Terminal {
		like, _ := r.Stdin.(*os.File)
		if command.Terminal, err = supervise.NewTerminal(like); err != nil {
			box.Kill()
			_, _ = box.Reap()
			return err
		}
		defer command.Terminal.Close()
		if like != nil && r.Resized != nil {
			go func() {
				for {
					select {
					case <-r.Resized:
						command.Terminal.Resize(like)
					case <-ctx.Done():
						return
					}
				}
			}()
		}
	}
	if r.Stdin != nil {
		command.Stdin = &supervise.Input{Reader: r.Stdin}
	}
	r.result = command.Run()
	if r.result.End == supervise.BoxFailed {
		return r.result.Failure
	}
	for _, what := range r.result.Missing {
		if what == "proc" {
			r.missing("proc")
		}
	}
	r.out.Rung = "full"
	r.out.Notes = append(r.out.Notes, r.branch.Notes...)
	return nil
}

func (r *run) missing(what string) {
	if !slices.Contains(r.out.Missing, what) {
		r.out.Missing = append(r.out.Missing, what)
		slices.Sort(r.out.Missing)
	}
}

// limits makes the cgroup, and says what of the limits it cannot hold.
func (r *run) limits() (*jail.Cgroup, []string) {
	if r.Limits.None() {
		return nil, nil
	}
	group, missing := jail.NewCgroup(r.dir.id, r.Limits)
	if len(missing) > 0 {
		r.missing("limits")
	}
	return group, missing
}

// pinCPUs stands in for a processor limit that no cgroup holds: the box may use
// no more processors than that, rounded up. The helper inherits the mask.
func (r *run) pinCPUs(missing []string) (restore func()) {
	if !slices.Contains(missing, "cpus") || r.Limits.CPUs <= 0 {
		return func() {}
	}
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return func() {}
	}
	want := int(math.Ceil(r.Limits.CPUs))
	for cpu := 0; cpu < len(all)*64 && some.Count() < want; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if unix.SchedSetaffinity(0, &some) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &all) }
}

// prepare makes the branch and decides what the box sees.
func (r *run) prepare(ctx context.Context, b *policy.Box, strategy workspace.Strategy) error {
	r.view()
	var err error
	if r.stamp, err = workspace.TakeStamp(r.ws); err != nil {
		return err
	}
	start := time.Now()
	r.branch = &workspace.Branch{Strategy: strategy, Form: changeset.Overlay, FilesCloned: -1}
	if r.RAM {
		r.out.Layer = "ram"
	} else if r.branch, err = workspace.Make(ctx, workspace.Request{Workspace: r.ws, Strategy: strategy, BoxFD: r.dir.fd, BoxPath: r.dir.path}); err != nil {
		return err
	}
	r.out.CloneDurationMicros = time.Since(start).Microseconds()
	r.out.Strategy = string(strategy)
	if n := r.branch.FilesCloned; n >= 0 {
		r.out.FilesCloned = &n
	}
	b.Workspace, b.Home = r.ws.Path, r.host.Home
	b.Show, b.Links, b.Masks = policy.Look(r.host)
	gitDirs, err := workspace.GitDirs(r.ws)
	if err != nil {
		r.note("%v", err)
	}
	for _, dir := range gitDirs {
		b.Show = append(b.Show, policy.Show{Path: dir, Mode: policy.CopyOnWrite})
	}
	b.ApartCaches = r.apartCaches
	for i := range b.Show {
		if slices.Contains(r.readOnly, b.Show[i].Path) {
			b.Show[i].Mode = policy.ReadOnly
		}
	}
	switch {
	case r.RAM:
		b.Mount = policy.Mount{Lower: r.ws.Path, RAMSize: cmp.Or(r.RAMSize, DefaultRAM), Mode: r.ws.Stat.Mode}
	case r.branch.Form == changeset.Tree:
		b.Mount = policy.Mount{Tree: filepath.Join(r.dir.path, r.branch.Layer)}
	default:
		b.Mount = policy.Mount{Lower: r.ws.Path, Upper: filepath.Join(r.dir.path, r.branch.Layer), Work: filepath.Join(r.dir.path, r.branch.Work)}
	}
	if b.CacheDirs, err = r.cacheDirs(b.Caches()); err != nil {
		return err
	}
	r.env = policy.Environ(os.Environ(), policy.EnvOptions{
		Box: r.dir.id, User: r.user.Name, Home: r.host.Home, Workspace: r.ws.Path, Shows: b.Show, Links: b.Links, Pass: r.EnvPass, Set: r.EnvSet,
	})
	return nil
}

// jail decides who runs the box, and what it may not do.
func (r *run) jail(group *jail.Cgroup) (*policy.Box, error) {
	b := &policy.Box{
		Privileged: r.privileged, Trusted: r.trusted, User: r.user,
		Network: r.Network, Hostname: "hutch", LandlockABI: landlockABI(), Filter: filter.Default(),
	}
	if b.LandlockABI == 0 {
		r.missing("landlock")
	}
	if r.privileged {
		var err error
		if b.UIDMap, err = policy.IDMap("/proc/self/uid_map"); err == nil {
			b.GIDMap, err = policy.IDMap("/proc/self/gid_map")
		}
		if err != nil {
			return nil, err
		}
	} else {
		inner := policy.ID{UID: r.user.UID, GID: r.user.GID}
		if r.user.Root {
			inner = policy.ID{}
		}
		b.UIDMap = fmt.Sprintf("%d %d 1", inner.UID, r.user.UID)
		b.GIDMap = fmt.Sprintf("%d %d 1", inner.GID, r.user.GID)
		b.User.UID, b.User.GID = inner.UID, inner.GID
	}
	for i := range group.Procs() {
		b.CgroupFDs = append(b.CgroupFDs, jail.CgroupFD(i))
	}
	if r.Limits.Pids > 0 && (group == nil || slices.Contains(r.out.Missing, "limits")) {
		b.Processes = uint64(r.Limits.Pids) + 1
		if r.privileged && r.user.UID == 0 {
			return nil, errors.New("--pids: this host gives no cgroup, and the kernel does not count processes of uid 0; use --user with an ordinary user")
		}
	}
	return b, nil
}

// cacheDirs makes layers for the caches that are shown copy-on-write. They go
// with the box.
func (r *run) cacheDirs(count int) ([]string, error) {
	var dirs []string
	for range count {
		dir := filepath.Join(r.dir.path, fmt.Sprintf("cache%d", len(dirs)))
		for _, d := range []string{dir, filepath.Join(dir, "upper"), filepath.Join(dir, "work")} {
			if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return nil, stateError(err)
			}
		}
		if r.privileged && r.user.UID != 0 {
			if err := os.Chown(filepath.Join(dir, "upper"), int(r.user.UID), int(r.user.GID)); err != nil {
				return nil, stateError(err)
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// privileges tells whether mounts can be made before a user namespace is
// entered, and whether overlays may use trusted attributes.
func privileges() (privileged, trusted bool) {
	if os.Geteuid() != 0 {
		return false, false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&head, &data[0]) != nil {
		return false, false
	}
	need := uint32(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_NET_ADMIN)
	if data[0].Effective&need != need {
		return false, false
	}
	// The initial user namespace has a fixed inode (PROC_USER_INIT_INO).
	const initial = 0xeffffffd
	var st unix.Stat_t
	err := unix.Stat("/proc/self/ns/user", &st)
	return true, err == nil && st.Ino == initial
}

// landlockABI asks the kernel for the newest Landlock ABI it knows; 0 is none.
func landlockABI() int {
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

func search(env []string) string {
	for _, e := range env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			return path
		}
	}
	return "/usr/local/bin:/usr/bin:/bin"
}

// judge turns what happened into status and exit code.
func (r *run) judge() {
	out, res := r.out, &r.result
	out.DurationMS = float64(res.Duration.Microseconds()) / 1000
	out.CPUMS = float64(res.CPU.Microseconds()) / 1000
	out.PeakMemorySource = res.PeakSource
	if res.PeakSource != "none" {
		peak := math.Round(float64(res.PeakMemory)/(1<<20)*100) / 100
		out.PeakMemoryMB = &peak
	}
	if res.Known && res.Wait.Exited() {
		code := res.Wait.ExitStatus()
		out.CommandExitCode = &code
	}
	switch res.End {
	case supervise.AtDeadline:
		out.Status, out.ExitCode, out.TimedOut = outcome.Timeout, outcome.ExitTimeout, true
	case supervise.OutOfMemory:
		out.Status, out.ExitCode = outcome.MemoryExceeded, outcome.ExitKilled
	case supervise.TooMuchOutput:
		out.Status, out.ExitCode = outcome.OutputExceeded, outcome.ExitKilled
	case supervise.NeverStarted:
		r.notStarted()
	case supervise.Interrupted:
		sig := res.Signal
		if sig == 0 {
			sig = unix.SIGTERM
		}
		out.Status, out.ExitCode, out.Signal = outcome.Killed, outcome.ExitSignal+int(sig), unix.SignalName(sig)
	default:
		switch {
		case res.Wait.Signaled():
			out.Status, out.Signal = outcome.Killed, unix.SignalName(res.Wait.Signal())
			out.ExitCode = outcome.ExitSignal + int(res.Wait.Signal())
		case res.Wait.ExitStatus() == 0:
			out.Status, out.ExitCode = outcome.Success, 0
		default:
			out.Status, out.ExitCode = outcome.Failed, res.Wait.ExitStatus()
		}
	}
}

func (r *run) notStarted() {
	out, name := r.out, r.Argv[0]
	out.Status = outcome.Failed
	switch r.result.StartError {
	case unix.ENOENT, unix.ENOTDIR:
		out.ExitCode = outcome.ExitNotFound
		out.Error = fmt.Sprintf("%s: not found in the box; give a path, or a command on the box's PATH", name)
	case unix.EACCES, unix.ENOEXEC, unix.EPERM, unix.EISDIR:
		out.ExitCode = outcome.ExitNotExecutable
		out.Error = fmt.Sprintf("%s: not executable: %v; check its mode and its first line", name, r.result.StartError)
	default:
		out.ExitCode = outcome.ExitNotExecutable
		out.Error = fmt.Sprintf("%s: could not be started: %v", r.result.StartWhat, r.result.StartError)
	}
}

// settle reads the change and promotes, keeps or discards it.
func (r *run) settle() error {
	start := time.Now()
	if err := r.read(); err != nil {
		return err
	}
	d := &r.out.Diff
	d.FilesCreated, d.FilesModified, d.FilesDeleted = r.changes.Names()
	d.Digest = r.changes.Digest
	d.ElapsedMicros = time.Since(start).Microseconds()
	r.out.FilesystemModified = !r.changes.Empty()
	r.out.GitChanged = r.changes.GitChanged
	if r.changes.Skipped != nil {
		r.out.Skipped = r.changes.Skipped
	}
	if r.Patch {
		var patch bytes.Buffer
		if err := changeset.Patch(&patch, r.changes, r.layer, r.ws.FD); err != nil {
			return fmt.Errorf("diff: %w", err)
		}
		r.out.Patch = patch.String()
	}
	if missing := r.notGiven(); len(missing) > 0 && r.out.Status == outcome.Success {
		return fmt.Errorf("--require: this host does not give %s; nothing was promoted", strings.Join(missing, ", "))
	}
	if r.Commit && r.out.Status == outcome.Success {
		if err := r.commit(); err != nil {
			return err
		}
	}
	if r.Preserve && r.keep == "" {
		r.keep = "preserve"
	}
	if r.keep != "" {
		if err := r.preserve(); err != nil {
			return err
		}
	}
	r.out.RollbackPerformed = r.out.FilesystemModified && !r.out.Committed && !r.out.Kept
	return nil
}

func (r *run) notGiven() []string {
	var missing []string
	for _, what := range r.Require {
		if slices.Contains(r.out.Missing, what) {
			missing = append(missing, what)
		}
	}
	return missing
}

// read opens the layer and reads the change from it. The live overlay, held
// open by its root's descriptor, still knows which files of the workspace the
// box saw.
func (r *run) read() error {
	if r.RAM {
		r.layer = r.result.Layer
	} else {
		fd, err := fsat.OpenDir(r.dir.fd, r.branch.Layer)
		if err != nil {
			return fmt.Errorf("open the layer: %w", err)
		}
		r.layer = fd
	}
	var err error
	r.changes, err = r.readChanges(r.Git)
	if err != nil {
		return fmt.Errorf("read the change: %w", err)
	}
	return nil
}

func (r *run) readChanges(git bool) (*changeset.Changeset, error) {
	source := changeset.Source{
		Form: r.branch.Form, Layer: r.layer, Workspace: r.ws.FD, Git: git,
		XattrPrefix: xattrPrefix(r.trusted), Merged: r.result.Workspace, Manifest: -1,
	}
	if r.branch.Manifest != "" {
		fd, err := fsat.Open(r.dir.fd, r.branch.Manifest, unix.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		source.Manifest = fd
	}
	return changeset.Read(source)
}

func xattrPrefix(trusted bool) string {
	if trusted {
		return "trusted.overlay."
	}
	return "user.overlay."
}

// commit promotes what was read.
func (r *run) commit() error {
	if r.changes.Empty() {
		r.out.Committed = true
	} else {
		if !r.stamp.Valid {
			r.keep = "error"
			return errors.Join(fmt.Errorf("not promoted, the box is kept: %s", r.stamp.Reason), r.preserve())
		}
		r.out.Committed = true // so that the receipt in the journal says it
		record, err := r.receipt()
		if err != nil {
			return err
		}
		_, err = promote.Apply(context.Background(), promote.Request{
			ID: r.dir.id, Workspace: r.ws.FD, Layer: r.layer, Changes: r.changes, Stamp: r.stamp.T, Receipt: record, KeepTimes: r.KeepTimes,
		})
		var conflict *promote.ConflictError
		switch {
		case errors.As(err, &conflict):
			r.out.Committed = false
			r.out.Status, r.out.ExitCode, r.out.Conflicts = outcome.Conflict, outcome.ExitHutch, conflict.Conflicts
			r.out.Error = conflict.Error()
			r.keep = "conflict"
			return nil
		case errors.Is(err, promote.ErrPending):
			r.out.Committed = false
			return err
		case err != nil:
			r.out.Committed = false
			r.keep = "error"
			return errors.Join(fmt.Errorf("not promoted, the box is kept: %w", err), r.preserve())
		}
	}
	if r.changes.GitChanged {
		r.note(".git was changed in the box and left out; `hutch commit %s --git include` promotes it too", r.dir.id)
		r.keep = "git"
	}
	return nil
}

// preserve writes down what a later command needs to diff, commit or discard
// the box: the identity of what the branch saw cannot be found out later.
func (r *run) preserve() error {
	changes := r.changes
	if r.keep == "git" {
		full, err := r.readChanges(true)
		if err != nil {
			return fmt.Errorf("read .git: %w", err)
		}
		changes = full.Only(func(path string) bool { return path == ".git" || strings.HasPrefix(path, ".git/") })
	}
	if r.RAM {
		if err := r.saveRAM(); err != nil {
			return err
		}
	}
	if err := r.dir.saveChanges(changes); err != nil {
		return err
	}
	r.out.Kept = true
	return r.dir.write(&Record{
		ID: r.dir.id, State: Kept, Reason: r.keep, Created: time.Now().UTC(), Workspace: r.ws.Path, Argv: r.Argv,
		Status: string(r.out.Status), ExitCode: r.out.ExitCode, Strategy: r.branch.Strategy, Form: r.branch.Form, Layer: r.branch.Layer,
		Trusted: r.trusted, Stamp: r.stamp, Files: len(changes.Entries), Receipt: r.dir.id,
	})
}

// saveRAM moves a layer that would go with this process to the disk.
func (r *run) saveRAM() error {
	if err := unix.Mkdirat(r.dir.fd, "upper", 0o700); err != nil {
		return stateError(err)
	}
	to, err := fsat.OpenDir(r.dir.fd, "upper")
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := workspace.CopyLayer(to, r.layer); err != nil {
		return fmt.Errorf("keep the layer that was in RAM: %w", err)
	}
	r.branch.Layer = "upper"
	return nil
}

func (d *dir) saveChanges(c *changeset.Changeset) error {
	var buf bytes.Buffer
	if err := c.Encode(&buf); err != nil {
		return err
	}
	return d.save(changesName, buf.Bytes())
}

const changesName = "changes"

// output puts the captured output into the outcome.
func (r *run) output() {
	out := r.out
	fill := func(c *supervise.Capture, name string, text, encoded, path *string, truncated *bool, size *int64) {
		*size = c.Size()
		if err := c.Lost(); err != nil {
			r.note("%s was lost after %d bytes: %v", name, c.Size(), err)
			*truncated = true
		}
		if r.Return <= 0 {
			return
		}
		head, err := c.Head(r.Return)
		if err != nil {
			r.note("%s cannot be read back: %v", name, err)
		}
		*text = strings.ToValidUTF8(string(head), "\uFFFD")
		if !utf8.Valid(head) {
			*encoded = base64.StdEncoding.EncodeToString(head)
		}
		if c.Size() > int64(len(head)) {
			*truncated = true
			if r.keep == "" {
				*path = r.store.saveOutput(r.dir, name)
			}
		}
		if r.keep != "" && c.Size() > 0 {
			*path = filepath.Join(r.dir.path, name)
		}
	}
	fill(r.stdout, "stdout", &out.Stdout, &out.StdoutBase64, &out.StdoutPath, &out.StdoutTruncated, &out.StdoutBytes)
	fill(r.stderr, "stderr", &out.Stderr, &out.StderrBase64, &out.StderrPath, &out.StderrTruncated, &out.StderrBytes)
}

// receiptFields is what a receipt says beside the chain.
type receiptFields struct {
	Workspace string          `json:"workspace"`
	Argv      []string        `json:"argv"`
	Status    outcome.Status  `json:"status"`
	ExitCode  int             `json:"exit_code"`
	Command   *int            `json:"command_exit_code"`
	Signal    string          `json:"signal,omitempty"`
	Strategy  string          `json:"strategy"`
	Rung      string          `json:"rung"`
	Missing   []string        `json:"missing"`
	Committed bool            `json:"committed"`
	Kept      bool            `json:"kept"`
	Digest    string          `json:"digest"`
	Created   []string        `json:"files_created"`
	Modified  []string        `json:"files_modified"`
	Deleted   []string        `json:"files_deleted"`
	Files     int             `json:"files"` // of all three, also those beyond the lists
	Duration  float64         `json:"duration_ms"`
	CPU       float64         `json:"cpu_ms"`
	Peak      *float64        `json:"peak_memory_mb"`
	PeakFrom  string          `json:"peak_memory_source"`
	Error     string          `json:"error,omitempty"`
	Recovered json.RawMessage `json:"recovered,omitempty"`
}

// receiptPaths bounds each list of a receipt.
const receiptPaths = 1000

func (r *run) fields() receiptFields {
	out := r.out
	head := func(list []string) []string { return list[:min(len(list), receiptPaths)] }
	return receiptFields{
		Workspace: r.ws.Path, Argv: clip(r.Argv), Status: out.Status, ExitCode: out.ExitCode, Command: out.CommandExitCode, Signal: out.Signal,
		Strategy: out.Strategy, Rung: out.Rung, Missing: out.Missing, Committed: out.Committed, Kept: out.Kept, Digest: out.Diff.Digest,
		Created: head(out.Diff.FilesCreated), Modified: head(out.Diff.FilesModified), Deleted: head(out.Diff.FilesDeleted),
		Files:    len(out.Diff.FilesCreated) + len(out.Diff.FilesModified) + len(out.Diff.FilesDeleted),
		Duration: out.DurationMS, CPU: out.CPUMS, Peak: out.PeakMemoryMB, PeakFrom: out.PeakMemorySource, Error: out.Error,
	}
}

// clip bounds the arguments that go into a receipt.
func clip(argv []string) []string {
	const most = 4096
	var list []string
	for _, arg := range argv[:min(len(argv), 256)] {
		list = append(list, strings.ToValidUTF8(arg[:min(len(arg), most)], "\uFFFD"))
	}
	return list
}

func (r *run) receipt() ([]byte, error) { return json.Marshal(r.fields()) }

func (r *run) record() error {
	promoted := r.out.Committed && r.out.FilesystemModified
	if _, err := r.store.Receipts.Append(r.dir.id, r.fields(), promoted); err != nil {
		return fmt.Errorf("the run is over (%s), but its receipt could not be written: %w", r.out.Status, err)
	}
	r.out.Receipt = r.dir.id
	return nil
}

// explain adds what to do to the kernel's refusals that users meet.
func explain(err error) error {
	var step *jail.StepError
	if !errors.As(err, &step) {
		return err
	}
	switch {
	case step.Op == plan.Unshare || step.Op == plan.Map || step.Op == plan.UserNS:
		return fmt.Errorf("no box can be made here: %w; user namespaces are not allowed: see user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns", err)
	case errors.Is(err, unix.EOVERFLOW):
		return fmt.Errorf("%w; the workspace holds files of users or groups that an ordinary user's box cannot map: use --strategy reflink or copy", err)
	case step.Op == plan.Overlay:
		return fmt.Errorf("%w; this workspace cannot be an overlay's lower directory (a mount inside it, or a file system that refuses): use --strategy reflink or copy", err)
	}
	return fmt.Errorf("no box can be made here: %w", err)
}
