package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// renamePy is what every script here begins with: rename(2) with flags, and the
// name of the errno that came of it.
const renamePy = `
import os, sys, ctypes, errno, platform, stat
libc = ctypes.CDLL(None, use_errno=True)
NR = {"x86_64": 316, "aarch64": 276}[platform.machine()]
AT = -100
NOREPLACE, EXCHANGE = 1, 2
def rename(old, new, flags=0, old_dir=AT, new_dir=AT):
    ctypes.set_errno(0)
    if libc.syscall(NR, old_dir, os.fsencode(old), new_dir, os.fsencode(new), flags) == 0: return "ok"
    return errno.errorcode[ctypes.get_errno()]
def tree(top):
    "what a tree looks like; only old times are told"
    out = []
    def look(path):
        st = os.lstat(path)
        kind, line = stat.S_IFMT(st.st_mode), "%s %o" % (os.fsdecode(path), st.st_mode)
        line += " %d" % st.st_mtime_ns if st.st_mtime < 1500000000 else " now"
        if kind == stat.S_IFLNK: line += " -> " + os.readlink(path)
        try: line += " " + repr({n: os.getxattr(path, n, follow_symlinks=False) for n in sorted(os.listxattr(path, follow_symlinks=False))})
        except OSError: pass
        if kind == stat.S_IFREG:
            try: line += " " + open(path).read()
            except OSError as e: line += " " + errno.errorcode[e.errno]
        names = []
        if kind == stat.S_IFDIR:
            try: names = sorted(os.listdir(path))
            except OSError as e: line += " " + errno.errorcode[e.errno]
        out.append(line)
        for n in names: look(os.path.join(path, n))
    look(top)
    return out
`

// both runs a script in a box and on a plain copy of the workspace, and fails
// where it says something else or leaves another tree. It returns what the box
// said.
func both(t *testing.T, w *lab.World, script string, args ...string) string {
	t.Helper()
	control := filepath.Join(w.Base, "control")
	w.Host("cp", "-a", w.Dir, control)
	argv := append([]string{"python3", "-c", renamePy + script}, args...)
	want := w.Host(append([]string{"sh", "-c", `cd "$0" && exec "$@"`, control}, argv...)...)
	r := w.Box(append([]string{"--commit", "--"}, argv...)...)
	w.Want(r, 0)
	lines(t, "the box and the plain directory", want, r.Stdout)
	// Promotion gives what it promoted times of its own.
	for _, d := range withoutTimes(lab.Snapshot(t, control).Without(".")).Diff(withoutTimes(w.Snap().Without(".", ".hutch"))) {
		t.Errorf("promoted, against the plain directory: %s", d)
	}
	w.Host("chmod", "-R", "u+rwX", control)
	if err := os.RemoveAll(control); err != nil {
		t.Error(err)
	}
	return r.Stdout
}

// lines reports the first lines in which two texts differ.
func lines(t *testing.T, what, want, got string) {
	t.Helper()
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i, reported := 0, 0; i < max(len(a), len(b)) && reported < 5; i++ {
		x, y := "(nothing)", "(nothing)"
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			t.Errorf("%s: line %d is %q, want %q", what, i+1, y, x)
			reported++
		}
	}
}

// eachOverlay is lab.Each for what only an overlay could get wrong.
func eachOverlay(t *testing.T, f func(t *testing.T, w *lab.World)) {
	t.Run("overlay", func(t *testing.T) { f(t, lab.NewWith(t, lab.Strategy{Name: "overlay"})) })
}

// forest fills the workspace with directories of every kind, with old times.
func forest(w *lab.World) {
	w.Host("sh", "-ec", `cd "$0"
		mkdir -p src/sub/deep src/empty dst full/in lone a/b/c
		echo 1 > src/one; echo 2 > src/sub/two; echo 3 > src/sub/deep/three; echo f > full/in/f; echo c > a/b/c/file; echo p > plain
		ln -s one src/link; ln -s /nowhere src/sub/dangling; ln -s src dirlink; mkfifo src/fifo; chmod 600 src/one; chmod 750 src/sub; chmod 1777 src/empty
		python3 -c 'import os, socket; os.chdir("src"); socket.socket(socket.AF_UNIX).bind("sock"); os.setxattr("sub", "user.note", b"x"); os.setxattr("one", "user.note", b"y")'
		find . -exec touch -h -d '2001-02-03 04:05:06.789' {} +`, w.Dir)
}

