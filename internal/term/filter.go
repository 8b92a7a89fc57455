package term

import (
	"io"
	"unicode/utf8"
)

// Set is the control sequences that pass.
type Set uint8

const (
	// Lines is for what is read line by line, as a log is: colours, and moves
	// on the line that is being written. No sequence leaves the line.
	Lines Set = iota
	// Screen is for a command that has a terminal of its own: it may also
	// paint the whole screen. Nothing passes at which the terminal answers,
	// or that has an effect beyond the screen.
	Screen
)

// Filter lets a stream through, cut into pieces as it comes. It holds less than
// one sequence, whatever the stream is. The zero value is a filter of Lines.
type Filter struct {
	Set Set

	state   state
	char    [utf8.UTFMax]byte // the beginning of a character
	charLen int
	seq     [longest]byte // parameters and intermediates of a sequence
	seqLen  int           // longest+1: too many
	left    changed       // what the terminal was told and not yet told back
}

// longest is how many bytes a sequence may have between introducer and final:
// several colours of 24 bits are 40.
const longest = 96

type state uint8

const (
	text     state = iota
	escape         // after ESC
	sequence       // after CSI
	payload        // in OSC, DCS, SOS, PM or APC: of no length in particular
)

const (
	bel, so, si    = 0x07, 0x0e, 0x0f
	can, sub, esc  = 0x18, 0x1a, 0x1b
	del            = 0x7f
	firstC1, text8 = 0x80, 0xa0
)

// Append appends to dst what passes of src, and returns the longer slice.
func (f *Filter) Append(dst, src []byte) []byte {
	for len(src) > 0 {
		if f.charLen > 0 {
			f.char[f.charLen] = src[0]
			f.charLen++
			src = src[1:]
			dst = f.chars(dst, false)
			continue
		}
		if f.state == text {
			n := 0
			for n < len(src) && plain(src[n]) {
				n++
			}
			dst, src = append(dst, src[:n]...), src[n:]
			if len(src) == 0 {
				break
			}
		}
		switch c := src[0]; {
		case c < utf8.RuneSelf:
			dst, src = f.ascii(dst, c), src[1:]
		case !utf8.FullRune(src):
			f.charLen = copy(f.char[:], src)
			return dst
		default:
			r, n := utf8.DecodeRune(src)
			dst, src = f.wide(dst, src[:n], r), src[n:]
		}
	}
	return dst
}

// End appends what is left when the stream has ended: bytes that are no
// character, and what sets the terminal back.
func (f *Filter) End(dst []byte) []byte {
	dst = f.chars(dst, true)
	f.state = text
	dst = f.left.restore(dst)
	f.left = 0
	return dst
}

// chars lets through what is complete of the held character; at the end all is.
func (f *Filter) chars(dst []byte, end bool) []byte {
	for f.charLen > 0 && (end || utf8.FullRune(f.char[:f.charLen])) {
		held := f.char
		r, n := utf8.DecodeRune(held[:f.charLen])
		f.charLen = copy(f.char[:], held[n:f.charLen])
		if n == 1 && held[0] < utf8.RuneSelf {
			dst = f.ascii(dst, held[0])
		} else {
			dst = f.wide(dst, held[:n], r)
		}
	}
	return dst
}

// plain bytes pass wherever text does.
func plain(c byte) bool {
	return c >= ' ' && c < del || c == '\n' || c == '\t' || c == '\r' || c == '\b'
}

func (s Set) passes(c byte) bool {
	return plain(c) || s == Screen && (c == bel || c == '\v' || c == '\f' || c == so || c == si)
}

// wide takes a character beyond ASCII, or a byte that is none.
func (f *Filter) wide(dst, p []byte, r rune) []byte {
	if r >= firstC1 && r < text8 { // the 8-bit form of ESC and a letter
		f.begin(escape)
		return f.ascii(dst, byte(r)-0x40)
	}
	if f.state == payload {
		return dst
	}
	f.state = text
	// A terminal that does not take its input for UTF-8 would take this byte
	// for a control. By itself it is no text in any case.
	if len(p) == 1 && p[0] < text8 {
		return dst
	}
	return append(dst, p...)
}

func (f *Filter) begin(s state) { f.state, f.seqLen = s, 0 }

func (f *Filter) ascii(dst []byte, c byte) []byte {
	switch {
	case c == esc: // also within anything else, which it ends
		f.begin(escape)
		return dst
	case f.state == payload:
		// The end of a line ends it too: what nobody ends would swallow all
		// that follows, and so does a terminal.
		if c == bel || c == can || c == sub || c == '\n' {
			f.state = text
		}
		if c == '\n' {
			dst = append(dst, c)
		}
		return dst
	case c < ' ' || c == del: // obeyed in the middle of a sequence
		if c == can || c == sub {
			f.state = text
		} else if f.Set.passes(c) {
			f.left = f.left.afterControl(c)
			dst = append(dst, c)
		}
		return dst
	case f.state == text:
		return append(dst, c)
	case f.state == escape && f.seqLen == 0:
		switch c {
		case '[':
			f.begin(sequence)
			return dst
		case ']', 'P', 'X', '^', '_', 'k': // k: a title, to screen(1) and tmux
			f.begin(payload)
			return dst
		}
	}
	if intermediate := c < '0'; intermediate || f.state == sequence && c < '@' {
		if f.seqLen < longest {
			f.seq[f.seqLen] = c
		}
		f.seqLen = min(f.seqLen+1, longest+1)
		return dst
	}
	kind := f.state
	f.state = text
	if f.seqLen > longest {
		return dst
	}
	body := f.seq[:f.seqLen]
	if kind == escape {
		if !f.Set.passesEscape(body, c) {
			return dst
		}
		f.left = f.left.afterEscape(body, c)
		dst = append(dst, esc)
	} else {
		s, ok := parse(body, c)
		if !ok || !f.Set.passesSequence(&s) {
			return dst
		}
		f.left = f.left.after(&s)
		dst = append(dst, esc, '[')
	}
	return append(append(dst, body...), c)
}

// Strip returns what passes of a whole text that is read line by line.
func Strip(text []byte) []byte {
	var f Filter
	return f.End(f.Append(make([]byte, 0, len(text)), text))
}

// Writer lets through to another writer.
type Writer struct {
	to     io.Writer
	filter Filter
	buf    []byte
}

// NewWriter returns a writer that lets a stream through to w.
func NewWriter(w io.Writer, set Set) *Writer { return &Writer{to: w, filter: Filter{Set: set}} }

// Write writes what passes of p, in one call, so that nobody else's output comes
// in the middle of a sequence.
func (w *Writer) Write(p []byte) (int, error) {
	if w.buf = w.filter.Append(w.buf[:0], p); len(w.buf) > 0 {
		if _, err := w.to.Write(w.buf); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Close sets the terminal back. It closes nothing.
func (w *Writer) Close() error {
	if w.buf = w.filter.End(w.buf[:0]); len(w.buf) == 0 {
		return nil
	}
	_, err := w.to.Write(w.buf)
	return err
}
