package changeset

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func patchOf(t testing.TB, h *handmade) string {
	t.Helper()
	src := h.source()
	c := readSource(t, src)
	var buf strings.Builder
	must(t, Patch(&buf, c, src.Layer, src.Workspace))
	return buf.String()
}

// gitApply applies a patch to a directory, outside of any repository.
func gitApply(t testing.TB, dir, patch string, flags ...string) error {
	t.Helper()
	if !strings.Contains(patch, "diff --git ") {
		return nil // git refuses a patch of nothing, or of notes alone
	}
	cmd := exec.Command("git", append([]string{"apply", "-v", "-p1", "-"}, flags...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "LC_ALL=C", "HOME="+dir)
	cmd.Stdin = strings.NewReader(patch)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if bytes.Contains(out, []byte("offset")) || bytes.Contains(out, []byte("fuzz")) {
		return fmt.Errorf("a hunk's lines are wrong: %s", out)
	}
	return nil
}

// gitTree is what git knows of a tree: no directories, two modes of files.
func gitTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	for path := range naive(t, dir) {
		full := filepath.Join(dir, path)
		info, err := os.Lstat(full)
		must(t, err)
		switch {
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(full)
			must(t, err)
			tree[path] = "link to " + target
		case info.Mode().IsRegular():
			data, err := os.ReadFile(full)
			must(t, err)
			tree[path] = fmt.Sprintf("executable: %v, %q", info.Mode()&0o100 != 0, data)
		}
	}
	return tree
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

var (
	fileName = rapid.SampledFrom([]string{"a", "b", "with space", "tab\there", "new\nline", `"quoted\"`, "\xff", "é", "d/e", "d/f", "g", "g/h", "-x", "end ", "deep/er/f", "deep/er/g"})
	fileText = rapid.Custom(func(t *rapid.T) string {
		line := rapid.SampledFrom([]string{"one\n", "two\n", "three\n", "\n", "-- \n", "@@ -1 +1 @@\n", "\xff\r\n", "diff --git a/x b/x\n"})
		text := strings.Join(rapid.SliceOfN(line, rapid.SampledFrom([]int{0, 30}).Draw(t, "at least"), 60).Draw(t, "lines"), "")
		if rapid.Bool().Draw(t, "no newline") {
			text += "end"
		}
		return text
	})
)

// room makes sure that a path can be written to.
func room(t *rapid.T, dir, path string) string {
	at := dir
	for part := range strings.SplitSeq(path, "/") {
		if info, err := os.Lstat(at); err != nil || !info.IsDir() {
			must(t, os.RemoveAll(at))
			must(t, os.Mkdir(at, 0o755))
		}
		at += "/" + part
	}
	return at
}

// writeAny puts a file or symlink somewhere, over whatever is there, or moves
// something.
func writeAny(t *rapid.T, dir string) {
	name := fileName.Draw(t, "name")
	path := room(t, dir, name)
	kind := rapid.SampledFrom([]string{"edit", "edit", "move", "move", "file", "file", "executable", "link", "binary", "big", "nothing"}).Draw(t, "kind")
	info, err := os.Lstat(path)
	if kind == "edit" && err == nil && info.Mode().IsRegular() && info.Size() < maxShown {
		old, err := os.ReadFile(path)
		must(t, err)
		lines := strings.SplitAfter(string(old), "\n")
		for range rapid.IntRange(1, 3).Draw(t, "edits") {
			i := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
			lines[i] = rapid.SampledFrom([]string{"", "one\n", "edited\n", "two\nlines\n"}).Draw(t, "edited")
		}
		must(t, os.WriteFile(path, []byte(strings.Join(lines, "")), 0))
		return
	}
	if kind == "move" && err == nil {
		to := fileName.Draw(t, "to")
		if rapid.Bool().Draw(t, "all of it") {
			name, _, _ = strings.Cut(name, "/")
			to, _, _ = strings.Cut(to, "/")
		}
		if name == to || strings.HasPrefix(name, to+"/") || strings.HasPrefix(to, name+"/") {
			return
		}
		path, to = dir+"/"+name, room(t, dir, to)
		must(t, os.RemoveAll(to))
		must(t, os.Rename(path, to))
		return
	}
	must(t, os.RemoveAll(path))
	switch kind {
	case "file", "edit", "move":
		must(t, os.WriteFile(path, []byte(fileText.Draw(t, "text")), 0o644))
	case "executable":
		must(t, os.WriteFile(path, []byte(fileText.Draw(t, "text")), 0o755))
	case "link":
		must(t, os.Symlink("to "+rapid.SampledFrom([]string{"x", "y\n", "../.."}).Draw(t, "target"), path))
	case "binary":
		data := make([]byte, rapid.SampledFrom([]int{1, 3, 52, 200, 70_000}).Draw(t, "size"))
		fill := rand.New(rand.NewPCG(uint64(rapid.IntRange(0, 1).Draw(t, "content")), 0))
		for i := range data {
			data[i] = byte(fill.Uint32())
		}
		data[rapid.IntRange(0, len(data)-1).Draw(t, "at")] = 0
		must(t, os.WriteFile(path, data, 0o644))
	case "big":
		must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), maxShown+rapid.IntRange(1, 2).Draw(t, "more")), 0o644))
	}
}

