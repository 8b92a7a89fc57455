//go:build linux

package promote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st
}

// TestHardLinks holds that two names of one file in the layer arrive as one
// file, and that a file of the host with other names is not written through.
func TestHardLinks(t *testing.T) {
	before := mapTree{"a": file("old"), "b": file("old"), "out": file("shared"), "mode": file("m"), "in1": file("x"), "in2": file("x")}
	after := mapTree{
		"a": file("new"), "b": file("new"), "c": file("new"), "d": dir(), "d/e": file("new"),
		"out": file("changed"), "mode": file("m").mode(0o755), "in1": file("y"), "in2": file("y"),
	}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "user.overlay.origin=")
	defer s.close()
	layer := filepath.Join(s.dir, "layer")
	for _, name := range []string{"b", "c", "d/e"} {
		check(t, os.Remove(filepath.Join(layer, name)))
		check(t, os.Link(filepath.Join(layer, "a"), filepath.Join(layer, name)))
		s.entry(t, name).After.Mtime, s.entry(t, name).Link = s.entry(t, "a").After.Mtime, "a"
	}
	check(t, os.Remove(filepath.Join(layer, "in2")))
	check(t, os.Link(filepath.Join(layer, "in1"), filepath.Join(layer, "in2")))
	s.entry(t, "in2").After.Mtime, s.entry(t, "in2").Link = s.entry(t, "in1").After.Mtime, "in1"
	for _, name := range []string{"out", "mode"} {
		check(t, os.Link(s.ws(name), filepath.Join(s.dir, "outside-"+name)))
	}
	check(t, os.Remove(s.ws("in2")))
	check(t, os.Link(s.ws("in1"), s.ws("in2")))
	s.entry(t, "in2").BaseIno = 0
	s.req.Stamp = stamp(t, s.ws(""))
	res, err := Apply(context.Background(), s.req)
	check(t, err)
	s.want(t, "after")
	one := statOf(t, s.ws("a"))
	if one.Nlink != 4 {
		t.Errorf("%d names of the new file, want 4", one.Nlink)
	}
	for _, name := range []string{"b", "c", "d/e"} {
		if st := statOf(t, s.ws(name)); st.Ino != one.Ino {
			t.Errorf("%q is another file", name)
		}
	}
	if a, b := statOf(t, s.ws("in1")), statOf(t, s.ws("in2")); a.Ino != b.Ino || a.Nlink != 2 {
		t.Errorf("in1 and in2 are not one file: %d, %d, %d names", a.Ino, b.Ino, a.Nlink)
	}
	data, err := os.ReadFile(filepath.Join(s.dir, "outside-out"))
	check(t, err)
	if st := statOf(t, filepath.Join(s.dir, "outside-mode")); string(data) != "shared" || st.Mode&0o777 != 0o644 {
		t.Errorf("written through: %q, mode %o", data, st.Mode)
	}
	if len(res.Notes) != 2 || !strings.HasPrefix(res.Notes[0], `"mode" has hard links outside`) || !strings.HasPrefix(res.Notes[1], `"out"`) {
		t.Errorf("%q", res.Notes)
	}
	if _, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: s.req.Key, ID: "t1"}); err != nil {
		t.Fatal(err)
	}
	s.want(t, "before")
	if a, b := statOf(t, s.ws("in1")), statOf(t, s.ws("in2")); a.Ino != b.Ino {
		t.Error("undone, in1 and in2 are not one file")
	}
}

