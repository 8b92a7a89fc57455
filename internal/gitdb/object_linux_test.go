package gitdb

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// history makes some commits of files of every kind and returns the last.
func history(r testRepo, seed uint64, commits int) {
	r.t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 0))
	names := []string{"a", "a.b", "a/b", "a/c/d", "a-b", "a0", "dir/x", "dir/y/z", "dir.x", "ä\xff", "new\nline"}
	for i := range commits {
		for range 1 + rnd.IntN(4) {
			name := names[rnd.IntN(len(names))]
			path := filepath.Join(r.path, name)
			os.RemoveAll(path)
			for dir := filepath.Dir(path); dir != r.path; dir = filepath.Dir(dir) {
				if st, err := os.Lstat(dir); err == nil && !st.IsDir() {
					os.Remove(dir)
				}
			}
			switch rnd.IntN(5) {
			case 0: // stays deleted
			case 1:
				os.MkdirAll(filepath.Dir(path), 0o755)
				os.Symlink(fmt.Sprint("to ", rnd.IntN(3)), path)
			default:
				var text strings.Builder
				for line := range 200 {
					fmt.Fprintf(&text, "%s line %d of %d\n", name, line, rnd.IntN(8)/7)
				}
				r.write(name, text.String())
				if rnd.IntN(3) == 0 {
					os.Chmod(path, 0o755)
				}
			}
		}
		r.commit(fmt.Sprint("commit ", i))
	}
}

// sameObjects compares every object that git knows of.
func sameObjects(t *testing.T, git testRepo, r *Repo) {
	t.Helper()
	n := 0
	for line := range strings.Lines(git.git("cat-file", "--batch-all-objects", "--batch-check")) {
		n++
		f := strings.Fields(line)
		kind, content, err := r.Object(oid(t, f[0]), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if kind.String() != f[1] || fmt.Sprint(len(content)) != f[2] {
			t.Fatalf("%v: %v of %d bytes", f, kind, len(content))
		}
		if f[1] != "tree" { // git prints those in another form
			if want := git.git("cat-file", f[1], f[0]); strings.TrimSuffix(string(content), "\n") != want {
				t.Fatalf("%v: another content", f)
			}
			continue
		}
		entries, err := r.Tree(oid(t, f[0]))
		if err != nil {
			t.Fatal(err)
		}
		var ours strings.Builder
		for _, e := range entries {
			kind := Blob
			if e.isTree() {
				kind = Tree
			} else if e.Mode == ModeGitlink {
				kind = Commit
			}
			fmt.Fprintf(&ours, "%06o %v %v\t%s\x00", e.Mode, kind, e.ID, e.Name)
		}
		if want := git.git("ls-tree", "-z", f[0]); ours.String() != want {
			t.Fatalf("tree %s:\n%q\n%q", f[0], ours.String(), want)
		}
	}
	if n == 0 {
		t.Fatal("no object was compared")
	}
}

func TestObjects(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			git := newTestRepo(t, "--object-format="+format)
			history(git, 1, 12)
			git.git("tag", "-a", "-m", "tag", "v1")
			git.git("tag", "-a", "-m", "tag of a tag", "v2", "v1")
			sameObjects(t, git, git.open())

			git.git("gc", "-q", "--aggressive", "--prune=now")
			if left, _ := filepath.Glob(filepath.Join(git.path, ".git/objects/??/*")); len(left) != 0 {
				t.Fatalf("not everything is packed: %v", left)
			}
			idx, _ := filepath.Glob(filepath.Join(git.path, ".git/objects/pack/*.idx"))
			if !strings.Contains(git.git("verify-pack", "-v", idx[0]), "chain length = 2") {
				t.Fatal("the pack has no chains of deltas: the test shows nothing")
			}
			r := git.open()
			sameObjects(t, git, r)

			// A second pack, of deltas against names.
			history(git, 2, 6)
			git.git("-c", "repack.useDeltaBaseOffset=false", "repack", "-a", "-d", "-q", "-f")
			sameObjects(t, git, r) // opened before: finds the new pack
			sameObjects(t, git, git.open())

			id, kind, err := r.Peel(oid(t, git.git("rev-parse", "v2")))
			if err != nil || kind != Commit || id.String() != git.git("rev-parse", "v2^{commit}") {
				t.Errorf("peeled to %v %v, %v", kind, id, err)
			}
			tree, err := r.TreeOf(oid(t, git.git("rev-parse", "v2")))
			if err != nil || tree.String() != git.git("rev-parse", "v2^{tree}") {
				t.Errorf("tree %v, %v", tree, err)
			}
		})
	}
}