// withoutHidden takes what a patch does not show out of both trees.
func withoutHidden(c *Changeset, trees ...map[string]string) {
	for i := range c.Entries {
		e := &c.Entries[i]
		big := func(s *State) bool { return s != nil && s.Size > maxShown }
		if big(e.Before) || big(e.After) {
			for _, tree := range trees {
				maps.DeleteFunc(tree, func(path, _ string) bool {
					return path == e.Path || strings.HasPrefix(path, e.Path+"/") || strings.HasPrefix(e.Path, path+"/")
				})
			}
		}
	}
}

// Whatever a box did, git apply makes the same of a copy of the workspace, in a
// repository or out of one, and its reverse takes it back.
func TestPatchAppliesWithGit(t *testing.T) {
	top := t.TempDir()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		dir := filepath.Join(top, fmt.Sprint(round))
		must(rt, os.MkdirAll(dir+"/host", 0o755))
		defer os.RemoveAll(dir)
		for range rapid.IntRange(0, 8).Draw(rt, "files before") {
			writeAny(rt, dir+"/host")
		}
		// git knows of no empty directory, and puts no file in the place of one
		// that holds another.
		must(rt, exec.Command("find", dir+"/host", "-mindepth", "1", "-type", "d", "-empty", "-delete").Run())
		b := newCopied(t, dir)
		defer b.manifest.Close()
		for range rapid.IntRange(1, 8).Draw(rt, "changes") {
			writeAny(rt, dir+"/tree")
		}
		c := b.read()
		layer, host := openDir(t, b.tree), openDir(t, b.host)
		defer closeAll(layer, host)
		var patch strings.Builder
		must(rt, Patch(&patch, c, layer, host))

		applied := dir + "/applied"
		copyTree(t, dir+"/host", applied)
		var flags []string
		if round%4 == 0 {
			flags = []string{"--index"}
			git(t, applied, "init", "-q")
			git(t, applied, "add", "-A")
		}
		if err := gitApply(t, applied, patch.String(), flags...); err != nil {
			rt.Fatalf("%v\n%s", err, patch.String())
		}
		if flags != nil {
			if out := git(t, applied, "status", "--porcelain", "-z"); strings.Contains("\x00"+out, "\x00 M") {
				rt.Fatalf("the index differs from the tree: %q", out)
			}
			must(rt, os.RemoveAll(applied+"/.git"))
		}
		want, got := gitTree(t, b.tree), gitTree(t, applied)
		withoutHidden(c, want, got)
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("applied it differs (-want +got):\n%s\n%s", diff, patch.String())
		}
		if err := gitApply(t, applied, patch.String(), "-R"); err != nil {
			rt.Fatalf("back: %v\n%s", err, patch.String())
		}
		want, got = gitTree(t, b.host), gitTree(t, applied)
		withoutHidden(c, want, got)
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("taken back it differs (-want +got):\n%s\n%s", diff, patch.String())
		}
	})
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); errors.As(err, &exit) && args[0] == "diff" && exit.ExitCode() == 1 {
		err = nil // they differ
	}
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

