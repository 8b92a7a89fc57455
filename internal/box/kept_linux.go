package box

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/guard"
	"hutch/internal/jail"
	"hutch/internal/layers"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// kept is a box, opened to look at its change.
type kept struct {
	*held
	ws      *workspace.Workspace
	layer   int // all of its layers in one; -1
	changes *changeset.Changeset
}

// openKept opens a box that is held, with its lock taken.
func (h *held) openKept() (*kept, error) {
	k := &kept{held: h, layer: -1}
	err := k.openWorkspace()
	if err == nil {
		err = k.load()
	}
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *kept) openWorkspace() error {
	var err error
	if k.ws, err = workspace.Reopen(string(k.record.RawWorkspace)); err != nil {
		return ofBox(k.id, err)
	}
	// What a crash left of a promotion would show as the host's edits.
	return k.boxes.store.recover(k.ws.FD)
}

// load opens the layer and finds what it changes: as that was noted when the
// box ended, or by reading it.
func (k *kept) load() error {
	busy := k.quiet("that") != nil
	var err error
	switch {
	case busy:
		err = k.openCopy()
	case len(k.record.Layers) > 0:
		err = k.openUnion()
	default:
		k.layer, err = fsat.OpenDir(k.fd, k.record.Layer)
	}
	if err != nil {
		return fmt.Errorf("box %s: open its layer: %w", k.id, err)
	}
	if k.record.Read || k.record.State == api.Committing {
		return k.loadChanges()
	}
	return k.readChanges()
}

// openUnion makes one of all layers, for as long as they are looked at.
func (k *kept) openUnion() error {
	own, err := fsat.OpenDir(k.fd, k.record.Layer)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	k.layer, err = k.union(unionName, own)
	return err
}

// copyName is a copy of the own layer of a busy box.
const copyName = unionName + "-copy"

func (k *kept) openCopy() error {
	if err := fsat.RemoveAll(k.fd, copyName); err != nil {
		return err
	}
	fd, err := fsat.Mkdir(k.fd, copyName, 0o700)
	if err != nil {
		return stateError(err)
	}
	if err := k.snapshot(fd); err != nil {
		unix.Close(fd)
		return err
	}
	if len(k.record.Layers) == 0 {
		k.layer = fd
		return nil
	}
	defer unix.Close(fd)
	k.layer, err = k.union(unionName, fd)
	return err
}

// readChanges reads what the layers change, by what the branch saw.
func (k *kept) readChanges() error {
	if err := k.see(); err != nil {
		return err
	}
	src := changeset.Source{
		Form: k.record.Form, Layer: k.layer, Workspace: k.ws.FD, Git: true, XattrPrefix: k.prefix(), Merged: -1, Manifest: -1, Hidden: k.record.hidden(),
	}
	if k.record.Form == changeset.Tree {
		fd, err := fsat.Open(k.fd, "manifest", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		src.Manifest = fd
	}
	c, err := changeset.Read(src)
	if err != nil {
		return ofBox(k.id, err)
	}
	if k.record.Form == changeset.Overlay {
		seen, err := k.stackSeen()
		if err != nil {
			return err
		}
		c.Inherit(seen)
	}
	if k.record.Promoted {
		promoted, err := k.decode(promotedName)
		if err != nil {
			return err
		}
		c = c.Without(promoted)
	}
	if k.record.Stamp.Valid {
		changeset.MarkSeen(c, k.ws.FD, k.record.Stamp.T)
	}
	k.changes = c
	return nil
}

func (k *kept) decode(name string) (*changeset.Changeset, error) {
	text, err := k.readFile(name)
	if err != nil {
		return nil, err
	}
	return changeset.Decode(bytes.NewReader(text))
}

func (k *kept) loadChanges() (err error) {
	if k.changes, err = k.decode(changesName); err != nil {
		return ofBox(k.id, err)
	}
	return nil
}

// shown is the part of the change that is promoted by default; all of it where
// only .git was changed.
func (k *kept) shown() *changeset.Changeset {
	if onlyGit(k.changes) {
		return k.changes
	}
	part, _ := changeset.Split(k.changes, func(e *changeset.Entry) bool { return !inGit(e.Path) })
	return part
}

func (k *kept) close() {
	if k.ws != nil {
		k.ws.Close()
	}
	if k.layer >= 0 {
		unix.Close(k.layer)
	}
	if !k.gone { // they share files with the layers
		_ = fsat.RemoveAll(k.fd, unionName)
		_ = fsat.RemoveAll(k.fd, copyName)
	}
}

func (k *kept) delivery(p Promotion) *delivery {
	return &delivery{
		Promotion: p, store: k.boxes.store, ws: k.ws, dir: k.dir, layer: k.layer, whole: k.changes, stamp: k.record.Stamp, picked: -1, shared: k.record.Shared || len(k.record.Layers) > 0,
		overlay: overlayPrefix(k.record.Form, k.record.Trusted),
	}
}

// View lets do look at what a box changed, .git only where that is asked for or
// all there is. Judge asks the handoff guard about a part of it. Processes of a
// busy box are stopped for as long as its layer is copied; nothing is started in
// the box until do returns.
func (b *Boxes) View(_ context.Context, name string, git bool, do func(c *changeset.Changeset, t changeset.Trees, judge Judge) error) error {
	h, err := b.hold(name)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return noBox(name)
	}
	k, err := h.openKept()
	if err != nil {
		return err
	}
	defer k.close()
	changes := k.changes
	if !git {
		changes = k.shown()
	}
	judge := func(c *changeset.Changeset) ([]guard.Finding, error) {
		d := k.delivery(Promotion{})
		d.part = c
		return d.judge()
	}
	return do(changes, changeset.Trees{Layer: k.layer, Workspace: k.ws.FD, Picked: -1}, judge)
}

