package box

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/policy"
	"hutch/internal/view"
	"hutch/internal/workspace"
)

// requestName is the file in which a box's terms lie. What of the caller's
// environment a box may have is in it, so it is for nobody else to read.
const requestName = "request.json"

// request is what a living box asks of its runs.
func request(c api.Create) Request {
	return Request{Workspace: c.Workspace, Force: c.Force, Policy: c.Policy, PolicyFile: c.PolicyFile, User: c.User, LayerDir: c.LayerDir, Require: c.Require, Environ: c.Environ}
}

// terms are what a box that lives was created with, and what its policy is as
// long as it lives.
type terms struct {
	api.Create
	Environ []string       `json:"environ"` // the request's; none is none, and not whoever holds the box's
	InForce policy.InForce `json:"in_force"`
}

func (h *held) terms() (*terms, error) {
	text, err := h.readFile(requestName)
	if errors.Is(err, fs.ErrNotExist) {
		return h.termsNow()
	}
	if err != nil {
		return nil, ofBox(h.id, err)
	}
	var t terms
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fmt.Errorf("box %s: its request is damaged: %w", h.id, err)
	}
	t.Create.Environ = t.Environ
	return &t, nil
}

// termsNow are those of a box that a run kept: what its policy was is not known
// any more, so it is what holds in its workspace now.
func (h *held) termsNow() (*terms, error) {
	c := api.Create{Workspace: string(h.record.RawWorkspace), Force: true, Environ: os.Environ()}
	sources, _, err := sources(request(c))
	if err != nil {
		return nil, err
	}
	force, err := policy.Resolve(sources)
	if err != nil {
		return nil, err
	}
	return &terms{Create: c, InForce: *force}, nil
}

// Create makes a box: a branch of a workspace and a record. Nothing runs yet.
// What is wrong with the policy is said now.
func (b *Boxes) Create(ctx context.Context, c api.Create) (*api.Box, error) {
	if c.Name != "" {
		if err := checkName("the name of a box", c.Name); err != nil {
			return nil, err
		}
	}
	req := request(c)
	sources, before, err := sources(req)
	if err != nil {
		return nil, invalid(err)
	}
	force, err := policy.Resolve(sources)
	if err != nil {
		return nil, invalid(err)
	}
	ws, err := workspace.Open(cmp.Or(c.Workspace, "."), c.Force)
	if err != nil {
		return nil, invalid(err)
	}
	defer ws.Close()
	if err := b.store.recover(ws.FD); err != nil {
		return nil, err
	}
	if before == nil || *before != seen(ws.FD, ws.Stat) {
		return nil, fmt.Errorf("workspace %q or its %s changed just now; do it again", ws.Path, policy.WorkspaceFile)
	}
	base, err := b.store.base(c.LayerDir, ws.Path)
	if err != nil {
		return nil, invalid(err)
	}
	c.Workspace = ws.Path
	c.Environ = view.Wanted(callerOf(req), force.EnvPass)
	_, trusted := privileges()
	r := &Record{
		ID: newID(), Name: c.Name, State: api.Created, Created: time.Now().UTC(), Workspace: ws.Path, RawWorkspace: []byte(ws.Path), Argv: []string{},
		Form: changeset.Overlay, Strategy: workspace.Overlay, Trusted: trusted, Lasting: true, Memory: force.Memory,
	}
	hidden, err := hiddenFrom(ws, force, b.store.Path, req)
	if err != nil {
		return nil, invalid(err)
	}
	r.Hidden = hiddenBytes(hidden)
	text, err := json.Marshal(terms{Create: c, Environ: c.Environ, InForce: *force})
	if err != nil {
		return nil, err
	}
	b.pool.expect(recipe{request(c), force, base}, ws, 1)
	return b.born(base, r, func(d *dir) error {
		if r.Stamp, err = workspace.TakeStamp(ws); err != nil {
			return err
		}
		if err := d.fresh(ctx, r, ws); err != nil {
			return err
		}
		if err := d.put(requestName, text); err != nil {
			return err
		}
		return d.write(r)
	})
}

