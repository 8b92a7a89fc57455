package promote

import (
	"fmt"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// Request is one promotion.
type Request struct {
	ID        string // names the transaction: lower-case letters, digits and dashes
	Workspace int    // directory descriptor of the workspace
	Layer     int    // directory descriptor of the layer the changeset was read from
	Changes   *changeset.Changeset
	// Stamp is T of the branch: a touched path whose ctime is T or later was
	// changed on the host meanwhile.
	Stamp fsat.Time
	// Receipt is written into the journal, so that a recovery can complete
	// the record of a promotion whose process died.
	Receipt []byte
	// KeepTimes promotes the files with the modification times they have in
	// the layer (--mtime=keep); else their order is kept and they end at the
	// commit, so that make sees them as new.
	KeepTimes bool
}

// Result tells how a promotion went.
type Result struct {
	ID         string
	Promoted   int
	StagedBy   string // "rename", "reflink" or "copy": how most content came out of the layer
	Durable    bool
	RolledBack bool // an error after the commit point was reversed
}

// Conflict is a path that the host changed as well.
type Conflict struct {
	Path string `json:"path"`
	Box  string `json:"box"`  // what the box did: "created", "modified", "deleted"
	Host string `json:"host"` // what the host did, a plain phrase
}

// ConflictError says that nothing was promoted because the host changed the
// same paths.
type ConflictError struct{ Conflicts []Conflict }

func (e *ConflictError) Error() string {
	paths := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		paths[i] = fmt.Sprintf("%q (box: %s, host: %s)", c.Path, c.Box, c.Host)
	}
	return "conflict: the workspace changed since the branch: " + strings.Join(paths, ", ")
}

// Recovered is one transaction that Recover completed.
type Recovered struct {
	ID      string
	Forward bool   // true: finished; false: taken back
	Receipt []byte // of the transaction that was finished
}
