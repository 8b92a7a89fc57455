package changeset

import (
	"cmp"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

// Rename is a file that was deleted under one name and created under another.
type Rename struct {
	From, To   string
	Similarity int // percent of the content that both have; 100 only for all
}

// Bounds of the search for renames among files that are not equal: a box makes
// files at no cost, and nobody waits for ever to be told what they resemble.
const (
	renameLimit = 1000     // files on either side, as git's diff.renameLimit
	renameBytes = 64 << 20 // read in all
	renameWork  = 50 << 20 // chunks compared in all: about 0.2 s
	leastAlike  = 50       // percent, as git's default
)

// renames pairs deleted with created regular files as git does: those of equal
// content first, one of the same base name before others, then the most alike.
// read returns a content; it is asked only for files of up to 1 MiB.
func (c *Changeset) renames(read func(e *Entry, after bool) ([]byte, error)) ([]Rename, error) {
	var gone, come []*Entry
	equal := map[string][]*Entry{} // what is gone, by digest, and by digest and base name
	for i := range c.Entries {
		switch e := &c.Entries[i]; {
		case e.Op == Deleted && e.Before.Type == fsat.Regular && e.Before.Digest != "":
			gone = append(gone, e)
			for _, key := range []string{e.Before.Digest, e.Before.Digest + base(e.Path)} {
				equal[key] = append(equal[key], e)
			}
		case e.Op == Created && e.After.Type == fsat.Regular:
			come = append(come, e)
		}
	}
	if len(gone) == 0 || len(come) == 0 {
		return nil, nil
	}
	found := []Rename{}
	taken := map[*Entry]bool{}
	take := func(from, to *Entry, similarity int) {
		taken[from], taken[to] = true, true
		found = append(found, Rename{from.Path, to.Path, similarity})
	}
	// The same names go first, lest one take what is another's.
	for _, sameName := range []bool{true, false} {
		for _, to := range come {
			if taken[to] {
				continue
			}
			key := to.After.Digest
			if sameName {
				key += base(to.Path)
			}
			for len(equal[key]) > 0 && !taken[to] {
				from := equal[key][0]
				equal[key] = equal[key][1:]
				if !taken[from] {
					take(from, to, 100)
				}
			}
		}
	}
	left := func(e *Entry) bool { return taken[e] }
	gone, come = slices.DeleteFunc(gone, left), slices.DeleteFunc(come, left)
	pairs, err := alike(gone, come, read)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		if !taken[p.from] && !taken[p.to] {
			take(p.from, p.to, p.similarity)
		}
	}
	slices.SortFunc(found, func(a, b Rename) int { return strings.Compare(a.To, b.To) })
	return found, nil
}

func base(path string) string {
	_, name := fsat.Split(path)
	return name
}

type likeness struct {
	from, to   *Entry
	similarity int
}

