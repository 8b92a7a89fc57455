package changeset

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInheritBases(t *testing.T) {
	c := &Changeset{
		Entries:   []Entry{{Path: "known", BaseIno: 1}, {Path: "forgotten"}, {Path: "new"}},
		Ancestors: map[string]uint64{"a": 2},
	}
	c.InheritBases(&Changeset{
		Entries:   []Entry{{Path: "known", BaseIno: 9}, {Path: "forgotten", BaseIno: 3}, {Path: "undone", BaseIno: 4}},
		Ancestors: map[string]uint64{"a": 9, "b": 5},
	})
	want := &Changeset{
		Entries:   []Entry{{Path: "known", BaseIno: 1}, {Path: "forgotten", BaseIno: 3}, {Path: "new"}},
		Ancestors: map[string]uint64{"a": 2, "b": 5},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	empty := &Changeset{}
	empty.InheritBases(&Changeset{Ancestors: map[string]uint64{".": 1}})
	if empty.Ancestors["."] != 1 {
		t.Error("an ancestor was lost")
	}
}
