//go:build linux

package promote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hutch/internal/fsat"
)

// cutShort leaves a transaction right after its commit point.
func cutShort(t *testing.T, s *scene) {
	t.Helper()
	type stop struct{}
	defer func() {
		fault = nil
		if r := recover(); r != (stop{}) {
			t.Fatalf("not stopped: %v", r)
		}
	}()
	fault = func(op string) error {
		if op == "fsync" || op == "utimens" || op == "exchange" {
			if st, _ := Status(s.req.Workspace, s.req.ID); st == Committed {
				panic(stop{})
			}
		}
		return nil
	}
	_, _ = Apply(context.Background(), s.req)
}

func smallScene(t *testing.T) *scene {
	t.Helper()
	before := mapTree{"a": file("a"), "b": file("b"), "d": dir(), "d/x": file("x")}
	after := mapTree{"a": file("a2"), "b": file("b2"), "n": file("n")}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	t.Cleanup(s.close)
	return s
}

func TestRecoverDamaged(t *testing.T) {
	for name, damage := range map[string]func(*scene, []byte) []byte{
		"flipped":   func(s *scene, b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"truncated": func(s *scene, b []byte) []byte { return b[:len(b)-7] },
		"empty":     func(*scene, []byte) []byte { return nil },
		"version":   func(s *scene, b []byte) []byte { return bytes.Replace(b, []byte("journal/2"), []byte("journal/9"), 1) },
		"forged path": func(s *scene, b []byte) []byte {
			return forge(t, s, b, func(j *journal) { j.Steps[0].Path = "../outside" })
		},
		"forged parent": func(s *scene, b []byte) []byte {
			return forge(t, s, b, func(j *journal) { j.Parents[0].Path = "/etc" })
		},
		"forged file": func(s *scene, b []byte) []byte {
			return forge(t, s, b, func(j *journal) { j.Steps[0].Files[0].Rel = ".." })
		},
		"forged mode": func(s *scene, b []byte) []byte {
			return forge(t, s, b, func(j *journal) { j.Steps[0].Staged.Mode = 0o4755 })
		},
		"forged xattr": func(s *scene, b []byte) []byte {
			return forge(t, s, b, func(j *journal) {
				j.Steps[0].Files[0].Linked.Scrub = []xattr{{Name: "security.capability"}}
			})
		},
		"hutch's own": func(s *scene, b []byte) []byte {
			return forge(t, s, b, func(j *journal) { j.Steps[0].Path = ".hutch/x" })
		},
		"another's": func(s *scene, b []byte) []byte { return forge(t, s, b, func(j *journal) { j.ID = "t2" }) },
	} {
		t.Run(name, func(t *testing.T) {
			s := smallScene(t)
			cutShort(t, s)
			at := s.ws(".hutch/txn-t1/journal")
			data, err := os.ReadFile(at)
			check(t, err)
			check(t, os.WriteFile(at, damage(s, data), 0o600))
			whole := snap(t, s.ws(".hutch"))
			rec, err := Recover(s.req.Workspace, testKey, nil)
			if err == nil || len(rec) != 0 || !strings.Contains(err.Error(), "journal") {
				t.Fatalf("recovered %+v, %v", rec, err)
			}
			s.want(t, "before")
			if d := cmp.Diff(whole, snap(t, s.ws(".hutch"))); d != "" {
				t.Errorf("touched: %s", d)
			}
			next := s.req
			next.ID = "t2"
			if _, err := Apply(context.Background(), next); err == nil {
				t.Error("promoted over a damaged journal")
			}
		})
	}
}

func (s *scene) authority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: testKey}
	var err error
	a.ino, a.born, err = origin(s.req.Workspace)
	check(t, err)
	return a
}

func forge(t *testing.T, s *scene, data []byte, change func(*journal)) []byte {
	t.Helper()
	var j journal
	a := s.authority(t)
	h, err := a.unseal(aJournal, "t1", data, &j)
	check(t, err)
	change(&j)
	out, err := a.seal(aJournal, "t1", h, &j)
	check(t, err)
	return out
}

