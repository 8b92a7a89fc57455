package promote

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// mover takes the steps of a committed journal, forward or back. Every step
// can be tried again: its slot alone tells whether it was done, so a kill at
// any point leaves nothing to remember.
type mover struct {
	ws, txn int
	j       *journal
	tree    *tree
	auth    *authority
	inodes  map[string]uint64 // of the directories steps take place in
	user    bool              // not root: permissions bind
	redo    bool              // back is over, it goes forward again
	undo    bool              // the transaction was done: the layer has no part in its files any more
	lenient bool              // what the user changed meanwhile is left alone, and does not stop the rest
	changed bool              // so it was
	blind   bool              // what stood afterwards could not be written down
}

func newMover(s *shed, txn int, j *journal) *mover {
	m := &mover{ws: s.ws, txn: txn, j: j, tree: newTree(s.ws), auth: &s.auth, inodes: map[string]uint64{}, user: os.Geteuid() != 0}
	for _, p := range j.Parents {
		m.inodes[string(p.Path)] = p.Ino
	}
	return m
}

func (m *mover) close() { m.tree.close() }

// errChanged says that the user changed a path after the transaction's last
// look at it.
var errChanged = errors.New("it changed meanwhile")

// stepError is an error of one step.
type stepError struct {
	step *step
	err  error
}

func (e *stepError) Error() string { return fmt.Sprintf("%s %q: %v", e.step.Kind, e.step.Path, e.err) }
func (e *stepError) Unwrap() error { return e.err }

// conflictOf turns the error of a step that found the user at work into a
// *ConflictError.
func conflictOf(err error) error {
	var at *stepError
	if !errors.As(err, &at) || !errors.Is(err, errChanged) && !absent(err) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	box := map[kind]changeset.Op{create: changeset.Created, remove: changeset.Deleted}[at.step.Kind]
	return &ConflictError{[]Conflict{{Path: string(at.step.Path), Box: string(cmp.Or(box, changeset.Modified)), Host: changedDuring}}}
}

// passOver turns the error of a step that the user's own change is in the way
// of into a note, when the mover is lenient.
func (m *mover) passOver(err error) error {
	if !m.lenient || !errors.Is(err, errChanged) && !errors.Is(err, unix.EEXIST) && !absent(err) {
		return err
	}
	m.changed = true
	return nil
}

// forward brings every slot to its target.
func (m *mover) forward() error {
	if err := m.openParents(); err != nil {
		return err
	}
	for i := range m.j.Steps {
		s := &m.j.Steps[i]
		if s.Kind == alter {
			continue
		}
		if err := m.passOver(m.step(i, s)); err != nil {
			return &stepError{s, err}
		}
	}
	if err := m.written(); err != nil {
		return err
	}
	if err := m.settle(); err != nil {
		return err
	}
	if err := m.closeParents(m.redo); err != nil {
		return err
	}
	// Inner paths first: an outer directory may end up closed to its owner.
	for i := len(m.j.Steps) - 1; i >= 0; i-- {
		s := &m.j.Steps[i]
		if s.Kind != alter {
			continue
		}
		if err := m.passOver(m.alter(s, &s.Alter.To)); err != nil {
			return &stepError{s, err}
		}
	}
	return nil
}

// written looks at the files that were displaced. Now nobody can open them any
// more by their path: whoever has one open for writing would write into undo
// data, and what was written since the last look is not in the workspace.
func (m *mover) written() error {
	if m.undo {
		return nil // it comes back to where it was, whoever wrote to it
	}
	for i := range m.j.Steps {
		s := &m.j.Steps[i]
		if s.Before.Type != fsat.Regular || s.Kind != replace && s.Kind != remove {
			continue
		}
		st, there, err := lookName(m.txn, slotName(i))
		if err != nil {
			return err
		}
		if there && (!s.Before.sameContent(st) || busy(m.txn, slotName(i))) {
			return &stepError{s, errChanged}
		}
	}
	return nil
}

func (m *mover) step(index int, s *step) error {
	slot := slotName(index)
	dir, name, err := m.target(string(s.Path))
	if err != nil {
		return err
	}
	if s.Kind == replace {
		if err := m.mend(slot, dir, name); err != nil {
			return err
		}
	}
	in, filled, err := lookName(m.txn, slot)
	if err != nil {
		return err
	}
	switch s.Kind {
	case create:
		if !filled {
			return nil // done
		}
		if err := m.finish(index, s); err != nil {
			return err
		}
		return m.move(m.txn, slot, dir, name)

	case replace:
		if !filled || in.Ino != s.Staged.Ino {
			return nil // done
		}
		if err := m.expect(dir, name, s.Before); err != nil {
			return err
		}
		if err := m.finish(index, s); err != nil {
			return err
		}
		return m.swap(slot, dir, name)

	case remove:
		if filled {
			return nil // done
		}
		if _, there, err := lookName(dir, name); err != nil || !there {
			return err // someone else deleted it
		}
		if err := m.expect(dir, name, s.Before); err != nil {
			return err
		}
		return m.move(dir, name, m.txn, slot)
	}
	return nil
}

