package box

import (
	"io"
	"os"
	"syscall"
	"time"

	"hutch/internal/jail"
	"hutch/internal/workspace"
)

// Defaults of a run.
const (
	DefaultTimeout     = 10 * time.Minute
	DefaultReturn      = 10 << 20 // bytes of each stream in the outcome
	DefaultOutputLimit = 1 << 30  // bytes of each stream that end the command
	DefaultRAM         = 1 << 30  // bytes of a layer in RAM
)

// Request is one command to run on a branch of a workspace.
type Request struct {
	Argv      []string
	Workspace string // a directory; "" is the current one
	Force     bool   // allow / and HOME as workspace

	Strategy workspace.Strategy // "" is Auto
	RAM      bool               // the layer lies in RAM
	RAMSize  int64              // bytes; 0 is DefaultRAM
	LayerDir string             // where layers lie when the state directory is on another file system

	Commit    bool // promote when the command exits 0
	Promotion      // what of it, and how
	Preserve  bool // keep the ended box
	Patch     bool // put a unified diff into the outcome

	Timeout     time.Duration // 0: none
	OutputLimit int64         // bytes a stream that end the command; 0: none
	Return      int64         // bytes a stream put into the outcome; 0: none
	Limits      jail.Limits
	Network     bool
	User        string // whom to run as: a name, uid, uid:gid or "root"; "" decides by the workspace's owner

	Require []string // what must not be missing: "limits", "proc", "landlock"

	EnvPass []string // names inherited beside the allowlist
	EnvSet  []string // NAME=VALUE

	Terminal       bool      // the command has a pseudo-terminal, like the caller's when Stdin is one
	Stdin          io.Reader // nil: end of file
	Stdout, Stderr io.Writer // where output is streamed as it comes; nil: nowhere

	Signals <-chan syscall.Signal // signals that end the command
	Resized <-chan os.Signal      // the caller's terminal has a new size
	Done    <-chan struct{}       // closed when the caller gave up
}
