package crash

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// marker is in the name of every directory that these tests make.
const marker = "hutch-crash-"

// place is a user's machine in small.
type place struct {
	t     testing.TB
	base  string
	ws    string
	state string // XDG_STATE_HOME
	layer string // --layer-dir, "" for the state directory
	uid   int    // who runs hutch; -1 is whoever runs the test
	bin   string
	// ownDisk says that the workspace is on a disk that this very process
	// serves. A child that is being forked must not touch that: Go cannot
	// stop for garbage collection meanwhile, and if it has to, neither goes on.
	ownDisk bool
	env     []string
}

// scratch makes a directory in memory where that holds xattrs, since to kill a
// process loses nothing that was not flushed; else in the temporary directory.
// HUTCH_CRASH_DIR names another place, such as a file system to try.
func scratch(t testing.TB) string {
	t.Helper()
	parents := []string{"/dev/shm", ""}
	if dir := os.Getenv("HUTCH_CRASH_DIR"); dir != "" {
		parents = []string{dir, ""}
	}
	for _, parent := range parents {
		dir, err := os.MkdirTemp(parent, marker)
		if err != nil {
			continue
		}
		if unix.Setxattr(dir, "user.probe", []byte("1"), 0) != nil && parent != "" {
			os.Remove(dir)
			continue
		}
		unix.Removexattr(dir, "user.probe")
		check(t, os.Chmod(dir, 0o755))
		t.Cleanup(func() { purge(dir) })
		return dir
	}
	t.Fatal("no directory to work in")
	return ""
}

// purge removes a tree with directories of any mode.
func purge(dir string) {
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	if os.RemoveAll(dir) != nil {
		os.RemoveAll(dir)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// command is hutch as its user runs it in the workspace.
func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.bin, args...)
	cmd.Dir = p.ws
	if p.ownDisk {
		cmd = exec.Command("sh", append([]string{"-c", `cd "$0" && exec "$@"`, p.ws, p.bin}, args...)...)
	}
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + p.base + "/home", "XDG_STATE_HOME=" + p.state,
		"TMPDIR=" + p.base + "/tmp", "LANG=C.UTF-8", "TERM=dumb",
	}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if p.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(p.uid), Gid: uint32(p.uid)}
	}
	return cmd
}

