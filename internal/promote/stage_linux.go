package promote

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// The ways content comes out of a layer.
const (
	byRename  = "rename"
	byReflink = "reflink"
	byCopy    = "copy"
)

// stager fills the slots of a transaction.
type stager struct {
	plan   *plan
	txn    int
	layer  *tree
	host   *tree
	picked *tree
	// The ways that turned out not to work here. They are found by doing:
	// an equal st_dev promises nothing (bind mounts, btrfs subvolumes).
	noLink, noReflink bool
	by                map[string]int
	spent             []spent
	shared            map[string]shared // by group of hard links: its first name, staged
	made              []string          // what barrier B1 has to flush, relative to txn
}

// inherited is what a directory of the host gives to what is made in it.
type inherited struct {
	acl    []byte // its default ACL
	setgid bool
	gid    uint32
}

// spent is a name in the layer whose file is linked into a slot.
type spent struct {
	path string
	ino  uint64
}

func newStager(p *plan, txn int) *stager {
	return &stager{
		plan: p, txn: txn,
		layer:  newTree(p.req.Layer),
		host:   newTree(p.req.Workspace),
		picked: newTree(p.req.Picked),
		noLink: p.req.KeepLayer,
		by:     map[string]int{},
		shared: map[string]shared{},
	}
}

func (s *stager) close() {
	s.layer.close()
	s.host.close()
	s.picked.close()
}

// stagedBy is the way most content came.
func (s *stager) stagedBy() string {
	most := ""
	for _, by := range []string{byRename, byReflink, byCopy} {
		if s.by[by] > s.by[most] {
			most = by
		}
	}
	return most
}

// step fills the slot of one step: its first entry is the slot itself, the
// others lie beneath it, parents first.
func (s *stager) step(index int) error {
	st := &s.plan.steps[index]
	entries := s.plan.carried[index]
	slot := slotName(index)
	slots := newTree(s.txn)
	defer slots.close()
	from, err := s.inherit(st)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rel := "."
		if e.Path != string(st.Path) {
			rel = e.Path[len(st.Path)+1:]
		}
		at := slot
		if rel != "." {
			at = slot + "/" + rel
		}
		dir, name, err := slots.parent(at)
		if err != nil {
			return err
		}
		had := uint32(0)
		if e.Before != nil {
			had = st.Before.Mode
		}
		f, id, err := s.again(dir, name, at, e, finalMode(e.After, had))
		if err == nil && f.Ino == 0 {
			f, id, err = s.one(dir, name, e, had, from)
		}
		if err != nil {
			return fmt.Errorf("stage %q: %w", e.Path, err)
		}
		f.Rel = raw(rel)
		f.Mtime = e.After.Mtime // ranked when all is staged
		if f.Type == fsat.Directory {
			f.Mode = from.mode(e)
		}
		if f.Type == fsat.Regular {
			f.Digest = e.After.Digest
			if data, ok := s.plan.merged[e]; ok {
				if f.Digest, err = digestOf(bytes.NewReader(data)); err != nil {
					return err
				}
			}
		}
		st.Files = append(st.Files, f)
		if rel == "." {
			st.Staged = id
		}
		if e.After.Type != fsat.Symlink {
			s.made = append(s.made, at)
		}
	}
	// A directory gets its final mode when it is full: it may be one that
	// nobody can write in.
	for i := len(entries) - 1; i >= 0; i-- {
		e := entries[i]
		if e.After.Type != fsat.Directory {
			continue
		}
		at := slot
		if rel := st.Files[i].Rel; rel != "." {
			at = slot + "/" + string(rel)
		}
		mode := from.mode(e)
		fd, err := fsat.OpenPath(s.txn, at)
		if err != nil {
			return err
		}
		if from.acl != nil {
			err = errors.Join(setXattr(fd, defaultACL, from.acl), setXattr(fd, aclXattr, from.acl))
		}
		if err == nil {
			err = s.dress(fd, e.After.Xattrs, mode)
		}
		unix.Close(fd)
		if err != nil {
			return fmt.Errorf("stage %q: %w", e.Path, err)
		}
		if i == 0 {
			st.Staged.Mode = mode
		}
	}
	return nil
}

