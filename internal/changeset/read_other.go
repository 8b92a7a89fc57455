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

// Patch is not supported on this system yet.
func Patch(io.Writer, *Changeset, int, int) error { return errUnsupported }
