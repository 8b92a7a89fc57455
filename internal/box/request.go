package box

import (
	"io"
	"os"
	"syscall"

	"hutch/internal/policy"
	"hutch/internal/workspace"
)

// Defaults of a run.
const (
	DefaultReturn = 10 << 20 // bytes of each stream in the outcome
	DefaultRAM    = 1 << 30  // bytes of a layer in RAM
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

	// Policy is what this request says of what the command may do. It is
	// stronger than PolicyFile, the environment, the user's configuration and
	// the workspace's.
	Policy     policy.Policy
	PolicyFile string // a policy in TOML or JSON; "" for none
	PolicyBy   string // whose Policy is, for messages: "flag"; "" for a program's

	Return int64  // bytes a stream put into the outcome; 0: none
	User   string // whom to run as: a name, uid, uid:gid or "root"; "" decides by the workspace's owner

	Environ []string // of the caller, as NAME=VALUE; nil: this process's

	Require []string // what must not be missing: "limits", "proc", "landlock"

	Terminal       bool      // the command has a pseudo-terminal, like the caller's when Stdin is one
	Stdin          io.Reader // nil: end of file
	Stdout, Stderr io.Writer // where output is streamed as it comes; nil: nowhere

	Signals <-chan syscall.Signal // signals that end the command
	Resized <-chan os.Signal      // the caller's terminal has a new size
	Done    <-chan struct{}       // closed when the caller gave up
}
