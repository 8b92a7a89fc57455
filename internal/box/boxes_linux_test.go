package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
)

func testBoxes(t *testing.T) *Boxes {
	t.Helper()
	if os.Getenv("XDG_STATE_HOME") == "" || !strings.HasPrefix(os.Getenv("XDG_STATE_HOME"), os.TempDir()) {
		t.Setenv("XDG_STATE_HOME", tempDir(t))
	}
	b, err := OpenBoxes(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return b
}

func create(t *testing.T, b *Boxes, c api.Create) *api.Box {
	t.Helper()
	if c.Workspace == "" {
		c.Workspace = t.TempDir()
	}
	box, err := b.Create(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// code is that of an *api.Error; "" for none.
func code(err error) api.Code {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestBoxIsMadeListedAndDropped(t *testing.T) {
	b := testBoxes(t)
	made := create(t, b, api.Create{Name: "fix-1", Environ: []string{"SECRET=s"}})
	if made.State != api.Created || made.Name != "fix-1" || made.Live {
		t.Errorf("made: %+v", made)
	}
	for _, name := range []string{made.ID, made.ID[:5], "fix-1"} {
		if got, err := b.Show(name); err != nil || got.ID != made.ID {
			t.Errorf("show %s: %v, %v", name, got, err)
		}
	}
	path := filepath.Join(b.store.bases()[0], made.ID)
	for _, name := range []string{recordName, requestName} {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; it may hold secrets", name, info, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(path, "upper/.hutch"), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf(".hutch is not whited out: %v, %o", err, st.Mode)
	}
	if err := b.Discard(context.Background(), "fix-1", false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the directory of a discarded box is still there")
	}
	if boxes, err := b.List(false); err != nil || len(boxes) != 0 {
		t.Errorf("list: %v, %v", boxes, err)
	}
	all, err := b.List(true)
	if err != nil || len(all) != 1 || all[0].State != api.Discarded || all[0].Ended == nil {
		t.Errorf("list of all: %+v, %v", all, err)
	}
	if err := b.Discard(context.Background(), made.ID, false); code(err) != api.WrongState || !strings.Contains(err.Error(), "discarded") {
		t.Errorf("discard twice: %v", err)
	}
	create(t, b, api.Create{Name: "fix-1"}) // free again
	if err := b.Remove(made.ID); err != nil {
		t.Error(err)
	}
	if _, err := b.Show(made.ID); code(err) != api.NotFound {
		t.Errorf("show of what was removed: %v", err)
	}
}

func TestNameIsOneBoxes(t *testing.T) {
	b := testBoxes(t)
	create(t, b, api.Create{Name: "mine"})
	if _, err := b.Create(context.Background(), api.Create{Name: "mine", Workspace: t.TempDir()}); code(err) != api.Exists {
		t.Errorf("a second box of that name: %v", err)
	}
	if boxes, _ := b.List(false); len(boxes) != 1 {
		t.Errorf("a box that was refused its name is there: %v", boxes)
	}
	for _, name := range []string{"-x", "a/b", "a b", ".", "abcdefgh2345", strings.Repeat("a", 65)} {
		if _, err := b.Create(context.Background(), api.Create{Name: name, Workspace: t.TempDir()}); code(err) != api.Invalid {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

// A box that was only half made when its maker was killed is nobody's, and its
// name free.
func TestTheNameOfAHalfMadeBoxIsFree(t *testing.T) {
	b := testBoxes(t)
	d, err := createDir(filepath.Join(b.store.Path, "boxes"), newID())
	if err == nil {
		err = b.store.named("half", d.id)
	}
	if err != nil {
		t.Fatal(err)
	}
	again := func() error {
		_, err := b.Create(context.Background(), api.Create{Name: "half", Workspace: t.TempDir()})
		return err
	}
	if err := again(); code(err) != api.Exists {
		t.Errorf("while it is being made: %v", err)
	}
	d.close()
	if err := b.store.named("other", d.id); err != nil {
		t.Fatal(err)
	}
	b.store.sweepNames()
	if names, _ := os.ReadDir(filepath.Join(b.store.Path, "names")); len(names) != 0 {
		t.Errorf("names of nobody: %v", names)
	}
	if err := again(); err != nil {
		t.Errorf("when its maker was killed: %v", err)
	}
}

func TestBadPolicyIsSaidAtCreation(t *testing.T) {
	b := testBoxes(t)
	if _, err := b.Create(context.Background(), api.Create{Workspace: t.TempDir(), PolicyFile: "/does/not/exist.toml"}); code(err) != api.Invalid {
		t.Errorf("a policy file that is missing: %v", err)
	}
	if boxes, _ := b.List(true); len(boxes) != 0 {
		t.Errorf("left: %v", boxes)
	}
}

// Every pair of states is either a move of the table or an error that names both.
func TestMoves(t *testing.T) {
	states := []api.State{api.Created, api.Ready, api.Busy, api.Committing, api.Committed, api.Discarded, api.Failed}
	legal := 0
	for _, from := range states {
		for _, to := range states {
			err := move("b", from, to)
			if err == nil {
				legal++
				if from.Ended() {
					t.Errorf("%s -> %s is allowed after the end", from, to)
				}
				continue
			}
			if c := code(err); c != api.WrongState && c != api.NotQuiet {
				t.Errorf("%s -> %s: %v", from, to, err)
			}
			for _, want := range []string{string(from), string(to), ";"} {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
					t.Errorf("%s -> %s: %q does not say %q", from, to, err, want)
				}
			}
		}
	}
	if legal != 20 {
		t.Errorf("%d moves are allowed; was the table changed on purpose?", legal)
	}
}

// A holder that died while commands ran leaves a box that is ready again.
func TestDeadHoldersMark(t *testing.T) {
	b := testBoxes(t)
	made := create(t, b, api.Create{})
	path := filepath.Join(b.store.bases()[0], made.ID)
	m := mark{Live: true, Running: 2, Execs: 7, PID: os.Getpid(), Started: ownStart()}
	if len(m.encode()) != markSize || parseMark(m.encode()) != m {
		t.Fatalf("%q", m.encode())
	}
	if err := os.WriteFile(filepath.Join(path, markName), m.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Show(made.ID); err != nil || got.State != api.Busy || !got.Live {
		t.Errorf("held by a live process: %+v, %v", got, err)
	}
	m.Started++ // another process of that number
	if err := os.WriteFile(filepath.Join(path, markName), m.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Show(made.ID); err != nil || got.State != api.Ready || got.Live || got.Execs != 7 {
		t.Errorf("held by nobody: %+v, %v", got, err)
	}
	h, err := b.hold(made.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer b.letGo(h)
	if !h.interrupted || h.state() != api.Ready {
		t.Errorf("interrupted %t, state %s", h.interrupted, h.state())
	}
	if exec, err := h.begin(); err != nil || exec != 8 || h.state() != api.Ready { // not live
		t.Errorf("exec %d, %v, %s", exec, err, h.state())
	}
	h.finish()
}

func TestBoxThatAnotherProcessHoldsIsInUse(t *testing.T) {
	b := testBoxes(t)
	made := create(t, b, api.Create{})
	d, err := openDir(filepath.Join(b.store.bases()[0], made.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Discard(context.Background(), made.ID, true); code(err) != api.InUse {
		t.Errorf("%v", err)
	}
	go func() { time.Sleep(20 * time.Millisecond); d.close() }()
	if err := b.Discard(context.Background(), made.ID, true); err != nil {
		t.Errorf("what is held for a moment is not waited for: %v", err)
	}
}

func TestEndedListIsBounded(t *testing.T) {
	s := testStore(t)
	for i := range 30 {
		s.saveEnded(&Record{ID: fmt.Sprintf("%012d", i), Created: time.Now()}, api.Discarded)
	}
	s.trimEnded(10)
	if n := len(s.allEnded()); n < 5 || n > 10 {
		t.Errorf("%d are left", n)
	}
}

func BenchmarkMark(bm *testing.B) {
	path := bm.TempDir()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		bm.Fatal(err)
	}
	h := &held{dir: &dir{fd: fd}, record: &Record{State: api.Created}, markFD: -1}
	for bm.Loop() {
		_, _ = h.begin()
		h.finish()
	}
	h.closeMark()
	unix.Close(fd)
}
