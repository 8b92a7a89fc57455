package box

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/workspace"
)

// maxForks bounds how many boxes one call makes.
const maxForks = 1000

// change holds a box for a verb that changes its layers, in a state that allows
// that.
func (b *Boxes) change(name string, do func(*held) error) error {
	h, err := b.hold(name)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.steady(); err != nil {
		return err
	}
	return do(h)
}

// steady reports whether something may be done to the box that leaves its state
// as it is.
func (h *held) steady() error {
	if s := h.state(); s != api.Busy {
		return h.may(s)
	}
	return h.may(api.Busy)
}

// freezeOrCopy returns the layers of the box as it stands now: frozen where it
// is quiet, with a copy of the own one where processes go on writing to it. id is
// that of the copy, which has a reference by the box; "" for none.
func (h *held) freezeOrCopy() (stack []string, id string, err error) {
	if err := h.stackable(); err != nil {
		return nil, "", err
	}
	if h.live == nil || h.live.Quiet() {
		// Who reads or writes a file of the box from outside keeps its mount in use,
		// as a process of the box would.
		if err := h.freeze(false, nil); !errors.Is(err, jail.ErrBusyMount) {
			return slices.Clone(h.record.Layers), "", err
		}
	}
	s, err := h.layers()
	if err != nil {
		return nil, "", err
	}
	if id, err = s.New(h.id); err != nil {
		return nil, "", stateError(err)
	}
	fd, err := s.MakeUpper(id)
	if err == nil {
		err = h.snapshot(fd)
		unix.Close(fd)
	}
	if err == nil {
		err = h.passSeen(s, id)
	}
	if err != nil {
		return nil, "", errors.Join(err, s.Unref(id, h.id))
	}
	return append(slices.Clone(h.record.Layers), id), id, nil
}

