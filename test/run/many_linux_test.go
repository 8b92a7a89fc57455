package run

import (
	"os"
	"slices"
	"strings"
	"testing"

	"hutch/test/lab"
)

func TestManyRunsInARowLeaveNothing(t *testing.T) {
	runs := 50
	if lab.Proof() {
		runs = 5000
	}
	w := lab.New(t)
	w.Sample()
	names := func() []string {
		entries, err := os.ReadDir(w.StateDir())
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	w.Want(w.Box("--", "true"), 0)
	before, first := w.Snap(), names()
	for range runs {
		w.Want(w.Box("--", "sh", "-c", "echo x > new.txt; rm README.md"), 0)
	}
	w.Untouched(before)
	if now := names(); !slices.Equal(first, now) {
		t.Errorf("the state directory grew from %q to %q", first, now)
	}
	if left := lab.Leftovers(lab.Census{}, 0, w.Base); slices.ContainsFunc(left, func(l string) bool { return strings.Contains(l, w.Base) }) {
		t.Errorf("after %d runs: %q", runs, left)
	}
	receipts, err := os.ReadFile(w.StateDir() + "/receipts.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(receipts), "\n"); n != runs+1 {
		t.Errorf("%d receipts of %d runs", n, runs+1)
	}
	w.Want(w.Run("receipts", "verify"), 0)
}
