package promote

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// writeAfter writes down what stands now, in the workspace and in the slots. It
// returns the file it wrote, open and not yet durable.
func (m *mover) writeAfter() (int, error) {
	var a after
	for i := range m.j.Steps {
		s := &m.j.Steps[i]
		paths, err := m.vouchFor(s)
		if err != nil {
			return -1, err
		}
		a.Steps = append(a.Steps, paths)
		slot, err := slotFiles(m.txn, slotName(i))
		if err != nil {
			return -1, err
		}
		// What was written to through an old descriptor while it was being
		// displaced is not the state before.
		if len(slot) > 0 && (slot[0].Ino != s.Before.Ino || slot[0].Type != fsat.Directory && (slot[0].Size != s.Before.Size || slot[0].Mtime != s.Before.Mtime)) {
			slot[0].ident = ident{}
		}
		a.Slots = append(a.Slots, slot)
	}
	for _, p := range m.j.Parents {
		var at fsat.Time
		if st, err := m.tree.lstat(string(p.Path)); err == nil && st.Ino == p.Ino {
			at = st.Mtime
		}
		a.Parents = append(a.Parents, at)
	}
	data, err := m.auth.seal(anAfter, m.j.ID, m.j.head, &a)
	if err != nil {
		return -1, err
	}
	return replaceFile(m.txn, afterTmp, afterFile, data)
}

// replaceFile puts a file in place under its name, in one act. It is returned
// open, and not yet durable.
func replaceFile(dir int, temp, name string, data []byte) (int, error) {
	_ = unlink(dir, temp)
	fd, err := createFile(dir, temp)
	if err != nil {
		return -1, err
	}
	if err = write(fd, data); err == nil {
		err = rename(dir, temp, dir, name, 0)
	}
	if err != nil {
		unix.Close(fd)
		_ = unlink(dir, temp)
		return -1, err
	}
	return fd, nil
}