// shared is a staged file that other entries may be hard links to.
type shared struct {
	at    string // relative to txn
	entry *changeset.Entry
	mode  uint32
}

// again stages an entry as a further name of a file that is staged already,
// which it is in the box too. It returns a zero Ino where it cannot: then the
// entry gets a file of its own.
func (s *stager) again(dir int, name, at string, e *changeset.Entry, mode uint32) (f placed, id ident, err error) {
	if e.After.Type == fsat.Directory {
		return f, id, nil
	}
	group := e.Link
	if group == "" {
		group = e.Path
	}
	first, ok := s.shared[group]
	if !ok {
		s.shared[group] = shared{at, e, mode}
		return f, id, nil
	}
	if e.Link == "" || !s.alike(first, e, mode) {
		return f, id, nil
	}
	slots := newTree(s.txn)
	defer slots.close()
	fromDir, fromName, err := slots.parent(first.at)
	if err == nil {
		err = link(fromDir, fromName, dir, name)
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EOPNOTSUPP) {
		// EACCES: beneath a staged directory that has its final mode.
		return f, id, nil
	}
	if err != nil {
		return f, id, err
	}
	st, err := fsat.LstatName(dir, name)
	f.Ino, f.Type = st.Ino, st.Type
	return f, identOf(st), err
}

// alike reports whether two entries are to have all in common. They are one
// file in the box, but a merge, a choice of hunks or an ACL of the host's may
// part them.
func (s *stager) alike(first shared, e *changeset.Entry, mode uint32) bool {
	for _, e := range []*changeset.Entry{first.entry, e} {
		if _, merged := s.plan.merged[e]; merged || e.Source == changeset.Picked {
			return false
		}
		if _, acl, err := s.hostACL(e); acl || err != nil {
			return false
		}
	}
	a, b := first.entry.After, e.After
	return first.mode == mode && a.Type == b.Type && a.UID == b.UID && a.GID == b.GID && a.Size == b.Size &&
		a.Target == b.Target && a.Digest == b.Digest && a.Mtime == b.Mtime && maps.EqualFunc(a.Xattrs, b.Xattrs, bytes.Equal)
}

const defaultACL = "system.posix_acl_default"

// inherit looks at the directory that something new is made in. What only
// replaces a file has nothing from it.
func (s *stager) inherit(st *step) (inherited, error) {
	var from inherited
	if st.Kind != create {
		return from, nil
	}
	above, _ := fsat.Split(string(st.Path))
	fd, err := fsat.Open(s.plan.req.Workspace, above, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return from, err
	}
	defer unix.Close(fd)
	dir, err := fsat.Fstat(fd)
	if err != nil {
		return from, err
	}
	from.setgid, from.gid = dir.Mode&0o2000 != 0, dir.GID
	from.acl, _, err = fsat.Xattr(fd, defaultACL)
	return from, err
}

// mode is that of a new directory.
func (f inherited) mode(e *changeset.Entry) uint32 {
	mode := finalMode(e.After, 0)
	if f.setgid {
		mode |= 0o2000
	}
	return mode
}

