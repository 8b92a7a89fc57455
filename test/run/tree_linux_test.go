package run

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hutch/test/lab"
)

// names are legal and awkward.
var names = []string{
	"with space", " leading", "trailing ", "new\nline", "tab\there", "quote'\"", "back\\slash", "-dash", "--", "~", "*", "?",
	"#hash", "$(echo x)", "`id`", "%s%n", "a:b,c;d", "\xff\xfe\xfd", "caf\xe9", "café", "cafe\u0301", "日本語", "\U0001F600",
	"\x01\x02\x7f", "...", ".hidden", "CON", "UPPER", "upper", strings.Repeat("n", 255),
}

func TestAwkwardNames(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		for _, n := range names {
			w.Write(n, "old\n")
			w.Write(filepath.Join("d", n, "in"), "old\n")
		}
		before := w.Snap()
		script := `
import os
def each(d):
    for n in os.listdir(d): yield os.path.join(d, n)
for p in list(each(b".")):
    if os.path.isfile(p):
        open(p, "ab").write(b"more\n")
        if len(os.path.basename(p)) < 250: open(p + b"+new", "wb").write(b"new\n")
for p in list(each(b"d"))[::2]:
    os.remove(p + b"/in"); os.rmdir(p)
`
		out, r := w.JSON("--diff", "--", "python3", "-c", script)
		w.Want(r, 0)
		if !json.Valid([]byte(r.Stdout)) {
			t.Error("the outcome is not JSON")
		}
		if got := len(out.Diff.FilesModified); got != len(names) {
			t.Errorf("%d files modified, want %d", got, len(names))
		}
		if got := len(out.Diff.FilesCreated); got != len(names)-1 {
			t.Errorf("%d files created, want %d", got, len(names)-1)
		}
		w.Untouched(before)

		control := filepath.Join(w.Base, "control")
		w.Host("cp", "-a", w.Dir, control)
		w.Want(w.Box("--commit", "--", "python3", "-c", script), 0)
		w.Host("sh", "-c", `cd "$1" && exec python3 -c "$2"`, "sh", control, script)
		// Which half is deleted hangs on the order of listing: compare
		// what does not.
		want, got := withoutTimes(lab.Snapshot(t, control).Without("d")), withoutTimes(w.Snap().Without("d", ".hutch"))
		for _, d := range want.Diff(got) {
			t.Errorf("promoted, against a plain copy: %s", d)
		}
		left, err := os.ReadDir(filepath.Join(w.Dir, "d"))
		if err != nil || len(left) != len(names)/2 {
			t.Errorf("%d directories left, want %d, %v", len(left), len(names)/2, err)
		}
	})
}

func TestSpecialFilesInTheTree(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		if err := syscall.Mkfifo(filepath.Join(w.Dir, "fifo"), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(w.Dir, "dir", "socket"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		before := w.Snap()
		// Nothing may wait for a writer of the FIFO.
		w.Want(w.Box("--timeout", "60s", "--", "sh", "-c", "ls -l; exit 1"), 1)
		w.Untouched(before)
		out, r := w.JSON("--commit", "--timeout", "60s", "--", "sh", "-c", "echo x > new; mkfifo made; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'")
		w.Want(r, 0)
		equal(t, "created", out.Diff.FilesCreated, "new")
		reasons := map[string]string{}
		for _, s := range out.Skipped {
			reasons[s.Path] = s.Reason
		}
		if len(reasons) != 2 || reasons["made"] == "" || reasons["sock"] == "" {
			t.Errorf("skipped %v, want made and sock with reasons", out.Skipped)
		}
		if w.Exists("made") || w.Exists("sock") || !w.Exists("new") {
			t.Error("promoted the wrong files")
		}
		for _, d := range before.Without(".").Diff(w.Snap().Without(".", "new", ".hutch")) {
			t.Errorf("something else changed: %s", d)
		}
	})
}