// git itself, asked to compare the two trees, finds the same renames and the
// same sections.
func TestRenamesAreGits(t *testing.T) {
	rounds := 15
	if os.Getenv("HUTCH_PROOF") == "1" {
		rounds = 300
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		h := newHandmade(t)
		names := []string{}
		for i := range 12 {
			text := ""
			for range 5 + rng.IntN(60) {
				text += fmt.Sprintf("%s%x\n", []string{"func ", "\t", "\t", "}"}[rng.IntN(4)], rng.Uint64())
			}
			name := fmt.Sprintf("d%d/f%d", i%3, i)
			names = append(names, name)
			write(t, h.host+"/"+name, text)
		}
		for i, name := range names {
			data, err := os.ReadFile(h.host + "/" + name)
			must(t, err)
			lines := strings.SplitAfter(string(data), "\n")
			for range rng.IntN(3) * rng.IntN(1+len(lines)/3) {
				lines[rng.IntN(len(lines))] = fmt.Sprintf("edit %x\n", rng.Uint64())
			}
			switch text := strings.Join(lines, ""); rng.IntN(4) {
			case 0:
				write(t, h.layer+"/"+name, text)
			case 1:
				h.whiteout(name)
				write(t, fmt.Sprintf("%s/e%d/f%d", h.layer, i%2, i), text)
			case 2:
				h.whiteout(name)
				write(t, fmt.Sprintf("%s/%s.moved", h.layer, name), text)
			}
		}
		src := h.source()
		c := readSource(t, src)
		var ours []string
		var patch strings.Builder
		must(t, Files(c, Trees{src.Layer, src.Workspace, -1}, func(f *FileChange) error {
			line := string(f.Status) + " " + f.Path
			if f.Status == StatusRenamed {
				line = fmt.Sprintf("R%03d %s %s", f.Similarity, f.From, f.Path)
			}
			ours = append(ours, line)
			return nil
		}))
		must(t, Patch(&patch, c, src.Layer, src.Workspace))

		top := t.TempDir()
		copyTree(t, h.host, top+"/a")
		copyTree(t, h.host, top+"/b")
		must(t, gitApply(t, top+"/b", patch.String()))
		diff := git(t, top, "diff", "--no-index", "-M", "--name-status", "a", "b")
		var theirs []string
		for line := range strings.Lines(diff) {
			fields := strings.Fields(line)
			for i := range fields[1:] {
				fields[i+1] = fields[i+1][2:]
			}
			theirs = append(theirs, strings.Join(fields, " "))
		}
		if d := cmp.Diff(theirs, ours); d != "" {
			t.Fatalf("seed %d: (-git +hutch)\n%s", seed, d)
		}
		sections := func(patch string) (all []string) {
			for line := range strings.Lines(patch) {
				if strings.HasPrefix(line, "@@") {
					all = append(all, line)
				}
			}
			return all
		}
		if d := cmp.Diff(sections(git(t, top, "diff", "--no-index", "-M", "a", "b")), sections(patch.String())); d != "" {
			t.Fatalf("seed %d: (-git +hutch)\n%s", seed, d)
		}
	}
}