// View is that of Boxes, for a process that works on one box.
func (s *Store) View(id string, git bool, do func(c *changeset.Changeset, t changeset.Trees, judge Judge) error) error {
	return s.boxes().View(context.Background(), id, git, do)
}

// Commit promotes a box, or what is selected of it. The box goes when nothing is
// left in it, or lives on, on a fresh layer, where the request keeps it. A
// *promote.ConflictError or a *HeldError leaves it as it is. It must be quiet.
func (b *Boxes) Commit(_ context.Context, name string, c api.Commit) (*Promoted, error) {
	mode := promote.Mode(c.OnConflict)
	if mode == "fail" {
		mode = promote.Fail
	}
	if !slices.Contains([]promote.Mode{promote.Fail, promote.Ours, promote.Theirs, promote.Merge}, mode) {
		return nil, &api.Error{Code: api.Invalid, Text: fmt.Sprintf("on_conflict %q: use fail, ours, theirs or merge", c.OnConflict)}
	}
	return b.commit(name, Promotion{
		Git: c.Git, KeepTimes: c.KeepTimes, Only: c.Only, Except: c.Except, Allow: c.Allow, Protect: c.Protect, Hold: c.Hold, OnConflict: mode, Markers: c.Markers,
	}, c.Keep)
}

// Promote is Commit with all that a caller in this process can ask for, to pick
// among the changes too. With keep the box lives on, on a fresh layer.
func (b *Boxes) Promote(_ context.Context, name string, opts Promotion, keep bool) (*Promoted, error) {
	return b.commit(name, opts, keep)
}

// Commit is that of Boxes, for a process that works on one box.
func (s *Store) Commit(id string, opts Promotion) (*Promoted, error) {
	return s.boxes().commit(id, opts, false)
}

func (b *Boxes) commit(name string, opts Promotion, keep bool) (*Promoted, error) {
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.quiet("to commit"); err != nil {
		return nil, err
	}
	interrupted := !h.gone && h.record.State == api.Committing
	if !interrupted {
		if err := h.may(api.Committing); err != nil {
			return nil, err
		}
		if h.live == nil && !h.record.Read {
			if err := h.squash(); err != nil {
				return nil, err
			}
		}
	}
	k, err := h.openKept()
	if err != nil {
		return nil, err
	}
	defer k.close()
	if interrupted {
		if arrived, err := k.resume(); arrived != nil || err != nil {
			return arrived, err
		}
	}
	return k.commit(opts, keep)
}

