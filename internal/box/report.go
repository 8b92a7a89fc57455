package box

import (
	"encoding/base64"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/globs"
	"hutch/internal/guard"
	"hutch/internal/outcome"
	"hutch/internal/promote"
)

// DiffReport is what a box changed, as programs read it: `hutch diff --json`,
// and the daemon's answer.
type DiffReport struct {
	*outcome.Diff
	Entries    []DiffEntry         `json:"entries"`
	Renamed    []DirRename         `json:"renamed_directories"`
	Skipped    []changeset.Skipped `json:"skipped"`
	GitChanged bool                `json:"git_changed"`
	Held       []guard.Finding     `json:"held"`               // what the handoff guard would not let pass
	Flagged    []guard.Finding     `json:"flagged"`            // what it would let pass and name
	Unjudged   string              `json:"unjudged,omitempty"` // why it could not judge
	Untold     []changeset.Untold  `json:"not_in_patch"`       // what no patch can carry
}

// DirRename is a directory of which most files moved to another.
type DirRename struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Files int    `json:"files"`
}

// DiffEntry is one changed path.
type DiffEntry struct {
	Path       string       `json:"path"`
	PathBase64 string       `json:"path_base64,omitempty"` // when it is not UTF-8
	Op         changeset.Op `json:"op"`
	Type       fsat.Type    `json:"type"` // after; of a deleted path, before
	Old        *DiffSide    `json:"old"`
	New        *DiffSide    `json:"new"`
	// Of files and symlinks only, as a patch has them:
	Status     changeset.Status `json:"status,omitempty"`
	RenameFrom string           `json:"rename_from,omitempty"`
	Similarity int              `json:"similarity,omitempty"` // percent
	Binary     bool             `json:"binary,omitempty"`
	NotShown   string           `json:"not_shown,omitempty"` // why a patch does not show it
	Hunks      int              `json:"hunks"`
	Added      int              `json:"added"` // lines
	Removed    int              `json:"removed"`
}

// DiffSide is one state of a path.
type DiffSide struct {
	Type   fsat.Type `json:"type"`
	Mode   string    `json:"mode"` // octal
	Size   int64     `json:"size"`
	Digest string    `json:"digest,omitempty"`
	Target string    `json:"target,omitempty"`
}

func side(s *changeset.State) *DiffSide {
	if s == nil {
		return nil
	}
	return &DiffSide{Type: s.Type, Mode: fmt.Sprintf("%04o", s.Mode), Size: s.Size, Digest: s.Digest, Target: s.Target}
}

// Describe reports a change. elapsed_micros counts from start.
func Describe(c *changeset.Changeset, t changeset.Trees, judge Judge, start time.Time) (*DiffReport, error) {
	files, dirs, err := FileStats(c, t)
	if err != nil {
		return nil, err
	}
	report := &DiffReport{
		Diff: &outcome.Diff{Digest: c.Digest}, Entries: []DiffEntry{}, Renamed: []DirRename{}, Skipped: []changeset.Skipped{},
		GitChanged: c.GitChanged, Held: []guard.Finding{}, Flagged: []guard.Finding{},
	}
	findings, err := judge(c)
	if err != nil {
		report.Unjudged = err.Error()
	}
	held, flagged := ByTier(findings)
	report.Held, report.Flagged = append(report.Held, held...), append(report.Flagged, flagged...)
	report.FilesCreated, report.FilesModified, report.FilesDeleted = c.Names()
	report.Skipped = append(report.Skipped, c.Skipped...)
	report.Untold = append([]changeset.Untold{}, c.Untold()...)
	for _, d := range dirs {
		report.Renamed = append(report.Renamed, DirRename(d))
	}
	byPath := map[string]*changeset.FileStat{}
	for i := range files {
		byPath[files[i].Path] = &files[i]
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		entry := DiffEntry{Path: e.Path, Op: e.Op, Old: side(e.Before), New: side(e.After)}
		if !utf8.ValidString(e.Path) {
			entry.PathBase64 = base64.StdEncoding.EncodeToString([]byte(e.Path))
		}
		if e.After != nil {
			entry.Type = e.After.Type
		} else {
			entry.Type = e.Before.Type
		}
		if f := byPath[e.Path]; f != nil {
			entry.Status, entry.RenameFrom, entry.Similarity = f.Status, f.From, f.Similarity
			entry.Binary, entry.NotShown, entry.Hunks, entry.Added, entry.Removed = f.Binary, f.Hidden, f.Hunks, f.Added, f.Removed
		}
		report.Entries = append(report.Entries, entry)
	}
	report.ElapsedMicros = time.Since(start).Microseconds()
	return report, nil
}