// TestInherited holds that what is made in a setgid directory, or in one with a
// default ACL, has of it what a plain create would.
func TestInherited(t *testing.T) {
	d, err := os.MkdirTemp(os.TempDir(), "promote") // tmpfs may have no ACLs for a user
	check(t, err)
	defer purge(t, d)
	before := mapTree{"grp": dir(), "acl": dir(), "grp/old": file("1")}
	after := mapTree{
		"grp": dir(), "grp/old": file("2"), "grp/new": file("n"), "grp/d": dir(), "grp/d/e": dir(), "grp/d/e/f": file("f"),
		"acl": dir(), "acl/new": file("n"), "acl/d": dir(), "acl/d/f": file("f"),
	}
	s := newScene(t, filepath.Join(d, "s"), before, after, "")
	defer s.close()
	group := uint32(os.Getegid())
	if os.Geteuid() == 0 {
		group = 4242
		check(t, os.Chown(s.ws("grp"), 0, int(group)))
		for _, p := range []string{"grp/new", "grp/d", "grp/d/e", "grp/d/e/f"} { // as the kernel made them in the box
			s.entry(t, p).After.GID = group
		}
	}
	check(t, unix.Chmod(s.ws("grp"), 0o2755))
	// user::rwx, user:12345:rwx, group::r-x, mask::rwx, other::r-x
	acl := []byte{2, 0, 0, 0,
		1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 57, 48, 0, 0,
		4, 0, 5, 0, 255, 255, 255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255}
	if err := unix.Setxattr(s.ws("acl"), defaultACL, acl, 0); err != nil {
		t.Fatal(err)
	}
	s.req.Stamp = stamp(t, s.ws(""))
	_, err = Apply(context.Background(), s.req)
	check(t, err)
	for path, n := range s.after {
		if path == "grp" || path == "grp/d" || path == "grp/d/e" {
			n.Mode |= 0o2000
			s.after[path] = n
		}
	}
	s.want(t, "after")
	for _, p := range []string{"grp/new", "grp/d", "grp/d/e", "grp/d/e/f"} {
		if st := statOf(t, s.ws(p)); st.Gid != group {
			t.Errorf("%q has group %d", p, st.Gid)
		}
	}
	get := func(rel, name string) string {
		buf := make([]byte, 256)
		n, err := unix.Getxattr(s.ws(rel), name, buf)
		if errors.Is(err, unix.ENODATA) {
			return ""
		}
		check(t, err)
		return string(buf[:n])
	}
	for _, p := range []string{"acl/new", "acl/d", "acl/d/f"} {
		if got := get(p, aclXattr); len(got) != len(acl) || !strings.Contains(got, "\x02\x00\x07\x00\x39\x30") {
			t.Errorf("%q has ACL %q", p, got)
		}
	}
	if got := get("acl/d", defaultACL); got != string(acl) {
		t.Errorf("acl/d has default ACL %q", got)
	}
	if got := get("grp/new", aclXattr); got != "" {
		t.Errorf("grp/new has ACL %q", got)
	}
}

// TestNames holds that no name or depth that a tree can have is refused.
func TestNames(t *testing.T) {
	long := strings.Repeat("n", 255)
	deep := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 200)+"/", 20), "/") // 4019 bytes
	before := mapTree{long: file("old"), "case": file("lower"), "Case": file("upper"), "ends.": file("1"), " ": file("2")}
	after := mapTree{
		long: file("new"), strings.Repeat("m", 255): file("m"), "CASE": file("capitals"), "case": file("lower too"), "Case": file("upper"),
		"ends.": file("11"), " ": file("22"), "-rf": file("3"), "a\nb": file("4"), "\xff\xfe": file("5"), "~": file("6"),
	}
	for path := deep; path != "."; path, _ = fsat.Split(path) {
		after[path] = dir()
	}
	after[deep+"/"+strings.Repeat("f", 70)] = file("deep")
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keep ", keep), func(t *testing.T) {
			s := newDeepScene(t, before, after, deep)
			defer s.close()
			s.req.KeepLayer = keep
			_, err := Apply(context.Background(), s.req)
			check(t, err)
			fd, err := fsat.Open(s.req.Workspace, deep+"/"+strings.Repeat("f", 70), unix.O_RDONLY, 0)
			check(t, err)
			defer unix.Close(fd)
			buf := make([]byte, 8)
			if n, _ := unix.Read(fd, buf); string(buf[:n]) != "deep" {
				t.Errorf("the deep file holds %q", buf[:n])
			}
			for path, n := range after {
				if len(path) > 300 {
					continue
				}
				if data, err := os.ReadFile(s.ws(path)); n.Type == fsat.Regular && (err != nil || string(data) != n.Data) {
					t.Errorf("%q holds %q, %v", path, data, err)
				}
			}
		})
	}
}