func TestUnreadableFiles(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Write("locked", "secret\n")
		w.Write("shut/in", "in\n")
		w.Host("chmod", "000", filepath.Join(w.Dir, "locked"), filepath.Join(w.Dir, "shut"))
		defer os.Chmod(filepath.Join(w.Dir, "shut"), 0o755)
		before := w.Snap()
		r := w.Box("--commit", "--", "sh", "-c", "stat -c %a locked shut; echo x > new.txt")
		if r.Code == 125 && !root() && w.Strategy.Name != "overlay" {
			// What cannot be read cannot be copied: said, and nothing done.
			oneLine(t, r.Stderr)
			if !strings.Contains(r.Stderr, "locked") && !strings.Contains(r.Stderr, "shut") {
				t.Errorf("the message names no path: %q", r.Stderr)
			}
			w.Untouched(before)
			return
		}
		w.Want(r, 0)
		if w.Strategy.Name == "overlay" && r.Stdout != "0\n0\n" {
			t.Errorf("modes inside: %q", r.Stdout)
		}
		if got := w.Read("new.txt"); got != "x\n" {
			t.Errorf("new.txt holds %q", got)
		}
		for _, d := range before.Without(".").Diff(w.Snap().Without(".", "new.txt", ".hutch")) {
			t.Errorf("what could not be read changed: %s", d)
		}
	})
}

// TestClosedDirectoriesGoAgain holds that what a box closes to its own owner
// arrives as it is, and is undone unless it was opened meanwhile.
func TestClosedDirectoriesGoAgain(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		must(w, os.Chmod(filepath.Join(w.Dir, "dir"), 0o555))
		before := w.Snap()
		w.Want(w.Box("--commit", "--", "sh", "-ec", `umask 022
			mkdir closed closed/in; echo x > closed/in/f; echo '{}' > closed/package.json; chmod 0 closed/in/f closed/package.json closed/in closed
			mkdir ro; echo x > ro/f; chmod 555 ro; chmod 755 dir; echo box > dir/other.txt; chmod 100 dir`), 0)
		for path, mode := range map[string]os.FileMode{"closed": 0, "ro": 0o555, "dir": 0o100} {
			if st, err := os.Stat(filepath.Join(w.Dir, path)); err != nil || st.Mode().Perm() != mode {
				t.Errorf("%s: %v %v, want mode %v", path, st, err, mode)
			}
		}
		must(w, os.Chmod(filepath.Join(w.Dir, "dir"), 0o700))
		if got := w.Read("dir/other.txt"); got != "box\n" {
			t.Errorf("dir/other.txt holds %q", got)
		}
		must(w, os.Chmod(filepath.Join(w.Dir, "dir"), 0o100))
		w.Want(w.Run("undo"), 0)
		asBefore(w, before)

		// What was opened meanwhile cannot be vouched for.
		w.Want(w.Box("--commit", "--", "sh", "-ec", "mkdir closed; echo x > closed/f; chmod 0 closed"), 0)
		w.Host("sh", "-ec", "chmod 700 closed; test $(cat closed/f) = x; echo mine > closed/f; chmod 0 closed")
		if r := w.Run("undo"); r.Code != 125 || !strings.Contains(r.Stderr, `"closed`) {
			t.Errorf("undone in spite of an edit\n%v", r)
		}
	})
}

