package gitdb

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

const maxIndex = 256 << 20

// Index is the index of a repository. A file whose time is not before Mtime may
// have changed without a difference in what its entry remembers ("racily clean").
type Index struct {
	Entries []IndexEntry // sorted by path, as bytes, and stage
	Mtime   fsat.Time
}

// Index reads the index.
func (r *Repo) Index() (*Index, error) {
	f, st, err := r.view.open("index")
	if err != nil {
		return nil, fmt.Errorf("git index: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err != nil {
		return nil, fmt.Errorf("git index: %w", err)
	}
	if len(content) > maxIndex {
		return nil, fmt.Errorf("git index: %w", ErrTooLarge)
	}
	entries, err := ParseIndex(r.format, content)
	return &Index{Entries: entries, Mtime: st.Mtime}, err
}

// Find returns the entry of a path that is not in an unresolved merge.
func (x *Index) Find(path string) (IndexEntry, bool) {
	i, ok := slices.BinarySearchFunc(x.Entries, path, func(e IndexEntry, path string) int { return strings.Compare(e.Path, path) })
	if !ok || x.Entries[i].Stage != 0 {
		return IndexEntry{}, false
	}
	return x.Entries[i], true
}
