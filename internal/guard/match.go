package guard

import "strings"

// pattern is one path pattern of a row, split into components. It matches at
// any depth, since a project may lie anywhere in a workspace; with a leading
// "/" only at the top. "*" stands for any text within a component, and "**" as
// the last component for everything beneath.
type pattern struct {
	row     int
	top     bool
	beneath bool
	parts   []string // without the final "**"
}

func parsePattern(row int, text string) pattern {
	p := pattern{row: row}
	text, p.top = strings.CutPrefix(text, "/")
	text, p.beneath = strings.CutSuffix(text, "/**")
	p.parts = strings.Split(text, "/")
	return p
}

// matches reports whether the components of a folded path match.
func (p *pattern) matches(path []string) bool {
	n := len(p.parts)
	if !p.beneath {
		return len(path) >= n && (!p.top || len(path) == n) && p.matchesAt(path[len(path)-n:])
	}
	last := len(path) - n - 1
	if p.top {
		last = min(last, 0)
	}
	for from := 0; from <= last; from++ {
		if p.matchesAt(path[from : from+n]) {
			return true
		}
	}
	return false
}

func (p *pattern) matchesAt(path []string) bool {
	for i := len(path) - 1; i >= 0; i-- {
		if !matchName(p.parts[i], path[i]) {
			return false
		}
	}
	return true
}

// matchName matches one component, in which "*" stands for any text.
func matchName(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, head)
	if !ok {
		return false
	}
	for {
		piece, more, again := strings.Cut(rest, "*")
		if !again {
			return strings.HasSuffix(name, piece)
		}
		at := strings.Index(name, piece)
		if at < 0 {
			return false
		}
		name, rest = name[at+len(piece):], more
	}
}

// index finds the patterns that a path may match by its names, so that a path
// is not held against every pattern.
type index struct {
	byName  map[string][]pattern  // the last component, in full
	byStart map[[2]byte][]pattern // its first two bytes
	byEnd   map[string][]pattern  // its extension, from the last dot
	byDir   map[string][]pattern  // a directory above it
	// leads holds every directory component of a pattern with the rows that
	// it leads to: a link in its place puts something else there.
	leads map[string][]pattern
}

func newIndex(rows []Row) *index {
	x := &index{
		byName: map[string][]pattern{}, byStart: map[[2]byte][]pattern{}, byEnd: map[string][]pattern{},
		byDir: map[string][]pattern{}, leads: map[string][]pattern{},
	}
	for i := range rows {
		for _, text := range rows[i].Paths {
			x.add(parsePattern(i, text))
		}
		for _, text := range rows[i].Except {
			rows[i].except = append(rows[i].except, parsePattern(i, text))
		}
	}
	return x
}

func (x *index) add(p pattern) {
	last := p.parts[len(p.parts)-1]
	wild := strings.IndexByte(last, '*')
	switch {
	case p.beneath && wild >= 0:
		panic("a directory pattern whose last component is not literal: " + last)
	case p.beneath:
		x.byDir[last] = append(x.byDir[last], p)
	case wild < 0:
		x.byName[last] = append(x.byName[last], p)
	case wild >= 2:
		key := [2]byte{last[0], last[1]}
		x.byStart[key] = append(x.byStart[key], p)
	default:
		dot := strings.LastIndexByte(last, '.')
		if dot < wild {
			panic("a pattern without a literal start or extension: " + last)
		}
		x.byEnd[last[dot:]] = append(x.byEnd[last[dot:]], p)
	}
	for i := range p.parts {
		if i == len(p.parts)-1 && !p.beneath {
			break
		}
		if name := p.parts[i]; strings.IndexByte(name, '*') < 0 {
			lead := p
			lead.parts, lead.beneath = p.parts[:i+1], false
			x.leads[name] = append(x.leads[name], lead)
		}
	}
}

// rows calls found with each row whose pattern matches a folded path, a row
// perhaps more than once.
func (x *index) rows(path []string, found func(row int)) {
	name := path[len(path)-1]
	try := func(list []pattern) {
		for i := range list {
			if list[i].matches(path) {
				found(list[i].row)
			}
		}
	}
	try(x.byName[name])
	if len(name) >= 2 {
		try(x.byStart[[2]byte{name[0], name[1]}])
	}
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		try(x.byEnd[name[dot:]])
	}
	for _, dir := range path[:len(path)-1] {
		try(x.byDir[dir])
	}
}

// leadsTo calls found with each row that has patterns beneath a folded path.
func (x *index) leadsTo(path []string, found func(row int)) {
	for i := range x.leads[path[len(path)-1]] {
		if p := &x.leads[path[len(path)-1]][i]; p.matches(path) {
			found(p.row)
		}
	}
}