func (k *kept) commit(opts Promotion, keep bool) (*Promoted, error) {
	d := k.delivery(opts)
	defer d.close()
	unpromoted := func(err error) (*Promoted, error) {
		p := d.report()
		p.Kept = true
		return p, err
	}
	if err := d.choose(); err != nil {
		return unpromoted(err)
	}
	if d.part.Empty() && !k.changes.Empty() && len(d.held) == 0 {
		if onlyGit(k.changes) && !opts.Git {
			return nil, fmt.Errorf("box %s holds only changes of .git; `hutch commit %s --git include` promotes them, `hutch discard %s` drops them", k.id, k.id, k.id)
		}
		return nil, fmt.Errorf("box %s: nothing of its change is selected; `hutch diff %s --name-status` lists it", k.id, k.id)
	}
	if err := k.deliver(d, keep); err != nil {
		return unpromoted(err)
	}
	report := d.report()
	report.Diff, report.Receipt = listed(d.arrived()), d.receipt
	if err := k.conclude(); err != nil {
		return report, err
	}
	report.Kept = !k.gone
	return report, nil
}

// deliver promotes what was chosen. The box's record and what will stay in it
// are on the disk before: whoever finds the promotion done can close the books.
func (k *kept) deliver(d *delivery, keep bool) error {
	before := k.record.clone()
	k.record = k.record.clone()
	k.record.Keep, k.record.Left = keep, len(d.rest.Entries)
	if d.part.Empty() {
		return nil
	}
	if !k.record.Read { // else the file says it
		if err := k.saveChanges(changesName, k.changes); err != nil {
			return err
		}
		k.record.Read = true
	}
	k.record.State, k.record.Left = api.Committing, len(d.rest.Entries)
	k.record.Commits++
	k.record.Transaction = fmt.Sprintf("%s-commit", k.id)
	if k.record.Commits > 1 {
		k.record.Transaction += fmt.Sprintf("-%d", k.record.Commits)
	}
	receipt, err := json.Marshal(k.fields(d))
	if err != nil {
		return err
	}
	if k.record.Left > 0 {
		k.record.Reason = d.reason()
		if err := k.saveChanges(restName, d.rest); err != nil {
			return err
		}
	}
	if err := k.write(k.record); err != nil {
		return err
	}
	err = d.apply(k.record.Transaction, receipt)
	switch {
	case errors.Is(err, promote.ErrPending):
		return err // the next command on this workspace decides
	case err != nil:
		before.State, before.Commits, before.Transaction = api.Ready, k.record.Commits, k.record.Transaction
		return errors.Join(err, k.writeRecord(before, true))
	case k.record.Left == 0:
		return nil
	}
	return k.leave(d.part, d.rest)
}

// leave notes what of the layers is in the workspace now, and what is not.
func (k *kept) leave(part, rest *changeset.Changeset) error {
	if err := changeset.Rebase(rest, part, k.ws.FD); err != nil {
		return err
	}
	promoted, err := changeset.Promoted(part, k.ws.FD)
	if err != nil {
		return err
	}
	if k.record.Promoted {
		earlier, err := k.decode(promotedName)
		if err != nil {
			return err
		}
		earlier.Add(promoted)
		promoted = earlier
	}
	if err := k.saveChanges(promotedName, promoted); err != nil {
		return err
	}
	return k.saveChanges(restName, rest)
}

// resume closes the books of a commit that was cut short: it returns what
// arrived, or nil when the commit never reached its commit point.
func (k *kept) resume() (*Promoted, error) {
	if k.record.State != api.Committing {
		return nil, nil
	}
	state, err := promote.Status(k.ws.FD, k.record.Transaction)
	if err != nil {
		return nil, err
	}
	if state != promote.Done && state != promote.Undone { // undone since: the layer is spent all the same
		r := k.record.clone()
		r.State = api.Ready
		return nil, k.writeRecord(r, true)
	}
	part := k.changes
	if k.record.Left > 0 {
		if part, err = k.rebase(state); err != nil {
			return nil, err
		}
	}
	if err := k.conclude(); err != nil {
		return nil, err
	}
	p := NewPromoted()
	p.Diff, p.Left, p.Kept, p.Receipt = listed(part), k.record.Left, !k.gone, k.record.Transaction
	return p, nil
}

// rebase does for a promotion that was cut short what deliver does after one,
// and returns what arrived.
func (k *kept) rebase(state promote.State) (part *changeset.Changeset, err error) {
	text, err := k.readFile(restName)
	if errors.Is(err, fs.ErrNotExist) {
		return &changeset.Changeset{}, nil // the books were all but closed
	}
	if err != nil {
		return nil, err
	}
	rest, err := changeset.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, ofBox(k.id, err)
	}
	part = changeset.Taken(k.changes, rest)
	if state != promote.Done {
		return part, nil
	}
	return part, k.leave(part, rest)
}

