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
	r := w.Box(append([]string{"--commit", "--allow-path", "**", "--"}, argv...)...) // renames, not the guard
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
		ln -s one src/link; ln -s gone src/sub/dangling; ln -s src dirlink; mkfifo src/fifo; chmod 600 src/one; chmod 750 src/sub; chmod 1755 src/empty
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
				if !root() {
					w.Host("sh", "-ec", `cd "$0" && mkdir -p src/ro/in full/shut/in && echo r > src/ro/in/f && echo s > full/shut/in/f
						chmod 555 src/ro/in src/ro && chmod 500 full/shut`, w.Dir)
				}
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

// killPy kills whatever can be killed in a box.
const killPy = `
import signal
def kill_all():
    "every process of the box but this one and PID 1"
    me = os.getpid()
    for p in filter(str.isdigit, os.listdir("/proc")):
        if int(p) not in (1, me):
            try: os.kill(int(p), signal.SIGKILL)
            except OSError: pass
`

func TestNothingInTheBoxStopsItsRenames(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		forest(w)
		for i := range 400 {
			w.Write(fmt.Sprintf("big/d%d/f%d", i%20, i), "x")
		}
		// Threads of PID 1 are what the mover is; each is sent everything.
		r := w.Box("--timeout", "100s", "--", "python3", "-c", renamePy+killPy+`
import threading, time
going = True
def shoot():
    libc.syscall.restype = ctypes.c_long
    tgkill = {"x86_64": 234, "aarch64": 131}[platform.machine()]
    while going:
        try: threads = os.listdir("/proc/1/task")
        except OSError: threads = ["1"]
        for t in threads:
            for s in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV): libc.syscall(tgkill, 1, int(t), int(s))
        os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGSTOP)
t = threading.Thread(target=shoot, daemon=True); t.start()
assert rename("big", "big2") == "ok"
kill_all()
for i in range(100):
    assert rename("plain", "p2") == "ok" and rename("p2", "plain") == "ok"
assert rename("src", "src2") == "ok"
going = False; t.join()
print(sum(len(f) for d, ds, f in os.walk("big2")), os.path.exists("big"), [n for n in os.listdir(".") if n.startswith(".hutch")])
`)
		w.Want(r, 0)
		if r.Stdout != "400 False []\n" {
			t.Errorf("the box says %q", r.Stdout)
		}
	})
}

// A caller that changes what it asked for while it waits, and swaps links and
// directories under the mover, must not reach anything that it could not have
// moved itself.
func TestRenameRaces(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		rounds := 300
		if lab.Proof() {
			rounds = 5000
		}
		outside := filepath.Join(w.Base, "outside")
		w.Host("mkdir", "-p", filepath.Join(outside, "dir"))
		for i := range 20 {
			w.Write(fmt.Sprintf("d%d/sub/f", i), "x")
			w.Write(fmt.Sprintf("d%d/g", i), "y")
		}
		before := lab.Snapshot(t, outside)
		r := w.Box("--timeout", "150s", "--", "python3", "-c", renamePy+`
import threading, random
rounds, outside = int(sys.argv[1]), sys.argv[2]
r = random.Random(1)
old, new = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(4096)
old.value = b"d0"; new.value = b"e0"
going = True
targets = [b"d%d" % i for i in range(20)] + [b"e%d" % i for i in range(20)] + [b"../outside/dir", os.fsencode(outside) + b"/dir", b"/etc", b"/usr/bin", b"/proc/1/cwd", b"link/dir", b"d1/../../outside/dir", b"/proc/self/fd/3", b"x" * 4000, b""]
def scribble():
    while going:
        b = random.choice((old, new)); v = random.choice(targets); ctypes.memmove(b, v + b"\0", len(v) + 1)
def swap():
    while going:
        for to in (outside, "d1", "/etc", "."):
            try: os.symlink(to, "l2"); os.replace("l2", "link")
            except OSError: pass
def shuffle():
    while going: rename(r.choice(["d2", "e2", "d2/sub"]), r.choice(["d2", "e2", "d3/sub", "e3"]), r.choice([0, EXCHANGE]))
ts = [threading.Thread(target=f, daemon=True) for f in (scribble, swap, shuffle)]
for t in ts: t.start()
seen = {}
i = 0
while i < rounds or 0 not in seen and i < 100 * rounds:
    i += 1
    ctypes.set_errno(0)
    libc.syscall(NR, AT, old, AT, new, r.choice([0, 1, 2]))
    e = ctypes.get_errno(); seen[e] = seen.get(e, 0) + 1
going = False
for t in ts: t.join()
if 0 not in seen: sys.exit("no rename succeeded: %r" % seen)
for n in os.listdir("."):
    if n.startswith(".hutch-move"): sys.exit("left behind: " + n)
files = sum(len(f) for d, ds, f in os.walk("."))
print(files)
`, fmt.Sprint(rounds), outside)
		w.Want(r, 0)
		if r.Stdout != "40\n" && r.Stdout != "41\n" { // and the link, where it is one to no directory
			t.Errorf("%q files are left, want 40", r.Stdout)
		}
		if diff := before.Diff(lab.Snapshot(t, outside)); len(diff) > 0 {
			t.Errorf("outside the workspace: %q", diff)
		}
	})
}

