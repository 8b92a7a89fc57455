package changeset

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Split parts a changeset in what is selected and what is not, each of which
// can be promoted by itself, part first. The content of partial files is
// written into picked, an empty directory, which part needs until it is
// promoted and rest does not need; -1 will do where nothing is partial.
func (s *Selection) Split(c *Changeset, picked int) (part, rest *Changeset, err error) {
	part, rest, err = s.parts(c)
	if err != nil || len(s.Partial) == 0 {
		return part, rest, err
	}
	chosen := part.Entries[:0]
	for i, e := range part.Entries {
		p, ok := s.Partial[e.Path]
		if !ok {
			chosen = append(chosen, e)
			continue
		}
		h := blake3.New()
		h.Write(p.Content)
		first, then := p.entries(&e, formatDigest(h))
		if sameState(first.Before, first.After) { // nothing was chosen of it
			rest.Entries = append(rest.Entries, e)
			continue
		}
		if first.After.Digest != e.After.Digest {
			name := strconv.Itoa(i)
			if err := writeNew(picked, name, p.Content); err != nil {
				return nil, nil, fmt.Errorf("write the chosen hunks of %q: %w", e.Path, err)
			}
			first.Source, first.SourcePath = Picked, name
		}
		chosen = append(chosen, first)
		if !sameState(then.Before, then.After) {
			rest.Entries = append(rest.Entries, then)
		}
	}
	part.Entries = chosen
	part.seal()
	rest.seal()
	part.Ancestors, rest.Ancestors = c.above(part.Entries), c.above(rest.Entries)
	return part, rest, nil
}

func writeNew(dir int, name string, content []byte) error {
	fd, err := fsat.Open(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// tick is longer than a tick of any kernel's coarse clock, which stamps a
// file's ctime: 10 ms at 100 Hz.
const tick = 11 * time.Millisecond

// Rebase tells rest, right after part was promoted into the workspace, which of
// the files and directories that it will change hutch has changed itself, and
// which directories above them it has made: the branch's stamp and inodes say
// nothing of those any more. One that is not what part left there keeps the
// old base, by which it is a conflict.
func Rebase(rest, part *Changeset, workspace int) error {
	touched := map[string]bool{}
	for i := range part.Entries {
		dir, _ := fsat.Split(part.Entries[i].Path)
		touched[dir] = true
		touched[part.Entries[i].Path] = true
	}
	// An edit in the same tick as the promotion would show the same ctime:
	// what is looked at after this is older than any edit to come.
	time.Sleep(tick)
	host := &root{name: Workspace, fd: workspace}
	for i := range rest.Entries {
		e := &rest.Entries[i]
		if e.Before == nil || !touched[e.Path] {
			continue
		}
		st, ok, err := host.standing(e.Path, e.Before)
		if err != nil {
			return fmt.Errorf("look at what was promoted: %q: %w", e.Path, err)
		}
		if ok {
			now := *e.Before
			now.Mtime = st.Mtime // a promotion gives files the times it sees fit
			e.Before, e.BaseIno, e.BaseCtime = &now, st.Ino, &st.Ctime
		}
	}
	for i := range rest.Entries {
		for path := rest.Entries[i].Path; path != "."; {
			path, _ = fsat.Split(path)
			if e := part.Find(path); e == nil || !e.After.isDir() || e.Before.isDir() {
				continue
			}
			st, ok, err := host.lookupPath(path)
			if err != nil {
				return fmt.Errorf("look at what was promoted: %q: %w", path, err)
			}
			if !ok || st.Type != fsat.Directory {
				continue
			}
			if rest.Ancestors == nil {
				rest.Ancestors = map[string]uint64{}
			}
			rest.Ancestors[path] = st.Ino
		}
	}
	return nil
}

// Promoted notes, right after a part of a change was promoted, what of it stands
// in the workspace: for the day that the layers are read again.
func Promoted(part *Changeset, workspace int) (*Changeset, error) {
	c := part.Only(func(*Entry) bool { return true })
	c.Ancestors, c.Skipped = nil, nil
	time.Sleep(tick) // as in Rebase
	host := &root{name: Workspace, fd: workspace}
	for i := range c.Entries {
		e := &c.Entries[i]
		e.BaseIno, e.BaseCtime, e.Link = 0, nil, ""
		if e.After == nil {
			continue
		}
		st, ok, err := host.standing(e.Path, e.After)
		if err != nil {
			return nil, fmt.Errorf("look at what was promoted: %q: %w", e.Path, err)
		}
		if !ok {
			continue
		}
		e.BaseIno, e.BaseCtime = st.Ino, &st.Ctime
		if e.After.isDir() && !e.Before.isDir() {
			if c.Ancestors == nil {
				c.Ancestors = map[string]uint64{}
			}
			c.Ancestors[e.Path] = st.Ino
		}
	}
	return c, nil
}

// standing describes what stands at a path, and reports whether it is in the
// given state, as far as a promotion carries one.
func (r *root) standing(path string, want *State) (fsat.Stat, bool, error) {
	st, ok, err := r.lookupPath(path)
	const carried = 0o1777 // promotion hands out no setuid or setgid
	if err != nil || !ok || st.Type != want.Type || st.Type != fsat.Symlink && st.Mode&carried != want.Mode&carried {
		return st, false, err
	}
	if st.Type == fsat.Symlink {
		target, err := fsat.Readlink(r.fd, path)
		return st, target == want.Target, err
	}
	if st.Type != fsat.Regular {
		return st, true, nil
	}
	fd, err := r.openFile(path)
	if absent := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES); absent {
		return st, false, nil
	}
	if err != nil {
		return st, false, err
	}
	defer unix.Close(fd)
	digest, err := hashFile(fd, make([]byte, readSize))
	if err != nil {
		return st, false, err
	}
	after, err := fsat.Fstat(fd)
	return st, digest == want.Digest && after.Ino == st.Ino && after.Ctime == st.Ctime, err
}
