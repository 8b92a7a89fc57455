package box

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

func TestALiveBoxIsFrozenForkedAndRestored(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	box := create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, box, "echo one >a; rm -r d; echo kept >/tmp/kept; mkdir new; echo n >new/n"), "")
	checkpoint(t, b, box, "one")
	if got, err := b.Show(box); err != nil || !got.Live || got.Layers != 1 {
		t.Errorf("a checkpoint is no end of it: %+v, %v", got, err)
	}
	// What stands in the layer below can be seen, changed and removed; /tmp is as it was.
	said(t, inBox(t, b, box, "cat a new/n /tmp/kept; ls; mv new moved; echo two >a; rm b; echo two >>moved/n"), "one\nn\nkept\na\nb\nf\nl\nnew\n")
	fork := fork(t, b, box, 2)
	for _, f := range fork {
		said(t, inBox(t, b, f.ID, "cat a moved/n; ls; test ! -e /tmp/kept; echo "+f.ID+" >own"), "two\nn\ntwo\na\nf\nl\nmoved\n")
	}
	said(t, inBox(t, b, box, "ls"), "a\nf\nl\nmoved\n")
	grand := fork[0].ID
	of := must1(b.Fork(bg, grand, 1, nil))
	said(t, inBox(t, b, of[0].ID, "cat own"), grand+"\n")

	restore(t, b, box, "one")
	said(t, inBox(t, b, box, "cat a new/n /tmp/kept; ls"), "one\nn\nkept\na\nb\nf\nl\nnew\n")
	for _, f := range append(fork, of...) {
		if err := b.Discard(bg, f.ID, true); err != nil {
			t.Error(err)
		}
	}
	for path, want := range map[string]string{"a": "1", "b": "2", "d/a": "3"} {
		if got, err := os.ReadFile(filepath.Join(ws, path)); err != nil || string(got) != want {
			t.Errorf("%s in the workspace: %q, %v", path, got, err)
		}
	}
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestABusyBoxIsCopied(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	said(t, inBox(t, b, box, `python3 -c '
import time, os
f = open("growing", "w")
i = 0
while not os.path.exists("/tmp/stop"):
    i += 1
    f.write("x"*1000); f.flush()
    time.sleep(.001)
' >/dev/null 2>&1 &
while ! test -s growing; do sleep .01; done; echo first >a`), "")
	made, err := b.Checkpoint(bg, box, "busy")
	if err != nil || !made.Copied {
		t.Fatalf("%+v, %v", made, err)
	}
	if err := b.Restore(bg, box, "busy"); code(err) != api.NotQuiet {
		t.Errorf("a busy box was restored: %v", err)
	}
	fork := fork(t, b, box, 1)[0].ID
	before := inBox(t, b, fork, "wc -c <growing; cat a")
	time.Sleep(200 * time.Millisecond)
	after := inBox(t, b, fork, "wc -c <growing; cat a")
	if before.Stdout != after.Stdout || !strings.HasSuffix(before.Stdout, "first\n") {
		t.Errorf("what the other box writes shows in its fork: %q, then %q", before.Stdout, after.Stdout)
	}
	one := inBox(t, b, box, "wc -c <growing").Stdout
	time.Sleep(200 * time.Millisecond)
	if two := inBox(t, b, box, "wc -c <growing; echo late >a").Stdout; one == two {
		t.Errorf("it does not go on: %q", one)
	}
	if err := b.Kill(box, api.Kill{All: true}); err != nil {
		t.Fatal(err)
	}
	restore(t, b, box, "busy")
	said(t, inBox(t, b, box, "cat a; test -s growing"), "first\n")
}

func TestALiveBoxIsCommittedAndLivesOn(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	box := create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, box, "sleep 1000 >/dev/null 2>&1 & echo one >a; rm -r d; echo t >/tmp/t"), "")
	if _, err := b.Commit(bg, box, api.Commit{Keep: true}); code(err) != api.NotQuiet {
		t.Errorf("a busy box was committed: %v", err)
	}
	if err := b.Kill(box, api.Kill{All: true}); err != nil {
		t.Fatal(err)
	}
	for i, round := range []struct{ script, file, want string }{{"cat a /tmp/t", "a", "one\n"}, {"echo two >>a; cat a /tmp/t", "a", "one\ntwo\n"}, {"rm a; mkdir a; echo three >a/x; cat a/x", "a/x", "three\n"}} {
		out := inBox(t, b, box, round.script)
		if out.Status != outcome.Success {
			t.Fatalf("%d: %+v", i, out)
		}
		if _, err := b.Commit(bg, box, api.Commit{Keep: true}); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		if got, err := os.ReadFile(filepath.Join(ws, round.file)); err != nil || string(got) != round.want {
			t.Errorf("%d: %s is %q, %v", i, round.file, got, err)
		}
		// The host's own changes are seen from now on, and the transaction is not.
		os.WriteFile(filepath.Join(ws, "host"), []byte(round.want), 0o644)
		said(t, inBox(t, b, box, "cat host; test ! -e .hutch && test ! -e d && echo ok"), round.want+"ok\n")
	}
	got, err := b.Show(box)
	if err != nil || !got.Live || got.State != api.Ready {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := b.Commit(bg, box, api.Commit{}); err != nil {
		t.Logf("nothing is left to commit: %v", err)
	}
}