// hutch runs it to its end and returns both its outputs.
func (p *place) hutch(args ...string) (code int, out string) {
	cmd := p.command(args...)
	var buf bytes.Buffer
	cmd.Stdout, cmd.Stderr = &buf, &buf
	limit := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	err := cmd.Run()
	limit.Stop()
	if cmd.ProcessState == nil {
		p.t.Fatalf("hutch %q: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), buf.String()
}

// must runs hutch and fails the test if it fails.
func (p *place) must(args ...string) string {
	p.t.Helper()
	code, out := p.hutch(args...)
	if code != 0 {
		p.t.Fatalf("hutch %q: exit %d: %s", args, code, out)
	}
	return out
}

// own gives a path to the user of the place.
func (p *place) own(path string) {
	p.t.Helper()
	if p.uid >= 0 {
		check(p.t, os.Lchown(path, p.uid, p.uid))
	}
}

// edit is what the box does: every kind of change at once. The times are set,
// so that with --mtime=keep the state after it is known to the nanosecond.
const edit = `
echo a-new > a
{ echo new; echo new; } > src/m.py; chmod 755 src/m.py
rm src/gone
chmod 755 tool
rm -r d2f; echo 'now a file' > d2f
rm f2d; mkdir -p f2d/deep; echo in > f2d/in; echo x > f2d/deep/er; ln -s ../a f2d/l
rm -r opq; mkdir opq; echo fresh > opq/fresh
rm -r tree
rm l2f; echo real > l2f
rm lnk; ln -s src lnk
rm f2l; ln -s keep f2l
rmdir empty
mkdir newdir; for i in 0 1 2 3; do echo n$i > newdir/n$i; done; chmod 700 newdir
echo c > src/new.c
echo h2 > hl1
cp -a attr.src attr
chmod 700 dmode
echo new > ro/f
head -c 100000 /dev/zero | tr '\0' x > big
touch -h -d @1700000900.123456789 a src/m.py src/new.c d2f f2d/in f2d/deep/er f2d/l opq/fresh l2f lnk f2l newdir/n? hl1 attr ro/f big
touch -d @1700000901.5 f2d/deep opq newdir
touch -d @1700000902.5 f2d
`

// changed is how many paths of the workspace edit changes, those in
// directories that it makes included.
const changed = 34

// parents are the directories whose own entries edit changes. Their time is
// that of the promotion.
var parents = []string{".", "src", "ro", "opq"}

// plant fills the workspace with what edit is for.
func (p *place) plant() {
	t := p.t
	t.Helper()
	var made []string
	dir := func(rel string) {
		check(t, os.MkdirAll(filepath.Join(p.ws, rel), 0o755))
		made = append(made, rel)
	}
	file := func(rel, content string) {
		check(t, os.WriteFile(filepath.Join(p.ws, rel), []byte(content), 0o644))
		made = append(made, rel)
	}
	for _, d := range []string{".", "src", "d2f", "d2f/y", "opq", "tree", "tree/s", "empty", "dmode", "ro"} {
		dir(d)
	}
	for _, f := range [][2]string{
		{"a", "a-old\n"}, {"src/m.py", "old\nold\n"}, {"src/gone", "g"}, {"tool", "#!/bin/sh\n"}, {"d2f/x", "1"}, {"d2f/y/z", "2"},
		{"f2d", "file"}, {"opq/not", "k"}, {"tree/1", "1"}, {"tree/s/2", "2"}, {"f2l", "q"}, {"hl1", "h"}, {"attr", "attr"},
		{"attr.src", "attr"}, {"dmode/in", "in"}, {"ro/f", "old"}, {"keep", "keep"},
	} {
		file(f[0], f[1])
	}
	check(t, os.Link(filepath.Join(p.ws, "hl1"), filepath.Join(p.ws, "hl2")))
	for _, l := range []string{"l2f", "lnk"} {
		check(t, os.Symlink("a", filepath.Join(p.ws, l)))
		made = append(made, l)
	}
	check(t, unix.Setxattr(filepath.Join(p.ws, "attr"), "user.gone", []byte("1"), 0))
	check(t, unix.Setxattr(filepath.Join(p.ws, "attr.src"), "user.new", []byte("2"), 0))
	for _, rel := range made {
		p.own(filepath.Join(p.ws, rel))
	}
	check(t, os.Chmod(filepath.Join(p.ws, "ro"), 0o555))
	for i := range made {
		rel := made[len(made)-1-i]
		at := []unix.Timespec{{Sec: 1600000000}, {Sec: 1600000000 + int64(i), Nsec: int64(i)}}
		check(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(p.ws, rel), at, unix.AT_SYMLINK_NOFOLLOW))
	}
}

// newPlace makes a place under base with the workspace before the edit.
func newPlace(t testing.TB, base string) *place {
	t.Helper()
	p := &place{t: t, base: base, ws: base + "/ws", state: base + "/state", uid: -1, bin: lab.Hutch(t)}
	p.furnish()
	return p
}

func (p *place) furnish() {
	p.t.Helper()
	for _, d := range []string{p.base, p.base + "/home", p.base + "/tmp", p.ws, p.state} {
		check(p.t, os.MkdirAll(d, 0o755))
		p.own(d)
	}
	p.plant()
}

// keepBox runs the edit in a box that is kept, and returns its id.
func (p *place) keepBox() string {
	p.t.Helper()
	args := []string{"run", "--json", "--preserve"}
	if p.layer != "" {
		args = append(args, "--layer-dir", p.layer)
	}
	out := p.must(append(args, "--", "sh", "-ec", edit)...)
	var o struct {
		ID   string
		Kept bool
		Diff struct {
			Created  []string `json:"files_created"`
			Modified []string `json:"files_modified"`
			Deleted  []string `json:"files_deleted"`
		}
	}
	check(p.t, json.Unmarshal([]byte(out), &o))
	if n := len(o.Diff.Created) + len(o.Diff.Modified) + len(o.Diff.Deleted); !o.Kept || n != changed {
		p.t.Fatalf("the box changed %d paths, not %d: %s", n, changed, out)
	}
	return o.ID
}

// snap is the workspace as a user sees it, in all that a promotion and its
// recovery promise. Inode change times cannot be set; links into layer and slots
// count as names of a file; the size of a directory is the file system's own.
func (p *place) snap() lab.Tree {
	p.t.Helper()
	tree := lab.Snapshot(p.t, p.ws).Without(".hutch")
	for path, n := range tree {
		n.Ctime, n.Nlink = 0, 0
		if n.Mode&unix.S_IFMT == unix.S_IFDIR {
			n.Size = 0
		}
		if path == "." {
			n.Mtime = 0 // .hutch comes and goes in it
		}
		tree[path] = n
	}
	return tree
}

// ends are the two states in which a workspace may be found.
type ends struct{ old, new lab.Tree }

// is names the state of the workspace: "old", "new", or a mix.
func (e ends) is(now lab.Tree) string {
	if len(e.old.Diff(now)) == 0 {
		return "old"
	}
	// The directories that got or lost entries have the time of that.
	seen := lab.Tree{}
	for path, n := range now {
		seen[path] = n
	}
	for _, dir := range parents {
		if n, ok := seen[dir]; ok {
			n.Mtime = e.new[dir].Mtime
			seen[dir] = n
		}
	}
	d := e.new.Diff(seen)
	if len(d) == 0 {
		return "new"
	}
	return fmt.Sprintf("a mix:\nagainst old %s\nagainst new %s", strings.Join(e.old.Diff(now), "\n  "), strings.Join(d, "\n  "))
}

// learn finds both states by a promotion that nothing disturbs, and checks the
// second against the edit done by hand.
func learn(t testing.TB, base string, make func(base string) *place) ends {
	t.Helper()
	defer purge(base)
	p := make(base)
	var e ends
	e.old = p.snap()
	id := p.keepBox()
	if d := e.old.Diff(p.snap()); len(d) > 0 {
		t.Fatalf("a kept box changed the workspace: %q", d)
	}
	p.must("commit", "--mtime=keep", id)
	e.new = p.snap()

	hand := &place{t: t, base: base + "/hand", ws: base + "/hand/ws", state: base + "/hand/state", uid: p.uid, bin: p.bin}
	hand.furnish()
	cmd := exec.Command("sh", "-ec", "chmod u+w ro;"+edit+"chmod u-w ro")
	cmd.Dir, cmd.SysProcAttr = hand.ws, hand.command().SysProcAttr
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the edit by hand: %v: %s", err, out)
	}
	want := hand.snap()
	// To write one of two hard links in a box parts them.
	n := want["hl2"]
	n.Content, n.Size, n.Mtime = e.old["hl2"].Content, e.old["hl2"].Size, e.old["hl2"].Mtime
	want["hl2"] = n
	// Of a file whose content is the same only the attributes are promoted.
	n = want["attr"]
	n.Mtime = e.old["attr"].Mtime
	want["attr"] = n
	if is := (ends{old: e.old, new: want}).is(e.new); is != "new" {
		t.Fatalf("a promotion is not the edit by hand: %s", is)
	}
	return e
}

