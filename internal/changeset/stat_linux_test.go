package changeset

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func statsOf(t testing.TB, h *handmade) (*Changeset, []FileStat) {
	t.Helper()
	src := h.source()
	c := readSource(t, src)
	var files []FileStat
	must(t, Files(c, Trees{src.Layer, src.Workspace, -1}, func(f *FileChange) error {
		files = append(files, f.Stat())
		return nil
	}))
	return c, files
}

func text(write func(*bufio.Writer)) string {
	var buf bytes.Buffer
	w := bufio.NewWriter(&buf)
	write(w)
	_ = w.Flush()
	return buf.String()
}

// What git says of the same change, staged in a repository, is what hutch says.
func TestStatIsGits(t *testing.T) {
	for seed := range 8 {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		h := newHandmade(t)
		body := func(n int) string {
			var b strings.Builder
			for range n {
				fmt.Fprintf(&b, "%x\n", rng.Uint64())
			}
			return b.String()
		}
		names := []string{"a", "src/b.go", "src/deep/c", "with space", "é", "a/very/long/path/that/has/to/be/cut/somewhere/because/the/terminal/is/narrow/file.txt"}
		kept := map[string]string{}
		for i, name := range names[1:] {
			kept[name] = body(1 + rng.IntN(200))
			write(t, h.host+"/"+name, kept[name])
			switch rng.IntN(5) {
			case 0:
				write(t, h.layer+"/"+name, kept[name]+body(rng.IntN(150)))
			case 1:
				write(t, h.layer+"/"+name, body(1+rng.IntN(300)))
			case 2:
				h.whiteout(name)
			case 3:
				h.whiteout(name)
				write(t, fmt.Sprintf("%s/src/moved%d/c", h.layer, i), kept[name]+"x\n")
			}
		}
		write(t, h.layer+"/bin", "\x00"+body(rng.IntN(30)))
		write(t, h.host+"/mode", "m\n")
		write(t, h.layer+"/mode", "m\n")
		must(t, os.Chmod(h.layer+"/mode", 0o755))
		if seed%2 == 0 {
			must(t, os.Symlink("x", h.layer+"/link"))
		}
		c, files := statsOf(t, h)
		src := h.source()
		var patch strings.Builder
		must(t, Patch(&patch, c, src.Layer, src.Workspace))

		repo := t.TempDir() + "/r"
		copyTree(t, h.host, repo)
		git(t, repo, "init", "-q")
		git(t, repo, "add", "-A")
		git(t, repo, "-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "-m", "x")
		must(t, gitApply(t, repo, patch.String(), "--index"))
		for _, width := range []int{40, 80, 200} {
			want := git(t, repo, "diff", "--cached", "-M", fmt.Sprintf("--stat=%d", width))
			if d := cmp.Diff(want, text(func(w *bufio.Writer) { WriteStat(w, files, nil, width, false) })); d != "" {
				t.Errorf("seed %d, width %d (-git +hutch)\n%s", seed, width, d)
			}
		}
		if d := cmp.Diff(git(t, repo, "diff", "--cached", "-M", "--name-status"), text(func(w *bufio.Writer) { WriteNameStatus(w, files, nil) })); d != "" {
			t.Errorf("seed %d (-git +hutch)\n%s", seed, d)
		}
		if d := cmp.Diff(git(t, repo, "diff", "--cached", "-M", "--name-status", "-z"), text(func(w *bufio.Writer) { WriteNameStatusZ(w, files) })); d != "" {
			t.Errorf("seed %d (-git +hutch)\n%s", seed, d)
		}
	}
}

func TestDirectoryRename(t *testing.T) {
	h := newHandmade(t)
	for _, name := range []string{"old/f", "old/g", "old-x/h", "old/sub/i", "left/f", "left/g"} {
		write(t, h.host+"/"+name, "content of "+name+"\n")
	}
	for _, name := range []string{"old", "old-x", "left"} {
		h.whiteout(name)
	}
	for _, name := range []string{"old/f", "old/g", "old/sub/i"} {
		write(t, h.layer+"/"+strings.Replace(name, "old", "new", 1), "content of "+name+"\n")
	}
	write(t, h.layer+"/half/f", "content of left/f\n")
	write(t, h.layer+"/other/g", "content of left/g\n")
	c, files := statsOf(t, h)
	dirs := c.DirRenames(files)
	if d := cmp.Diff([]DirRename{{"old", "new", 3}}, dirs); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
	got := text(func(w *bufio.Writer) { WriteNameStatus(w, files, dirs) })
	want := "R100\told/\tnew/\nR100\tleft/f\thalf/f\nD\told-x/h\nR100\tleft/g\tother/g\n"
	if got != want {
		t.Errorf("%q, not %q", got, want)
	}
	stat := text(func(w *bufio.Writer) { WriteStat(w, files, dirs, 80, false) })
	if !strings.HasSuffix(stat, " 6 files changed, 1 deletion(-)\n rename old/ => new/ (3 files)\n") || strings.Contains(stat, "sub/i") {
		t.Error(stat)
	}
}

func TestUntold(t *testing.T) {
	h := newHandmade(t)
	write(t, h.host+"/f", "x")
	write(t, h.layer+"/f", "x")
	must(t, os.Chmod(h.layer+"/f", 0o600))
	write(t, h.host+"/exec", "x")
	write(t, h.layer+"/exec", "x")
	must(t, os.Chmod(h.layer+"/exec", 0o755)) // that git can tell
	must(t, os.MkdirAll(h.layer+"/empty", 0o755))
	write(t, h.layer+"/full/f", "x")
	c, _ := statsOf(t, h)
	c.Skipped = []Skipped{{"pipe", "fifo"}}
	want := []Untold{{"empty", "empty directory, created"}, {"f", "mode 0644 -> 0600"}, {"pipe", "fifo, never promoted"}}
	if d := cmp.Diff(want, c.Untold()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
