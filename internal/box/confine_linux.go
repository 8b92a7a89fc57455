package box

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"hutch/internal/changeset"
	"hutch/internal/policy"
	"hutch/internal/supervise"
	"hutch/internal/view"
	"hutch/internal/workspace"
)

// terminal makes the command's pseudo-terminal, which keeps the size of the
// caller's.
func (r *run) terminal(ctx context.Context) *supervise.Terminal {
	like, _ := r.Stdin.(*os.File)
	terminal := supervise.NewTerminal(like)
	if like == nil || r.Resized == nil {
		return terminal
	}
	go func() {
		for {
			select {
			case <-r.Resized:
				terminal.Resize()
			case <-ctx.Done():
				return
			}
		}
	}()
	return terminal
}

// prepare makes the branch and decides what the box sees.
func (r *run) prepare(ctx context.Context, strategy workspace.Strategy) error {
	if err := r.look(); err != nil {
		return err
	}
	var err error
	if r.Commit || r.Preserve { // else nothing can ever be promoted
		if r.stamp, err = workspace.TakeStamp(r.ws); err != nil {
			return err
		}
	}
	start := time.Now()
	r.out.FilesCloned = nil
	r.branch = &workspace.Branch{Strategy: strategy, Form: changeset.Overlay, FilesCloned: -1}
	if r.RAM {
		r.out.Layer = "ram"
		if !r.trusted && !kernelAtLeast(6, 6) { // a tmpfs then keeps no attributes of users
			r.note("before Linux 6.6 a layer in RAM cannot hold a directory where the workspace's was removed: EIO")
		}
	} else if !r.policy.FSRead {
		// No branch is shown, so none is made.
	} else if r.branch, err = workspace.Make(ctx, workspace.Request{Workspace: r.ws, Strategy: strategy, BoxFD: r.dir.fd, BoxPath: r.dir.path, UserAttrs: !r.trusted, Hidden: r.hidden}); err != nil {
		return err
	}
	if err := r.keepBase(ctx); err != nil {
		return err
	}
	r.out.CloneDurationMicros = time.Since(start).Microseconds()
	r.out.Strategy = string(strategy)
	if n := r.branch.FilesCloned; n >= 0 {
		r.out.FilesCloned = &n
	}
	b := r.plan
	switch {
	case r.RAM:
		b.Mount = policy.Mount{Lower: r.ws.Path, Mode: r.ws.Stat.Mode, Absent: r.hidden}
		if b.Mount.Dirs, err = view.LayerDirs(r.ws.FD, r.hidden); err != nil {
			return err
		}
	case r.branch.Form == changeset.Tree:
		b.Mount = policy.Mount{Tree: filepath.Join(r.dir.path, r.branch.Layer)}
	default:
		b.Mount = policy.Mount{Lower: r.ws.Path, Upper: filepath.Join(r.dir.path, r.branch.Layer), Work: filepath.Join(r.dir.path, r.branch.Work)}
	}
	if err := r.furnish(); err != nil {
		return err
	}
	return r.boundLayers(b)
}
