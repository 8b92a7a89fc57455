package changeset

import (
	"bytes"
	"os"
	"testing"
)

// TestLinksAreNamed holds that paths which are one file in the layer say so,
// through writing and reading too, and that nothing else does.
func TestLinksAreNamed(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/same", "equal")
	write(t, h.layer+"/m/first", "content")
	write(t, h.layer+"/apart", "content")
	write(t, h.layer+"/same", "equal")
	must(t, os.Link(h.layer+"/m/first", h.layer+"/z"))
	must(t, os.Link(h.layer+"/m/first", h.layer+"/m/second"))
	must(t, os.Link(h.layer+"/same", h.layer+"/sole"))
	must(t, os.Symlink("anywhere", h.layer+"/s1"))
	must(t, os.Link(h.layer+"/s1", h.layer+"/s2"))
	want := map[string]string{"m": "", "m/first": "", "m/second": "m/first", "z": "m/first", "apart": "", "sole": "", "s1": "", "s2": "s1"}

	c := h.read()
	var saved bytes.Buffer
	must(t, c.Encode(&saved))
	again, err := Decode(&saved)
	must(t, err)
	for _, c := range []*Changeset{c, again} {
		if len(c.Entries) != len(want) {
			t.Errorf("%d entries, want %d", len(c.Entries), len(want))
		}
		for _, e := range c.Entries {
			if link, ok := want[e.Path]; !ok || e.Link != link {
				t.Errorf("%q: link to %q, want %q", e.Path, e.Link, link)
			}
		}
	}
}

// TestForgedLinks: an entry links to an earlier path, and a deleted one to none.
func TestForgedLinks(t *testing.T) {
	file := func() *State { return &State{Type: 1, Mode: 0o644} }
	for name, e := range map[string]Entry{
		"later":   {Path: "a", Op: Created, After: file(), Source: Layer, SourcePath: "a", Link: "b"},
		"itself":  {Path: "a", Op: Created, After: file(), Source: Layer, SourcePath: "a", Link: "a"},
		"outside": {Path: "a", Op: Created, After: file(), Source: Layer, SourcePath: "a", Link: "../a"},
		"deleted": {Path: "b", Op: Deleted, Before: file(), Link: "a"},
	} {
		c := &Changeset{Entries: []Entry{e}}
		c.seal()
		var saved bytes.Buffer
		must(t, c.Encode(&saved))
		if _, err := Decode(&saved); err == nil {
			t.Errorf("%s: a link from %q to %q was believed", name, e.Path, e.Link)
		}
	}
}
