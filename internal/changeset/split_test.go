package changeset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"hutch/internal/fsat"
)

// world is a naive tree: what stands at each path, as one comparable value.
type world map[string]thing

type thing struct {
	Type fsat.Type
	Mode uint32
	Text string // of a file; what it is read as, wherever it lies
}

// anyWorld is a tree of few names, so that two of them meet.
var anyWorld = rapid.Custom(func(t *rapid.T) world {
	w := world{}
	var fill func(dir string, depth int)
	fill = func(dir string, depth int) {
		for _, name := range []string{"a", "a-", "b"} {
			path := fsat.Join(dir, name)
			switch kind := rapid.IntRange(0, 5).Draw(t, path); {
			case kind <= 1 && depth < 4:
				w[path] = thing{fsat.Directory, rapid.SampledFrom([]uint32{0o755, 0o700}).Draw(t, "mode"), ""}
				fill(path, depth+1)
			case kind == 2:
				w[path] = thing{fsat.Regular, 0o644, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "text")}
			case kind == 3:
				w[path] = thing{fsat.Symlink, 0o777, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "target")}
			}
		}
	}
	fill(".", 0)
	return w
})

func (n thing) state() *State {
	s := &State{Type: n.Type, Mode: n.Mode}
	switch n.Type {
	case fsat.Regular:
		s.Size, s.Digest = int64(len(n.Text)), digestTag+strings.Repeat(fmt.Sprintf("%02x", n.Text), 32)
	case fsat.Symlink:
		s.Target = n.Text
	}
	return s
}

// changesBetween is the changeset between two trees. Of files that come anew,
// some have their content in one that was there, as an overlay's do after a
// directory was renamed.
func changesBetween(t *rapid.T, before, after world) *Changeset {
	c := &Changeset{Entries: []Entry{}, Ancestors: map[string]uint64{}}
	both := maps.Clone(before)
	maps.Copy(both, after)
	ino := map[string]uint64{".": 1}
	for i, path := range slices.Sorted(maps.Keys(before)) {
		ino[path] = uint64(i + 2)
	}
	for path := range both {
		b, had := before[path]
		a, has := after[path]
		if had && has && a == b {
			continue
		}
		e := Entry{Path: path, Op: Modified, BaseIno: ino[path]}
		if had {
			e.Before = b.state()
		} else {
			e.Op = Created
		}
		if has {
			e.After, e.Source, e.SourcePath = a.state(), Layer, path
		} else {
			e.Op = Deleted
		}
		c.Entries = append(c.Entries, e)
		for dir := path; dir != "."; {
			dir, _ = fsat.Split(dir)
			if ino[dir] != 0 {
				c.Ancestors[dir] = ino[dir]
			}
		}
	}
	c.seal()
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.After == nil || e.After.Type != fsat.Regular {
			continue
		}
		for _, from := range slices.Sorted(maps.Keys(before)) {
			if before[from] == after[e.Path] && rapid.Bool().Draw(t, "renamed") {
				e.Source, e.SourcePath = Workspace, from
				break
			}
		}
	}
	return c
}

// apply is a promotion as simple as it can be: everything is read first, then
// names are removed from the deepest up and made from the top down. It fails
// where a real one would.
func (w world) apply(c *Changeset, text map[string]string) (world, error) {
	next := maps.Clone(w)
	for i := range c.Entries {
		e := &c.Entries[i]
		now, there := w[e.Path]
		switch {
		case there != (e.Before != nil):
			return nil, fmt.Errorf("%s: there before: %v", e.Path, there)
		case there && !cmp.Equal(now.state(), e.Before):
			return nil, fmt.Errorf("%s: %v is not what it was", e.Path, now)
		}
		for dir := e.Path; dir != "."; {
			dir, _ = fsat.Split(dir)
			known := c.Ancestors[dir]
			if known != 0 && c.Find(dir) == nil && w[dir].Type != fsat.Directory && dir != "." {
				return nil, fmt.Errorf("%s: %q above it is no directory", e.Path, dir)
			}
		}
		if e.Source == Workspace {
			from := w[e.SourcePath]
			if from.Type != fsat.Regular || from.state().Digest != e.After.Digest {
				return nil, fmt.Errorf("%s: its content in %q is gone", e.Path, e.SourcePath)
			}
		}
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.After == nil {
			delete(next, e.Path)
		} else {
			next[e.Path] = thing{e.After.Type, e.After.Mode, text[e.Path]}
		}
	}
	for path := range next {
		if dir, _ := fsat.Split(path); dir != "." && next[dir].Type != fsat.Directory {
			return nil, fmt.Errorf("%s: nothing to lie in", path)
		}
	}
	return next, nil
}

