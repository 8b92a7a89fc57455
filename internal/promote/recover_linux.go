package promote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// maxJournal is more than any promotion writes.
const maxJournal = 1 << 30

// Recover completes every transaction that a crash cut short: one that had
// not reached its commit point is dropped, one that had is finished, one that
// was being reversed is taken back. It may be killed at any point and called
// again. When a journal is damaged or foreign (ErrForeign), nothing at all is
// touched; accept names foreign transactions to complete all the same.
//
// record, where it is not nil, is called for each that is finished, when that
// is durable and before its books are closed; see [Request.Record].
func Recover(workspaceFD int, key Key, record func(Recovered) error, accept ...string) ([]Recovered, error) {
	s, err := openShed(context.Background(), workspaceFD, key)
	if err != nil || s == nil {
		return nil, err
	}
	defer s.leave()
	s.auth.accept = map[string]bool{}
	for _, id := range accept {
		s.auth.accept[id] = true
	}
	return s.recover(record)
}

// cut is a transaction that was cut short.
type cut struct {
	id    string
	txn   int
	state State
	j     *journal
	undo  *undoing
}

func (s *shed) recover(record func(Recovered) error) ([]Recovered, error) {
	cuts, err := s.cuts()
	defer func() {
		for _, c := range cuts {
			unix.Close(c.txn)
		}
	}()
	if err != nil {
		return nil, err
	}
	var all []Recovered
	for _, c := range cuts {
		r, err := s.complete(c, record)
		if err != nil {
			return all, fmt.Errorf("recover transaction %s: %w", c.id, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// cuts reads and checks all journals before anything is done.
func (s *shed) cuts() ([]cut, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var cuts []cut
	for _, id := range ids {
		txn, err := fsat.OpenDir(s.fd, txnPrefix+id)
		if err != nil {
			return cuts, fmt.Errorf("transaction %s: %w", id, err)
		}
		c := cut{id: id, txn: txn}
		if c.state, err = state(txn); err != nil || c.state.settled() {
			unix.Close(txn)
			if err != nil {
				return cuts, err
			}
			continue
		}
		cuts = append(cuts, c)
		st, err := fsat.Fstat(txn)
		if err != nil {
			return cuts, err
		}
		// Root must not follow orders that a user may have forged.
		if st.UID != uint32(os.Geteuid()) {
			return cuts, fmt.Errorf("transaction %s belongs to uid %d: run hutch recover as that user", id, st.UID)
		}
		if c.state == Unstarted {
			continue
		}
		if err := s.orders(&cuts[len(cuts)-1]); err != nil {
			hint := ""
			if errors.Is(err, ErrForeign) {
				hint = fmt.Sprintf("; when you know it, `hutch recover --foreign %s` follows it all the same", id)
			}
			return cuts, fmt.Errorf("transaction %s: %w; nothing was touched, see %s/%s%s%s", id, err, home, txnPrefix, id, hint)
		}
	}
	return cuts, nil
}

// orders reads what is to be done about a transaction.
func (s *shed) orders(c *cut) (err error) {
	file, order := "", ""
	switch c.state {
	case Committed:
		file = journalFile
	case Reversing:
		file = backFile
	case Undoing:
		file, order = doneFile, undoingFile
	case Redoing:
		file, order = doneFile, redoingFile
	}
	data, err := readFile(c.txn, file)
	if err != nil {
		return err
	}
	if c.j, err = s.auth.journal(c.id, data); err != nil || order == "" {
		return err
	}
	if data, err = readFile(c.txn, order); err != nil {
		return err
	}
	c.undo = new(undoing)
	if _, err := s.auth.unseal(anUndo, c.id, data, c.undo); err != nil {
		return err
	}
	return validateParents(c.undo.Parents)
}

func (s *shed) complete(c cut, record func(Recovered) error) (Recovered, error) {
	if record == nil {
		record = func(Recovered) error { return nil }
	}
	r := Recovered{ID: c.id, Foreign: s.auth.accept[c.id]}
	if c.state == Unstarted {
		if err := unlockGit(s.ws, c.txn); err != nil {
			return r, err
		}
		return r, removeAll(s.fd, txnPrefix+c.id)
	}
	m := newMover(s, c.txn, c.j)
	defer m.close()
	if c.undo != nil {
		r.Undone = true
		m.follow(c.undo)
		if c.state == Undoing {
			err := fsync(c.txn)
			if err == nil {
				err = s.finishUndo(m)
			}
			if err == nil {
				r.Forward, r.Receipt = true, c.undo.Receipt
				if err := record(r); err != nil {
					return r, err
				}
				return r, closeUndo(c.txn)
			}
			// As with a promotion: the whole of it goes the other way.
			if redo := s.redo(m); redo != nil {
				return r, fmt.Errorf("undo: %w; and bringing the promotion back failed: %w", err, redo)
			}
			r.Kept = m.changed
			return r, nil
		}
		err := s.redo(m)
		r.Kept = m.changed
		return r, err
	}
	if c.state == Committed {
		err := fsync(c.txn) // the commit may never have reached the disk
		if err == nil {
			err = m.forward()
		}
		if err == nil {
			err = m.flush()
		}
		if err == nil {
			err = unlockGit(s.ws, c.txn)
		}
		if err == nil {
			r.Forward, r.Receipt, r.Shared = true, c.j.Receipt, c.j.linked()
			if err := record(r); err != nil {
				return r, err
			}
			return r, m.conclude()
		}
		// The user changed the workspace since the crash, or an error that
		// stays: the whole of it goes back.
		if back := s.reverse(m); back != nil {
			return r, fmt.Errorf("%w; and taking it back failed: %w", err, back)
		}
		r.Kept = m.changed
		return r, nil
	}
	err := s.finishBack(m)
	r.Kept = m.changed
	return r, err
}

func readFile(dir int, name string) ([]byte, error) {
	fd, err := fsat.Open(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := fsat.Fstat(fd)
	if err != nil {
		return nil, err
	}
	if st.Type != fsat.Regular || st.Size > maxJournal {
		return nil, errors.New("journal damaged: not a plain file")
	}
	return io.ReadAll(f)
}