func TestPatchText(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")
	write(t, h.layer+"/f", "1\n2\n3\n4\nfive\n6\n7\n8\n9")
	write(t, h.host+"/mode", "x")
	write(t, h.layer+"/mode", "x")
	must(t, os.Chmod(h.layer+"/mode", 0o755))
	write(t, h.host+"/gone", "y\n")
	h.whiteout("gone")
	write(t, h.host+"/dir/moved", "1\n2\n3\n")
	h.whiteout("dir/moved")
	write(t, h.layer+"/moved here", "1\n2\n3.\n")
	write(t, h.layer+"/new é", "x\n")
	must(t, os.Symlink("f", h.layer+"/link"))
	write(t, h.layer+"/empty", "")
	write(t, h.layer+"/a b", "x\n")
	want := `diff --git a/a b b/a b
new file mode 100644
index 0000000000000000000000000000000000000000..587be6b4c3f93f93c489c0111bba5596147a26cb
--- /dev/null
+++ b/a b` + "\t" + `
@@ -0,0 +1 @@
+x
diff --git a/empty b/empty
new file mode 100644
index 0000000000000000000000000000000000000000..e69de29bb2d1d6434b8b29ae775ad8c2e48c5391
diff --git a/f b/f
index 07193989308c972f8a2d0f1b3a15c29ea4ac565b..f563de55bf77ac2a987c297edf4cb56e6c480be9 100644
--- a/f
+++ b/f
@@ -2,8 +2,8 @@
 2
 3
 4
-5
+five
 6
 7
 8
-9
+9
\ No newline at end of file
diff --git a/gone b/gone
deleted file mode 100644
index 975fbec8256d3e8a3797e7a3611380f27c49f4ac..0000000000000000000000000000000000000000
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-y
diff --git a/link b/link
new file mode 120000
index 0000000000000000000000000000000000000000..4d1ae35ba2c8ec712fa2a379db44ad639ca277bd
--- /dev/null
+++ b/link
@@ -0,0 +1 @@
+f
\ No newline at end of file
diff --git a/mode b/mode
old mode 100644
new mode 100755
diff --git a/dir/moved b/moved here
similarity index 57%
rename from dir/moved
rename to moved here
index 01e79c32a8c99c557f0757da7cb6d65b3414466d..c3cb0e0037b1f48c3f6b7b1e09704848c74b6928 100644
--- a/dir/moved
+++ b/moved here` + "\t" + `
@@ -1,3 +1,3 @@
 1
 2
-3
+3.
diff --git "a/new \303\251" "b/new \303\251"
new file mode 100644
index 0000000000000000000000000000000000000000..587be6b4c3f93f93c489c0111bba5596147a26cb
--- /dev/null
+++ "b/new \303\251"
@@ -0,0 +1 @@
+x
`
	if diff := cmp.Diff(want, patchOf(t, h)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPatchHidesWhatIsNoText(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/a", "old\n")
	write(t, h.layer+"/a", "new\n")
	write(t, h.layer+"/b.bin", "\x00\x01")
	write(t, h.host+"/c", "x")
	write(t, h.layer+"/c", "x")
	must(t, os.Chmod(h.layer+"/c", 0o755)) // a header of its own, with no hunk
	write(t, h.layer+"/c.bin", "\x00\x02")
	write(t, h.host+"/d.big", strings.Repeat("x", maxShown))
	write(t, h.layer+"/d.big", strings.Repeat("x", maxShown+1))
	write(t, h.host+"/e.bin", "\x00")
	h.whiteout("e.bin")
	write(t, h.host+"/f.big", strings.Repeat("y", maxShown+1))
	write(t, h.layer+"/f.big", strings.Repeat("y", maxShown+1))
	must(t, os.Chmod(h.layer+"/f.big", 0o755)) // only its mode: nothing to hide
	write(t, h.host+"/g.big", strings.Repeat("z", maxShown+1))
	write(t, h.layer+"/g.big/in", "x")
	patch := patchOf(t, h)
	for _, want := range []string{
		"diff --git a/b.bin b/b.bin\nnew file mode 100644\nindex 0000000000000000000000000000000000000000..bdc955b7b2e610ad5a72302b139a2e6cb325519a\nGIT binary patch\n",
		"\nFiles a/d.big and b/d.big differ, not shown: it is larger than 1 MiB\n",
		"\nFiles a/g.big and /dev/null differ, not shown: it is larger than 1 MiB\n",
		"\nFiles /dev/null and b/g.big/in differ, not shown: what stands in its place is not shown either\n",
		"diff --git a/f.big b/f.big\nold mode 100644\nnew mode 100755\n",
	} {
		if !strings.Contains(patch, want) {
			t.Errorf("the patch lacks %q:\n%s", want, patch)
		}
	}
	want := gitTree(t, h.host)
	maps.Copy(want, map[string]string{"a": `executable: false, "new\n"`, "b.bin": `executable: false, "\x00\x01"`, "c": `executable: true, "x"`, "c.bin": `executable: false, "\x00\x02"`})
	delete(want, "e.bin")
	want["f.big"] = strings.Replace(want["f.big"], "executable: false", "executable: true", 1)
	must(t, gitApply(t, h.host, patch))
	if diff := cmp.Diff(want, gitTree(t, h.host)); diff != "" {
		t.Errorf("applied it differs (-want +got):\n%s", diff)
	}
}

func TestPatchNoticesThatTheWorkspaceChanged(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/f", "1\n")
	write(t, h.layer+"/f", "2\n")
	src := h.source()
	c := readSource(t, src)
	write(t, h.host+"/f", "3\n")
	if err := Patch(&strings.Builder{}, c, src.Layer, src.Workspace); err == nil || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("%v", err)
	}
}

// Two files of half a million short lines with nothing in common must not
// hold hutch up.
func TestPatchOfHostileLinesIsQuick(t *testing.T) {
	h := newHandmade(t)
	var old, new strings.Builder
	for i := range maxShown / 2 {
		fmt.Fprintf(&old, "%c\n", 'a'+i%7)
		fmt.Fprintf(&new, "%c\n", 'a'+i*i%11)
	}
	write(t, h.host+"/f", old.String())
	write(t, h.layer+"/f", new.String())
	start := time.Now()
	patch := patchOf(t, h)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	must(t, gitApply(t, h.host, patch))
}

// The patch of a small change is there at once, and equal files are paired by
// their digests alone, however many there are.
func BenchmarkPatch(b *testing.B) {
	b.Run("10 changes", func(b *testing.B) {
		h := newHandmade(b)
		for i := range 10 {
			text := strings.Repeat(fmt.Sprintf("a line of file %d\n", i), 100)
			write(b, fmt.Sprintf("%s/f%d", h.host, i), text)
			write(b, fmt.Sprintf("%s/f%d", h.layer, i), strings.Replace(text, "line", "word", 1))
		}
		benchmarkPatch(b, h)
	})
	b.Run("10,000 files moved", func(b *testing.B) {
		h := newHandmade(b)
		for i := range 10_000 {
			write(b, fmt.Sprintf("%s/old/f%d", h.host, i), "the same\n")
			write(b, fmt.Sprintf("%s/new/f%d", h.layer, i), "the same\n")
		}
		h.whiteout("old")
		benchmarkPatch(b, h)
	})
}

func benchmarkPatch(b *testing.B, h *handmade) {
	src := h.source()
	c := readSource(b, src)
	for b.Loop() {
		must(b, Patch(io.Discard, c, src.Layer, src.Workspace))
	}
}
