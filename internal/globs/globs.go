package globs

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Set is an ordered list of patterns. The zero Set, and a nil one, match
// nothing.
type Set struct{ patterns []pattern }

// maxPattern bounds one pattern; PATH_MAX bounds what it could match.
const maxPattern = 4096

// Parse reads patterns, one an element, the later overruling the earlier. What
// gitignore(5) would pass over in silence is an error here: a pattern that can
// match nothing was not meant so.
func Parse(patterns []string) (*Set, error) {
	s := &Set{}
	for _, text := range patterns {
		p, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("pattern %q: %w", text, err)
		}
		s.patterns = append(s.patterns, p)
	}
	return s, nil
}

// Empty reports whether the set has no pattern.
func (s *Set) Empty() bool { return s == nil || len(s.patterns) == 0 }

// Match reports whether path, or a directory above it, is matched. The path is
// relative to where the patterns are anchored, slash-separated, clean, of raw
// bytes; dir says whether it is a directory.
//
// Each pattern passes over the path once, for all directories above it too: a
// box chooses how deep its paths are.
func (s *Set) Match(path string, dir bool) bool {
	if s.Empty() || path == "." || path == "" {
		return false
	}
	var few [32]verdict
	verdicts := append(few[:0], make([]verdict, 1+strings.Count(path, "/"))...)
	for i := len(s.patterns) - 1; i >= 0; i-- {
		p := &s.patterns[i]
		say := matched
		if p.negated {
			say = takenBack
		}
		p.eachMatch(path, func(depth int) {
			isDir := dir || depth < len(verdicts)-1
			if verdicts[depth] == undecided && (isDir || !p.dirOnly) {
				verdicts[depth] = say
			}
		})
	}
	return slices.Contains(verdicts, matched)
}

// verdict is what the last pattern that matched a path says of it.
type verdict uint8

const (
	undecided verdict = iota
	matched
	takenBack
)

// eachMatch calls found with the depth (0 for the topmost) of path and of each
// directory above it that the pattern by itself matches.
func (p *pattern) eachMatch(path string, found func(depth int)) {
	if p.exact != "" {
		if path == p.exact {
			found(strings.Count(path, "/"))
		}
		return
	}
	if p.anchored {
		if rest, ok := strings.CutPrefix(path, p.literal); ok {
			p.run(rest, strings.Count(p.literal, "/"), found)
		}
		return
	}
	depth := 0
	for name := range strings.SplitSeq(path, "/") {
		if p.matchName(name) {
			found(depth)
		}
		depth++
	}
}

// pattern is one line of a gitignore file.
type pattern struct {
	negated  bool
	dirOnly  bool
	anchored bool // matched against the whole path, not the last component

	exact   string  // the one path that it matches, and nothing beneath; "" for none
	literal string  // what a path must begin with
	tokens  []token // what must follow
	// tail is what must follow where that is a star and plain text, as in the
	// commonest pattern by far, "*.o".
	tail   string
	isTail bool
}

func parse(text string) (pattern, error) {
	var p pattern
	switch {
	case len(text) > 4*maxPattern || len(text) > maxPattern && text[0] != '"':
		return p, fmt.Errorf("longer than %d bytes", maxPattern)
	case len(text) > 1 && text[0] == '"' && text[len(text)-1] == '"':
		return parseExact(text)
	case strings.IndexByte(text, 0) >= 0:
		return p, errors.New("holds a NUL")
	case strings.IndexByte(text, '\n') >= 0:
		return p, errors.New("holds a line break; give each pattern by itself")
	case strings.HasPrefix(text, "#"):
		return p, errors.New(`a line that begins with # is a comment; write \# for a name that does`)
	}
	rest := trimSpaces(text)
	rest, p.negated = strings.CutPrefix(rest, "!")
	rest, p.dirOnly = strings.CutSuffix(rest, "/")
	p.anchored = strings.IndexByte(rest, '/') >= 0
	rest = strings.TrimPrefix(rest, "/")
	if rest == "" {
		return p, errors.New("names nothing; write * for everything")
	}
	if strings.HasPrefix(rest, "/") || strings.HasSuffix(rest, "/") {
		return p, errors.New("has an empty component; write single slashes")
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "." || part == ".." || part == "" {
			return p, fmt.Errorf("has a component %q, which no path has; write it from the top of the workspace", part)
		}
	}
	wild := strings.IndexAny(rest, `*?[\`)
	if wild < 0 {
		wild = len(rest)
	}
	p.literal = rest[:wild]
	var err error
	p.tokens, err = compile(rest[wild:], p.anchored)
	if tail, ok := strings.CutPrefix(rest[wild:], "*"); ok && !strings.ContainsAny(tail, `*?[\`) {
		p.tail, p.isTail = tail, true
	}
	return p, err
}

// parseExact reads a path in double quotes, from the top, with the escapes of C
// and Go: that path alone, whatever bytes are in it, and nothing beneath it.
func parseExact(text string) (p pattern, err error) {
	path, err := strconv.Unquote(text)
	if err != nil || !strings.HasPrefix(path, "/") || path == "/" {
		return p, errors.New(`in double quotes must be one path from the top, as "/a\nb"; write \" for a name that begins with a quote`)
	}
	p.exact = path[1:]
	return p, nil
}

// trimSpaces takes off trailing spaces, except one that a backslash keeps.
func trimSpaces(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			i++
			end = min(i+1, len(s))
		} else if s[i] != ' ' {
			end = i + 1
		}
	}
	return s[:end]
}

