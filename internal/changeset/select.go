package changeset

import (
	"bytes"
	"fmt"
	"maps"

	"hutch/internal/fsat"
)

// Trees are the directories in which the content of a changeset lies. The
// descriptors belong to the caller.
type Trees struct {
	Layer     int
	Workspace int
	Picked    int // needed only where an entry's Source is Picked
}

// Selection says what of a change is to be promoted. The zero value takes
// everything.
//
// The way of a selection: Selection.Split gives part and rest; part is
// guarded and promoted; Rebase tells rest what it stands on now; rest is
// saved as the box's changeset.
type Selection struct {
	// Pass chooses entries; nil passes all. What they need comes with them
	// (Split).
	Pass func(*Entry) bool
	// Never wins over Pass: what it names stays, and what needs that (Hold).
	// Nil names nothing.
	Never func(*Entry) bool
	// Partial takes some hunks of a file only. Its paths need not pass.
	Partial map[string]Partial
}

// Partial is the form between before and after in which a modified regular file
// is to be promoted.
type Partial struct {
	Content    []byte // the whole content: that of before with the chosen hunks applied
	Attributes bool   // whether mode, owner and attributes are those of after; else those of before
}

// All reports whether everything is selected.
func (s *Selection) All() bool { return s.Pass == nil && s.Never == nil && len(s.Partial) == 0 }

// parts works out both sides; the partial entries of part have no content yet.
func (s *Selection) parts(c *Changeset) (part, rest *Changeset, err error) {
	for path := range s.Partial {
		e := c.Find(path)
		if e == nil || e.Before == nil || e.After == nil || e.Before.Type != fsat.Regular || e.After.Type != fsat.Regular {
			return nil, nil, fmt.Errorf("%q is not a modified file, so no hunks of it can be taken", path)
		}
	}
	pass := func(e *Entry) bool {
		_, partial := s.Partial[e.Path]
		return partial || s.Pass == nil || s.Pass(e)
	}
	never := func(e *Entry) bool { return s.Never != nil && s.Never(e) }
	part, rest = c.split(pass, never)
	return part, rest, nil
}

// entries gives the entry that promotes p of e, and the one that promotes what
// then remains.
func (p Partial) entries(e *Entry, digest string) (first, then Entry) {
	between := *e.Before
	if p.Attributes {
		between = *e.After
	}
	between.Size, between.Digest, between.Mtime = int64(len(p.Content)), digest, e.After.Mtime
	first, then = *e, *e
	first.After, then.Before = &between, &between
	// Until Rebase has looked, nothing is known of what will stand there, and
	// the change that hutch itself makes counts as the host's.
	then.BaseIno, then.BaseCtime = 0, nil
	return first, then
}

// Taken gives back the part of a split whose rest is known, but for where its
// content lies: for a process that died between promoting one and rebasing the
// other.
func Taken(whole, rest *Changeset) *Changeset {
	part := &Changeset{Entries: []Entry{}}
	for _, e := range whole.Entries {
		left := rest.Find(e.Path)
		if left != nil && (left.Before == nil || e.Before == nil || sameState(left.Before, e.Before)) {
			continue
		}
		if left != nil {
			e.After = left.Before
		}
		part.Entries = append(part.Entries, e)
	}
	part.Ancestors = whole.above(part.Entries)
	part.seal()
	return part
}

// Without leaves out what an earlier promotion took from the same layers, and of
// what the box changed since it takes the promoted state as the base. Promoted
// is what Promoted returned.
func (c *Changeset) Without(promoted *Changeset) *Changeset {
	rest := c.Only(func(e *Entry) bool {
		p := promoted.Find(e.Path)
		return p == nil || (p.After == nil) != (e.After == nil) || p.After != nil && !sameState(p.After, e.After)
	})
	for i := range rest.Entries {
		e := &rest.Entries[i]
		if p := promoted.Find(e.Path); p != nil && p.After != nil {
			e.BaseIno, e.BaseCtime = p.BaseIno, p.BaseCtime
		}
	}
	for path, ino := range promoted.Ancestors {
		if _, known := rest.Ancestors[path]; known || rest.has(path) {
			if rest.Ancestors == nil {
				rest.Ancestors = map[string]uint64{}
			}
			rest.Ancestors[path] = ino
		}
	}
	return rest
}

// has reports whether an entry lies beneath a directory.
func (c *Changeset) has(dir string) bool {
	first, end := c.beneath(dir)
	return first < end
}

// Add puts what was promoted later over what was promoted before.
func (c *Changeset) Add(later *Changeset) {
	kept := c.Entries[:0]
	for i := range c.Entries {
		if later.Find(c.Entries[i].Path) == nil {
			kept = append(kept, c.Entries[i])
		}
	}
	c.Entries = append(kept, later.Entries...)
	for path, ino := range later.Ancestors {
		if c.Ancestors == nil {
			c.Ancestors = map[string]uint64{}
		}
		c.Ancestors[path] = ino
	}
	c.seal()
}

func sameState(a, b *State) bool {
	return a.Type == b.Type && a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.Size == b.Size && a.Target == b.Target &&
		a.Digest == b.Digest && maps.EqualFunc(a.Xattrs, b.Xattrs, bytes.Equal)
}
