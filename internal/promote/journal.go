package promote

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"hutch/internal/fsat"
)

// home is the directory in the workspace that holds the transactions.
const home = ".hutch"

// raw is a path or name of arbitrary bytes. In JSON a byte that is not valid
// UTF-8, and "%" itself, is written as %XX, so that journals stay readable.
type raw string

// MarshalText implements [encoding.TextMarshaler].
func (r raw) MarshalText() ([]byte, error) {
	out := make([]byte, 0, len(r))
	for s := string(r); s != ""; {
		c, size := utf8.DecodeRuneInString(s)
		if c == '%' || c == utf8.RuneError && size == 1 {
			out = fmt.Appendf(out, "%%%02X", s[0])
		} else {
			out = append(out, s[:size]...)
		}
		s = s[size:]
	}
	return out, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *raw) UnmarshalText(text []byte) error {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			out = append(out, text[i])
			continue
		}
		if i+3 > len(text) {
			return errors.New("bad escape in a path")
		}
		b, err := hex.DecodeString(string(text[i+1 : i+3]))
		if err != nil {
			return errors.New("bad escape in a path")
		}
		out = append(out, b...)
		i += 2
	}
	*r = raw(out)
	return nil
}

// ident tells one file from another, and one state of it from another.
type ident struct {
	Type  fsat.Type `json:"type"`
	Mode  uint32    `json:"mode"`
	UID   uint32    `json:"uid"`
	GID   uint32    `json:"gid"`
	Ino   uint64    `json:"ino"`
	Size  int64     `json:"size"`
	Mtime fsat.Time `json:"mtime"`
	Ctime fsat.Time `json:"ctime"`
}

func identOf(st fsat.Stat) ident {
	return ident{st.Type, st.Mode, st.UID, st.GID, st.Ino, st.Size, st.Mtime, st.Ctime}
}

// sameContent reports whether st is still the file of the ident, unwritten.
// Directories change size and mtime with their entries, and a hard link or a
// rename changes ctime, so those do not count.
func (id ident) sameContent(st fsat.Stat) bool {
	if st.Ino != id.Ino || st.Type != id.Type {
		return false
	}
	return id.Type == fsat.Directory || st.Size == id.Size && st.Mtime == id.Mtime
}

// kind is how a step changes the workspace.
type kind string

const (
	create  kind = "create"  // the slot moves to a free path
	replace kind = "replace" // slot and target change places
	remove  kind = "remove"  // the target moves into the slot
	alter   kind = "alter"   // mode, owner and xattrs change in place
)

// step is one change of the workspace. Its slot is the entry of the
// transaction's directory that has the step's index as its name.
type step struct {
	Kind   kind        `json:"kind"`
	Path   raw         `json:"path"`
	Before ident       `json:"before,omitzero"` // what stands at Path
	Staged ident       `json:"staged,omitzero"` // what the slot holds; its Mtime is the final one
	Files  []placed    `json:"files,omitempty"` // all that the slot holds, itself first
	Alter  *alteration `json:"alter,omitempty"`
}

func slotName(index int) string { return strconv.Itoa(index) }

// placed is one staged file.
type placed struct {
	Rel    raw       `json:"rel"` // relative to the slot, "." for itself
	Type   fsat.Type `json:"type"`
	Ino    uint64    `json:"ino"`
	Mtime  fsat.Time `json:"mtime"`            // the one it gets
	Digest string    `json:"digest,omitempty"` // of a regular file
	// Mode is the one that a directory gets when all in it is done: it may be
	// closed to its owner.
	Mode uint32 `json:"mode,omitempty"`
	// Linked is set for a file that is still in the layer too. Until the
	// commit point nothing of it is changed, so that a kill leaves the layer
	// as it was.
	Linked *linked `json:"linked,omitempty"`
}

// linked is what a rollback gives back to a file of the layer.
type linked struct {
	Mode  uint32    `json:"mode"`
	Mtime fsat.Time `json:"mtime"`
	Scrub []xattr   `json:"scrub,omitempty"` // overlayfs's own
}

// alteration is the change of an alter step.
type alteration struct {
	From   attrs  `json:"from"`
	To     attrs  `json:"to"`
	Digest string `json:"digest,omitempty"` // of a regular file
}

type attrs struct {
	Mode   uint32  `json:"mode"`
	UID    uint32  `json:"uid"`
	GID    uint32  `json:"gid"`
	Xattrs []xattr `json:"xattrs,omitempty"` // only those that differ
}

type xattr struct {
	Name   raw    `json:"name"`
	Value  []byte `json:"value,omitempty"`
	Absent bool   `json:"absent,omitempty"`
}

// parent is a directory of the workspace in which steps take place.
type parent struct {
	Path  raw       `json:"path"`
	Ino   uint64    `json:"ino"`
	Mode  uint32    `json:"mode"`
	Mtime fsat.Time `json:"mtime"`
	// Opened is set when the owner may not write in it: it may while the
	// steps are taken.
	Opened bool `json:"opened,omitempty"`
	// Return is, in an undo, the mtime that the directory gets back; without
	// it the directory was changed by others meanwhile and keeps the time of
	// the undo.
	Return *fsat.Time `json:"return,omitempty"`
}

// journal is all that is needed to finish a transaction, to take it back and,
// with the outcome beside it, to undo it later.
type journal struct {
	ID      string   `json:"id"`
	Receipt []byte   `json:"receipt,omitempty"`
	Tally   Tally    `json:"tally"`
	Steps   []step   `json:"steps"`
	Parents []parent `json:"parents"`

	head head // of the file it was read from, or goes to
}