// Whom the mover may not read is told what the kernel says by itself, and
// nothing hangs.
func TestRenameByWhoCannotBeServed(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		forest(w)
		r := w.Box("--", "python3", "-c", renamePy+`
def child(f):
    pid = os.fork()
    if pid == 0:
        try: print(f(), flush=True)
        finally: os._exit(0)
    os.waitpid(pid, 0)
def undumpable():
    assert libc.prctl(4, 0, 0, 0, 0) == 0
    return rename("src", "src2")
def confined():
    "a Landlock domain that may write nowhere: a mover that served it would be a way out"
    attr = ctypes.c_uint64((1 << 13) - 1 | 1 << 13)
    fd = libc.syscall(444, ctypes.byref(attr), 8, 0)
    if fd < 0: return "EACCES"
    assert libc.syscall(446, fd, 0) == 0
    first = rename("full", "full2")
    if os.fork() == 0: # an orphan, soon
        os.setsid()
        if os.fork() == 0:
            while os.getppid() != 1: pass
            print(rename("full", "full2"), flush=True)
            open("/dev/null"); os._exit(0)
        os._exit(0)
    os.wait()
    return first
child(undumpable)
child(confined)
import time; time.sleep(0.3)
print(rename("full", "full3"), rename("lone", "lone2"))
`)
		w.Want(r, 0)
		want := "EXDEV\nEACCES\nEACCES\nok ok\n"
		if root() {
			want = "ok\nEACCES\nEACCES\nok ok\n" // its overlay needs no mover
		}
		if r.Stdout != want {
			t.Errorf("the box says %q, want %q", r.Stdout, want)
		}
	})
}

func TestDeadlineHoldsDuringAMove(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		for d := range 100 {
			for f := range 100 {
				w.Write(fmt.Sprintf("big/d%d/f%d", d, f), "x")
			}
		}
		before := w.Snap()
		out, r := w.JSON("--timeout", "500ms", "--", "python3", "-c", `
import os
i = 0
while True: os.rename("big", "big%d" % i); os.rename("big%d" % i, "big"); i += 1
`)
		w.Want(r, 124)
		if out.Status != "timeout" || out.DurationMS > 5000 {
			t.Errorf("status %q after %v ms", out.Status, out.DurationMS)
		}
		w.Untouched(before)
	})
}

// A move that is under way when the command ends is finished or undone, never
// cut off: what is promoted is one tree or the other.
func TestMoveOutlivesItsCommand(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		for f := range 2000 {
			w.Write(fmt.Sprintf("big/d%d/f%d", f%40, f), "x")
		}
		for range 3 {
			r := w.Box("--commit", "--", "sh", "-c", `python3 -c 'import os; os.rename("big", "moved")' & sleep 0.15; exit 0`)
			w.Want(r, 0)
			var at []string
			for _, name := range []string{"big", "moved"} {
				if w.Exists(name) {
					at = append(at, name)
				}
			}
			entries, err := os.ReadDir(w.Dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), ".hutch-move") {
					t.Errorf("promoted %s", e.Name())
				}
			}
			if len(at) != 1 {
				t.Fatalf("the directory is at %q", at)
			}
			n := 0
			filepath.WalkDir(filepath.Join(w.Dir, at[0]), func(_ string, d os.DirEntry, _ error) error {
				if d != nil && !d.IsDir() {
					n++
				}
				return nil
			})
			if n != 2000 {
				t.Errorf("%s holds %d files", at[0], n)
			}
			if at[0] == "moved" {
				w.Host("mv", filepath.Join(w.Dir, "moved"), filepath.Join(w.Dir, "big"))
			}
		}
	})
}