// one makes the staged form of one entry. A directory is left open for what
// goes into it.
func (s *stager) one(dir int, name string, e *changeset.Entry, had uint32, from inherited) (placed, ident, error) {
	var f placed
	var err error
	switch e.After.Type {
	case fsat.Directory:
		err = mkdir(dir, name, 0o700)
	case fsat.Symlink:
		err = symlink(e.After.Target, dir, name)
	case fsat.Regular:
		err = s.admitted(e, func() (err error) {
			f.Linked, err = s.regular(dir, name, e, finalMode(e.After, had), from)
			return err
		})
	default:
		err = fmt.Errorf("a %s is never promoted", e.After.Type)
	}
	if err != nil {
		return f, ident{}, err
	}
	if f.Linked == nil && os.Geteuid() == 0 {
		// Before the mode is set: a change of owner clears bits of it.
		if err := lchown(dir, name, e.After.UID, e.After.GID); err != nil {
			return f, ident{}, err
		}
	}
	if f.Linked == nil && from.setgid && os.Geteuid() != 0 {
		// As a plain create would have it; not given to who is not of the
		// group.
		if err := lchown(dir, name, ^uint32(0), from.gid); err != nil && !errors.Is(err, unix.EPERM) {
			return f, ident{}, err
		}
	}
	if f.Linked == nil && e.After.Type == fsat.Regular {
		fd, err := fsat.OpenPath(dir, name)
		if err != nil {
			return f, ident{}, err
		}
		defer unix.Close(fd)
		acl, ok, err := s.hostACL(e)
		if err != nil {
			return f, ident{}, err
		}
		if from.acl != nil {
			acl, ok = from.acl, true
		}
		if ok {
			if err := setXattr(fd, aclXattr, acl); err != nil {
				return f, ident{}, err
			}
		}
		if err := s.dress(fd, e.After.Xattrs, finalMode(e.After, had)); err != nil {
			return f, ident{}, err
		}
	}
	st, err := fsat.LstatName(dir, name)
	f.Ino, f.Type = st.Ino, st.Type
	return f, identOf(st), err
}

// dress gives a staged file its xattrs and its mode. The mode comes last: a
// user xattr cannot be set on a file that its owner may not write.
func (s *stager) dress(fd int, xattrs map[string][]byte, mode uint32) error {
	for name, value := range xattrs {
		if !promotableXattr(name) {
			continue
		}
		if err := setXattr(fd, name, value); err != nil {
			return err
		}
	}
	return chmod(fd, mode)
}

// regular stages the content of a file. Where it can it links the layer's own
// file into the slot; the layer's name goes when the promotion is done, so
// that together the two are a rename that no failure, and no kill, can turn
// into the loss of the box's work.
func (s *stager) regular(dir int, name string, e *changeset.Entry, mode uint32, inherit inherited) (*linked, error) {
	from := s.layer
	switch e.Source {
	case changeset.Workspace:
		from = s.host
	case changeset.Picked:
		from = s.picked
	}
	if data, ok := s.plan.merged[e]; ok {
		return nil, s.write(dir, name, data)
	}
	fromDir, fromName, err := from.parent(e.SourcePath)
	if err != nil {
		return nil, err
	}
	src, err := fsat.OpenPath(fromDir, fromName)
	if err != nil {
		return nil, err
	}
	defer unix.Close(src)
	st, err := fsat.Fstat(src)
	if err != nil {
		return nil, err
	}
	// Its time costs nothing to look at, and tells of an editor in a kept box.
	if st.Type != fsat.Regular || st.Size != e.After.Size || from == s.layer && st.Mtime != e.After.Mtime {
		return nil, changedSource(e)
	}

	if from == s.layer && !s.noLink && inherit.acl == nil {
		l, err := s.link(fromDir, fromName, src, st, dir, name, e, mode)
		if err != nil {
			return nil, err
		}
		if l != nil {
			s.by[byRename]++
			s.spent = append(s.spent, spent{e.SourcePath, st.Ino})
			return l, nil
		}
	}
	return nil, s.copy(fromDir, fromName, src, st, dir, name, e)
}

