package changeset

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"hutch/internal/fsat"
)

// Seen is what the live overlay told of the workspace beneath one layer: the
// inodes that the branch saw. A remounted overlay does not tell them any more,
// so they are noted at every quiet point and kept with the layer.
type Seen struct {
	// Paths are those that the layer changes, with the inode that stood there;
	// 0 where that is not known.
	Paths map[string]uint64
	// Dirs are directories above those, "." included.
	Dirs map[string]uint64 // never 0
	// Moved are those of Paths where the box put a file of the workspace that it
	// saw elsewhere.
	Moved map[string]bool
	// GitIndex is the digest of what .git/index meant when the branch was
	// made; "" when that is not known.
	GitIndex string
}

// NewSeen returns one that knows nothing.
func NewSeen() *Seen {
	return &Seen{Paths: map[string]uint64{}, Dirs: map[string]uint64{}, Moved: map[string]bool{}}
}

// Over adds what a higher layer of the same stack saw, or the same layer later:
// of a path that is known already it saw only what lies between.
func (s *Seen) Over(later *Seen) {
	known := maps.Clone(s.Paths)
	for path, ino := range later.Paths {
		if _, ok := known[path]; !ok {
			s.Paths[path] = ino
			if later.Moved[path] {
				s.Moved[path] = true
			}
		}
	}
	for path, ino := range later.Dirs {
		_, changed := known[path]
		if _, ok := s.Dirs[path]; !ok && !changed {
			s.Dirs[path] = ino
		}
	}
	if s.GitIndex == "" {
		s.GitIndex = later.GitIndex
	}
}

// Upon leaves out what only the lowest layer of a stack can tell: its root
// lies on the workspace's, and that of a higher layer on another layer's.
func (s *Seen) Upon() { delete(s.Dirs, ".") }

// Seen returns what the changeset knows of the inodes that the branch saw.
func (c *Changeset) Seen() *Seen {
	s := NewSeen()
	for i := range c.Entries {
		e := &c.Entries[i]
		s.Paths[e.Path] = e.BaseIno
		if e.BaseIndex != "" {
			s.GitIndex = e.BaseIndex
		}
	}
	for path, ino := range c.Ancestors {
		s.Dirs[path] = ino
	}
	return s
}

// Inherit gives a changeset that was read without a live overlay the inodes
// that the branch saw.
func (c *Changeset) Inherit(s *Seen) {
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.BaseIno == 0 {
			e.BaseIno = s.Paths[e.Path]
		}
		e.CopiedUp = e.CopiedUp && !s.Moved[e.Path]
		if e.Path == gitDir+"/index" && e.BaseIndex == "" {
			e.BaseIndex = s.GitIndex
		}
	}
	c.Ancestors = nil
	for i := range c.Entries {
		for path := c.Entries[i].Path; path != "."; {
			path, _ = fsat.Split(path)
			ino := s.Dirs[path]
			if _, done := c.Ancestors[path]; done || ino == 0 {
				continue
			}
			if c.Ancestors == nil {
				c.Ancestors = map[string]uint64{}
			}
			c.Ancestors[path] = ino
		}
	}
}

const seenMagic = "hutchsn\x01"

// Encode writes what DecodeSeen reads.
func (s *Seen) Encode(w io.Writer) error {
	e := newEncoder(w, seenMagic)
	for _, inodes := range []map[string]uint64{s.Paths, s.Dirs} {
		e.uint(uint64(len(inodes)))
		for _, path := range slices.Sorted(maps.Keys(inodes)) {
			e.text(path)
			e.uint(inodes[path])
			e.endRecord()
		}
	}
	e.uint(uint64(len(s.Moved)))
	for _, path := range slices.Sorted(maps.Keys(s.Moved)) {
		e.text(path)
		e.endRecord()
	}
	e.text(s.GitIndex)
	if err := e.close(); err != nil {
		return fmt.Errorf("write what a branch saw: %w", err)
	}
	return nil
}

// DecodeSeen reads what Encode wrote.
func DecodeSeen(r io.Reader) (*Seen, error) {
	s := NewSeen()
	d, err := newDecoder(r, seenMagic)
	if err == nil {
		for _, inodes := range []map[string]uint64{s.Paths, s.Dirs} {
			for range d.count(2) {
				path, ino := d.path(), d.uint()
				if d.err != nil {
					break
				}
				inodes[path] = ino
			}
		}
		for range d.count(1) {
			s.Moved[d.path()] = true
		}
		s.GitIndex = d.text()
		err = d.end()
	}
	if err != nil {
		return nil, fmt.Errorf("read what a branch saw: %w", err)
	}
	return s, nil
}