// settled recovers by the given command and checks the whole of what a crash may
// leave: the workspace old or new, and the box and the receipts consistent with
// that. It returns "old" or "new".
func (p *place) settled(e ends, id string, recover ...string) (is string, err error) {
	if code, out := p.hutch(recover...); code != 0 {
		return "", fmt.Errorf("hutch %q: exit %d: %s", recover, code, out)
	}
	if is = e.is(p.snap()); is != "old" && is != "new" {
		return is, fmt.Errorf("after %q the workspace is %s", recover, is)
	}
	if code, out := p.hutch("recover"); code != 0 || out != "" {
		return is, fmt.Errorf("a second recovery: exit %d: %s", code, out)
	}
	return is, p.consistent(e, id, is)
}

// consistent checks box and receipts of a workspace that is old or new, and
// that nothing is lost: what did not arrive can still be committed.
func (p *place) consistent(e ends, id, is string) error {
	_, list := p.hutch("box", "list")
	listed := strings.Contains(list, id)
	code, out := p.hutch("commit", "--mtime=keep", id)
	switch {
	case is == "old" && code != 0:
		return fmt.Errorf("the workspace is old and the box cannot be committed: exit %d: %s\n%s", code, out, list)
	case is == "new" && listed && code != 0:
		return fmt.Errorf("the workspace is new and the box, still listed, cannot be done with: exit %d: %s", code, out)
	case is == "new" && code != 0 && !strings.Contains(out, "no box") && !strings.Contains(out, "left behind by a crash") && !strings.Contains(out, id+" is committed"):
		return fmt.Errorf("the workspace is new; commit: exit %d: %s", code, out)
	}
	if now := e.is(p.snap()); now != "new" {
		return fmt.Errorf("the workspace was %s; a commit of the box made it %s", is, now)
	}
	if _, list := p.hutch("box", "list"); strings.Contains(list, id) {
		return fmt.Errorf("the box is still there after all: %s", list)
	}
	if code, out := p.hutch("receipts", "verify"); code != 0 {
		return fmt.Errorf("receipts: exit %d: %s", code, out)
	}
	return p.recorded(id)
}

// recorded checks that the promotion of a box has exactly one receipt.
func (p *place) recorded(id string) error {
	code, out := p.hutch("receipts", "list")
	if code != 0 {
		return fmt.Errorf("receipts: exit %d: %s", code, out)
	}
	found := 0
	for line := range strings.Lines(out) {
		var r struct {
			ID        string
			Committed bool
		}
		check(p.t, json.Unmarshal([]byte(line), &r))
		if strings.HasPrefix(r.ID, id) && r.Committed {
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("the promotion has %d receipts:\n%s", found, out)
	}
	return nil
}
