package box

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/workspace"
)

func testStore(t *testing.T) *Store {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	s, err := OpenStore()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// keep makes a kept box with an empty change.
func keep(t *testing.T, s *Store, id string, created time.Time) *dir {
	t.Helper()
	d, err := createDir(s.bases()[0], id)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(d.path, "upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.saveChanges(changesName, &changeset.Changeset{Entries: []changeset.Entry{}}); err != nil {
		t.Fatal(err)
	}
	err = d.write(&Record{ID: id, State: api.Ready, Read: true, Reason: "preserve", Created: created, RawWorkspace: []byte(t.TempDir()), Form: changeset.Overlay, Layer: "upper", Strategy: workspace.Overlay})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestBoxIsFoundByTheBeginningOfItsID(t *testing.T) {
	s := testStore(t)
	for _, id := range []string{"abc1", "abd2"} {
		keep(t, s, id, time.Now()).close()
	}
	for prefix, want := range map[string]string{"abc1": "abc1", "abc": "abc1", "abd": "abd2"} {
		h, err := s.boxes().hold(prefix)
		if err != nil {
			t.Errorf("%s: %v", prefix, err)
			continue
		}
		r := h.record
		if r.ID != want {
			t.Errorf("%s: box %s, want %s", prefix, r.ID, want)
		}
		s.boxes().letGo(h)
	}
	for prefix, want := range map[string]string{"ab": "2 boxes", "x": "no box", "": "not the id", "../boxes": "not the id", "a\x00": "not the id", ".": "not the id"} {
		if _, err := s.boxes().hold(prefix); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", prefix, err, want)
		}
	}
}

func TestBoxIsHeldByOneProcess(t *testing.T) {
	s := testStore(t)
	d := keep(t, s, "held", time.Now())
	if _, err := s.boxes().hold("held"); !errors.Is(err, errBusy) {
		t.Errorf("a box that another holds: %v", err)
	}
	if err := s.Discard("held"); !errors.Is(err, errBusy) {
		t.Errorf("discard of a box that another holds: %v", err)
	}
	d.close()
	if err := s.Discard("held"); err != nil {
		t.Error(err)
	}
	if boxes, err := s.Boxes(); err != nil || len(boxes) != 0 {
		t.Errorf("after discard: %v, %v", boxes, err)
	}
}

func TestDamagedRecordIsAnErrorNotALoss(t *testing.T) {
	s := testStore(t)
	d := keep(t, s, "dmg", time.Now())
	if err := os.WriteFile(filepath.Join(d.path, recordName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.close()
	if _, err := s.boxes().hold("dmg"); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("open: %v", err)
	}
	s.sweep(s.bases()[0])
	if _, err := os.Stat(d.path); err != nil {
		t.Errorf("what a damaged record names was removed: %v", err)
	}
}

// What a crash left goes; what runs, what is kept, what was just made and what
// was rescued stays.
func TestSweep(t *testing.T) {
	s := testStore(t)
	base := s.bases()[0]
	make := func(id string, old, locked bool) {
		d, err := createDir(base, id)
		if err != nil {
			t.Fatal(err)
		}
		if old {
			past := time.Now().Add(-2 * settled)
			if err := os.Chtimes(d.path, past, past); err != nil {
				t.Fatal(err)
			}
		}
		if locked {
			t.Cleanup(d.close)
		} else {
			d.close()
		}
	}
	make("crashed", true, false)
	make("running", true, true)
	make("fresh", false, false)
	make("saved"+rescued, true, false)
	keep(t, s, "kept", time.Now()).close()
	past := time.Now().Add(-2 * settled)
	if err := os.Chtimes(filepath.Join(base, "kept"), past, past); err != nil {
		t.Fatal(err)
	}
	s.sweep(base)
	for name, want := range map[string]bool{"crashed": false, "running": true, "fresh": true, "saved" + rescued: true, "kept": true} {
		if _, err := os.Stat(filepath.Join(base, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %v", name, err, want)
		}
	}
}

func TestCollect(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	for id, age := range map[string]time.Duration{"new": 0, "middle": time.Hour, "old": 48 * time.Hour} {
		keep(t, s, id, now.Add(-age)).close()
	}
	names := func() string {
		boxes, err := s.Boxes()
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, b := range boxes {
			ids = append(ids, b.ID)
		}
		return strings.Join(ids, " ")
	}
	if got := names(); got != "old middle new" {
		t.Fatalf("boxes, oldest first: %s", got)
	}
	c, err := s.Collect(Budget{Age: 24 * time.Hour, Count: 10}, t.TempDir())
	if err != nil || c.Boxes != 1 || names() != "middle new" {
		t.Errorf("by age: %+v, %v, left %s", c, err, names())
	}
	c, err = s.Collect(Budget{Age: 24 * time.Hour, Count: 1}, t.TempDir())
	if err != nil || c.Boxes != 1 || names() != "new" {
		t.Errorf("by count: %+v, %v, left %s", c, err, names())
	}
}

func TestLayerDirInTheWorkspaceIsRefused(t *testing.T) {
	s := testStore(t)
	ws := t.TempDir()
	inside := filepath.Join(ws, "sub")
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(inside, link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{ws, inside, link} {
		if _, err := s.base(dir, ws); err == nil || !strings.Contains(err.Error(), "in the workspace") {
			t.Errorf("%s: %v", dir, err)
		}
	}
	outside := t.TempDir()
	base, err := s.base(outside, ws)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.base(outside, ws); err != nil || again != base {
		t.Errorf("again: %s, %v", again, err)
	}
	if bases := s.bases(); len(bases) != 2 || bases[1] != base {
		t.Errorf("remembered: %q", bases)
	}
	if _, err := s.base(filepath.Join(outside, "absent"), ws); err == nil {
		t.Error("a directory that does not exist was taken")
	}
}
