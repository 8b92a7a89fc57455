package promote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Undo takes a finished promotion back: what it displaced returns from the
// slots, and they keep what it had promoted. Everything is as it was, but for
// the times of inode changes (ctime), which nobody can set.
//
// It returns a *ChangedError, having touched nothing, when the state before
// cannot be had without losing something; ErrNoUndo is in the chain when there
// is nothing to take back. An error means that the promotion still stands,
// unless it is ErrPending. A process that dies in Undo leaves an undo that
// Recover completes, or none.
func Undo(ctx context.Context, req UndoRequest) (UndoResult, error) {
	res := UndoResult{ID: req.ID}
	if req.ID != "" {
		if err := checkID(req.ID); err != nil {
			return res, err
		}
	}
	s, err := openShed(ctx, req.Workspace, req.Key)
	if err != nil {
		return res, err
	}
	if s == nil {
		_, err := pick(nil, req.ID)
		return res, err
	}
	defer s.leave()
	if _, err := s.recover(req.Recovered); err != nil {
		return res, err
	}
	all, err := s.finished()
	if err != nil {
		return res, err
	}
	k, err := pick(all, req.ID)
	if err != nil {
		return res, err
	}
	res.ID = k.id
	f, err := s.load(k.id)
	if err != nil {
		return res, err
	}
	defer f.close()
	res.Tally, res.Promote = f.j.Tally, f.j.Receipt
	if req.Receipt != nil {
		if res.Receipt, err = req.Receipt(res); err != nil {
			return res, err
		}
	}
	record := func() error { return nil }
	if req.Record != nil {
		record = func() error { return req.Record(res) }
	}
	return res, s.undo(ctx, f, all, res.Receipt, record)
}

// pick chooses the promotion to undo.
func pick(all []kept, id string) (*kept, error) {
	strangers := 0
	for i := range all {
		k := &all[i]
		switch {
		case id == "" && k.foreign:
			strangers++
		case id == "" && k.state == Done:
			return k, nil
		case id != k.id:
		case k.foreign:
			return nil, fmt.Errorf("promotion %s: %w", id, ErrForeign)
		case k.state == Undone:
			return nil, fmt.Errorf("%w: promotion %s is undone already", ErrNoUndo, id)
		case k.state == Aborted:
			return nil, fmt.Errorf("%w: promotion %s was interrupted and taken back as far as the user's own changes allowed; %s/%s%s holds the rest", ErrNoUndo, id, home, txnPrefix, id)
		default:
			return k, nil
		}
	}
	switch {
	case id != "":
		return nil, fmt.Errorf("%w: no undo data of promotion %s is kept; the last %d are, up to %d bytes and %d days", ErrNoUndo, id, DefaultBudget.Count, DefaultBudget.Bytes, int(DefaultBudget.Age.Hours()/24))
	case strangers > 0:
		return nil, fmt.Errorf("%w: of the promotions into this workspace none is ours; %d: %w", ErrNoUndo, strangers, ErrForeign)
	}
	return nil, fmt.Errorf("%w: no promotion into this workspace is left that is not undone", ErrNoUndo)
}

// finished is a finished transaction, read.
type finished struct {
	txn   int
	j     *journal
	after *after // nil when it was not kept
}

func (f *finished) close() { unix.Close(f.txn) }

func (s *shed) load(id string) (*finished, error) {
	txn, err := fsat.OpenDir(s.fd, txnPrefix+id)
	if err != nil {
		return nil, err
	}
	f := &finished{txn: txn}
	if err := s.read(id, f); err != nil {
		f.close()
		return nil, fmt.Errorf("promotion %s: %w; nothing was touched", id, err)
	}
	return f, nil
}

func (s *shed) read(id string, f *finished) error {
	data, err := readFile(f.txn, doneFile)
	if err != nil {
		return err
	}
	if f.j, err = s.auth.journal(id, data); err != nil {
		return err
	}
	data, err = readFile(f.txn, afterFile)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	f.after = new(after)
	_, err = s.auth.unseal(anAfter, id, data, f.after)
	return err
}

