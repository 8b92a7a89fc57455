package view

import (
	"slices"
	"strings"

	"hutch/internal/fsat"
)

// A Part is a directory of the host that a box sees with a layer in memory of
// its own, filled before it is mounted.
type Part struct {
	Path string
	Dir  Dir // the layer's root: what the box sees of Path itself
	// Copy: no overlay, but a copy of what the user may read, his own. An
	// overlay lets nobody change a file that belongs to another.
	Copy   bool
	Dirs   []Dir    // of the layer, parents first; Rel is below Path
	Absent []string // below Path, sorted
	Fresh  []string // below Path: empty directories that anybody may write to
}

// A Dir is a directory of a layer.
type Dir struct {
	Rel      string
	Mode     uint32
	UID, GID uint32
}

// part returns the innermost part that a path lies in; nil for none.
func (s *sight) part(path string) *Part {
	var found *Part
	for i := range s.parts {
		if p := &s.parts[i]; fsat.Within(path, p.Path) && (found == nil || len(p.Path) > len(found.Path)) {
			found = p
		}
	}
	return found
}

func (s *sight) isPart(path string) bool {
	return slices.ContainsFunc(s.parts, func(p Part) bool { return p.Path == path })
}

// absent reports whether a layer takes a path away.
func (s *sight) absent(path string) bool {
	p := s.part(path)
	if p == nil || path == p.Path {
		return false
	}
	rel := strings.TrimPrefix(path[len(p.Path):], "/")
	return slices.ContainsFunc(p.Absent, func(a string) bool { return fsat.Within(rel, a) })
}

// Unwritable returns what a box cannot write to although its whole root is
// copy-on-write, as plain lines; nil where the policy asks for no such root.
func Unwritable(h Host) ([]string, error) {
	s := look(h)
	if !h.WholeRoot || s.err != nil {
		return nil, s.err
	}
	return s.unwritable(), nil
}

func (s *sight) unwritable() []string {
	if !s.WholeRoot {
		return nil
	}
	lines := []string{
		"/: no new names directly in it",
		"/proc, /sys, /dev: the kernel's own",
	}
	for _, path := range s.bare {
		lines = append(lines, path+": no new names directly in it, since something is mounted further down")
	}
	for _, path := range s.refused {
		lines = append(lines, path+": the kernel makes no overlay of it")
	}
	for _, x := range s.shows {
		if x.Mode == ReadOnly {
			lines = append(lines, x.Path+": read-only")
		}
	}
	if s.User.UID != 0 {
		lines = append(lines, "files of other users outside /etc: they can be replaced or removed in the directories that lie near the top, but not changed in place; further down only what you may write on the host")
	}
	return lines
}