// Whatever is taken first, it can be promoted by itself, the rest after it, and
// both are the whole.
func TestSplitPromotesInTwoSteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := anyWorld.Draw(t, "before"), anyWorld.Draw(t, "after")
		whole := changesBetween(t, before, after)
		whole.Skipped, whole.GitChanged = []Skipped{{"pipe", "fifo"}}, true
		text := map[string]string{}
		for path, n := range after {
			text[path] = n.Text
		}
		want, err := before.apply(whole, text)
		if err != nil || !maps.Equal(want, after) {
			t.Fatalf("the model is wrong: %v\n%s", err, cmp.Diff(after, want))
		}

		chosen, held := map[string]bool{}, map[string]bool{}
		for i := range whole.Entries {
			path := whole.Entries[i].Path
			chosen[path] = rapid.Bool().Draw(t, "choose "+path)
			held[path] = rapid.IntRange(0, 5).Draw(t, "hold "+path) == 0
		}
		part, rest := Split(whole, func(e *Entry) bool { return chosen[e.Path] })
		checkParts(t, before, after, text, whole, part, rest)
		for i := range part.Entries {
			if e := &part.Entries[i]; !chosen[e.Path] && e.After != nil && e.Source == Layer && (!e.After.isDir() || e.Before.isDir()) {
				t.Fatalf("%s %s was taken for no reason", e.Op, e.Path)
			}
		}
		for i := range rest.Entries {
			if e := &rest.Entries[i]; chosen[e.Path] && (e.After != nil || !e.Before.isDir()) {
				t.Fatalf("%s %s was chosen and left", e.Op, e.Path)
			}
		}

		free, kept := Hold(whole, func(e *Entry) bool { return held[e.Path] })
		checkParts(t, before, after, text, whole, free, kept)
		for i := range free.Entries {
			if held[free.Entries[i].Path] {
				t.Fatalf("%s was held and taken", free.Entries[i].Path)
			}
		}
		all, none := Hold(whole, func(*Entry) bool { return false })
		if all.Digest != whole.Digest || !none.Empty() || !maps.Equal(all.Ancestors, whole.above(whole.Entries)) {
			t.Fatal("holding nothing leaves something")
		}
	})
}

func checkParts(t *rapid.T, before, after world, text map[string]string, whole, part, rest *Changeset) {
	for name, c := range map[string]*Changeset{"part": part, "rest": rest} {
		if c.Digest != digestOf(c.Entries) || !slices.IsSortedFunc(c.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) }) {
			t.Fatalf("the %s is not sealed", name)
		}
		for path, ino := range c.Ancestors {
			if whole.Ancestors[path] != ino {
				t.Fatalf("the %s says %q was %d", name, path, ino)
			}
		}
		for i := range c.Entries {
			for dir := c.Entries[i].Path; dir != "."; {
				dir, _ = fsat.Split(dir)
				if ino := whole.Ancestors[dir]; before[dir].Type == fsat.Directory && c.Ancestors[dir] != ino {
					t.Fatalf("the %s forgot %q above %q", name, dir, c.Entries[i].Path)
				}
			}
		}
	}
	if part.Skipped != nil || part.GitChanged || !slices.Equal(rest.Skipped, whole.Skipped) || !rest.GitChanged {
		t.Fatal("what was skipped is not in the rest")
	}
	if len(part.Entries)+len(rest.Entries) != len(whole.Entries) {
		t.Fatal("an entry is lost, or there twice")
	}
	if taken := Taken(whole, rest); taken.Digest != part.Digest || !maps.Equal(taken.Ancestors, part.Ancestors) {
		t.Fatal("the part cannot be told from the whole and the rest")
	}
	between, err := before.apply(part, text)
	if err != nil {
		t.Fatalf("part: %v", err)
	}
	got, err := between.apply(rest, text)
	if err != nil {
		t.Fatalf("rest: %v", err)
	}
	if diff := cmp.Diff(after, got); diff != "" {
		t.Fatalf("in two steps it differs (-whole +parts):\n%s", diff)
	}
}

func TestSplitTakesWhatCannotBeParted(t *testing.T) {
	d, f := func() *State { return &State{Type: fsat.Directory} }, func() *State { return &State{Type: fsat.Regular} }
	created := func(path string, s *State) Entry {
		return Entry{Path: path, Op: Created, After: s, Source: Layer, SourcePath: path}
	}
	deleted := func(path string, s *State) Entry { return Entry{Path: path, Op: Deleted, Before: s} }
	moved := created("to/f", f())
	moved.Source, moved.SourcePath = Workspace, "from/f"
	c := &Changeset{Entries: []Entry{
		created("new", d()), created("new/d", d()), created("new/d/f", f()), created("new/g", f()),
		deleted("old", d()), deleted("old/f", f()), deleted("old/g", f()),
		{Path: "turned", Op: Modified, Before: d(), After: f(), Source: Layer, SourcePath: "turned"}, deleted("turned/d", d()), deleted("turned/d/f", f()),
		{Path: "was", Op: Modified, Before: f(), After: d(), Source: Layer, SourcePath: "was"}, created("was/f", f()),
		deleted("from", d()), deleted("from/f", f()), created("to", d()), moved,
	}}
	c.seal()
	for chosen, want := range map[string]struct{ split, held string }{
		"new/d/f":    {"new new/d new/d/f", "new/d/f"},
		"new":        {"new", "new new/d new/d/f new/g"},
		"old":        {"", "old"},
		"old/f":      {"old/f", "old old/f"},
		"turned":     {"turned turned/d turned/d/f", "turned"},
		"turned/d/f": {"turned/d/f", "turned turned/d turned/d/f"},
		"was/f":      {"was was/f", "was/f"},
		"from/f":     {"from/f to to/f", "from from/f"},
		"to/f":       {"to to/f", "from from/f to/f"},
	} {
		names := func(c *Changeset) string {
			var all []string
			for i := range c.Entries {
				all = append(all, c.Entries[i].Path)
			}
			return strings.Join(all, " ")
		}
		is := func(e *Entry) bool { return e.Path == chosen }
		part, _ := Split(c, is)
		_, kept := Hold(c, is)
		if got := names(part); got != want.split {
			t.Errorf("%s chosen: %q, not %q", chosen, got, want.split)
		}
		if got := names(kept); got != want.held {
			t.Errorf("%s held: %q, not %q", chosen, got, want.held)
		}
	}
}
