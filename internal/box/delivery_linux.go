package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/globs"
	"hutch/internal/guard"
	"hutch/internal/outcome"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// delivery is a change on its way from a box into the workspace: what is
// selected of it, what the guard says of that, and what stays behind.
type delivery struct {
	Promotion
	store   *Store
	ws      *workspace.Workspace
	dir     *dir
	layer   int
	overlay string               // prefix of the attributes of an overlay's layer; "" for a full tree
	whole   *changeset.Changeset // all of the box's change, .git included
	stamp   workspace.Stamp
	shared  bool // files of the layer have further names in frozen ones

	picked        int // directory of the content of partial files; -1
	part, rest    *changeset.Changeset
	held, flagged []guard.Finding
	result        promote.Result
	receipt       string // id of the receipt of what was promoted, once it is written
}

func (d *delivery) close() {
	if d.picked >= 0 {
		unix.Close(d.picked)
		d.picked = -1
		_ = fsat.RemoveAll(d.dir.fd, pickedName)
	}
}

const pickedName = "picked"

// choose decides what is promoted. A *HeldError says that the guard lets
// nothing pass.
func (d *delivery) choose() error {
	selection, err := d.selection()
	if err != nil {
		return err
	}
	// Nothing that is selected may get lost in silence.
	for _, skipped := range d.whole.Skipped {
		if skipped.Reason == changeset.TooLong && selection.Pass(&changeset.Entry{Path: skipped.Path, After: &changeset.State{Type: fsat.Regular}}) {
			return fmt.Errorf("%.80q…: %s; leave it out with --except", skipped.Path, skipped.Reason)
		}
	}
	held := map[string]bool{}
	selection.Never = func(e *changeset.Entry) bool { return held[e.Path] }
	for {
		if err := d.split(&selection); err != nil || d.part.Empty() {
			return err
		}
		// A part may do what the whole did not, so each is judged anew.
		findings, err := d.judge()
		if err != nil {
			return err
		}
		known := len(held)
		d.flagged = nil
		for _, f := range findings {
			if f.Tier != guard.Hold {
				d.flagged = append(d.flagged, f)
				continue
			}
			held[f.Path] = true
			d.held = append(d.held, f)
		}
		switch {
		case len(findings) == len(d.flagged):
			return nil
		case !d.Hold, len(held) == known:
			return &HeldError{Box: d.dir.id, Findings: d.held}
		}
	}
}

// split parts the change; the content of partial files goes into a directory
// of the box.
func (d *delivery) split(selection *changeset.Selection) error {
	d.close()
	if len(selection.Partial) > 0 {
		if err := fsat.RemoveAll(d.dir.fd, pickedName); err != nil { // of a process that died
			return stateError(err)
		}
		if err := unix.Mkdirat(d.dir.fd, pickedName, 0o700); err != nil {
			return stateError(err)
		}
		fd, err := fsat.OpenDir(d.dir.fd, pickedName)
		if err != nil {
			return err
		}
		d.picked = fd
	}
	var err error
	d.part, d.rest, err = selection.Split(d.whole, d.picked)
	return err
}

// selection is what the user asked for.
func (d *delivery) selection() (changeset.Selection, error) {
	var all changeset.Selection
	only, err := globs.Parse(d.Only)
	if err != nil {
		return all, fmt.Errorf("--only: %w", err)
	}
	except, err := globs.Parse(d.Except)
	if err != nil {
		return all, fmt.Errorf("--except: %w", err)
	}
	pass := func(e *changeset.Entry) bool {
		switch {
		case inGit(e.Path) && !d.Git:
			return false
		case !only.Empty() && !only.Match(e.Path, e.IsDir()):
			return false
		}
		return !except.Match(e.Path, e.IsDir())
	}
	if d.Pick == nil {
		return changeset.Selection{Pass: pass}, nil
	}
	offered, _ := changeset.Split(d.whole, pass)
	picked, err := d.Pick(offered, changeset.Trees{Layer: d.layer, Workspace: d.ws.FD, Picked: -1})
	if err != nil {
		return all, err
	}
	chosen := picked.Pass
	picked.Pass = func(e *changeset.Entry) bool { return pass(e) && (chosen == nil || chosen(e)) }
	return picked, nil
}

