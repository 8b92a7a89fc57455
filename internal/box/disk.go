package box

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/workspace"
)

// Record is a box on disk. What changes while commands run is not in it but in
// the box's mark. A directory of a box without a record is that of a one-shot
// run while it is locked, and else what a crash left.
type Record struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"`
	State     api.State `json:"state"`  // never busy: the mark tells
	Reason    string    `json:"reason"` // why it was kept: "preserve", "conflict", "held", "selection", "git", "error"; why it failed
	Created   time.Time `json:"created"`
	Workspace string    `json:"workspace"`
	// RawWorkspace is Workspace where that is not UTF-8, which JSON would
	// change: base64.
	RawWorkspace []byte             `json:"raw_workspace"`
	Argv         []string           `json:"argv"`
	Status       string             `json:"status"`
	ExitCode     int                `json:"exit_code"`
	Strategy     workspace.Strategy `json:"strategy"`
	Form         changeset.Form     `json:"form"`
	// Layer is the box's own layer, and Work the overlay's work directory
	// beside it: names in the box's directory.
	Layer   string          `json:"layer"`
	Work    string          `json:"work,omitempty"`
	Trusted bool            `json:"trusted"`
	Stamp   workspace.Stamp `json:"stamp"`
	Files   int             `json:"files"` // entries of its changeset, when it was last read
	Receipt string          `json:"receipt"`

	// Lasting: it was made to live, by create or fork. Others are what
	// `hutch run` kept, and go when they are old.
	Lasting bool   `json:"lasting,omitempty"`
	Parent  string `json:"parent,omitempty"`
	Memory  int64  `json:"memory,omitempty"` // its limit, in bytes; 0: none
	// Layers are frozen layers below the box's own, the lowest first.
	Layers []string `json:"layers,omitempty"`
	// Moving is the former own layer on its way to become the topmost of
	// Layers: a crash may have come between this record and the rename.
	Moving string `json:"moving,omitempty"`
	// Shared: files of the own layer have names in frozen ones too.
	Shared      bool     `json:"shared,omitempty"`
	Hidden      [][]byte `json:"hidden,omitempty"` // paths of the workspace that the branch was made without
	Checkpoints []Check  `json:"checkpoints,omitempty"`
	// Read: the file `changes` says all that the layers hold against the
	// workspace, and nothing ran since.
	Read bool `json:"read,omitempty"`
	// Promoted: the file `promoted` says what earlier commits took.
	Promoted bool `json:"promoted,omitempty"`

	// Of the commit that is under way, or was the last.
	Commits     int    `json:"commits,omitempty"`
	Transaction string `json:"transaction,omitempty"`
	Left        int    `json:"left,omitempty"` // entries that it leaves in the box
	Keep        bool   `json:"keep,omitempty"` // the box lives on, on a fresh layer

	Ended *time.Time `json:"ended,omitempty"`
}

// Check is a checkpoint on disk.
type Check struct {
	Name    string          `json:"name"`
	Created time.Time       `json:"created"`
	Layers  []string        `json:"layers"` // the lowest first
	Stamp   workspace.Stamp `json:"stamp"`
	Copied  bool            `json:"copied,omitempty"` // the box was busy
}

// parseRecord reads a record, of an older hutch too.
func parseRecord(text []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.State == "kept" {
		r.State, r.Read = api.Ready, true
	}
	if r.Work == "" && r.Form == changeset.Overlay {
		r.Work = "work"
	}
	return &r, nil
}

func (r *Record) encode() ([]byte, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

// clone is a copy to be changed, and put in force by writing it.
func (r *Record) clone() *Record {
	c := *r
	c.Layers, c.Checkpoints = slices.Clone(r.Layers), slices.Clone(r.Checkpoints)
	return &c
}

// hidden are the paths that the branch was made without.
func (r *Record) hidden() []string {
	paths := make([]string, len(r.Hidden))
	for i, p := range r.Hidden {
		paths[i] = string(p)
	}
	return paths
}

// uses lists every frozen layer that the box or one of its checkpoints needs.
func (r *Record) uses() map[string]bool {
	used := map[string]bool{}
	for _, id := range r.Layers {
		used[id] = true
	}
	for _, c := range r.Checkpoints {
		for _, id := range c.Layers {
			used[id] = true
		}
	}
	return used
}

func (r *Record) checkpoint(name string) *Check {
	for i := range r.Checkpoints {
		if r.Checkpoints[i].Name == name {
			return &r.Checkpoints[i]
		}
	}
	return nil
}

func (c *Check) api() api.Checkpoint {
	return api.Checkpoint{Name: c.Name, Created: c.Created, Layers: len(c.Layers), Copied: c.Copied}
}

// api is what is known of the box to others.
func (r *Record) api(m mark) api.Box {
	b := api.Box{
		ID: r.ID, Name: r.Name, State: r.State, Reason: r.Reason, Live: m.Live, Created: r.Created, Ended: r.Ended, Workspace: r.Workspace, Parent: r.Parent,
		Strategy: string(r.Strategy), Memory: r.Memory, Layers: len(r.Layers), Execs: int(m.Execs), Argv: r.Argv, Status: r.Status, ExitCode: r.ExitCode,
		Checkpoints: make([]api.Checkpoint, 0, len(r.Checkpoints)), Running: []api.Exec{},
	}
	for i := range r.Checkpoints {
		b.Checkpoints = append(b.Checkpoints, r.Checkpoints[i].api())
	}
	b.State = m.over(r.State)
	return b
}

// mark is what is known of a box from one command to the next.
type mark struct {
	Live    bool   // its jail is there
	Running int    // commands that run
	Execs   uint32 // commands so far: the last one's number
	PID     int    // of the process that holds the box, where it is live
	Started uint64 // when that began: a pid comes round again
}

// markSize is that of the file, always: it is overwritten in place, which costs
// 2 µs and takes no room.
const markSize = 80

const markFormat = "live %t running %d execs %d pid %d started %d"

func (m mark) encode() []byte {
	return fmt.Appendf(make([]byte, 0, markSize), "%-79s\n", fmt.Sprintf(markFormat, m.Live, m.Running, m.Execs, m.PID, m.Started))
}

// parseMark reads a mark; the zero one of a box in which nothing ever ran.
func parseMark(text []byte) mark {
	var m mark
	if _, err := fmt.Sscanf(string(text), markFormat, &m.Live, &m.Running, &m.Execs, &m.PID, &m.Started); err != nil {
		return mark{}
	}
	return m
}

// over is the state of a box by its record and its mark.
func (m mark) over(recorded api.State) api.State {
	if recorded != api.Created && recorded != api.Ready {
		return recorded
	}
	switch {
	case m.Live && m.Running > 0:
		return api.Busy
	case m.Execs > 0:
		return api.Ready
	}
	return recorded
}

func hiddenBytes(paths []string) [][]byte {
	var raw [][]byte
	for _, p := range paths {
		raw = append(raw, []byte(p))
	}
	return raw
}
