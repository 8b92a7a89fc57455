//go:build linux

package promote

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestForeignJournal: what was sealed with another key, or for another
// directory, is not followed, whatever state it is in, and stops all else until
// someone who knows says so.
func TestForeignJournal(t *testing.T) {
	other := Key{7}
	for name, leave := range map[string]func(t *testing.T, s *scene){
		"committed": cutShort,
		"reversing": func(t *testing.T, s *scene) {
			cutShort(t, s)
			check(t, os.Rename(s.ws(".hutch/txn-t1/journal"), s.ws(".hutch/txn-t1/back")))
		},
		"undoing": func(t *testing.T, s *scene) {
			s.apply(t)
			cutUndo(t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := smallScene(t)
			leave(t, s)
			was, hutch := whole(t, s.ws("")), whole(t, s.ws(home))
			untouched := func(err error) {
				t.Helper()
				if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "hutch recover --foreign t1") {
					t.Errorf("%v", err)
				}
				if d := cmp.Diff(was, whole(t, s.ws(""))); d != "" {
					t.Errorf("touched: %s", d)
				}
				if d := cmp.Diff(hutch, whole(t, s.ws(home))); d != "" {
					t.Errorf("touched: %s", d)
				}
			}
			_, err := Recover(s.req.Workspace, other, nil)
			untouched(err)
			_, err = Recover(s.req.Workspace, other, nil, "t2")
			untouched(err)
			next := s.req
			next.Key, next.ID = other, "t2"
			_, err = Apply(context.Background(), next)
			untouched(err)
			_, err = Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: other})
			untouched(err)

			recorded := 0
			rec, err := Recover(s.req.Workspace, other, func(r Recovered) error {
				if recorded++; !r.Foreign {
					t.Errorf("%+v", r)
				}
				return nil
			}, "t1")
			check(t, err)
			if len(rec) != 1 || !rec[0].Foreign || name != "reversing" && recorded != 1 {
				t.Errorf("%+v", rec)
			}
			s.want(t, map[string]string{"committed": "after", "reversing": "before", "undoing": "before"}[name])
		})
	}
}

// cutUndo leaves an undo right after its commit point.
func cutUndo(t *testing.T, s *scene) {
	t.Helper()
	type stop struct{}
	defer func() {
		fault = nil
		if r := recover(); r != (stop{}) {
			t.Fatalf("not stopped: %v", r)
		}
	}()
	fault = func(string) error {
		if st, _ := Status(s.req.Workspace, s.req.ID); st == Undoing {
			panic(stop{})
		}
		return nil
	}
	_, _ = undoLast(s)
}

// TestReplayedJournal: a journal means nothing in another directory, be it of
// the same hutch.
func TestReplayedJournal(t *testing.T) {
	s, victim := smallScene(t), smallScene(t)
	cutShort(t, s)
	check(t, os.Rename(s.ws(home), victim.ws(home)))
	_, err := Recover(victim.req.Workspace, testKey, nil)
	if !errors.Is(err, ErrForeign) {
		t.Error(err)
	}
	victim.want(t, "before")
}