func TestRenameDirectoryByEveryTool(t *testing.T) {
	for _, c := range []struct{ name, command string }{
		{"mv", `mv src moved`},
		{"python os.rename", `python3 -c 'import os; os.rename("src", "moved")'`},
		{"python shutil.move", `python3 -c 'import shutil; shutil.move("src", "moved")'`},
		{"node fs.renameSync", `node -e 'require("fs").renameSync("src", "moved")'`},
		{"perl rename", `perl -e 'rename("src", "moved") or die $!'`},
		{"renameat2", `python3 -c '` + renamePy + `
r = rename("src", "moved", NOREPLACE); assert r == "ok", r'`},
		{"git mv", `git init -q . && git -c core.safecrlf=false add src && git mv src moved && rm -rf .git`},
	} {
		each := eachOverlay
		if c.name == "python os.rename" {
			each = lab.Each
		}
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, w *lab.World) {
				forest(w)
				w.Host("rm", filepath.Join(w.Dir, "src/fifo"), filepath.Join(w.Dir, "src/sock")) // never promoted
				control := filepath.Join(w.Base, "control")
				w.Host("cp", "-a", w.Dir, control)
				w.Host("sh", "-ec", `cd "$0" && `+c.command, control)
				// No GIT_DIR of the host matters: the box has none.
				out, r := w.JSON("--commit", "--mtime", "keep", "--", "sh", "-ec", c.command)
				w.Want(r, 0)
				equal(t, "created", out.Diff.FilesCreated, "moved/", "moved/empty/", "moved/link", "moved/one", "moved/sub/", "moved/sub/dangling", "moved/sub/deep/", "moved/sub/deep/three", "moved/sub/two")
				equal(t, "deleted", out.Diff.FilesDeleted, "src/", "src/empty/", "src/link", "src/one", "src/sub/", "src/sub/dangling", "src/sub/deep/", "src/sub/deep/three", "src/sub/two")
				equal(t, "modified", out.Diff.FilesModified)
				for _, d := range withoutTimes(lab.Snapshot(t, control)).Diff(withoutTimes(w.Snap().Without(".hutch"))) {
					t.Errorf("promoted, against a plain directory: %s", d)
				}
				now, want := w.Snap(), lab.Snapshot(t, control)
				for path, n := range now {
					if strings.HasPrefix(path, "moved") && n.Mtime != want[path].Mtime {
						t.Errorf("%s has the time %v, want %v", path, time.Unix(0, n.Mtime), time.Unix(0, want[path].Mtime))
					}
				}
			})
		})
	}
}

func TestRenameSemantics(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		forest(w)
		w.Host("rm", filepath.Join(w.Dir, "src/fifo"), filepath.Join(w.Dir, "src/sock"))
		said := both(t, w, `
def say(what, *a, **k): print(what, rename(*a, **k), flush=True)
os.chmod("src/sub/deep", 0o2775)
say("target is full", "src", "full")
say("target is empty", "src", "dst"); say("and back", "dst", "src")
say("target is a file", "src", "plain")
say("file to directory", "plain", "src")
say("into itself", "src", "src/sub/in")
say("over its parent", "src/sub", "src")
say("onto itself", "src", "src")
say("no source", "none", "x")
say("no parent", "src", "none/x")
say("parent is a file", "src", "plain/x")
say("noreplace, target is there", "src", "lone", NOREPLACE)
say("noreplace", "src/sub", "sub", NOREPLACE)
say("exchange directories", "src", "full", EXCHANGE)
say("exchange with a file", "full", "plain", EXCHANGE)
say("exchange, no target", "full", "none", EXCHANGE)
say("exchange and noreplace", "src", "full", EXCHANGE | NOREPLACE)
say("unknown flag", "src", "full", 64)
say("trailing slashes", "a///", "a2//"); say("file with a slash", "plain/", "p2")
say("link to a directory", "dirlink", "l2"); say("link with a slash", "l2/", "l3")
say("dot", "a2/.", "x"); say("dot dot", "a2/b/..", "x"); say("to dot", "a2", "src/.")
say("empty name", "", "x"); say("to an empty name", "a2", "")
say("long name", "a2", "n" * 256); say("longest name", "a2", "n" * 255); say("back", "n" * 255, "a2")
say("long path", "x/" * 2048, "y")
fd = os.open("a2", os.O_RDONLY); top = os.open(".", os.O_PATH)
say("by descriptor", "b/c", "c2", 0, fd, top); say("bad descriptor", "b", "x", 0, 77, AT); say("descriptor of a file", "b", "x", 0, os.open("full", os.O_RDONLY), AT)
os.chdir("a2"); say("from a working directory", "b", "../b2"); os.chdir("..")
say("absolute", os.path.abspath("b2"), os.path.abspath("a2/b3"))
say("new directory", "src", "src2"); os.mkdir("made"); say("made here", "made", "made2"); say("into one made here", "a2", "made2/a3")
say("through a link", "l2", "src")
open("made2/a3/new", "w").write("n"); say("again, with new things", "made2/a3", "a4")
os.remove("a4/new"); say("again", "a4", "a5")
print("\n".join(tree(".")))
os.chmod("sub/deep", 0o775) # setgid is never promoted
`)
		if strings.Contains(said, "EXDEV") {
			t.Errorf("EXDEV in a box:\n%s", said)
		}
	})
}

