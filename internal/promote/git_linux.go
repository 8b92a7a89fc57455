package promote

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// With .git in a change, a promotion is one more user of the repository. Like
// git it holds index.lock while it works, so that no git writes meanwhile, and
// it brings what is pointed at before what points at it: objects, worktree,
// refs, HEAD, index. A git that only reads never meets a ref without its object.

const (
	gitDir    = ".git"
	indexLock = "index.lock"
	// lockPrefix begins the names of the files in a transaction's directory
	// that tell whose an index.lock is, whatever dies: each is the lock
	// itself, under another name, and says for which git directory it is.
	lockPrefix = "gitlock-"
)

// gitPath divides a path at its .git: it returns the components from there on,
// and nil for a path outside of one.
func gitPath(path string) []string {
	parts := strings.Split(path, "/")
	if i := slices.Index(parts, gitDir); i >= 0 {
		return parts[i:]
	}
	return nil
}

// rank orders the steps; equal ranks go by path.
func rank(s *step) int {
	const (
		objects = iota
		worktree
		refs
		heads
		index
		removedObjects
	)
	parts := gitPath(string(s.Path))
	if parts == nil || s.Kind == alter {
		return worktree
	}
	for _, part := range parts {
		switch part {
		case "objects":
			if s.Kind == remove {
				return removedObjects
			}
			return objects
		case "refs", "logs":
			if s.Kind == remove {
				return heads // packed-refs has it by then
			}
			return refs
		}
	}
	switch parts[len(parts)-1] {
	case "packed-refs":
		return refs
	case "index":
		return index
	}
	return heads
}

// order sorts the steps by rank.
func (p *plan) order() {
	by := make([]int, len(p.steps))
	for i := range by {
		by[i] = i
	}
	slices.SortStableFunc(by, func(a, b int) int { return rank(&p.steps[a]) - rank(&p.steps[b]) })
	steps, carried, to := make([]step, len(by)), make([][]*changeset.Entry, len(by)), make([]int, len(by))
	for i, from := range by {
		steps[i], carried[i], to[from] = p.steps[from], p.carried[from], i
	}
	for i := range p.beneath {
		p.beneath[i].step = to[p.beneath[i].step]
	}
	p.steps, p.carried = steps, carried
}

// leftLock reports whether an entry is a lock of git's that a git in the box
// did not live to release. In the workspace it would stop every git.
func leftLock(e *changeset.Entry) bool {
	return e.Op == changeset.Created && e.After.Type == fsat.Regular && strings.HasSuffix(e.Path, ".lock") && gitPath(e.Path) != nil
}

// sameIndex settles a difference in an index of git by what the files mean:
// agreed when both sides mean the same, unmoved when the host's means what it
// did when the branch was made.
func (p *planner) sameIndex(e *changeset.Entry, d *decision) (agreed, unmoved bool, err error) {
	if !changeset.IsIndex(e.Path) || e.After == nil || e.After.Type != fsat.Regular || !d.found || d.st.Type != fsat.Regular ||
		max(d.st.Size, e.After.Size) > changeset.MaxIndex {
		return false, false, nil
	}
	host, err := readRegular(p.req.Workspace, e.Path, changeset.MaxIndex)
	if errors.Is(err, unix.EACCES) || errors.Is(err, errNoMerge) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	now := changeset.IndexDigest(host)
	if now == "" {
		return false, false, nil
	}
	if now == e.BaseIndex {
		return false, true, nil
	}
	box, err := p.boxContent(e, changeset.MaxIndex)
	if errors.Is(err, errNoMerge) {
		return false, false, nil
	}
	return err == nil && now == changeset.IndexDigest(box), false, err
}

