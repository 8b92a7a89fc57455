//go:build linux

package promote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The environment that makes the test binary a child that promotes or
// recovers, and dies or fails at a given call.
const (
	envChild = "HUTCH_PROMOTE_CHILD" // "apply", "undo" or "recover"
	envDir   = "HUTCH_PROMOTE_DIR"
	envKill  = "HUTCH_PROMOTE_KILL"  // the call before which SIGKILL comes
	envFail  = "HUTCH_PROMOTE_FAIL"  // the call that fails with EIO
	envPlain = "HUTCH_PROMOTE_PLAIN" // set: renameat2 knows no flags
	envDirty = "HUTCH_PROMOTE_DIRTY" // set: an fsync for each file, never syncfs
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(envChild); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(m.Run())
}

func child(mode string) int {
	kill, _ := strconv.ParseInt(os.Getenv(envKill), 10, 64)
	fail, _ := strconv.ParseInt(os.Getenv(envFail), 10, 64)
	if os.Getenv(envDirty) != "" {
		dirtyKB = lots
	} else {
		dirtyKB = none
	}
	var calls atomic.Int64
	fault = func(op string) error {
		if os.Getenv(envPlain) != "" && (op == "exchange" || op == "noreplace") {
			return unix.EINVAL
		}
		switch calls.Add(1) {
		case kill:
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case fail:
			return unix.EIO
		}
		return nil
	}
	s := loadScene(&testing.T{}, os.Getenv(envDir))
	s.req.Merge = joinLines
	var err error
	switch mode {
	case "apply":
		_, err = Apply(context.Background(), s.req)
	case "undo":
		_, err = undoLast(s)
	default:
		_, err = Recover(s.req.Workspace, testKey, nil)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	return 0
}

func lots() int64 { return 1 << 40 }
func none() int64 { return 0 }

// runChild reports whether the child was killed before it was done.
func runChild(t testing.TB, s *scene, mode string, kill, fail int) (killed bool) {
	t.Helper()
	exe, err := os.Executable()
	check(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envChild+"="+mode, envDir+"="+s.dir,
		envKill+"="+strconv.Itoa(kill), envFail+"="+strconv.Itoa(fail))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGKILL:
		return true
	case errors.As(err, &exit) && exit.ExitCode() == 3 && fail > 0:
		return false
	}
	t.Fatalf("child %s kill %d fail %d: %v: %s", mode, kill, fail, err, out)
	return false
}

// settled recovers and checks that the workspace is whole: "before", with the
// layer as it was, or "after".
func (s *scene) settled(t testing.TB) string {
	t.Helper()
	rec, err := Recover(s.req.Workspace, testKey, nil)
	check(t, err)
	got := s.outcome(t)
	if got != "before" && got != "after" {
		t.Fatalf("recovery (%+v) left %s", rec, got)
	}
	if got == "before" {
		s.wantLayer(t)
	}
	for _, r := range rec {
		if r.Kept || r.Forward != (got == "after") || r.Forward != (string(r.Receipt) == string(s.req.Receipt)) {
			t.Fatalf("recovered %+v, but the workspace is %s", r, got)
		}
	}
	if again, err := Recover(s.req.Workspace, testKey, nil); err != nil || len(again) != 0 {
		t.Fatalf("a second recovery: %+v, %v", again, err)
	}
	if p, err := Pending(s.req.Workspace); p || err != nil {
		t.Fatalf("pending after recovery: %v, %v", p, err)
	}
	if _, err := os.Lstat(s.ws(home)); got == "before" && !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("%s is left: %v", home, err)
	}
	return got
}

// mixedScene is a fresh scene of all kinds of change.
func mixedScene(t testing.TB, base string, set func(*Request)) *scene {
	t.Helper()
	before, after := mixed()
	if set != nil && os.Geteuid() != 0 {
		delete(after, "secret") // see openUnreadable
	}
	s := newScene(t, filepath.Join(base, "s"), before, after, "user.overlay.origin=")
	if set != nil {
		set(&s.req)
	}
	s.save(t)
	return s
}

