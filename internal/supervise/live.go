package supervise

import (
	"time"

	"hutch/internal/jail"
)

// FollowOptions are what all commands of a resident box share.
type FollowOptions struct {
	// Owner is whom the commands' pipes are given to; nil: they stay the caller's.
	Owner *Owner
	// Limits are the box's own: Memory, Swap, Tasks and Disk. What no cgroup
	// holds is watched while a command runs or something is left running.
	Limits Limits
}

// LiveCommand is a command to start in a resident box.
type LiveCommand struct {
	// Exec is what is started; its descriptors are filled in here, and its ID
	// when that is 0.
	Exec jail.Command
	// Limits are the command's: Timeout, Output, and CPU, which counts its own
	// processes.
	Limits Limits
	Stdin  *Input // nil: end of file at once
	// Terminal, when it is not nil, is its input and output; all it writes is
	// Stdout's, and Stderr may be nil.
	Terminal *Terminal
	Stdout   *Capture
	Stderr   *Capture
}

// Process is one process of a box.
type Process struct {
	PID     int // in the box; 0 when unknown
	Host    int // on the host
	Parent  int // on the host
	Exec    uint32
	Name    string
	Argv    []string // the beginning of it; nil where it cannot be read
	State   byte     // as ps(1) shows it
	RSS     int64    // bytes
	CPU     time.Duration
	Started time.Time // to a hundredth of a second
}
