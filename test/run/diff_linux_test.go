package run

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// onTerminal runs hutch on a terminal of its own and returns all it shows.
func onTerminal(t *testing.T, w *lab.World, input string, env []string, args ...string) string {
	t.Helper()
	master, slave := lab.Terminal(t, 40, 100)
	defer master.Close()
	cmd := exec.Command(lab.Hutch(t), args...)
	cmd.Dir, cmd.Env = w.Dir, append(w.Environ("TERM=xterm"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	stuck := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer stuck.Stop()
	if input != "" {
		if _, err := io.WriteString(master, input); err != nil {
			t.Fatal(err)
		}
	}
	shown, _ := io.ReadAll(master) // EIO when the other end is closed
	if err := cmd.Wait(); err != nil {
		t.Logf("hutch %v: %v", args, err)
	}
	return strings.ReplaceAll(string(shown), "\r\n", "\n")
}

const diffScript = `
	sed -i 's/foo/bar/' a.txt; mkdir moved; mv dir/* moved/; rmdir dir
	printf '\033[2J\033]0;owned\007 \342\200\256 evil\n' > evil.txt; printf '\000\001' > data.bin; mkdir empty`

// Into a pipe goes the plain patch, whatever is in it, and git apply makes the
// change of it.
func TestDiffIntoAPipe(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, diffScript)
	r := w.Run("diff", id)
	w.Want(r, 0)
	if !strings.Contains(r.Stdout, "\x1b[2J") || !strings.Contains(r.Stdout, "rename from dir/") || !strings.Contains(r.Stdout, "GIT binary patch") {
		t.Errorf("it is not the plain patch\n%v", r)
	}
	if !strings.Contains(r.Stderr, `"empty": empty directory, created`) {
		t.Errorf("it does not say what the patch lacks\n%v", r)
	}
	copied := filepath.Join(w.Base, "copied")
	w.Host("cp", "-a", w.Dir, copied)
	patch := filepath.Join(w.Base, "p")
	if err := os.WriteFile(patch, []byte(r.Stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Host("git", "-C", copied, "apply", "--whitespace=nowarn", patch)
	w.Want(w.Run("commit", id), 0)
	if err := os.Mkdir(filepath.Join(copied, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.Host("diff", "-r", "-x", ".hutch", copied, w.Dir)
}

// On a terminal it is coloured, and nothing of the box steers it.
func TestDiffOnATerminal(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, diffScript)
	defer w.Run("discard", id)
	shown := onTerminal(t, w, "", nil, "diff", id, "--no-pager")
	for _, want := range []string{"\x1b[31m-foo one\x1b[m\n", "\x1b[32m+bar one\x1b[m\n", "^[[2J^[]0;owned^G <U+202E> evil", "Binary files /dev/null and b/data.bin differ", "hutch: not in a patch: \"empty\""} {
		if !strings.Contains(shown, want) {
			t.Errorf("it lacks %q:\n%q", want, shown)
		}
	}
	for _, evil := range []string{"\x1b[2J", "\x1b]", "\x07", "\u202e"} {
		if strings.Contains(shown, evil) {
			t.Errorf("%q reached the terminal", evil)
		}
	}
	for _, env := range []string{"NO_COLOR=1", "TERM=dumb"} {
		if shown := onTerminal(t, w, "", []string{env}, "diff", id, "--no-pager"); strings.Contains(shown, "\x1b") || !strings.Contains(shown, "+bar one\n") {
			t.Errorf("%s: %q", env, shown)
		}
	}
	if shown := onTerminal(t, w, "", nil, "diff", id, "--no-pager", "--color=never"); strings.Contains(shown, "\x1b") {
		t.Errorf("%q", shown)
	}
	if r := w.Run("diff", id, "--color"); !strings.Contains(r.Stdout, "\x1b[32m+bar one") || strings.Contains(r.Stdout, "\x1b[2J") {
		t.Errorf("%v", r)
	}
	shown = onTerminal(t, w, "", nil, "run", "--diff", "--", "sh", "-c", `printf '\033[2J\n' >> a.txt`)
	if strings.Contains(shown, "\x1b[2J") || !strings.Contains(shown, "+^[[2J") {
		t.Errorf("run --diff: %q", shown)
	}
}

// The pager is the user's, and is not asked for where nobody reads.
func TestDiffPager(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, diffScript)
	defer w.Run("discard", id)
	pager := "HUTCH_PAGER=sed 's/^/paged: /'"
	if shown := onTerminal(t, w, "", []string{"PAGER=false", pager}, "diff", id); !strings.Contains(shown, "paged: \x1b[32m+bar one") {
		t.Errorf("%q", shown)
	}
	if shown := onTerminal(t, w, "", []string{"PAGER=sed s/^/mine:/"}, "diff", id, "--stat"); !strings.Contains(shown, "mine: a.txt ") {
		t.Errorf("%q", shown)
	}
	if shown := onTerminal(t, w, "", []string{pager}, "diff", id, "--no-pager"); strings.Contains(shown, "paged") {
		t.Errorf("%q", shown)
	}
	if shown := onTerminal(t, w, "", []string{"PAGER=/nonexistent"}, "diff", id); !strings.Contains(shown, "+bar one") {
		t.Errorf("a pager that is not there costs the diff: %q", shown)
	}
	if shown := onTerminal(t, w, "", []string{"PAGER=true"}, "diff", id); strings.Contains(shown, "hutch:") {
		t.Errorf("a pager that was left is no error: %q", shown)
	}
	if r := w.RunWith(lab.Options{Env: []string{pager}}, "diff", id); strings.Contains(r.Stdout, "paged") {
		t.Errorf("%v", r)
	}
}

func TestDiffForms(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	id := box(t, w, diffScript)
	defer w.Run("discard", id)
	r := w.Run("diff", id, "--name-status")
	w.Want(r, 0)
	if r.Stdout != "R100\tdir/\tmoved/\nM\ta.txt\nA\tdata.bin\nA\tevil.txt\n" {
		t.Errorf("%q", r.Stdout)
	}
	r = w.Run("diff", id, "--name-status", "-z", "--", "*.txt", "!moved/**")
	w.Want(r, 0)
	if r.Stdout != "M\x00a.txt\x00D\x00dir/deep/file.txt\x00D\x00dir/other.txt\x00A\x00evil.txt\x00" {
		t.Errorf("%q", r.Stdout)
	}
	r = w.Run("diff", id, "--stat", "--", "a.txt", "data.bin")
	w.Want(r, 0)
	if r.Stdout != " a.txt    |   4 ++--\n data.bin | Bin 0 -> 2 bytes\n 2 files changed, 2 insertions(+), 2 deletions(-)\n" {
		t.Errorf("%q", r.Stdout)
	}
	r = w.Run("diff", id, "--json")
	w.Want(r, 0)
	var report struct {
		FilesCreated  []string `json:"files_created"`
		FilesModified []string `json:"files_modified"`
		FilesDeleted  []string `json:"files_deleted"`
		Digest        string   `json:"digest"`
		Entries       []struct {
			Path, Op, Type, Status string
			RenameFrom             string `json:"rename_from"`
			Similarity             int
			Binary                 bool
			Hunks, Added, Removed  int
			Old, New               *struct {
				Mode, Digest string
				Size         int64
			}
		}
	}
	if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, e := range report.Entries {
		switch {
		case e.Path == "a.txt":
			found["edit"] = e.Op == "modified" && e.Status == "M" && e.Hunks == 1 && e.Added == 2 && e.Removed == 2 && e.Old.Mode == "0644" && e.New.Size == 16 && strings.HasPrefix(e.New.Digest, "blake3:")
		case e.Path == "data.bin":
			found["binary"] = e.Binary && e.Status == "A" && e.Old == nil
		case e.Path == "empty":
			found["directory"] = e.Type == "dir" && e.Status == ""
		case strings.HasPrefix(e.Path, "moved/"):
			found["rename"] = e.Status == "R" && e.Similarity == 100 && strings.HasPrefix(e.RenameFrom, "dir/")
		}
	}
	if len(found) != 4 || !found["edit"] || !found["binary"] || !found["directory"] || !found["rename"] || len(report.FilesModified) != 1 || !strings.HasPrefix(report.Digest, "blake3:") {
		t.Errorf("%v\n%s", found, r.Stdout)
	}
	for _, bad := range [][]string{{"--stat", "--json"}, {"-z"}, {"--color=loud"}} {
		if r := w.Run(append([]string{"diff", id}, bad...)...); r.Code != 125 || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%v: %v", bad, r)
		}
	}
}
