package outcome

import (
	"hutch/internal/changeset"
	"hutch/internal/guard"
	"hutch/internal/promote"
)

// Schema names the version of the JSON form.
const Schema = "hutch.outcome/v1"

// Status is how a run ended.
type Status string

// The statuses.
const (
	Success        Status = "success"
	Failed         Status = "failed"          // the command's own non-zero exit
	Timeout        Status = "timeout"         // the deadline ended it
	MemoryExceeded Status = "memory_exceeded" // the memory limit ended it
	Killed         Status = "killed"          // a signal ended it
	OutputExceeded Status = "output_exceeded" // the output limit ended it
	DiskExceeded   Status = "disk_exceeded"   // the limit of bytes or inodes of the layer ended it
	CPUExceeded    Status = "cpu_exceeded"    // the limit of processor time ended it
	Denied         Status = "denied"          // refused by policy
	Held           Status = "held"            // the handoff guard held the change
	Conflict       Status = "conflict"        // the host changed the same paths
	Error          Status = "error"           // hutch itself failed
)

// The process exit codes that are not the command's own.
const (
	ExitTimeout       = 124 // timeout, cpu_exceeded
	ExitHutch         = 125 // denied, held, conflict, hutch's own error
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitSignal        = 128 // plus the signal's number
	ExitKilled        = 137 // memory_exceeded, output_exceeded, disk_exceeded
)

// Diff is the changeset as users see it: sorted paths relative to the
// workspace, directories ending in "/".
type Diff struct {
	FilesCreated  []string `json:"files_created"`
	FilesModified []string `json:"files_modified"`
	FilesDeleted  []string `json:"files_deleted"`
	ElapsedMicros int64    `json:"elapsed_micros"`
	Digest        string   `json:"digest"`
}

// Denial is something that the policy refused before anything was started.
type Denial struct {
	What string `json:"what"` // a capability or a key of the policy: "tty", "paths.hide"
	Why  string `json:"why"`  // with the source of the line that refuses it
	Do   string `json:"do"`   // what to type to have it
}

// Violation is something that the kernel refused a box while it ran, so that
// "my test failed" can be told from "the box refused".
type Violation struct {
	Kind    string `json:"kind"`              // "syscall" or "network"
	What    string `json:"what"`              // "mount", "socket AF_ALG", "packets had nowhere to go"
	Errno   string `json:"errno,omitempty"`   // "EPERM"
	Count   int64  `json:"count"`             // how often
	Process string `json:"process,omitempty"` // the name of the first process that tried (its own choice: up to 15 bytes, printable)
}

// Outcome is what is known of one run.
type Outcome struct {
	Schema              string               `json:"schema"`
	ID                  string               `json:"id"`
	Status              Status               `json:"status"`
	ExitCode            int                  `json:"exit_code"`
	CommandExitCode     *int                 `json:"command_exit_code"` // null when unknown
	Signal              string               `json:"signal,omitempty"`  // "SIGKILL"
	TimedOut            bool                 `json:"timed_out"`
	DurationMS          float64              `json:"duration_ms"`           // start of the command to its end
	CloneDurationMicros int64                `json:"clone_duration_micros"` // making the branch
	Strategy            string               `json:"strategy"`
	Layer               string               `json:"layer"` // "disk" or "ram"
	Rung                string               `json:"rung"`
	Missing             []string             `json:"missing"`
	Committed           bool                 `json:"committed"`
	RollbackPerformed   bool                 `json:"rollback_performed"`  // the changeset was not empty and was discarded
	FilesystemModified  bool                 `json:"filesystem_modified"` // the changeset is not empty
	FilesCloned         *int64               `json:"files_cloned"`
	PeakMemoryMB        *float64             `json:"peak_memory_mb"`     // MiB
	PeakMemorySource    string               `json:"peak_memory_source"` // "cgroup", "polled" or "none"
	CPUMS               float64              `json:"cpu_ms"`             // of all processes of the box
	CPUSource           string               `json:"cpu_source"`         // "cgroup", "polled" or "none"
	Stdout              string               `json:"stdout"`
	Stderr              string               `json:"stderr"`
	StdoutBase64        string               `json:"stdout_base64,omitempty"` // only when stdout is not UTF-8
	StderrBase64        string               `json:"stderr_base64,omitempty"`
	StdoutTruncated     bool                 `json:"stdout_truncated"`
	StderrTruncated     bool                 `json:"stderr_truncated"`
	StdoutBytes         int64                `json:"stdout_bytes"` // all the command wrote and hutch kept
	StderrBytes         int64                `json:"stderr_bytes"`
	StdoutPath          string               `json:"stdout_path,omitempty"` // where the whole output lies when it was truncated or the box is kept
	StderrPath          string               `json:"stderr_path,omitempty"`
	Diff                Diff                 `json:"diff"`
	Patch               string               `json:"patch,omitempty"` // unified diff, with --diff
	Skipped             []changeset.Skipped  `json:"skipped"`
	GitChanged          bool                 `json:"git_changed"`
	Held                []guard.Finding      `json:"held"`    // what the handoff guard did not let pass
	Flagged             []guard.Finding      `json:"flagged"` // what it let pass and names
	Conflicts           []promote.Conflict   `json:"conflicts"`
	Resolved            []promote.Resolution `json:"resolved"` // conflicts that --on-conflict settled
	Left                int                  `json:"left"`     // changes that were not promoted and stay in the box
	Kept                bool                 `json:"kept"`     // the box is still there: hutch diff|commit|discard ID
	Denied              []Denial             `json:"denied"`
	Violations          []Violation          `json:"violations"`
	Notes               []string             `json:"notes"`
	Error               string               `json:"error,omitempty"`
	Receipt             string               `json:"receipt"` // id of the receipt
}

// New returns the outcome of a run that did not come to anything: no list is
// null, and the status is Error.
func New() *Outcome {
	return &Outcome{
		Schema: Schema, ExitCode: ExitHutch, Status: Error, PeakMemorySource: "none", CPUSource: "none", Layer: "disk",
		Missing: []string{}, Skipped: []changeset.Skipped{}, Held: []guard.Finding{}, Flagged: []guard.Finding{},
		Conflicts: []promote.Conflict{}, Resolved: []promote.Resolution{}, Notes: []string{}, Denied: []Denial{}, Violations: []Violation{},
		Diff: Diff{FilesCreated: []string{}, FilesModified: []string{}, FilesDeleted: []string{}},
	}
}
