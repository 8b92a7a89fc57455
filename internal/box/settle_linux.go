package box

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/outcome"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

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
	if !r.policy.FSWrite {
		r.changes = (&changeset.Changeset{}).Only(nil)
		return nil
	}
	if r.RAM {
		r.layer, r.result.Layer = r.result.Layer, -1
	} else {
		fd, err := fsat.OpenPath(r.dir.fd, r.branch.Layer)
		if err != nil {
			return fmt.Errorf("open the layer: %w", err)
		}
		r.layer = fd
	}
	// The box may have taken its owner's rights from its root, whose mode is no
	// part of a change.
	st, err := fsat.Fstat(r.layer)
	if err != nil {
		return fmt.Errorf("open the layer: %w", err)
	}
	if st.Mode&0o777 != r.ws.Stat.Mode&0o777 && (r.Commit || r.Preserve) {
		r.note("the mode of the workspace's own directory was changed in the box from %04o to %04o; that is not promoted", r.ws.Stat.Mode&0o777, st.Mode&0o777)
	}
	if st.Mode&0o700 != 0o700 {
		if err := fsat.Chmod(r.layer, st.Mode|0o700); err != nil {
			return fmt.Errorf("open the layer: %w", err)
		}
	}
	r.changes, err = r.readChanges(r.Git)
	if err != nil {
		return fmt.Errorf("read the change: %w", err)
	}
	return nil
}

