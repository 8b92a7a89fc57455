package daemon

import (
	"context"
	"io"
	"net"

	"hutch/internal/api"
	"hutch/internal/box"
	"hutch/internal/changeset"
	"hutch/internal/outcome"
)

// Boxes is what the daemon asks of all the boxes of a state directory. A box is
// named by its id, an unambiguous beginning of it, or its name. Errors that
// callers tell apart are *api.Error.
type Boxes interface {
	Create(ctx context.Context, c api.Create) (*api.Box, error)
	List(all bool) ([]api.Box, error)
	Show(id string) (*api.Box, error)
	Remove(id string) error

	Checkpoint(ctx context.Context, id, name string) (*api.Checkpoint, error)
	Restore(ctx context.Context, id, name string) error
	Fork(ctx context.Context, id string, n int, names []string) ([]api.Box, error)
	Commit(ctx context.Context, id string, c api.Commit) (*box.Promoted, error)
	Discard(ctx context.Context, id string, force bool) error
	View(ctx context.Context, id string, git bool, do func(*changeset.Changeset, changeset.Trees, box.Judge) error) error

	// Exec starts a command, and the box's jail where it has none. The end of
	// ctx does not end the command.
	Exec(ctx context.Context, id string, r api.Run, s Streams) (Started, error)
	Execs(id string) ([]api.Exec, error)
	ExecOf(id, exec string) (*api.Exec, error)
	// Output reads what a command wrote from offset on; with follow until it
	// has ended. Closing it wakes a reader that waits.
	Output(id, exec, stream string, offset int64, follow bool) (io.ReadCloser, error)

	Processes(id string) ([]api.Process, error)
	Kill(id string, k api.Kill) error

	ReadFile(id, path string) (io.ReadCloser, *api.File, error)
	WriteFile(id, path string, mode uint32, r io.Reader) error
	ListDir(id, path string) ([]api.File, error)
	MakeDir(id, path string) error
	RemoveFile(id, path string) error

	Ports(id string) ([]api.Port, error)
	Dial(ctx context.Context, id string, port uint16) (net.Conn, error)

	// Release ends the box's jail and lets go of its lock.
	Release(id string) error
	// Close ends every jail. ctx bounds how long it is waited for.
	Close(ctx context.Context) error
}

// Streams are where the input of a command comes from and where its output
// goes while it runs; nil is nowhere. Output is kept on disk in any case.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Started is a command that was started.
type Started interface {
	Exec() api.Exec
	// Wait returns when the command has ended and its output was handed on, or
	// when ctx has, then with its error. It can be called again, and by several.
	Wait(ctx context.Context) (*outcome.Outcome, error)
	Resize(api.Size) error
	Signal(name string) error
}

// poolCounts is what Boxes that have a pool of jails can tell of it.
type poolCounts interface {
	PoolCounts() (hits, misses uint64)
}
