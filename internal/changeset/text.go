package changeset

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
)

// context is how many unchanged lines stand around a change.
const context = 3

// Hunk is a run of edits with no more unchanged lines between them than both
// their contexts take.
type Hunk struct {
	// Section is the line above the hunk that tells where it is, by git's
	// default rule: the last that starts with a letter, "_" or "$".
	Section string

	edits         []lcs.Diff
	before, after []string // the lines of both files, whole
}

// lines splits a content after each newline; the last line may lack it.
func lines(content []byte) []string {
	all := strings.SplitAfter(string(content), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	return all
}

// diffText compares two contents line by line.
func diffText(before, after []byte) []Hunk {
	was, is := lines(before), lines(after)
	var hunks []Hunk
	end := 0
	for _, d := range lcs.DiffLines(was, is) {
		n := len(hunks)
		if n == 0 || d.Start-end > 2*context {
			hunks = append(hunks, Hunk{before: was, after: is})
			n++
		}
		h := &hunks[n-1]
		if last := len(h.edits) - 1; last >= 0 && d.Start == end {
			h.edits[last].End, h.edits[last].ReplEnd = d.End, d.ReplEnd
		} else {
			h.edits = append(h.edits, d)
		}
		end = d.End
	}
	looked, section := 0, ""
	for i := range hunks {
		for ; looked < hunks[i].start(); looked++ {
			if isSection(was[looked]) {
				section = was[looked]
			}
		}
		hunks[i].Section = trimSection(section)
	}
	return hunks
}

func isSection(line string) bool {
	c := line[0] // a line has a byte at least
	return c == '_' || c == '$' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func trimSection(line string) string {
	return strings.TrimRight(line[:min(len(line), 80)], " \t\r\n\v\f")
}

// start is the index of the first line that the hunk shows.
func (h *Hunk) start() int { return h.edits[0].Start - h.lead() }

func (h *Hunk) lead() int { return min(h.edits[0].Start, context) }

// Count returns how many lines the hunk adds and removes.
func (h *Hunk) Count() (added, removed int) {
	for _, d := range h.edits {
		added += d.ReplEnd - d.ReplStart
		removed += d.End - d.Start
	}
	return added, removed
}

// Split divides a hunk at every unchanged line between its edits; a hunk that
// has none comes back alone.
func (h *Hunk) Split() []Hunk {
	parts := make([]Hunk, len(h.edits))
	for i := range h.edits {
		parts[i] = Hunk{Section: h.Section, edits: h.edits[i : i+1], before: h.before, after: h.after}
	}
	return parts
}

// ApplyHunks returns the content of before with some of its hunks, given in
// order, applied.
func ApplyHunks(before []byte, hunks []Hunk) []byte {
	var out []byte
	was := lines(before)
	at := 0
	add := func(lines []string) {
		for _, line := range lines {
			// Only the last line of a file may lack its newline.
			if len(out) > 0 && out[len(out)-1] != '\n' {
				out = append(out, '\n')
			}
			out = append(out, line...)
		}
	}
	for i := range hunks {
		for _, d := range hunks[i].edits {
			add(was[at:d.Start])
			add(hunks[i].after[d.ReplStart:d.ReplEnd])
			at = d.End
		}
	}
	add(was[at:])
	return out
}

// Header is the first line of the hunk.
func (h *Hunk) Header() string {
	first, last, lead := h.edits[0], h.edits[len(h.edits)-1], h.lead()
	trail := h.trail()
	header := fmt.Sprintf("@@ -%s +%s @@", span(first.Start-lead, last.End+trail), span(first.ReplStart-lead, last.ReplEnd+trail))
	if h.Section != "" {
		header += " " + h.Section
	}
	return header
}

func (h *Hunk) trail() int { return min(len(h.before)-h.edits[len(h.edits)-1].End, context) }

// Write writes the hunk as a patch has it.
func (h *Hunk) Write(w *bufio.Writer) {
	w.WriteString(h.Header())
	w.WriteByte('\n')
	at := h.start()
	for _, d := range h.edits {
		writeLines(w, ' ', h.before[at:d.Start])
		writeLines(w, '-', h.before[d.Start:d.End])
		writeLines(w, '+', h.after[d.ReplStart:d.ReplEnd])
		at = d.End
	}
	writeLines(w, ' ', h.before[at:at+h.trail()])
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