func TestLargeOffsets(t *testing.T) {
	git := newTestRepo(t)
	history(git, 3, 4)
	git.git("-c", "pack.indexVersion=2", "repack", "-a", "-d", "-q")
	idx, _ := filepath.Glob(filepath.Join(git.path, ".git/objects/pack/*.idx"))
	git.git("index-pack", "--index-version=2,0x40", "-o", idx[0]+".new", strings.TrimSuffix(idx[0], "idx")+"pack")
	if err := os.Rename(idx[0]+".new", idx[0]); err != nil {
		t.Fatal(err)
	}
	sameObjects(t, git, git.open())
}

// TestDiff compares with git diff-tree over random histories.
func TestDiff(t *testing.T) {
	seeds, commits := 3, 12
	if os.Getenv("HUTCH_PROOF") != "" {
		seeds, commits = 40, 40
	}
	for seed := range seeds {
		git := newTestRepo(t)
		history(git, uint64(100+seed), commits)
		r := git.open()
		all := strings.Fields(git.git("rev-list", "HEAD"))
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		for range commits {
			a, b := all[rnd.IntN(len(all))], all[rnd.IntN(len(all))]
			if got, want := diffText(t, r, a, b), git.git("diff-tree", "-r", "-z", "--no-renames", a, b); got != want {
				t.Fatalf("seed %d, %s..%s:\n%q\n%q", seed, a, b, got, want)
			}
		}
		first := all[len(all)-1]
		n := 0
		tree, err := r.TreeOf(oid(t, first))
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range r.Diff("", tree) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if want := strings.Count(git.git("ls-tree", "-r", "-z", first), "\x00"); n != want {
			t.Errorf("%d files in the first commit, want %d", n, want)
		}
	}
}