// TestRecoverAfterEdit holds that what the user did between a crash and the
// recovery is never lost.
func TestRecoverAfterEdit(t *testing.T) {
	s := smallScene(t)
	cutShort(t, s)
	check(t, os.WriteFile(s.ws("b"), []byte("mine"), 0o644))
	rec, err := Recover(s.req.Workspace, testKey, nil)
	check(t, err)
	if len(rec) != 1 || rec[0].Forward {
		t.Errorf("%+v", rec)
	}
	s.before["b"] = file("mine")
	s.want(t, "before")
	s.wantLayer(t)
}

func TestHomeIsNotADirectory(t *testing.T) {
	for name, put := range map[string]func(string) error{
		"symlink": func(p string) error { return os.Symlink("d", p) },
		"file":    func(p string) error { return os.WriteFile(p, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			s := smallScene(t)
			check(t, put(s.ws(home)))
			if _, err := Apply(context.Background(), s.req); err == nil {
				t.Error("promoted")
			}
			if _, err := Recover(s.req.Workspace, testKey, nil); err == nil {
				t.Error("recovered")
			}
			s.want(t, "before")
		})
	}
}

// TestConcurrent promotes disjoint changes, and one path that all change, at
// the same time: exactly one of those may win.
func TestConcurrent(t *testing.T) {
	const n = 8
	base := tempDir(t)
	before := mapTree{"both": file("old")}
	for i := range n {
		before[fmt.Sprintf("f%d", i)] = file("old")
	}
	ws := filepath.Join(base, "s0")
	var scenes []*scene
	for i := range n {
		after := maps.Clone(before)
		after["both"] = file(fmt.Sprint("new ", i))
		after[fmt.Sprintf("f%d", i)] = file("new")
		s := newScene(t, filepath.Join(base, fmt.Sprintf("s%d", i)), before, after, "")
		s.req.ID = fmt.Sprintf("t%d", i)
		scenes = append(scenes, s)
	}
	defer func() {
		for _, s := range scenes {
			s.close()
		}
	}()
	for _, s := range scenes {
		s.req.Stamp = scenes[0].req.Stamp
		for k := range s.req.Changes.Entries {
			s.req.Changes.Entries[k].BaseIno = 0
		}
		unix.Close(s.req.Workspace)
		var err error
		s.req.Workspace, err = unix.Open(filepath.Join(ws, "ws"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		check(t, err)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, s := range scenes {
		wg.Go(func() { _, errs[i] = Apply(context.Background(), s.req) })
	}
	wg.Wait()
	want, won := maps.Clone(before), 0
	for i, err := range errs {
		var conflict *ConflictError
		if err == nil {
			won++
			want["both"], want[fmt.Sprintf("f%d", i)] = file(fmt.Sprint("new ", i)), file("new")
		} else if !errors.As(err, &conflict) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d promotions won", won)
	}
	if d := cmp.Diff(want, snap(t, filepath.Join(ws, "ws"))); d != "" {
		t.Error(d)
	}
}

func TestLockWaitEnds(t *testing.T) {
	s := smallScene(t)
	held, err := makeShed(context.Background(), s.req.Workspace, testKey)
	check(t, err)
	defer held.leave()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := Apply(ctx, s.req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestPrune(t *testing.T) {
	base := tempDir(t)
	tr := mapTree{"f": file(strings.Repeat("0", 1000))}
	var ws int
	for i := range 5 {
		next := mapTree{"f": file(strings.Repeat(fmt.Sprint(i+1), 1000))}
		s := newScene(t, filepath.Join(base, fmt.Sprint(i)), tr, next, "")
		if i > 0 {
			unix.Close(s.req.Workspace)
			s.req.Workspace = ws
			s.req.Changes.Entries[0].BaseIno = 0
			s.req.Stamp = stamp(t, filepath.Join(base, "0", "ws"))
		}
		ws = s.req.Workspace
		s.req.ID = fmt.Sprint("t", i)
		_, err := Apply(context.Background(), s.req)
		check(t, err)
		tr = next
	}
	left := func() []string {
		names, err := filepath.Glob(filepath.Join(base, "0", "ws", home, "txn-*"))
		check(t, err)
		for i := range names {
			names[i] = filepath.Base(names[i])
		}
		return names
	}
	day := 24 * time.Hour
	for _, tt := range []struct {
		keep  Budget
		freed int64
		left  []string
	}{
		{Budget{10, 1 << 20, day}, 0, []string{"txn-t0", "txn-t1", "txn-t2", "txn-t3", "txn-t4"}},
		{Budget{4, 1 << 20, day}, 1000, []string{"txn-t1", "txn-t2", "txn-t3", "txn-t4"}},
		{Budget{10, 3500, day}, 1000, []string{"txn-t2", "txn-t3", "txn-t4"}},
		{Budget{10, 1 << 20, time.Nanosecond}, 2000, []string{"txn-t4"}},
		{Budget{10, 10, day}, 1000, nil},
	} {
		freed, err := Prune(ws, testKey, tt.keep)
		check(t, err)
		if got := left(); freed != tt.freed || !slices.Equal(got, tt.left) {
			t.Errorf("%+v: freed %d, left %v; want %d, %v", tt.keep, freed, got, tt.freed, tt.left)
		}
	}
	if _, err := os.Lstat(filepath.Join(base, "0", "ws", home)); !errors.Is(err, os.ErrNotExist) {
		t.Error(".hutch is left")
	}
	if _, err := Recover(ws, testKey, nil); err != nil {
		t.Error(err)
	}
}

// TestAfterRecord holds that undo will find what it needs.
func TestAfterRecord(t *testing.T) {
	s := smallScene(t)
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	data, err := os.ReadFile(s.ws(".hutch/txn-t1/done"))
	check(t, err)
	j, err := s.authority(t).journal("t1", data)
	check(t, err)
	data, err = os.ReadFile(s.ws(".hutch/txn-t1/after"))
	check(t, err)
	var a after
	_, err = s.authority(t).unseal(anAfter, "t1", data, &a)
	check(t, err)
	for i, step := range j.Steps {
		if len(a.Steps[i]) != len(step.Files) {
			t.Fatalf("%s: %d states of %d files", step.Path, len(a.Steps[i]), len(step.Files))
		}
		for k, f := range step.Files {
			path := string(step.Path)
			if f.Rel != "." {
				path += "/" + string(f.Rel)
			}
			st, err := fsat.Lstat(s.req.Workspace, path)
			check(t, err)
			if d := cmp.Diff(identOf(st), a.Steps[i][k].ident); d != "" {
				t.Errorf("%s: %s", path, d)
			}
		}
	}
}

// TestRandom promotes random changes of random trees: they arrive whole, and
// whole again when a call fails.
func TestRandom(t *testing.T) {
	base, round := tempDir(t), 0
	defer func() { fault = nil }()
	rapid.Check(t, func(rt *rapid.T) {
		before := drawTree(rt, "before")
		after := drawTree(rt, "after")
		for p, n := range before { // keep some of it
			if rapid.Bool().Draw(rt, "keep") {
				addTo(after, p, n, before)
			}
		}
		round++
		s := newScene(t, filepath.Join(base, fmt.Sprint(round)), before, after, rapid.SampledFrom([]string{"", "user.overlay.origin="}).Draw(rt, "marks"))
		defer s.remove(t)
		s.req.KeepLayer = rapid.Bool().Draw(rt, "keepLayer")
		failAt, calls := rapid.IntRange(0, 80).Draw(rt, "fail"), 0
		fault = func(string) error {
			if calls++; calls == failAt {
				return unix.EIO
			}
			return nil
		}
		_, err := Apply(context.Background(), s.req)
		fault = nil
		want := "after"
		if err != nil {
			if calls < failAt || failAt == 0 {
				rt.Fatalf("no call failed, but %v", err)
			}
			want = "before"
		}
		// Trees can be equal, and then both names fit.
		tree := map[string]mapTree{"before": before, "after": after}[want]
		if d := cmp.Diff(tree, snap(t, s.ws("")), cmp.Transformer("empty", func(m mapTree) map[string]node { return m })); d != "" {
			rt.Fatalf("%v: the workspace is not %s: %s", err, want, d)
		}
		if err != nil {
			s.wantLayer(t)
		}
		if got := s.settled(t); !cmp.Equal(tree, map[string]mapTree{"before": before, "after": after}[got]) {
			rt.Fatalf("recovery made it %s", got)
		}
	})
}

func drawTree(t *rapid.T, label string) mapTree {
	tr := mapTree{}
	names := rapid.SampledFrom([]string{"a", "b", "a-b", "a.b", "c\xff", "d\n"})
	for range rapid.IntRange(0, 12).Draw(t, label) {
		path := names.Draw(t, "name")
		for range rapid.IntRange(0, 3).Draw(t, "depth") {
			path += "/" + names.Draw(t, "name")
		}
		n := file(rapid.SampledFrom([]string{"", "x", "yy"}).Draw(t, "data"))
		switch rapid.IntRange(0, 5).Draw(t, "type") {
		case 0:
			n = sym(rapid.SampledFrom([]string{"a", "../x", "/etc"}).Draw(t, "target"))
		case 1, 2:
			n = dir().mode(rapid.SampledFrom([]uint32{0o755, 0o700, 0o555}).Draw(t, "mode"))
		default:
			n = n.mode(rapid.SampledFrom([]uint32{0o644, 0o755, 0o444}).Draw(t, "mode"))
			n = n.xattr(rapid.SampledFrom([]string{"", "user.x=1"}).Draw(t, "xattr"))
		}
		addTo(tr, path, n, nil)
	}
	return tr
}

// addTo adds a path and the directories above it, unless something else is in
// its way.
func addTo(tr mapTree, path string, n node, modes mapTree) {
	if old, ok := tr[path]; ok && (old.Type == fsat.Directory || n.Type == fsat.Directory) {
		return
	}
	var above []string
	for d, _ := fsat.Split(path); d != "."; d, _ = fsat.Split(d) {
		if old, ok := tr[d]; ok && old.Type != fsat.Directory {
			return
		} else if !ok {
			above = append(above, d)
		}
	}
	for _, d := range above {
		tr[d] = dir()
		if m, ok := modes[d]; ok && m.Type == fsat.Directory {
			tr[d] = m
		}
	}
	tr[path] = n
}

func FuzzJournal(f *testing.F) {
	a := &authority{key: testKey}
	good, err := a.seal(aJournal, "t1", head{Held: 7, Seq: 1}, &journal{ID: "t1", Steps: []step{{Kind: remove, Path: "a\xff%", Before: ident{Ino: 1}}}})
	check(f, err)
	f.Add(good)
	f.Add([]byte("hutch-journal/2 00 0 0 0 00\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		j, err := a.journal("t1", data)
		if err == nil {
			for _, s := range j.Steps {
				if checkPath(string(s.Path)) != nil {
					t.Errorf("%q was taken", s.Path)
				}
			}
		}
		// The same behind a checksum that is right.
		_, body, _ := bytes.Cut(data, []byte("\n"))
		var again journal
		if sealed, err := a.seal(aJournal, "t1", head{}, rawBody(body)); err == nil {
			_, _ = a.unseal(aJournal, "t1", sealed, &again)
			_ = again.validate("t1")
		}
	})
}

type rawBody []byte

func (r rawBody) MarshalJSON() ([]byte, error) { return r, nil }

func TestRawPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := raw(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		text, err := r.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back raw
		if err := back.UnmarshalText(text); err != nil || back != r {
			t.Fatalf("%q became %q (%v)", r, back, err)
		}
	})
}