// TestKillApply kills a promotion before each of its calls.
func TestKillApply(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		for name, set := range map[string]func(*Request){"move": nil, "keepLayer": func(r *Request) { r.KeepLayer = true }} {
			if name == "move" {
				t.Setenv(envDirty, "1")
			} else {
				t.Setenv(envDirty, "")
			}
			points, seen := 0, map[string]int{}
			step := min(6, stride(t, base))
			for n, killed := sample(t, step), true; killed; n += step {
				s := mixedScene(t, base, set)
				killed = runChild(t, s, "apply", n, 0)
				seen[s.settled(t)]++
				s.remove(t)
				points++
			}
			t.Logf("%s: %d kill points: %v", name, points, seen)
		}
	})
}

// TestKillRecover kills a promotion before each of its calls, and then the
// recovery again and again, one call later each time.
func TestKillRecover(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		points, seen := 0, map[string]int{}
		step := stride(t, base)
		for n, killed := sample(t, step), true; killed; n += step {
			s := mixedScene(t, base, nil)
			killed = runChild(t, s, "apply", n, 0)
			for m := 1; killed && runChild(t, s, "recover", m, 0); m++ {
				points++
			}
			seen[s.settled(t)]++
			s.remove(t)
		}
		t.Logf("%d kill points: %v", points, seen)
	})
}

// TestKillReverse makes a promotion fail at each of its calls, and kills what
// follows: first once, before each call, then the recovery again and again.
func TestKillReverse(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		points, seen := 0, map[string]int{}
		first, last := callsAfterCommit(t, base)
		for f := first; f <= last; f += 3 * stride(t, base) {
			for n, killed := f+1, true; killed; n += min(2, stride(t, base)) * stride(t, base) {
				s := mixedScene(t, base, nil)
				killed = runChild(t, s, "apply", n, f)
				points++
				for m := 1; killed && runChild(t, s, "recover", m, 0); m += 1 + n%3 {
					points++
				}
				seen[s.settled(t)]++
				s.remove(t)
			}
		}
		t.Logf("%d kill points: %v", points, seen)
	})
}

// TestKillSettled kills a promotion that merges and takes sides.
func TestKillSettled(t *testing.T) {
	base, points, seen := tempDir(t), 0, map[string]int{}
	step := min(2, stride(t, base))
	for n, killed := sample(t, step), true; killed; n += step {
		s := mixedScene(t, base, nil)
		for path, box := range map[string]string{"mod.txt": "new content", "ro/f": "new in ro", "dir/a": "a changed"} {
			check(t, os.WriteFile(s.ws(path), []byte("the host's"), 0o644))
			host := s.before[path]
			host.Data = "the host's"
			s.before[path] = host
			merged := s.after[path]
			merged.Data = "the host's+" + box
			s.after[path] = merged
		}
		s.req.OnConflict = Merge
		s.save(t)
		killed = runChild(t, s, "apply", n, 0)
		for m := 1; killed && n%7 == 0 && runChild(t, s, "recover", m, 0); m++ {
			points++
		}
		seen[s.settled(t)]++
		s.remove(t)
		points++
	}
	t.Logf("%d kill points: %v", points, seen)
	if seen["before"] == 0 || seen["after"] == 0 {
		t.Error("one of both was never seen")
	}
}

// TestKillWithoutExchange kills where renameat2 knows no flags.
func TestKillWithoutExchange(t *testing.T) {
	t.Setenv(envPlain, "1")
	base, points, seen := tempDir(t), 0, map[string]int{}
	step := min(2, stride(t, base))
	for n, killed := sample(t, step), true; killed; n += step {
		s := mixedScene(t, base, nil)
		killed = runChild(t, s, "apply", n, 0)
		for m := 1; killed && n%3 == 0 && runChild(t, s, "recover", m, 0); m += 2 {
			points++
		}
		seen[s.settled(t)]++
		s.remove(t)
		points++
	}
	t.Logf("%d kill points: %v", points, seen)
	if seen["before"] == 0 || seen["after"] == 0 {
		t.Error("one of both was never seen")
	}
}

