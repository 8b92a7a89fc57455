//go:build linux

package promote

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// joinLines is a merge of its own kind: a side that equals "base" is no change,
// "clash" cannot be merged, all else is put together.
func joinLines(path string, e *changeset.Entry, host, box []byte) ([]byte, bool, string) {
	switch {
	case strings.Contains(string(host), "binary"):
		return nil, false, "it is binary"
	case string(box) == "base":
		return host, true, ""
	case strings.Contains(string(host), "clash"):
		return []byte("<<<\n" + string(host) + "|" + string(box)), false, "both changed line 1"
	}
	return []byte(string(host) + "+" + string(box)), true, ""
}

func TestModes(t *testing.T) {
	write := func(rel, data string) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) { check(t, os.WriteFile(s.ws(rel), []byte(data), 0o644)) }
	}
	all := func(fs ...func(*testing.T, *scene)) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) {
			for _, f := range fs {
				f(t, s)
			}
		}
	}
	rm := func(rel string) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) { check(t, os.RemoveAll(s.ws(rel))) }
	}
	mkdir := func(rel string) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) { check(t, os.MkdirAll(s.ws(rel), 0o755)) }
	}
	before := mapTree{
		"a": file("a"), "f": file("base"), "mode": file("m"), "del": file("d"), "touched": file("base"), "old": file("o"),
		"d": dir(), "d/in": file("in"), "gone": dir(), "gone/a": file("a"), "gone/b": dir(), "gone/b/c": file("c"),
		"tofile": dir(), "tofile/x": file("x"), "tofile/y": file("y"), "l": sym("f"),
	}
	after := mapTree{
		"a": file("a2"), "f": file("box"), "mode": file("m").mode(0o755), "touched": file("base").mode(0o600), "old": file("o2"),
		"d": dir(), "d/in": file("in2"), "new": file("box"), "nd": dir(), "nd/x": file("x"), "nd/s": dir(), "nd/s/y": file("y"),
		"tofile": file("now"), "l": sym("a"),
	}
	// with is after, with some paths otherwise; those of mode 0 are not there.
	with := func(paths mapTree) mapTree {
		tr := maps.Clone(after)
		for p, n := range paths {
			if tr[p] = n; n == (node{}) {
				delete(tr, p)
			}
		}
		return tr
	}
	type result struct {
		tree      mapTree  // promoted: what stands then
		conflicts []string // else
		resolved  map[string]How
	}
	no := func(paths ...string) result { return result{conflicts: paths} }
	tests := []struct {
		name                string
		host                func(*testing.T, *scene)
		ours, theirs, merge result
	}{
		{"nothing", func(*testing.T, *scene) {}, result{tree: after}, result{tree: after}, result{tree: after}},
		{"edited on both sides", write("f", "host"),
			result{tree: with(mapTree{"f": file("host")}), resolved: map[string]How{"f": TookOurs}},
			result{tree: after, resolved: map[string]How{"f": TookTheirs}},
			result{tree: with(mapTree{"f": file("host+box")}), resolved: map[string]How{"f": TookMerge}}},
		{"not clean", write("f", "clash"),
			result{tree: with(mapTree{"f": file("clash")}), resolved: map[string]How{"f": TookOurs}},
			result{tree: after, resolved: map[string]How{"f": TookTheirs}},
			no("f")},
		{"not mergeable", write("f", "binary"),
			result{tree: with(mapTree{"f": file("binary")}), resolved: map[string]How{"f": TookOurs}},
			result{tree: after, resolved: map[string]How{"f": TookTheirs}},
			no("f")},
		{"equal on both sides", write("f", "box"), result{tree: after}, result{tree: after}, result{tree: after}},
		{"created on both sides", write("new", "host"),
			result{tree: with(mapTree{"new": file("host")}), resolved: map[string]How{"new": TookOurs}},
			result{tree: after, resolved: map[string]How{"new": TookTheirs}},
			result{tree: with(mapTree{"new": file("host+box")}), resolved: map[string]How{"new": TookMerge}}},
		{"deleted on the host", rm("f"),
			result{tree: with(mapTree{"f": {}}), resolved: map[string]How{"f": TookOurs}},
			result{tree: after, resolved: map[string]How{"f": TookTheirs}},
			no("f")},
		{"edited what the box deleted", write("del", "host"),
			result{tree: with(mapTree{"del": file("host")}), resolved: map[string]How{"del": TookOurs}},
			result{tree: after, resolved: map[string]How{"del": TookTheirs}},
			no("del")},
		{"edited what the box only made executable", write("mode", "host"),
			result{tree: with(mapTree{"mode": file("host")}), resolved: map[string]How{"mode": TookOurs}},
			result{tree: with(mapTree{"mode": file("host").mode(0o755)}), resolved: map[string]How{"mode": TookTheirs}},
			result{tree: with(mapTree{"mode": file("host").mode(0o755)}), resolved: map[string]How{"mode": TookMerge}}},
		{"link retargeted", all(rm("l"), func(t *testing.T, s *scene) { check(t, os.Symlink("d", s.ws("l"))) }),
			result{tree: with(mapTree{"l": sym("d")}), resolved: map[string]How{"l": TookOurs}},
			result{tree: after, resolved: map[string]How{"l": TookTheirs}},
			no("l")},
		{"edited in a deleted directory", write("gone/b/c", "host"),
			result{tree: with(mapTree{"gone": dir(), "gone/b": dir(), "gone/b/c": file("host")}),
				resolved: map[string]How{"gone": TookOurs, "gone/b": TookOurs, "gone/b/c": TookOurs}},
			result{tree: after, resolved: map[string]How{"gone/b/c": TookTheirs}},
			no("gone/b/c")},
		{"added in a deleted directory", write("gone/b/stranger", "s"),
			result{tree: with(mapTree{"gone": dir(), "gone/b": dir(), "gone/b/stranger": file("s")}),
				resolved: map[string]How{"gone": TookOurs, "gone/b": TookOurs}},
			result{tree: with(mapTree{"gone": dir(), "gone/b": dir(), "gone/b/stranger": file("s")}),
				resolved: map[string]How{"gone": TookOurs, "gone/b": TookOurs}},
			no("gone/b/stranger")},
		{"added in a directory made a file", write("tofile/stranger", "s"),
			result{tree: with(mapTree{"tofile": dir(), "tofile/x": file("x"), "tofile/y": file("y"), "tofile/stranger": file("s")}),
				resolved: map[string]How{"tofile": TookOurs, "tofile/x": TookOurs, "tofile/y": TookOurs}},
			no("tofile/stranger"), no("tofile/stranger")},
		{"edited in a directory made a file", write("tofile/x", "host"),
			result{tree: with(mapTree{"tofile": dir(), "tofile/x": file("host"), "tofile/y": file("y")}),
				resolved: map[string]How{"tofile": TookOurs, "tofile/x": TookOurs, "tofile/y": TookOurs}},
			result{tree: after, resolved: map[string]How{"tofile/x": TookTheirs}},
			no("tofile/x")},
		{"a file where the box made a directory", write("nd", "host"),
			result{tree: with(mapTree{"nd": file("host"), "nd/x": {}, "nd/s": {}, "nd/s/y": {}}),
				resolved: map[string]How{"nd": TookOurs, "nd/x": TookOurs, "nd/s": TookOurs, "nd/s/y": TookOurs}},
			result{tree: after, resolved: map[string]How{"nd": TookTheirs}},
			no("nd", "nd/s", "nd/s/y", "nd/x")},
		{"a directory where the box made one", all(mkdir("nd"), write("nd/host", "h"), write("nd/x", "host")),
			result{tree: with(mapTree{"nd/host": file("h"), "nd/x": file("host")}), resolved: map[string]How{"nd/x": TookOurs}},
			result{tree: with(mapTree{"nd/host": file("h")}), resolved: map[string]How{"nd/x": TookTheirs}},
			result{tree: with(mapTree{"nd/host": file("h"), "nd/x": file("host+x")}), resolved: map[string]How{"nd/x": TookMerge}}},
		{"a directory where the box edited a file", all(rm("f"), mkdir("f"), write("f/host", "h")),
			result{tree: with(mapTree{"f": dir(), "f/host": file("h")}), resolved: map[string]How{"f": TookOurs}},
			no("f"), no("f")},
		{"a directory where the box deleted a file", all(rm("del"), mkdir("del"), write("del/host", "h")),
			result{tree: with(mapTree{"del": dir(), "del/host": file("h")}), resolved: map[string]How{"del": TookOurs}},
			no("del"), no("del")},
		{"parent deleted", rm("d"),
			result{tree: with(mapTree{"d": {}, "d/in": {}}), resolved: map[string]How{"d/in": TookOurs}},
			no("d/in"), no("d/in")},
		{"parent made a file", all(rm("d"), write("d", "host")),
			result{tree: with(mapTree{"d": file("host"), "d/in": {}}), resolved: map[string]How{"d/in": TookOurs}},
			no("d/in"), no("d/in")},
		{"parent made a symlink", func(t *testing.T, s *scene) {
			check(t, os.Rename(s.ws("d"), s.ws("real")))
			check(t, os.Symlink("real", s.ws("d")))
		}, no("d/in"), no("d/in"), no("d/in")},
		{"open for writing", func(t *testing.T, s *scene) {
			f, err := os.OpenFile(s.ws("f"), os.O_WRONLY, 0)
			check(t, err)
			t.Cleanup(func() { f.Close() })
		}, result{tree: with(mapTree{"f": file("base")}), resolved: map[string]How{"f": TookOurs}}, no("f"), no("f")},
		{"edited what the box only opened", func(t *testing.T, s *scene) {
			e := s.entry(t, "old")
			e.After.Mtime = fsat.Time{Sec: 1700000000}
			check(t, os.Chtimes(filepath.Join(s.dir, "layer/old"), time.Time{}, time.Unix(1700000000, 0)))
			write("old", "host")(t, s)
		}, result{tree: with(mapTree{"old": file("host")}), resolved: map[string]How{"old": TookOurs}},
			no("old"),
			result{tree: with(mapTree{"old": file("host+o2")}), resolved: map[string]How{"old": TookMerge}}},
		{"edited what the box only touched", func(t *testing.T, s *scene) {
			// The reader saw the host's edit as what was before.
			write("touched", "host")(t, s)
			e := s.entry(t, "touched")
			e.Before = stateOf(file("host"))
			e.After.Mode = 0o644
			check(t, os.Chmod(filepath.Join(s.dir, "layer/touched"), 0o644))
		}, result{tree: with(mapTree{"touched": file("host")}), resolved: map[string]How{"touched": TookOurs}},
			result{tree: with(mapTree{"touched": file("host")}), resolved: map[string]How{"touched": TookOurs}},
			result{tree: with(mapTree{"touched": file("host")}), resolved: map[string]How{"touched": TookMerge}}},
	}
	for _, tt := range tests {
		for mode, want := range map[Mode]result{Ours: tt.ours, Theirs: tt.theirs, Merge: tt.merge} {
			t.Run(tt.name+"/"+string(mode), func(t *testing.T) {
				s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
				defer s.close()
				s.writtenByBox()
				s.req.OnConflict, s.req.Merge = mode, joinLines
				tt.host(t, s)
				s.layer = snap(t, filepath.Join(s.dir, "layer"))
				host := snap(t, s.ws(""))
				res, err := Apply(context.Background(), s.req)
				if want.tree != nil {
					check(t, err)
					if d := cmp.Diff(want.tree, snap(t, s.ws(""))); d != "" {
						t.Errorf("workspace: %s", d)
					}
					got := map[string]How{}
					for _, r := range res.Resolved {
						if _, twice := got[r.Path]; twice {
							t.Errorf("%q is named twice", r.Path)
						}
						got[r.Path] = r.How
					}
					if want.resolved == nil {
						want.resolved = map[string]How{}
					}
					if d := cmp.Diff(want.resolved, got); d != "" {
						t.Errorf("resolved: %s", d)
					}
					return
				}
				var conflict *ConflictError
				if !errors.As(err, &conflict) {
					t.Fatalf("no conflict but %v", err)
				}
				var got []string
				for _, c := range conflict.Conflicts {
					got = append(got, c.Path)
					if c.Why == "" {
						t.Errorf("%+v does not say why", c)
					}
				}
				if d := cmp.Diff(want.conflicts, got); d != "" {
					t.Errorf("%v: %s", err, d)
				}
				if d := cmp.Diff(host, snap(t, s.ws(""))); d != "" {
					t.Errorf("a conflict touched the workspace: %s", d)
				}
				s.wantLayer(t)
			})
		}
	}
}