// conclude follows a promotion that is in the workspace: the box goes, or what
// was not promoted is now all that it holds, or it lives on with nothing.
func (k *kept) conclude() error {
	switch {
	case k.record.Left == 0 && k.record.Keep:
		return k.reset(context.Background(), k.ws)
	case k.record.Left == 0:
		if err := k.over(api.Committed, true); err != nil {
			return fmt.Errorf("box %s was promoted, but its directory could not be removed: %w", k.id, err)
		}
		return nil
	}
	err := fsat.Rename(k.fd, restName, k.fd, changesName, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // not there: done before a crash
		return err
	}
	if err := fsat.Fsync(k.fd); err != nil {
		return err
	}
	if err := k.loadChanges(); err != nil {
		return err
	}
	r := k.record.clone()
	r.State, r.Files, r.Promoted, r.Read, r.Keep = api.Ready, len(k.changes.Entries), true, true, false
	if err := k.writeRecord(r, true); err != nil || k.live == nil {
		return err
	}
	// The workspace beneath the mount is another now: its overlay must not be
	// used on.
	return k.freeze(false, nil)
}

func (k *kept) fields(d *delivery) receiptFields {
	created, modified, deleted := d.part.Names()
	return receiptFields{
		Workspace: k.record.Workspace, Argv: clip(k.record.Argv), Status: d.status(), Strategy: string(k.record.Strategy), Rung: "full", Missing: []string{},
		Committed: true, Kept: len(d.rest.Entries) > 0, Digest: d.part.Digest, Created: firstPaths(created), Modified: firstPaths(modified), Deleted: firstPaths(deleted),
		Files: len(created) + len(modified) + len(deleted), Held: firstFindings(d.held), Flagged: firstFindings(d.flagged), Left: len(d.rest.Entries), PeakFrom: "none",
	}
}

// Discard drops a box. The workspace is not touched.
func (s *Store) Discard(id string) error {
	return s.boxes().Discard(context.Background(), id, false)
}

// Recover finishes or takes back what a crash left of promotions into a
// workspace, and returns what it found.
// It follows the journals of another state directory only where their ids are
// given in foreign.
func (s *Store) Recover(path string, foreign ...string) ([]promote.Recovered, error) {
	ws, err := workspace.Open(cmp.Or(path, "."), true)
	if err != nil {
		return nil, err
	}
	defer ws.Close()
	return s.recoverAll(ws.FD, foreign...)
}

func (s *Store) recover(workspaceFD int) error {
	pending, err := promote.Pending(workspaceFD)
	if err != nil {
		return fmt.Errorf("look for an interrupted promotion: %w", err)
	}
	if !pending {
		return nil
	}
	_, err = s.recoverAll(workspaceFD)
	return err
}

func (s *Store) recoverAll(workspaceFD int, foreign ...string) ([]promote.Recovered, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	recovered, err := promote.Recover(workspaceFD, key, s.recordRecovered, foreign...)
	if err != nil {
		return recovered, fmt.Errorf("recover an interrupted promotion: %w", err)
	}
	return recovered, nil
}

// recordRecovered writes the receipt of a promotion, or of an undo, that died
// before it could.
func (s *Store) recordRecovered(r promote.Recovered) error {
	if len(r.Receipt) == 0 || r.Foreign {
		return nil
	}
	id := r.ID
	if r.Undone {
		id = undoReceiptID(id)
	}
	if found, err := s.Receipts.Show(id); err == nil && found.ID == id {
		return nil
	}
	if _, err := s.Receipts.Append(id, json.RawMessage(r.Receipt), true); err != nil {
		return fmt.Errorf("its receipt could not be written: %w", err)
	}
	return nil
}

// saveOutput keeps output that was too long for the outcome when the box itself
// is not kept; "" when it cannot.
func (s *Store) saveOutput(d *dir, name string) string {
	outputs := filepath.Join(s.Path, "outputs")
	if err := os.Mkdir(outputs, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return ""
	}
	path := filepath.Join(outputs, d.id+"."+name)
	if err := os.Rename(filepath.Join(d.path, name), path); err != nil {
		return ""
	}
	return path
}

// settled is how long a directory that nobody holds is left alone: its maker
// may not have locked it yet.
const settled = time.Minute

