package promote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Apply promotes a changeset: after it the workspace holds all of it, or
// nothing. It returns a *ConflictError when the host changed the same paths.
//
// An error means that the workspace is as it was, unless it is ErrPending; the
// layer is whole after every error. A process that dies in
// Apply leaves a transaction that Recover completes.
//
// Precondition: the layer is quiet, and nobody else uses it.
func Apply(ctx context.Context, req Request) (Result, error) {
	res := Result{ID: req.ID}
	if err := checkID(req.ID); err != nil {
		return res, err
	}
	// Where nothing was ever promoted, a conflict must not even leave a
	// .hutch: the plan comes before the lock. It is checked once more right
	// before the commit point.
	s, err := openShed(ctx, req.Workspace, req.Key)
	if err != nil {
		return res, err
	}
	if s != nil {
		defer s.leave()
		if _, err := s.recover(req.Recovered); err != nil {
			return res, err
		}
	}
	p, err := makePlan(&req)
	if err != nil {
		return res, err
	}
	res.Resolved, res.Notes = p.resolved, p.notes
	if len(p.steps) == 0 {
		res.Durable = true
		return res, nil
	}
	if s == nil {
		if s, err = makeShed(ctx, req.Workspace, req.Key); err != nil {
			return res, err
		}
		defer s.leave()
		if _, err := s.recover(req.Recovered); err != nil {
			return res, err
		}
	}
	return s.promote(ctx, p, res)
}

// promote carries out a plan under the lock.
func (s *shed) promote(ctx context.Context, p *plan, res Result) (Result, error) {
	dir := txnPrefix + p.req.ID
	if err := mkdir(s.fd, dir, 0o700); err != nil {
		return res, err
	}
	var txn int
	drop := func(err error) (Result, error) {
		if txn > 0 && unlockGit(s.ws, txn) != nil {
			return res, err // recovery knows the locks by what is left
		}
		// Nothing of it is in the workspace yet. If it cannot be removed,
		// recovery will.
		_ = removeAll(s.fd, dir)
		return res, err
	}
	txn, err := fsat.OpenDir(s.fd, dir)
	if err != nil {
		txn = 0
		return drop(err)
	}
	defer unix.Close(txn)
	if err := lockGit(s.ws, txn, p.req.ID, p.repos); err != nil {
		return drop(err)
	}

	st := newStager(p, txn)
	defer st.close()
	for i := range p.steps {
		if err := ctx.Err(); err != nil {
			return drop(err)
		}
		if err := st.step(i); err != nil {
			// What the host did meanwhile may be the reason, and says more.
			var conflict *ConflictError
			if now := p.unchanged(); errors.As(now, &conflict) {
				err = now
			}
			return drop(err)
		}
	}
	j, err := s.writeJournal(txn, p, st)
	if err != nil {
		return drop(err)
	}

	// Barrier B1. All that the journal speaks of is durable before its name
	// is: without it, power cuts left a mix.
	if err := s.flushStaged(txn, st); err != nil {
		return drop(err)
	}
	if err := errors.Join(p.unchanged(), ctx.Err()); err != nil {
		return drop(err)
	}

	// The commit point: from here on a crash goes forward.
	if err := rename(txn, journalTmp, txn, journalFile, 0); err != nil {
		return drop(err)
	}
	m := newMover(s, txn, j)
	defer m.close()
	if !lost(commitBarrier) {
		err = fsync(txn)
	}
	if err == nil {
		err = m.forward()
	}
	if err == nil {
		err = p.lost(txn)
	}
	if err == nil {
		err = m.flush() // barrier B3
	}
	if err == nil {
		err = unlockGit(s.ws, txn)
	}
	if err != nil {
		if back := s.reverse(m); back != nil {
			return res, fmt.Errorf("%w; taking it back failed too: %w; %w", err, back, ErrPending)
		}
		res.RolledBack = true
		return res, conflictOf(err)
	}

	// All is in place and durable. What follows only closes the books; where
	// it fails, recovery does it.
	res.Promoted, res.StagedBy, res.Durable = p.promoted, st.stagedBy(), true
	st.spend()
	if p.req.Record != nil {
		if err := p.req.Record(); err != nil {
			return res, fmt.Errorf("%w; the change has arrived, %w", err, ErrPending)
		}
	}
	err = m.conclude()
	res.Held, res.NoUndo = j.head.Held, m.noUndo(DefaultBudget)
	if err == nil {
		s.handOver(txn)
		_, _ = s.prune(DefaultBudget)
	}
	return res, nil
}

// writeJournal settles the times and writes the journal under its temporary
// name.
func (s *shed) writeJournal(txn int, p *plan, st *stager) (*journal, error) {
	// "Now" on the clock of the file system, which runs in ticks behind the
	// clock of the system: a file written after the promotion is never older
	// than one that came with it.
	fd, err := createFile(txn, journalTmp)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	now, err := fsat.Fstat(fd)
	if err != nil {
		return nil, err
	}
	st.rank(now.Mtime)
	for i := range p.steps {
		if s := &p.steps[i]; len(s.Files) > 0 {
			s.Staged.Mtime = s.Files[0].Mtime
		}
	}
	j := &journal{ID: p.req.ID, Receipt: p.req.Receipt, Tally: p.tally, Steps: p.steps, Parents: p.parents}
	if err := j.validate(j.ID); err != nil {
		return nil, err
	}
	if j.head, err = s.nextHead(p.held); err != nil {
		return nil, err
	}
	data, err := s.auth.seal(aJournal, j.ID, j.head, j)
	if err != nil {
		return nil, err
	}
	return j, write(fd, data)
}

