package box

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/outcome"
	"hutch/internal/plan"
	"hutch/internal/supervise"
	"hutch/internal/term"
	"hutch/internal/workspace"
)

// run is the state of one Run.
type run struct {
	Request
	cell
	store   *Store
	stamp   workspace.Stamp
	branch  *workspace.Branch
	result  supervise.Result
	stdout  *supervise.Capture
	stderr  *supervise.Capture
	through []*term.Writer // of the streams that are let through by what they say

	layer   int // directory of the layer; -1
	changes *changeset.Changeset
	full    *changeset.Changeset // with .git, where that was left out of changes; nil: not read
	rest    *changeset.Changeset // what a promotion left in the box; nil: all
	keep    string               // why the box must stay; "" when it need not
	saved   bool                 // a layer that was in RAM is on the disk
	pending bool                 // recovery has to decide whether its change arrives
}

// Run runs one command on a branch of a workspace and returns what became of
// it. An outcome is returned in any case; the error, when there is one, is
// hutch's own and is in the outcome too.
func Run(req Request) (*outcome.Outcome, error) {
	out := outcome.New()
	r := &run{Request: req, cell: newCell(req, out), layer: -1}
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
	strategies, err := r.strategies()
	if err != nil {
		return err
	}
	// PR_SET_PDEATHSIG is about the thread that made the box.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// As early as the policy is known, so that the kernel makes the namespaces
	// while we look at the workspace and decide what goes into them.
	r.id = newID()
	at, unchanged, err := r.resolve()
	if err != nil || r.denied(at) {
		return err
	}
	if err := r.spawn(); err != nil {
		return explain(err)
	}
	defer r.abandon()

	if missing := r.notGiven(); len(missing) > 0 {
		return fmt.Errorf("--require: this host does not give %s; nothing was run", strings.Join(missing, ", "))
	}
	if r.ws, err = workspace.Open(cmp.Or(r.Workspace, "."), r.Force); err != nil {
		return err
	}
	defer r.ws.Close()
	if r.store, err = OpenStore(); err != nil {
		return err
	}
	defer r.store.Close()
	r.state = r.store.Path
	if err := r.store.recover(r.ws.FD); err != nil {
		return err
	}
	if err := unchanged(r.ws); err != nil {
		return err
	}
	base, err := r.store.base(r.LayerDir, r.ws.Path)
	if err != nil {
		return err
	}
	if r.dir, err = createDir(base, r.id); err != nil {
		return err
	}
	r.out.ID = r.id
	defer r.dir.close()
	removed := make(chan error, 1)
	err = r.inBox(strategies, removed)
	if cleanup := <-removed; cleanup != nil && err == nil {
		r.note("the box's directory could not be removed: %v; `hutch gc` will try again", cleanup)
	}
	r.store.sweep(base)
	return err
}

// inBox does everything for which the box's directory exists. What became of
// removing it is sent to removed.
func (r *run) inBox(strategies []workspace.Strategy, removed chan<- error) error {
	clean := func() {
		if r.keep != "" {
			removed <- nil
			return
		}
		removed <- r.dir.remove()
	}
	r.stdout = supervise.NewCapture(func() (*os.File, error) { return r.dir.createFile("stdout") }, r.streamed(r.Stdout))
	r.stderr = supervise.NewCapture(func() (*os.File, error) { return r.dir.createFile("stderr") }, r.streamed(r.Stderr))
	defer r.stdout.Close()
	defer r.stderr.Close()
	defer r.flush() // last, since nobody knows how long the reader takes
	r.result.Workspace, r.result.Layer = -1, -1
	defer r.closeResult()
	if err := r.execute(strategies); err != nil {
		clean()
		return err
	}
	judge(r.out, &r.result, r.Argv, r.tasks)
	err := r.settle()
	if err != nil && !r.out.Kept && (r.Commit || r.Preserve || r.keep != "") {
		err = r.rescue(err)
	}
	if err != nil {
		r.out.Status, r.out.ExitCode, r.out.Error = outcome.Error, outcome.ExitHutch, err.Error()
	}
	r.output()
	cleaned := make(chan struct{})
	go func() { // a dozen directories, while the receipt is written
		clean()
		close(cleaned)
	}()
	unrecorded := r.record()
	if errors.Is(unrecorded, unix.ENOSPC) && r.keep == "" {
		r.closeResult() // what filled the disk may be the box
		<-cleaned
		unrecorded = r.record()
	}
	if unrecorded != nil {
		r.out.Status, r.out.ExitCode = outcome.Error, outcome.ExitHutch
		err = errors.Join(err, unrecorded)
		r.out.Error = err.Error()
	}
	return err
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
func (r *run) execute(strategies []workspace.Strategy) error {
	var refused []string
	for {
		err := r.attempt(strategies[0])
		if err == nil {
			break
		}
		var step *jail.StepError
		isOverlay := errors.As(err, &step) && step.Op == plan.Overlay
		switch {
		case r.yield(step):
		case len(strategies) > 1 && (isOverlay || errors.Is(err, workspace.ErrUnsupported) || errors.Is(err, workspace.ErrNoUserAttrs)):
			refused = append(refused, fmt.Sprintf("%s: %v", strategies[0], err))
			strategies = strategies[1:]
		default:
			return explain(err)
		}
		r.branch = nil
		if err := r.clearLayers(); err != nil {
			return err
		}
		if err := r.spawn(); err != nil {
			return explain(err)
		}
	}
	for _, why := range refused {
		r.note("not used: %s", why)
	}
	return nil
}

// clearLayers empties the cell's directory, for another attempt.
func (c *cell) clearLayers() error {
	fd, err := fsat.OpenDir(c.dir.fd, ".")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	for _, e := range entries {
		if err := fsat.RemoveAll(c.dir.fd, e.Name); err != nil {
			return err
		}
	}
	return err
}

// attempt branches, completes the jail and runs the command.
func (r *run) attempt(strategy workspace.Strategy) error {
	defer r.abandon()
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
	if err := r.prepare(ctx, strategy); err != nil {
		return err
	}
	view, err := r.plan.View()
	if err != nil {
		return err
	}
	if err := r.box.Send(view); err != nil {
		return err
	}
	env := r.environ(r.id)
	command := supervise.Command{
		Box: r.box, Cgroup: r.group,
		Exec:   jail.Command{Argv: r.Argv, Env: env, Dir: r.ws.Path, Search: search(env)},
		Limits: r.watched(),
		Stdout: r.stdout, Stderr: r.stderr, Signals: r.Signals, Done: r.Done,
	}
	command.Owner = r.owner()
	if r.Stdin != nil {
		command.Stdin = &supervise.Input{Reader: r.Stdin}
	}
	if r.Terminal {
		command.Terminal = r.terminal(ctx)
		defer command.Terminal.Close()
	}
	r.result = command.Run()
	r.box = nil
	if r.result.End == supervise.BoxFailed {
		r.closeResult()
		return r.result.Failure
	}
	r.came(r.result.Missing, r.branch.Notes)
	return nil
}

// closeResult lets go of what the box handed out: the last hold on its mounts.
func (r *run) closeResult() {
	for _, fd := range []*int{&r.result.Workspace, &r.result.Layer, &r.layer} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}
