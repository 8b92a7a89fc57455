package promote

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// plan is a changeset turned into steps on the workspace as it stands. No
// step lies beneath another, except that a directory may be altered above
// steps: what is beneath a new or a vanished directory goes with it.
type plan struct {
	req       *Request
	decisions []decision // by entry
	steps     []step
	carried   [][]*changeset.Entry // by step: what its slot will hold, itself first
	merged    map[*changeset.Entry][]byte
	beneath   []beneath
	repos     []string // git directories that something changes in
	parents   []parent
	resolved  []Resolution
	notes     []string
	tally     Tally
	promoted  int
	held      int64 // bytes that will lie in the slots as undo data
}

// beneath is a file that vanishes with a directory above it.
type beneath struct {
	step  int // of the directory
	entry int
}

// planner holds what is only needed while planning.
type planner struct {
	*plan
	host      *tree
	fresh     map[string]bool // directories taken where the host has none
	dropped   map[string]bool // what is left with all beneath it
	whole     map[string]int  // directories staged whole, to the index of their step
	gone      map[string]int  // directories that vanish with what they hold, to the index of the step
	deleted   map[string]bool // every path the changeset names as deleted
	ancestors map[string]difference
	noted     map[string]bool // directories that are in plan.parents
	conflicts []Conflict
}

// makePlan checks the changeset against the workspace, decides what becomes of
// each entry, and orders what is to be done. It reads only. It returns a
// *ConflictError when the host changed the same paths and the mode does not
// settle it.
func makePlan(req *Request) (*plan, error) {
	if !slices.Contains([]Mode{Fail, Ours, Theirs, Merge}, req.OnConflict) {
		return nil, fmt.Errorf("%q is no way to settle conflicts: choose %s, %s or %s", req.OnConflict, Ours, Theirs, Merge)
	}
	if err := checkClock(req.Stamp); err != nil {
		return nil, err
	}
	p := &planner{
		plan: &plan{
			req: req, decisions: make([]decision, len(req.Changes.Entries)), merged: map[*changeset.Entry][]byte{},
		},
		host:      newTree(req.Workspace),
		fresh:     map[string]bool{},
		dropped:   map[string]bool{},
		whole:     map[string]int{},
		gone:      map[string]int{},
		deleted:   map[string]bool{},
		ancestors: map[string]difference{},
		noted:     map[string]bool{},
	}
	defer p.host.close()
	entries := req.Changes.Entries
	for i := range entries {
		e := &entries[i]
		if err := checkEntry(e); err != nil {
			return nil, err
		}
		if i > 0 && entries[i-1].Path >= e.Path {
			return nil, fmt.Errorf("changeset out of order at %q", e.Path)
		}
		if e.After == nil {
			p.deleted[e.Path] = true
		}
	}
	if err := p.decide(); err != nil {
		return nil, shut(err)
	}
	if p.conflicts == nil {
		for i := range p.decisions {
			err := p.arrange(i, &p.decisions[i])
			if absent(err) {
				p.conflict(&entries[i], "is changing it right now", "")
				err = nil
			}
			if err != nil {
				return nil, shut(fmt.Errorf("%q: %w", entries[i].Path, err))
			}
		}
	}
	if p.conflicts != nil {
		return nil, &ConflictError{p.conflicts}
	}
	var err error
	if p.repos, err = p.repositories(); err != nil {
		return nil, err
	}
	p.order()
	slices.SortFunc(p.resolved, func(a, b Resolution) int { return strings.Compare(a.Path, b.Path) })
	if len(p.steps) > 0 {
		// .hutch will be made in the one, locks in the others: the way back
		// restores their times too.
		for _, dir := range append([]string{"."}, p.repos...) {
			if err := p.parent(dir, fsat.Stat{}, false); err != nil {
				return nil, err
			}
		}
	}
	return p.plan, nil
}

// shut says what to do where an ordinary user may not look into a directory of
// his own and has no [fsat.Searcher] that could. What is in it may be his work,
// so nothing is done in the dark.
func shut(err error) error {
	if !errors.Is(err, unix.EACCES) || os.Geteuid() == 0 {
		return err
	}
	return fmt.Errorf("%w: it, or a directory above it, is closed to uid %d: open it (chmod u+rwx) and try again", err, os.Geteuid())
}

