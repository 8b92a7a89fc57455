//go:build !linux

package changeset

import (
	"errors"
	"fmt"
	"io"
	"runtime"
)

var errUnsupported = fmt.Errorf("%w: reading layers on %s yet", errors.ErrUnsupported, runtime.GOOS)

// Read is not supported on this system yet.
func Read(Source) (*Changeset, error) { return nil, errUnsupported }

// ReadSeen is not supported on this system yet.
func ReadSeen(Source) (*Seen, error) { return nil, errUnsupported }

// Patch is not supported on this system yet.
func Patch(io.Writer, *Changeset, int, int) error { return errUnsupported }

// Files is not supported on this system yet.
func Files(*Changeset, Trees, func(*FileChange) error) error { return errUnsupported }

// Split is not supported on this system yet where hunks are chosen.
func (s *Selection) Split(c *Changeset, _ int) (part, rest *Changeset, err error) {
	if len(s.Partial) > 0 {
		return nil, nil, errUnsupported
	}
	return s.parts(c)
}

// Rebase is not supported on this system yet.
func Rebase(rest, part *Changeset, workspace int) error { return errUnsupported }

// Promoted is not supported on this system yet.
func Promoted(part *Changeset, workspace int) (*Changeset, error) { return nil, errUnsupported }
