package changeset

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Patch writes the changeset as a patch in git's format that git apply takes:
// files, executable or not, their renames, binary content and symlinks, which
// is all that git knows of. Of a file larger than 1 MiB and one that cannot be
// read it only says that it differs, in a line that git apply passes over.
//
// What is not the content that the changeset speaks of, because the workspace
// or the layer changed since, is an error.
func Patch(w io.Writer, c *Changeset, layer, workspace int) error {
	out := bufio.NewWriter(w)
	err := Files(c, Trees{Layer: layer, Workspace: workspace, Picked: -1}, func(f *FileChange) error {
		f.Write(out)
		return nil
	})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	return nil
}

// Files calls yield for the change of each file that git would tell, in the
// order of paths; of a rename, the new one. An error of yield ends it.
func Files(c *Changeset, t Trees, yield func(*FileChange) error) error {
	r := openTrees(t)
	err := r.files(c, yield)
	return errors.Join(err, r.layer.relock())
}

// trees are the roots that hold the content of a changeset.
type trees struct{ layer, host, picked *root }

func openTrees(t Trees) *trees {
	return &trees{&root{name: Layer, fd: t.Layer}, &root{name: Workspace, fd: t.Workspace}, &root{name: Picked, fd: t.Picked}}
}

func (t *trees) files(c *Changeset, yield func(*FileChange) error) error {
	renames, err := c.renames(t.content)
	if err != nil {
		return err
	}
	renames, stays := c.stays(renames)
	came, went := map[string]Rename{}, map[string]bool{}
	for _, r := range renames {
		came[r.To] = r
		went[r.From] = true
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if went[e.Path] {
			continue
		}
		f := &FileChange{Path: e.Path, Before: e.Before, After: e.After}
		from := e
		if r, ok := came[e.Path]; ok {
			from = c.Find(r.From)
			f.Status, f.From, f.Similarity, f.Before = StatusRenamed, r.From, r.Similarity, from.Before
		}
		f.same = sameContent(f.Before, f.After)
		if f.before, err = t.blob(from, false, !f.same); err != nil {
			return err
		}
		if f.after, err = t.blob(e, true, !f.same); err != nil {
			return err
		}
		if !f.classify() {
			continue
		}
		f.compare()
		if f.Hidden == "" && stays.block(e.Path) {
			f.Hidden = "what stands in its place is not shown either"
		}
		if err := yield(f); err != nil {
			return err
		}
	}
	return nil
}

// classify names the change, and reports whether there is one in git's eyes.
func (f *FileChange) classify() bool {
	switch {
	case f.before == nil && f.after == nil:
		return false
	case f.Status == StatusRenamed:
	case f.before == nil:
		f.Status = StatusAdded
	case f.after == nil:
		f.Status = StatusDeleted
	case f.before.mode[:3] != f.after.mode[:3]:
		f.Status = StatusRetyped
	default:
		f.Status = StatusModified
		return !f.same || f.before.mode != f.after.mode
	}
	return true
}

// sameContent reports whether git would find the same blob on both sides.
func sameContent(before, after *State) bool {
	return before != nil && after != nil && before.Type == after.Type &&
		before.Digest == after.Digest && before.Target == after.Target &&
		(before.Type != fsat.Regular || before.Digest != "")
}

// stays are the paths at which something stays when the patch is applied: its
// content cannot be shown, and so neither removed. True for a file, false for a
// directory above one.
type stays map[string]bool

// stays finds them among what goes, or turns into something else; and the
// renames that they do not stop.
func (c *Changeset) stays(renames []Rename) ([]Rename, stays) {
	moved := map[string]bool{}
	for _, r := range renames {
		moved[r.From] = true
	}
	var s stays
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.Before == nil || e.Before.Type != fsat.Regular || e.Before.Digest != "" && e.Before.Size <= maxShown ||
			e.After != nil && e.After.Type == fsat.Regular || moved[e.Path] {
			continue
		}
		if s == nil {
			s = stays{}
		}
		s[e.Path] = true
		for path, _ := fsat.Split(e.Path); path != "."; path, _ = fsat.Split(path) {
			s[path] = false
		}
	}
	free := slices.DeleteFunc(slices.Clone(renames), func(r Rename) bool { return s.block(r.To) })
	if len(free) < len(renames) {
		return c.stays(free)
	}
	return free, s
}

// block reports whether a file cannot be put at a path, nor be taken from it.
func (s stays) block(path string) bool {
	if len(s) == 0 {
		return false
	}
	if _, ok := s[path]; ok {
		return true
	}
	for path != "." {
		path, _ = fsat.Split(path)
		if s[path] {
			return true
		}
	}
	return false
}

// blob returns one side of an entry; nil for what git does not know of.
func (t *trees) blob(e *Entry, after, withContent bool) (*blob, error) {
	s := e.Before
	if after {
		s = e.After
	}
	switch {
	case s == nil:
		return nil, nil
	case s.Type == fsat.Symlink:
		return &blob{mode: "120000", content: []byte(s.Target)}, nil
	case s.Type != fsat.Regular:
		return nil, nil
	}
	b := &blob{mode: "100644"}
	if s.Mode&0o100 != 0 {
		b.mode = "100755"
	}
	switch {
	case !withContent:
		return b, nil
	case s.Digest == "":
		b.hidden = "it cannot be read"
		return b, nil
	case s.Size > maxShown:
		b.hidden = "it is larger than 1 MiB"
		return b, nil
	}
	var err error
	b.content, err = t.content(e, after)
	b.binary = bytes.IndexByte(b.content, 0) >= 0
	return b, err
}

// content reads the content of one side of an entry, which is no larger than
// maxShown.
func (t *trees) content(e *Entry, after bool) ([]byte, error) {
	from, path, want := t.host, e.Path, e.Before
	if after {
		path, want = e.SourcePath, e.After
		switch e.Source {
		case Layer:
			from = t.layer
		case Picked:
			from = t.picked
		}
	}
	content, err := from.readFile(path)
	if err != nil {
		return nil, err
	}
	h := blake3.New()
	h.Write(content)
	if formatDigest(h) != want.Digest {
		return nil, fmt.Errorf("%q in the %s changed since it was compared", path, from.name)
	}
	return content, nil
}

// readFile reads a file that was no larger than maxShown, and no more of it.
func (r *root) readFile(path string) ([]byte, error) {
	fd, err := r.openFile(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return io.ReadAll(io.LimitReader(&fdReader{fd: fd}, maxShown+1))
}
