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
func Prune(workspaceFD int, keep Budget) (freed int64, err error) {
	s, err := openShed(context.Background(), workspaceFD)
	if err != nil || s == nil {
		return 0, err
	}
	defer s.leave()
	return s.prune(keep)
}

// kept is a finished transaction.
type kept struct {
	id   string
	file string
	at   fsat.Time
	held int64
}

func (s *shed) prune(keep Budget) (freed int64, err error) {
	all, err := s.finished()
	if err != nil {
		return 0, err
	}
	slices.SortFunc(all, func(a, b kept) int {
		return cmp.Or(cmp.Compare(b.at.Sec, a.at.Sec), cmp.Compare(b.at.Nsec, a.at.Nsec), cmp.Compare(b.id, a.id))
	})
	oldest := time.Now().Add(-keep.Age).Unix()
	var errs []error
	sum := int64(0)
	for i, k := range all {
		sum += k.held
		if i < keep.Count && sum <= keep.Bytes && (i == 0 && keep.Age > 0 || k.at.Sec > oldest) {
			continue
		}
		if err := s.forget(k); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += k.held
	}
	return freed, errors.Join(errs...)
}

// forget removes one transaction. The state goes first, so that what a crash
// leaves of it is no longer taken for undo data.
func (s *shed) forget(k kept) error {
	txn, err := fsat.OpenDir(s.fd, txnPrefix+k.id)
	if err != nil {
		return err
	}
	err = unlink(txn, k.file)
	unix.Close(txn)
	if err != nil {
		return err
	}
	return removeAll(s.fd, txnPrefix+k.id)
}

func (s *shed) finished() ([]kept, error) {
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	var all []kept
	for _, id := range ids {
		for _, name := range []string{doneFile, abortedFile} {
			fd, err := fsat.Open(s.fd, txnPrefix+id+"/"+name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
				continue // EACCES: another user's, not ours to prune
			}
			if err != nil {
				return nil, err
			}
			head := make([]byte, 128)
			n, _ := unix.Pread(fd, head, 0)
			st, err := fsat.Fstat(fd)
			unix.Close(fd)
			if err != nil {
				return nil, err
			}
			all = append(all, kept{id, name, st.Mtime, sealNote(head[:max(n, 0)])})
		}
	}
	return all, nil
}