// vouchFor describes what a step put into the workspace.
func (m *mover) vouchFor(s *step) (paths []vouch, err error) {
	see := func(path string, ino uint64, mtime *fsat.Time) error {
		dir, name, err := m.tree.parent(path)
		if path == "." {
			dir, name, err = m.ws, ".", nil
		}
		// EACCES: a new directory can be closed to its own owner.
		if absent(err) || errors.Is(err, unix.EACCES) {
			paths = append(paths, vouch{})
			return nil
		}
		if err != nil {
			return err
		}
		v, err := describe(dir, name)
		// What the user has changed by now (in a recovery) is not what was
		// promoted: leave it unvouched for.
		if absent(err) || errors.Is(err, unix.EACCES) || err == nil && (v.Ino != ino || mtime != nil && v.Type != fsat.Directory && v.Mtime != *mtime) {
			v, err = vouch{}, nil
		}
		paths = append(paths, v)
		return err
	}
	if s.Kind == alter {
		return paths, see(string(s.Path), s.Before.Ino, nil)
	}
	for k := range s.Files {
		f := &s.Files[k]
		if err := see(s.at(f.Rel), f.Ino, &f.Mtime); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// at is the path in the workspace of a file of the step.
func (s *step) at(rel raw) string {
	if rel == "." || rel == "" {
		return string(s.Path)
	}
	return string(s.Path) + "/" + string(rel)
}

// describe is lstat with the extended attributes.
func describe(dir int, name string) (vouch, error) {
	fd, err := fsat.OpenPath(dir, name)
	if err != nil {
		return vouch{}, err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return vouch{}, err
	}
	xattrs, err := xattrDigest(fd)
	return vouch{ident: identOf(st), Xattrs: xattrs}, err
}

// xattrDigest stands for all extended attributes of a file that can be seen; ""
// for none.
func xattrDigest(fd int) (string, error) {
	names, err := fsat.Xattrs(fd)
	if err != nil || len(names) == 0 {
		return "", err
	}
	h := blake3.New()
	for _, name := range names {
		value, _, err := fsat.Xattr(fd, name)
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			value, err = []byte("not readable"), nil
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%d %s %d ", len(name), name, len(value))
		_, _ = h.Write(value)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// slotFiles describes what a slot holds, itself first; nothing when it is
// empty. One directory is open at a time, however deep it goes.
func slotFiles(txn int, slot string) (files []vouch, err error) {
	top, err := describe(txn, slot)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	top.Rel = "."
	files = append(files, top)
	for i := 0; i < len(files); i++ {
		if files[i].Type != fsat.Directory {
			continue
		}
		at := slot
		if files[i].Rel != "." {
			at += "/" + string(files[i].Rel)
		}
		inside, err := dirFiles(txn, at, string(files[i].Rel))
		if err != nil {
			return nil, err
		}
		files = append(files, inside...)
	}
	return files, nil
}

func dirFiles(txn int, at, rel string) (files []vouch, err error) {
	dir, err := fsat.OpenDir(txn, at)
	if errors.Is(err, unix.EACCES) {
		return nil, nil // closed to its owner: to get in shows in its own ctime
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	entries, err := fsat.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		v, err := describe(dir, e.Name)
		if errors.Is(err, unix.EACCES) {
			return nil, nil // may be listed, but not entered
		}
		if err != nil {
			return nil, err
		}
		v.Rel = raw(fsat.Join(rel, e.Name))
		files = append(files, v)
	}
	return files, nil
}

// witness compares what stands now with what stood after a promotion.
type witness struct {
	ws, txn int
	j       *journal
	after   *after
	tree    *tree
	changes []Conflict
}

func (w *witness) say(path, did, format string, args ...any) {
	w.changes = append(w.changes, Conflict{Path: path, Box: did, Host: fmt.Sprintf(format, args...)})
}

// did is what the promotion did, in a conflict's words.
func (s *step) did() string {
	switch s.Kind {
	case create:
		return "created"
	case remove:
		return "deleted"
	}
	return "modified"
}

// look finds all that changed since the promotion.
func (w *witness) look() error {
	if len(w.after.Steps) != len(w.j.Steps) || len(w.after.Slots) != len(w.j.Steps) || len(w.after.Parents) != len(w.j.Parents) {
		return errors.New("journal damaged: the record of the state after it does not fit")
	}
	for _, p := range w.j.Parents {
		st, err := w.tree.lstat(string(p.Path))
		switch {
		case err != nil && !absent(err):
			return err
		case err != nil:
			w.say(string(p.Path), "changed within", "deleted")
		case st.Type != fsat.Directory:
			w.say(string(p.Path), "changed within", "made a %s", st.Type)
		case st.Ino != p.Ino:
			w.say(string(p.Path), "changed within", "replaced by another directory")
		}
	}
	for i := range w.j.Steps {
		if err := w.step(i); err != nil {
			return fmt.Errorf("%q: %w", w.j.Steps[i].Path, err)
		}
	}
	return nil
}

func (w *witness) step(i int) error {
	s, paths := &w.j.Steps[i], w.after.Steps[i]
	if s.Kind == alter {
		if len(paths) != 1 {
			return errors.New("journal damaged: the record of the state after it does not fit")
		}
		_, err := w.path(s, string(s.Path), paths[0], s.Alter.Digest)
		return err
	}
	if len(paths) != len(s.Files) {
		return errors.New("journal damaged: the record of the state after it does not fit")
	}
	if s.Kind == remove {
		st, err := w.tree.lstat(string(s.Path))
		if err == nil {
			w.say(string(s.Path), s.did(), "a %s is there again", st.Type)
		} else if !absent(err) {
			return err
		}
	}
	known := make(map[raw]bool, len(s.Files))
	for k := range s.Files {
		known[s.Files[k].Rel] = true
	}
	closed := map[raw]bool{}
	for k := range s.Files {
		f := &s.Files[k]
		if above, _ := fsat.Split(string(f.Rel)); f.Rel != "." && closed[raw(above)] {
			closed[f.Rel] = f.Type == fsat.Directory
			continue
		}
		there, err := w.path(s, s.at(f.Rel), paths[k], f.Digest)
		if err != nil {
			return err
		}
		if !there && k == 0 {
			break // nor is what was in it
		}
		if there && f.Type == fsat.Directory {
			if closed[f.Rel], err = w.shut(s, f, paths[k]); closed[f.Rel] || err != nil {
				if err != nil {
					return err
				}
				continue
			}
			if err := w.strangers(s, f, known); err != nil {
				return err
			}
		}
	}
	return w.slot(i)
}

// shut reports whether a promoted directory is closed to its own owner where he
// has no [fsat.Searcher], so that what is in it cannot be compared. To get in
// shows in its own ctime.
func (w *witness) shut(s *step, f *placed, was vouch) (bool, error) {
	path := s.at(f.Rel)
	if _, err := fsat.Lstat(w.ws, path+"/"+home); !errors.Is(err, unix.EACCES) {
		return false, nil // whatever else it is, path and strangers tell
	}
	st, err := w.tree.lstat(path)
	if err == nil && st.Ctime != was.Ctime {
		w.say(path, s.did(), "opened and closed again, so that what is in it may have changed")
	}
	return true, err
}

// path compares one path of the workspace. It reports whether the very file
// that was promoted is still there.
func (w *witness) path(s *step, path string, was vouch, content string) (there bool, err error) {
	dir, name, err := w.tree.parent(path)
	if path == "." {
		dir, name, err = w.ws, ".", nil
	}
	var now vouch
	if err == nil {
		now, err = describe(dir, name)
	}
	switch {
	case absent(err):
		w.say(path, s.did(), "deleted")
		return false, nil
	case err != nil:
		return false, err
	case was.Ino == 0:
		w.say(path, s.did(), "changed while the promotion was recovered")
		return false, nil
	case now.Type != was.Type:
		w.say(path, s.did(), "made a %s", now.Type)
		return false, nil
	case now.Ino != was.Ino:
		w.say(path, s.did(), "replaced by another %s", now.Type)
		return false, nil
	}
	what := was.differs(now)
	if what == "" && now.Type == fsat.Regular && now.Ctime != was.Ctime {
		// Something touched the inode and left all of its attributes: a later
		// promotion that was undone, or a write whose mtime was set back.
		// (A file that is mostly holes is not hashed: a box chose its length.)
		sum := ""
		if strings.HasPrefix(content, "blake3:") {
			sum, _ = digest(dir, name)
		}
		if sum != content || sum == "" {
			what = "written to"
		}
	}
	if what == "" && now.Type == fsat.Regular && busy(dir, name) {
		what = "open for writing"
	}
	if what != "" {
		w.say(path, s.did(), "%s", what)
	}
	return true, nil
}

// differs tells how a file is not as it was, content apart.
func (v *vouch) differs(now vouch) string {
	switch {
	case v.Type != fsat.Directory && (now.Size != v.Size || now.Mtime != v.Mtime):
		return "written to"
	case now.Mode != v.Mode:
		return fmt.Sprintf("mode changed from %o to %o", v.Mode, now.Mode)
	case now.UID != v.UID || now.GID != v.GID:
		return fmt.Sprintf("owner changed from %d:%d to %d:%d", v.UID, v.GID, now.UID, now.GID)
	case now.Xattrs != v.Xattrs:
		return "extended attributes changed"
	}
	return ""
}

// strangers names what a directory holds that the promotion did not make.
func (w *witness) strangers(s *step, f *placed, known map[raw]bool) error {
	path := s.at(f.Rel)
	dir, err := fsat.OpenDir(w.ws, path)
	if errors.Is(err, unix.EACCES) {
		return nil // closed to its owner, and its mode is as it was
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	entries, err := fsat.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !known[raw(fsat.Join(string(f.Rel), e.Name))] {
			w.say(fsat.Join(path, e.Name), "not there", "made in a directory that would go")
		}
	}
	return nil
}

// slot compares what a step displaced. An editor's old descriptor still leads
// there.
func (w *witness) slot(i int) error {
	s, was := &w.j.Steps[i], w.after.Slots[i]
	now, err := slotFiles(w.txn, slotName(i))
	if err != nil {
		return err
	}
	if s.Kind == create {
		if len(now) > 0 {
			w.say(string(s.Path), s.did(), "%s/%s%s was tampered with", home, txnPrefix, w.j.ID)
		}
		return nil
	}
	if len(was) == 0 || len(now) == 0 {
		w.say(string(s.Path), s.did(), "the former %s is not kept in %s/%s%s", s.Before.Type, home, txnPrefix, w.j.ID)
		return nil
	}
	left := map[raw]vouch{}
	for _, v := range now {
		left[v.Rel] = v
	}
	for _, v := range was {
		n, ok := left[v.Rel]
		delete(left, v.Rel)
		switch {
		case !ok:
			w.say(s.at(v.Rel), s.did(), "its former content was deleted from %s", home)
		case v.Ino == 0:
			w.say(s.at(v.Rel), s.did(), "its former content was written to while it was displaced")
		case n.Ino != v.Ino || n.Type != v.Type:
			w.say(s.at(v.Rel), s.did(), "its former content was replaced in %s", home)
		case v.Type != fsat.Directory && n.Ctime != v.Ctime || v.differs(n) != "":
			w.say(s.at(v.Rel), s.did(), "its former content was written to, maybe by a program that still has it open")
		}
	}
	for _, rel := range slices.Sorted(maps.Keys(left)) {
		w.say(s.at(rel), s.did(), "added to the former content")
	}
	return nil
}