// kind is what one token of a compiled pattern matches.
type kind uint8

const (
	literal  kind = iota // one byte
	question             // any byte but a slash
	class                // a byte of a set, never a slash
	star                 // any number of bytes without a slash
	stars                // any number of bytes
	maybe                // nothing; the two tokens after it, "**/", may be left out
)

type token struct {
	kind kind
	lit  byte
	set  *[256]bool
}

// compile turns wildmatch text into tokens. Only an anchored pattern knows
// "**": in others it is as good as "*".
func compile(text string, anchored bool) ([]token, error) {
	var tokens []token
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '*':
			from := i
			for i+1 < len(text) && text[i+1] == '*' {
				i++
			}
			rest := text[i+1:]
			// At the start of text too, where a literal went before: git takes
			// "a**/b" for "a" and "**/b" (dir.c, match_pathname).
			whole := anchored && i > from && (from == 0 || text[from-1] == '/') &&
				(rest == "" || rest[0] == '/' || strings.HasPrefix(rest, `\/`))
			switch {
			case !whole:
				tokens = append(tokens, token{kind: star})
			case strings.HasPrefix(rest, "/"):
				tokens = append(tokens, token{kind: maybe}, token{kind: stars}, token{kind: literal, lit: '/'})
				i++
			default:
				tokens = append(tokens, token{kind: stars})
			}
		case '?':
			tokens = append(tokens, token{kind: question})
		case '[':
			set, size, err := parseClass(text[i:])
			if err != nil {
				return nil, err
			}
			tokens = append(tokens, token{kind: class, set: set})
			i += size - 1
		case '\\':
			i++
			if i == len(text) {
				return nil, errors.New(`ends in a backslash; write \\ for one`)
			}
			tokens = append(tokens, token{kind: literal, lit: text[i]})
		default:
			tokens = append(tokens, token{kind: literal, lit: c})
		}
	}
	return tokens, nil
}

var errClass = errors.New(`has a "[" without its "]"; write \[ for the character`)

// parseClass reads a bracket expression at the start of text and returns the
// bytes that it matches and its length.
func parseClass(text string) (*[256]bool, int, error) {
	var set [256]bool
	i := 1
	at := func(i int) byte { // 0 past the end: a pattern holds no NUL
		if i < len(text) {
			return text[i]
		}
		return 0
	}
	negated := at(i) == '!' || at(i) == '^'
	if negated {
		i++
	}
	var before byte // the left end of a range; 0 for none
	for first := true; first || at(i) != ']'; first = false {
		c := at(i)
		switch {
		case c == 0:
			return nil, 0, errClass
		case c == '\\':
			i++
			if c = at(i); c == 0 {
				return nil, 0, errClass
			}
			set[c] = true
			before = c
		case c == '-' && before != 0 && at(i+1) != 0 && at(i+1) != ']':
			i++
			if at(i) == '\\' {
				i++
			}
			if at(i) == 0 {
				return nil, 0, errClass
			}
			for b := int(before); b <= int(at(i)); b++ {
				set[b] = true
			}
			before = 0
		case c == '[' && at(i+1) == ':':
			end := strings.IndexByte(text[i+2:], ']')
			if end < 0 {
				return nil, 0, errClass
			}
			name, ok := strings.CutSuffix(text[i+2:i+2+end], ":")
			if !ok { // a "[" and a ":" of the set
				set['['] = true
				before = '['
				break
			}
			in, known := classes[name]
			if !known {
				return nil, 0, fmt.Errorf("has an unknown class [:%s:]", name)
			}
			for b := range 128 {
				set[b] = set[b] || in(byte(b))
			}
			i += 2 + end
			before = 0
		default:
			set[c] = true
			before = c
		}
		i++
	}
	for b := range set {
		set[b] = set[b] != negated
	}
	set['/'] = false
	return &set, i + 1, nil
}