// TestClosedHostDirectories holds that directories which their owner closed to
// himself are no obstacle to a box that opens, changes, moves or removes them,
// nor to the way back; and that hutch does not open them up to look.
func TestClosedHostDirectories(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		for _, d := range []string{"none", "list", "enter", "write", "gone", "empty"} {
			for _, f := range []string{"keep", "edit", "drop"} {
				w.Write(d+"/in/"+f, f)
			}
		}
		w.Host("sh", "-ec", `rm -r empty/in; ln -s nowhere none/link; chmod 0 none/in none empty
			chmod 444 list/in list; chmod 311 enter/in enter; chmod 200 write/in write; chmod 100 gone/in gone`)
		stat := func(format string) string {
			return w.Host("sh", "-c", `stat -c "$1" none list enter write gone empty; stat -c %Y .; ls`, "sh", format)
		}
		everything, lasting := "%n %i %a %Y %Z", "%n %i %a %Y"
		script := `for d in none list enter write gone; do chmod 700 $d $d/in; done
			for d in none list enter write; do echo new > $d/in/edit; rm $d/in/drop; echo made > $d/in/made; done
			mv none none2; rm -r gone; rmdir empty; chmod 0 none2/in none2 list; chmod 311 enter/in enter; chmod 200 write/in`

		before := stat(everything)
		out, r := w.JSON("--", "sh", "-ec", script)
		w.Want(r, 0)
		if got := len(out.Diff.FilesDeleted); got != 15 {
			t.Errorf("%d paths deleted: %v", got, out.Diff.FilesDeleted)
		}
		if now := stat(everything); now != before {
			t.Errorf("a look changed\n%sto\n%s", before, now)
		}

		// What the user puts there while a box stands is seen, and not lost.
		out, r = w.JSON("--preserve", "--", "sh", "-ec", "chmod -R 700 none; rm -r none; rmdir empty")
		w.Want(r, 0)
		w.Host("sh", "-ec", "chmod 700 none none/in empty; echo mine > none/in/mine; chmod 0 none/in none empty")
		before = stat(everything)
		if r := w.Run("commit", out.ID); r.Code == 0 || !strings.Contains(r.Stderr, "none/in/mine") {
			t.Errorf("an unknown file was removed with its directory\n%v", r)
		}
		if now := stat(everything); now != before {
			t.Errorf("a refusal changed\n%sto\n%s", before, now)
		}
		w.Want(w.Run("discard", out.ID), 0)

		before = stat(lasting)
		w.Want(w.Box("--commit", "--", "sh", "-ec", script), 0)
		w.Want(w.Run("undo"), 0)
		if now := stat(lasting); now != before {
			t.Errorf("undo left\n%sfor\n%s", now, before)
		}
		w.Want(w.Box("--commit", "--", "sh", "-ec", script), 0)
		w.Want(w.Run("gc"), 0)
		got := w.Host("sh", "-ec", `stat -c "%n %a" *; for d in *; do chmod 700 $d $d/in; ls -A $d $d/in; cat $d/in/*; done`)
		want := "enter 311\nlist 0\nnone2 0\nwrite 700\n"
		for _, d := range []string{"enter", "list", "none2", "write"} {
			link, mine, text := "", "", ""
			if d == "none2" {
				link, mine, text = "link\n", "mine\n", "mine\n"
			}
			want += d + ":\nin\n" + link + "\n" + d + "/in:\nedit\nkeep\nmade\n" + mine + "new\nkeepmade\n" + text
		}
		if got != want {
			t.Errorf("promoted: %q, want %q", got, want)
		}
	})
}

func TestSparseFile(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		const size = 4 << 30
		sparse := filepath.Join(w.Dir, "sparse")
		w.Write("sparse", "start")
		if err := os.Truncate(sparse, size); err != nil {
			t.Fatal(err)
		}
		before := w.Snap()
		r := w.Box("--", "sh", "-c", "stat -c %s sparse; [ $(stat -c %b sparse) -lt 100000 ] && echo sparse; head -c5 sparse")
		w.Want(r, 0)
		if r.Stdout != fmt.Sprintf("%d\nsparse\nstart", int64(size)) {
			t.Errorf("inside: %q", r.Stdout)
		}
		w.Untouched(before)
		out, r := w.JSON("--commit", "--", "sh", "-c", "printf middle | dd of=sparse bs=1 seek=2000000000 conv=notrunc 2>/dev/null")
		w.Want(r, 0)
		equal(t, "modified", out.Diff.FilesModified, "sparse")
		st, err := os.Stat(sparse)
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() != size || st.Sys().(*syscall.Stat_t).Blocks > 200_000 {
			t.Errorf("promoted: size %d in %d blocks, want %d and sparse", st.Size(), st.Sys().(*syscall.Stat_t).Blocks, int64(size))
		}
		f, err := os.Open(sparse)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		got := make([]byte, 6)
		f.ReadAt(got, 2_000_000_000)
		if string(got) != "middle" {
			t.Errorf("promoted content %q", got)
		}
	})
}

