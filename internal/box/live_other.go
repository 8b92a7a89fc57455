//go:build !linux

package box

import (
	"context"
	"io"
	"net"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

// Started is a command of a box.
type Started struct{}

// Exec is not supported here.
func (s *Started) Exec() api.Exec { return api.Exec{} }

// Wait is not supported here.
func (s *Started) Wait(context.Context) (*outcome.Outcome, error) { return nil, errUnsupported }

// Resize is not supported here.
func (s *Started) Resize(api.Size) error { return errUnsupported }

// Signal is not supported here.
func (s *Started) Signal(string) error { return errUnsupported }

// Exec is not supported here.
func (b *Boxes) Exec(context.Context, string, api.Run, Streams) (*Started, error) {
	return nil, errUnsupported
}

// Execs is not supported here.
func (b *Boxes) Execs(string) ([]api.Exec, error) { return nil, errUnsupported }

// ExecOf is not supported here.
func (b *Boxes) ExecOf(string, string) (*api.Exec, error) { return nil, errUnsupported }

// Output is not supported here.
func (b *Boxes) Output(string, string, string, int64, bool) (io.ReadCloser, error) {
	return nil, errUnsupported
}

// Processes is not supported here.
func (b *Boxes) Processes(string) ([]api.Process, error) { return nil, errUnsupported }

// Kill is not supported here.
func (b *Boxes) Kill(string, api.Kill) error { return errUnsupported }

// ReadFile is not supported here.
func (b *Boxes) ReadFile(string, string) (io.ReadCloser, *api.File, error) {
	return nil, nil, errUnsupported
}

// WriteFile is not supported here.
func (b *Boxes) WriteFile(string, string, uint32, io.Reader) error { return errUnsupported }

// ListDir is not supported here.
func (b *Boxes) ListDir(string, string) ([]api.File, error) { return nil, errUnsupported }

// Stat is not supported here.
func (b *Boxes) Stat(string, string) (*api.File, error) { return nil, errUnsupported }

// MakeDir is not supported here.
func (b *Boxes) MakeDir(string, string) error { return errUnsupported }

// RemoveFile is not supported here.
func (b *Boxes) RemoveFile(string, string) error { return errUnsupported }

// Ports is not supported here.
func (b *Boxes) Ports(string) ([]api.Port, error) { return nil, errUnsupported }

// Dial is not supported here.
func (b *Boxes) Dial(context.Context, string, uint16) (net.Conn, error) { return nil, errUnsupported }

// Release is not supported here.
func (b *Boxes) Release(string) error { return errUnsupported }

// PoolCounts is not supported here.
func (b *Boxes) PoolCounts() (hits, misses uint64) { return 0, 0 }