// Checkpoint names the state of a box, to go back to it. Without a name it is
// numbered. A quiet box's layer is frozen, at no cost; a busy one's is copied
// while its processes stand still. What a checkpoint says is on the disk when it
// returns, the content of the layer when the file system wrote it back.
func (b *Boxes) Checkpoint(_ context.Context, name, checkpoint string) (*api.Checkpoint, error) {
	var made api.Checkpoint
	err := b.change(name, func(h *held) error {
		if checkpoint == "" {
			for n := len(h.record.Checkpoints) + 1; checkpoint == "" || h.record.checkpoint(checkpoint) != nil; n++ {
				checkpoint = strconv.Itoa(n)
			}
		} else if err := checkName("the name of a checkpoint", checkpoint); err != nil {
			return err
		}
		if h.record.checkpoint(checkpoint) != nil {
			return &api.Error{Code: api.Exists, Text: fmt.Sprintf("box %s has a checkpoint %s; choose another name", h.id, checkpoint)}
		}
		stack, copied, err := h.freezeOrCopy()
		if err != nil {
			return err
		}
		c := Check{Name: checkpoint, Created: time.Now().UTC(), Layers: stack, Stamp: h.record.Stamp, Copied: copied != ""}
		r := h.record.clone()
		r.Checkpoints = append(r.Checkpoints, c)
		made = c.api()
		err = h.writeRecord(r, true)
		if err != nil && copied != "" {
			if s, serr := h.layers(); serr == nil {
				err = errors.Join(err, s.Unref(copied, h.id))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &made, nil
}

// Restore takes a quiet box back to a checkpoint: files, modes and deletions are
// as they were. Its processes must have ended; a live box lives on.
func (b *Boxes) Restore(_ context.Context, name, checkpoint string) error {
	return b.change(name, func(h *held) error {
		c := h.record.checkpoint(checkpoint)
		if c == nil {
			return &api.Error{Code: api.NotFound, Text: fmt.Sprintf("box %s has no checkpoint %q; `hutch box show %s` lists them", h.id, checkpoint, h.id)}
		}
		if err := h.quiet("to restore"); err != nil {
			return err
		}
		s, err := h.layers()
		if err != nil {
			return err
		}
		top, err := s.OpenUpper(c.Layers[len(c.Layers)-1])
		if err != nil {
			return err
		}
		defer unix.Close(top)
		before := h.record.uses()
		r := h.record.clone()
		r.Layers, r.Stamp, r.Read, r.Shared, r.Moving = slices.Clone(c.Layers), c.Stamp, false, false, ""
		r.Layer, r.Work = r.next()
		if err := h.freshLike(r.Layer, r.Work, top, h.prefix()); err != nil {
			return err
		}
		if err := h.turn(s, r, true); err != nil {
			return err
		}
		return h.unref(before)
	})
}

// Fork makes count boxes that begin where a box stands now; names are those of
// the first of them. They share the layers, and what they saw of the workspace.
func (b *Boxes) Fork(_ context.Context, name string, count int, names []string) ([]api.Box, error) {
	if count < 1 || count > maxForks || len(names) > count {
		return nil, &api.Error{Code: api.Invalid, Text: fmt.Sprintf("fork makes 1 to %d boxes, and no more names than boxes; %d and %d were asked for", maxForks, count, len(names))}
	}
	for _, n := range names {
		if n == "" {
			continue
		}
		if err := checkName("the name of a box", n); err != nil {
			return nil, err
		}
	}
	var forks []api.Box
	err := b.change(name, func(h *held) error {
		stack, copied, err := h.freezeOrCopy()
		if err != nil {
			return err
		}
		for i := range count {
			r := &Record{
				ID: newID(), State: api.Created, Created: time.Now().UTC(), Workspace: h.record.Workspace, RawWorkspace: h.record.RawWorkspace,
				Argv: []string{}, Strategy: h.record.Strategy, Form: h.record.Form, Trusted: h.record.Trusted, Stamp: h.record.Stamp, Hidden: h.record.Hidden,
				Promoted: h.record.Promoted, Lasting: true, Memory: h.record.Memory, Parent: h.id, Layers: stack, Layer: "upper", Work: "work",
			}
			if i < len(names) {
				r.Name = names[i]
			}
			box, ferr := b.born(filepath.Dir(h.path), r, func(d *dir) error { return h.beget(d, r) })
			if err = ferr; err != nil {
				break
			}
			forks = append(forks, *box)
		}
		b.expectLike(h, len(forks))
		if copied != "" {
			if s, serr := h.layers(); serr == nil {
				err = errors.Join(err, s.Unref(copied, h.id))
			}
		}
		return err
	})
	if err != nil {
		for _, f := range forks {
			err = errors.Join(err, b.drop(f.ID, true, false))
		}
		return nil, err
	}
	return forks, nil
}

// beget fills the directory of a fork. Its record is written last, and nothing
// is flushed: what a power cut takes of a fork that was made a moment ago is the
// fork, whose empty record is none (an fsync is 0.2 ms at best).
func (h *held) beget(d *dir, r *Record) (err error) {
	s, err := h.layers()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			for _, id := range r.Layers {
				err = errors.Join(err, s.Unref(id, r.ID))
			}
		}
	}()
	for _, id := range r.Layers {
		if err := s.Share(id, h.id, r.ID); err != nil {
			return err
		}
	}
	for _, name := range []string{requestName, promotedName} {
		if err := unix.Linkat(h.fd, name, d.fd, name, 0); err != nil && err != unix.ENOENT {
			return stateError(err)
		}
	}
	top, err := s.OpenUpper(r.Layers[len(r.Layers)-1])
	if err != nil {
		return err
	}
	defer unix.Close(top)
	if err := d.freshLike(r.Layer, r.Work, top, h.prefix()); err != nil {
		return err
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	return d.place(recordName, text)
}

// reset gives a box whose change is in the workspace a fresh layer and a fresh
// stamp: it lives on where the workspace stands now.
func (h *held) reset(ctx context.Context, ws *workspace.Workspace) error {
	s, err := h.layers()
	if err != nil {
		return err
	}
	before := h.record.uses()
	r := h.record.clone()
	r.State, r.Reason, r.Read, r.Keep, r.Promoted, r.Files, r.Moving = api.Ready, "", false, false, false, 0, ""
	r.Layers, r.Shared = nil, false
	// Where the host has moved what lies above, there is nothing to hide.
	r.Hidden = slices.DeleteFunc(slices.Clone(r.Hidden), func(path []byte) bool {
		parent, _ := fsat.Split(string(path))
		st, err := fsat.Lstat(ws.FD, parent)
		return err != nil || st.Type != fsat.Directory
	})
	if r.Stamp, err = workspace.TakeStamp(ws); err != nil {
		return err
	}
	if err := h.fresh(ctx, r, ws); err != nil {
		return err
	}
	if err := h.turn(s, r, true); err != nil {
		return err
	}
	_ = unix.Unlinkat(h.fd, promotedName, 0)
	return h.unref(before)
}
