package box

import (
	"encoding/json"
	"fmt"
	"strings"

	"hutch/internal/guard"
	"hutch/internal/outcome"
)

// receiptFields is what a receipt says beside the chain.
type receiptFields struct {
	Workspace string          `json:"workspace"`
	Argv      []string        `json:"argv"`
	Status    outcome.Status  `json:"status"`
	ExitCode  int             `json:"exit_code"`
	Command   *int            `json:"command_exit_code"`
	Signal    string          `json:"signal,omitempty"`
	Strategy  string          `json:"strategy"`
	Rung      string          `json:"rung"`
	Missing   []string        `json:"missing"`
	Committed bool            `json:"committed"`
	Kept      bool            `json:"kept"`
	Digest    string          `json:"digest"`
	Created   []string        `json:"files_created"`
	Modified  []string        `json:"files_modified"`
	Deleted   []string        `json:"files_deleted"`
	Files     int             `json:"files"` // of all three, also those beyond the lists
	Duration  float64         `json:"duration_ms"`
	CPU       float64         `json:"cpu_ms"`
	Peak      *float64        `json:"peak_memory_mb"`
	PeakFrom  string          `json:"peak_memory_source"`
	Error     string          `json:"error,omitempty"`
	Held      []guard.Finding `json:"held,omitempty"`
	Flagged   []guard.Finding `json:"flagged,omitempty"`
	Left      int             `json:"left,omitempty"` // changes that stayed in the box
	Recovered json.RawMessage `json:"recovered,omitempty"`
}

// receiptPaths bounds each list of a receipt.
const receiptPaths = 1000

func firstPaths(list []string) []string { return list[:min(len(list), receiptPaths)] }

func firstFindings(list []guard.Finding) []guard.Finding { return list[:min(len(list), receiptPaths)] }

func (r *run) fields() receiptFields { return fieldsOf(r.out, r.ws.Path, r.Argv) }

func fieldsOf(out *outcome.Outcome, workspace string, argv []string) receiptFields {
	return receiptFields{
		Workspace: workspace, Argv: clip(argv), Status: out.Status, ExitCode: out.ExitCode, Command: out.CommandExitCode, Signal: out.Signal,
		Strategy: out.Strategy, Rung: out.Rung, Missing: out.Missing, Committed: out.Committed, Kept: out.Kept, Digest: out.Diff.Digest,
		Created: firstPaths(out.Diff.FilesCreated), Modified: firstPaths(out.Diff.FilesModified), Deleted: firstPaths(out.Diff.FilesDeleted),
		Files:    len(out.Diff.FilesCreated) + len(out.Diff.FilesModified) + len(out.Diff.FilesDeleted),
		Duration: out.DurationMS, CPU: out.CPUMS, Peak: out.PeakMemoryMB, PeakFrom: out.PeakMemorySource, Error: out.Error,
		Held: firstFindings(out.Held), Flagged: firstFindings(out.Flagged), Left: out.Left,
	}
}

// clip bounds the arguments that go into a receipt.
func clip(argv []string) []string {
	const most = 4096
	var list []string
	for _, arg := range argv[:min(len(argv), 256)] {
		list = append(list, strings.ToValidUTF8(arg[:min(len(arg), most)], "\uFFFD"))
	}
	return list
}

func (r *run) receipt() ([]byte, error) { return json.Marshal(r.fields()) }

// record writes the receipt of a run, unless a promotion has done it, or the
// recovery that has to decide about one will.
func (r *run) record() error {
	if r.out.Receipt != "" || r.pending {
		return nil
	}
	if _, err := r.store.Receipts.Append(r.id, r.fields(), false); err != nil {
		return fmt.Errorf("the run is over, but its receipt could not be written: %w", err)
	}
	r.out.Receipt = r.id
	return nil
}
