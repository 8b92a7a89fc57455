package promote

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// Request is one promotion.
type Request struct {
	ID        string // names the transaction: lower-case letters, digits and dashes
	Workspace int    // directory descriptor of the workspace
	Layer     int    // directory descriptor of the layer the changeset was read from
	Picked    int    // directory descriptor of what changeset.Selection.Split wrote; for entries that have their content there
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
	// KeepLayer leaves the layer as it was, sharing nothing with the
	// workspace, for a box that lives on. Without it the layer is spent by a
	// promotion that succeeds: its files were moved.
	KeepLayer bool
}

// Result tells how a promotion went.
type Result struct {
	ID         string
	Promoted   int
	StagedBy   string // "rename", "reflink" or "copy": how most content came out of the layer; "" when there was none
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

// ErrPending is in the chain of an error of Apply that left a transaction for
// Recover: the workspace may hold part of it until then.
var ErrPending = errors.New("recovery is pending")

// Recovered is one transaction that Recover completed.
type Recovered struct {
	ID      string
	Forward bool   // true: finished; false: taken back
	Receipt []byte // of the transaction that was finished
	// Shared says that the layer may still hold names of files that are now
	// in the workspace: discard it, never run a box on it again.
	Shared bool
	// Kept says that the user changed paths between the crash and now, so
	// those were left as they are and the transaction's directory was kept
	// with what it holds.
	Kept bool
}

// State is how far a transaction came.
type State string

// The states of a transaction.
const (
	Absent    State = "absent"    // nothing of it is left, or it never was
	Unstarted State = "unstarted" // before its commit point: recovery drops it
	Committed State = "committed" // recovery finishes it
	Reversing State = "reversing" // recovery takes it back
	Done      State = "done"      // in the workspace; kept as undo data
	Aborted   State = "aborted"   // taken back, but kept because the user changed paths meanwhile
)

// Budget limits the finished transactions that are kept as undo data.
type Budget struct {
	Count int
	Bytes int64
	Age   time.Duration
}

// DefaultBudget is what Apply prunes to.
var DefaultBudget = Budget{Count: 20, Bytes: 256 << 20, Age: 14 * 24 * time.Hour}
