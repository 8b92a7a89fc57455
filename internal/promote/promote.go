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
	// Key authenticates the journal; the same must be given to Recover and Undo.
	Key Key
	// Receipt is written into the journal, so that a recovery can complete
	// the record of a promotion whose process died.
	Receipt []byte
	// Record, where it is set, is called when the change is in the workspace
	// and durable, while a recovery would still finish the transaction: a
	// record made any later could be lost to a kill. Its error leaves the
	// transaction to Recover.
	Record func() error
	// Recovered is the same for promotions that were cut short and that Apply
	// finishes first.
	Recovered func(Recovered) error
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
	// Held is how many bytes are kept, or would have been, to undo it.
	Held int64
	// NoUndo says why it cannot be undone; "" when it can.
	NoUndo string
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
	Forward bool // true: finished; false: taken back
	// Undone says that what was finished, or taken back, is the undo of the
	// transaction.
	Undone  bool
	Receipt []byte // of what was finished
	// Foreign says that the journal was followed although another hutch wrote
	// it: nothing in it but the paths was checked, the receipt least of all.
	Foreign bool
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
	Undoing   State = "undoing"   // recovery finishes the undo
	Redoing   State = "redoing"   // an undo failed: recovery brings the promotion back
	Undone    State = "undone"    // out of the workspace again; kept with what was promoted
	Foreign   State = "foreign"   // of another hutch: not believed (only Log says it)
)

// settled reports whether recovery has nothing to do.
func (s State) settled() bool {
	return s == Absent || s == Done || s == Aborted || s == Undone
}

// Tally counts paths by what happened to them.
type Tally struct {
	Created  int `json:"created"`
	Modified int `json:"modified"`
	Deleted  int `json:"deleted"`
}

// UndoRequest names a finished promotion to take back.
type UndoRequest struct {
	Workspace int    // directory descriptor of the workspace
	ID        string // "" is the last one that is not undone
	Key       Key    // the one it was promoted with
	// Receipt returns what is to be written into the order to undo, so that a
	// recovery can complete the record of an undo whose process died. It may
	// be nil.
	Receipt func(UndoResult) ([]byte, error)
	// Record is called when the undo is in the workspace and durable, before
	// its books are closed: should it fail, the next recovery tells of the
	// undo once more. It may be nil.
	Record func(UndoResult) error
	// Recovered is that of [Request].
	Recovered func(Recovered) error
}

// UndoResult tells what was taken back.
type UndoResult struct {
	ID      string
	Tally   Tally  // what the promotion had done
	Promote []byte // the receipt of the promotion
	Receipt []byte // of the undo
}

// ChangedError says that nothing was undone, because the exact state before the
// promotion can no longer be had without losing something.
type ChangedError struct {
	ID      string
	Changes []Conflict // Box is what the promotion did
}

func (e *ChangedError) Error() string {
	paths := make([]string, len(e.Changes))
	for i, c := range e.Changes {
		paths[i] = fmt.Sprintf("%q (promotion: %s, since: %s)", c.Path, c.Box, c.Host)
	}
	return fmt.Sprintf("conflict: nothing was undone; since promotion %s something changed: %s", e.ID, strings.Join(paths, ", "))
}

// ErrNoUndo is in the chain of an error of Undo that found nothing to take back.
var ErrNoUndo = errors.New("nothing can be undone")

// Promotion is one entry of the log of a workspace.
type Promotion struct {
	ID      string
	Receipt []byte // JSON, as the promotion's Request gave it
	Time    time.Time
	Tally
	Bytes  int64 // of undo data
	State  State
	NoUndo string // why it cannot be undone; "" when nothing is known against it
}

// Budget limits the finished transactions that are kept as undo data.
type Budget struct {
	Count int
	Bytes int64
	Age   time.Duration
}

// DefaultBudget is what Apply prunes to.
var DefaultBudget = Budget{Count: 20, Bytes: 256 << 20, Age: 14 * 24 * time.Hour}
