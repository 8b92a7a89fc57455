package term

// A csi is a control sequence: CSI, a private mark, numbers, intermediates, and
// a final byte (ECMA-48, 5.4).
type csi struct {
	mark    byte // '<', '=', '>' or '?'; 0: none
	numbers [longest/2 + 1]uint16
	count   int
	colon   bool // numbers are divided by colons
	between byte // the intermediate; 0: none
	final   byte
}

// largest is the greatest number that passes: some terminals take minutes to
// repeat a character a billion times.
const largest = 9999

// insertMode is the one mode that is not private and passes.
const insertMode = 4

// parse reads what stands between CSI and the final byte. What no program
// writes is not ok: two intermediates, numbers that no screen has.
func parse(body []byte, final byte) (s csi, ok bool) {
	s.final = final
	if len(body) > 0 && body[0] >= '<' {
		s.mark, body = body[0], body[1:]
	}
	if n := len(body); n > 0 && body[n-1] < '0' {
		s.between, body = body[n-1], body[:n-1]
	}
	if len(body) == 0 {
		return s, true
	}
	number := 0
	for _, c := range body {
		switch {
		case c >= '0' && c <= '9':
			if number = number*10 + int(c-'0'); number > largest {
				return s, false
			}
		case c == ';' || c == ':':
			if s.count+1 >= len(s.numbers) {
				return s, false
			}
			s.colon = s.colon || c == ':'
			s.numbers[s.count] = uint16(number)
			s.count++
			number = 0
		default:
			return s, false
		}
	}
	s.numbers[s.count] = uint16(number)
	s.count++
	return s, true
}

// first is the first number, or 0.
func (s *csi) first() uint16 { return s.numbers[0] }

// passesSequence is the allowlist of control sequences.
func (set Set) passesSequence(s *csi) bool {
	plain := s.mark == 0 && s.between == 0
	if s.final == 'm' { // SGR: colours
		return plain
	}
	if s.colon {
		return false
	}
	if plain && s.count <= 1 {
		switch s.final {
		case 'K': // EL: erase in the line
			return s.first() <= 2
		case 'C', 'D', 'G': // CUF, CUB, CHA: move in the line
			return true
		}
	}
	return set == Screen && s.paints()
}

// paints reports whether a sequence only paints and moves on the screen.
// What is not here: all that the terminal answers (DA c, DSR n, DECREQTPARM x,
// window reports t, modes $p, checksums *y, versions >q), that prints (i), that
// says what keys type (p with a string, >m, >u), that locks them (2h), that
// takes away what was there before (3J, tab stops g).
func (s *csi) paints() bool {
	switch {
	case s.mark == 0 && s.between == 0:
		switch s.final {
		case '@', 'A', 'B', 'E', 'F', 'I', 'L', 'M', 'P', 'S', 'T', 'X', 'Z', '`', 'a', 'b', 'd', 'e', 's', 'u':
			return s.count <= 1
		case 'H', 'f', 'r':
			return s.count <= 2
		case 'J':
			return s.count <= 1 && s.first() <= 2
		case 'h', 'l':
			return s.count == 1 && s.first() == insertMode
		}
	case s.mark == 0 && s.between == ' ':
		return s.final == 'q' && s.count <= 1 // DECSCUSR: shape of the cursor
	case s.mark == 0 && s.between == '!':
		return s.final == 'p' && s.count == 0 // DECSTR: soft reset
	case s.mark == '?' && s.between == 0:
		switch s.final {
		case 'J', 'K':
			return s.count <= 1 && s.first() <= 2
		case 'h', 'l':
			for _, n := range s.numbers[:s.count] {
				if modeOf(n) == nil {
					return false
				}
			}
			return s.count > 0
		}
	}
	return false
}

// passesEscape is the allowlist of ESC and a final byte, with intermediates
// between.
func (set Set) passesEscape(between []byte, final byte) bool {
	if set != Screen {
		return false
	}
	switch string(between) {
	case "":
		switch final {
		case '7', '8', 'D', 'E', 'M', '=', '>': // the cursor saved, moved; the keypad
			return true
		}
	case "(", ")": // line drawing, and back
		return final == '0' || final == 'B'
	}
	return false
}