// newDeepScene is newScene for paths that cannot be named from the root: their
// tree is made beneath descriptors.
func newDeepScene(t *testing.T, before, after mapTree, deep string) *scene {
	t.Helper()
	shallow := mapTree{}
	for path, n := range after {
		if len(path) <= 300 {
			shallow[path] = n
		}
	}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, shallow, "")
	at, err := unix.Dup(s.req.Layer)
	check(t, err)
	var entries []changeset.Entry
	path := ""
	for _, name := range strings.Split(deep, "/") {
		path = strings.TrimPrefix(path+"/"+name, "/")
		if err := unix.Mkdirat(at, name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			t.Fatal(err)
		}
		next, err := fsat.OpenDir(at, name)
		check(t, err)
		unix.Close(at)
		at = next
		if len(path) > 300 {
			entries = append(entries, changeset.Entry{Path: path, Op: changeset.Created, After: stateOf(dir()), Source: changeset.Layer, SourcePath: path})
		}
	}
	name := strings.Repeat("f", 70)
	fd, err := unix.Openat(at, name, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	check(t, err)
	_, err = unix.Write(fd, []byte("deep"))
	check(t, err)
	st, err := fsat.Fstat(fd)
	check(t, err)
	unix.Close(fd)
	unix.Close(at)
	held := stateOf(file("deep"))
	held.Mtime = st.Mtime
	entries = append(entries, changeset.Entry{Path: path + "/" + name, Op: changeset.Created, After: held, Source: changeset.Layer, SourcePath: path + "/" + name})
	s.req.Changes.Entries = mergeEntries(s.req.Changes.Entries, entries)
	return s
}

func mergeEntries(a, b []changeset.Entry) []changeset.Entry {
	var out []changeset.Entry
	for len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && a[0].Path < b[0].Path {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}

// TestClosedDirectories promotes what its owner cannot look into, and dies at
// each call of it.
func TestClosedDirectories(t *testing.T) {
	before := mapTree{"ro": dir().mode(0o555), "ro/f": file("f"), "open": dir(), "toclosed": dir(), "toclosed/f": file("f")}
	after := mapTree{
		"ro": dir().mode(0o555), "ro/f": file("f2"), "ro/new": dir().mode(0), "ro/new/in": file("in").mode(0),
		"open": dir(), "open/c": dir().mode(0), "open/c/d": dir().mode(0), "open/c/d/f": file("f"), "open/c/ro": dir().mode(0o555), "open/c/ro/g": file("g"),
		"toclosed": dir().mode(0o111), "toclosed/f": file("f"),
	}
	base, seen := tempDir(t), map[string]int{}
	for n, killed := 1, true; killed; n++ {
		s := newScene(t, filepath.Join(base, "s"), before, after, "user.overlay.origin=")
		s.save(t)
		killed = runChild(t, s, "apply", n, 0)
		for m := 1; killed && n%5 == 0 && runChild(t, s, "recover", m, 0); m++ {
		}
		got := ""
		_, err := Recover(s.req.Workspace, testKey, nil)
		check(t, err)
		if got = s.outcome(t); got != "before" && got != "after" {
			t.Fatalf("kill %d: %s", n, got)
		}
		seen[got]++
		s.remove(t)
	}
	if seen["before"] == 0 || seen["after"] == 0 {
		t.Error(seen)
	}
	t.Log(seen)
}

// TestOthersFile holds that what the user may not do is refused before
// anything is touched, with what to do.
func TestOthersFile(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may do it")
	}
	s := smallScene(t)
	e := s.entry(t, "a")
	p := &planner{plan: &plan{req: &s.req}}
	st, err := fsat.Lstat(s.req.Workspace, "a")
	check(t, err)
	st.UID, e.After.Mode = 0, 0o755
	if _, err := p.alteration(e, st); err == nil || !strings.Contains(err.Error(), "belongs to uid 0") || !strings.Contains(err.Error(), "--except") {
		t.Errorf("%v", err)
	}
}
