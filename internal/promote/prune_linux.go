package promote

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Prune removes finished transactions, and with them what undo would need,
// until the rest is within the budget; of several the oldest go first. It
// returns how many bytes they held.
func Prune(workspaceFD int, key Key, keep Budget) (freed int64, err error) {
	s, err := openShed(context.Background(), workspaceFD, key)
	if err != nil || s == nil {
		return 0, err
	}
	defer s.leave()
	return s.prune(keep)
}

// kept is a finished transaction.
type kept struct {
	id    string
	state State
	head
	// foreign is set for one whose head is not believed: its size and age are
	// what a stranger says, or nothing.
	foreign bool
}

func (s *shed) prune(keep Budget) (freed int64, err error) {
	all, err := s.finished()
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, k := range beyond(all, keep) {
		if err := s.forget(k.id); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += k.Held
	}
	return freed, errors.Join(errs...)
}

// beyond returns those of the transactions, newest first, that are over the
// budget. What is foreign has a budget of its own, so that no forged number
// can cost the user his undo. One that is over the budget alone goes, and takes
// no older one with it.
func beyond(all []kept, keep Budget) (over []kept) {
	oldest := time.Now().Add(-keep.Age).UnixNano()
	for _, foreign := range []bool{false, true} {
		count, sum := 0, int64(0)
		for _, k := range all {
			if k.foreign != foreign {
				continue
			}
			fits := k.Held <= keep.Bytes
			if fits {
				count++
				sum += k.Held
			}
			if fits && count <= keep.Count && sum <= keep.Bytes && (count == 1 && keep.Age > 0 || k.Time > oldest) {
				continue
			}
			over = append(over, k)
		}
	}
	return over
}

// forget removes one transaction. Its state goes first, that of an undo last,
// so that what a crash leaves of it is never taken for a promotion that can be
// undone.
func (s *shed) forget(id string) error {
	txn, err := fsat.OpenDir(s.fd, txnPrefix+id)
	if err != nil {
		return err
	}
	for _, file := range []string{doneFile, abortedFile, undoneFile} {
		if err = unlink(txn, file); errors.Is(err, unix.ENOENT) {
			err = nil
		}
		if err != nil {
			break
		}
	}
	unix.Close(txn)
	if err != nil {
		return err
	}
	return removeAll(s.fd, txnPrefix+id)
}

// finished lists the transactions that recovery has nothing to do with, the
// newest first.
func (s *shed) finished() ([]kept, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var all []kept
	for _, id := range ids {
		k, err := s.look(id)
		if err != nil {
			return nil, err
		}
		if k != nil {
			all = append(all, *k)
		}
	}
	slices.SortFunc(all, func(a, b kept) int {
		return cmp.Or(cmp.Compare(b.Seq, a.Seq), cmp.Compare(b.Time, a.Time), cmp.Compare(b.id, a.id))
	})
	return all, nil
}

// look reads the head of a finished transaction; nil is one that is not, or
// that is another user's and not to be read.
func (s *shed) look(id string) (*kept, error) {
	txn, err := fsat.OpenDir(s.fd, txnPrefix+id)
	if errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(txn)
	k := &kept{id: id}
	if k.state, err = state(txn); err != nil || !k.state.settled() {
		return nil, err
	}
	kind, name := aJournal, string(k.state)
	if k.state == Undone {
		kind = anUndo
	}
	fd, err := fsat.Open(txn, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	line := make([]byte, 512)
	n, _ := unix.Pread(fd, line, 0)
	if k.head, _, err = s.auth.head(kind, id, line[:max(n, 0)]); err != nil {
		st, err := fsat.Fstat(fd)
		if err != nil {
			return nil, err
		}
		k.foreign = true
		k.head = head{Time: st.Mtime.Sec*1e9 + st.Mtime.Nsec}
	}
	return k, nil
}
