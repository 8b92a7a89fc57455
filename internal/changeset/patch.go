package changeset

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

// blob is one side of a file in a patch, in the two modes and the symlinks
// that git knows.
type blob struct {
	mode    string
	content []byte
	hidden  string // why the content is not shown; "" when it is
}

// patcher writes a patch in git's format.
type patcher struct{ w *bufio.Writer }

// file writes the change of one file; nil is a side on which it is not.
func (p patcher) file(path string, before, after *blob, sameContent bool) {
	if before == nil && after == nil {
		return
	}
	if before != nil && after != nil {
		if before.mode[:3] != after.mode[:3] {
			// A file that became a symlink goes, and a symlink comes.
			p.file(path, before, nil, false)
			p.file(path, nil, after, false)
			return
		}
		if sameContent && before.mode == after.mode {
			return
		}
	}
	from, to := quote("a/"+path), quote("b/"+path)
	if !sameContent {
		if reason := hiddenReason(before, after); reason != "" {
			p.hidden(from, to, before, after, reason)
			return
		}
	}
	fmt.Fprintf(p.w, "diff --git %s %s\n", from, to)
	switch {
	case before == nil:
		fmt.Fprintf(p.w, "new file mode %s\n", after.mode)
		from = "/dev/null"
	case after == nil:
		fmt.Fprintf(p.w, "deleted file mode %s\n", before.mode)
		to = "/dev/null"
	case before.mode != after.mode:
		fmt.Fprintf(p.w, "old mode %s\nnew mode %s\n", before.mode, after.mode)
	}
	if sameContent {
		return
	}
	was, is := lines(before), lines(after)
	for i, h := range diffLines(was, is) {
		if i == 0 {
			fmt.Fprintf(p.w, "--- %s\n+++ %s\n", label(from), label(to))
		}
		h.write(p.w, was, is)
	}
}

// hiddenReason says why a change cannot be shown; "" when it can.
func hiddenReason(before, after *blob) string {
	for _, b := range []*blob{before, after} {
		if b != nil && b.hidden != "" {
			return b.hidden
		}
	}
	return ""
}

// hidden notes a change whose content is not shown. git apply takes such a
// line after a "diff --git" line for a patch that lacks its data, and refuses
// everything; alone, and after an empty line that keeps it from the header of
// the file before, it is a comment.
func (p patcher) hidden(from, to string, before, after *blob, reason string) {
	if before == nil {
		from = "/dev/null"
	}
	if after == nil {
		to = "/dev/null"
	}
	if reason == binaryContent {
		fmt.Fprintf(p.w, "\nBinary files %s and %s differ\n", from, to)
	} else {
		fmt.Fprintf(p.w, "\nFiles %s and %s differ, not shown: %s\n", from, to, reason)
	}
}

const binaryContent = "binary"

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

// lines splits a content after each newline; the last line may lack it.
func lines(b *blob) []string {
	if b == nil {
		return nil
	}
	all := strings.SplitAfter(string(b.content), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// context is how many unchanged lines stand around a change.
const context = 3

// hunk is a run of edits with no more unchanged lines between them than both
// their contexts take.
type hunk []lcs.Diff

func diffLines(before, after []string) []hunk {
	var hunks []hunk
	end := 0
	for _, d := range lcs.DiffLines(before, after) {
		if n := len(hunks); n > 0 && d.Start-end <= 2*context {
			hunks[n-1] = append(hunks[n-1], d)
		} else {
			hunks = append(hunks, hunk{d})
		}
		end = d.End
	}
	return hunks
}

func (h hunk) write(w *bufio.Writer, before, after []string) {
	first, last := h[0], h[len(h)-1]
	lead := min(first.Start, context)
	trail := min(len(before)-last.End, context)
	fmt.Fprintf(w, "@@ -%s +%s @@\n",
		span(first.Start-lead, last.End+trail), span(first.ReplStart-lead, last.ReplEnd+trail))
	at := first.Start - lead
	for _, d := range h {
		writeLines(w, ' ', before[at:d.Start])
		writeLines(w, '-', before[d.Start:d.End])
		writeLines(w, '+', after[d.ReplStart:d.ReplEnd])
		at = d.End
	}
	writeLines(w, ' ', before[at:last.End+trail])
}

// span writes a range of lines as a hunk's header has it: the first one and
// how many, which is left out for one; the line before, for none.
func span(start, end int) string {
	switch n := end - start; n {
	case 0:
		return fmt.Sprintf("%d,0", start)
	case 1:
		return fmt.Sprint(start + 1)
	default:
		return fmt.Sprintf("%d,%d", start+1, n)
	}
}

func writeLines(w *bufio.Writer, sign byte, lines []string) {
	for _, line := range lines {
		w.WriteByte(sign)
		w.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			w.WriteString("\n\\ No newline at end of file\n")
		}
	}
}
