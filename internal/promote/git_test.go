//go:build linux

package promote

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch/internal/changeset"
)

// TestGitOrder watches the workspace before each call of a promotion: a ref
// never points at an object that is not there, and the lock is held.
func TestGitOrder(t *testing.T) {
	before, after := mixed()
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	has := func(rel, data string) bool {
		got, err := os.ReadFile(s.ws(rel))
		return err == nil && string(got) == data
	}
	locked, refs := 0, 0
	fault = func(op string) error {
		st, _ := Status(s.req.Workspace, s.req.ID)
		if st != Committed {
			return nil
		}
		object, worktree := has(".git/objects/bb/2", "2"), has("mod.txt", "new content")
		ref, index := has(".git/refs/heads/main", "2"), has(".git/index", "index with more")
		if worktree && !object || ref && !worktree || index && !ref {
			t.Errorf("at %s: object %v, worktree %v, ref %v, index %v", op, object, worktree, ref, index)
		}
		if _, err := os.Lstat(s.ws(".git/index.lock")); err == nil {
			locked++
		} else if op == "exchange" || op == "noreplace" {
			t.Errorf("%s without the lock", op)
		}
		if ref && !index {
			refs++
		}
		return nil
	}
	defer func() { fault = nil }()
	_, err := Apply(context.Background(), s.req)
	fault = nil
	check(t, err)
	s.want(t, "after")
	if locked == 0 || refs == 0 {
		t.Errorf("locked at %d calls, refs before the index at %d", locked, refs)
	}
}

func TestGitIsRunning(t *testing.T) {
	before, after := mixed()
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	lock := s.ws(".git/index.lock")
	check(t, os.WriteFile(lock, nil, 0o644))
	_, err := Apply(context.Background(), s.req)
	if !errors.Is(err, ErrGitBusy) || !strings.Contains(err.Error(), ".git/index.lock") {
		t.Errorf("%v", err)
	}
	check(t, os.Remove(lock)) // it was not ours to remove
	s.want(t, "before")
	s.wantLayer(t)
	if _, err := os.Lstat(s.ws(home)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a .hutch is left: %v", err)
	}

	// Without .git in the change git may do as it likes.
	check(t, os.WriteFile(lock, nil, 0o644))
	s.req.Changes.Entries = slices.DeleteFunc(s.req.Changes.Entries, func(e changeset.Entry) bool { return strings.HasPrefix(e.Path, ".git") })
	_, err = Apply(context.Background(), s.req)
	check(t, err)
}

// TestUsersLockSurvivesRecovery holds that recovery removes hutch's own lock
// only, and not one that the user's git took after he removed that.
func TestUsersLockSurvivesRecovery(t *testing.T) {
	before, after := mixed()
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	cutShort(t, s)
	lock := s.ws(".git/index.lock")
	text, err := os.ReadFile(lock)
	check(t, err)
	if !strings.Contains(string(text), "hutch recover") {
		t.Errorf("the lock says %q", text)
	}
	check(t, os.Remove(lock))
	check(t, os.WriteFile(lock, []byte("git's"), 0o644))
	_, err = Recover(s.req.Workspace, s.req.Key, nil)
	check(t, err)
	if text, err := os.ReadFile(lock); err != nil || string(text) != "git's" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestLockLeftInTheBox holds that a lock of a git that died in the box does not
// stop every git of the host.
func TestLockLeftInTheBox(t *testing.T) {
	before, after := mixed()
	after[".git/refs/heads/main.lock"], after[".git/index.lock"] = file(""), file("")
	after["Cargo.lock"] = file("an ordinary file")
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	res, err := Apply(context.Background(), s.req)
	check(t, err)
	delete(s.after, ".git/refs/heads/main.lock")
	delete(s.after, ".git/index.lock")
	s.want(t, "after")
	if len(res.Notes) != 2 || !strings.Contains(res.Notes[0], "index.lock") {
		t.Errorf("%q", res.Notes)
	}
}

var lastYear = time.Now().Add(-365 * 24 * time.Hour)

// TestIndexByMeaning holds that git looking at its repository on the host is no
// change of the index, and that git adding to it is one.
func TestIndexByMeaning(t *testing.T) {
	for name, tt := range map[string]struct {
		host      func(git func(dir string, args ...string), ws string)
		forgotten bool // what the branch saw
		conflict  bool
	}{
		"status": {func(git func(string, ...string), ws string) {
			check(t, os.Chtimes(filepath.Join(ws, "a"), lastYear, lastYear))
			git(ws, "status")
		}, false, false},
		"status, base unknown": {func(git func(string, ...string), ws string) {
			check(t, os.Chtimes(filepath.Join(ws, "a"), lastYear, lastYear))
			git(ws, "status")
		}, true, true},
		"add": {func(git func(string, ...string), ws string) {
			check(t, os.WriteFile(filepath.Join(ws, "other"), nil, 0o644))
			git(ws, "add", "other")
		}, false, true},
		"the same add": {func(git func(string, ...string), ws string) {
			check(t, os.WriteFile(filepath.Join(ws, "n"), []byte("n"), 0o644))
			git(ws, "add", "n")
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			git := func(dir string, args ...string) {
				t.Helper()
				cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
				cmd.Env = append(os.Environ(), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("git %v: %v\n%s", args, err, out)
				}
			}
			base := tempDir(t)
			made := filepath.Join(base, "made")
			check(t, os.Mkdir(made, 0o755))
			git(made, "init", "-q")
			check(t, os.WriteFile(filepath.Join(made, "a"), []byte("a"), 0o644))
			git(made, "add", ".")
			git(made, "commit", "-qm", "a")
			before := snap(t, made)
			index, err := os.ReadFile(filepath.Join(made, ".git/index"))
			check(t, err)
			check(t, os.WriteFile(filepath.Join(made, "n"), []byte("n"), 0o644))
			git(made, "add", "n")
			s := newScene(t, filepath.Join(base, "s"), before, snap(t, made), "")
			defer s.close()
			if !tt.forgotten {
				s.entry(t, ".git/index").BaseIndex = changeset.IndexDigest(index)
			}
			tt.host(git, s.ws(""))
			_, err = Apply(context.Background(), s.req)
			var conflict *ConflictError
			if errors.As(err, &conflict) != tt.conflict || err != nil && !tt.conflict {
				t.Fatalf("%v", err)
			}
			if tt.conflict && (len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Path != ".git/index") {
				t.Errorf("%v", err)
			}
			if !tt.conflict {
				git(s.ws(""), "fsck", "--strict")
				git(s.ws(""), "diff", "--quiet")
				git(s.ws(""), "diff", "--cached", "--name-only", "--exit-code", "--diff-filter=MD")
			}
		})
	}
}