func (s *shed) undo(ctx context.Context, f *finished, all []kept, receipt []byte, record func() error) error {
	if f.after == nil {
		return fmt.Errorf("%w: the disk was full when promotion %s was done, so what stood after it was not written down", ErrNoUndo, f.j.ID)
	}
	m := newMover(s, f.txn, f.j)
	defer m.close()
	w := &witness{ws: s.ws, txn: f.txn, j: f.j, after: f.after, tree: m.tree}
	if err := s.overlaps(w, all); err != nil {
		return err
	}
	if w.changes == nil {
		if err := w.look(); err != nil {
			return err
		}
	}
	if w.changes != nil {
		return &ChangedError{ID: f.j.ID, Changes: w.changes}
	}
	order := &undoing{Receipt: receipt}
	for i := range f.j.Parents {
		p, err := s.parentNow(f.j, &f.j.Parents[i], f.after.Parents[i])
		if err != nil {
			return err
		}
		order.Parents = append(order.Parents, p)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.takeOver(f.txn); err != nil {
		return err
	}
	if err := s.commitUndo(f, order); err != nil {
		s.handOver(f.txn)
		return err
	}

	// The undo is decided: from here on a crash carries it on.
	m.follow(order)
	err := fsync(f.txn)
	if err == nil {
		err = m.lockGit()
	}
	if err == nil {
		err = w.again()
	}
	if err == nil {
		err = s.finishUndo(m)
	}
	if err != nil {
		if back := s.redo(m); back != nil {
			return fmt.Errorf("%w; bringing the promotion back failed too: %w; %w", err, back, ErrPending)
		}
		s.handOver(f.txn)
		return fmt.Errorf("undo promotion %s: %w; the promotion stands", f.j.ID, err)
	}

	// All is in place and durable. What follows only closes the books; where
	// it fails, recovery does it.
	if err := record(); err != nil {
		return fmt.Errorf("%w; promotion %s is undone, %w", err, f.j.ID, ErrPending)
	}
	if closeUndo(f.txn) == nil {
		s.handOver(f.txn)
		_, _ = s.prune(DefaultBudget)
	}
	return nil
}

// commitUndo makes the order to undo durable under its own name.
func (s *shed) commitUndo(f *finished, order *undoing) error {
	h := head{Seq: f.j.head.Seq, Time: time.Now().UnixNano()}
	for i := range f.j.Steps {
		for _, v := range f.after.Steps[i] {
			if v.Type == fsat.Regular && f.j.Steps[i].Kind != alter {
				h.Held += v.Size
			}
		}
	}
	data, err := s.auth.seal(anUndo, f.j.ID, h, order)
	if err != nil {
		return err
	}
	_ = unlink(f.txn, undoTmp)
	fd, err := createFile(f.txn, undoTmp)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = write(fd, data)
	if err == nil {
		err = flush(f.txn, []string{"."}, fd)
	}
	if err == nil {
		err = rename(f.txn, undoTmp, f.txn, undoingFile, 0)
	}
	if err != nil {
		_ = unlink(f.txn, undoTmp)
	}
	return err
}

// parentNow describes a parent of the journal as the undo finds it.
func (s *shed) parentNow(j *journal, p *parent, after fsat.Time) (parent, error) {
	now := parent{Path: p.Path, Ino: p.Ino}
	fd, err := fsat.Open(s.ws, string(p.Path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return now, err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return now, err
	}
	now.Mode, now.Mtime = st.Mode, st.Mtime
	if st.Mtime == after {
		now.Return = &p.Mtime
	}
	err = unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	switch euid := uint32(os.Geteuid()); {
	case errors.Is(err, unix.EACCES) && st.UID == euid && st.Mode&0o300 != 0o300:
		now.Opened = true
	case err != nil:
		return now, fmt.Errorf("directory %q cannot be written: %w", p.Path, err)
	}
	// Its mode may be the promotion's own, which goes before all else.
	for i := range j.Steps {
		if a := &j.Steps[i]; a.Kind == alter && a.Path == p.Path {
			now.Mode = a.Alter.From.Mode
			now.Opened = os.Geteuid() != 0 && now.Mode&0o300 != 0o300
		}
	}
	return now, nil
}

// overlaps names the paths that promotions made later share with this one: what
// they would return to is not there any more.
func (s *shed) overlaps(w *witness, all []kept) error {
	for _, k := range all {
		if k.state != Done || k.foreign || k.Seq <= w.j.head.Seq {
			continue
		}
		later, err := s.load(k.id)
		if err != nil {
			return err
		}
		later.close()
		moved := map[string]bool{} // by path: more than altered
		for i := range later.j.Steps {
			moved[string(later.j.Steps[i].Path)] = later.j.Steps[i].Kind != alter
		}
		sorted := slices.Sorted(maps.Keys(moved))
		shared := func(path string, moves bool) bool {
			if _, ok := moved[path]; ok {
				return true
			}
			for dir, _ := fsat.Split(path); dir != "."; dir, _ = fsat.Split(dir) {
				if moved[dir] {
					return true
				}
			}
			beneath, _ := slices.BinarySearch(sorted, path+"/")
			return moves && beneath < len(sorted) && strings.HasPrefix(sorted[beneath], path+"/")
		}
		for i := range w.j.Steps {
			st := &w.j.Steps[i]
			if shared(string(st.Path), st.Kind != alter) {
				w.say(string(st.Path), st.did(), "changed by promotion %s; undo that first", k.id)
			}
		}
	}
	return nil
}

// follow makes a mover for a finished transaction obey an order to undo it.
func (m *mover) follow(order *undoing) {
	m.undo = true
	m.j.Parents = order.Parents
	clear(m.inodes)
	for _, p := range order.Parents {
		m.inodes[string(p.Path)] = p.Ino
	}
}

// finishUndo carries out an undo that has been decided.
func (s *shed) finishUndo(m *mover) error {
	if err := m.lockGit(); err != nil {
		return err
	}
	if err := m.back(); err != nil {
		return err
	}
	if err := m.unlockGit(); err != nil {
		return err
	}
	return m.flushBack()
}

// unlockGit releases the locks of an undo, which changed a time again.
func (m *mover) unlockGit() error {
	return errors.Join(unlockGit(m.ws, m.txn), m.closeParents(true))
}

// again looks once more, now that no git can write.
func (w *witness) again() error {
	if err := w.look(); err != nil || w.changes == nil {
		return err
	}
	return &ChangedError{ID: w.j.ID, Changes: w.changes}
}

func closeUndo(txn int) error {
	if err := rename(txn, undoingFile, txn, undoneFile, 0); err != nil {
		return err
	}
	return fsync(txn)
}

// redo brings a promotion back whose undo could not be completed.
func (s *shed) redo(m *mover) error {
	m.redo, m.lenient = true, true
	err := rename(m.txn, undoingFile, m.txn, redoingFile, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := m.forward(); err != nil {
		return err
	}
	if err := m.unlockGit(); err != nil {
		return err
	}
	if err := m.flush(); err != nil {
		return err
	}
	if m.changed {
		return errors.Join(rename(m.txn, doneFile, m.txn, abortedFile, 0), fsync(m.txn))
	}
	fd, err := m.writeAfter()
	if err == nil {
		err = flush(m.txn, nil, fd)
		unix.Close(fd)
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return errors.Join(unlink(m.txn, redoingFile), fsync(m.txn))
}

// takeOver makes a transaction that root handed to the owner of the workspace
// root's again: while its files move, nobody else may touch its slots, and if
// root dies it is root who recovers.
func (s *shed) takeOver(txn int) error {
	st, err := fsat.Fstat(txn)
	if err != nil || os.Geteuid() != 0 || st.UID == 0 {
		return err
	}
	return fchown(txn, 0, 0)
}