func inGit(path string) bool { return path == ".git" || strings.HasPrefix(path, ".git/") }

// judge asks the guard about the part.
func (d *delivery) judge() ([]guard.Finding, error) { return d.judgeOf(d.part, d.picked) }

func (d *delivery) judgeOf(part *changeset.Changeset, picked int) ([]guard.Finding, error) {
	rules, err := guard.Load(configFile(), d.ws.FD)
	if err != nil {
		return nil, err
	}
	home, _ := os.UserHomeDir()
	findings, err := guard.Judge(guard.Request{
		Changes: part, Shared: d.shared, Layer: d.layer, Overlay: d.overlay, Picked: picked, Workspace: d.ws.FD, WorkspacePath: d.ws.Path, Home: home,
		SearchPath: filepath.SplitList(os.Getenv("PATH")), Rules: rules, Allow: d.Allow, Protect: d.Protect,
	})
	if err != nil {
		return nil, fmt.Errorf("the handoff guard cannot judge the change: %w", err)
	}
	return findings, nil
}

// apply promotes what was chosen.
func (d *delivery) apply(id string, receipt []byte) error {
	if !d.stamp.Valid {
		return errors.New(d.stamp.Reason)
	}
	key, err := d.store.key()
	if err != nil {
		return err
	}
	var merge promote.MergeFunc
	if d.OnConflict == promote.Merge {
		var release func()
		merge, release = d.merger()
		merge = d.judged(merge)
		defer release()
	}
	d.result, err = promote.Apply(context.Background(), promote.Request{
		Key: key, ID: id, Workspace: d.ws.FD, Layer: d.layer, Picked: d.picked, Changes: d.part, Stamp: d.stamp, Receipt: receipt,
		KeepTimes: d.KeepTimes, OnConflict: d.OnConflict, Markers: d.Markers, Merge: merge,
		// What stays in the box must not share files with the workspace.
		KeepLayer: !onlyGit(d.rest),
		Recovered: d.store.recordRecovered,
		Record: func() error {
			if _, err := d.store.Receipts.Append(id, json.RawMessage(receipt), true); err != nil {
				return fmt.Errorf("the receipt could not be written: %w", err)
			}
			d.receipt = id
			return nil
		},
	})
	return err
}

func onlyGit(c *changeset.Changeset) bool {
	for i := range c.Entries {
		if !inGit(c.Entries[i].Path) {
			return false
		}
	}
	return true
}

// configFile is the user's own configuration, as this process knows it.
func configFile() string { return caller(os.Environ()).configFile() }

// reason is why a box is kept that something stays in.
func (d *delivery) reason() string {
	switch {
	case len(d.held) > 0:
		return "held"
	case onlyGit(d.rest):
		return "git"
	}
	return "selection"
}

// status is that of a promotion that went well.
func (d *delivery) status() outcome.Status {
	if len(d.held) > 0 {
		return outcome.Held
	}
	return outcome.Success
}

// report is what is known of it, whatever became of it.
func (d *delivery) report() *Promoted {
	p := NewPromoted()
	p.Held, p.Flagged = append(p.Held, d.held...), append(p.Flagged, d.flagged...)
	p.Resolved, p.Notes = append(p.Resolved, d.result.Resolved...), append(p.Notes, d.result.Notes...)
	if d.result.NoUndo != "" {
		p.Notes = append(p.Notes, "undo will not be possible: "+d.result.NoUndo)
	}
	if d.rest != nil {
		p.Left = len(d.rest.Entries)
	}
	return p
}

// arrived is the part without what was left to the workspace's side.
func (d *delivery) arrived() *changeset.Changeset {
	left := map[string]bool{}
	for _, r := range d.result.Resolved {
		left[r.Path] = r.How == promote.TookOurs
	}
	return d.part.Only(func(e *changeset.Entry) bool { return !left[e.Path] })
}

func listed(c *changeset.Changeset) *outcome.Diff {
	d := &outcome.Diff{Digest: c.Digest}
	d.FilesCreated, d.FilesModified, d.FilesDeleted = c.Names()
	return d
}