func TestManyCheckpointsOfALiveBox(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	for i := range 40 {
		said(t, inBox(t, b, box, "echo x >>log; rm -rf d f; mkdir -p f; wc -l <log >f/count"), "")
		if _, err := b.Checkpoint(context.Background(), box, ""); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	said(t, inBox(t, b, box, "wc -l <log; cat f/count; test ! -e d; ls"), "40\n40\na\nb\nf\nl\nlog\n")
	if got, err := b.Show(box); err != nil || !got.Live || got.Layers > 2*maxLayers {
		t.Errorf("%+v, %v", got, err)
	}
}

// Until its exec a process that is just being started has a copy of every
// descriptor. None of them keeps a box locked, or its mount in use.
func TestAProcessThatIsBeingStartedHoldsNothing(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	said(t, inBox(t, b, box, "echo one >a"), "")
	copied := func(fd int) int { return must1(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)) }
	h := must1(b.hold(box))
	syscall.ForkLock.Lock() // as os/exec does, up to the exec
	mount := copied(h.live.Root())
	time.AfterFunc(50*time.Millisecond, func() {
		unix.Close(mount)
		syscall.ForkLock.Unlock()
	})
	if c, err := b.Checkpoint(bg, box, "one"); err != nil || c.Copied {
		t.Errorf("%+v, %v", c, err)
	}
	lock := copied(h.dir.fd)
	defer unix.Close(lock)
	b.letGo(h)
	if err := b.Release(box); err != nil {
		t.Fatal(err)
	}
	other := testBoxes(t)
	if _, err := other.Execs(box); err != nil {
		t.Errorf("the box was let go of, but: %v", err)
	}
}

// A layer that a live box had mounted and needs no more is gone at once.
func TestALayerThatNobodyNeedsIsGone(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	said(t, inBox(t, b, box, "echo one >a"), "")
	checkpoint(t, b, box, "one")
	said(t, inBox(t, b, box, "echo two >a"), "")
	of := fork(t, b, box, 1)[0].ID
	if err := b.Release(box); err != nil {
		t.Fatal(err)
	}
	said(t, inBox(t, b, box, "cat a"), "two\n") // it has both layers mounted
	restore(t, b, box, "one")                   // and needs the second no more
	said(t, inBox(t, b, box, "cat a"), "one\n")
	if err := b.Discard(bg, of, true); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		list, err := os.ReadDir(filepath.Join(b.store.Path, "layers"))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := count(); n != 1 {
		t.Errorf("%d layers are left, and one is needed", n)
	}
	if err := b.Discard(bg, box, true); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d layers are left of no box", n)
	}
}

// A file that is read from outside keeps the mount in use: then the box is no
// quiet one.
func TestABoxWhoseFilesAreReadIsBusy(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	box := create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, box, "echo one >a"), "")
	checkpoint(t, b, box, "one")
	said(t, inBox(t, b, box, "echo two >a"), "")
	file, _, err := b.ReadFile(box, ws+"/a")
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.Checkpoint(bg, box, "two")
	if err != nil || !c.Copied {
		t.Errorf("%+v, %v", c, err)
	}
	if err := b.Restore(bg, box, "one"); code(err) != api.NotQuiet || !strings.Contains(err.Error(), "do it again") {
		t.Errorf("%v", err)
	}
	file.Close()
	said(t, inBox(t, b, box, "cat a"), "two\n")
	restore(t, b, box, "one")
	said(t, inBox(t, b, box, "cat a"), "one\n")
	restore(t, b, box, "two")
	said(t, inBox(t, b, box, "cat a"), "two\n")
}

// A file that a frozen layer has, moved over one of the workspace, shows the number
// that it has in that layer: nobody replaced the one in the workspace.
func TestAFileOfALayerMovedOverOneOfTheWorkspace(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	box := create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, box, "printf new >x; mkdir e; printf deep >e/y"), "")
	checkpoint(t, b, box, "one")
	said(t, inBox(t, b, box, "printf er >>x; mv x a; mv e/y b"), "")
	checkpoint(t, b, box, "two")
	said(t, inBox(t, b, box, "mv a d/a; printf last >a"), "")
	if _, err := b.Commit(bg, box, api.Commit{Keep: true}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"a": "last", "b": "deep", "d/a": "newer"} {
		if got, err := os.ReadFile(filepath.Join(ws, path)); err != nil || string(got) != want {
			t.Errorf("%s in the workspace: %q, %v", path, got, err)
		}
	}
}
