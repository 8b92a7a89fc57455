package changeset

import (
	"bytes"
	"fmt"
	"maps"
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
func gitApply(t testing.TB, dir, patch string) error {
	t.Helper()
	if patch == "" {
		return nil
	}
	cmd := exec.Command("git", "apply", "-v", "-p1", "-")
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
	fileName = rapid.SampledFrom([]string{"a", "b", "with space", "tab\there", "new\nline", `"quoted\"`, "\xff", "é", "d/e", "d/f", "g", "g/h", "-x", "end "})
	fileText = rapid.Custom(func(t *rapid.T) string {
		line := rapid.SampledFrom([]string{"one\n", "two\n", "three\n", "\n", "-- \n", "@@ -1 +1 @@\n", "\xff\r\n", "diff --git a/x b/x\n"})
		text := strings.Join(rapid.SliceOfN(line, rapid.SampledFrom([]int{0, 30}).Draw(t, "at least"), 60).Draw(t, "lines"), "")
		if rapid.Bool().Draw(t, "no newline") {
			text += "end"
		}
		return text
	})
)

// writeAny puts a file or symlink somewhere, over whatever is there.
func writeAny(t *rapid.T, dir string) {
	path := filepath.Join(dir, fileName.Draw(t, "name"))
	if parent := filepath.Dir(path); parent != dir {
		if info, err := os.Lstat(parent); err != nil || !info.IsDir() {
			os.Remove(parent)
			must(t, os.Mkdir(parent, 0o755))
		}
	}
	old, err := os.ReadFile(path)
	if info, lerr := os.Lstat(path); err == nil && lerr == nil && info.Mode().IsRegular() && rapid.Bool().Draw(t, "edit") {
		lines := strings.SplitAfter(string(old), "\n")
		for range rapid.IntRange(1, 3).Draw(t, "edits") {
			i := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
			lines[i] = rapid.SampledFrom([]string{"", "one\n", "edited\n", "two\nlines\n"}).Draw(t, "edited")
		}
		must(t, os.WriteFile(path, []byte(strings.Join(lines, "")), 0))
		return
	}
	must(t, os.RemoveAll(path))
	switch rapid.SampledFrom([]string{"file", "file", "executable", "link", "nothing"}).Draw(t, "kind") {
	case "file":
		must(t, os.WriteFile(path, []byte(fileText.Draw(t, "text")), 0o644))
	case "executable":
		must(t, os.WriteFile(path, []byte(fileText.Draw(t, "text")), 0o755))
	case "link":
		must(t, os.Symlink("to "+rapid.SampledFrom([]string{"x", "y\n", "../.."}).Draw(t, "target"), path))
	}
}

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

		copyTree(t, dir+"/host", dir+"/applied")
		if err := gitApply(t, dir+"/applied", patch.String()); err != nil {
			rt.Fatalf("%v\n%s", err, patch.String())
		}
		if diff := cmp.Diff(gitTree(t, b.tree), gitTree(t, dir+"/applied")); diff != "" {
			rt.Fatalf("applied it differs (-want +got):\n%s\n%s", diff, patch.String())
		}
	})
}

func TestPatchText(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/f", "1\n2\n3\n4\n5\n6\n7\n8\n9\n")
	write(t, h.layer+"/f", "1\n2\n3\n4\nfive\n6\n7\n8\n9")
	write(t, h.host+"/mode", "x")
	write(t, h.layer+"/mode", "x")
	must(t, os.Chmod(h.layer+"/mode", 0o755))
	write(t, h.host+"/gone", "x\n")
	h.whiteout("gone")
	write(t, h.layer+"/new é", "x\n")
	must(t, os.Symlink("f", h.layer+"/link"))
	write(t, h.layer+"/empty", "")
	write(t, h.layer+"/a b", "x\n")
	want := `diff --git a/a b b/a b
new file mode 100644
--- /dev/null
+++ b/a b` + "\t" + `
@@ -0,0 +1 @@
+x
diff --git a/empty b/empty
new file mode 100644
diff --git a/f b/f
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
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/link b/link
new file mode 120000
--- /dev/null
+++ b/link
@@ -0,0 +1 @@
+f
\ No newline at end of file
diff --git a/mode b/mode
old mode 100644
new mode 100755
diff --git "a/new \303\251" "b/new \303\251"
new file mode 100644
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
	write(t, h.layer+"/c.bin", "\x00")
	write(t, h.host+"/d.big", strings.Repeat("x", maxShown))
	write(t, h.layer+"/d.big", strings.Repeat("x", maxShown+1))
	write(t, h.host+"/e.bin", "\x00")
	h.whiteout("e.bin")
	write(t, h.host+"/f.big", strings.Repeat("y", maxShown+1))
	write(t, h.layer+"/f.big", strings.Repeat("y", maxShown+1))
	must(t, os.Chmod(h.layer+"/f.big", 0o755)) // only its mode: nothing to hide
	patch := patchOf(t, h)
	for _, want := range []string{
		"\nBinary files /dev/null and b/b.bin differ\n",
		"\nFiles a/d.big and b/d.big differ, not shown: it is larger than 1 MiB\n",
		"\nBinary files a/e.bin and /dev/null differ\n",
		"diff --git a/f.big b/f.big\nold mode 100644\nnew mode 100755\n",
	} {
		if !strings.Contains(patch, want) {
			t.Errorf("the patch lacks %q:\n%s", want, patch)
		}
	}
	want := gitTree(t, h.host)
	maps.Copy(want, map[string]string{"a": `executable: false, "new\n"`, "c": `executable: true, "x"`})
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