func (r *run) readChanges(git bool) (*changeset.Changeset, error) {
	source := changeset.Source{
		Form: r.branch.Form, Layer: r.layer, Workspace: r.ws.FD, Git: git, GitIndex: r.ws.GitIndex,
		XattrPrefix: xattrPrefix(r.trusted), Merged: r.result.Workspace, Manifest: -1, Hidden: r.hidden,
	}
	if r.branch.Manifest != "" {
		fd, err := fsat.Open(r.dir.fd, r.branch.Manifest, unix.O_RDONLY, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		source.Manifest = fd
	}
	c, err := changeset.Read(source)
	if err == nil && (r.Commit || r.Preserve) && r.stamp.Valid {
		changeset.MarkSeen(c, r.ws.FD, r.stamp.T)
	}
	return c, err
}

// overlayPrefix is the prefix of the attributes in a layer; "" for a full tree.
func overlayPrefix(form changeset.Form, trusted bool) string {
	if form != changeset.Overlay {
		return ""
	}
	return xattrPrefix(trusted)
}

func xattrPrefix(trusted bool) string {
	if trusted {
		return "trusted.overlay."
	}
	return "user.overlay."
}

// commit promotes what was read, or what is selected of it.
func (r *run) commit() error {
	whole, err := r.whole()
	if err != nil {
		return err
	}
	d := &delivery{Promotion: r.Promotion, store: r.store, ws: r.ws, dir: r.dir, layer: r.layer, whole: whole, stamp: r.stamp, picked: -1, overlay: overlayPrefix(r.branch.Form, r.trusted)}
	defer d.close()
	refused := func(err error) error {
		r.out.Committed = false
		r.keep = "error"
		return errors.Join(fmt.Errorf("not promoted, box %s is kept: %w", r.id, err), r.preserve())
	}
	err = d.choose()
	report := d.report()
	r.out.Held, r.out.Flagged = report.Held, report.Flagged
	var held *HeldError
	if errors.As(err, &held) {
		r.out.Status, r.out.ExitCode, r.out.Error = outcome.Held, outcome.ExitHutch, held.Error()
		r.keep = "held"
		return nil
	}
	if err != nil {
		return refused(err)
	}
	if !d.part.Empty() {
		if err := r.deliver(d); err != nil {
			if errors.Is(err, promote.ErrPending) {
				r.out.Committed = false
				return err
			}
			var conflict *promote.ConflictError
			if !errors.As(err, &conflict) {
				return refused(err)
			}
			r.out.Committed = false
			r.out.Status, r.out.ExitCode, r.out.Conflicts = outcome.Conflict, outcome.ExitHutch, conflict.Conflicts
			r.out.Error = conflict.Error()
			r.keep = "conflict"
			return nil
		}
		if d.result.NoUndo != "" {
			r.note("undo will not be possible: %s", d.result.NoUndo)
		}
	}
	r.out.Committed = true
	r.out.Resolved = d.report().Resolved
	r.out.Notes = append(r.out.Notes, d.result.Notes...)
	r.out.Left = len(d.rest.Entries)
	if len(d.held) > 0 {
		r.out.Status, r.out.ExitCode = outcome.Held, outcome.ExitHutch
	}
	if r.out.Left == 0 {
		return nil
	}
	if !d.part.Empty() {
		if err := changeset.Rebase(d.rest, d.part, r.ws.FD); err != nil {
			return err
		}
	}
	r.rest, r.keep = d.rest, d.reason()
	if r.keep == "git" {
		r.note(".git was changed in the box and left out; `hutch commit %s --git include` promotes it too", r.id)
	}
	return nil
}

// deliver promotes what was chosen, with a receipt that says so in the journal.
func (r *run) deliver(d *delivery) error {
	r.out.Committed = true
	r.out.Left = len(d.rest.Entries)
	status, code := r.out.Status, r.out.ExitCode
	r.out.Status, r.out.Kept = d.status(), r.Preserve || r.out.Left > 0
	record, err := r.receipt()
	r.out.Status, r.out.ExitCode, r.out.Kept = status, code, false
	if err != nil {
		return err
	}
	// What stays must not be lost to a crash that comes after the commit
	// point.
	if r.out.Left > 0 {
		if err := r.saveRAM(); err != nil {
			return err
		}
		r.keep = d.reason()
		if err := errors.Join(r.dir.saveChanges(changesName, d.whole), r.dir.saveChanges(restName, d.rest)); err != nil {
			return err
		}
		kept := r.keptRecord(api.Committing, len(d.whole.Entries))
		kept.Commits, kept.Transaction, kept.Left = 1, r.id, r.out.Left
		if err := r.dir.write(kept); err != nil {
			return err
		}
	}
	err = d.apply(r.id, record)
	r.out.Receipt, r.pending = d.receipt, errors.Is(err, promote.ErrPending)
	return err
}

// whole is all of the change, what is left out by default included. It is read
// before anything is promoted: a promotion takes files out of the layer.
func (r *run) whole() (*changeset.Changeset, error) {
	if r.Git || !r.changes.GitChanged {
		return r.changes, nil
	}
	full, err := r.readChanges(true)
	if err != nil {
		return nil, fmt.Errorf("read .git: %w", err)
	}
	known := make(map[string]bool, len(r.changes.Entries))
	for i := range r.changes.Entries {
		known[r.changes.Entries[i].Path] = true
	}
	whole, _ := changeset.Split(full, func(e *changeset.Entry) bool { return inGit(e.Path) || known[e.Path] })
	whole.Skipped = r.changes.Skipped
	r.full = whole
	return whole, nil
}

// preserve writes down what a later command needs to diff, commit or discard
// the box: the identity of what the branch saw cannot be found out later.
func (r *run) preserve() error {
	changes := r.rest
	if changes == nil {
		var err error
		if changes, err = r.whole(); err != nil {
			return err
		}
	}
	if err := r.saveRAM(); err != nil {
		return err
	}
	if err := r.dir.saveChanges(changesName, changes); err != nil {
		return err
	}
	err := r.dir.write(r.keptRecord(api.Ready, len(changes.Entries)))
	r.out.Kept = err == nil
	return err
}

func (r *run) keptRecord(state api.State, files int) *Record {
	return &Record{
		ID: r.id, State: state, Reason: r.keep, Created: time.Now().UTC(), Workspace: r.ws.Path, RawWorkspace: []byte(r.ws.Path), Argv: r.Argv,
		Status: string(r.out.Status), ExitCode: r.out.ExitCode, Strategy: r.branch.Strategy, Form: r.branch.Form, Layer: r.branch.Layer,
		Trusted: r.trusted, Stamp: r.stamp, Files: files, Receipt: r.id, Work: r.branch.Work, Hidden: hiddenBytes(r.hidden), Read: true,
	}
}

// rescue keeps what a run wrote when neither promoting nor keeping it went well:
// somebody's work is in there.
func (r *run) rescue(cause error) error {
	r.keep = "rescue"
	path := r.dir.path + rescued
	if err := r.saveRAM(); err != nil {
		return fmt.Errorf("%w; and what the command wrote to RAM is lost: %w", cause, err)
	}
	if err := os.Rename(r.dir.path, path); err != nil {
		return fmt.Errorf("%w; what the command wrote lies in %s", cause, r.dir.path)
	}
	r.dir.path = path
	return fmt.Errorf("%w; what the command wrote lies in %s", cause, path)
}

// saveRAM moves a layer that would go with this process to the disk.
func (r *run) saveRAM() error {
	if !r.RAM || r.saved {
		return nil
	}
	if err := fsat.RemoveAll(r.dir.fd, "upper"); err != nil { // of an attempt that failed
		return stateError(err)
	}
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
	r.saved = true
	return nil
}

func (d *dir) saveChanges(name string, c *changeset.Changeset) error {
	var buf bytes.Buffer
	if err := c.Encode(&buf); err != nil {
		return err
	}
	return d.save(name, buf.Bytes())
}

const (
	changesName = "changes" // of a kept box
	restName    = "rest"    // what it will be when the commit under way is done
)