// nextHead puts a transaction after all others of the workspace.
func (s *shed) nextHead(held int64) (head, error) {
	h := head{Held: held, Seq: 1, Time: time.Now().UnixNano()}
	all, err := s.finished()
	for _, k := range all {
		h.Seq = max(h.Seq, k.Seq+1)
	}
	return h, err
}

func (s *shed) flushStaged(txn int, st *stager) error {
	if lost(stagedBarrier) {
		return nil
	}
	names := append(st.made, ".")
	if !lost(journalBarrier) {
		names = append(names, journalTmp)
	}
	return flush(txn, names, s.fd, s.ws)
}

// flush makes the steps durable: the directories they took place in, and the
// files whose times or modes they changed.
func (m *mover) flush() error {
	if lost(appliedBarrier) {
		return nil
	}
	names := make([]string, 0, len(m.j.Parents)+len(m.j.Steps))
	for _, p := range m.j.Parents {
		names = append(names, string(p.Path))
	}
	for i := range m.j.Steps {
		s := &m.j.Steps[i]
		if s.Kind == alter && s.Before.Type != fsat.Symlink {
			names = append(names, string(s.Path))
		}
		for k := range s.Files {
			f := &s.Files[k]
			path := string(s.Path)
			if f.Rel != "." {
				path += "/" + string(f.Rel)
			}
			if f.Type != fsat.Symlink {
				names = append(names, path)
			}
		}
	}
	return flush(m.ws, names, m.txn)
}

// reverse takes a committed transaction back and drops it.
func (s *shed) reverse(m *mover) error {
	m.lenient = true
	err := rename(m.txn, journalFile, m.txn, backFile, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return s.finishBack(m)
}

// finishBack completes a reversal that has been decided.
func (s *shed) finishBack(m *mover) error {
	m.lenient = true
	if err := m.back(); err != nil {
		return err
	}
	if err := errors.Join(unlockGit(m.ws, m.txn), m.closeParents(true)); err != nil { // the lock's end changed a time again
		return err
	}
	if err := m.flushBack(); err != nil {
		return err
	}
	if m.changed {
		// A slot may hold the user's last work, or what he would miss.
		return errors.Join(rename(m.txn, backFile, m.txn, abortedFile, 0), fsync(m.txn))
	}
	// Without any journal the rest is refuse, whatever part of it a crash
	// leaves.
	if err := errors.Join(unlink(m.txn, backFile), fsync(m.txn)); err != nil {
		return err
	}
	_ = removeAll(s.fd, txnPrefix+m.j.ID)
	return nil
}

// flushBack makes steps that were taken back durable: the directories they took
// place in, and what had its mode or its times set.
func (m *mover) flushBack() error {
	var names []string
	add := func(path raw) {
		if st, err := m.tree.lstat(string(path)); err == nil && st.Type != fsat.Symlink {
			names = append(names, string(path))
		}
	}
	for _, p := range m.j.Parents {
		add(p.Path)
	}
	for i := range m.j.Steps {
		if s := &m.j.Steps[i]; s.Kind == alter || s.Before.Type == fsat.Directory {
			add(s.Path)
		}
	}
	return flush(m.ws, names, m.txn)
}

// conclude writes down what stands in the workspace now, for an undo to
// compare with, and renames the journal to done. One barrier holds both: a
// checksum tells an undo whether the record reached the disk.
func (m *mover) conclude() error {
	durable := []int{m.txn}
	fd, err := m.writeAfter()
	if err == nil {
		defer unix.Close(fd)
		durable = append(durable, fd)
	} else if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	} else {
		m.blind = true
	}
	if err := rename(m.txn, journalFile, m.txn, doneFile, 0); err != nil {
		return err
	}
	if lost(doneBarrier) {
		return nil
	}
	return flush(m.txn, nil, durable...)
}

// noUndo says why a transaction that was just done can never be undone.
func (m *mover) noUndo(keep Budget) string {
	switch {
	case m.blind:
		return "the disk is full, so what stood after the promotion could not be written down"
	case m.j.head.Held > keep.Bytes:
		return fmt.Sprintf("what it replaced is %d bytes, %d over the budget of %d", m.j.head.Held, m.j.head.Held-keep.Bytes, keep.Bytes)
	}
	return ""
}

// handOver gives the owner of the workspace a finished transaction that root
// made in it, or he could never read or prune it. Best effort.
func (s *shed) handOver(txn int) {
	owner, err := fsat.Fstat(s.ws)
	if err != nil || os.Geteuid() != 0 || owner.UID == 0 {
		return
	}
	for _, name := range []string{doneFile, afterFile, undoneFile} {
		_ = lchown(txn, name, owner.UID, owner.GID)
	}
	_ = fchown(txn, owner.UID, owner.GID)
}

// spend removes the names that the layer still has of files that are in the
// workspace now: a write through them would be a write to the workspace. It
// is best effort, as the caller discards a spent layer anyway.
func (s *stager) spend() {
	for _, f := range s.spent {
		dir, name, err := s.layer.parent(f.path)
		if err != nil {
			continue
		}
		if st, there, err := lookName(dir, name); err != nil || !there || st.Ino != f.ino {
			continue
		}
		err = unlink(dir, name)
		if errors.Is(err, unix.EACCES) && os.Geteuid() != 0 {
			if st, e := fsat.Fstat(dir); e == nil && chmod(dir, st.Mode|0o300) == nil {
				_ = unlink(dir, name)
			}
		}
	}
}
