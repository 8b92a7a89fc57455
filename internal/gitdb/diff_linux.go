package gitdb

import (
	"iter"
)

// Change is one path in which two trees differ. Mode and name are 0 and "" on
// the side where it is not.
type Change struct {
	Path             string // clean in the sense of fsat.Check
	OldMode, NewMode uint32
	OldID, NewID     OID
}

// maxTreeDepth bounds how deep trees go: PATH_MAX allows no more.
const maxTreeDepth = 2048

// Diff yields what differs between two trees ("" is the empty one), as git
// diff-tree -r does: files, symlinks and submodules, not directories. Equal
// subtrees are not read. After an error nothing more comes.
func (r *Repo) Diff(old, new OID) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		d := differ{repo: r, yield: yield}
		if err := d.trees("", old, new, 0); err != nil && !d.stopped {
			yield(Change{}, err)
		}
	}
}

type differ struct {
	repo    *Repo
	yield   func(Change, error) bool
	stopped bool
}

func (d *differ) trees(prefix string, old, new OID, depth int) error {
	if old == new {
		return nil
	}
	if depth > maxTreeDepth {
		return corrupt("trees more than %d deep", maxTreeDepth)
	}
	var sides [2][]TreeEntry
	for i, id := range []OID{old, new} {
		if id == "" {
			continue
		}
		var err error
		if sides[i], err = d.repo.Tree(id); err != nil {
			return err
		}
	}
	a, b := sides[0], sides[1]
	for !d.stopped && (len(a) > 0 || len(b) > 0) {
		var was, is *TreeEntry
		c := 0
		switch {
		case len(a) == 0:
			c = 1
		case len(b) == 0:
			c = -1
		default:
			c = compareEntries(&a[0], &b[0])
		}
		if c <= 0 {
			was, a = &a[0], a[1:]
		}
		if c >= 0 {
			is, b = &b[0], b[1:]
		}
		if err := d.entry(prefix, was, is, depth); err != nil {
			return err
		}
	}
	return nil
}

// entry compares two entries of one name, either of which may be nil. A file and
// a directory of one name come apart: git's order does not bring them together.
func (d *differ) entry(prefix string, was, is *TreeEntry, depth int) error {
	if was != nil && is != nil && *was == *is {
		return nil
	}
	var c Change
	var oldTree, newTree OID
	if was != nil {
		c.Path = prefix + was.Name
		if was.isTree() {
			oldTree = was.ID
		} else {
			c.OldMode, c.OldID = was.Mode, was.ID
		}
	}
	if is != nil {
		c.Path = prefix + is.Name
		if is.isTree() {
			newTree = is.ID
		} else {
			c.NewMode, c.NewID = is.Mode, is.ID
		}
	}
	if oldTree != "" || newTree != "" {
		return d.trees(c.Path+"/", oldTree, newTree, depth+1)
	}
	d.stopped = !d.yield(c, nil)
	return nil
}