// repositories returns the git directories in which the plan changes something.
func (p *planner) repositories() ([]string, error) {
	known := map[string]bool{}
	for i := range p.decisions {
		if p.decisions[i].verdict != take {
			continue
		}
		path := p.req.Changes.Entries[i].Path
		for dir, _ := fsat.Split(path); dir != "."; dir, _ = fsat.Split(dir) {
			if _, ok := known[dir]; ok || gitPath(dir) == nil {
				break
			}
			_, gone := p.gone[dir]
			is, err := isRepository(p.host, dir)
			if err != nil {
				return nil, err
			}
			known[dir] = is && !gone
		}
	}
	var dirs []string
	for dir, is := range known {
		if is {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}

// isRepository reports whether git would take a directory of the host for one
// of its own: with HEAD, and objects or, in that of a worktree, a commondir.
func isRepository(host *tree, dir string) (bool, error) {
	has := func(name string, t fsat.Type) (bool, error) {
		st, err := host.lstat(dir + "/" + name)
		if absent(err) {
			return false, nil
		}
		return err == nil && st.Type == t, err
	}
	if ok, err := has("HEAD", fsat.Regular); err != nil || !ok {
		return false, err
	}
	if ok, err := has("objects", fsat.Directory); err != nil || ok {
		return ok, err
	}
	return has("commondir", fsat.Regular)
}

// repositories returns the git directories in which the journal changes
// something.
func (m *mover) repositories() (dirs []string, err error) {
	known := map[string]bool{}
	for i := range m.j.Steps {
		for dir, _ := fsat.Split(string(m.j.Steps[i].Path)); dir != "." && gitPath(dir) != nil && !known[dir]; dir, _ = fsat.Split(dir) {
			known[dir] = true
			is, err := isRepository(m.tree, dir)
			if err != nil {
				return nil, err
			}
			if is {
				dirs = append(dirs, dir)
			}
		}
	}
	slices.Sort(dirs)
	return dirs, nil
}

// lockGit takes the locks of an undo, unless a process that died left them.
func (m *mover) lockGit() error {
	entries, err := fsat.ReadDir(m.txn)
	if err != nil || slices.ContainsFunc(entries, func(e fsat.Dirent) bool { return strings.HasPrefix(e.Name, lockPrefix) }) {
		return err
	}
	repos, err := m.repositories()
	if err != nil {
		return err
	}
	return lockGit(m.ws, m.txn, m.j.ID, repos)
}

// lockGit takes index.lock in repositories, for the transaction id.
func lockGit(ws, txn int, id string, repos []string) error {
	if len(repos) == 0 {
		return nil
	}
	names := []string{"."}
	for i, dir := range repos {
		name := lockPrefix + strconv.Itoa(i)
		if err := writeNew(txn, name, lockText(id, dir)); err != nil {
			return err
		}
		names = append(names, name)
	}
	// Before the locks are there, or a power cut could leave one that nobody
	// owns.
	if err := flush(txn, names); err != nil {
		return err
	}
	for i, dir := range repos {
		if err := lockOne(ws, txn, lockPrefix+strconv.Itoa(i), lockText(id, dir), dir); err != nil {
			return err
		}
	}
	return nil
}

func lockOne(ws, txn int, name string, text []byte, dir string) error {
	fd, err := fsat.OpenDir(ws, dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = link(txn, name, fd, indexLock)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = writeNew(fd, indexLock, text) // no links on this file system
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %s/%s exists; wait until it is done, or, when no git is running, remove that file", ErrGitBusy, dir, indexLock)
	}
	return err
}

// lockText is what an index.lock of hutch holds.
func lockText(id, dir string) []byte {
	return []byte("hutch is promoting " + id + " into this repository; if it died, `hutch recover` removes this file\n" + dir)
}

func writeNew(dir int, name string, text []byte) error {
	fd, err := createFile(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write(fd, text)
}

// unlockGit removes the locks that the transaction in txn holds, and makes that
// durable. It can be called again.
func unlockGit(ws, txn int) error {
	entries, err := fsat.ReadDir(txn)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name, lockPrefix) {
			continue
		}
		if err := unlockOne(ws, txn, e.Name); err != nil {
			return fmt.Errorf("release git's lock: %w", err)
		}
	}
	return nil
}

func unlockOne(ws, txn int, name string) error {
	text, err := readFile(txn, name)
	if err != nil {
		return err
	}
	mine, err := fsat.LstatName(txn, name)
	if err != nil {
		return err
	}
	_, dir, whole := strings.Cut(string(text), "\n")
	if !whole || checkPath(dir) != nil || gitPath(dir) == nil {
		return unlink(txn, name) // torn: no lock was taken yet
	}
	fd, err := fsat.OpenDir(ws, dir)
	if absent(err) {
		return unlink(txn, name)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, there, err := lookName(fd, indexLock)
	if err != nil {
		return err
	}
	// Only what is ours: the user may have removed it, and run git.
	ours := there && st.Ino == mine.Ino && st.Dev == mine.Dev
	if there && !ours && st.Type == fsat.Regular && st.Size == int64(len(text)) {
		held, err := readFile(fd, indexLock)
		ours = err == nil && string(held) == string(text)
	}
	if ours {
		if err := unlink(fd, indexLock); err != nil {
			return err
		}
		if err := fsync(fd); err != nil {
			return err
		}
	}
	return unlink(txn, name)
}
