package changeset

import (
	"slices"
	"sort"
	"strings"

	"hutch/internal/fsat"
)

// Split parts a changeset in two that can be promoted one after the other:
// part, with the entries that pass, and rest. Both are sealed and have the
// Ancestors that concern them; what was Skipped, and GitChanged, stay with the
// rest.
//
// Part can be promoted by itself, and rest after it. For that, part also takes
//   - a directory that does not exist without it, above an entry that passes;
//   - all that is beneath a directory that became a file or a symlink;
//   - the new name of a file whose content still lies under an old name that
//     part deletes or replaces (a directory renamed in an overlay).
//
// And it leaves the deletion of a directory to the rest while anything in that
// directory stays.
func Split(c *Changeset, pass func(*Entry) bool) (part, rest *Changeset) {
	return c.split(pass, func(*Entry) bool { return false })
}

// Hold parts a changeset as Split does, but never gives part an entry that is
// held: what cannot be promoted without one is left to the rest with it.
func Hold(c *Changeset, held func(*Entry) bool) (part, rest *Changeset) {
	return c.split(func(*Entry) bool { return true }, held)
}

// split takes what passes, and what that needs, but nothing that is held, and
// nothing that needs it.
func (c *Changeset) split(pass, held func(*Entry) bool) (part, rest *Changeset) {
	t := c.ties()
	out := make([]bool, len(c.Entries))
	for i := range c.Entries {
		if held(&c.Entries[i]) {
			spread(out, i, t.neededBy)
		}
	}
	in := make([]bool, len(c.Entries))
	for i := range c.Entries {
		if !out[i] && pass(&c.Entries[i]) {
			spread(in, i, t.needs)
		}
	}
	// Parents come before what they hold, so a directory is looked at when
	// all within it is decided.
	for i := len(c.Entries) - 1; i >= 0; i-- {
		if at := t.parent[i]; !in[i] && at >= 0 && c.Entries[i].Before != nil && c.Entries[at].After == nil {
			in[at] = false
		}
	}

	part = &Changeset{Entries: []Entry{}}
	rest = &Changeset{Entries: []Entry{}, Skipped: slices.Clone(c.Skipped), GitChanged: c.GitChanged}
	for i := range c.Entries {
		if in[i] {
			part.Entries = append(part.Entries, c.Entries[i])
		} else {
			rest.Entries = append(rest.Entries, c.Entries[i])
		}
	}
	part.Ancestors = c.above(part.Entries)
	rest.Ancestors = c.above(rest.Entries)
	part.seal()
	rest.seal()
	return part, rest
}

// ties says which entries cannot be promoted without which others.
type ties struct {
	parent          []int   // by entry: that of the directory it lies in; -1 for none
	needs, neededBy [][]int // by entry
}

func (c *Changeset) ties() *ties {
	n := len(c.Entries)
	t := &ties{parent: make([]int, n), needs: make([][]int, n), neededBy: make([][]int, n)}
	at := make(map[string]int, n)
	for i := range c.Entries {
		at[c.Entries[i].Path] = i
	}
	tie := func(i, needed int) {
		t.needs[i] = append(t.needs[i], needed)
		t.neededBy[needed] = append(t.neededBy[needed], i)
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		dir, _ := fsat.Split(e.Path)
		above, ok := at[dir]
		if !ok || e.Path == "." {
			above = -1
		}
		t.parent[i] = above
		if above >= 0 && e.After != nil && !c.Entries[above].Before.isDir() {
			tie(i, above)
		}
		// That the deletion of a directory needs all deletions within is no
		// reason to take them: only what is held spreads along it.
		if above >= 0 && e.Before != nil && c.Entries[above].After == nil {
			t.neededBy[i] = append(t.neededBy[i], above)
		}
		if e.Before.isDir() && e.After != nil && !e.After.isDir() {
			first, end := c.beneath(e.Path)
			for k := first; k < end; k++ {
				tie(i, k)
			}
		}
		if e.Source == Workspace && e.SourcePath != e.Path {
			if from, ok := at[e.SourcePath]; ok {
				tie(from, i)
			}
		}
	}
	return t
}

// spread marks an entry and all that is reached from it.
func spread(mark []bool, from int, edges [][]int) {
	if mark[from] {
		return
	}
	mark[from] = true
	for pending := []int{from}; len(pending) > 0; {
		i := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		for _, k := range edges[i] {
			if !mark[k] {
				mark[k] = true
				pending = append(pending, k)
			}
		}
	}
}

// beneath returns the range of the entries beneath a path.
func (c *Changeset) beneath(path string) (first, end int) {
	from, to := path+"/", path+string(rune('/'+1))
	first = sort.Search(len(c.Entries), func(i int) bool { return c.Entries[i].Path >= from })
	end = sort.Search(len(c.Entries), func(i int) bool { return c.Entries[i].Path >= to })
	return first, end
}

// above returns what is known of the directories above some of the entries,
// without those that are only made, or replaced, by an entry: promoted before
// the others, it leaves a directory there that the branch never saw.
func (c *Changeset) above(entries []Entry) map[string]uint64 {
	var inodes map[string]uint64
	seen := map[string]bool{}
	for i := range entries {
		for path := entries[i].Path; path != "."; {
			path, _ = fsat.Split(path)
			if seen[path] {
				break
			}
			seen[path] = true
			ino, known := c.Ancestors[path]
			if e := c.Find(path); !known || e != nil && !e.Before.isDir() {
				continue
			}
			if inodes == nil {
				inodes = map[string]uint64{}
			}
			inodes[path] = ino
		}
	}
	return inodes
}

// Find returns the entry of a path; nil when it has none.
func (c *Changeset) Find(path string) *Entry {
	i, ok := slices.BinarySearchFunc(c.Entries, path, func(e Entry, path string) int { return strings.Compare(e.Path, path) })
	if !ok {
		return nil
	}
	return &c.Entries[i]
}

func (s *State) isDir() bool { return s != nil && s.Type == fsat.Directory }
