package box

import (
	"encoding/json"
	"time"

	"hutch/internal/promote"
)

// UndoOptions says what to take back.
type UndoOptions struct {
	Workspace string // a directory; "" is the current one
	Receipt   string // of the promotion, or an unambiguous beginning; "" is the last that is not undone
}

// Undone is a promotion that was taken back.
type Undone struct {
	ID      string        `json:"id"`
	Receipt string        `json:"receipt"` // of the undo
	Tally   promote.Tally `json:"undid"`   // what the promotion had done
}

// Logged is one promotion into a workspace, as the log shows it.
type Logged struct {
	ID       string        `json:"id"`
	Time     time.Time     `json:"time"`
	State    promote.State `json:"state"` // "done", "undone", "aborted", "foreign", or "pruned"
	Argv     []string      `json:"argv"`
	Created  int           `json:"created"`
	Modified int           `json:"modified"`
	Deleted  int           `json:"deleted"`
	Bytes    int64         `json:"undo_bytes"`
	CanUndo  bool          `json:"can_undo"` // nothing is known against it
	NoUndo   string        `json:"no_undo,omitempty"`

	Receipt json.RawMessage `json:"-"`
}

// Pruned is the state of a promotion that only its receipt tells of.
const Pruned promote.State = "pruned"
