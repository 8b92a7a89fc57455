package gitdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sameRefs compares with git for-each-ref, and HEAD.
func sameRefs(t *testing.T, git testRepo, r *Repo) map[string]Ref {
	t.Helper()
	refs, err := r.Refs()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]Ref{}
	var ours strings.Builder
	for _, ref := range refs {
		all[ref.Name] = ref
		if strings.HasPrefix(ref.Name, "refs/") {
			fmt.Fprintf(&ours, "%s %v %v\n", ref.Name, ref.ID, ref.Target != "")
		}
	}
	if want := git.git("for-each-ref", "--format=%(refname) %(objectname) %(if)%(symref)%(then)true%(else)false%(end)"); strings.TrimSuffix(ours.String(), "\n") != want {
		t.Fatalf("refs:\n%s\n%s", ours.String(), want)
	}
	if want := git.git("rev-parse", "HEAD"); all["HEAD"].ID.String() != want {
		t.Fatalf("HEAD is %v, want %s", all["HEAD"], want)
	}
	return all
}

func TestRefs(t *testing.T) {
	git := newTestRepo(t)
	r := git.open()
	if refs, err := r.Refs(); err != nil || len(refs) != 1 || refs[0] != (Ref{Name: "HEAD", Target: "refs/heads/main"}) {
		t.Fatalf("an unborn branch: %v, %v", refs, err)
	}
	git.write("f", "1")
	first := git.commit("one")
	git.write("f", "2")
	second := git.commit("two")
	git.git("branch", "deep/er/branch", first)
	git.git("tag", "light", first)
	git.git("tag", "-a", "-m", "x", "heavy", second)
	git.git("symbolic-ref", "refs/heads/alias", "refs/heads/deep/er/branch")
	git.git("symbolic-ref", "refs/heads/alias2", "refs/heads/alias")
	git.git("replace", second, first)
	git.git("notes", "add", "-m", "note", first)
	for _, text := range []string{"s1", "s2"} {
		git.write("f", text)
		git.git("stash", "-q")
	}
	git.git("update-ref", "ORIG_HEAD", first)
	all := sameRefs(t, git, r)
	if all["ORIG_HEAD"].ID.String() != first {
		t.Errorf("ORIG_HEAD: %v", all["ORIG_HEAD"])
	}
	if _, ok := all["refs/replace/"+second]; !ok {
		t.Error("no replacement")
	}
	stash, err := r.Stash()
	if err != nil || len(stash) != 2 || stash[0].String() != git.git("rev-parse", "stash@{0}") || stash[1].String() != git.git("rev-parse", "stash@{1}") {
		t.Errorf("stash: %v, %v", stash, err)
	}
	// What is replaced is still read under its own name.
	if c, err := r.Commit(oid(t, second)); err != nil || len(c.Parents) != 1 || c.Parents[0].String() != first {
		t.Errorf("replaced commit: %v, %v", c, err)
	}

	git.git("pack-refs", "--all")
	sameRefs(t, git, r)
	git.write("f", "3")
	git.commit("loose over packed")
	git.git("update-ref", "-d", "refs/tags/light")
	sameRefs(t, git, r)

	git.git("checkout", "-q", "--detach", first)
	sameRefs(t, git, r)

	// Files that are no refs.
	git.git("update-ref", "refs/heads/soon", first)
	for name, text := range map[string]string{"refs/heads/broken": "x", "refs/heads/x.lock": first, "refs/heads/.x": first, "COMMIT_EDITMSG": "x"} {
		if err := os.WriteFile(filepath.Join(git.path, ".git", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	refs, err := r.Refs()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(refs, Ref{Name: "refs/heads/broken"}) {
		t.Error("the broken ref is not told")
	}
	for _, ref := range refs {
		if strings.HasSuffix(ref.Name, "x") || ref.Name == "COMMIT_EDITMSG" {
			t.Errorf("%v is no ref", ref)
		}
	}
	if err := os.WriteFile(filepath.Join(git.path, ".git/refs/heads/a"), []byte("ref: refs/heads/b"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(git.path, ".git/refs/heads/b"), []byte("ref: refs/heads/a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if refs, err = r.Refs(); err != nil || !slices.Contains(refs, Ref{Name: "refs/heads/a", Target: "refs/heads/b"}) {
		t.Errorf("a loop of refs: %v", err)
	}
}

func TestWorktreeAndSubmodule(t *testing.T) {
	git := newTestRepo(t)
	git.write("f", "1")
	first := git.commit("one")
	git.write("f", "2")
	second := git.commit("two")
	tree := filepath.Join(t.TempDir(), "wt")
	git.git("worktree", "add", "-q", "-b", "other", tree, first)
	linked := testRepo{t, tree}
	linked.git("update-ref", "refs/bisect/bad", first)

	all := sameRefs(t, git, git.open())
	if all["worktrees/wt/HEAD"].ID.String() != first || all["worktrees/wt/refs/bisect/bad"].ID.String() != first || all["HEAD"].ID.String() != second {
		t.Errorf("main: %v", all)
	}
	// As the worktree sees it: its own directory over the common one.
	r := openDirs(t, linked.git("rev-parse", "--absolute-git-dir"), filepath.Join(git.path, ".git"))
	sameRefs(t, linked, r)
	index, err := r.Index()
	if err != nil || len(index.Entries) != 1 || index.Entries[0].ID.String() != git.git("rev-parse", first+":f") {
		t.Errorf("index of the worktree: %v, %v", index, err)
	}

	super := newTestRepo(t)
	super.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", git.path, "sub")
	super.commit("with a submodule")
	sub := testRepo{t, filepath.Join(super.path, "sub")}
	module := openDirs(t, sub.git("rev-parse", "--absolute-git-dir"))
	sameRefs(t, sub, module)
	entries, err := super.open().Index()
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := entries.Find("sub"); !ok || e.Mode != ModeGitlink || e.ID.String() != second {
		t.Errorf("submodule in the index: %v %v", e, ok)
	}
	sameIndexAsGit(t, super)
}

func TestForgedPackedRefs(t *testing.T) {
	id := strings.Repeat("a", 40)
	for _, text := range []string{
		id + " refs/heads/b\n" + id + " refs/heads/b\n",
		"# pack-refs with: peeled fully-peeled sorted \n" + id + " refs/heads/b\n" + id + " refs/heads/a\n",
		id + " refs/heads/../b\n", id + " HEAD\n", id + "\trefs/heads/a\n", "x refs/heads/a\n", id + " refs/heads/a", "^" + id + "\n",
	} {
		if refs, err := parsePackedRefs(SHA1, []byte(text)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v, %v", text, refs, err)
		}
	}
}

// TestLayers reads a box's layer over the host's directory, as overlayfs lays it
// out for an ordinary user.
func TestLayers(t *testing.T) {
	host := newTestRepo(t)
	host.write("f", "1")
	first := host.commit("one")
	host.git("branch", "gone")
	host.git("branch", "moved")
	host.git("branch", "kept")
	git := filepath.Join(host.path, ".git")
	upper := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(upper, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The box made a commit; its object exists in the layer alone.
	clone := newTestRepo(t)
	clone.git("-c", "protocol.file.allow=always", "pull", "-q", host.path, "main")
	clone.write("f", "2")
	second := clone.commit("two")
	for _, object := range []string{second, clone.git("rev-parse", second+"^{tree}"), clone.git("rev-parse", second+":f")} {
		name := "objects/" + object[:2] + "/" + object[2:]
		content, err := os.ReadFile(filepath.Join(clone.path, ".git", name))
		if err != nil {
			t.Fatal(err)
		}
		put(name, string(content))
	}
	put("refs/heads/moved", second+"\n")
	open := func() (*Repo, error) {
		r, err := Open(Dir{FD: openDir(t, upper), Overlay: "user.overlay."}, Dir{FD: openDir(t, git)})
		if err == nil {
			t.Cleanup(r.Close)
		}
		return r, err
	}
	refs := func() map[string]string {
		t.Helper()
		r, err := open()
		if err != nil {
			t.Fatal(err)
		}
		list, err := r.Refs()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, ref := range list {
			all[ref.Name] = ref.ID.String()
		}
		return all
	}
	want := func(what string, pairs ...string) {
		t.Helper()
		all := refs()
		for i := 0; i < len(pairs); i += 2 {
			if got := all[pairs[i]]; got != pairs[i+1] {
				t.Errorf("%s: %s is %q, want %q", what, pairs[i], got, pairs[i+1])
			}
		}
	}
	want("a moved branch", "refs/heads/moved", second, "refs/heads/kept", first, "refs/heads/gone", first, "HEAD", first)
	r, err := open()
	if err != nil {
		t.Fatal(err)
	}
	got := diffText(t, r, first, second)
	if want := clone.git("diff-tree", "-r", "-z", "--no-renames", first, second); got != want {
		t.Errorf("what the branch delivers: %q, want %q", got, want)
	}

	if os.Geteuid() == 0 {
		if err := unix.Mknod(filepath.Join(upper, "refs/heads/gone"), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
		want("a whiteout", "refs/heads/gone", "", "refs/heads/kept", first)
		if err := unix.Mknod(filepath.Join(upper, "packed-refs"), unix.S_IFCHR, 0); err != nil {
			t.Fatal(err)
		}
		host.git("pack-refs", "--all", "--no-prune")
		want("a whiteout of a file", "refs/heads/gone", "", "refs/heads/kept", first)
	}
	if err := unix.Setxattr(filepath.Join(upper, "refs/heads"), "user.overlay.opaque", []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	// Loose refs of the host are hidden; the packed ones are as the layer has them.
	if os.Geteuid() == 0 {
		want("an opaque directory", "refs/heads/moved", second, "refs/heads/kept", "")
	} else {
		want("an opaque directory", "refs/heads/moved", second, "HEAD", "")
	}
	if err := unix.Setxattr(filepath.Join(upper, "refs/heads"), "user.overlay.redirect", []byte("/x"), 0); err != nil {
		t.Fatal(err)
	}
	if r, err = open(); err == nil {
		_, err = r.Refs()
	}
	if !errors.Is(err, ErrUnsupported) {
		t.Errorf("a redirected directory: %v", err)
	}
}

func TestVerify(t *testing.T) {
	git := newTestRepo(t)
	history(git, 5, 6)
	paths := func() (paths []string) {
		top := filepath.Join(git.path, ".git")
		filepath.WalkDir(top, func(path string, e os.DirEntry, err error) error {
			rel, _ := filepath.Rel(top, path)
			paths = append(paths, rel)
			return err
		})
		return append(paths, "objects/aa/"+strings.Repeat("a", 38), "objects/pack/pack-gone.idx")
	}
	check := func(what string, want ...string) {
		t.Helper()
		found, err := git.open().Verify(paths())
		if err != nil {
			t.Fatal(what, err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: found %q, want %q", what, found, want)
		}
	}
	check("an honest repository")
	id := git.git("rev-parse", "HEAD^{tree}")
	git.git("repack", "-q", "-a")
	plant(t, git, oid(t, id), "tree 0", nil)
	check("a second copy of an object, forged", "objects/"+id[:2]+"/"+id[2:])
	git.git("prune-packed")
	check("a pack")

	idx, _ := filepath.Glob(filepath.Join(git.path, ".git/objects/pack/*.idx"))
	content, err := os.ReadFile(idx[0])
	if err != nil {
		t.Fatal(err)
	}
	content[1033] ^= 1 // in a name
	os.Remove(idx[0])
	if err := os.WriteFile(idx[0], content, 0o644); err != nil {
		t.Fatal(err)
	}
	check("a pack whose index lies", "objects/pack/"+filepath.Base(idx[0]))
	content[1033] ^= 1
	if err := os.WriteFile(idx[0], content, 0o644); err != nil {
		t.Fatal(err)
	}
	git.git("commit-graph", "write", "--reachable")
	git.git("multi-pack-index", "write")
	for name, text := range map[string]string{"objects/info/alternates": "/x", "info/grafts": "x"} {
		if err := os.WriteFile(filepath.Join(git.path, ".git", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check("what git believes unseen", "info/grafts", "objects/info/alternates", "objects/info/commit-graph", "objects/pack/multi-pack-index")
}

func FuzzPackedRefs(f *testing.F) {
	f.Add([]byte("# pack-refs with: peeled fully-peeled sorted \n" + strings.Repeat("a", 40) + " refs/heads/a\n^" + strings.Repeat("a", 40) + "\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		refs, err := parsePackedRefs(SHA1, content)
		for _, ref := range refs {
			if err == nil && (len(ref.ID) != 20 || !strings.HasPrefix(ref.Name, "refs/")) {
				t.Errorf("%v", ref)
			}
		}
		if id, target, ok := parseRef(SHA1, content); ok && (target == "") == (id == "") {
			t.Errorf("%q: %v %q", content, id, target)
		}
		parseReflog(SHA1, content)
	})
}