// entry returns the entry of a path.
func (s *scene) entry(t *testing.T, path string) *changeset.Entry {
	t.Helper()
	for i := range s.req.Changes.Entries {
		if e := &s.req.Changes.Entries[i]; e.Path == path {
			return e
		}
	}
	t.Fatalf("no entry %q", path)
	return nil
}

// writtenByBox gives the files of the layer times after the branch.
func (s *scene) writtenByBox() {
	now := time.Now().Add(time.Second)
	for i := range s.req.Changes.Entries {
		if e := &s.req.Changes.Entries[i]; e.After != nil && e.After.Type == fsat.Regular {
			_ = os.Chtimes(filepath.Join(s.dir, "layer", e.Path), now, now)
			e.After.Mtime = fsat.Time{Sec: now.Unix(), Nsec: int64(now.Nanosecond())}
		}
	}
}

func TestMarkers(t *testing.T) {
	s := newScene(t, filepath.Join(tempDir(t), "s"), mapTree{"f": file("base")}, mapTree{"f": file("box")}, "")
	defer s.close()
	s.req.OnConflict, s.req.Merge, s.req.Markers = Merge, joinLines, true
	check(t, os.WriteFile(s.ws("f"), []byte("clash"), 0o644))
	res, err := Apply(context.Background(), s.req)
	check(t, err)
	s.after["f"] = file("<<<\nclash|box")
	s.want(t, "after")
	if d := cmp.Diff([]Resolution{{"f", TookMarkers}}, res.Resolved); d != "" {
		t.Error(d)
	}
}

