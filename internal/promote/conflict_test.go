//go:build linux

package promote

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

func TestConflicts(t *testing.T) {
	put := func(rel, data string) func(*testing.T, *scene) {
		return func(t *testing.T, s *scene) { check(t, os.WriteFile(s.ws(rel), []byte(data), 0o644)) }
	}
	before := mapTree{
		"f": file("old"), "g": file("g"), "mode": file("m"), "del": file("d"), "l": sym("f"),
		"d": dir(), "d/in": file("in"), "d/sub": dir(), "d/sub/x": file("x"),
		"gone": dir(), "gone/a": file("a"), "gone/b": dir(), "gone/b/c": file("c"),
		"swap": file("swap"), "dirfile": dir(), "dirfile/x": file("x"),
	}
	after := mapTree{
		"f": file("new"), "g": file("g"), "mode": file("m").mode(0o755), "l": sym("g"), "new": file("new"),
		"d": dir(), "d/in": file("in2"), "d/sub": dir(), "d/sub/x": file("x2"), "nd": dir(), "nd/x": file("x"),
		"swap": dir(), "swap/x": file("x"), "dirfile": file("file"),
	}
	tests := []struct {
		name string
		host func(*testing.T, *scene)
		want []string // conflicting paths; nil: promoted
	}{
		{"nothing", func(*testing.T, *scene) {}, nil},
		{"untouched file edited", put("g", "host"), nil},
		{"edited in place", put("f", "host"), []string{"f"}},
		{"edited with its time put back", func(t *testing.T, s *scene) {
			st, err := os.Stat(s.ws("f"))
			check(t, err)
			put("f", "hos")(t, s)
			check(t, os.Chtimes(s.ws("f"), st.ModTime(), st.ModTime()))
		}, []string{"f"}},
		{"renamed over", func(t *testing.T, s *scene) {
			put("g2", "old")(t, s)
			check(t, os.Rename(s.ws("g2"), s.ws("f")))
		}, []string{"f"}},
		{"same content on both sides", put("f", "new"), nil},
		{"created on both sides", put("new", "host"), []string{"new"}},
		{"created alike", put("new", "new"), nil},
		{"created with another mode", func(t *testing.T, s *scene) {
			put("new", "new")(t, s)
			check(t, os.Chmod(s.ws("new"), 0o600))
		}, []string{"new"}},
		{"directory created on both sides", func(t *testing.T, s *scene) {
			check(t, os.Mkdir(s.ws("nd"), 0o755))
		}, nil},
		{"deleted on the host", func(t *testing.T, s *scene) { check(t, os.Remove(s.ws("f"))) }, []string{"f"}},
		{"deleted on both sides", func(t *testing.T, s *scene) { check(t, os.Remove(s.ws("del"))) }, nil},
		{"edited what the box deleted", put("del", "host"), []string{"del"}},
		{"chmod on the host", func(t *testing.T, s *scene) { check(t, os.Chmod(s.ws("mode"), 0o600)) }, []string{"mode"}},
		{"same chmod", func(t *testing.T, s *scene) { check(t, os.Chmod(s.ws("mode"), 0o755)) }, nil},
		{"link retargeted", func(t *testing.T, s *scene) {
			check(t, os.Remove(s.ws("l")))
			check(t, os.Symlink("elsewhere", s.ws("l")))
		}, []string{"l"}},
		{"link retargeted alike", func(t *testing.T, s *scene) {
			check(t, os.Remove(s.ws("l")))
			check(t, os.Symlink("g", s.ws("l")))
		}, nil},
		{"file became a directory", func(t *testing.T, s *scene) {
			check(t, os.Remove(s.ws("f")))
			check(t, os.Mkdir(s.ws("f"), 0o755))
		}, []string{"f"}},
		{"new entry in a deleted directory", put("gone/b/stranger", "s"), []string{"gone/b/stranger"}},
		{"new entry in a directory made a file", put("dirfile/stranger", "s"), []string{"dirfile/stranger"}},
		{"edit in a deleted directory", put("gone/b/c", "host"), []string{"gone/b/c"}},
		{"deleted directory gone on both sides", func(t *testing.T, s *scene) { check(t, os.RemoveAll(s.ws("gone"))) }, nil},
		{"parent swapped for a copy", func(t *testing.T, s *scene) {
			// The files keep inode and ctime; only the directory tells.
			check(t, os.Mkdir(s.ws("d2"), 0o755))
			check(t, os.Rename(s.ws("d/sub"), s.ws("d2/sub")))
			check(t, os.Rename(s.ws("d"), s.ws("d-old")))
			check(t, os.Rename(s.ws("d2"), s.ws("d")))
		}, []string{"d/in", "d/sub/x"}},
		{"parent made a symlink", func(t *testing.T, s *scene) {
			check(t, os.Rename(s.ws("d"), s.ws("real")))
			check(t, os.Symlink("real", s.ws("d")))
		}, []string{"d/in", "d/sub/x"}},
		{"parent made a symlink out", func(t *testing.T, s *scene) {
			check(t, os.Rename(s.ws("d"), filepath.Join(s.dir, "outside")))
			check(t, os.Symlink(filepath.Join(s.dir, "outside"), s.ws("d")))
		}, []string{"d/in", "d/sub/x"}},
		{"open for writing", func(t *testing.T, s *scene) {
			f, err := os.OpenFile(s.ws("f"), os.O_WRONLY, 0)
			check(t, err)
			t.Cleanup(func() { f.Close() })
		}, []string{"f"}},
		{"two at once", func(t *testing.T, s *scene) { put("f", "host")(t, s); put("new", "host")(t, s) }, []string{"f", "new"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
			defer s.close()
			s.req.Changes.Ancestors = map[string]uint64{}
			for _, d := range []string{".", "d", "d/sub", "gone", "gone/b"} {
				st, err := fsat.Lstat(s.req.Workspace, d)
				check(t, err)
				s.req.Changes.Ancestors[d] = st.Ino
			}
			tt.host(t, s)
			host := snap(t, s.ws(""))
			_, err := Apply(context.Background(), s.req)
			var conflict *ConflictError
			if tt.want == nil {
				check(t, err)
				return
			}
			if !errors.As(err, &conflict) {
				t.Fatalf("no conflict but %v", err)
			}
			var got []string
			for _, c := range conflict.Conflicts {
				got = append(got, c.Path)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("%v: %s", err, d)
			}
			if d := cmp.Diff(host, snap(t, s.ws(""))); d != "" {
				t.Errorf("a conflict touched the workspace: %s", d)
			}
			if _, err := os.Lstat(s.ws(home)); !errors.Is(err, os.ErrNotExist) {
				t.Error("a conflict left a .hutch")
			}
			s.wantLayer(t)
		})
	}
}