func TestManyRenamesAtOnce(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		for d := range 60 {
			w.Write(fmt.Sprintf("d%d/sub/f", d), "x")
		}
		r := w.Box("--timeout", "100s", "--", "python3", "-c", renamePy+`
pids = []
for d in range(60):
    pid = os.fork()
    if pid == 0:
        got = [rename("d%d" % d, "e%d" % d), rename("e%d/sub/f" % d, "f%d" % d), rename("e%d/sub" % d, "s%d" % d)]
        if got != ["ok"] * 3: print(d, got, flush=True)
        os._exit(got != ["ok"] * 3)
    pids.append(pid)
print(sum(os.waitpid(p, 0)[1] != 0 for p in pids), sorted(os.listdir(".")) == sorted("%s%d" % (c, d) for c in "efs" for d in range(60)))
`)
		w.Want(r, 0)
		if r.Stdout != "0 True\n" {
			t.Errorf("the box says %q", r.Stdout)
		}
		// A fork bomb whose every process renames ends with its deadline.
		r = w.Box("--timeout", "1s", "--pids", "300", "--", "python3", "-c", `
import os
while True:
    try: os.fork()
    except OSError: pass
    try: os.rename("d%d" % (os.getpid() % 60), "g%d" % os.getpid()); os.rename("g%d" % os.getpid(), "d%d" % (os.getpid() % 60))
    except OSError: pass
`)
		w.Want(r, 124)
	})
}

// What the kernel gives no way to move is refused as before, and left whole.
func TestMoveThatFailsLeavesAllAsItWas(t *testing.T) {
	eachOverlay(t, func(t *testing.T, w *lab.World) {
		forest(w)
		deep := strings.Repeat(strings.Repeat("n", 200)+"/", 12)
		w.Host("mkdir", "-p", filepath.Join(w.Dir, "deep", deep))
		// Beyond PATH_MAX only relative to a descriptor.
		r := w.Box("--", "python3", "-c", renamePy+`
os.chdir("deep")
n = 0
while os.listdir("."): os.chdir(os.listdir(".")[0]); n += 1
for i in range(40): os.mkdir("m" * 200); os.chdir("m" * 200)
open("bottom", "w").write("b")
os.chdir(sys.argv[1])
print(rename("deep", "deep2"))
os.chdir("deep2")
while not os.path.exists("bottom"): os.chdir(os.listdir(".")[0]); n += 1
print(open("bottom").read())
os.chdir(sys.argv[1])
`, w.Dir)
		w.Want(r, 0)
		if r.Stdout != "ok\nb\n" {
			t.Errorf("the box says %q", r.Stdout)
		}

		// A layer too small for what is moved.
		for i := range 40 {
			w.Write(fmt.Sprintf("fat/d%d/f", i), strings.Repeat("x", 100_000))
		}
		w.Host("chmod", "555", filepath.Join(w.Dir, "fat/d7"))
		w.Host("sh", "-c", `find "$0" -exec touch -d 2001-01-01 {} +`, filepath.Join(w.Dir, "fat"))
		r = w.Box("--layer", "ram", "--layer-size", "1m", "--", "python3", "-c", renamePy+`
before = tree("fat")
print(rename("fat", "thin"), os.path.exists("fat") and tree("fat") == before, os.path.exists("thin"), [n for n in os.listdir(".") if n.startswith(".hutch")])
`)
		w.Want(r, 0)
		want := "ENOSPC True False []\n"
		if root() {
			want = "ok False True []\n" // nothing is copied where a rename leaves a note
		}
		if r.Stdout != want {
			t.Errorf("the box says %q, want %q", r.Stdout, want)
		}
		w.Host("chmod", "755", filepath.Join(w.Dir, "fat/d7"))
	})
}