// checkEntry refuses what no honest reader of a layer would produce.
func checkEntry(e *changeset.Entry) error {
	if err := checkPath(e.Path); err != nil {
		return err
	}
	if want := map[changeset.Op][2]bool{
		changeset.Created:  {false, true},
		changeset.Modified: {true, true},
		changeset.Deleted:  {true, false},
	}; want[e.Op] != [2]bool{e.Before != nil, e.After != nil} {
		return fmt.Errorf("%q: a malformed %q entry", e.Path, e.Op)
	}
	if e.After == nil {
		return nil
	}
	switch e.After.Type {
	case fsat.Regular, fsat.Directory, fsat.Symlink:
	default:
		return fmt.Errorf("%q: a %s is never promoted", e.Path, e.After.Type)
	}
	if e.Path == "." && (e.Op != changeset.Modified || e.Before.Type != fsat.Directory || e.After.Type != fsat.Directory) {
		return errors.New("the workspace itself cannot be replaced")
	}
	if e.After.Type == fsat.Regular && e.Source == changeset.Workspace {
		return checkPath(e.SourcePath)
	}
	if e.After.Type == fsat.Regular {
		return fsat.Check(e.SourcePath)
	}
	return nil
}

// arrange turns a decision into its step, or into part of the step of a
// directory above.
func (p *planner) arrange(i int, d *decision) error {
	if d.verdict != take {
		return nil
	}
	e := d.entry
	dir, _ := fsat.Split(e.Path)
	if at, ok := p.whole[dir]; ok && e.Path != "." {
		p.carried[at] = append(p.carried[at], e)
		if e.After.Type == fsat.Directory {
			p.whole[e.Path] = at
		}
		p.count(e)
		return nil
	}
	above, within := p.gone[dir]
	if within && e.Op != changeset.Deleted {
		return fmt.Errorf("%s beneath a directory that is gone", e.Op)
	}
	if p.vanishes(d) {
		p.gone[e.Path] = len(p.steps)
		if within {
			p.gone[e.Path] = above
		}
	}
	p.count(e)
	altered := p.altersInPlace(d)
	if d.found && !altered {
		p.held += d.st.Size
	}
	if within {
		p.beneath = append(p.beneath, beneath{above, i})
		return nil // goes with the directory above
	}
	s := step{Path: raw(e.Path)}
	if d.found {
		s.Before = identOf(d.st)
	}
	switch {
	case e.After == nil:
		s.Kind = remove
	case !d.found:
		s.Kind = create
	case altered:
		s.Kind = alter
		var err error
		if s.Alter, err = p.alteration(e, d.st); err != nil || s.Alter == nil {
			return err
		}
		p.add(s, nil)
		return nil
	default:
		s.Kind = replace
		p.noteNames(d)
	}
	if err := p.parent(dir, d.st, d.found); err != nil {
		return err
	}
	p.add(s, e)
	if e.After != nil && e.After.Type == fsat.Directory {
		p.whole[e.Path] = len(p.steps) - 1
	}
	return nil
}

// noteNames says when a file that is replaced has other names, which the
// promotion does not know of and never writes through.
func (p *planner) noteNames(d *decision) {
	if d.st.Type != fsat.Regular || d.st.Nlink < 2 {
		return
	}
	others := d.st.Nlink
	for i := range p.decisions {
		if o := &p.decisions[i]; o.verdict == take && o.found && o.st.Ino == d.st.Ino && others > 0 {
			others--
		}
	}
	if others > 0 {
		p.notes = append(p.notes, fmt.Sprintf("%q has hard links outside of the change (%d): those keep the old content", d.entry.Path, others))
	}
}

// altersInPlace reports whether an entry is done without another file in the
// host's place. A file with other names is not changed in place: they may lie
// outside of the workspace.
func (p *planner) altersInPlace(d *decision) bool {
	e := d.entry
	if e.After == nil || !d.found || d.st.Type != e.After.Type {
		return false
	}
	return e.After.Type == fsat.Directory || d.attrs || p.altered(e) && d.st.Nlink == 1
}

func (p *planner) count(e *changeset.Entry) {
	p.promoted++
	switch e.Op {
	case changeset.Created:
		p.tally.Created++
	case changeset.Modified:
		p.tally.Modified++
	case changeset.Deleted:
		p.tally.Deleted++
	}
}