// born makes the directory of a new box and lets fill put its record there. On
// an error nothing is left.
func (b *Boxes) born(base string, r *Record, fill func(*dir) error) (*api.Box, error) {
	d, err := createDir(base, r.ID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if err = b.store.named(r.Name, r.ID); err == nil {
		if err = fill(d); err != nil {
			b.store.unnamed(r.Name, r.ID)
		}
	}
	if err != nil {
		return nil, errors.Join(err, d.remove())
	}
	box := r.api(mark{})
	return &box, nil
}

// fresh makes the box's own layer for a workspace, under a name of its own.
func (d *dir) fresh(ctx context.Context, r *Record, ws *workspace.Workspace) error {
	layer, work := r.next()
	made, err := workspace.Make(ctx, workspace.Request{
		Workspace: ws, Strategy: r.Strategy, BoxFD: d.fd, BoxPath: d.path, UserAttrs: !r.Trusted, Hidden: without(r.hidden()), Layer: layer, Work: work,
	})
	if err != nil {
		return err
	}
	r.Layer, r.Work = made.Layer, made.Work
	return nil
}

// without adds hutch's own directory to what a branch is made without.
func without(hidden []string) []string {
	return append([]string{".hutch"}, hidden...)
}

// next are names for the next own layer and its work directory: another pair
// each time, so that one rename of the record decides which of them counts.
func (r *Record) next() (layer, work string) {
	if r.Layer == "" {
		return "upper", "work"
	}
	var n int
	_, _ = fmt.Sscanf(r.Layer, "upper%d", &n)
	return fmt.Sprintf("upper%d", n+1), fmt.Sprintf("work%d", n+1)
}

// invalid is an error of who asked.
func invalid(err error) error {
	var known *api.Error
	if errors.As(err, &known) {
		return err
	}
	return &api.Error{Code: api.Invalid, Text: err.Error()}
}

// Discard drops a box. One with processes only by force, which ends them. The
// workspace is not touched.
func (b *Boxes) Discard(_ context.Context, name string, force bool) error {
	return b.drop(name, force, true)
}

// Remove drops a box with whatever runs in it, and forgets it; one that has
// ended it only forgets.
func (b *Boxes) Remove(name string) error {
	err := b.drop(name, true, false)
	if r, ended := b.store.ended(name); err != nil && ended == nil {
		return os.Remove(filepath.Join(b.store.Path, "ended", r.ID+".json"))
	}
	return err
}

func (b *Boxes) drop(name string, force, remember bool) error {
	h, err := b.hold(name)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.may(api.Discarded); err != nil {
		return err
	}
	if h.live != nil && !force && !h.live.Quiet() {
		return &api.Error{Code: api.NotQuiet, Text: fmt.Sprintf("processes run in box %s; end them with `hutch box kill %s`, or discard it with --force", h.id, h.id)}
	}
	if h.record.State == api.Committing {
		// Its promotion may have passed the commit point: finish that first.
		if _, err := b.store.Recover(string(h.record.RawWorkspace)); err != nil {
			return err
		}
	}
	return h.over(api.Discarded, remember)
}

// ofBox says of which box an error tells. Its workspace cannot be another.
func ofBox(id string, err error) error {
	var missing *workspace.Missing
	if errors.As(err, &missing) {
		return &api.Error{Code: api.NotFound, Text: fmt.Sprintf("box %s: its workspace %q is not there; put it back, or drop the box with `hutch discard %s`", id, missing.Path, id)}
	}
	return fmt.Errorf("box %s: %w", id, err)
}

// over ends the box: nothing but its record is left, where it is remembered.
func (h *held) over(as api.State, remember bool) error {
	h.kill()
	uses := h.record.uses()
	if remember {
		h.boxes.store.saveEnded(h.record, as)
	}
	if err := h.remove(); err != nil {
		return ofBox(h.id, err)
	}
	h.gone = true
	h.boxes.store.unnamed(h.record.Name, h.id)
	return h.unref(uses)
}