// TestConflictWhileStaging edits the host between the first look and the
// commit point, at each call.
func TestConflictWhileStaging(t *testing.T) {
	before := mapTree{"f": file("old"), "d": dir(), "d/x": file("x")}
	after := mapTree{"f": file("new"), "n": file("n")}
	for name, edit := range map[string]func(s *scene) error{
		"edit":   func(s *scene) error { return os.WriteFile(s.ws("f"), []byte("host"), 0o644) },
		"create": func(s *scene) error { return os.WriteFile(s.ws("n"), []byte("host"), 0o644) },
		"insert": func(s *scene) error { return os.WriteFile(s.ws("d/y"), []byte("host"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
				calls, committed := 0, false
				fault = func(op string) error {
					calls++
					if op == "rename" {
						committed = committed || calls <= n
						return nil
					}
					if calls == n {
						return edit(s)
					}
					return nil
				}
				_, err := Apply(context.Background(), s.req)
				fault = nil
				s.close()
				if committed {
					if n < 5 {
						t.Fatalf("only %d points", n)
					}
					return
				}
				var conflict *ConflictError
				if !errors.As(err, &conflict) {
					t.Fatalf("call %d: no conflict but %v", n, err)
				}
				s.wantLayer(t)
			}
		})
	}
}

// TestChangedAfterCommit edits a target after the commit point: the whole
// promotion goes back, and the edit stays.
func TestChangedAfterCommit(t *testing.T) {
	before := mapTree{"a": file("a"), "b": file("b"), "c": file("c")}
	after := mapTree{"a": file("a2"), "b": file("b2"), "c": file("c2")}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	fault = func(op string) error {
		if op == "exchange" {
			fault = nil
			return os.WriteFile(s.ws("c"), []byte("the user's"), 0o644)
		}
		return nil
	}
	defer func() { fault = nil }()
	res, err := Apply(context.Background(), s.req)
	var conflict *ConflictError
	if !errors.As(err, &conflict) || conflict.Conflicts[0].Path != "c" || !res.RolledBack {
		t.Fatalf("%+v, %v", res, err)
	}
	s.before["c"] = file("the user's")
	s.want(t, "before")
	s.wantLayer(t)
}

