//go:build !linux

package promote

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

var errUnsupported = fmt.Errorf("promotion is not supported on %s yet: %w", runtime.GOOS, errors.ErrUnsupported)

// Apply promotes a changeset, whole or not at all.
func Apply(context.Context, Request) (Result, error) { return Result{}, errUnsupported }

// Undo takes a finished promotion back.
func Undo(context.Context, UndoRequest) (UndoResult, error) { return UndoResult{}, errUnsupported }

// Log lists the promotions of which undo data is kept.
func Log(workspaceFD int, key Key) ([]Promotion, error) { return nil, errUnsupported }

// Recover completes every transaction that a crash cut short.
func Recover(workspaceFD int, key Key, record func(Recovered) error, accept ...string) ([]Recovered, error) {
	return nil, errUnsupported
}

// Pending reports whether the workspace holds a transaction to recover.
func Pending(workspaceFD int) (bool, error) { return false, errUnsupported }

// Status tells how far the transaction id came in the workspace.
func Status(workspaceFD int, id string) (State, error) { return "", errUnsupported }

// Prune removes finished transactions beyond the budget.
func Prune(workspaceFD int, key Key, keep Budget) (freed int64, err error) { return 0, errUnsupported }
