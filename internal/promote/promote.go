package promote

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"hutch/internal/changeset"
	"hutch/internal/workspace"
)

// Request is one promotion.
type Request struct {
	ID        string // names the transaction: lower-case letters, digits and dashes
	Workspace int    // directory descriptor of the workspace
	Layer     int    // directory descriptor of the layer the changeset was read from
	Picked    int    // directory descriptor of what changeset.Selection.Split wrote; for entries that have their content there
	Changes   *changeset.Changeset
	// Stamp is taken before the branch: a touched path whose ctime is T or
	// later was changed on the host meanwhile. One that is not valid, or whose
	// clock was set back since, is refused.
	Stamp workspace.Stamp
	// OnConflict says what becomes of a path that host and box both changed.
	OnConflict Mode
	// Merge is asked under OnConflict Merge; without it nothing is merged.
	Merge MergeFunc
	// Markers takes a merge that is not clean too, with the markers in it.
	Markers bool
	// Receipt is written into the journal, so that a recovery can complete
	// the record of a promotion whose process died.
	Receipt []byte
	// Record, where it is set, is called when the change is in the workspace
	// and durable, while a recovery would still finish the transaction: a
	// record made any later could be lost to a kill. Its error leaves the
	// transaction to Recover.
	Record func() error
	// KeepTimes promotes the files with the modification times they have in
	// the layer (--mtime=keep); else their order is kept and they end at the
	// commit, so that make sees them as new.
	KeepTimes bool
	// KeepLayer leaves the layer as it was, sharing nothing with the
	// workspace, for a box that lives on. Without it the layer is spent by a
	// promotion that succeeds: its files were moved.
	KeepLayer bool
}

// Mode says what becomes of a path that host and box both changed.
type Mode string

// The modes. A path that no mode can settle without losing work that it does
// not know of stays a conflict in all of them; docs/conflicts.md lists these.
const (
	Fail   Mode = ""       // nothing at all is promoted
	Ours   Mode = "ours"   // the workspace's side stays, the rest is promoted
	Theirs Mode = "theirs" // the box's side is taken; what it displaces is undo data
	Merge  Mode = "merge"  // the contents of a file that both changed are merged
)

// MergeFunc merges the two contents of a regular file that host and box both
// changed. It returns nil for merged when there is no merge at all, and says
// why when the merge is not clean.
type MergeFunc func(path string, e *changeset.Entry, host, box []byte) (merged []byte, clean bool, why string)

// How is the way a conflict was settled.
type How string

// The ways.
const (
	TookOurs    How = "ours"    // the workspace's side stayed
	TookTheirs  How = "theirs"  // the box's side replaced it
	TookMerge   How = "merged"  // both changes are in it
	TookMarkers How = "markers" // both are in it, with conflict markers
)

// Resolution is one conflict that was settled.
type Resolution struct {
	Path string `json:"path"`
	How  How    `json:"how"`
}

// Result tells how a promotion went.
type Result struct {
	ID         string
	Promoted   int
	StagedBy   string // "rename", "reflink" or "copy": how most content came out of the layer; "" when there was none
	Durable    bool
	RolledBack bool // an error after the commit point was reversed
	Resolved   []Resolution
	Notes      []string // plain sentences on what arrived otherwise than the box had it
}

// Conflict is a path that the host changed as well.
type Conflict struct {
	Path string `json:"path"`
	Box  string `json:"box"`  // what the box did: "created", "modified", "deleted"
	Host string `json:"host"` // what the host did, a plain phrase
	// Why says why the mode asked for does not settle it, and what would; ""
	// under Fail.
	Why string `json:"why,omitempty"`
}

// ConflictError says that nothing was promoted because the host changed the
// same paths.
type ConflictError struct{ Conflicts []Conflict }

func (e *ConflictError) Error() string {
	paths := make([]string, len(e.Conflicts))
	for i, c := range e.Conflicts {
		why := ""
		if c.Why != "" {
			why = "; " + c.Why
		}
		paths[i] = fmt.Sprintf("%q (box: %s, host: %s%s)", c.Path, c.Box, c.Host, why)
	}
	return "conflict: the workspace changed since the branch: " + strings.Join(paths, ", ")
}

// ErrGitBusy is in the chain of an error of Apply that found git at work in a
// repository that the change is of. Nothing was promoted.
var ErrGitBusy = errors.New("git is running here")

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