func between(c, low, high byte) bool { return low <= c && c <= high }
func isAlpha(c byte) bool            { return between(c|0x20, 'a', 'z') }
func isDigit(c byte) bool            { return between(c, '0', '9') }
func isGraph(c byte) bool            { return between(c, '!', '~') }

// classes are those of POSIX, for ASCII.
var classes = map[string]func(byte) bool{
	"alnum":  func(c byte) bool { return isAlpha(c) || isDigit(c) },
	"alpha":  isAlpha,
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 127 },
	"digit":  isDigit,
	"graph":  isGraph,
	"lower":  func(c byte) bool { return between(c, 'a', 'z') },
	"print":  func(c byte) bool { return isGraph(c) || c == ' ' },
	"punct":  func(c byte) bool { return isGraph(c) && !isAlpha(c) && !isDigit(c) },
	"space":  func(c byte) bool { return c == ' ' || between(c, '\t', '\r') },
	"upper":  func(c byte) bool { return between(c, 'A', 'Z') },
	"xdigit": func(c byte) bool { return isDigit(c) || between(c|0x20, 'a', 'f') },
}

// matchName matches one component of a path.
func (p *pattern) matchName(name string) bool {
	rest, ok := strings.CutPrefix(name, p.literal)
	switch {
	case !ok:
		return false
	case len(p.tokens) == 0:
		return rest == ""
	case p.isTail:
		return strings.HasSuffix(rest, p.tail)
	}
	ok = false
	p.run(rest, 0, func(int) { ok = true })
	return ok
}

// run matches text, and each part of it that ends before a slash, and calls
// found with the number of slashes before the end, counted from depth.
//
// It holds all places in the pattern at which a match could be, so that no
// pattern and no path make it take more than their lengths multiplied: a
// backtracking matcher takes exponential time on "*a*a*a*b".
func (p *pattern) run(text string, depth int, found func(depth int)) {
	tokens := p.tokens
	if len(tokens) == 0 {
		if text == "" || text[0] == '/' {
			found(depth)
		}
		return
	}
	var few [2][64]bool
	now := append(few[0][:0], make([]bool, len(tokens)+1)...)
	next := append(few[1][:0], make([]bool, len(tokens)+1)...)
	enter(tokens, now, 0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '/' {
			if now[len(tokens)] {
				found(depth)
			}
			depth++
		}
		alive := false
		clear(next)
		for at, here := range now[:len(tokens)] {
			if !here {
				continue
			}
			t := &tokens[at]
			to := -1
			switch t.kind {
			case literal:
				if c == t.lit {
					to = at + 1
				}
			case question:
				if c != '/' {
					to = at + 1
				}
			case class:
				if t.set[c] {
					to = at + 1
				}
			case star:
				if c != '/' {
					to = at
				}
			case stars:
				to = at
			}
			if to >= 0 {
				enter(tokens, next, to)
				alive = true
			}
		}
		if !alive {
			return
		}
		now, next = next, now
	}
	if now[len(tokens)] {
		found(depth)
	}
}

// enter marks a place, and those that are reached from it without a byte.
func enter(tokens []token, places []bool, at int) {
	for !places[at] {
		places[at] = true
		if at == len(tokens) {
			return
		}
		switch tokens[at].kind {
		case star, stars:
		case maybe:
			enter(tokens, places, at+3)
		default:
			return
		}
		at++
	}
}

// Below reports whether something beneath a directory could be matched that the
// directory itself is not: where it says no, nobody has to look.
func (s *Set) Below(dir string) bool {
	return !s.Empty() && slices.ContainsFunc(s.patterns, func(p pattern) bool { return !p.negated && p.below(dir) })
}

func (p *pattern) below(dir string) bool {
	prefix := dir + "/"
	if p.exact != "" {
		return strings.HasPrefix(p.exact, prefix)
	}
	if !p.anchored {
		return true
	}
	if n := min(len(prefix), len(p.literal)); prefix[:n] != p.literal[:n] {
		return false
	}
	depth := strings.Count(p.literal, "/")
	for _, t := range p.tokens {
		if t.kind == stars {
			return true // crosses slashes
		}
		if t.kind == literal && t.lit == '/' {
			depth++
		}
	}
	return strings.Count(prefix, "/") <= depth
}