// TestRenamedSeal: neither another transaction's file nor one of another kind
// passes.
func TestRenamedSeal(t *testing.T) {
	s := smallScene(t)
	s.apply(t)
	data, err := os.ReadFile(s.ws(".hutch/txn-t1/done"))
	check(t, err)
	a := s.authority(t)
	for _, c := range []struct {
		kind, id string
		ok       bool
	}{{aJournal, "t1", true}, {aJournal, "t2", false}, {anUndo, "t1", false}, {anAfter, "t1", false}} {
		if _, err := a.unseal(c.kind, c.id, data, new(journal)); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// Each number of the head is under the code.
	line, body, _ := strings.Cut(string(data), "\n")
	for i := range strings.Fields(line) {
		fields := strings.Fields(line)
		fields[i] = strings.Map(func(r rune) rune {
			if r >= '0' && r < '9' {
				return r + 1
			}
			return r
		}, fields[i])
		if _, err := a.unseal(aJournal, "t1", []byte(strings.Join(fields, " ")+"\n"+body), new(journal)); err == nil {
			t.Errorf("field %d is not sealed", i)
		}
	}
}

// TestRecoverMoved recovers a workspace that got another name after the crash.
func TestRecoverMoved(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, s *scene){
		"apply": cutShort,
		"undo": func(t *testing.T, s *scene) {
			s.apply(t)
			cutUndo(t, s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := smallScene(t)
			leave(t, s)
			moved := filepath.Join(s.dir, "deep", "moved")
			check(t, os.Mkdir(filepath.Dir(moved), 0o755))
			check(t, os.Rename(s.ws(""), moved))
			fd, err := unix.Open(moved, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			check(t, err)
			defer unix.Close(fd)
			rec, err := Recover(fd, testKey, nil)
			check(t, err)
			if len(rec) != 1 || !rec[0].Forward || rec[0].Undone != (name == "undo") {
				t.Errorf("%+v", rec)
			}
			check(t, os.Rename(moved, s.ws("")))
			s.want(t, map[string]string{"apply": "after", "undo": "before"}[name])
		})
	}
}

// TestRecoverWhileOthersWait: a promotion that waits for the lock finds a
// workspace that is whole, whoever recovered it.
func TestRecoverWhileOthersWait(t *testing.T) {
	s := smallScene(t)
	cutShort(t, s)
	before := mapTree{"a": file("a2"), "b": file("b2"), "n": file("n")}
	after := mapTree{"a": file("a2"), "b": file("b3"), "n": file("n")}
	n := newScene(t, s.dir+"-2", before, after, "")
	defer n.close()
	n.req.ID, n.req.Workspace = "t2", s.req.Workspace
	for i := range n.req.Changes.Entries {
		n.req.Changes.Entries[i].BaseIno = 0
	}
	n.req.Stamp.T.Sec += 3600 // the recovery's own changes are not the question
	held, err := openShed(context.Background(), s.req.Workspace, testKey)
	check(t, err)
	promoted, undone := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := Apply(context.Background(), n.req)
		promoted <- err
	}()
	go func() {
		_, err := Undo(context.Background(), UndoRequest{Workspace: s.req.Workspace, Key: testKey, ID: "t9"})
		undone <- err
	}()
	select {
	case err := <-promoted:
		t.Fatalf("did not wait: %v", err)
	case err := <-undone:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	rec, err := held.recover(nil)
	check(t, err)
	held.close()
	if len(rec) != 1 || !rec[0].Forward {
		t.Errorf("%+v", rec)
	}
	if err := <-undone; !errors.Is(err, ErrNoUndo) {
		t.Error(err)
	}
	check(t, <-promoted)
	if d := cmp.Diff(after, snap(t, s.ws(""))); d != "" {
		t.Error(d)
	}
}

// TestForeignCostsNothing: forged transactions push no other out of the budget.
func TestForeignCostsNothing(t *testing.T) {
	day := 24 * time.Hour
	now := time.Now().UnixNano()
	own := func(id string, held int64) kept { return kept{id: id, head: head{Held: held, Time: now}} }
	forged := func(id string) kept { return kept{id: id, head: head{Time: now}, foreign: true} }
	for _, c := range []struct {
		name string
		all  []kept
		keep Budget
		over []string
	}{
		{"all fit", []kept{own("a", 1), own("b", 1)}, Budget{2, 2, day}, nil},
		{"count", []kept{own("a", 1), own("b", 1)}, Budget{1, 2, day}, []string{"b"}},
		{"bytes", []kept{own("a", 1), own("b", 2)}, Budget{9, 2, day}, []string{"b"}},
		{"large alone", []kept{own("large", 3), own("a", 1), own("b", 1)}, Budget{2, 2, day}, []string{"large"}},
		{"foreign apart", []kept{forged("x"), forged("y"), own("a", 1), forged("z"), own("b", 1)}, Budget{2, 2, day}, []string{"z"}},
		{"nothing", []kept{own("a", 0), forged("x")}, Budget{}, []string{"a", "x"}},
	} {
		var over []string
		for _, k := range beyond(c.all, c.keep) {
			over = append(over, k.id)
		}
		if !slices.Equal(over, c.over) {
			t.Errorf("%s: %q, want %q", c.name, over, c.over)
		}
	}
}

// TestHandedOver: root undoes what it promoted into a user's workspace although
// the user owns it by then, and takes it back while it does; what the user
// promoted is not root's to follow.
func TestHandedOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root hands anything over")
	}
	s := smallScene(t)
	check(t, os.Chown(s.ws(""), 1234, 1234))
	s.apply(t)
	owner := func() uint32 {
		var st unix.Stat_t
		check(t, unix.Lstat(s.ws(".hutch/txn-t1"), &st))
		return st.Uid
	}
	if owner() != 1234 {
		t.Fatal("not handed over")
	}
	seen := false
	fault = func(string) error {
		if st, _ := Status(s.req.Workspace, "t1"); st == Undoing {
			if seen = true; owner() != 0 {
				t.Error("the user can reach the slots while root moves them")
			}
		}
		return nil
	}
	_, err := undoLast(s)
	fault = nil
	check(t, err)
	if !seen || owner() != 1234 {
		t.Errorf("undoing seen: %v; now of %d", seen, owner())
	}
	s.want(t, "before")

	// An order that lies in the user's hands is not followed, whoever sealed it.
	s = smallScene(t)
	check(t, os.Chown(s.ws(""), 1234, 1234))
	cutShort(t, s)
	check(t, os.Chown(s.ws(".hutch/txn-t1"), 1234, 1234))
	if _, err := Recover(s.req.Workspace, testKey, nil, "t1"); err == nil || !strings.Contains(err.Error(), "belongs to uid 1234") {
		t.Error(err)
	}
	s.want(t, "before")
}

func TestOverBudgetIsSaid(t *testing.T) {
	saved := DefaultBudget
	defer func() { DefaultBudget = saved }()
	DefaultBudget.Bytes = 1
	s := smallScene(t)
	res, err := Apply(context.Background(), s.req)
	check(t, err)
	if res.Held < 2 || !strings.Contains(res.NoUndo, "over the budget of 1") {
		t.Errorf("%+v", res)
	}
	if _, err := undoLast(s); !errors.Is(err, ErrNoUndo) {
		t.Error(err)
	}
}
