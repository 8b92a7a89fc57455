//go:build linux

package promote

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// seen makes the changes of a scene those of a box whose run has just ended.
func (s *scene) seen(t testing.TB) {
	t.Helper()
	for i := range s.req.Changes.Entries {
		e := &s.req.Changes.Entries[i]
		if e.Before == nil {
			continue
		}
		st, err := fsat.Lstat(s.req.Workspace, e.Path)
		check(t, err)
		e.Before.UID, e.Before.GID, e.Before.Mtime = st.UID, st.GID, st.Mtime
	}
	changeset.MarkSeen(s.req.Changes, s.req.Workspace, s.req.Stamp.T)
}

// failing fails the n-th call that changes the disk.
func failing(n int) func(string) error {
	calls := 0
	return func(string) error {
		if calls++; calls == n {
			return unix.EIO
		}
		return nil
	}
}

// A promotion that fails at any call after its commit point is taken back. That
// moved files there and back, which is no edit of the host's.
func TestTakenBackIsNoConflict(t *testing.T) {
	defer func() { fault = nil }()
	fileSystems(t, func(t *testing.T, base string) {
		back := 0
		for n, done := 1, false; !done; n += stride(t, base) {
			before, after := mixed()
			s := newScene(t, filepath.Join(base, strconv.Itoa(n)), before, after, "user.overlay.origin=o")
			s.seen(t)
			fault = failing(n)
			res, err := Apply(context.Background(), s.req)
			fault = nil
			done = err == nil
			if res.RolledBack {
				back++
				s.want(t, "before")
				s.req.ID = "t2"
				if _, err := Apply(context.Background(), s.req); err != nil {
					t.Fatalf("call %d failed; the next attempt: %v", n, err)
				}
				s.want(t, "after")
			}
			s.remove(t)
		}
		t.Logf("taken back %d times", back)
		if back < 3 {
			t.Error("too few promotions were taken back")
		}
	})
}

// The same after recovery took one back.
func TestRecoveredBackIsNoConflict(t *testing.T) {
	before, after := mixed()
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.remove(t)
	s.seen(t)
	cutShort(t, s)
	txn := s.ws(home + "/" + txnPrefix + s.req.ID)
	check(t, os.Rename(filepath.Join(txn, journalFile), filepath.Join(txn, backFile)))
	rec, err := Recover(s.req.Workspace, testKey, nil)
	if err != nil || len(rec) != 1 || rec[0].Forward {
		t.Fatalf("%+v, %v", rec, err)
	}
	s.want(t, "before")
	s.req.ID = "t2"
	s.apply(t)
	s.want(t, "after")
}

// And after an undo, for a box that saw the same. Whatever somebody did between
// is a conflict all the same, unless it is as it was.
func TestUndoneIsNoConflict(t *testing.T) {
	restored := func(path string, edit func() error) error {
		var st unix.Stat_t
		return errors.Join(unix.Lstat(path, &st), edit(),
			unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW))
	}
	for name, c := range map[string]struct {
		edit     func(s *scene) error
		conflict string
		root     bool
	}{
		"nothing": {edit: func(s *scene) error { return nil }},
		"mode, put back": {edit: func(s *scene) error {
			return errors.Join(os.Chmod(s.ws("mod.txt"), 0o600), os.Chmod(s.ws("mod.txt"), 0o644))
		}},
		"another name": {edit: func(s *scene) error { return os.Link(s.ws("mod.txt"), filepath.Join(s.dir, "name")) }},
		"written": {conflict: "mod.txt", edit: func(s *scene) error {
			return os.WriteFile(s.ws("mod.txt"), []byte("mine"), 0o644)
		}},
		"written, time and size put back": {conflict: "mod.txt", edit: func(s *scene) error {
			text, err := os.ReadFile(s.ws("mod.txt"))
			for i := range text {
				text[i] ^= 1
			}
			return errors.Join(err, restored(s.ws("mod.txt"), func() error { return os.WriteFile(s.ws("mod.txt"), text, 0o644) }))
		}},
		"written as it was": {conflict: "mod.txt", edit: func(s *scene) error {
			text, err := os.ReadFile(s.ws("mod.txt"))
			return errors.Join(err, os.WriteFile(s.ws("mod.txt"), text, 0o644))
		}},
		"mode":             {conflict: "mod.txt", edit: func(s *scene) error { return os.Chmod(s.ws("mod.txt"), 0o600) }},
		"mode of altered":  {conflict: "mode.sh", edit: func(s *scene) error { return os.Chmod(s.ws("mode.sh"), 0o711) }},
		"mode of a dir":    {conflict: "chmod", edit: func(s *scene) error { return os.Chmod(s.ws("chmod"), 0o710) }},
		"attribute":        {conflict: "mod.txt", edit: func(s *scene) error { return unix.Setxattr(s.ws("mod.txt"), "user.mine", []byte("1"), 0) }},
		"attribute of dir": {conflict: "chmod", edit: func(s *scene) error { return unix.Setxattr(s.ws("chmod"), "user.mine", []byte("1"), 0) }},
		"owner":            {conflict: "mod.txt", root: true, edit: func(s *scene) error { return os.Chown(s.ws("mod.txt"), 7, 7) }},
		"capability": {conflict: "mod.txt", root: true, edit: func(s *scene) error {
			const netBindService = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // VFS_CAP_REVISION_2, capabilities(7)
			return unix.Setxattr(s.ws("mod.txt"), "security.capability", []byte(netBindService), 0)
		}},
		"deleted one": {conflict: "del.txt", edit: func(s *scene) error { return os.WriteFile(s.ws("del.txt"), []byte("mine"), 0o644) }},
		"in a deleted directory": {conflict: "deldir/mine", edit: func(s *scene) error {
			return restored(s.ws("deldir"), func() error { return os.WriteFile(s.ws("deldir/mine"), nil, 0o644) })
		}},
		"link": {conflict: "link", edit: func(s *scene) error {
			return errors.Join(os.Remove(s.ws("link")), os.Symlink("mine", s.ws("link")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				return // only root can do that to a file
			}
			before, after := mixed()
			s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
			defer s.remove(t)
			s.req.KeepLayer = true
			s.seen(t)
			s.apply(t)
			_, err := undoLast(s)
			check(t, err)
			check(t, c.edit(s))
			s.req.ID = "t2"
			_, err = Apply(context.Background(), s.req)
			if c.conflict == "" {
				check(t, err)
				return
			}
			var conflict *ConflictError
			if !errors.As(err, &conflict) || conflict.Conflicts[0].Path != c.conflict {
				t.Fatalf("%v is not a conflict of %q", err, c.conflict)
			}
		})
	}
}

// A change that the host had edited before hutch first looked at it stays a
// conflict: what was read as the state before is the host's.
func TestUnseenStaysAConflict(t *testing.T) {
	s := newScene(t, filepath.Join(tempDir(t), "s"), mapTree{"f": file("base")}, mapTree{"f": file("box")}, "")
	defer s.remove(t)
	check(t, os.WriteFile(s.ws("f"), []byte("host"), 0o644))
	s.req.Changes.Entries[0].Before = stateOf(file("host"))
	s.seen(t)
	var conflict *ConflictError
	if _, err := Apply(context.Background(), s.req); !errors.As(err, &conflict) {
		t.Fatalf("%v is no conflict", err)
	}
}
