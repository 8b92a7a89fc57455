package box

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"hutch/internal/guard"
	"hutch/internal/outcome"
	"hutch/internal/supervise"
	"hutch/internal/term"
)

// output puts the captured output into the outcome.
func (r *run) output() {
	out := r.out
	fill := func(c *supervise.Capture, name string, text, encoded, path *string, truncated *bool, size *int64) {
		*size = c.Size()
		if err := c.Lost(); err != nil {
			r.note("%s was lost after %d bytes: %v", name, c.Size(), err)
			*truncated = true
		}
		if r.Return <= 0 {
			return
		}
		head, err := c.Head(r.Return)
		if err != nil {
			r.note("%s cannot be read back: %v", name, err)
		}
		cut := c.Size() > int64(len(head))
		if r.policy.StripEscapes {
			head = term.Strip(head)
		}
		*text = strings.ToValidUTF8(string(head), "\uFFFD")
		if !utf8.Valid(head) {
			*encoded = base64.StdEncoding.EncodeToString(head)
		}
		if cut {
			*truncated = true
			if r.keep == "" {
				*path = r.store.saveOutput(r.dir, name)
			}
		}
		if r.keep != "" && c.Size() > 0 {
			*path = filepath.Join(r.dir.path, name)
		}
	}
	fill(r.stdout, "stdout", &out.Stdout, &out.StdoutBase64, &out.StdoutPath, &out.StdoutTruncated, &out.StdoutBytes)
	fill(r.stderr, "stderr", &out.Stderr, &out.StderrBase64, &out.StderrPath, &out.StderrTruncated, &out.StderrBytes)
}

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

func (r *run) fields() receiptFields {
	out := r.out
	return receiptFields{
		Workspace: r.ws.Path, Argv: clip(r.Argv), Status: out.Status, ExitCode: out.ExitCode, Command: out.CommandExitCode, Signal: out.Signal,
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
