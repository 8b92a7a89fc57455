package changeset

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"hutch/internal/fsat"
)

// FileStat is a FileChange without its content.
type FileStat struct {
	Status           Status
	Path             string
	From             string // the old path of a rename
	Similarity       int    // of a rename, in percent
	Before, After    *State
	OldMode, NewMode string // as git writes them; "" where the file is not
	Binary           bool
	Hidden           string
	Added, Removed   int // lines
	Hunks            int
}

// Stat describes the change.
func (f *FileChange) Stat() FileStat {
	before, after := f.Modes()
	return FileStat{
		Status: f.Status, Path: f.Path, From: f.From, Similarity: f.Similarity, Before: f.Before, After: f.After,
		OldMode: before, NewMode: after, Binary: f.Binary, Hidden: f.Hidden, Added: f.Added, Removed: f.Removed, Hunks: len(f.Hunks),
	}
}

// within reports whether a file moved, unchanged, with one of the directories.
func (f *FileStat) within(dirs []DirRename) bool {
	if f.Status != StatusRenamed || f.Similarity != 100 || f.OldMode != f.NewMode {
		return false
	}
	for _, d := range dirs {
		if strings.HasPrefix(f.From, d.From+"/") {
			return true
		}
	}
	return false
}

// WriteNameStatus writes a line for each file as git diff --name-status does;
// a directory that moved as a whole is one line, its names ending in "/".
func WriteNameStatus(w *bufio.Writer, files []FileStat, dirs []DirRename) {
	for _, d := range dirs {
		fmt.Fprintf(w, "R100\t%s\t%s\n", quote(d.From+"/"), quote(d.To+"/"))
	}
	for i := range files {
		f := &files[i]
		switch {
		case f.within(dirs):
		case f.Status == StatusRenamed:
			fmt.Fprintf(w, "R%03d\t%s\t%s\n", f.Similarity, quote(f.From), quote(f.Path))
		default:
			fmt.Fprintf(w, "%s\t%s\n", f.Status, quote(f.Path))
		}
	}
}

// WriteNameStatusZ writes each file as git diff --name-status -z does: raw
// names, each ended by a NUL.
func WriteNameStatusZ(w *bufio.Writer, files []FileStat) {
	for i := range files {
		f := &files[i]
		if f.Status == StatusRenamed {
			fmt.Fprintf(w, "R%03d\x00%s\x00%s\x00", f.Similarity, f.From, f.Path)
		} else {
			fmt.Fprintf(w, "%s\x00%s\x00", f.Status, f.Path)
		}
	}
}

// WriteStat writes how many lines each file gained and lost, as git diff --stat
// does, within width columns, and a line for each directory that moved as a
// whole.
func WriteStat(w *bufio.Writer, files []FileStat, dirs []DirRename, width int, colour bool) {
	names := make([]string, len(files))
	var longest, most, binWidth, added, removed int
	for i := range files {
		f := &files[i]
		added += f.Added
		removed += f.Removed
		if f.within(dirs) {
			continue
		}
		names[i] = f.label()
		longest = max(longest, len(names[i]))
		if text := f.bytes(); text != "" {
			binWidth = max(binWidth, len(text)+len("Bin "))
		} else {
			most = max(most, f.Added+f.Removed)
		}
	}
	if len(files) == 0 {
		return
	}
	// The layout is git's: a fixed share for the graph, the rest for names.
	width = max(width, 16+6+len(strconv.Itoa(most)))
	number := len(strconv.Itoa(most))
	nameWidth, graph := longest, most
	if binWidth > 0 && number < 3 {
		number = 3
	}
	graph = max(graph, binWidth-number) // "Bin" stands under the numbers
	if nameWidth+number+6+graph > width {
		graph = min(graph, max(width*3/8-number-6, 6))
		nameWidth = min(nameWidth, width-number-6-graph)
		graph = width - number - 6 - nameWidth
		graph = max(graph, 1)
	}
	for i := range files {
		f := &files[i]
		if names[i] == "" {
			continue
		}
		name := names[i]
		if len(name) > nameWidth {
			tail := name[len(name)-max(nameWidth-3, 0):]
			if slash := strings.IndexByte(tail, '/'); slash >= 0 {
				tail = tail[slash:]
			}
			name = "..." + tail
		}
		fmt.Fprintf(w, " %-*s | ", nameWidth, name)
		if text := f.bytes(); text != "" {
			fmt.Fprintf(w, "%*s %s\n", number, "Bin", text)
			continue
		}
		total := f.Added + f.Removed
		fmt.Fprintf(w, "%*d", number, total)
		plus, minus := scaled(f.Added, f.Removed, most, graph)
		if total > 0 {
			w.WriteByte(' ')
		}
		writeSigns(w, '+', plus, "\x1b[32m", colour)
		writeSigns(w, '-', minus, "\x1b[31m", colour)
		w.WriteByte('\n')
	}
	fmt.Fprintf(w, " %s changed", plural(len(files), "file"))
	if added > 0 || removed == 0 {
		fmt.Fprintf(w, ", %s(+)", plural(added, "insertion"))
	}
	if removed > 0 || added == 0 {
		fmt.Fprintf(w, ", %s(-)", plural(removed, "deletion"))
	}
	w.WriteByte('\n')
	for _, d := range dirs {
		fmt.Fprintf(w, " rename %s => %s (%s)\n", quote(d.From+"/"), quote(d.To+"/"), plural(d.Files, "file"))
	}
}

