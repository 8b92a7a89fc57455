package merge

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Why a text is not merged, for errors.Is.
var (
	ErrBinary   = errors.New("not text: it holds NUL bytes")
	ErrTooLarge = errors.New("too large to be merged")
)

// maxText is the most bytes of one side.
const maxText = 16 << 20

// Labels name the two sides in conflict markers. Without labels no markers are
// written.
type Labels struct {
	Ours, Theirs string
}

// Text merges two changes of base line by line and returns how many conflicts
// there were. With none, merged is the result. With some, merged is nil, or,
// where labels are given, the result with git's markers around each conflict.
//
// Changes that overlap or touch conflict, unless both sides made the same one,
// which is then taken once (git merge-file does the same). It never merges what
// git merge-file would not, as far as is known; the reverse may happen where lines
// repeat. The texts are bytes; a line end belongs to its line, so "\r\n" and "\n"
// differ.
func Text(base, ours, theirs []byte, labels Labels) (merged []byte, conflicts int, err error) {
	for _, text := range [][]byte{base, ours, theirs} {
		if len(text) > maxText {
			return nil, 0, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(text))
		}
		if bytes.IndexByte(text, 0) >= 0 {
			return nil, 0, ErrBinary
		}
	}
	var t texts
	b, o, th := t.lines(base), t.lines(ours), t.lines(theirs)
	toOurs, toTheirs := align(b, o), align(b, th)
	var out bytes.Buffer
	write := func(lines []rune) {
		for _, line := range lines {
			out.WriteString(t.names[line])
		}
	}
	at, atO, atT := 0, 0, 0
	for at < len(b) || atO < len(o) || atT < len(th) {
		end, endO, endT := at, len(o), len(th)
		for end < len(b) && (toOurs[end] < 0 || toTheirs[end] < 0) {
			end++
		}
		if end < len(b) {
			endO, endT = toOurs[end], toTheirs[end]
		}
		was, we, they := b[at:end], o[atO:endO], th[atT:endT]
		switch {
		case slices.Equal(we, they), slices.Equal(they, was):
			write(we)
		case slices.Equal(we, was):
			write(they)
		default:
			conflicts++
			if labels != (Labels{}) {
				t.conflict(&out, we, they, labels)
			}
		}
		at, atO, atT = end, endO, endT
		if end < len(b) { // a line that all three share
			write(b[end : end+1])
			at, atO, atT = end+1, endO+1, endT+1
		}
	}
	if conflicts > 0 && labels == (Labels{}) {
		return nil, conflicts, nil
	}
	return out.Bytes(), conflicts, nil
}

// texts gives each different line a number.
type texts struct {
	numbers map[string]rune
	names   []string
}

func (t *texts) lines(text []byte) []rune {
	if t.numbers == nil {
		t.numbers = map[string]rune{}
	}
	var lines []rune
	for line := range strings.Lines(string(text)) {
		n, ok := t.numbers[line]
		if !ok {
			n = rune(len(t.names))
			t.numbers[line] = n
			t.names = append(t.names, line)
		}
		lines = append(lines, n)
	}
	return lines
}

// conflict writes both sides in git's form, without the lines that they share at
// their ends.
func (t *texts) conflict(out *bytes.Buffer, we, they []rune, labels Labels) {
	head, tail := commonEnds(we, they)
	lineEnd := "\r\n"
	for _, line := range slices.Concat(we, they) {
		if name := t.names[line]; strings.HasSuffix(name, "\n") && !strings.HasSuffix(name, "\r\n") {
			lineEnd = "\n"
		}
	}
	put := func(lines []rune) {
		for _, line := range lines {
			out.WriteString(t.names[line])
		}
	}
	side := func(lines []rune) {
		put(lines)
		if b := out.Bytes(); b[len(b)-1] != '\n' { // a last line without end
			out.WriteString(lineEnd)
		}
	}
	put(we[:head])
	out.WriteString("<<<<<<< " + labels.Ours + lineEnd)
	side(we[head : len(we)-tail])
	out.WriteString("=======" + lineEnd)
	side(they[head : len(they)-tail])
	out.WriteString(">>>>>>> " + labels.Theirs + lineEnd)
	put(we[len(we)-tail:])
}

// Sides merges as [Text] does, and says in words why a merge is not clean.
func Sides(base, ours, theirs []byte, labels Labels) (merged []byte, clean bool, why string) {
	merged, conflicts, err := Text(base, ours, theirs, labels)
	switch {
	case err != nil:
		return nil, false, err.Error()
	case conflicts == 1:
		return merged, false, "the changes conflict in 1 place"
	case conflicts > 1:
		return merged, false, fmt.Sprintf("the changes conflict in %d places", conflicts)
	}
	return merged, true, ""
}
