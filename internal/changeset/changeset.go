package changeset

import (
	"os"

	"hutch/internal/fsat"
)

// Op says what happened to a path.
type Op string

// The operations. A change of type (a file that became a directory) is
// Modified; what was beneath a replaced directory is Deleted.
const (
	Created  Op = "created"
	Modified Op = "modified"
	Deleted  Op = "deleted"
)

// State is what a path is, on one side of a change.
type State struct {
	Type   fsat.Type         `json:"type"`
	Mode   uint32            `json:"mode"` // permission bits, 07777
	UID    uint32            `json:"uid"`
	GID    uint32            `json:"gid"`
	Size   int64             `json:"size"`             // bytes; regular files
	Target string            `json:"target,omitempty"` // raw text of a symlink
	Digest string            `json:"digest,omitempty"` // "blake3:<hex>" of a regular file's content; "blake3-sparse:<hex>" of a mostly empty one's data and where it lies
	Mtime  fsat.Time         `json:"mtime"`
	Xattrs map[string][]byte `json:"xattrs,omitempty"` // user.* only, overlay's own left out
}

// Root says in which tree the content of an entry lies.
type Root string

// The trees. A directory that an overlay redirects keeps its unchanged files
// in the workspace, under their old path.
const (
	Layer     Root = "layer"
	Workspace Root = "workspace"
	// Picked is a directory of files that stand in the layer in another form:
	// the user took some hunks of them only. See Pick.
	Picked Root = "picked"
)

// Entry is one changed path.
type Entry struct {
	// Path is relative to the workspace, slash-separated raw bytes, clean in
	// the sense of fsat.Check, without a trailing slash.
	Path   string `json:"path"`
	Op     Op     `json:"op"`
	Before *State `json:"before,omitempty"` // nil when created
	After  *State `json:"after,omitempty"`  // nil when deleted
	// Source is the tree, and SourcePath the path in it, that holds the
	// content of After.
	Source     Root   `json:"source,omitempty"`
	SourcePath string `json:"source_path,omitempty"`
	// BaseIno is the inode that the branch saw at Path when it was made, as
	// far as the layer still tells; 0 when unknown (DESIGN 7.1: a whiteout,
	// a file replaced by rename inside the box).
	BaseIno uint64 `json:"base_ino,omitempty"`
	// BaseCtime is the time of the last change of the inode when Before was
	// known to stand there, and to be what the rest of the change was made
	// from: right after the box's end (MarkSeen), or after hutch itself
	// promoted a part of the change there (Rebase). An inode of exactly this
	// time is unchanged, whatever the branch's stamp says; one of a later time
	// is, where Before still stands (Stands). Nil when that is not known.
	BaseCtime *fsat.Time `json:"base_ctime,omitempty"`
	// BaseIndex is the digest of what an index of git meant when the branch
	// was made (IndexDigest): `git status` rewrites the file, and means no
	// change by it. "" when unknown, and for all else.
	BaseIndex string `json:"base_index,omitempty"`
	// Link names the first of the entries whose files are one file in the
	// box, where this is another of them: a hard link. It stands for the
	// group, so it may name an entry that is not there. "" for none.
	Link string `json:"link,omitempty"`
	// CopiedUp is set on a Created entry that carries the mark of having been
	// copied from the workspace: the branch saw a file here that the host
	// has deleted since, or the box renamed or linked one to here. (Where the
	// live overlay tells that it was renamed, it is not marked.)
	CopiedUp bool `json:"copied_up,omitempty"`
}

// IsDir reports whether an entry is of a directory: after the change, or, where
// the path goes, before it.
func (e *Entry) IsDir() bool {
	if e.After != nil {
		return e.After.isDir()
	}
	return e.Before.isDir()
}

// TooLong is the reason for which a path is skipped that is far beyond what any
// program could name.
const TooLong = "path longer than 8 KiB"

// Skipped is a path in the layer that can never be promoted, and why.
type Skipped struct {
	Path   string `json:"path"`
	Reason string `json:"reason"` // one plain phrase: "fifo", "socket", "device", "hutch's own directory"
}

// Changeset is all that a box changed.
type Changeset struct {
	// Entries are sorted by Path as bytes. Every created or deleted
	// directory has an entry of its own beside those of what it holds.
	Entries []Entry `json:"entries"`
	// Ancestors gives, for each directory above an entry ("." included), the
	// inode the branch saw there; absent when unknown.
	Ancestors map[string]uint64 `json:"ancestors,omitempty"`
	Skipped   []Skipped         `json:"skipped,omitempty"`
	// GitChanged is set when .git differs but was left out.
	GitChanged bool `json:"git_changed,omitempty"`
	// Digest covers path, operation and both states' type, mode, target and
	// content of every entry, in order: "blake3:<hex>". Times, owners and
	// inodes are not in it, so equal changes have equal digests.
	Digest string `json:"digest"`
}

// Empty reports whether nothing was changed.
func (c *Changeset) Empty() bool { return len(c.Entries) == 0 }

// Form is the way a layer records changes.
type Form string

// The forms of layer.
const (
	// Overlay is an overlayfs upper directory.
	Overlay Form = "overlay"
	// Tree is a full reflinked or copied tree with a manifest of how it
	// looked when it was made.
	Tree Form = "tree"
)

// Source is where a changeset is read from. All descriptors belong to the
// caller and stay open.
type Source struct {
	Form      Form
	Layer     int // directory: the overlay's upper, or the root of the tree
	Workspace int // directory: the user's real workspace

	// Overlay only.
	XattrPrefix string // "trusted.overlay." or "user.overlay.": the prefix of the mount's own mode, the only one that is believed
	Merged      int    // root of the live overlay, for base inodes; -1 when it is gone
	Below       []int  // the layers between Layer and Workspace

	// Tree only: the manifest that workspace.Branch wrote, open for reading.
	Manifest int

	// GitIndex is .git/index as the branch saw it, open for reading; nil when
	// that is not known.
	GitIndex *os.File

	// Git includes .git, which is otherwise left out (GitChanged tells).
	Git bool

	// Hidden are the paths of the workspace that the branch was made without,
	// sorted. What the box did there, and above what it never saw, is no
	// change.
	Hidden []string
}

// Hidden is the reason for which a path is skipped that was kept from the box.
const Hidden = "hidden from the box"