// stride is the step of a walk over all calls: the long version meets each, the
// short one a sample. Every call is the same code on each file system, so a
// sample on one of several may be thin.
func stride(t testing.TB, base string) int {
	t.Helper()
	switch {
	case os.Getenv("HUTCH_PROOF") != "":
		return 1
	case strings.Contains(base, "mnt"):
		return 17
	}
	return 7
}

// sample returns where a walk with a step begins: anywhere, so that many short
// runs meet all calls, and said, so that each can be repeated.
func sample(t testing.TB, step int) int {
	t.Helper()
	first := 1 + rand.IntN(step)
	t.Logf("calls from %d by %d", first, step)
	return first
}

// callsAfterCommit numbers the first call after the journal's rename, and the
// last call.
func callsAfterCommit(t testing.TB, base string) (first, last int) {
	t.Helper()
	s := mixedScene(t, base, nil)
	defer s.remove(t)
	dirtyKB = none
	defer func() { dirtyKB, fault = readDirtyKB, nil }()
	fault = func(op string) error {
		last++
		if st, _ := Status(s.req.Workspace, s.req.ID); st == Committed && first == 0 {
			first = last
		}
		return nil
	}
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	if first == 0 {
		t.Fatal("no commit point seen")
	}
	return first, last
}

// TestFail makes every call of a promotion fail once, with each error.
func TestFail(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		defer func() { dirtyKB = readDirtyKB }()
		for _, errno := range []error{unix.ENOSPC, unix.EIO, unix.EACCES} {
			if dirtyKB = lots; errno == unix.EACCES {
				dirtyKB = none
			}
			points, rolledBack := 0, 0
			step := stride(t, base)
			for n, hit := sample(t, step), true; hit; n += step {
				s := mixedScene(t, base, nil)
				calls := 0
				fault = func(op string) error {
					if calls++; calls == n {
						return errno
					}
					return nil
				}
				res, err := Apply(context.Background(), s.req)
				fault = nil
				hit = calls >= n
				if hit {
					points++
				}
				if err != nil {
					s.want(t, "before")
					s.wantLayer(t)
				} else {
					s.want(t, "after")
				}
				if res.RolledBack {
					rolledBack++
				}
				if err != nil && !errors.Is(err, errno) {
					t.Fatalf("call %d: %v hides the cause %v", n, err, errno)
				}
				s.settled(t)
				s.remove(t)
			}
			t.Logf("%v: %d points, %d rolled back after the commit point", errno, points, rolledBack)
		}
	})
}

// TestFailFromThenOn lets the disk die at each call, and come back for the
// recovery.
func TestFailFromThenOn(t *testing.T) {
	base, points, seen := tempDir(t), 0, map[string]int{}
	for n, hit := 1, true; hit; n++ {
		s := mixedScene(t, base, nil)
		calls := 0
		fault = func(op string) error {
			if calls++; calls >= n {
				return unix.EIO
			}
			return nil
		}
		_, err := Apply(context.Background(), s.req)
		fault = nil
		hit = calls >= n
		points++
		got := s.settled(t)
		seen[got]++
		if !errors.Is(err, ErrPending) && (err == nil) != (got == "after") {
			t.Fatalf("call %d: Apply said %v, but the workspace is %s", n, err, got)
		}
		s.remove(t)
	}
	t.Logf("%d points: %v", points, seen)
}

// TestWithoutExchange runs where renameat2 flags are unknown, as on NFS.
func TestWithoutExchange(t *testing.T) {
	base, points := tempDir(t), 0
	for n, hit := 0, true; hit; n++ {
		s := mixedScene(t, base, nil)
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
		_, err := Apply(context.Background(), s.req)
		fault = nil
		hit = calls >= n
		points++
		if got := s.settled(t); (err == nil) != (got == "after") || n == 0 && got != "after" {
			t.Fatalf("call %d: Apply said %v, but the workspace is %s", n, err, got)
		}
		s.remove(t)
	}
	t.Logf("%d points", points)
}