// admitted runs do, which may have to look into directories of the layer that
// their owner closed to himself, as a box can leave any. Only a kill meanwhile
// leaves a trace in the layer: the right to look.
func (s *stager) admitted(e *changeset.Entry, do func() error) error {
	err := do()
	if !errors.Is(err, unix.EACCES) || e.Source != changeset.Layer || os.Geteuid() == 0 {
		return err
	}
	var closed []func() error
	for end := range e.SourcePath {
		if e.SourcePath[end] != '/' {
			continue
		}
		above := e.SourcePath[:end]
		st, err := fsat.Lstat(s.plan.req.Layer, above)
		if err != nil || st.Mode&0o500 == 0o500 {
			continue
		}
		if chmodAt(s.plan.req.Layer, above, st.Mode|0o500) == nil {
			closed = append(closed, func() error { return chmodAt(s.plan.req.Layer, above, st.Mode) })
		}
	}
	if closed == nil {
		return err
	}
	err = do()
	for _, again := range slices.Backward(closed) {
		err = errors.Join(err, again())
	}
	return err
}

// changedSource says that the content of an entry is not what the changeset
// speaks of. In the workspace that is the user's doing.
func changedSource(e *changeset.Entry) error {
	if e.Source == changeset.Workspace {
		return &ConflictError{[]Conflict{{Path: e.SourcePath, Box: "moved to " + strconv.Quote(e.Path), Host: changedDuring}}}
	}
	return fmt.Errorf("the %s changed since the changeset was read", e.Source)
}

// write stages content that is in neither tree.
func (s *stager) write(dir int, name string, data []byte) error {
	fd, err := createFile(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write(fd, data)
}

// link makes the layer's file the slot. It returns nil where the file must be
// copied: it would need a change that the layer would see before the commit
// point, or something else still holds it.
func (s *stager) link(fromDir int, fromName string, src int, st fsat.Stat, dir int, name string, e *changeset.Entry, mode uint32) (*linked, error) {
	if st.Mode != mode || st.Nlink != 1 {
		return nil, nil
	}
	if os.Geteuid() == 0 && (st.UID != e.After.UID || st.GID != e.After.GID) {
		return nil, nil
	}
	l := &linked{Mode: st.Mode, Mtime: st.Mtime}
	names, err := fsat.Xattrs(src)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		value, ok, err := fsat.Xattr(src, n)
		if errors.Is(err, unix.EACCES) && overlayXattr(n) {
			// A file that its own owner may not read. An ordinary
			// user's overlay leaves marks without a value on files.
			value, ok, err = nil, true, nil
		} else if errors.Is(err, unix.EACCES) {
			return nil, nil
		}
		if err != nil || !ok {
			return nil, err
		}
		switch {
		case strings.HasSuffix(n, ".overlay.metacopy"):
			return nil, errors.New("the layer holds only its metadata (metacopy)")
		case overlayXattr(n):
			l.Scrub = append(l.Scrub, xattr{Name: raw(n), Value: value})
		case promotableXattr(n):
			if want, ok := e.After.Xattrs[n]; !ok || string(want) != string(value) {
				return nil, nil
			}
		case n == "security.selinux":
			// A label, given by the system and kept by mv as well.
		case n == aclXattr:
			if acl, ok, err := s.hostACL(e); err != nil || !ok || string(acl) != string(value) {
				return nil, err
			}
		default:
			return nil, nil // capabilities
		}
	}
	for n := range e.After.Xattrs {
		if _, ok, err := fsat.Xattr(src, n); promotableXattr(n) && (err != nil || !ok) {
			return nil, err
		}
	}
	if busy(fromDir, fromName) {
		return nil, nil
	}
	if err := link(fromDir, fromName, dir, name); err != nil {
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EMLINK) {
			// EXDEV: another file system or mount. EPERM: none of its
			// kind, or protected_hardlinks.
			s.noLink = errors.Is(err, unix.EXDEV)
			return nil, nil
		}
		return nil, err
	}
	// The name may lead elsewhere by now if something of the box is alive.
	if at, err := fsat.LstatName(dir, name); err != nil || at.Ino != st.Ino {
		return nil, errors.Join(errors.New("the layer is being changed"), err)
	}
	return l, nil
}

const aclXattr = "system.posix_acl_access"

