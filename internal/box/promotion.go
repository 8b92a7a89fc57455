package box

import (
	"fmt"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/guard"
	"hutch/internal/outcome"
	"hutch/internal/promote"
)

// Promotion says which part of a change is promoted, and how. Its zero value
// promotes all but .git, or nothing when the guard holds something or the host
// changed the same paths.
type Promotion struct {
	Git       bool     // .git is part of the change
	KeepTimes bool     // modification times stay as they are; else they keep their order and end at the commit
	Only      []string // globs in gitignore's syntax: nothing else is promoted
	Except    []string // globs of what stays in the box
	// Pick chooses by file and hunk among what is left after Only and Except.
	Pick func(*changeset.Changeset, changeset.Trees) (changeset.Selection, error)

	Allow   []string // globs of what the guard lets pass this once
	Protect []string // globs of what it holds besides its table
	Hold    bool     // what the guard holds stays in the box, the rest is promoted

	OnConflict promote.Mode // what becomes of a path that the host changed too
	Markers    bool         // a merge that is not clean is written, with conflict markers
}

// Promoted is what became of a change on its way into the workspace.
type Promoted struct {
	Diff      *outcome.Diff        `json:"diff"` // what arrived
	Held      []guard.Finding      `json:"held"`
	Flagged   []guard.Finding      `json:"flagged"`
	Conflicts []promote.Conflict   `json:"conflicts"`
	Resolved  []promote.Resolution `json:"resolved"` // conflicts that OnConflict settled
	Notes     []string             `json:"notes"`
	Left      int                  `json:"left"` // changes that stay in the box
	Kept      bool                 `json:"kept"` // the box is still there
	Receipt   string               `json:"receipt"`
}

// NewPromoted is that of a change of which nothing is known and nothing arrived.
// None of its lists is nil.
func NewPromoted() *Promoted {
	return &Promoted{
		Diff: &outcome.Diff{FilesCreated: []string{}, FilesModified: []string{}, FilesDeleted: []string{}},
		Held: []guard.Finding{}, Flagged: []guard.Finding{}, Conflicts: []promote.Conflict{}, Resolved: []promote.Resolution{}, Notes: []string{},
	}
}

// Judge asks the handoff guard what of a change somebody else would run.
type Judge func(*changeset.Changeset) ([]guard.Finding, error)

// HeldError says that nothing was promoted because the handoff guard held some
// of it.
type HeldError struct {
	Box      string
	Findings []guard.Finding
}

func (e *HeldError) Error() string {
	lines := make([]string, len(e.Findings))
	for i, f := range e.Findings {
		lines[i] = f.Line()
	}
	return fmt.Sprintf("held: the change would make something else run: %s", strings.Join(lines, "; "))
}