func (p *planner) add(s step, e *changeset.Entry) {
	p.steps = append(p.steps, s)
	var carried []*changeset.Entry
	if e != nil && e.After != nil {
		carried = append(carried, e)
	}
	p.carried = append(p.carried, carried)
}

// altered reports whether only mode, owner or xattrs changed.
func (p *planner) altered(e *changeset.Entry) bool {
	b, a := e.Before, e.After
	if b == nil || a == nil || b.Type != a.Type {
		return false
	}
	return a.Type == fsat.Directory || a.Type == fsat.Regular && a.Digest != "" && a.Digest == b.Digest && a.Size == b.Size
}

// alteration works out an in-place change; nil when nothing is left of it.
func (p *planner) alteration(e *changeset.Entry, st fsat.Stat) (*alteration, error) {
	a := &alteration{
		From: attrs{Mode: st.Mode, UID: st.UID, GID: st.GID},
		To:   attrs{Mode: finalMode(e.After, st.Mode), UID: st.UID, GID: st.GID},
	}
	if p.altered(e) && st.Size == e.After.Size { // else the content is the host's
		a.Digest = e.After.Digest
	}
	if os.Geteuid() == 0 {
		a.To.UID, a.To.GID = e.After.UID, e.After.GID
	}
	if euid := uint32(os.Geteuid()); euid != 0 && st.UID != euid && a.To.Mode != st.Mode {
		return nil, fmt.Errorf("it belongs to uid %d, and only its owner may change its mode: run hutch as that user or as root, or leave it out (--except)", st.UID)
	}
	fd, err := fsat.OpenPath(p.req.Workspace, e.Path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	names := map[string]bool{}
	if e.Before != nil {
		for name := range e.Before.Xattrs {
			names[name] = true
		}
	}
	for name := range e.After.Xattrs {
		names[name] = true
	}
	for name := range names {
		if !promotableXattr(name) {
			continue
		}
		old, had, err := fsat.Xattr(fd, name)
		if err != nil {
			return nil, err
		}
		value, has := e.After.Xattrs[name]
		if had == has && string(old) == string(value) {
			continue
		}
		a.From.Xattrs = append(a.From.Xattrs, xattr{raw(name), old, !had})
		a.To.Xattrs = append(a.To.Xattrs, xattr{raw(name), value, !has})
	}
	if len(a.To.Xattrs) == 0 && a.To.Mode == st.Mode && a.To.UID == st.UID && a.To.GID == st.GID {
		return nil, nil
	}
	return a, nil
}

// finalMode is the mode that a path gets. A box never hands out setuid or
// setgid, but a shared directory that had setgid keeps it.
func finalMode(s *changeset.State, had uint32) uint32 {
	mode := s.Mode & 0o1777
	if s.Type == fsat.Directory {
		mode |= s.Mode & had & 0o6000
	}
	return mode
}

// parent checks that the steps in the directory dir will be allowed, and notes
// it in the plan.
func (p *planner) parent(dir string, target fsat.Stat, found bool) error {
	st, err := p.host.lstat(dir)
	if err != nil {
		return err
	}
	if st.Type != fsat.Directory {
		return fmt.Errorf("%q is a %s, not a directory", dir, st.Type)
	}
	root, err := fsat.Fstat(p.req.Workspace)
	if err != nil {
		return err
	}
	// A rename cannot leave its mount, nor its subvolume.
	if st.MntID != root.MntID || st.Dev != root.Dev {
		return fmt.Errorf("%q is on another mount or file system than the workspace", dir)
	}
	if found && target.MntID != root.MntID {
		return errors.New("it is a mount point")
	}
	euid := uint32(os.Geteuid())
	if found && euid != 0 && st.Mode&unix.S_ISVTX != 0 && target.UID != euid && st.UID != euid {
		return errors.New("another user's file in a sticky directory")
	}
	if p.noted[dir] {
		return nil
	}
	p.noted[dir] = true
	note := parent{Path: raw(dir), Ino: st.Ino, Mode: st.Mode, Mtime: st.Mtime}
	fd, err := fsat.Open(p.req.Workspace, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	switch {
	case errors.Is(err, unix.EACCES) && st.UID == euid && st.Mode&0o300 != 0o300:
		note.Opened = true
	case err != nil:
		return fmt.Errorf("directory %q cannot be written: %w", dir, err)
	}
	p.parents = append(p.parents, note)
	return nil
}

// unchanged looks again at every path of the plan, and returns a
// *ConflictError when the host changed one since it was made.
func (p *plan) unchanged() error {
	if err := checkClock(p.req.Stamp); err != nil {
		return err
	}
	host := newTree(p.req.Workspace)
	defer host.close()
	known := map[string]uint64{}
	for _, d := range p.parents {
		known[string(d.Path)] = d.Ino
	}
	var conflicts []Conflict
	for i := range p.decisions {
		d, e := &p.decisions[i], &p.req.Changes.Entries[i]
		if e.Path == "." || d.verdict == leave {
			continue // .hutch itself changed the ctime of "."
		}
		st, err := host.lstat(e.Path)
		if err != nil && !absent(err) {
			return err
		}
		// A lock in it changed the ctime of a git directory.
		same := d.found && (st.Ctime == d.st.Ctime || slices.Contains(p.repos, e.Path))
		if err == nil != d.found || d.found && (st.Ino != d.st.Ino || !same) {
			conflicts = append(conflicts, Conflict{Path: e.Path, Box: string(e.Op), Host: changedDuring})
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(known)) {
		st, err := host.lstat(dir)
		if err != nil && !absent(err) {
			return err
		}
		if err != nil || st.Ino != known[dir] || st.Type != fsat.Directory {
			conflicts = append(conflicts, Conflict{Path: dir, Box: "changed within", Host: "replaced it during the promotion"})
		}
	}
	if conflicts != nil {
		return &ConflictError{conflicts}
	}
	return nil
}

// rewritten reports whether a file that looks the same holds something else than
// it did; of one that is mostly holes, how it looks is all that is known.
func rewritten(dir int, name, was string) (bool, error) {
	if strings.HasPrefix(was, "blake3-sparse:") {
		return false, nil
	}
	now, err := digest(dir, name)
	if errors.Is(err, unix.EACCES) {
		now, err = "", nil // as it was when the change was read
	}
	return now != was, err
}

const changedDuring = "changed it during the promotion"

// lost returns a *ConflictError when something was written to, or added to, a
// directory while it went into its slot. What the steps displaced themselves,
// the mover looks at.
func (p *plan) lost(txn int) error {
	slots := newTree(txn)
	defer slots.close()
	entries := p.req.Changes.Entries
	known := map[string]bool{}
	tops := map[int]bool{}
	var conflicts []Conflict
	for _, b := range p.beneath {
		e, d := &entries[b.entry], &p.decisions[b.entry]
		known[e.Path], tops[b.step] = true, true
		at := slotName(b.step) + strings.TrimPrefix(e.Path, string(p.steps[b.step].Path))
		st, err := slots.lstat(at)
		if err != nil && !absent(err) {
			return err
		}
		changed := err != nil || st.Ino != d.st.Ino || st.Ctime != d.st.Ctime
		if err == nil && st.Type == fsat.Regular {
			dir, name, err := slots.parent(at)
			if err != nil {
				return err
			}
			if changed && st.Nlink > 1 && identOf(d.st).sameContent(st) {
				// A step that moved another of its names changed its ctime.
				if changed, err = rewritten(dir, name, e.Before.Digest); err != nil {
					return err
				}
			}
			changed = changed || busy(dir, name)
		}
		if changed {
			conflicts = append(conflicts, Conflict{Path: e.Path, Box: string(e.Op), Host: changedDuring})
		}
	}
	// The move changed the times of the directories that moved.
	for i := range p.steps {
		s := &p.steps[i]
		if s.Before.Type != fsat.Directory || s.Kind != remove && s.Kind != replace {
			continue
		}
		fd, err := fsat.OpenDir(txn, slotName(i))
		if errors.Is(err, unix.EACCES) && !tops[i] {
			continue // its owner may not look into it, and the box could not
		}
		if err != nil {
			return err
		}
		held, err := fsat.ReadDir(fd)
		unix.Close(fd)
		if err != nil {
			return err
		}
		for _, h := range held {
			if path := fsat.Join(string(s.Path), h.Name); !known[path] {
				conflicts = append(conflicts, Conflict{Path: path, Box: string(changeset.Deleted), Host: "added it during the promotion"})
			}
		}
	}
	if conflicts != nil {
		return &ConflictError{conflicts}
	}
	return nil
}
