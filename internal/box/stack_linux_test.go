package box

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// session is what happens in a real overlay, mounted as that of a box that lives
// is, in a mount namespace of a process of its own.
type session struct {
	Lower       []string
	Upper, Work string
	Trusted     bool
	Seed        uint64 // of what is done
	Steps       int
	Script      []string // commands of sh, instead
	Seen        string   // where to write what the overlay tells
	Workspace   string
	Tree        string // where to write the tree that is seen at the end
}

const sessionEnv = "HUTCH_TEST_SESSION"

func TestMain(m *testing.M) {
	fsat.Searcher()
	if text := os.Getenv(sessionEnv); text != "" {
		var s session
		err := json.Unmarshal([]byte(text), &s)
		if err == nil {
			err = s.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if id := os.Getenv(churnEnv); id != "" {
		fmt.Fprintln(os.Stderr, churn(id))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func (s *session) run() error {
	unix.Umask(0o022)
	at := filepath.Join(filepath.Dir(s.Tree), "merged")
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,index=off,metacopy=off,volatile", strings.Join(s.Lower, ":"), s.Upper, s.Work)
	if s.Trusted {
		options += ",redirect_dir=off"
	} else {
		options += ",userxattr"
	}
	if err := unix.Mount("overlay", at, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount %s: %w", options, err)
	}
	if s.Script != nil {
		for _, line := range s.Script {
			cmd := exec.Command("sh", "-ec", line)
			cmd.Dir = at
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
		}
	}
	w := world{root: at, rng: rand.New(rand.NewPCG(s.Seed, 1))}
	for range s.Steps {
		if err := w.step(); err != nil {
			return fmt.Errorf("seed %d: %w", s.Seed, err)
		}
	}
	if s.Seen != "" {
		if err := s.see(at); err != nil {
			return err
		}
	}
	tree, err := treeOf(at)
	if err != nil {
		return err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return os.WriteFile(s.Tree, text, 0o666)
}

func (s *session) see(at string) error {
	var fds []int
	for _, path := range []string{s.Upper, s.Workspace, at} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	seen, err := changeset.ReadSeen(changeset.Source{Layer: fds[0], Workspace: fds[1], Merged: fds[2], XattrPrefix: xattrPrefix(s.Trusted), Manifest: -1})
	if err != nil {
		return err
	}
	file, err := os.Create(s.Seen)
	if err != nil {
		return err
	}
	defer file.Close()
	return seen.Encode(file)
}

// world does what a seed says to a tree. What it does depends on nothing but
// the seed and the tree.
type world struct {
	root string
	rng  *rand.Rand
}

func (w *world) paths() (all, dirs []string) {
	dirs = []string{"."}
	filepath.WalkDir(w.root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(w.root, p)
		if rel == "." {
			return nil
		}
		all = append(all, rel)
		if d.IsDir() {
			dirs = append(dirs, rel)
		}
		return nil
	})
	sort.Strings(all)
	sort.Strings(dirs)
	return all, dirs
}

func (w *world) pick(from []string) string { return from[w.rng.IntN(len(from))] }

func (w *world) step() error {
	all, dirs := w.paths()
	name := func() string {
		return filepath.Join(w.root, w.pick(dirs), string(rune('a'+w.rng.IntN(6))))
	}
	op, to := w.rng.IntN(14), name()
	content := fmt.Sprintf("%d\n", w.rng.IntN(1000))
	mode := []os.FileMode{0o644, 0o600, 0o755, 0o400, 0o000}[w.rng.IntN(5)]
	dirMode := []os.FileMode{0o755, 0o700, 0o500}[w.rng.IntN(3)]
	if len(all) == 0 {
		op = 0
	}
	victim := ""
	if len(all) > 0 {
		victim = filepath.Join(w.root, w.pick(all))
	}
	info, _ := os.Lstat(victim)
	switch op {
	case 0, 1: // write, over whatever file is there
		if st, err := os.Lstat(to); err == nil && (st.IsDir() || st.Mode()&os.ModeSymlink != 0) {
			return nil
		}
		return os.WriteFile(to, []byte(content), 0o644)
	case 2, 3: // append
		if info.Mode().IsRegular() {
			f, err := os.OpenFile(victim, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString(content)
			return err
		}
	case 4:
		return os.RemoveAll(victim)
	case 5: // a directory where another was: opaque
		if err := os.RemoveAll(victim); err != nil {
			return err
		}
		if err := os.Mkdir(victim, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(victim, "a"), []byte(content), 0o644)
	case 6, 7:
		if strings.HasPrefix(to+"/", victim+"/") {
			return nil
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		if strings.HasPrefix(victim+"/", to+"/") {
			return nil
		}
		return moveAsMover(victim, to)
	case 8:
		if info.IsDir() {
			return os.Chmod(victim, dirMode)
		}
		if info.Mode().IsRegular() {
			return os.Chmod(victim, mode)
		}
	case 9:
		if _, err := os.Lstat(to); err == nil {
			return nil
		}
		return os.Symlink(w.pick(all), to)
	case 10, 11:
		if _, err := os.Lstat(to); err == nil {
			return nil
		}
		return os.Mkdir(to, 0o755)
	case 12:
		// No hard links: an overlay parts them when one of them is written to
		// that lies in a lower layer.
		if info.Mode().IsRegular() {
			return os.Truncate(victim, 1)
		}
	case 13:
		if info.Mode().IsRegular() {
			return unix.Setxattr(victim, "user.note", []byte(content), 0)
		}
	}
	return nil
}

// moveAsMover renames as a box does: what the overlay refuses with EXDEV the mover
// copies.
func moveAsMover(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return os.RemoveAll(from)
}

// treeOf describes a tree: type, mode, content, link text, attributes, and which
// files are one.
func treeOf(root string) (map[string]string, error) {
	tree := map[string]string{}
	first := map[uint64]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if rel == "." {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		what := fmt.Sprintf("%o", st.Mode)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if st.Mode&0o400 == 0 { // the owner may be no root
				if err := os.Chmod(p, 0o400); err != nil {
					return err
				}
			}
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %q", text)
			buf := make([]byte, 100)
			if n, err := unix.Getxattr(p, "user.note", buf); err == nil {
				what += fmt.Sprintf(" note %q", buf[:n])
			}
			if st.Mode&0o400 == 0 {
				if err := unix.Chmod(p, st.Mode&0o7777); err != nil {
					return err
				}
			}
			if st.Nlink > 1 {
				if other, ok := first[st.Ino]; ok {
					what += " is " + other
				} else {
					first[st.Ino] = rel
				}
			}
		case unix.S_IFLNK:
			target, _ := os.Readlink(p)
			what = "-> " + target
		}
		tree[rel] = what
		return nil
	})
	return tree, err
}

// play runs a session in a box's layers and returns the tree at its end.
func play(t testing.TB, b *Boxes, id string, s session) map[string]string {
	t.Helper()
	h, err := b.hold(id)
	if err != nil {
		t.Fatal(err)
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	br, err := h.branch()
	if err != nil {
		t.Fatal(err)
	}
	defer br.hold.Release()
	dir := t.TempDir()
	s.Lower, s.Upper, s.Work, s.Trusted = br.lower, br.upper, br.work, br.trusted
	s.Tree, s.Seen, s.Workspace = filepath.Join(dir, "tree"), filepath.Join(dir, "seen"), h.record.Workspace
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), sessionEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("session in %s: %v: %s", id, err, out)
	}
	// As the end of a live box does.
	if file, err := os.Open(s.Seen); err == nil {
		now, err := changeset.DecodeSeen(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		if known := h.ownSeen(); known != nil {
			known.Over(now)
			now = known
		}
		if err := h.saveSeen(h.record, now); err != nil {
			t.Fatal(err)
		}
	}
	tree := map[string]string{}
	text, err = os.ReadFile(s.Tree)
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func sh(lines ...string) session { return session{Script: lines} }

func wantTree(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	var lines []string
	for p := range want {
		if got[p] != want[p] {
			lines = append(lines, fmt.Sprintf("%s: %s, want %s", p, got[p], want[p]))
		}
	}
	for p := range got {
		if _, ok := want[p]; !ok {
			lines = append(lines, fmt.Sprintf("%s: %s, want nothing", p, got[p]))
		}
	}
	slices.Sort(lines)
	t.Fatalf("%s:\n%s", what, strings.Join(lines, "\n"))
}

// tempDir is that of a test, which may leave directories there that are closed
// to their owner.
func tempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		entries, err := fsat.ReadDir(fd)
		for _, e := range entries {
			err = errors.Join(err, fsat.RemoveAll(fd, e.Name))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

// testWorkspace has something of everything.
func testWorkspace(t testing.TB) string {
	t.Helper()
	ws := tempDir(t)
	for path, content := range map[string]string{"a": "1", "b": "2", "d/a": "3", "d/e/a": "4", "d/e/b": "5", "f/a": "6", "f/b/c": "7"} {
		path = filepath.Join(ws, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("d/a", filepath.Join(ws, "l")); err != nil {
		t.Fatal(err)
	}
	return ws
}

var bg = context.Background()

func checkpoint(t testing.TB, b *Boxes, id, name string) {
	t.Helper()
	if _, err := b.Checkpoint(bg, id, name); err != nil {
		t.Fatal(err)
	}
}

func restore(t testing.TB, b *Boxes, id, name string) {
	t.Helper()
	if err := b.Restore(bg, id, name); err != nil {
		t.Fatal(err)
	}
}

func fork(t testing.TB, b *Boxes, id string, n int) []api.Box {
	t.Helper()
	forks, err := b.Fork(bg, id, n, nil)
	if err != nil {
		t.Fatal(err)
	}
	return forks
}

// digest is that of what a box changes.
func digest(t testing.TB, b *Boxes, id string) string {
	t.Helper()
	var d string
	err := b.View(bg, id, true, func(c *changeset.Changeset, _ changeset.Trees, _ Judge) error {
		d = c.Digest
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func leftovers(t *testing.T, b *Boxes) {
	t.Helper()
	for _, name := range []string{"boxes", "layers", "names"} {
		entries, _ := os.ReadDir(filepath.Join(b.store.Path, name))
		for _, e := range entries {
			t.Errorf("left over: %s/%s", name, e.Name())
		}
	}
}

func TestCheckpointRestoreForkCommit(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	made := create(t, b, api.Create{Workspace: ws})
	one := play(t, b, made.ID, sh("echo one >a", "rm -r f", "mkdir f", "echo n >f/n", "chmod 700 d", "echo x >x", "ln x link"))
	checkpoint(t, b, made.ID, "one")
	two := play(t, b, made.ID, sh("rm a", "echo two >d/e/a", "rm -r f"))
	checkpoint(t, b, made.ID, "")
	if _, err := b.Checkpoint(bg, made.ID, "one"); code(err) != api.Exists {
		t.Errorf("a second checkpoint of that name: %v", err)
	}
	if err := b.Restore(bg, made.ID, "none"); code(err) != api.NotFound {
		t.Errorf("restore to a checkpoint that is not there: %v", err)
	}
	restore(t, b, made.ID, "one")
	wantTree(t, "restored to one", play(t, b, made.ID, session{}), one)
	restore(t, b, made.ID, "2")
	wantTree(t, "restored to two", play(t, b, made.ID, session{}), two)

	forks := fork(t, b, made.ID, 3)
	play(t, b, forks[0].ID, sh("echo child >child"))
	grand := fork(t, b, forks[0].ID, 1)[0]
	if grand.Parent != forks[0].ID || forks[0].Parent != made.ID {
		t.Errorf("parents: %+v %+v", grand, forks[0])
	}
	tree := play(t, b, grand.ID, sh("echo g >child"))
	if err := b.Discard(bg, forks[0].ID, false); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "a fork of a fork that is gone", play(t, b, grand.ID, session{}), tree)
	wantTree(t, "another fork", play(t, b, forks[1].ID, session{}), two)

	done, err := b.Commit(bg, grand.ID, api.Commit{})
	if err != nil {
		t.Fatal(err)
	}
	if done.Kept || done.Left != 0 {
		t.Errorf("commit: %+v", done)
	}
	got, err := treeOf(ws)
	if err != nil {
		t.Fatal(err)
	}
	delete(got, ".hutch")
	for p := range got {
		if strings.HasPrefix(p, ".hutch/") {
			delete(got, p)
		}
	}
	wantTree(t, "the workspace", got, tree)
	// What was promoted must not be one file with a layer of the others.
	if err := os.WriteFile(filepath.Join(ws, "d/e/a"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantTree(t, "a box whose layers were promoted by another", play(t, b, forks[2].ID, session{}), func() map[string]string {
		two["child"] = tree["child"] // shines through
		return two
	}())
	for _, id := range []string{made.ID, forks[1].ID, forks[2].ID} {
		if err := b.Discard(bg, id, false); err != nil {
			t.Fatal(err)
		}
	}
	leftovers(t, b)
}

func TestCommitKeepGoesOnWhereTheWorkspaceStands(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	id := create(t, b, api.Create{Workspace: ws}).ID
	play(t, b, id, sh("echo one >a"))
	checkpoint(t, b, id, "")
	play(t, b, id, sh("echo two >b"))
	for range 3 {
		done, err := b.Commit(bg, id, api.Commit{Keep: true})
		if err != nil || !done.Kept {
			t.Fatalf("%+v, %v", done, err)
		}
		play(t, b, id, sh("echo more >>a", "rm -rf f"))
	}
	if done, err := b.Commit(bg, id, api.Commit{}); err != nil || done.Kept {
		t.Fatalf("%+v, %v", done, err)
	}
	if text, _ := os.ReadFile(filepath.Join(ws, "a")); string(text) != "one\nmore\nmore\nmore\n" {
		t.Errorf("a: %q", text)
	}
	leftovers(t, b)
}

// What stays after a part was promoted can be promoted later, whatever ran in
// the box between, and what the host did to the promoted part is no conflict of
// the rest.
func TestCommitOfAPartOfAStack(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	id := create(t, b, api.Create{Workspace: ws}).ID
	play(t, b, id, sh("echo one >a", "mkdir new", "echo x >new/x"))
	checkpoint(t, b, id, "")
	play(t, b, id, sh("echo two >b", "echo y >new/y", "rm d/a"))
	done, err := b.Commit(bg, id, api.Commit{Only: []string{"/a", "/new/x"}})
	if err != nil || done.Left != 3 || !done.Kept {
		t.Fatalf("%+v, %v", done, err)
	}
	if err := os.WriteFile(filepath.Join(ws, "a"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	play(t, b, id, sh("echo changed >new/x"))
	checkpoint(t, b, id, "")
	var paths []string
	err = b.View(bg, id, true, func(c *changeset.Changeset, _ changeset.Trees, _ Judge) error {
		for _, e := range c.Entries {
			paths = append(paths, fmt.Sprint(e.Op, " ", e.Path))
		}
		return nil
	})
	if err != nil || strings.Join(paths, ", ") != "modified b, deleted d/a, modified new/x, created new/y" {
		t.Fatalf("%v, %v", paths, err)
	}
	if done, err = b.Commit(bg, id, api.Commit{}); err != nil || done.Left != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	for path, want := range map[string]string{"a": "host", "b": "two\n", "new/x": "changed\n", "new/y": "y\n"} {
		if text, _ := os.ReadFile(filepath.Join(ws, path)); string(text) != want {
			t.Errorf("%s: %q, want %q", path, text, want)
		}
	}
	leftovers(t, b)
}

func TestConflictOfAStackLeavesTheBox(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	id := create(t, b, api.Create{Workspace: ws}).ID
	play(t, b, id, sh("echo one >>a", "echo q >d/e/a"))
	checkpoint(t, b, id, "")
	tree := play(t, b, id, sh("echo two >>a"))
	if err := os.WriteFile(filepath.Join(ws, "a"), []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	done, err := b.Commit(bg, id, api.Commit{})
	if err == nil || !done.Kept || !strings.Contains(err.Error(), `"a"`) || strings.Contains(err.Error(), "d/e") {
		t.Fatalf("%+v, %v", done, err)
	}
	wantTree(t, "after the conflict", play(t, b, id, session{}), tree)
	// A directory that was swapped on the host shows in nothing but its inode.
	for _, line := range []string{"mv d d.old", "cp -a d.old d", "rm -r d.old"} {
		cmd := exec.Command("sh", "-ec", line)
		cmd.Dir = ws
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if _, err := b.Commit(bg, id, api.Commit{Except: []string{"/a"}}); err == nil || !strings.Contains(err.Error(), "d/e/a") {
		t.Errorf("a swapped directory: %v", err)
	}
	if _, err := b.Commit(bg, id, api.Commit{OnConflict: "theirs", Only: []string{"/a"}, Keep: true}); err != nil {
		t.Errorf("theirs: %v", err)
	}
	if text, _ := os.ReadFile(filepath.Join(ws, "a")); string(text) != "1one\ntwo\n" {
		t.Errorf("a: %q", text)
	}
}

// Random sessions, checkpoints, restores and forks: a box shows what it showed,
// its change is that of a box with one layer in which the same was done, and a
// commit makes the workspace what the box showed.
func TestStacksAreExact(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { exactStack(t, seed+1) })
	}
}

func exactStack(t *testing.T, seed uint64) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	rng := rand.New(rand.NewPCG(seed, 7))
	stacked := create(t, b, api.Create{Workspace: ws}).ID
	var flat []session // what was done, without any layer between
	trees := map[string]map[string]string{}
	history := map[string][]session{}
	for i := range 8 {
		s := session{Seed: rng.Uint64(), Steps: 12}
		tree := play(t, b, stacked, s)
		flat = append(flat, s)
		switch rng.IntN(4) {
		case 0:
			name := fmt.Sprint("c", i)
			checkpoint(t, b, stacked, name)
			trees[name], history[name] = tree, slices.Clone(flat)
		case 1:
			child := fork(t, b, stacked, 1)[0].ID
			wantTree(t, "a fork", play(t, b, child, session{}), tree)
			if rng.IntN(2) == 0 {
				if err := b.Discard(bg, stacked, false); err != nil {
					t.Fatal(err)
				}
				stacked, trees, history = child, map[string]map[string]string{}, map[string][]session{}
			} else if err := b.Remove(child); err != nil {
				t.Fatal(err)
			}
		case 2:
			for name := range trees {
				restore(t, b, stacked, name)
				wantTree(t, "restored", play(t, b, stacked, session{}), trees[name])
				flat = slices.Clone(history[name])
				break
			}
		}
	}
	tree := play(t, b, stacked, session{})
	single := create(t, b, api.Create{Workspace: ws}).ID
	for _, s := range flat {
		play(t, b, single, s)
	}
	wantTree(t, "the same in one layer", play(t, b, single, session{}), tree)
	if got, want := digest(t, b, stacked), digest(t, b, single); got != want {
		t.Errorf("the change of the stack %s is not that of one layer %s", got, want)
	}
	if err := b.Remove(single); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Commit(bg, stacked, api.Commit{Allow: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	got, err := treeOfWorkspace(ws)
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, "the workspace after the commit", got, tree)
	leftovers(t, b)
}

func treeOfWorkspace(ws string) (map[string]string, error) {
	got, err := treeOf(ws)
	for p := range got {
		if p == ".hutch" || strings.HasPrefix(p, ".hutch/") {
			delete(got, p)
		}
	}
	return got, err
}

func TestManyLayersAreMadeOne(t *testing.T) {
	b := testBoxes(t)
	id := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	var tree map[string]string
	for i := range maxLayers + 3 {
		tree = play(t, b, id, sh(fmt.Sprintf("echo %d >a; echo %d >n%d; rm -rf f; mkdir f; echo %d >f/x", i, i, i%5, i)))
		fork := fork(t, b, id, 1)[0]
		if err := b.Remove(fork.ID); err != nil {
			t.Fatal(err)
		}
	}
	b.work.Wait()
	if box, err := b.Show(id); err != nil || box.Layers >= maxLayers {
		t.Errorf("%+v, %v", box, err)
	}
	wantTree(t, "flattened", play(t, b, id, session{}), tree)
	if entries, _ := os.ReadDir(filepath.Join(b.store.Path, "layers")); len(entries) >= maxLayers {
		t.Errorf("%d layers are left of those that were made one", len(entries))
	}
	if err := b.Remove(id); err != nil {
		t.Fatal(err)
	}
	leftovers(t, b)
}

func BenchmarkFork(bm *testing.B) {
	bm.Setenv("XDG_STATE_HOME", bm.TempDir())
	b, err := OpenBoxes(Options{})
	if err != nil {
		bm.Fatal(err)
	}
	made, err := b.Create(bg, api.Create{Workspace: testWorkspace(bm)})
	if err != nil {
		bm.Fatal(err)
	}
	play(bm, b, made.ID, sh("echo 1 >a"))
	var times []time.Duration
	for bm.Loop() {
		start := time.Now()
		if _, err := b.Fork(bg, made.ID, 1, nil); err != nil {
			bm.Fatal(err)
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	bm.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	bm.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
	_ = b.Close(bg)
}
