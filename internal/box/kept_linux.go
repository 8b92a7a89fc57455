package box

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/outcome"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// kept is a kept box, opened.
type kept struct {
	*dir
	record  *Record
	ws      *workspace.Workspace
	layer   int
	changes *changeset.Changeset
}

func (s *Store) openKept(id string) (*kept, error) {
	d, record, err := s.open(id)
	if err != nil {
		return nil, err
	}
	k := &kept{dir: d, record: record, layer: -1}
	if err := k.load(); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

func (k *kept) load() error {
	var err error
	if k.ws, err = workspace.Open(string(k.record.RawWorkspace), true); err != nil {
		return fmt.Errorf("box %s: %w", k.id, err)
	}
	if k.layer, err = fsat.OpenDir(k.fd, k.record.Layer); err != nil {
		return fmt.Errorf("box %s: open its layer: %w", k.id, err)
	}
	text, err := k.readFile(changesName)
	if err != nil {
		return fmt.Errorf("box %s: %w", k.id, err)
	}
	if k.changes, err = changeset.Decode(bytes.NewReader(text)); err != nil {
		return fmt.Errorf("box %s: %w", k.id, err)
	}
	return nil
}

func (k *kept) close() {
	if k.ws != nil {
		k.ws.Close()
	}
	if k.layer >= 0 {
		unix.Close(k.layer)
	}
	k.dir.close()
}

// Diff writes what a kept box changed as a unified diff, and returns the
// change's lists.
func (s *Store) Diff(w io.Writer, id string) (*outcome.Diff, error) {
	start := time.Now()
	k, err := s.openKept(id)
	if err != nil {
		return nil, err
	}
	defer k.close()
	if w != nil {
		if err := changeset.Patch(w, k.changes, k.layer, k.ws.FD); err != nil {
			return nil, err
		}
	}
	d := &outcome.Diff{Digest: k.changes.Digest, ElapsedMicros: time.Since(start).Microseconds()}
	d.FilesCreated, d.FilesModified, d.FilesDeleted = k.changes.Names()
	return d, nil
}

// CommitOptions says how a kept box is promoted.
type CommitOptions struct {
	Git       bool
	KeepTimes bool
}

// Commit promotes a kept box and removes it. A *promote.ConflictError leaves it
// as it is.
func (s *Store) Commit(id string, opts CommitOptions) (*outcome.Diff, error) {
	k, err := s.openKept(id)
	if err != nil {
		return nil, err
	}
	defer k.close()
	if err := s.recover(k.ws.FD); err != nil {
		return nil, err
	}
	// A commit that was cut short after its commit point has arrived.
	if state, err := promote.Status(k.ws.FD, transactionID(k.id)); err == nil && state == promote.Done && k.record.State == Committing {
		return k.finish()
	}
	if k.record.Reason == "git" && !opts.Git {
		return nil, fmt.Errorf("box %s holds only changes of .git; `hutch commit %s --git include` promotes them, `hutch discard %s` drops them", k.id, k.id, k.id)
	}
	if opts.Git && k.record.Reason != "git" {
		if err := k.includeGit(); err != nil {
			return nil, err
		}
	}
	if !k.record.Stamp.Valid {
		return nil, fmt.Errorf("box %s cannot be promoted: %s", k.id, k.record.Stamp.Reason)
	}
	fields := k.fields()
	record, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	k.record.State = Committing
	if err := k.write(k.record); err != nil {
		return nil, err
	}
	if !k.changes.Empty() {
		_, err = promote.Apply(context.Background(), promote.Request{
			ID: transactionID(k.id), Workspace: k.ws.FD, Layer: k.layer, Changes: k.changes, Stamp: k.record.Stamp.T, Receipt: record, KeepTimes: opts.KeepTimes,
		})
	}
	if errors.Is(err, promote.ErrPending) {
		return nil, err // the next command on this workspace decides
	}
	if err != nil {
		k.record.State = Kept
		return nil, errors.Join(err, k.write(k.record))
	}
	if _, err := s.Receipts.Append(k.id+"-commit", fields, true); err != nil {
		return nil, fmt.Errorf("box %s was promoted, but its receipt could not be written: %w", k.id, err)
	}
	return k.finish()
}

func transactionID(box string) string { return box + "-commit" }

func (k *kept) finish() (*outcome.Diff, error) {
	d := &outcome.Diff{Digest: k.changes.Digest}
	d.FilesCreated, d.FilesModified, d.FilesDeleted = k.changes.Names()
	if err := k.remove(); err != nil {
		return d, fmt.Errorf("box %s was promoted, but its directory could not be removed: %w", k.id, err)
	}
	return d, nil
}

// includeGit reads the layer anew, .git included, and keeps what is known of
// the inodes that the branch saw.
func (k *kept) includeGit() error {
	source := changeset.Source{
		Form: k.record.Form, Layer: k.layer, Workspace: k.ws.FD, Git: true,
		XattrPrefix: xattrPrefix(k.record.Trusted), Merged: -1, Manifest: -1,
	}
	if k.record.Form == changeset.Tree {
		fd, err := fsat.Open(k.fd, "manifest", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		source.Manifest = fd
	}
	full, err := changeset.Read(source)
	if err != nil {
		return err
	}
	full.InheritBases(k.changes)
	k.changes = full
	return nil
}

func (k *kept) fields() receiptFields {
	created, modified, deleted := k.changes.Names()
	return receiptFields{
		Workspace: k.record.Workspace, Argv: clip(k.record.Argv), Status: outcome.Success, Strategy: string(k.record.Strategy), Rung: "full", Missing: []string{},
		Committed: true, Digest: k.changes.Digest, Created: firstPaths(created), Modified: firstPaths(modified), Deleted: firstPaths(deleted),
		Files: len(created) + len(modified) + len(deleted), PeakFrom: "none",
	}
}

// Discard drops a kept box. The workspace is not touched.
func (s *Store) Discard(id string) error {
	d, record, err := s.open(id)
	if err != nil {
		return err
	}
	defer d.close()
	if record.State == Committing {
		// Its promotion may have passed the commit point: finish that first.
		if _, err := s.Recover(string(record.RawWorkspace)); err != nil {
			return err
		}
	}
	return d.remove()
}

// Recover finishes or takes back what a crash left of promotions into a
// workspace, and returns what it found.
func (s *Store) Recover(path string) ([]promote.Recovered, error) {
	ws, err := workspace.Open(cmp.Or(path, "."), true)
	if err != nil {
		return nil, err
	}
	defer ws.Close()
	return s.recoverAll(ws.FD)
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

func (s *Store) recoverAll(workspaceFD int) ([]promote.Recovered, error) {
	recovered, err := promote.Recover(workspaceFD)
	if err != nil {
		return recovered, fmt.Errorf("recover an interrupted promotion: %w", err)
	}
	for _, r := range recovered {
		if !r.Forward || len(r.Receipt) == 0 {
			continue
		}
		if _, err := s.Receipts.Show(r.ID); err == nil {
			continue
		}
		if _, err := s.Receipts.Append(r.ID, json.RawMessage(r.Receipt), true); err != nil {
			return recovered, fmt.Errorf("the receipt of the recovered promotion %s could not be written: %w", r.ID, err)
		}
	}
	return recovered, nil
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
		if err != nil || time.Since(info.ModTime()) < settled || strings.HasSuffix(e.Name(), rescued) {
			continue
		}
		_ = s.clear(filepath.Join(base, e.Name()), func(r *Record) bool { return r == nil })
	}
}

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
	Outputs     int   `json:"outputs"`
	UndoneBytes int64 `json:"undo_bytes"`
}

// Collect removes what the budget does not allow, and what crashes left.
func (s *Store) Collect(b Budget, workspacePath string) (Collected, error) {
	var c Collected
	var errs []error
	keep := map[string]bool{}
	records, err := s.Boxes()
	if err != nil {
		return c, err
	}
	for i, r := range records {
		keep[r.ID] = r.State == Committing || (time.Since(r.Created) < b.Age && len(records)-i <= b.Count)
	}
	for _, base := range s.bases() {
		entries, _ := os.ReadDir(base)
		for _, e := range entries {
			crashed, saved := false, strings.HasSuffix(e.Name(), rescued)
			if saved && !old(e, b.Age) {
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
		freed, err := promote.Prune(ws.FD, promote.Budget{Count: promote.DefaultBudget.Count, Bytes: promote.DefaultBudget.Bytes, Age: min(b.Age, promote.DefaultBudget.Age)})
		c.UndoneBytes = freed
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

func old(e fs.DirEntry, age time.Duration) bool {
	info, err := e.Info()
	return err == nil && time.Since(info.ModTime()) >= age
}