// TestTheirsCanBeUndone holds that what is displaced lies in the slots.
func TestTheirsCanBeUndone(t *testing.T) {
	s := newScene(t, filepath.Join(tempDir(t), "s"), mapTree{"f": file("base")}, mapTree{"f": file("box")}, "")
	defer s.close()
	s.writtenByBox()
	s.req.OnConflict = Theirs
	check(t, os.WriteFile(s.ws("f"), []byte("host"), 0o644))
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	data, err := os.ReadFile(s.ws(".hutch/txn-t1/0"))
	check(t, err)
	if string(data) != "host" {
		t.Errorf("the slot holds %q", data)
	}
}

// TestCopiedUp holds that what was only copied up brings nothing back that the
// host deleted, and that a file which the box moved is no such thing.
func TestCopiedUp(t *testing.T) {
	before := mapTree{"d": dir(), "d/f": file("f"), "e": dir()}
	after := mapTree{"d": dir(), "d/f": file("box"), "e": dir(), "e/new": file("f")}
	for _, tt := range []struct {
		mode     Mode
		written  bool
		conflict bool
		stands   bool // d/f afterwards
	}{
		{Fail, true, true, false}, {Fail, false, true, false}, {Ours, false, false, false}, {Theirs, false, true, false},
		{Theirs, true, false, true}, {Merge, false, true, false}, {Merge, true, true, false},
	} {
		s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
		if tt.written {
			s.writtenByBox()
		}
		s.req.OnConflict, s.req.Merge = tt.mode, joinLines
		check(t, os.Remove(s.ws("d/f")))
		// Read after the deletion: nothing was before.
		e := s.entry(t, "d/f")
		e.Op, e.Before, e.BaseIno, e.CopiedUp = changeset.Created, nil, 0, true
		s.entry(t, "e/new").CopiedUp = true // moved: nothing was deleted from e
		_, err := Apply(context.Background(), s.req)
		var conflict *ConflictError
		if errors.As(err, &conflict) != tt.conflict || err != nil && !tt.conflict {
			t.Errorf("%+v: %v", tt, err)
		}
		if tt.conflict && conflict != nil && (len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Host != "deleted it") {
			t.Errorf("%+v: %v", tt, err)
		}
		if _, err := os.Lstat(s.ws("d/f")); (err == nil) != tt.stands {
			t.Errorf("%+v: d/f: %v", tt, err)
		}
		if _, err := os.Lstat(s.ws("e/new")); (err == nil) == tt.conflict {
			t.Errorf("%+v: e/new: %v", tt, err)
		}
		s.close()
	}
}