// alike returns the pairs that are similar enough, the most similar first.
func alike(gone, come []*Entry, read func(e *Entry, after bool) ([]byte, error)) ([]likeness, error) {
	fits := func(s *State) bool { return s.Digest != "" && s.Size > 0 && s.Size <= maxShown }
	gone = slices.DeleteFunc(gone, func(e *Entry) bool { return !fits(e.Before) })
	come = slices.DeleteFunc(come, func(e *Entry) bool { return !fits(e.After) })
	if len(gone) == 0 || len(come) == 0 || len(gone) > renameLimit || len(come) > renameLimit {
		return nil, nil
	}
	total := int64(0)
	for _, e := range gone {
		total += e.Before.Size
	}
	for _, e := range come {
		total += e.After.Size
	}
	if total > renameBytes {
		return nil, nil
	}
	was := make([]chunks, len(gone))
	var pairs []likeness
	work := 0
	for _, to := range come {
		var is chunks
		for k, from := range gone {
			small, large := min(from.Before.Size, to.After.Size), max(from.Before.Size, to.After.Size)
			if small*100 < large*leastAlike {
				continue // whatever is in them
			}
			if is == nil {
				content, err := read(to, true)
				if err != nil {
					return nil, err
				}
				is = chunksOf(content)
			}
			if was[k] == nil {
				content, err := read(from, false)
				if err != nil {
					return nil, err
				}
				was[k] = chunksOf(content)
			}
			if work += len(is) + len(was[k]); work > renameWork {
				return nil, nil
			}
			similarity := int(int64(is.shared(was[k])) * 100 / large)
			if similarity >= leastAlike {
				pairs = append(pairs, likeness{from, to, min(similarity, 99)})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b likeness) int {
		return cmp.Or(cmp.Compare(b.similarity, a.similarity), cmp.Compare(sameBase(b), sameBase(a)))
	})
	return pairs, nil
}

func sameBase(l likeness) int {
	if base(l.from.Path) == base(l.to.Path) {
		return 1
	}
	return 0
}

// chunks are how many bytes of a content lie in pieces of each hash, sorted by
// hash. A piece is a line, or 64 bytes of a longer one.
type chunks []chunk

type chunk struct {
	hash  uint64
	bytes int
}

func chunksOf(content []byte) chunks {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	pieces := make(chunks, 0, len(content)/32+1)
	hash, n := uint64(offset), 0
	for i, b := range content {
		hash, n = (hash^uint64(b))*prime, n+1
		if b == '\n' || n == 64 || i == len(content)-1 {
			pieces = append(pieces, chunk{hash, n})
			hash, n = offset, 0
		}
	}
	slices.SortFunc(pieces, func(a, b chunk) int { return cmp.Compare(a.hash, b.hash) })
	merged := pieces[:0]
	for _, p := range pieces {
		if last := len(merged) - 1; last >= 0 && merged[last].hash == p.hash {
			merged[last].bytes += p.bytes
		} else {
			merged = append(merged, p)
		}
	}
	return merged
}

// shared counts the bytes that two contents have in common.
func (c chunks) shared(d chunks) int {
	total := 0
	for i, k := 0, 0; i < len(c) && k < len(d); {
		switch {
		case c[i].hash < d[k].hash:
			i++
		case c[i].hash > d[k].hash:
			k++
		default:
			total += min(c[i].bytes, d[k].bytes)
			i++
			k++
		}
	}
	return total
}

// DirRename is a directory of which everything was moved.
type DirRename struct {
	From, To string
	Files    int
}

// DirRenames finds, among the files that Files told of, the directories that
// were deleted, and all of whose files were found again, unchanged in name and
// place, in a created one. Of a tree that was moved only the top is named.
func (c *Changeset) DirRenames(files []FileStat) []DirRename {
	to := map[string]string{}
	for i := range files {
		if files[i].Status == StatusRenamed {
			to[files[i].From] = files[i].Path
		}
	}
	var dirs []DirRename
	within := map[string]bool{}
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.Op != Deleted || !e.Before.isDir() {
			continue
		}
		if parent, _ := fsat.Split(e.Path); within[parent] {
			within[e.Path] = true
			continue
		}
		if d, ok := c.dirRename(e.Path, to); ok {
			within[e.Path] = true
			dirs = append(dirs, d)
		}
	}
	return dirs
}

func (c *Changeset) dirRename(path string, to map[string]string) (DirRename, bool) {
	d := DirRename{From: path}
	first, end := c.beneath(path)
	for _, e := range c.Entries[first:end] {
		if e.Before.isDir() {
			continue
		}
		target, moved := strings.CutSuffix(to[e.Path], strings.TrimPrefix(e.Path, path))
		if !moved || target == "" || d.To != "" && d.To != target {
			return d, false
		}
		d.To = target
		d.Files++
	}
	made := c.Find(d.To)
	return d, d.Files > 0 && made != nil && made.Op == Created && made.After.isDir()
}
