package changeset

import (
	"bufio"
	"crypto/sha1" // the name of a git blob
	"encoding/hex"
	"fmt"
	"strings"
)

// maxShown is the size of the largest file that a patch shows.
const maxShown = 1 << 20

// blob is one side of a file in a patch, in the two modes and the symlinks
// that git knows.
type blob struct {
	mode    string
	content []byte
	hidden  string // why the content is not shown; "" when it is
	binary  bool
}

const noBlob = "0000000000000000000000000000000000000000"

// name is what git calls the blob.
func (b *blob) name() string {
	if b == nil {
		return noBlob
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(b.content))
	h.Write(b.content)
	return hex.EncodeToString(h.Sum(nil))
}

func (b *blob) bytes() []byte {
	if b == nil {
		return nil
	}
	return b.content
}

// FileChange is the change of one file as git tells it.
type FileChange struct {
	Status     Status
	Path       string
	From       string // the old path of a rename
	Similarity int    // of a rename, in percent
	Before     *State // nil when added
	After      *State // nil when deleted
	Binary     bool
	Hidden     string // why the content is not shown; "" when it is
	Added      int    // lines
	Removed    int
	Hunks      []Hunk

	before, after *blob
	same          bool // the content is
}

// Status is the letter by which git calls a change.
type Status string

// The statuses.
const (
	StatusAdded    Status = "A"
	StatusDeleted  Status = "D"
	StatusModified Status = "M"
	StatusRenamed  Status = "R"
	StatusRetyped  Status = "T" // a file became a symlink, or the reverse
)

// Modes returns the modes of both sides as git writes them, "" for none.
func (f *FileChange) Modes() (before, after string) {
	if f.before != nil {
		before = f.before.mode
	}
	if f.after != nil {
		after = f.after.mode
	}
	return before, after
}

// compare works out the hunks.
func (f *FileChange) compare() {
	for _, b := range []*blob{f.before, f.after} {
		if b != nil && b.hidden != "" && f.Hidden == "" {
			f.Hidden = b.hidden
		}
		f.Binary = f.Binary || b != nil && b.binary
	}
	if f.same {
		f.Hidden, f.Binary = "", false
	}
	if f.same || f.Hidden != "" || f.Binary {
		return
	}
	if f.Status == StatusRetyped {
		f.Removed, f.Added = len(lines(f.before.content)), len(lines(f.after.content))
		return
	}
	f.Hunks = diffText(f.before.bytes(), f.after.bytes())
	for i := range f.Hunks {
		added, removed := f.Hunks[i].Count()
		f.Added += added
		f.Removed += removed
	}
}

// Write writes the change in git's format, as git apply takes it.
func (f *FileChange) Write(w *bufio.Writer) { f.write(w, true) }

// WriteText writes the change in git's format for a person: of binary content
// it only says that it differs.
func (f *FileChange) WriteText(w *bufio.Writer) { f.write(w, false) }

func (f *FileChange) write(w *bufio.Writer, withBinary bool) {
	if f.Hidden != "" {
		f.writeNote(w)
		return
	}
	if f.Status == StatusRetyped {
		// A file that became a symlink goes, and a symlink comes.
		for _, half := range []FileChange{
			{Status: StatusDeleted, Path: f.Path, before: f.before},
			{Status: StatusAdded, Path: f.Path, after: f.after},
		} {
			half.compare()
			half.write(w, withBinary)
		}
		return
	}
	f.writeHeader(w)
	if f.same {
		return
	}
	from, to := f.sides()
	switch {
	case f.Binary && withBinary:
		writeBinary(w, f.before.bytes(), f.after.bytes())
	case f.Binary:
		fmt.Fprintf(w, "Binary files %s and %s differ\n", from, to)
	case len(f.Hunks) > 0:
		fmt.Fprintf(w, "--- %s\n+++ %s\n", label(from), label(to))
		for i := range f.Hunks {
			f.Hunks[i].Write(w)
		}
	}
}

// sides names the file before and after.
func (f *FileChange) sides() (from, to string) {
	from, to = quote("a/"+f.oldPath()), quote("b/"+f.Path)
	if f.before == nil {
		from = "/dev/null"
	}
	if f.after == nil {
		to = "/dev/null"
	}
	return from, to
}

func (f *FileChange) oldPath() string {
	if f.From != "" {
		return f.From
	}
	return f.Path
}

// writeHeader writes all that stands before the content. The names of the
// blobs are whole, which git apply demands for binary content, and which lets
// git apply --3way find them.
func (f *FileChange) writeHeader(w *bufio.Writer) {
	fmt.Fprintf(w, "diff --git %s %s\n", quote("a/"+f.oldPath()), quote("b/"+f.Path))
	mode := ""
	switch {
	case f.before == nil:
		fmt.Fprintf(w, "new file mode %s\n", f.after.mode)
	case f.after == nil:
		fmt.Fprintf(w, "deleted file mode %s\n", f.before.mode)
	case f.before.mode != f.after.mode:
		fmt.Fprintf(w, "old mode %s\nnew mode %s\n", f.before.mode, f.after.mode)
	default:
		mode = " " + f.after.mode
	}
	if f.From != "" {
		fmt.Fprintf(w, "similarity index %d%%\nrename from %s\nrename to %s\n", f.Similarity, quote(f.From), quote(f.Path))
	}
	if !f.same {
		fmt.Fprintf(w, "index %s..%s%s\n", f.before.name(), f.after.name(), mode)
	}
}

// writeNote tells of a change whose content is not shown. git apply takes such a
// line after a "diff --git" line for a patch that lacks its data, and refuses
// everything; alone, and after an empty line that keeps it from the header of
// the file before, it is a comment.
func (f *FileChange) writeNote(w *bufio.Writer) {
	from, to := quote("a/"+f.oldPath()), quote("b/"+f.Path)
	if f.before == nil {
		from = "/dev/null"
	}
	if f.after == nil {
		to = "/dev/null"
	}
	fmt.Fprintf(w, "\nFiles %s and %s differ, not shown: %s\n", from, to, f.Hidden)
}

// label ends a name that holds a space in a tab, as git does, so that the
// space does not end it.
func label(name string) string {
	if strings.Contains(name, " ") && !strings.HasPrefix(name, `"`) {
		return name + "\t"
	}
	return name
}

// quote writes a name as git does: as it is, or as a C string when it holds
// anything but printable ASCII.
func quote(name string) string {
	plain := true
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(name) {
		c := name[i]
		if at := strings.IndexByte("\a\b\t\n\v\f\r\"\\", c); at >= 0 {
			plain = false
			b.WriteByte('\\')
			b.WriteByte(`abtnvfr"\`[at])
		} else if c < ' ' || c >= 0x7f {
			plain = false
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	if plain {
		return name
	}
	b.WriteByte('"')
	return b.String()
}

// WriteHeader writes what stands before the hunks of a file that has some.
func (f *FileChange) WriteHeader(w *bufio.Writer) {
	f.writeHeader(w)
	from, to := f.sides()
	fmt.Fprintf(w, "--- %s\n+++ %s\n", label(from), label(to))
}

// Apply returns the content between before and after that some of the change's
// hunks, given in order, make.
func (f *FileChange) Apply(chosen []Hunk) []byte { return ApplyHunks(f.before.bytes(), chosen) }