// TestRenameDifferential makes a random sequence of operations on a plain
// directory and in a box: every errno and the tree in the end must be the same.
func TestRenameDifferential(t *testing.T) {
	seeds, steps := 6, 120
	if lab.Proof() {
		seeds, steps = 30, 300
	}
	strict := "1"
	if root() {
		strict = "0" // on the host root passes every mode, and in a box nobody does
	}
	eachOverlay(t, func(t *testing.T, _ *lab.World) {
		for seed := range seeds {
			t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
				w := lab.NewWith(t, lab.Strategy{Name: "overlay"})
				forest(w)
				both(t, w, `
import random
seed, steps, strict = map(int, sys.argv[1:])
r = random.Random(seed)
def paths():
    out = []
    for d, dirs, files in os.walk("."):
        dirs.sort()
        out += [os.path.join(d, n)[2:] for n in dirs + sorted(files)]
    return out
names = ["n%d" % i for i in range(6)] + ["src", "sub", "in"]
def some(): return r.choice(paths() or ["none"])
def fresh():
    dirs = [p for p in paths() if os.path.isdir(p) and not os.path.islink(p)] + ["."]
    return os.path.join(r.choice(dirs), r.choice(names))
def attempt(f, *a):
    try: f(*a); return "ok"
    except OSError as e: return errno.errorcode[e.errno]
def write(p, mode): 
    with open(p, mode) as f: f.write("w")
for i in range(steps):
    k = r.random()
    if k < .55:
        old = some() if r.random() < .95 else fresh()
        new = some() if r.random() < .4 else fresh()
        flags = r.choice([0, 0, 0, NOREPLACE, EXCHANGE])
        if r.random() < .1: old += "/"
        if r.random() < .1: new += "/"
        what = ("rename", old, new, flags)
        fds = []
        if r.random() < .3:
            d = r.choice([p for p in paths() if os.path.isdir(p)] + ["."])
            try: fds = [os.open(d, os.O_RDONLY)]
            except OSError: pass
        got = rename(os.path.relpath(old, d) if fds else old, new, flags, fds[0] if fds else AT)
        for fd in fds: os.close(fd)
    elif k < .65: p = fresh(); what, got = ("mkdir", p), attempt(os.mkdir, p)
    elif k < .73: p = fresh(); what, got = ("write", p), attempt(write, p, "w") if not os.path.lexists(p) or os.path.isfile(p) or os.path.isdir(p) else "-"
    elif k < .80: p = some(); what, got = ("append", p), attempt(write, p, "a") if os.path.isfile(p) or os.path.isdir(p) else "-"
    elif k < .85: p = some(); what, got = ("unlink", p), attempt(os.unlink, p)
    elif k < .90: p = some(); what, got = ("rmdir", p), attempt(os.rmdir, p)
    elif k < .95: p, q = some(), fresh(); what, got = ("symlink", p, q), attempt(os.symlink, p, q)
    else:
        p = some()
        mode = r.choice([0o755, 0o555, 0o000, 0o700, 0o711] if strict else [0o755, 0o700, 0o750])
        what, got = ("chmod", p, oct(mode)), attempt(os.chmod, p, mode, ) if not os.path.islink(p) else "-"
    print(i, *what, got)
print("\n".join(tree(".")))
def open_up(d):
    os.chmod(d, 0o755)
    for e in os.scandir(d):
        if e.is_dir(follow_symlinks=False): open_up(e.path)
        elif stat.S_IFMT(e.stat(follow_symlinks=False).st_mode) in (stat.S_IFIFO, stat.S_IFSOCK): os.remove(e.path)
        elif not e.is_symlink(): os.chmod(e.path, 0o644)
open_up(".") # or nothing of it can be promoted
`, fmt.Sprint(seed), fmt.Sprint(steps), strict)
			})
		}
	})
}