// back takes every step back, the last one first.
func (m *mover) back() error {
	for i := range m.j.Steps {
		s := &m.j.Steps[i]
		if s.Kind != alter {
			continue
		}
		if err := m.passOver(m.alter(s, &s.Alter.From)); err != nil {
			return fmt.Errorf("take back %s %q: %w", s.Kind, s.Path, err)
		}
	}
	if err := m.openParents(); err != nil {
		return err
	}
	for i := len(m.j.Steps) - 1; i >= 0; i-- {
		s := &m.j.Steps[i]
		if err := m.passOver(m.stepBack(i, s)); err != nil {
			return fmt.Errorf("take back %s %q: %w", s.Kind, s.Path, err)
		}
	}
	if err := m.settle(); err != nil {
		return err
	}
	return m.closeParents(true)
}

func (m *mover) stepBack(index int, s *step) error {
	if s.Kind == alter {
		return nil
	}
	slot := slotName(index)
	dir, name, err := m.target(string(s.Path))
	if err != nil {
		return err
	}
	if s.Kind == replace {
		if err := m.mend(slot, dir, name); err != nil {
			return err
		}
	}
	in, filled, err := lookName(m.txn, slot)
	if err != nil {
		return err
	}
	at, there, err := lookName(dir, name)
	if err != nil {
		return err
	}
	switch s.Kind {
	case create:
		if filled {
			break
		}
		if !there || at.Ino != s.Staged.Ino {
			return errChanged
		}
		if err := m.note(s.Staged, at); err != nil {
			return err
		}
		if err := m.move(dir, name, m.txn, slot); err != nil {
			return err
		}

	case replace:
		if filled && in.Ino == s.Staged.Ino {
			break
		}
		if !filled || !there || at.Ino != s.Staged.Ino {
			return errChanged
		}
		if err := m.note(s.Staged, at); err != nil {
			return err
		}
		if err := m.swap(slot, dir, name); err != nil {
			return err
		}

	case remove:
		if !filled {
			return nil
		}
		if there {
			return errChanged
		}
		return m.move(m.txn, slot, dir, name)
	}
	return m.unfinish(index, s)
}

// note remembers when a promoted file was written to after the crash: then it
// is no longer only the box's, and must not vanish with the slot.
func (m *mover) note(want ident, st fsat.Stat) error {
	if want.sameContent(st) {
		return nil
	}
	return m.passOver(errChanged)
}

// target opens the directory in which a step takes place, which must be the
// very one that was checked before the commit point.
func (m *mover) target(rel string) (int, string, error) {
	dir, name, err := m.tree.parent(rel)
	if err != nil {
		return -1, "", err
	}
	path, _ := fsat.Split(rel)
	if known, ok := m.inodes[path]; ok {
		st, err := fsat.Fstat(dir)
		if err != nil {
			return -1, "", err
		}
		if st.Ino != known {
			return -1, "", fmt.Errorf("directory %q: %w", path, errChanged)
		}
	}
	return dir, name, nil
}

// expect refuses a target that is not what it was before the commit point.
func (m *mover) expect(dir int, name string, want ident) error {
	st, there, err := lookName(dir, name)
	if err != nil {
		return err
	}
	if !there || !want.sameContent(st) {
		return errChanged
	}
	return nil
}

