//go:build !linux

package box

import (
	"context"
	"errors"
	"time"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/promote"
	"hutch/internal/receipt"
)

var errUnsupported = errors.New("hutch runs commands on Linux only, as yet; on this system use it inside a Linux virtual machine")

// Store is hutch's state directory.
type Store struct {
	Path     string
	Receipts *receipt.Log
}

// Budget is what gc leaves.
type Budget struct {
	Age   time.Duration
	Count int
}

// DefaultBudget is what `hutch gc` leaves without flags.
var DefaultBudget Budget

// Collected counts what gc removed.
type Collected struct {
	Boxes, Crashed, Layers, Outputs int
	UndoneBytes                     int64
}

// Run is not supported here.
func Run(Request) (*outcome.Outcome, error) {
	out := outcome.New()
	out.Error = errUnsupported.Error()
	return out, errUnsupported
}

// Policy is not supported here.
func Policy(Request) (*policy.InForce, error) { return nil, errUnsupported }

// Trust is not supported here.
func Trust(string) (string, []policy.Origin, error) { return "", nil, errUnsupported }

// Distrust is not supported here.
func Distrust(string) (string, bool, error) { return "", false, errUnsupported }

// Trusts is not supported here.
func Trusts() ([]policy.Trust, error) { return nil, errUnsupported }

// OpenStore is not supported here.
func OpenStore() (*Store, error) { return nil, errUnsupported }

// Close does nothing here.
func (s *Store) Close() {}

// Boxes is not supported here.
func (s *Store) Boxes() ([]Record, error) { return nil, errUnsupported }

// View is not supported here.
func (s *Store) View(string, bool, func(*changeset.Changeset, changeset.Trees, Judge) error) error {
	return errUnsupported
}

// Commit is not supported here.
func (s *Store) Commit(string, Promotion) (*Promoted, error) { return nil, errUnsupported }

// Discard is not supported here.
func (s *Store) Discard(string) error { return errUnsupported }

// Recover is not supported here.
func (s *Store) Recover(string, ...string) ([]promote.Recovered, error) { return nil, errUnsupported }

// Undo is not supported here.
func (s *Store) Undo(context.Context, UndoOptions) (*Undone, error) { return nil, errUnsupported }

// Log is not supported here.
func (s *Store) Log(string) ([]Logged, error) { return nil, errUnsupported }

// Collect is not supported here.
func (s *Store) Collect(Budget, string) (Collected, error) { return Collected{}, errUnsupported }

// Boxes are the boxes of one state directory.
type Boxes struct{}

// OpenBoxes is not supported here.
func OpenBoxes(Options) (*Boxes, error) { return nil, errUnsupported }

// Store is not supported here.
func (b *Boxes) Store() *Store { return nil }

// Close does nothing here.
func (b *Boxes) Close(context.Context) error { return nil }

// Create is not supported here.
func (b *Boxes) Create(context.Context, api.Create) (*api.Box, error) { return nil, errUnsupported }

// List is not supported here.
func (b *Boxes) List(bool) ([]api.Box, error) { return nil, errUnsupported }

// Show is not supported here.
func (b *Boxes) Show(string) (*api.Box, error) { return nil, errUnsupported }

// Remove is not supported here.
func (b *Boxes) Remove(string) error { return errUnsupported }

// Discard is not supported here.
func (b *Boxes) Discard(context.Context, string, bool) error { return errUnsupported }

// Checkpoint is not supported here.
func (b *Boxes) Checkpoint(context.Context, string, string) (*api.Checkpoint, error) {
	return nil, errUnsupported
}

// Restore is not supported here.
func (b *Boxes) Restore(context.Context, string, string) error { return errUnsupported }

// Fork is not supported here.
func (b *Boxes) Fork(context.Context, string, int, []string) ([]api.Box, error) {
	return nil, errUnsupported
}

// View is not supported here.
func (b *Boxes) View(context.Context, string, bool, func(*changeset.Changeset, changeset.Trees, Judge) error) error {
	return errUnsupported
}

// Commit is not supported here.
func (b *Boxes) Commit(context.Context, string, api.Commit) (*Promoted, error) {
	return nil, errUnsupported
}

// Promote is not supported here.
func (b *Boxes) Promote(context.Context, string, Promotion, bool) (*Promoted, error) {
	return nil, errUnsupported
}
