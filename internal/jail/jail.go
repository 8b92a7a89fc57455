package jail

import (
	"fmt"
	"syscall"

	"hutch/internal/plan"
)

// ReportKind says what boxinit reports.
type ReportKind uint32

// The reports of boxinit.
const (
	Born       ReportKind = iota + 1 // A: pid; FD: pidfd of PID 1
	Missing                          // a step that may fail did; Text: what
	FD                               // A: tag; FD
	Ready                            // the plan is done, commands may start
	Started                          // A: pid in the box, B: CLOCK_MONOTONIC ns; C, D: user and system µs that making the box took
	NotStarted                       // Err: errno of exec, or of what starting it took; Text: the command, or "" before it was looked at; A: 1 when its directory is what cannot be entered
	Exited                           // A: wait status, B: CLOCK_MONOTONIC ns, C: user µs, D: system µs
	Failed                           // a step failed and the box is gone; Err, Op, Step, Text
	Denied                           // the box refused a command a call; A: number (-1: others), B: first argument of the first, D: third, C: how often so far; Err; Text: name of the process
	Traffic                          // A: packets without a route, B: datagrams to closed ports of the box's own loopback
	busy                             // of the keeper: what is mounted there is in use, nothing was changed
	lost                             // of the keeper: what was mounted there is gone, and nothing is in its place
)

// Report is one message from boxinit.
type Report struct {
	Kind ReportKind
	Op   plan.Code
	Step int
	Err  syscall.Errno
	// Exec is the ID of the command it is about; 0: the box, and what an earlier
	// command left running in it, or a command without an ID.
	Exec       uint32
	A, B, C, D uint64
	Text       string
	FD         int // -1 when none came along
}

// StepError is a step of the plan that the kernel refused.
type StepError struct {
	Op   plan.Code
	Step int
	Arg  string
	Err  syscall.Errno
}

func (e *StepError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Op, e.Arg, e.Err.Error())
}

func (e *StepError) Unwrap() error { return e.Err }

// Command is what a box is told to start.
type Command struct {
	// ID is how reports and signals name the command: unique in a box that
	// serves many, and any number in a box that serves one.
	ID     uint32
	Argv   []string // at least one
	Env    []string
	Dir    string // absolute, in the box
	Search string // PATH by which Argv[0] is found when it holds no slash
	// Terminal gives it a terminal of the box's own instead of the descriptors
	// below; its master is reported with plan.TagTerminal, before Started.
	Terminal bool
	// Size is the terminal's: rows, columns, and both in pixels.
	Size [4]uint16
	// Stdin, Stdout and Stderr are descriptors of this process; a negative
	// Stdin is the box's own /dev/null.
	Stdin, Stdout, Stderr int
}

// Limits are those of a box that a control group can hold. Zero means no limit.
type Limits struct {
	Memory  int64   // bytes
	Swap    int64   // bytes beside Memory; where Memory is limited, 0 is none
	Pids    int64   // processes and threads
	CPUs    float64 // processors' worth of time
	CPUTime bool    // processor time is limited, so it must be counted
}

// None reports whether nothing is limited.
func (l Limits) None() bool { return l == Limits{} }