// TestClock refuses a stamp that cannot be compared with.
func TestClock(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Request)
		want   string // in the error; "" promotes
	}{
		"same":               {func(*Request) {}, ""},
		"set forward":        {func(r *Request) { r.Stamp.Realtime.Sec -= 10 }, ""},
		"set back":           {func(r *Request) { r.Stamp.Realtime.Sec += 10 }, "set back by 10s"},
		"set back a little":  {func(r *Request) { r.Stamp.Realtime.Nsec += 5e6 }, "set back by 5ms"},
		"no stamp":           {func(r *Request) { r.Stamp.Valid, r.Stamp.Reason = false, "the workspace is read-only" }, "read-only"},
		"rebooted":           {func(r *Request) { r.Stamp.BootID, r.Stamp.Boottime.Sec = "x", 1e9 }, ""},
		"rebooted, set back": {func(r *Request) { r.Stamp.BootID, r.Stamp.Realtime.Sec = "x", r.Stamp.Realtime.Sec+3600 }, "set back by 1h"},
		"unknown mode":       {func(r *Request) { r.OnConflict = "mine" }, "choose ours"},
	} {
		s := smallScene(t)
		tt.change(&s.req)
		_, err := Apply(context.Background(), s.req)
		if tt.want == "" {
			check(t, err)
			s.want(t, "after")
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		s.want(t, "before")
		if _, err := os.Lstat(s.ws(home)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a .hutch is left", name)
		}
	}
}

