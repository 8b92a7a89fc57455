package changeset

import (
	"bytes"
	"reflect"
	"testing"
)

// The lowest layer that changes a path saw the workspace there; higher ones saw
// that layer.
func TestSeenOfALowerLayerWins(t *testing.T) {
	s := &Seen{Paths: map[string]uint64{"a": 1, "d": 0}, Dirs: map[string]uint64{".": 9}, Moved: map[string]bool{}}
	above := &Seen{Paths: map[string]uint64{"a": 5, "b": 2, "d": 6}, Dirs: map[string]uint64{".": 8, "d": 6, "e": 7}, GitIndex: "x", Moved: map[string]bool{"a": true, "b": true}}
	above.Upon()
	s.Over(above)
	want := &Seen{Paths: map[string]uint64{"a": 1, "b": 2, "d": 0}, Dirs: map[string]uint64{".": 9, "e": 7}, GitIndex: "x", Moved: map[string]bool{"b": true}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, want %+v", s, want)
	}
	var buf bytes.Buffer
	if err := s.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	text := buf.Bytes()
	if got, err := DecodeSeen(bytes.NewReader(text)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range text {
		if _, err := DecodeSeen(bytes.NewReader(text[:i])); err == nil {
			t.Errorf("%d bytes of it are read without an error", i)
		}
	}
}

func TestInherit(t *testing.T) {
	c := &Changeset{Entries: []Entry{{Path: "d/e/new"}, {Path: "old", BaseIno: 4}, {Path: "replaced"}}}
	c.Inherit(&Seen{Paths: map[string]uint64{"old": 40, "replaced": 3}, Dirs: map[string]uint64{".": 2, "d": 5, "other": 6}})
	if c.Entries[0].BaseIno != 0 || c.Entries[1].BaseIno != 4 || c.Entries[2].BaseIno != 3 {
		t.Errorf("%+v", c.Entries)
	}
	if want := map[string]uint64{".": 2, "d": 5}; !reflect.DeepEqual(c.Ancestors, want) {
		t.Errorf("ancestors %v, want %v", c.Ancestors, want)
	}
}
