package workspace

import (
	"os"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// Strategy is how a branch is made.
type Strategy string

// The strategies. Auto takes overlay, else reflink, else copy.
const (
	Auto    Strategy = "auto"
	Overlay Strategy = "overlay"
	Reflink Strategy = "reflink"
	Copy    Strategy = "copy"
)

// Workspace is the user's real directory, opened.
type Workspace struct {
	Path string // absolute, no symlink in it
	FD   int    // O_RDONLY|O_DIRECTORY
	Stat fsat.Stat
	// GitIndex is .git/index as it was when the stamp was taken, open; nil
	// when there is none. git replaces the file, so this one stays as it was.
	GitIndex *os.File
}

// Stamp is the moment T from which a change of the host may be newer than the
// branch, on the clock of the workspace's own file system: CLOCK_REALTIME and
// named files miss nearly all edits made right after (measured: 398–400 of
// 400).
type Stamp struct {
	T        fsat.Time `json:"t"`                // ctime of an unnamed file in the workspace, set just before the branch
	Realtime fsat.Time `json:"realtime"`         // CLOCK_REALTIME at T
	Boottime fsat.Time `json:"boottime"`         // CLOCK_BOOTTIME at T: with Realtime, shows a clock that was stepped
	BootID   string    `json:"boot_id"`          // /proc/sys/kernel/random/boot_id
	Valid    bool      `json:"valid"`            // false where O_TMPFILE is refused or the workspace is read-only: the command runs, promotion is refused
	Reason   string    `json:"reason,omitempty"` // why it is not valid
}

// Request asks for a branch.
type Request struct {
	Workspace *Workspace
	Strategy  Strategy // Overlay, Reflink or Copy
	BoxFD     int      // the box's own directory, empty of layers
	BoxPath   string   // its absolute path
	UserAttrs bool     // an overlay is mounted with userxattr
	// Hidden are paths of the workspace that the branch is made without:
	// relative, sorted, parents before what is in them.
	Hidden []string
	// Layer and Work name an overlay's two directories; "upper" and "work"
	// where they are empty.
	Layer, Work string
}

// Branch is a copy-on-write view of a workspace, ready to be mounted.
type Branch struct {
	Strategy Strategy
	Form     changeset.Form
	// Layer is the directory to mount: for overlay the upper, for the others
	// the whole tree. It is a name in the box's directory.
	Layer string
	// Work is the overlay's work directory, a name in the box's directory.
	Work string
	// Manifest is the file that says how a tree looked when it was made, a
	// name in the box's directory; "" for overlay.
	Manifest string
	// FilesCloned counts the regular files that were cloned or copied; -1
	// where the strategy does not count.
	FilesCloned int64
	// Notes are plain sentences for the outcome, such as a slow copy with
	// its size, or files that could not be taken along.
	Notes []string
}