// changed is what of a terminal is not as it was.
type changed uint32

const (
	coloured changed = 1 << iota
	shifted
	drawing0 // line drawing for the one half of the characters
	drawing1
	scrolled
	keypad
	inserting
	shaped
	firstMode // and what follows: one for each of modes
)

// A mode is a private mode of a terminal that may be switched.
type mode struct {
	number uint16
	on     bool // as it is without anybody's doing
	undo   string
}

// modes in the order in which they are set back. Mouse reports and bracketed
// paste make the terminal type, but only what the user does; any motion of the
// mouse (1003) and the focus (1004) he does not do on purpose.
var modes = [...]mode{
	{2026, false, "\x1b[?2026l"}, // synchronised output
	{1000, false, "\x1b[?1000l"}, // mouse buttons
	{1002, false, "\x1b[?1002l"}, // and drags
	{1006, false, "\x1b[?1006l"}, // in decimal
	{2004, false, "\x1b[?2004l"}, // bracketed paste
	{1049, false, "\x1b[?1049l"}, // the alternate screen
	{1047, false, "\x1b[?1047l"},
	{47, false, "\x1b[?47l"},
	{1, false, "\x1b[?1l"}, // what cursor keys type
	{5, false, "\x1b[?5l"}, // reverse video
	{6, false, "\x1b[?6l"}, // origin
	{7, true, "\x1b[?7h"},  // wrap
	{12, false, ""},        // the cursor blinks; as it was is not known
	{25, true, "\x1b[?25h"},
	{1048, false, ""}, // the cursor saved
}

func modeOf(number uint16) *mode {
	for i := range modes {
		if modes[i].number == number {
			return &modes[i]
		}
	}
	return nil
}

func (c changed) with(what changed, is bool) changed {
	if is {
		return c | what
	}
	return c &^ what
}

func (c changed) afterControl(control byte) changed {
	switch control {
	case so:
		return c | shifted
	case si:
		return c &^ shifted
	}
	return c
}

func (c changed) afterEscape(between []byte, final byte) changed {
	switch {
	case string(between) == "(":
		return c.with(drawing0, final == '0')
	case string(between) == ")":
		return c.with(drawing1, final == '0')
	case final == '=' || final == '>':
		return c.with(keypad, final == '=')
	}
	return c
}

func (c changed) after(s *csi) changed {
	switch {
	case s.final == 'm':
		return c.with(coloured, !(s.count == 0 || s.count == 1 && s.first() == 0))
	case s.final == 'r':
		return c.with(scrolled, s.count > 0)
	case s.final == 'q':
		return c.with(shaped, s.first() != 0)
	case s.mark == 0 && (s.final == 'h' || s.final == 'l'):
		return c.with(inserting, s.final == 'h')
	case s.mark == '?' && (s.final == 'h' || s.final == 'l'):
		for _, n := range s.numbers[:s.count] {
			for i := range modes {
				if modes[i].number == n {
					c = c.with(firstMode<<i, (s.final == 'h') != modes[i].on)
				}
			}
		}
	}
	return c
}

// restore appends what sets back all that changed.
func (c changed) restore(dst []byte) []byte {
	for i := range modes {
		if c&(firstMode<<i) != 0 {
			dst = append(dst, modes[i].undo...)
		}
	}
	for _, r := range [...]struct {
		what changed
		undo string
	}{
		{scrolled, "\x1b7\x1b[r\x1b8"}, // it moves the cursor
		{inserting, "\x1b[4l"},
		{keypad, "\x1b>"},
		{shifted, "\x0f"},
		{drawing0, "\x1b(B"},
		{drawing1, "\x1b)B"},
		{shaped, "\x1b[0 q"},
		{coloured, "\x1b[m"},
	} {
		if c&r.what != 0 {
			dst = append(dst, r.undo...)
		}
	}
	return dst
}