// TestWrittenDuringApply lets the user work at each call after the commit
// point: what he wrote is in the workspace afterwards, wherever it went
// meanwhile.
func TestWrittenDuringApply(t *testing.T) {
	before := mapTree{"a": file("a"), "b": file("b"), "d": dir(), "d/x": file("x"), "d/s": dir(), "d/s/y": file("y")}
	after := mapTree{"a": file("a2")}
	for name, tt := range map[string]struct {
		path string // what he works on
		work func(s *scene, dir int) error
	}{
		"write":     {"a", nil},
		"deleted":   {"b", nil},
		"beneath":   {"d/x", nil},
		"deeper":    {"d/s/y", nil},
		"added":     {"d/new", nil},
		"added low": {"d/s/new", nil},
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[bool]int{}
			for n, more := 1, true; more; n++ {
				s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
				// A descriptor of the directory, as an editor or shell has.
				at, base := filepath.Split(s.ws(tt.path))
				dir, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				check(t, err)
				calls, wrote := 0, false
				fault = func(op string) error {
					if st, _ := Status(s.req.Workspace, s.req.ID); st != Committed {
						return nil
					}
					if calls++; calls != n || op == "fsync" && calls > 1 {
						return nil
					}
					fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
					if err != nil {
						return nil // it is gone: he knows
					}
					defer unix.Close(fd)
					wrote = true
					_, err = unix.Write(fd, []byte("the user's"))
					return err
				}
				_, err = Apply(context.Background(), s.req)
				fault = nil
				unix.Close(dir)
				more = calls >= n && n < 200
				var conflict *ConflictError
				if errors.As(err, &conflict) {
					seen[true]++
					data, err := os.ReadFile(s.ws(tt.path))
					if err != nil || wrote && string(data) != "the user's" {
						t.Errorf("call %d: the workspace has %q, %v", n, data, err)
					}
					for _, p := range []string{"a", "b", "d/x", "d/s/y"} {
						want := before[p].Data
						if p == tt.path {
							continue
						}
						if data, err := os.ReadFile(s.ws(p)); err != nil || string(data) != want {
							t.Errorf("call %d: %s is %q, %v", n, p, data, err)
						}
					}
				} else if check(t, err); true {
					seen[false]++
				}
				s.close()
			}
			if seen[true] == 0 {
				t.Errorf("never seen: %v", seen)
			}
			t.Logf("conflicts at %d calls, none at %d", seen[true], seen[false])
		})
	}
}