// sweep clears what crashed runs left in a directory of boxes.
func (s *Store) sweep(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < settled || strings.HasSuffix(e.Name(), rescued) || notABox(e) {
			continue
		}
		_ = s.clear(filepath.Join(base, e.Name()), func(r *Record) bool { return r == nil })
	}
}

// notABox reports whether an entry of a directory of boxes is something else: the
// layers, where --layer-dir named it.
func notABox(e fs.DirEntry) bool { return e.Name() == layersName }

func (s *Store) clear(path string, due func(*Record) bool) error {
	d, err := openDir(path)
	if err != nil {
		return err
	}
	defer d.close()
	r, err := d.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !due(r) {
		return errBusy
	}
	return d.remove()
}

// Budget is what gc leaves: kept boxes and long outputs that are younger than
// Age, the newest of them up to Count.
type Budget struct {
	Age   time.Duration
	Count int
}

// DefaultBudget is what `hutch gc` leaves without flags.
var DefaultBudget = Budget{Age: 30 * 24 * time.Hour, Count: 100}

// Collected counts what gc removed.
type Collected struct {
	Boxes       int   `json:"boxes"`
	Crashed     int   `json:"crashed"`
	Layers      int   `json:"layers"` // that no box lies upon
	Outputs     int   `json:"outputs"`
	UndoneBytes int64 `json:"undo_bytes"`
}

// Collect removes what the budget does not allow, and what crashes left.
func (s *Store) Collect(b Budget, workspacePath string) (Collected, error) {
	var c Collected
	var errs []error
	jail.SweepCgroups()
	keep := map[string]bool{}
	records, err := s.Boxes()
	if err != nil {
		return c, err
	}
	for i, r := range records {
		keep[r.ID] = r.Lasting || r.State == api.Committing || (time.Since(r.Created) < b.Age && len(records)-i <= b.Count)
	}
	for _, base := range s.bases() {
		entries, _ := os.ReadDir(base)
		for _, e := range entries {
			crashed, saved := false, strings.HasSuffix(e.Name(), rescued)
			if notABox(e) || saved && !old(e, b.Age) {
				continue
			}
			err := s.clear(filepath.Join(base, e.Name()), func(r *Record) bool {
				crashed = r == nil && !saved
				return saved || crashed && old(e, settled) || r != nil && !keep[r.ID]
			})
			switch {
			case errors.Is(err, errBusy):
			case err != nil:
				errs = append(errs, err)
			case crashed:
				c.Crashed++
			default:
				c.Boxes++
			}
		}
	}
	s.sweepNames()
	n, err := s.collectLayers()
	c.Layers = n
	errs = append(errs, err)
	s.forgetEnded(b.Age)
	outputs, _ := os.ReadDir(filepath.Join(s.Path, "outputs"))
	for _, e := range outputs {
		id, _, _ := strings.Cut(e.Name(), ".")
		if old(e, b.Age) && !keep[id] {
			if err := os.Remove(filepath.Join(s.Path, "outputs", e.Name())); err != nil {
				errs = append(errs, err)
				continue
			}
			c.Outputs++
		}
	}
	if ws, err := workspace.Open(cmp.Or(workspacePath, "."), true); err == nil {
		defer ws.Close()
		key, err := s.key()
		if err != nil {
			return c, errors.Join(append(errs, err)...)
		}
		freed, err := promote.Prune(ws.FD, key, promote.Budget{Count: promote.DefaultBudget.Count, Bytes: promote.DefaultBudget.Bytes, Age: min(b.Age, promote.DefaultBudget.Age)})
		c.UndoneBytes = freed
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// collectLayers removes the layers that no box needs, which crashes left.
func (s *Store) collectLayers() (removed int, err error) {
	for _, base := range s.bases() {
		path := layersPath(s, base)
		if _, serr := os.Lstat(path); serr != nil {
			continue
		}
		store, serr := layers.Open(path)
		if serr != nil {
			err = errors.Join(err, serr)
			continue
		}
		n, serr := store.Collect(func(owner, id string) bool { return needs(filepath.Join(base, owner), id) }, layers.Settled)
		store.Close()
		removed += n
		err = errors.Join(err, serr)
	}
	return removed, err
}

// needs reports whether a box needs a layer. Of one that another process holds
// nobody can tell: it may be about to write so into its record.
func needs(path, id string) bool {
	d, err := openDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	defer d.close()
	r, err := d.read()
	return err != nil || r.uses()[id]
}

func old(e fs.DirEntry, age time.Duration) bool {
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) >= age
}