// TestToolsOnAnOverlay runs what is known to stumble over overlays, over files
// of the layer below, beside the same on a plain directory.
func TestToolsOnAnOverlay(t *testing.T) {
	const git = `export GIT_AUTHOR_DATE=2001-01-01T00:00:00Z GIT_COMMITTER_DATE=2001-01-01T00:00:00Z GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e@x GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e@x; `
	for _, c := range []struct{ name, host, box string }{
		{"git", git + `git init -q -b main r && cd r && mkdir -p d/e && echo 1 > d/e/f && echo 2 > g && git add . && git commit -qm one && git branch side && echo 3 >> g && git commit -qam two`,
			git + `cd r && git mv d moved && git commit -qm move && git checkout -q side && echo s > s && git add s && git commit -qm side && git rebase -q main &&
			git gc -q && git worktree add -q ../wt main && git -C ../wt mv moved again && git -C ../wt commit -qm again && git worktree move ../wt ../wt2 && git worktree remove ../wt2 &&
			git clone -q . ../c && git clone -q --no-hardlinks . ../c2 && git stash list && git fsck --strict && git status --porcelain && git log --format='%H %s' --all && git branch -m main trunk && ls ..`},
		{"sqlite wal", `python3 -c 'import sqlite3; c = sqlite3.connect("db"); c.execute("pragma journal_mode=wal"); c.execute("create table t(a)"); c.commit()'`,
			`cat > w.py <<'X'
import sqlite3, sys
c = sqlite3.connect("db", timeout=60)
for i in range(100):
    with c: c.execute("insert into t values (?)", (sys.argv[1],))
X
			for i in 1 2 3 4; do python3 w.py $i & done; wait; python3 -c 'import sqlite3; c = sqlite3.connect("db"); print(c.execute("select a, count(*) from t group by a").fetchall(), c.execute("pragma integrity_check").fetchall())'`},
		{"npm", `mkdir -p pkg/lib app && cd pkg && echo '{"name":"pkg","version":"1.0.0","bin":{"pkg":"lib/i.js"}}' > package.json && echo 'console.log("pkg")' > lib/i.js && npm pack -s >/dev/null &&
			cd ../app && echo '{"name":"app","version":"1.0.0"}' > package.json && npm install -s --offline --no-audit --no-fund ../pkg/pkg-1.0.0.tgz`,
			`cd app && npm install -s --offline --no-audit --no-fund ../pkg/pkg-1.0.0.tgz && npm ls && npm ci -s --offline --no-audit --no-fund && node -e 'const fs = require("fs"); fs.renameSync("node_modules", "nm"); fs.renameSync("nm", "node_modules"); fs.cpSync("node_modules", "nm2", {recursive: true})' && node node_modules/pkg/lib/i.js && npm uninstall -s --offline --no-audit --no-fund pkg && ls`},
		{"venv", `python3 -m venv --without-pip v && mkdir -p src/m && echo 'x = 1' > src/m/__init__.py`,
			`v/bin/python -c 'import sys; sys.path.insert(0, "src"); import m; print(m.x)' && mv v v2 && v2/bin/python -c 'print(2)' && python3 -m venv --without-pip --clear v2 && python3 -m compileall -q src && ls src/m`},
		{"make", `printf 'out/b: in/a\n\tmkdir -p out && cp in/a out/b\n' > Makefile && mkdir in && echo 1 > in/a && make -s`,
			`make -s -q && mv out out2 && mv out2 out && make -s -q && touch in/a && ! make -s -q && make -s && cat out/b`},
		{"tar", `mkdir -p t/a/b && echo 1 > t/a/b/c && ln t/a/b/c t/hard && ln -s a t/l && tar cf t.tar t`,
			`tar xf t.tar && tar --recursive-unlink -xf t.tar && rm -rf t && tar xf t.tar && find t | sort && tar df t.tar && [ t/hard -ef t/a/b/c ] && echo same`},
		{"rsync", `mkdir -p a/x/y b && echo 1 > a/x/y/z && cp -a a b/old`,
			`rsync -a --delete a/ b/ && rsync -a --remove-source-files a/ c/ && rsync -a --backup --backup-dir=bak b/ c/ && find . | sort`},
		{"shell tools", `mkdir -p d/sub && for i in 1 2 3; do echo $i > d/sub/f$i; done; ln d/sub/f1 d/l1`,
			`sed -i s/1/one/ d/sub/f1 && cp -a d e && mv d/sub d/sub2 && mv -T e d2 && install -D d2/sub/f2 x/y/z && find d -type f -newer x -print; rm -rf d && mv d2 d && find . | sort && cat d/sub/f1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachOverlay(t, func(t *testing.T, w *lab.World) {
				w.Host("sh", "-ec", `cd "$0"; `+c.host, w.Dir)
				control := filepath.Join(w.Base, "control")
				w.Host("cp", "-a", w.Dir, control)
				want := strings.ReplaceAll(w.Host("sh", "-ec", `cd "$0"; `+c.box, control), control, w.Dir)
				r := w.Box("--", "sh", "-ec", c.box)
				w.Want(r, 0)
				lines(t, "the box and the plain directory", want, r.Stdout)
			})
		})
	}
}

func TestMoveKeepsHardLinks(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Host("sh", "-ec", `cd "$0" && mkdir -p d/sub e && echo 1 > d/a && ln d/a d/b && ln d/a d/sub/c && echo 2 > d/x && ln d/x e/outside`, w.Dir)
		r := w.Box("--commit", "--", "python3", "-c", renamePy+`
print(rename("d", "d2"), len({os.stat(p).st_ino for p in ("d2/a", "d2/b", "d2/sub/c")}), os.stat("d2/b").st_nlink)
print(rename("d2", "d3"), rename("d3/sub", "s"), len({os.stat(p).st_ino for p in ("d3/a", "d3/b", "s/c")}))
`)
		w.Want(r, 0)
		if r.Stdout != "ok 1 3\nok ok 1\n" {
			t.Errorf("the box says %q", r.Stdout)
		}
		if n := w.Snap()["s/c"].Nlink; n != 3 {
			t.Errorf("promoted with %d names, want 3", n)
		}
	})
}