func TestHostile(t *testing.T) {
	outside := func(t *testing.T, s *scene) {
		check(t, os.Mkdir(filepath.Join(s.dir, "outside"), 0o755))
		check(t, os.WriteFile(filepath.Join(s.dir, "outside", "f"), []byte("outside"), 0o644))
	}
	entry := func(path string) changeset.Entry {
		return changeset.Entry{Path: path, Op: changeset.Created, After: stateOf(file("new")), Source: changeset.Layer, SourcePath: "f"}
	}
	changed := func(e changeset.Entry, f func(*changeset.Entry)) changeset.Entry { f(&e); return e }
	for name, e := range map[string]changeset.Entry{
		"dotdot":          entry("../outside/f"),
		"inner dotdot":    entry("d/../../outside/f"),
		"absolute":        entry("/etc/x"),
		"nul":             entry("a\x00b"),
		"empty":           entry(""),
		"double slash":    entry("d//x"),
		"hutch":           entry(".hutch"),
		"in hutch":        entry(".hutch/txn-x/journal"),
		"hutch below":     entry("sub/.hutch/txn-x/journal"),
		"root":            entry("."),
		"through a link":  entry("out/new"),
		"missing parent":  entry("none/new"),
		"file as parent":  entry("f/new"),
		"fifo":            changed(entry("x"), func(e *changeset.Entry) { e.After.Type = fsat.FIFO }),
		"device":          changed(entry("x"), func(e *changeset.Entry) { e.After.Type = fsat.CharDevice }),
		"source dotdot":   changed(entry("x"), func(e *changeset.Entry) { e.SourcePath = "../outside/f" }),
		"source symlink":  changed(entry("x"), func(e *changeset.Entry) { e.SourcePath = "evil" }),
		"source via link": changed(entry("x"), func(e *changeset.Entry) { e.SourcePath = "evildir/f" }),
		"source a fifo":   changed(entry("x"), func(e *changeset.Entry) { e.SourcePath = "fifo" }),
		"source in hutch": changed(entry("x"), func(e *changeset.Entry) { e.Source, e.SourcePath = changeset.Workspace, ".hutch/x" }),
		"source another":  changed(entry("x"), func(e *changeset.Entry) { e.After.Size = 99 }),
		"no state":        {Path: "x", Op: changeset.Created},
		"two states":      changed(entry("x"), func(e *changeset.Entry) { e.Op = changeset.Deleted }),
	} {
		t.Run(name, func(t *testing.T) {
			before := mapTree{"f": file("old"), "d": dir(), "out": sym("../outside")}
			after := mapTree{"f": file("new"), "d": dir(), "out": sym("../outside")}
			s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
			defer s.close()
			outside(t, s)
			layer := filepath.Join(s.dir, "layer")
			check(t, os.Symlink("../outside/f", filepath.Join(layer, "evil")))
			check(t, os.Symlink("../outside", filepath.Join(layer, "evildir")))
			check(t, unix.Mkfifo(filepath.Join(layer, "fifo"), 0o644))
			s.req.Changes.Entries = []changeset.Entry{e}
			if _, err := Apply(context.Background(), s.req); err == nil {
				t.Error("promoted")
			}
			s.want(t, "before")
			data, err := os.ReadFile(filepath.Join(s.dir, "outside", "f"))
			check(t, err)
			names, err := os.ReadDir(filepath.Join(s.dir, "outside"))
			check(t, err)
			if string(data) != "outside" || len(names) != 1 {
				t.Error("something outside was touched")
			}
		})
	}
	for _, id := range []string{"", "a/b", "..", "A", "a b", "x\x00"} {
		if _, err := Apply(context.Background(), Request{ID: id, Changes: &changeset.Changeset{}}); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
}

// TestPrivileges holds that no setuid or setgid bit, no capability and no mark
// of overlayfs comes out of a layer.
func TestPrivileges(t *testing.T) {
	before := mapTree{"mod": file("m"), "chmod": file("c"), "shared": dir(), "grp": dir()}
	after := mapTree{
		"mod": file("m2").mode(0o4755), "chmod": file("c").mode(0o6755), "new": file("n").mode(0o2755),
		"dir": dir().mode(0o2755), "shared": dir().mode(0o3775), "grp": dir().mode(0o2775), "marked": file("x"),
	}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	check(t, os.Chmod(s.ws("grp"), 0o755|os.ModeSetgid)) // a directory that had it keeps it
	s.req.Stamp = stamp(t, s.ws(""))
	layer := filepath.Join(s.dir, "layer")
	for _, name := range []string{"user.overlay.opaque", "user.overlay.overlay.redirect", "trusted.overlay.redirect"} {
		if err := unix.Setxattr(filepath.Join(layer, "marked"), name, []byte("y"), 0); err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		// cap_net_raw+ep, revision 2
		check(t, unix.Setxattr(filepath.Join(layer, "new"), "security.capability",
			[]byte{1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0))
	}
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	for p, n := range s.after {
		n.Mode &= 0o1777
		if p == "grp" {
			n.Mode |= 0o2000
		}
		s.after[p] = n
	}
	s.want(t, "after")
	if _, err := unix.Getxattr(s.ws("new"), "security.capability", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("a capability came out: %v", err)
	}
}

// TestACL holds that the ACL of a replaced file is the host's, and that a box
// cannot bring one.
func TestACL(t *testing.T) {
	// Version 2; user::rw-, user:12345:r--, group::r--, mask::r--, other::r--.
	acl := func(id byte) []byte {
		return []byte{2, 0, 0, 0,
			1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, id, 48, 0, 0,
			4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255}
	}
	base := os.TempDir() // tmpfs may have no ACLs for a user
	d, err := os.MkdirTemp(base, "promote")
	check(t, err)
	defer purge(t, d)
	before := mapTree{"same": file("1"), "other": file("1")}
	after := mapTree{"same": file("2"), "other": file("2"), "new": file("n")}
	s := newScene(t, filepath.Join(d, "s"), before, after, "")
	defer s.close()
	set := func(path string, id byte) {
		if err := unix.Setxattr(path, aclXattr, acl(id), 0); errors.Is(err, unix.ENOTSUP) {
			t.Skip("no ACLs here")
		} else {
			check(t, err)
		}
	}
	set(s.ws("same"), 1)
	set(s.ws("other"), 1)
	set(filepath.Join(s.dir, "layer/same"), 1)
	set(filepath.Join(s.dir, "layer/other"), 2)
	set(filepath.Join(s.dir, "layer/new"), 2)
	s.req.Stamp = stamp(t, s.ws(""))
	_, err = Apply(context.Background(), s.req)
	check(t, err)
	s.want(t, "after")
	got := func(name string) string {
		buf := make([]byte, 256)
		n, err := unix.Getxattr(s.ws(name), aclXattr, buf)
		if errors.Is(err, unix.ENODATA) {
			return ""
		}
		check(t, err)
		return string(buf[:n])
	}
	if got("same") != string(acl(1)) || got("other") != string(acl(1)) || got("new") != "" {
		t.Errorf("ACLs: %q, %q, %q", got("same"), got("other"), got("new"))
	}
}

// TestRootInUsersWorkspace holds that what root promotes in a user's workspace
// does not lock the user out.
func TestRootInUsersWorkspace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := smallScene(t)
	check(t, os.Chown(s.ws(""), 1000, 1000))
	s.req.Stamp = stamp(t, s.ws(""))
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	for _, path := range []string{"", "/txn-t1", "/txn-t1/done"} {
		var st unix.Stat_t
		check(t, unix.Lstat(s.ws(home)+path, &st))
		if st.Uid != 1000 {
			t.Errorf("%q belongs to %d", path, st.Uid)
		}
	}
}