func diffText(t *testing.T, r *Repo, a, b string) string {
	t.Helper()
	var trees [2]OID
	for i, commit := range []string{a, b} {
		var err error
		if trees[i], err = r.TreeOf(oid(t, commit)); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	for c, err := range r.Diff(trees[0], trees[1]) {
		if err != nil {
			t.Fatal(err)
		}
		status := "M"
		zero := OID(make([]byte, r.Format()))
		switch {
		case c.OldID == "":
			status, c.OldID = "A", zero
		case c.NewID == "":
			status, c.NewID = "D", zero
		case c.OldMode&ModeType != c.NewMode&ModeType:
			status = "T"
		}
		fmt.Fprintf(&out, ":%06o %06o %v %v %s\x00%s\x00", c.OldMode, c.NewMode, c.OldID, c.NewID, status, c.Path)
	}
	return out.String()
}

func TestDiffReadsNoEqualSubtree(t *testing.T) {
	git := newTestRepo(t)
	for i := range 50 {
		git.write(fmt.Sprintf("same%d/file", i), "x")
	}
	git.write("dir/file", "old")
	a := git.commit("old")
	git.write("dir/file", "new")
	b := git.commit("new")
	r := git.open()
	before := r.budget
	diffText(t, r, a, b)
	if read := (before - r.budget) / minCost; read > 10 {
		t.Errorf("%d objects read, of which 8 are needed", read)
	}
	for range r.Diff(oid(t, git.git("rev-parse", a+"^{tree}")), "") {
		break // must not yield again
	}
}

// plant writes a loose object whose name is not checked.
func plant(t *testing.T, git testRepo, name OID, header string, content []byte) {
	t.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write([]byte(header + "\x00"))
	w.Write(content)
	w.Close()
	dir := filepath.Join(git.path, ".git/objects", name.String()[:2])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name.String()[2:])
	os.Remove(path)
	if err := os.WriteFile(path, z.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestForgedObjects(t *testing.T) {
	git := newTestRepo(t)
	git.write("f", "content")
	git.commit("one")
	id := oid(t, git.git("rev-parse", "HEAD:f"))
	fails := func(what string, want error) {
		t.Helper()
		if _, err := git.open().Blob(id, 1<<20); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	plant(t, git, id, "blob 4", []byte("evil"))
	fails("another content", ErrCorrupt)
	plant(t, git, id, "blob 8", []byte("content"))
	fails("a wrong size", ErrCorrupt)
	plant(t, git, id, "tree 7", []byte("content"))
	fails("another kind", ErrCorrupt)
	plant(t, git, id, "blob 9223372036854775807", []byte("content"))
	fails("a huge size", ErrTooLarge)
	plant(t, git, id, strings.Repeat("x", 1<<20), nil)
	fails("no header", ErrCorrupt)

	path := filepath.Join(git.path, ".git/objects", id.String()[:2], id.String()[2:])
	os.Remove(path)
	if err := unix.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	fails("a FIFO", ErrUnsupported)
	os.Remove(path)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	fails("a symlink", ErrUnsupported)
	os.Remove(path)
	fails("nothing", ErrNotFound)
	if err := os.WriteFile(filepath.Join(git.path, ".git/objects/info/alternates"), []byte("/elsewhere\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	fails("an object of elsewhere", ErrAlternates)
}

func TestBombs(t *testing.T) {
	git := newTestRepo(t)
	r := git.open()
	peak := func(what string, read func() error) {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := read()
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: no error", what)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
			t.Errorf("%s: %d MiB allocated", what, used>>20)
		}
	}
	id := SHA1.Name(Blob, []byte("bomb"))
	zeros := make([]byte, 32<<20)
	plant(t, git, id, "blob 100", zeros)
	peak("a stream longer than it says", func() error { _, err := r.Blob(id, 1<<20); return err })
	plant(t, git, id, fmt.Sprint("blob ", len(zeros)), zeros)
	peak("a large blob", func() error { _, err := r.Blob(id, 1<<20); return err })

	delta := binary.AppendUvarint(binary.AppendUvarint(nil, 10), 1<<40)
	peak("a delta that says it makes much", func() error { _, err := applyDelta(make([]byte, 10), delta, maxObject); return err })
	delta = append(binary.AppendUvarint(binary.AppendUvarint(nil, 10), maxObject), 1, 'x')
	peak("a delta that makes little", func() error { _, err := applyDelta(make([]byte, 10), delta, maxObject); return err })

	// Each tree holds the one before ten times: 10^30 paths.
	tree := []byte{}
	name := SHA1.Name(Tree, tree)
	plant(t, git, name, "tree 0", tree)
	leaf := SHA1.Name(Blob, nil)
	for level := range 30 {
		tree = nil
		for i := range 10 {
			if level == 0 {
				tree = fmt.Appendf(tree, "100644 %d\x00%s", i, string(leaf))
			} else {
				tree = fmt.Appendf(tree, "40000 %d\x00%s", i, string(name))
			}
		}
		name = SHA1.Name(Tree, tree)
		plant(t, git, name, fmt.Sprint("tree ", len(tree)), tree)
	}
	r.budget = 10_000 * minCost
	var last error
	for _, err := range r.Diff("", name) {
		last = err
	}
	if !errors.Is(last, ErrTooLarge) {
		t.Errorf("a tree of trees: %v", last)
	}
}

// TestDeltaLoop has two deltas that each name the other as their base.
func TestDeltaLoop(t *testing.T) {
	git := newTestRepo(t)
	ids := []OID{OID("\x01" + strings.Repeat("a", 19)), OID("\x02" + strings.Repeat("b", 19))}
	pack := append([]byte("PACK"), 0, 0, 0, 2, 0, 0, 0, 2)
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	w.Write([]byte{1, 1, 1, 'x'})
	w.Close()
	var offsets []uint32
	for i := range ids {
		offsets = append(offsets, uint32(len(pack)))
		pack = append(pack, byte(refDelta)<<4|4)
		pack = append(pack, ids[1-i]...)
		pack = append(pack, z.Bytes()...)
	}
	pack = append(pack, make([]byte, 20)...)
	idx := append([]byte("\xfftOc"), 0, 0, 0, 2)
	for b := range 256 {
		idx = binary.BigEndian.AppendUint32(idx, uint32(min(b, 2)))
	}
	idx = append(idx, ids[0]+ids[1]...)
	idx = append(idx, make([]byte, 8)...)
	for _, off := range offsets {
		idx = binary.BigEndian.AppendUint32(idx, off)
	}
	idx = append(idx, make([]byte, 40)...)
	for suffix, content := range map[string][]byte{"pack": pack, "idx": idx} {
		if err := os.WriteFile(filepath.Join(git.path, ".git/objects/pack/pack-x."+suffix), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := git.open().Blob(ids[0], 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a loop of deltas: %v", err)
	}
}

func TestForgedTrees(t *testing.T) {
	id := strings.Repeat("x", 20)
	for _, tree := range []string{
		"100644 a/b\x00" + id, "100644 ..\x00" + id, "100644 .\x00" + id, "100644 \x00" + id,
		"100644 b\x00" + id + "100644 a\x00" + id,
		"100644 a\x00" + id + "100644 a\x00" + id,
		"100644 a\x00" + id + "100644 a.b\x00" + id + "40000 a\x00" + id,
		"040000 a\x00" + id, "120777 a\x00" + id, "20666 a\x00" + id, "100644 a", "100644 a\x00" + id[1:], "x a\x00" + id,
	} {
		if entries, err := parseTree(SHA1, []byte(tree)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v, %v", tree, entries, err)
		}
	}
}

// TestTagThatLies calls a tree a blob, so that nobody would look into it.
func TestTagThatLies(t *testing.T) {
	git := newTestRepo(t)
	git.write("f", "x")
	git.commit("one")
	tree := git.git("rev-parse", "HEAD^{tree}")
	tag := []byte("object " + tree + "\ntype blob\ntag t\ntagger a <a@b> 0 +0000\n\n")
	id := SHA1.Name(Tag, tag)
	plant(t, git, id, fmt.Sprint("tag ", len(tag)), tag)
	if tree, err := git.open().TreeOf(id); !errors.Is(err, ErrCorrupt) {
		t.Errorf("tree %v, %v", tree, err)
	}
}

func TestUnsupported(t *testing.T) {
	git := newTestRepo(t)
	if err := os.Mkdir(filepath.Join(git.path, ".git/reftable"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(git.path, ".git/reftable/tables.list"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Dir{FD: openDir(t, filepath.Join(git.path, ".git"))}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("reftable: %v", err)
	}
}

func FuzzApplyDelta(f *testing.F) {
	f.Add([]byte("base content"), []byte("\x0c\x05\x01x\x90\x04"))
	f.Fuzz(func(t *testing.T, base, delta []byte) {
		out, err := applyDelta(base, delta, 1<<20)
		if err == nil && len(out) > 1<<20 {
			t.Error("beyond the limit")
		}
	})
}

func FuzzTree(f *testing.F) {
	f.Add([]byte("100644 a\x00" + strings.Repeat("x", 20)))
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := parseTree(SHA1, content)
		if err != nil {
			return
		}
		var again []byte
		for i := range entries {
			again = fmt.Appendf(again, "%o %s\x00%s", entries[i].Mode, entries[i].Name, string(entries[i].ID))
		}
		if !bytes.Equal(again, content) {
			t.Errorf("%q read as %v", content, entries)
		}
		if !slices.IsSortedFunc(entries, func(a, b TreeEntry) int { return compareEntries(&a, &b) }) {
			t.Errorf("%v is not sorted", entries)
		}
	})
}

func FuzzCommit(f *testing.F) {
	f.Add([]byte("tree " + strings.Repeat("a", 40) + "\nparent " + strings.Repeat("b", 40) + "\nauthor x"))
	f.Fuzz(func(t *testing.T, content []byte) {
		if c, err := parseCommit(SHA1, content); err == nil && len(c.Tree) != 20 {
			t.Errorf("%q: %v", content, c)
		}
		parseTag(SHA1, content)
		parseLooseHeader(string(content))
	})
}

func FuzzPackEntry(f *testing.F) {
	f.Add([]byte{0xe5, 0x0a, 0x80, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := parsePackEntry(SHA1, b); err == nil && (e.size < 0 || e.back < 0 || e.headLen > len(b)) {
			t.Errorf("%x: %+v", b, e)
		}
	})
}

func FuzzPackIndex(f *testing.F) {
	git := newTestRepo(f)
	history(git, 1, 2)
	git.git("gc", "-q")
	paths, _ := filepath.Glob(filepath.Join(git.path, ".git/objects/pack/*.idx"))
	good, err := os.ReadFile(paths[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:1100])
	f.Fuzz(func(t *testing.T, idx []byte) {
		if err := os.WriteFile(paths[0]+".new", idx, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(paths[0]+".new", paths[0]); err != nil {
			t.Fatal(err)
		}
		r, err := Open(Dir{FD: openDir(t, filepath.Join(git.path, ".git"))})
		if err != nil {
			return
		}
		defer r.Close()
		for _, p := range r.packs {
			for i := range min(p.count(), 100) {
				if id, err := p.oid(i); err == nil {
					r.Object(id, 1<<20)
				}
			}
		}
	})
}

func TestTimeOfACommit(t *testing.T) {
	head := "tree " + strings.Repeat("0f", 20) + "\nauthor A <a> 1 +0000\n"
	for rest, want := range map[string]int64{
		"committer B <b@c> 1234567890 -0800\n\nmessage\n":     1234567890,
		"committer B > 7 <b> 5 +0000\nencoding x\n\nm":        5,
		"committer  <> 6 +0000\n\n":                           6,
		"\ncommitter B <b> 8 +0000\n":                         0, // the message
		"committer B <b>\n\n":                                 0,
		"committer B <b> -9 +0000\n\n":                        0,
		"committer B <b> 99999999999999999999999 +0000\n\n":   0,
		"committer 4\n\ncommitter B <b> 8 +0000\n":            0, // no git writes this
		"gpgsig x\n committer B <b> 8\ncommitter <> 3 +1\n\n": 3,
	} {
		if c, err := parseCommit(SHA1, []byte(head+rest)); err != nil || c.Time != want {
			t.Errorf("%q: %d, %v; want %d", rest, c.Time, err, want)
		}
	}
}
