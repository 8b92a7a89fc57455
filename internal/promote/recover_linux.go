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
// again. When a journal is damaged, nothing at all is touched.
func Recover(workspaceFD int) ([]Recovered, error) {
	s, err := openShed(context.Background(), workspaceFD)
	if err != nil || s == nil {
		return nil, err
	}
	defer s.leave()
	return s.recover()
}

// cut is a transaction that was cut short.
type cut struct {
	id    string
	txn   int
	state State
	j     *journal
}

func (s *shed) recover() ([]Recovered, error) {
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
		r, err := s.complete(c)
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
		if c.state, err = state(txn); err != nil || c.state == Done || c.state == Aborted {
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
		file := journalFile
		if c.state == Reversing {
			file = backFile
		}
		data, err := readFile(txn, file)
		if err != nil {
			return cuts, fmt.Errorf("transaction %s: %w", id, err)
		}
		if cuts[len(cuts)-1].j, err = decodeJournal(data, id); err != nil {
			return cuts, fmt.Errorf("transaction %s: %w; nothing was touched, see %s/%s%s", id, err, home, txnPrefix, id)
		}
	}
	return cuts, nil
}

func (s *shed) complete(c cut) (Recovered, error) {
	r := Recovered{ID: c.id}
	if c.state == Unstarted {
		return r, removeAll(s.fd, txnPrefix+c.id)
	}
	m := newMover(s.ws, c.txn, c.j)
	defer m.close()
	if c.state == Committed {
		err := fsync(c.txn) // the commit may never have reached the disk
		if err == nil {
			err = m.forward()
		}
		if err == nil {
			err = m.flush()
		}
		if err == nil {
			r.Forward, r.Receipt, r.Shared = true, c.j.Receipt, c.j.linked()
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