// grow fills the workspace with n files, every tenth with content and the
// others empty: an empty one costs a single system call to make.
func grow(t *testing.T, w *lab.World, n int) {
	t.Helper()
	for d := 0; d*1000 < n; d++ {
		dir := filepath.Join(w.Dir, fmt.Sprintf("d%03d", d))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range min(1000, n-d*1000) {
			name := fmt.Sprintf("%s/f%03d", dir, f)
			var err error
			if f%10 == 0 {
				err = os.WriteFile(name, []byte("content\n"), 0o644)
			} else {
				err = syscall.Mknod(name, syscall.S_IFREG|0o644, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestHundredThousandFiles(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		grow(t, w, 100_000)
		out, r := w.JSON("--commit", "--", "sh", "-ec", `
			[ $(ls -d d*/f* | wc -l) = 100000 ]; echo new > d050/new; rm d099/f999; echo more >> d000/f000; rm -r d001; chmod 600 d002/f002`)
		w.Want(r, 0)
		equal(t, "created", out.Diff.FilesCreated, "d050/new")
		equal(t, "modified", out.Diff.FilesModified, "d000/f000", "d002/f002")
		if len(out.Diff.FilesDeleted) != 1002 {
			t.Errorf("%d paths deleted, want 1002", len(out.Diff.FilesDeleted))
		}
		if w.Strategy.Name == "overlay" {
			if out.FilesCloned != nil {
				t.Errorf("files_cloned %d", *out.FilesCloned)
			}
		} else if out.FilesCloned == nil || *out.FilesCloned != 100_000 {
			t.Errorf("files_cloned %v, want 100000", out.FilesCloned)
		}
		if !w.Exists("d050/new") || w.Exists("d099/f999") || w.Exists("d001") || w.Read("d000/f000") != "content\nmore\n" {
			t.Error("the change did not arrive")
		}
	})
}

func TestOverlayBranchWalksNothing(t *testing.T) {
	// Listing 300 directories would take 600 calls of getdents64; a branch
	// that walks nothing lists only what is its own.
	w := lab.NewWith(t, lab.Strategy{Name: "overlay"})
	for d := range 300 {
		w.Write(fmt.Sprintf("d%d/f", d), "x")
	}
	trace := filepath.Join(w.Base, "trace")
	w.Host("strace", "-f", "-qq", "-e", "trace=getdents64", "-o", trace, lab.Hutch(t), "run", "--strategy", "overlay", "--", "true")
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "getdents64("); n > 150 {
		t.Errorf("%d directory reads in a run that changes nothing", n)
	}
}

func TestExtendedAttributes(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		if exec.Command("python3", "-c", "import os; os.setxattr('"+w.Dir+"/a.txt', 'user.note', b'host')").Run() != nil {
			t.Fatal("no user xattrs here")
		}
		before := w.Snap()
		out, r := w.JSON("--commit", "--", "python3", "-c", "import os; assert os.getxattr('a.txt', 'user.note') == b'host'; open('new', 'w').write('x'); os.setxattr('new', 'user.note', b'box')")
		w.Want(r, 0)
		equal(t, "modified", out.Diff.FilesModified)
		after := w.Snap()
		if after["a.txt"] != before["a.txt"] {
			t.Error("a.txt changed")
		}
		if want := fmt.Sprintf("user.note=%x;", "box"); after["new"].Xattrs != want {
			t.Errorf("xattrs of the promoted file: %q, want %q", after["new"].Xattrs, want)
		}
	})
}

// No name reaches so deep, but programs that go there step by step do.
func TestPathsBeyondPathMax(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		const list = "find . -mindepth 1 -path ./.hutch -prune -o -printf '%p %y %m %s %T@\\n' | sort"
		before := w.Host("sh", "-c", list)
		const deep = `import os
os.mkdir("deep"); at = os.open("deep", os.O_RDONLY)
for _ in range(60):
    os.mkdir("x" * 100, dir_fd=at); at, was = os.open("x" * 100, os.O_RDONLY, dir_fd=at), at; os.close(was)
f = os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=at); os.write(f, b"deep")`
		w.Want(w.Box("--commit", "--", "python3", "-c", deep), 0)
		if got := w.Host("sh", "-c", "find deep -name bottom -execdir cat {} +"); got != "deep" {
			t.Errorf("the file at the bottom holds %q", got)
		}
		w.Want(w.Run("undo"), 0)
		if after := w.Host("sh", "-c", list); after != before {
			t.Errorf("undo left\n%s\nof\n%s", after, before)
		}
	})
}

func TestModeOfTheWorkspaceItself(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		out, r := w.JSON("--commit", "--", "true")
		w.Want(r, 0)
		if len(out.Notes) != 0 {
			t.Errorf("nothing was changed: %q", out.Notes)
		}
		before := w.Snap()["."].Mode
		out, r = w.JSON("--commit", "--", "sh", "-c", "echo x > x; chmod 700 .")
		w.Want(r, 0)
		if w.Read("x") != "x\n" || w.Snap()["."].Mode != before {
			t.Errorf("%v", r)
		}
		if len(out.Notes) != 1 || !strings.Contains(out.Notes[0], "0755 to 0700") {
			t.Errorf("it does not say what stayed behind: %q", out.Notes)
		}
	})
}
