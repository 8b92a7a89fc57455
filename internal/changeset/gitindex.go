package changeset

import (
	"slices"

	"hutch/internal/fsat"
	"hutch/internal/gitdb"
)

// sameIndex reports whether two git index files mean the same: the same names
// with the same content, mode and flags. What git remembers of files to save
// itself a look at them (times, inodes, sizes, caches) is left out: `git status`
// rewrites it, and in a copied tree all of it differs. What is not an index of
// SHA-1 names that can be read is never the same.
func sameIndex(a, b []byte) bool {
	left, err := gitdb.ParseIndex(gitdb.SHA1, a)
	if err != nil {
		return false
	}
	right, err := gitdb.ParseIndex(gitdb.SHA1, b)
	return err == nil && slices.EqualFunc(left, right, func(a, b gitdb.IndexEntry) bool { return meaning(a) == meaning(b) })
}

// meaning is an entry without what git remembers of its file.
func meaning(e gitdb.IndexEntry) gitdb.IndexEntry {
	e.Mtime, e.Ctime, e.Dev, e.Ino, e.Size = fsat.Time{}, fsat.Time{}, 0, 0, 0
	return e
}