// scaled fits a graph of both counts into width columns, of which the largest
// change takes all; what is there at all keeps one.
func scaled(added, removed, most, width int) (plus, minus int) {
	if most <= width {
		return added, removed
	}
	scale := func(n int) int {
		if n == 0 {
			return 0
		}
		return 1 + n*(width-1)/most
	}
	total := scale(added + removed)
	if total < 2 && added > 0 && removed > 0 {
		total = 2
	}
	if added < removed {
		plus = scale(added)
		return plus, total - plus
	}
	minus = scale(removed)
	return total - minus, minus
}

func writeSigns(w *bufio.Writer, sign byte, n int, colour string, coloured bool) {
	if n == 0 {
		return
	}
	if coloured {
		w.WriteString(colour)
	}
	for range n {
		w.WriteByte(sign)
	}
	if coloured {
		w.WriteString("\x1b[m")
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// bytes says how the size of a file changed whose lines are not counted; "" for
// one whose are.
func (f *FileStat) bytes() string {
	if !f.Binary && f.Hidden == "" {
		return ""
	}
	size := func(s *State) int64 {
		if s == nil {
			return 0
		}
		return s.Size
	}
	return fmt.Sprintf("%d -> %d bytes", size(f.Before), size(f.After))
}

// label is the name of a file, or both of a renamed one, what they have in
// common written once.
func (f *FileStat) label() string {
	if f.Status != StatusRenamed {
		return quote(f.Path)
	}
	from, to := f.From, f.Path
	if quote(from) != from || quote(to) != to {
		return quote(from) + " => " + quote(to)
	}
	head := 0
	for i := 0; i < min(len(from), len(to)) && from[i] == to[i]; i++ {
		if from[i] == '/' {
			head = i + 1
		}
	}
	// The slash that ends the common head may start the common tail.
	tail, shared := 0, max(head-1, 0)
	for i := 1; i <= min(len(from), len(to))-shared && from[len(from)-i] == to[len(to)-i]; i++ {
		if from[len(from)-i] == '/' {
			tail = i
		}
	}
	if head+tail == 0 {
		return from + " => " + to
	}
	middle := func(s string) string { return s[head:max(head, len(s)-tail)] }
	return from[:head] + "{" + middle(from) + " => " + middle(to) + "}" + from[len(from)-tail:]
}

// Untold is something of a change that no patch in git's format can carry.
type Untold struct {
	Path string `json:"path"`
	What string `json:"what"` // one plain phrase
}

// Untold lists it. What a patch leaves out for its size, or since it cannot be
// read, it says in its place.
func (c *Changeset) Untold() []Untold {
	var all []Untold
	filled := map[string]bool{} // directories that git makes, or removes, with a file in them
	for i := range c.Entries {
		e := &c.Entries[i]
		for _, s := range []*State{e.Before, e.After} {
			if s != nil && !s.isDir() {
				dir, _ := fsat.Split(e.Path)
				for ; dir != "." && !filled[dir]; dir, _ = fsat.Split(dir) {
					filled[dir] = true
				}
			}
		}
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		tell := func(format string, args ...any) { all = append(all, Untold{e.Path, fmt.Sprintf(format, args...)}) }
		switch {
		case e.Op == Created && e.After.isDir() && !filled[e.Path]:
			tell("empty directory, created")
		case e.Op == Deleted && e.Before.isDir() && !filled[e.Path]:
			tell("empty directory, deleted")
		}
		if e.Op == Created && len(e.After.Xattrs) > 0 {
			tell("extended attributes")
		}
		if e.Op != Modified || e.Before.Type != e.After.Type {
			continue
		}
		b, a := e.Before, e.After
		if !maps.EqualFunc(b.Xattrs, a.Xattrs, bytes.Equal) {
			tell("extended attributes")
		}
		if b.UID != a.UID || b.GID != a.GID {
			tell("owner %d:%d -> %d:%d", b.UID, b.GID, a.UID, a.GID)
		}
		// Of a mode git knows whether the owner may execute.
		if changed := b.Mode ^ a.Mode; a.Type != fsat.Symlink && changed != 0 && (a.isDir() || changed&0o100 == 0 || changed&^0o111 != 0) {
			tell("mode %04o -> %04o", b.Mode, a.Mode)
		}
	}
	for _, s := range c.Skipped {
		all = append(all, Untold{s.Path, s.Reason + ", never promoted"})
	}
	return all
}