// hostACL returns the ACL of the file that an entry replaces. A box cannot give
// one away, but it need not cost the user his.
func (s *stager) hostACL(e *changeset.Entry) (acl []byte, ok bool, err error) {
	if e.Before == nil || e.Before.Type != fsat.Regular {
		return nil, false, nil
	}
	fd, err := fsat.OpenPath(s.plan.req.Workspace, e.Path)
	if err != nil {
		return nil, false, err
	}
	defer unix.Close(fd)
	return fsat.Xattr(fd, aclXattr)
}

// busy reports whether some process can still write to the file through a
// descriptor or mapping: a read lease is refused then. Such a file of a layer is
// copied, or the process could go on writing into the workspace.
func busy(dir int, name string) bool {
	fd, err := fsat.Open(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false // not readable by its owner
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}

func (s *stager) copy(fromDir int, fromName string, src int, st fsat.Stat, dir int, name string, e *changeset.Entry) error {
	if names, err := fsat.Xattrs(src); err != nil {
		return err
	} else {
		for _, n := range names {
			if strings.HasSuffix(n, ".overlay.metacopy") {
				return errors.New("the layer holds only its metadata (metacopy)")
			}
		}
	}
	in, err := openUnreadable(fromDir, fromName, src, st)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	out, err := createFile(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(out)
	cloned := false
	if !s.noReflink && st.Size > 0 {
		err := reflink(out, in)
		switch {
		case err == nil:
			cloned = true
			s.by[byReflink]++
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EINVAL):
			s.noReflink = errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY)
		default:
			return err
		}
	}
	if !cloned {
		if err := s.room(); err != nil {
			return err
		}
		if err := copyData(out, in, st.Size); err != nil {
			return err
		}
		s.by[byCopy]++
	}
	if e.Source != changeset.Workspace {
		return nil
	}
	// Someone may be writing to the host's file right now.
	if _, err := unix.Seek(out, 0, unix.SEEK_SET); err != nil {
		return err
	}
	if sum, err := changeset.DigestAs(out, e.After.Digest); err != nil || sum != e.After.Digest {
		return errors.Join(changedSource(e), err)
	}
	return nil
}

// room refuses early, the first time something must be copied, what cannot fit.
func (s *stager) room() error {
	if s.by[byCopy] > 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(s.txn, &st); err != nil {
		return nil // then writing will tell
	}
	free, need := st.Bavail, uint64(0)
	if os.Geteuid() == 0 {
		free = st.Bfree
	}
	for _, entries := range s.plan.carried {
		for _, e := range entries {
			if e.After.Type == fsat.Regular {
				need += uint64(e.After.Size)
			}
		}
	}
	// Files that are sparse, or staged by other means already, need less
	// than their size; only what is far too much is refused.
	if need/2 > free*uint64(st.Bsize) {
		return fmt.Errorf("%d bytes to copy, %d free: %w", need, free*uint64(st.Bsize), unix.ENOSPC)
	}
	return nil
}

// openUnreadable opens a file whose owner may deny himself reading it, as a box
// can leave any. Only a kill between its two chmods leaves a trace in the
// layer: the right to read.
func openUnreadable(dir int, name string, path int, st fsat.Stat) (int, error) {
	const flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK
	fd, err := fsat.Open(dir, name, flags, 0)
	if !errors.Is(err, unix.EACCES) {
		return fd, err
	}
	if err := chmod(path, st.Mode|0o400); err != nil {
		return -1, err
	}
	fd, err = fsat.Open(dir, name, flags, 0)
	return fd, errors.Join(err, chmod(path, st.Mode))
}

// rank settles the times that the staged files will have.
func (s *stager) rank(commit fsat.Time) {
	if s.plan.req.KeepTimes {
		return
	}
	var all []fsat.Time
	for _, st := range s.plan.steps {
		for _, f := range st.Files {
			all = append(all, f.Mtime)
		}
	}
	ranks := rankTimes(all, commit)
	for i := range s.plan.steps {
		st := &s.plan.steps[i]
		for k := range st.Files {
			st.Files[k].Mtime = ranks[st.Files[k].Mtime]
		}
	}
}
