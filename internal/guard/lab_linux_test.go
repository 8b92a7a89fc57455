package guard

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// world is a workspace, a layer with what a box wrote, and a home directory.
type world struct {
	t                          testing.TB
	workspace, layer, home     string
	deleted                    []string
	allow, protect, searchPath []string
	rules                      *Rules
	overlay                    string // see Request
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	w := &world{t: t, workspace: dir + "/workspace", layer: dir + "/layer", home: dir + "/home", overlay: "user.overlay."}
	for _, dir := range []string{w.workspace, w.layer, w.home} {
		must(t, os.Mkdir(dir, 0o755))
	}
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put makes a file: "-> target" is a symlink, a text that begins with "#!" is
// executable, and one of "dir" a directory.
func put(t testing.TB, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	mode := os.FileMode(0o644)
	if strings.HasPrefix(text, "#!") {
		mode = 0o755
	}
	switch target, link := strings.CutPrefix(text, "-> "); {
	case link:
		must(t, os.Symlink(target, path))
	case text == "dir":
		must(t, os.MkdirAll(path, 0o755))
	default:
		must(t, os.WriteFile(path, []byte(text), mode))
	}
}

func (w *world) host(path, text string) *world   { put(w.t, w.workspace, path, text); return w }
func (w *world) change(path, text string) *world { put(w.t, w.layer, path, text); return w }
func (w *world) remove(path string) *world       { w.deleted = append(w.deleted, path); return w }

func stateOf(t testing.TB, path string) *changeset.State {
	t.Helper()
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	must(t, err)
	s := &changeset.State{Mode: st.Mode & 0o7777, Size: st.Size}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		s.Type = fsat.Regular
		if st.Size > 64<<20 {
			s.Digest = "blake3-sparse:x"
			break
		}
		text, err := os.ReadFile(path)
		must(t, err)
		s.Digest = fmt.Sprintf("blake3:%x", sha256.Sum256(text))
	case unix.S_IFDIR:
		s.Type, s.Size = fsat.Directory, 0
	case unix.S_IFLNK:
		s.Type, s.Size = fsat.Symlink, 0
		s.Target, err = os.Readlink(path)
		must(t, err)
	}
	return s
}

// changes builds the changeset of what was put and removed.
func (w *world) changes() *changeset.Changeset {
	w.t.Helper()
	entries := map[string]changeset.Entry{}
	must(w.t, filepath.WalkDir(w.layer, func(path string, d fs.DirEntry, err error) error {
		must(w.t, err)
		rel, _ := filepath.Rel(w.layer, path)
		if rel == "." {
			return nil
		}
		e := changeset.Entry{Path: rel, Op: changeset.Modified, Source: changeset.Layer, SourcePath: rel,
			Before: stateOf(w.t, filepath.Join(w.workspace, rel)), After: stateOf(w.t, path)}
		if e.Before == nil {
			e.Op = changeset.Created
		}
		if e.Before == nil || e.Before.Type != e.After.Type || e.Before.Digest != e.After.Digest || e.Before.Mode != e.After.Mode || e.Before.Target != e.After.Target {
			entries[rel] = e
		}
		return nil
	}))
	for _, path := range w.deleted {
		must(w.t, filepath.WalkDir(filepath.Join(w.workspace, path), func(path string, d fs.DirEntry, err error) error {
			must(w.t, err)
			rel, _ := filepath.Rel(w.workspace, path)
			if _, there := entries[rel]; !there {
				entries[rel] = changeset.Entry{Path: rel, Op: changeset.Deleted, Before: stateOf(w.t, path)}
			}
			return nil
		}))
	}
	c := &changeset.Changeset{}
	for _, e := range entries {
		c.Entries = append(c.Entries, e)
	}
	slices.SortFunc(c.Entries, func(a, b changeset.Entry) int { return strings.Compare(a.Path, b.Path) })
	return c
}

func (w *world) request() Request {
	w.t.Helper()
	open := func(path string) int {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(w.t, err)
		w.t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	return Request{Changes: w.changes(), Layer: open(w.layer), Workspace: open(w.workspace), Overlay: w.overlay, WorkspacePath: w.workspace, Home: w.home,
		SearchPath: w.searchPath, Rules: w.rules, Allow: w.allow, Protect: w.protect}
}

func (w *world) judge() []Finding {
	w.t.Helper()
	findings, err := Judge(w.request())
	must(w.t, err)
	return findings
}

// tierAt returns the tier and the row found at a path, "" for none.
func tierAt(findings []Finding, path string) (Tier, string) {
	for _, f := range findings {
		if f.Path == path {
			return f.Tier, f.Rule
		}
	}
	return "", ""
}