// FileStats are the files of a report, as changeset.WriteStat and its like take
// them.
func (r *DiffReport) FileStats() ([]changeset.FileStat, []changeset.DirRename) {
	state := func(s *DiffSide) *changeset.State {
		if s == nil {
			return nil
		}
		return &changeset.State{Type: s.Type, Size: s.Size}
	}
	before := map[string]*DiffSide{}
	for i := range r.Entries {
		before[r.Entries[i].Path] = r.Entries[i].Old
	}
	files := []changeset.FileStat{}
	for i := range r.Entries {
		e := &r.Entries[i]
		if e.Status == "" {
			continue
		}
		f := changeset.FileStat{
			Status: e.Status, Path: e.Path, From: e.RenameFrom, Similarity: e.Similarity, Before: state(e.Old), After: state(e.New),
			Binary: e.Binary, Hidden: e.NotShown, Added: e.Added, Removed: e.Removed, Hunks: e.Hunks,
		}
		if raw, err := base64.StdEncoding.DecodeString(e.PathBase64); err == nil && len(raw) > 0 {
			f.Path = string(raw)
		}
		if f.From != "" {
			f.Before = state(before[f.From])
		}
		files = append(files, f)
	}
	var dirs []changeset.DirRename
	for _, d := range r.Renamed {
		dirs = append(dirs, changeset.DirRename(d))
	}
	return files, dirs
}

// Select keeps of a change what matches one of the globs, in gitignore's syntax;
// all of it where there are none.
func Select(c *changeset.Changeset, patterns []string) (*changeset.Changeset, error) {
	chosen, err := globs.Parse(patterns)
	if err != nil {
		return nil, err
	}
	if chosen.Empty() {
		return c, nil
	}
	return c.Only(func(e *changeset.Entry) bool { return chosen.Match(e.Path, e.IsDir()) }), nil
}

// FileStats gathers what is known of each file without holding its content.
func FileStats(c *changeset.Changeset, t changeset.Trees) ([]changeset.FileStat, []changeset.DirRename, error) {
	files := []changeset.FileStat{}
	err := changeset.Files(c, t, func(f *changeset.FileChange) error {
		files = append(files, f.Stat())
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return files, c.DirRenames(files), nil
}

// ByTier parts what the guard holds from what it names.
func ByTier(findings []guard.Finding) (held, flagged []guard.Finding) {
	for _, f := range findings {
		if f.Tier == guard.Hold {
			held = append(held, f)
		} else {
			flagged = append(flagged, f)
		}
	}
	return held, flagged
}

// Delivery is what came of a commit, as programs read it: `hutch commit
// --json`, and the daemon's answer.
type Delivery struct {
	Status outcome.Status `json:"status"`
	*Promoted
	Error string `json:"error,omitempty"`
}

// Delivered reports what Commit returned: a conflict and what was held are in
// it, as is any other error.
func Delivered(done *Promoted, err error) *Delivery {
	if done == nil {
		done = NewPromoted()
	}
	report := &Delivery{Status: outcome.Success, Promoted: done}
	var conflict *promote.ConflictError
	var held *HeldError
	switch {
	case errors.As(err, &conflict):
		report.Status, done.Conflicts = outcome.Conflict, conflict.Conflicts
	case errors.As(err, &held):
		report.Status = outcome.Held
	case err != nil:
		report.Status = outcome.Error
	case len(done.Held) > 0:
		report.Status = outcome.Held
	}
	if err != nil {
		report.Error = err.Error()
		done.Diff = nil
	}
	return report
}