// vouch is a path as hutch left it.
type vouch struct {
	ident
	Rel    raw    `json:"rel,omitempty"` // in a slot: relative to it
	Xattrs string `json:"xattrs,omitempty"`
}

// after is what stood when a transaction was done: what an undo compares with.
type after struct {
	// Steps are the paths of the workspace, by step, then by file. A zero
	// ident is a path that cannot be vouched for.
	Steps [][]vouch `json:"steps"`
	// Slots are the displaced files, by step, each slot before what it holds.
	Slots   [][]vouch   `json:"slots"`
	Parents []fsat.Time `json:"parents"` // mtimes of the journal's
}

// undoing is the order to take a finished transaction back.
type undoing struct {
	Receipt []byte `json:"receipt,omitempty"`
	// Parents are the journal's, as they stand before the undo.
	Parents []parent `json:"parents"`
}

func (j *journal) linked() bool {
	for _, s := range j.Steps {
		for _, f := range s.Files {
			if f.Linked != nil {
				return true
			}
		}
	}
	return false
}

// validate refuses a journal that no promotion would have written. A checksum
// only proves that it is whole, not who wrote it.
func (j *journal) validate(id string) error {
	if j.ID != id {
		return fmt.Errorf("it is of transaction %q", j.ID)
	}
	seen := make(map[raw]bool, len(j.Steps))
	for i := range j.Steps {
		s := &j.Steps[i]
		if err := s.validate(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if seen[s.Path] {
			return fmt.Errorf("step %d: %q occurs twice", i, s.Path)
		}
		seen[s.Path] = true
	}
	return validateParents(j.Parents)
}

func validateParents(parents []parent) error {
	for _, p := range parents {
		if err := checkPath(string(p.Path)); err != nil {
			return err
		}
		if p.Mode&^0o7777 != 0 {
			return fmt.Errorf("mode %o", p.Mode)
		}
	}
	return nil
}

func (s *step) validate() error {
	if err := checkPath(string(s.Path)); err != nil {
		return err
	}
	if s.Path == "." && s.Kind != alter {
		return errors.New("it would move the workspace itself")
	}
	has := func(b, st, al bool) bool {
		return (s.Before.Ino != 0) == b && (s.Staged.Ino != 0) == st && (len(s.Files) != 0) == st && (s.Alter != nil) == al
	}
	ok := false
	switch s.Kind {
	case create:
		ok = has(false, true, false)
	case replace:
		ok = has(true, true, false) && s.Before.Ino != s.Staged.Ino
	case remove:
		ok = has(true, false, false)
	case alter:
		ok = has(true, false, true)
	}
	if !ok {
		return fmt.Errorf("a step %q of this form", s.Kind)
	}
	if s.Staged.Mode&^0o7777 != 0 || s.Staged.Type == fsat.Regular && s.Staged.Mode&0o6000 != 0 {
		return fmt.Errorf("staged mode %o", s.Staged.Mode)
	}
	for i, f := range s.Files {
		if err := fsat.Check(string(f.Rel)); err != nil {
			return err
		}
		if (i == 0) != (f.Rel == ".") {
			return errors.New("files out of order")
		}
		if f.Mode&^0o7777 != 0 || f.Mode != 0 && f.Type != fsat.Directory {
			return fmt.Errorf("mode %o of a %s", f.Mode, f.Type)
		}
		if f.Linked == nil {
			continue
		}
		if f.Linked.Mode&^0o1777 != 0 {
			return fmt.Errorf("layer mode %o", f.Linked.Mode)
		}
		for _, x := range f.Linked.Scrub {
			if !overlayXattr(string(x.Name)) {
				return fmt.Errorf("xattr %q", x.Name)
			}
		}
	}
	if s.Alter == nil {
		return nil
	}
	if s.Alter.From.Mode&^0o7777 != 0 || s.Alter.To.Mode&^0o7777 != 0 || s.Alter.To.Mode&0o6000&^s.Alter.From.Mode != 0 ||
		s.Before.Type != fsat.Directory && s.Alter.To.Mode&0o6000 != 0 {
		return fmt.Errorf("modes %o to %o", s.Alter.From.Mode, s.Alter.To.Mode)
	}
	for _, x := range append(s.Alter.From.Xattrs[:len(s.Alter.From.Xattrs):len(s.Alter.From.Xattrs)], s.Alter.To.Xattrs...) {
		if !promotableXattr(string(x.Name)) {
			return fmt.Errorf("xattr %q", x.Name)
		}
	}
	return nil
}

// checkPath refuses a path that is not clean or is hutch's own.
func checkPath(rel string) error {
	if err := fsat.Check(rel); err != nil {
		return err
	}
	// At any depth: a transaction in a directory below would be believed when
	// that directory is a workspace.
	if slices.Contains(strings.Split(rel, "/"), home) {
		return fmt.Errorf("%q is hutch's own directory", rel)
	}
	return nil
}

// checkID refuses an id that is not a plain name.
func checkID(id string) error {
	if id == "" || len(id) > 128 {
		return fmt.Errorf("transaction id %q: 1 to 128 characters", id)
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return fmt.Errorf("transaction id %q: lower-case letters, digits and dashes only", id)
		}
	}
	return nil
}

// overlayXattr reports whether overlayfs itself gives a meaning to name. Such
// a name must never reach a workspace: used as a lower directory, an opaque or
// redirect mark in it would hide or fake the user's files.
func overlayXattr(name string) bool {
	return strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.")
}

// promotableXattr reports whether an xattr may come out of a box: the user's
// own, never capabilities, labels or ACLs.
func promotableXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !overlayXattr(name)
}