// finish gives the files in a slot their final times and takes overlayfs's
// xattrs off those that are the layer's own: not earlier, since up to the
// commit point the layer must stay as it was.
func (m *mover) finish(index int, s *step) error {
	if m.undo {
		return nil // it was, before they ever came into the workspace
	}
	slots := newTree(m.txn)
	defer slots.close()
	if err := m.openSlots(index, s); err != nil {
		return err
	}
	for i := len(s.Files) - 1; i >= 0; i-- { // directories after what they hold
		f := &s.Files[i]
		dir, name, err := slots.parent(slotPath(index, f))
		if err != nil {
			return err
		}
		if err := m.closeSlot(dir, name, f); err != nil {
			return err
		}
		if f.Linked != nil && len(f.Linked.Scrub) > 0 {
			err := withMode(dir, name, f.Linked.Mode, func(fd int) error {
				for _, x := range f.Linked.Scrub {
					if err := removeXattr(fd, string(x.Name)); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if err := setMtime(dir, name, f.Mtime); err != nil {
			return err
		}
	}
	return nil
}

// openSlots lets an ordinary user into his own directories while what they
// hold is finished, however they will be closed in the end.
func (m *mover) openSlots(index int, s *step) error {
	for i := range s.Files {
		f := &s.Files[i]
		if m.user && f.Type == fsat.Directory && f.Mode&0o700 != 0o700 {
			if err := chmodAt(m.txn, slotPath(index, f), f.Mode|0o700); err != nil && !absent(err) {
				return err
			}
		}
	}
	return nil
}

// closeSlot ends openSlots for one directory.
func (m *mover) closeSlot(dir int, name string, f *placed) error {
	if !m.user || f.Type != fsat.Directory || f.Mode&0o700 == 0o700 {
		return nil
	}
	return chmodAt(dir, name, f.Mode)
}

func chmodAt(dir int, rel string, mode uint32) error {
	fd, err := fsat.OpenPath(dir, rel)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil || st.Mode == mode {
		return err
	}
	return chmod(fd, mode)
}

// unfinish gives files of the layer back what finish took.
func (m *mover) unfinish(index int, s *step) error {
	if m.undo {
		return nil // they are the layer's no more
	}
	if err := m.openSlots(index, s); err != nil { // they go with the transaction
		return err
	}
	slots := newTree(m.txn)
	defer slots.close()
	for i := range s.Files {
		f := &s.Files[i]
		if f.Linked == nil {
			continue
		}
		dir, name, err := slots.parent(slotPath(index, f))
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if st, there, err := lookName(dir, name); err != nil || !there || st.Ino != f.Ino {
			if err != nil {
				return err
			}
			continue
		}
		if len(f.Linked.Scrub) > 0 {
			err := withMode(dir, name, f.Linked.Mode, func(fd int) error {
				for _, x := range f.Linked.Scrub {
					if err := setXattr(fd, string(x.Name), x.Value); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		if err := setMtime(dir, name, f.Linked.Mtime); err != nil {
			return err
		}
	}
	return nil
}

func slotPath(index int, f *placed) string {
	if f.Rel == "." {
		return slotName(index)
	}
	return slotName(index) + "/" + string(f.Rel)
}

// withMode runs change on a file that its owner can write, and leaves it with
// mode: a user xattr of a file of mode 0444 cannot be changed.
func withMode(dir int, name string, mode uint32, change func(fd int) error) error {
	fd, err := fsat.OpenPath(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return err
	}
	if mode&0o200 == 0 && st.Mode&0o200 == 0 && os.Geteuid() != 0 {
		if err := chmod(fd, mode|0o200); err != nil {
			return err
		}
		st.Mode = mode | 0o200
	}
	if err := change(fd); err != nil {
		return err
	}
	if st.Mode != mode {
		return chmod(fd, mode)
	}
	return nil
}

// alter changes mode, owner and xattrs of a path in place.
func (m *mover) alter(s *step, to *attrs) error {
	fd, err := fsat.OpenPath(m.ws, string(s.Path))
	if absent(err) {
		return errChanged
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return err
	}
	if st.Ino != s.Before.Ino || st.Type != s.Before.Type {
		return errChanged
	}
	if st.UID != to.UID || st.GID != to.GID {
		if err := fchown(fd, to.UID, to.GID); err != nil {
			return err
		}
		st.Mode = ^uint32(0) // the kernel may have cleared bits
	}
	if len(to.Xattrs) > 0 && st.Mode&0o200 == 0 && m.user {
		if err := chmod(fd, to.Mode|0o200); err != nil {
			return err
		}
		st.Mode = to.Mode | 0o200
	}
	for _, x := range to.Xattrs {
		if x.Absent {
			err = removeXattr(fd, string(x.Name))
		} else {
			err = setXattr(fd, string(x.Name), x.Value)
		}
		if err != nil {
			return err
		}
	}
	if st.Mode != to.Mode {
		return chmod(fd, to.Mode)
	}
	return nil
}

// openParents lets an ordinary user write in his own read-only directories
// while the steps are taken.
func (m *mover) openParents() error {
	for i := range m.j.Parents {
		p := &m.j.Parents[i]
		if !p.Opened {
			continue
		}
		if err := m.parentMode(p, p.Mode|0o300); err != nil {
			return fmt.Errorf("open directory %q: %w", p.Path, err)
		}
	}
	return nil
}

// closeParents undoes openParents and, when all is taken back, restores the
// times of the directories.
func (m *mover) closeParents(times bool) error {
	for i := range m.j.Parents {
		p := &m.j.Parents[i]
		if p.Opened {
			if err := m.parentMode(p, p.Mode); err != nil {
				return fmt.Errorf("close directory %q: %w", p.Path, err)
			}
		}
		to := &p.Mtime
		if m.undo && !m.redo {
			to = p.Return
		}
		if !times || to == nil {
			continue
		}
		if st, err := m.tree.lstat(string(p.Path)); err != nil || st.Ino != p.Ino || st.Mtime == *to {
			continue
		}
		dir, name, err := m.tree.parent(string(p.Path))
		if err != nil {
			return err
		}
		// Only the owner may set a time; others may well write in a directory.
		if err := setMtime(dir, name, *to); err != nil && !(m.user && errors.Is(err, unix.EPERM)) {
			return err
		}
	}
	return nil
}

func (m *mover) parentMode(p *parent, mode uint32) error {
	fd, err := fsat.Open(m.ws, string(p.Path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil || st.Ino != p.Ino || st.Mode == mode {
		return err
	}
	return chmod(fd, mode)
}

// loosen makes a directory writable that is about to move: a move changes its
// "..", which the kernel counts as writing to it. settle sets its mode again.
func (m *mover) loosen(dir int, name string) error {
	if !m.user {
		return nil
	}
	st, there, err := lookName(dir, name)
	if err != nil || !there || st.Type != fsat.Directory || st.Mode&0o200 != 0 {
		return err
	}
	fd, err := fsat.OpenPath(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return chmod(fd, st.Mode|0o200)
}

// settle gives the directories that moved, in the workspace or in a slot, the
// mode and the mtime they are to have: xfs changes the mtime of a directory
// that is moved.
func (m *mover) settle() error {
	for i := range m.j.Steps {
		s := &m.j.Steps[i]
		if s.Kind == alter || s.Staged.Type != fsat.Directory && s.Before.Type != fsat.Directory {
			continue
		}
		dir, name, err := m.tree.parent(string(s.Path))
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, id := range []ident{s.Staged, s.Before} {
			if id.Type != fsat.Directory {
				continue
			}
			if err := errors.Join(settle(dir, name, id), settle(m.txn, slotName(i), id)); err != nil {
				return fmt.Errorf("settle %q: %w", s.Path, err)
			}
		}
	}
	return nil
}

func settle(dir int, name string, id ident) error {
	fd, err := fsat.OpenPath(dir, name)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil || st.Ino != id.Ino {
		return err
	}
	if st.Mode != id.Mode {
		if err := chmod(fd, id.Mode); err != nil {
			return err
		}
	}
	if st.Mtime != id.Mtime {
		return setMtime(dir, name, id.Mtime)
	}
	return nil
}

// move renames to a free name.
func (m *mover) move(fromDir int, from string, toDir int, to string) error {
	if err := m.loosen(fromDir, from); err != nil {
		return err
	}
	err := rename(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !unsupported(err) {
		return err
	}
	// Without RENAME_NOREPLACE (NFS, FAT, 9p) only a look just before is to
	// be had.
	if _, there, err := lookName(toDir, to); err != nil || there {
		return errors.Join(err, unix.EEXIST)
	}
	return rename(fromDir, from, toDir, to, 0)
}

// asideSuffix marks the old target while swap works without RENAME_EXCHANGE.
const asideSuffix = ".old"

// swap exchanges a slot and its target.
func (m *mover) swap(slot string, dir int, name string) error {
	if err := m.loosen(m.txn, slot); err != nil {
		return err
	}
	if err := m.loosen(dir, name); err != nil {
		return err
	}
	err := rename(m.txn, slot, dir, name, unix.RENAME_EXCHANGE)
	if !unsupported(err) {
		return err
	}
	// Without RENAME_EXCHANGE (NFS, FAT, 9p): a link keeps the old file, and
	// the new one replaces it in one act. What cannot be linked moves.
	aside := slot + asideSuffix
	if err := link(dir, name, m.txn, aside); err != nil {
		if err := rename(dir, name, m.txn, aside, 0); err != nil {
			return err
		}
	} else if st, err := fsat.LstatName(m.txn, slot); err != nil || st.Type == fsat.Directory {
		// A directory cannot replace a file.
		if err := errors.Join(err, unlink(dir, name)); err != nil {
			return err
		}
	}
	if err := rename(m.txn, slot, dir, name, 0); err != nil {
		return err
	}
	return rename(m.txn, aside, m.txn, slot, 0)
}

// mend brings a swap that was cut short either before its start or to its end.
func (m *mover) mend(slot string, dir int, name string) error {
	aside := slot + asideSuffix
	old, cut, err := lookName(m.txn, aside)
	if err != nil || !cut {
		return err
	}
	_, filled, err := lookName(m.txn, slot)
	if err != nil {
		return err
	}
	if !filled {
		return rename(m.txn, aside, m.txn, slot, 0)
	}
	at, there, err := lookName(dir, name)
	if err != nil {
		return err
	}
	if there && at.Ino == old.Ino {
		return unlink(m.txn, aside)
	}
	if there {
		return errChanged
	}
	return rename(m.txn, aside, dir, name, 0)
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP)
}

// lookName is lstat of an entry that may be missing.
func lookName(dir int, name string) (fsat.Stat, bool, error) {
	st, err := fsat.LstatName(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return st, false, nil
	}
	return st, err == nil, err
}
