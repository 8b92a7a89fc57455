package changeset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

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

// IndexDigest is a digest of what an index means, equal for two that sameIndex
// finds the same; "" for what cannot be read.
func IndexDigest(index []byte) string {
	entries, err := gitdb.ParseIndex(gitdb.SHA1, index)
	if err != nil {
		return ""
	}
	h := blake3.New()
	for _, e := range entries {
		fmt.Fprintf(h, "%+q\n", fmt.Sprint(meaning(e)))
	}
	return formatDigest(h)
}

// IsIndex reports whether a path is that of an index of git: a repository's, a
// submodule's or a worktree's.
func IsIndex(path string) bool {
	dir, name := fsat.Split(path)
	return name == "index" && slices.Contains(strings.Split(dir, "/"), gitDir)
}

const gitDir = ".git"

// MaxIndex bounds the indexes that are compared, in bytes: some 500,000 files.
const MaxIndex = 64 << 20

// meaning is an entry without what git remembers of its file.
func meaning(e gitdb.IndexEntry) gitdb.IndexEntry {
	e.Mtime, e.Ctime, e.Dev, e.Ino, e.Size = fsat.Time{}, fsat.Time{}, 0, 0, 0
	return e
}
