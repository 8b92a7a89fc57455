//go:build linux

package promote

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// twoSteps promotes what is selected, then the rest. between runs in the middle.
func twoSteps(t *testing.T, s *scene, sel changeset.Selection, between func(rest *changeset.Changeset)) error {
	t.Helper()
	picked := filepath.Join(s.dir, "picked")
	check(t, os.Mkdir(picked, 0o700))
	fd, err := unix.Open(picked, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	part, rest, err := sel.Split(s.req.Changes, fd)
	check(t, err)

	first := s.req
	first.ID, first.Changes, first.Picked = "part", part, fd
	if _, err := Apply(context.Background(), first); err != nil {
		t.Fatalf("part: %v", err)
	}
	taken := changeset.Taken(s.req.Changes, rest)
	if taken.Digest != part.Digest {
		t.Error("the part cannot be told from the whole and the rest")
	}
	check(t, changeset.Rebase(rest, taken, s.req.Workspace))
	purge(t, picked) // the rest needs nothing of it
	if between != nil {
		between(rest)
	}
	then := s.req
	then.ID, then.Changes = "rest", rest
	_, err = Apply(context.Background(), then)
	return err
}

// Whatever part of a change of every kind goes first, hunks of files included,
// the rest can follow, and nothing of it is taken for the host's own change.
func TestPartThenRest(t *testing.T) {
	base := tempDir(t)
	rounds := 40
	if os.Getenv("HUTCH_PROOF") == "1" {
		rounds = 1000
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		before, after := mixed()
		dir := filepath.Join(base, strconv.Itoa(seed))
		s := newScene(t, dir, before, after, "user.overlay.origin=o")
		chosen := map[string]bool{}
		sel := changeset.Selection{Partial: map[string]changeset.Partial{}}
		for i := range s.req.Changes.Entries {
			e := &s.req.Changes.Entries[i]
			if chosen[e.Path] = rng.IntN(2) == 0; !chosen[e.Path] || e.Op != changeset.Modified || e.Before.Type != fsat.Regular || e.After.Type != fsat.Regular {
				continue
			}
			content := []string{before[e.Path].Data, after[e.Path].Data, "something between"}[rng.IntN(3)]
			sel.Partial[e.Path] = changeset.Partial{Content: []byte(content), Attributes: rng.IntN(2) == 0}
		}
		sel.Pass = func(e *changeset.Entry) bool { return chosen[e.Path] }
		err := twoSteps(t, s, sel, func(*changeset.Changeset) {
			for path, p := range sel.Partial {
				if got, err := os.ReadFile(s.ws(path)); err != nil || string(got) != string(p.Content) {
					t.Errorf("seed %d: %q holds %q, %v; chosen was %q", seed, path, got, err, p.Content)
				}
			}
		})
		if err != nil {
			t.Fatalf("seed %d: rest: %v", seed, err)
		}
		s.want(t, "after")
		s.remove(t)
	}
}

// What somebody else does between the two is a conflict, however soon it comes.
func TestRestSeesTheHostsEdits(t *testing.T) {
	for name, edit := range map[string]func(s *scene) error{
		"file":      func(s *scene) error { return os.WriteFile(s.ws("mod.txt"), []byte("mine"), 0o644) },
		"mode":      func(s *scene) error { return os.Chmod(s.ws("mod.txt"), 0o600) },
		"replaced":  func(s *scene) error { return os.Rename(s.ws("keep.txt"), s.ws("mod.txt")) },
		"directory": func(s *scene) error { return os.Chmod(s.ws("chmod"), 0o711) },
		"within":    func(s *scene) error { return os.WriteFile(s.ws("deldir/mine"), nil, 0o644) },
		"above": func(s *scene) error {
			return errors.Join(os.Rename(s.ws("todir"), s.ws("x")), os.Mkdir(s.ws("todir"), 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := mixed()
			s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
			defer s.close()
			first := map[string]bool{"todir": true, "deldir/x": true, "chmod/f": true}
			sel := changeset.Selection{
				Pass:    func(e *changeset.Entry) bool { return first[e.Path] },
				Partial: map[string]changeset.Partial{"mod.txt": {Content: []byte("new")}},
			}
			var conflict *ConflictError
			err := twoSteps(t, s, sel, func(*changeset.Changeset) { check(t, edit(s)) })
			if !errors.As(err, &conflict) {
				t.Fatalf("%v is no conflict", err)
			}
		})
	}
}

// An edit that came between the promotion and the look at it is not taken for
// the promotion's.
func TestRebaseDoesNotAdoptWhatItDoesNotKnow(t *testing.T) {
	before, after := mixed()
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	picked := s.dir
	fd, err := unix.Open(picked, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(fd)
	sel := changeset.Selection{
		Pass:    func(*changeset.Entry) bool { return false },
		Partial: map[string]changeset.Partial{"mod.txt": {Content: []byte("some")}},
	}
	part, rest, err := sel.Split(s.req.Changes, fd)
	check(t, err)
	first := s.req
	first.ID, first.Changes, first.Picked = "part", part, fd
	_, err = Apply(context.Background(), first)
	check(t, err)
	check(t, os.WriteFile(s.ws("mod.txt"), []byte("mine"), 0o644))
	check(t, changeset.Rebase(rest, part, s.req.Workspace))
	first.ID, first.Changes = "rest", rest
	var conflict *ConflictError
	if _, err := Apply(context.Background(), first); !errors.As(err, &conflict) || len(conflict.Conflicts) != 1 || conflict.Conflicts[0].Path != "mod.txt" {
		t.Fatalf("%v", err)
	}
}
