//go:build linux

package promote

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

func TestApply(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		for name, set := range map[string]func(*Request){
			"move":      func(*Request) {},
			"keepLayer": func(r *Request) { r.KeepLayer = true },
			"keepTimes": func(r *Request) { r.KeepTimes = true },
		} {
			t.Run(name, func(t *testing.T) {
				before, after := mixed()
				s := newScene(t, filepath.Join(base, name), before, after, "user.overlay.origin=o")
				defer s.remove(t)
				set(&s.req)
				res, err := Apply(context.Background(), s.req)
				check(t, err)
				s.want(t, "after")
				if res.Promoted != len(s.req.Changes.Entries) || !res.Durable || res.RolledBack {
					t.Errorf("result %+v, want %d promoted", res, len(s.req.Changes.Entries))
				}
				t.Log("staged by", res.StagedBy)
				if s.req.KeepLayer {
					s.wantLayer(t)
				} else if res.StagedBy != byRename {
					t.Errorf("staged by %q on one file system", res.StagedBy)
				}
				wantUnshared(t, s.ws(""))
				if p, err := Pending(s.req.Workspace); p || err != nil {
					t.Errorf("pending: %v, %v", p, err)
				}
				if st, err := Status(s.req.Workspace, "t1"); st != Done || err != nil {
					t.Errorf("status: %v, %v", st, err)
				}
				if s.req.KeepTimes {
					wantLayerTimes(t, s)
				}
			})
		}
	})
}

// wantUnshared fails when a file in the workspace has another name somewhere.
func wantUnshared(t *testing.T, root string) {
	t.Helper()
	check(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if d.IsDir() && d.Name() == home {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err == nil && d.Type().IsRegular() {
			check(t, unix.Lstat(path, &st))
			if st.Nlink != 1 {
				t.Errorf("%q has %d links", path, st.Nlink)
			}
		}
		return nil
	}))
}

func wantLayerTimes(t *testing.T, s *scene) {
	t.Helper()
	for _, e := range s.req.Changes.Entries {
		if e.After == nil || e.After.Type != fsat.Regular || e.Before != nil && e.Before.Digest == e.After.Digest {
			continue
		}
		var st unix.Stat_t
		check(t, unix.Lstat(s.ws(e.Path), &st))
		if (fsat.Time{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}) != e.After.Mtime {
			t.Errorf("%q did not keep its time", e.Path)
		}
	}
}

func TestApplyTimesKeepOrder(t *testing.T) {
	before := mapTree{"src": file("1")}
	after := mapTree{"a": file("a"), "b": file("b"), "c": file("c"), "src": file("2")}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	host := s.ws("object")
	check(t, os.WriteFile(host, nil, 0o644))
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	check(t, os.WriteFile(s.ws("later"), nil, 0o644))
	var last unix.Timespec
	for _, name := range []string{"object", "a", "b", "c", "src", "later"} {
		var st unix.Stat_t
		check(t, unix.Lstat(s.ws(name), &st))
		if st.Mtim.Nano() < last.Nano() {
			t.Errorf("%s is older than what came before it", name)
		}
		last = st.Mtim
	}
}

func TestApplyNothing(t *testing.T) {
	tr := mapTree{"a": file("a")}
	s := newScene(t, filepath.Join(tempDir(t), "s"), tr, tr, "")
	defer s.close()
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	if _, err := os.Lstat(s.ws(home)); !errors.Is(err, os.ErrNotExist) {
		t.Error("an empty promotion left a .hutch")
	}
}
