//go:build linux

package promote

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// promoted is a scene whose promotion is done, with all that its workspace was
// before.
type promoted struct {
	*scene
	was map[string]attributes
}

func promotedScene(t testing.TB, base string) *promoted {
	t.Helper()
	before, after := mixed()
	delete(after, "secret") // to read it would change it
	s := newScene(t, filepath.Join(base, "s"), before, after, "user.overlay.origin=")
	p := &promoted{s, whole(t, s.ws(""))}
	s.req.Stamp = stamp(t, s.ws(""))
	s.save(t)
	s.apply(t)
	return p
}

// settled recovers, and checks that the undo happened wholly or not at all. An
// undo that did not happen can then be made.
func (p *promoted) settled(t testing.TB) string {
	t.Helper()
	rec, err := Recover(p.req.Workspace, testKey, nil)
	check(t, err)
	state, err := Status(p.req.Workspace, "t1")
	check(t, err)
	for _, r := range rec {
		if r.Kept || !r.Undone || r.Forward != (state == Undone) || (string(r.Receipt) == "undo of t1") != r.Forward {
			t.Fatalf("recovered %+v, but the state is %s", r, state)
		}
	}
	if again, err := Recover(p.req.Workspace, testKey, nil); err != nil || len(again) != 0 {
		t.Fatalf("a second recovery: %+v, %v", again, err)
	}
	if state == Done {
		p.want(t, "after")
		res, err := undoLast(p.scene)
		if err != nil || res.ID != "t1" {
			t.Fatalf("after recovery: undo of %q: %v", res.ID, err)
		}
	} else if state != Undone {
		t.Fatalf("state %s", state)
	}
	if d := cmp.Diff(p.was, whole(t, p.ws(""))); d != "" {
		t.Fatalf("%s, but not as before: %s", state, d)
	}
	return string(state)
}

// TestKillUndo kills an undo before each of its calls.
func TestKillUndo(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		points, seen := 0, map[string]int{}
		step := min(3, stride(t, base))
		for n, killed := sample(t, step), true; killed; n += step {
			p := promotedScene(t, base)
			killed = runChild(t, p.scene, "undo", n, 0)
			seen[p.settled(t)]++
			p.remove(t)
			points++
		}
		t.Logf("%d kill points: %v", points, seen)
		wantBoth(t, seen)
	})
}

func wantBoth(t *testing.T, seen map[string]int) {
	t.Helper()
	if seen[string(Done)] == 0 || seen[string(Undone)] == 0 {
		t.Errorf("one of the two ends never came up: %v", seen)
	}
}

// TestKillUndoRecover kills an undo before each of its calls, and then the
// recovery again and again, one call later each time.
func TestKillUndoRecover(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		points, seen := 0, map[string]int{}
		for n, killed := 1, true; killed; n += stride(t, base) {
			p := promotedScene(t, base)
			killed = runChild(t, p.scene, "undo", n, 0)
			for m := 1; killed && runChild(t, p.scene, "recover", m, 0); m++ {
				points++
			}
			seen[p.settled(t)]++
			p.remove(t)
		}
		t.Logf("%d kill points: %v", points, seen)
		wantBoth(t, seen)
	})
}

// TestKillRedo makes an undo fail at each of its calls, and kills what follows:
// first once, before each call, then the recovery again and again.
func TestKillRedo(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		points, seen := 0, map[string]int{}
		first, last := callsOfUndo(t, base)
		for f := first; f <= last; f += 3 * stride(t, base) {
			for n, killed := f+1, true; killed; n += stride(t, base) {
				p := promotedScene(t, base)
				killed = runChild(t, p.scene, "undo", n, f)
				points++
				for m := 1; killed && runChild(t, p.scene, "recover", m, 0); m += 1 + n%3 {
					points++
				}
				seen[p.settled(t)]++
				p.remove(t)
			}
		}
		t.Logf("%d kill points: %v", points, seen)
	})
}

// callsOfUndo numbers the first call after the commit point, and the last call.
func callsOfUndo(t testing.TB, base string) (first, last int) {
	t.Helper()
	p := promotedScene(t, base)
	defer p.remove(t)
	dirtyKB = none
	defer func() { dirtyKB, fault = readDirtyKB, nil }()
	fault = func(string) error {
		last++
		if st, _ := Status(p.req.Workspace, "t1"); st == Undoing && first == 0 {
			first = last
		}
		return nil
	}
	_, err := undoLast(p.scene)
	check(t, err)
	if first == 0 {
		t.Fatal("no commit point seen")
	}
	return first, last
}

// TestFailUndo makes every call of an undo fail once, with each error.
func TestFailUndo(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		defer func() { dirtyKB = readDirtyKB }()
		for i, errno := range []error{unix.ENOSPC, unix.EIO, unix.EACCES} {
			if dirtyKB = lots; errno == unix.EACCES {
				dirtyKB = none
			}
			points, seen := 0, map[string]int{}
			for n, hit := 1+i, true; hit; n += 3 * stride(t, base) {
				p := promotedScene(t, base)
				calls := 0
				fault = func(op string) error {
					if calls++; calls == n {
						return errno
					}
					return nil
				}
				_, err := undoLast(p.scene)
				fault = nil
				if hit = calls >= n; hit {
					points++
				}
				if err != nil && (!errors.Is(err, errno) || errors.Is(err, ErrPending)) {
					t.Fatalf("call %d: %v", n, err)
				}
				got := p.settled(t)
				if (err == nil) != (got == string(Undone)) {
					t.Fatalf("call %d: Undo said %v, but it is %s", n, err, got)
				}
				seen[got]++
				p.remove(t)
			}
			t.Logf("%v: %d points: %v", errno, points, seen)
			wantBoth(t, seen)
		}
	})
}

// TestFailUndoFromThenOn lets the disk die at each call, and come back for the
// recovery.
func TestFailUndoFromThenOn(t *testing.T) {
	base, points, seen := tempDir(t), 0, map[string]int{}
	for n, hit := 1, true; hit; n++ {
		p := promotedScene(t, base)
		calls := 0
		fault = func(string) error {
			if calls++; calls >= n {
				return unix.EIO
			}
			return nil
		}
		_, err := undoLast(p.scene)
		fault = nil
		hit = calls >= n
		points++
		got := p.settled(t)
		seen[got]++
		if !errors.Is(err, ErrPending) && (err == nil) != (got == string(Undone)) {
			t.Fatalf("call %d: Undo said %v, but it is %s", n, err, got)
		}
		p.remove(t)
	}
	t.Logf("%d points: %v", points, seen)
	wantBoth(t, seen)
}

// TestUndoWithoutExchange runs where renameat2 flags are unknown, as on NFS.
func TestUndoWithoutExchange(t *testing.T) {
	base, points := tempDir(t), 0
	for n, hit := 0, true; hit; n++ {
		p := promotedScene(t, base)
		calls := 0
		fault = func(op string) error {
			if op == "exchange" || op == "noreplace" {
				return unix.EINVAL
			}
			if calls++; calls == n {
				return unix.EIO
			}
			return nil
		}
		_, err := undoLast(p.scene)
		fault = nil
		hit = calls >= n
		points++
		if got := p.settled(t); (err == nil) != (got == string(Undone)) || n == 0 && got != string(Undone) {
			t.Fatalf("call %d: Undo said %v, but it is %s", n, err, got)
		}
		p.remove(t)
	}
	t.Logf("%d points", points)
}
