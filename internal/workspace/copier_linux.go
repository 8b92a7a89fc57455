package workspace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// A copier fills one tree. What is to be done lies on a stack, so that neither
// depth nor width of the workspace costs descriptors: a worker holds those of
// the directory it is in and of one file.
type copier struct {
	ctx     context.Context
	reflink bool
	proven  bool // a clone from workspace to box has worked
	src     int  // the workspace
	dst     int  // the tree
	root    fsat.Stat
	hidden  map[string]bool
	skip    map[fileID]bool // directories of hutch itself, where one lies in the workspace

	mu      sync.Mutex
	wake    sync.Cond // tasks, busy or err changed
	tasks   []task
	busy    int
	err     error
	links   map[fileID][]name
	records []changeset.Record

	files       atomic.Int64 // regular files cloned or copied
	cloned      atomic.Int64 // of these, by FICLONE
	copied      atomic.Int64 // of these, copied although clones were asked for
	copiedBytes atomic.Int64
	mounts      noteList
	devices     noteList
	own         noteList
}

// fileID names an inode. Subvolumes of btrfs use the same numbers twice, but
// have devices of their own.
type fileID struct{ dev, ino uint64 }

func idOf(st fsat.Stat) fileID { return fileID{st.Dev, st.Ino} }

// A dir is one directory on its way. It is finished, its times included, when
// nothing is left to do in or beneath it.
type dir struct {
	rel     string
	parent  *dir
	st      fsat.Stat // of the source
	mounted bool      // another file system, left empty
	pending atomic.Int64
}

// A name is one entry of a directory.
type name struct {
	dir  *dir
	name string
}

func (n name) rel() string { return fsat.Join(n.dir.rel, n.name) }

// A task is a directory to read, some entries of one to copy, or the names of
// one file that has several.
type task struct {
	dir     *dir
	entries []fsat.Dirent // nil: read the directory
	links   []name
}

// batch is how many entries of one directory make a task: a flat directory of
// 10,000 files is to keep every worker busy.
const batch = 256

func newCopier(ctx context.Context, req Request) (*copier, error) {
	st, err := fsat.Fstat(req.Workspace.FD)
	if err != nil {
		return nil, err
	}
	c := &copier{
		ctx:     ctx,
		reflink: req.Strategy == Reflink,
		src:     req.Workspace.FD,
		root:    st,
		skip:    map[fileID]bool{},
		hidden:  map[string]bool{},
		links:   map[fileID][]name{},
		mounts:  noteList{what: "another file system is mounted there and was not copied; the box sees it empty"},
		devices: noteList{what: "a device, left out"},
		own:     noteList{what: "hutch's own state, left out"},
	}
	c.wake.L = &c.mu
	for _, path := range req.Hidden {
		c.hidden[path] = true
	}
	// With --force the workspace may hold the box itself: copying it into
	// itself would not end.
	box, err := fsat.Fstat(req.BoxFD)
	if err != nil {
		return nil, err
	}
	c.skip[idOf(box)] = true
	if state, err := StateDir(); err == nil {
		var st unix.Stat_t
		if unix.Stat(state, &st) == nil {
			c.skip[fileID{st.Dev, st.Ino}] = true
		}
	}
	c.dst, err = fsat.Mkdir(req.BoxFD, treeName, 0o700)
	return c, err
}

// run works until the tree is whole or something failed.
func (c *copier) run() error {
	stop := context.AfterFunc(c.ctx, func() { c.fail(context.Cause(c.ctx)) })
	defer stop()
	root := &dir{rel: ".", st: c.root}
	root.pending.Store(1)
	if err := c.drain(task{dir: root}); err != nil {
		return err
	}
	// Files with several names come last, when all their names are known:
	// every link(2) changes the ctime, which the manifest is to hold.
	var links []task
	for _, names := range c.links {
		links = append(links, task{links: names})
	}
	return c.drain(links...)
}

// drain works on tasks, and on those that come of them, until none is left.
func (c *copier) drain(tasks ...task) error {
	c.tasks = tasks
	var workers sync.WaitGroup
	for range min(max(runtime.GOMAXPROCS(0), 2), 16) {
		workers.Go(c.work)
	}
	workers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *copier) work() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.tasks) == 0 && c.busy > 0 && c.err == nil {
			c.wake.Wait()
		}
		if len(c.tasks) == 0 || c.err != nil {
			c.wake.Broadcast()
			return
		}
		last := len(c.tasks) - 1
		t := c.tasks[last]
		c.tasks[last] = task{}
		c.tasks = c.tasks[:last]
		c.busy++
		c.mu.Unlock()
		err := c.do(t)
		c.mu.Lock()
		c.busy--
		if err != nil && c.err == nil {
			c.err = err
		}
		if c.busy == 0 || c.err != nil {
			c.wake.Broadcast()
		}
	}
}

func (c *copier) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.wake.Broadcast()
}

func (c *copier) push(tasks ...task) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tasks = append(c.tasks, tasks...)
	c.wake.Broadcast()
}

func (c *copier) do(t task) error {
	if t.links != nil {
		return c.copyLinked(t.links)
	}
	src, err := openSource(c.src, t.dir.rel, unix.O_DIRECTORY)
	if errors.Is(err, errGone) || errors.Is(err, errChanged) {
		return c.release(t.dir)
	}
	if err != nil {
		return sourceError(t.dir.rel, err)
	}
	defer unix.Close(src)
	entries := t.entries
	if entries == nil {
		entries, err = fsat.ReadDir(src)
		if errors.Is(err, unix.ENOENT) { // removed while it was open
			return c.release(t.dir)
		}
		if err != nil {
			return sourceError(t.dir.rel, err)
		}
		var rest []task
		for len(entries) > batch {
			cut := len(entries) - batch
			rest = append(rest, task{dir: t.dir, entries: entries[cut:]})
			entries = entries[:cut]
		}
		t.dir.pending.Add(int64(len(rest)))
		c.push(rest...)
	}
	dst, err := fsat.OpenDir(c.dst, t.dir.rel)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	for _, e := range entries {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		if t.dir.parent == nil && e.Name == ownDir || c.hidden[fsat.Join(t.dir.rel, e.Name)] {
			continue
		}
		if err := c.copyEntry(src, dst, name{t.dir, e.Name}, e.Type); err != nil {
			return err
		}
	}
	return c.release(t.dir)
}

// release ends one thing that was pending in d. It finishes d, and what d was
// the last of, when that was the last.
func (c *copier) release(d *dir) error {
	for ; d != nil && d.pending.Add(-1) == 0; d = d.parent {
		if err := c.finish(d); err != nil {
			return err
		}
	}
	return nil
}

// finish gives a filled directory its attributes. Not before: filling it
// changes its times, and a mode such as 0555 would forbid to fill it.
func (c *copier) finish(d *dir) error {
	dst, err := fsat.OpenDir(c.dst, d.rel)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if !d.mounted {
		src, err := openSource(c.src, d.rel, unix.O_DIRECTORY)
		if err == nil {
			err = copyXattrs(dst, src)
			unix.Close(src)
		}
		if err != nil && !errors.Is(err, errGone) && !errors.Is(err, errChanged) {
			return sourceError(d.rel, err)
		}
	}
	if err := setAttributes(dst, d.st); err != nil {
		return err
	}
	st, err := fsat.Fstat(dst)
	if err != nil {
		return err
	}
	c.record(d.rel, st, d.st.Ino)
	return nil
}

func (c *copier) record(rel string, copied fsat.Stat, hostIno uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records = append(c.records, changeset.Record{Path: rel, Copy: copied, HostIno: hostIno})
}

func (c *copier) sortedRecords() []changeset.Record {
	slices.SortFunc(c.records, func(a, b changeset.Record) int { return strings.Compare(a.Path, b.Path) })
	return c.records
}

// copyEntry copies what src, an open directory, holds by the name n, to dst.
// The workspace may change under the walk: what turns out to be of another
// kind is looked at again, and what is gone was never there.
func (c *copier) copyEntry(src, dst int, n name, typ fsat.Type) error {
	for range 3 {
		var err error
		if typ == fsat.Regular { // needs no lstat: the open file is asked
			err = c.copyFile(src, dst, n)
		} else {
			err = c.copyOther(src, dst, n)
		}
		switch {
		case err == nil, errors.Is(err, errGone):
			return nil
		case !errors.Is(err, errChanged):
			return err
		}
		typ = fsat.Unknown
	}
	return fmt.Errorf("%q changes again and again while it is copied: use --strategy overlay, or try again", n.rel())
}

var (
	errGone    = errors.New("gone")
	errChanged = errors.New("another kind of file than before")
	errPutOff  = errors.New("has more names")
)

func (c *copier) copyFile(src, dst int, n name) error {
	st, err := c.fillFile(src, dst, n, false)
	if errors.Is(err, errPutOff) {
		c.putOff(st, n)
		return nil
	}
	return err
}

func (c *copier) copyOther(src, dst int, n name) error {
	st, err := fsat.LstatName(src, n.name)
	if errors.Is(err, unix.ENOENT) {
		return errGone
	}
	if err != nil {
		return sourceError(n.rel(), err)
	}
	switch st.Type {
	case fsat.Regular:
		return c.copyFile(src, dst, n)
	case fsat.Directory:
		return c.copyDir(dst, n, st)
	case fsat.Symlink, fsat.FIFO, fsat.Socket:
		if st.Nlink > 1 {
			c.putOff(st, n)
			return nil
		}
		copied, err := c.makeNode(src, dst, n, st)
		if err == nil {
			c.record(n.rel(), copied, st.Ino)
		}
		return err
	}
	c.devices.add(n.rel())
	return nil
}

func (c *copier) copyDir(dst int, n name, st fsat.Stat) error {
	if c.skip[idOf(st)] {
		c.own.add(n.rel())
		return nil
	}
	if err := unix.Mkdirat(dst, n.name, 0o700); err != nil {
		return fmt.Errorf("mkdir %q: %w", n.rel(), err)
	}
	child := &dir{rel: n.rel(), parent: n.dir, st: st}
	child.pending.Store(1)
	n.dir.pending.Add(1)
	if c.elsewhere(st) {
		child.mounted = true
		c.mounts.add(child.rel)
		return c.release(child)
	}
	c.push(task{dir: child})
	return nil
}

// elsewhere reports whether a file is on another mount than the workspace.
func (c *copier) elsewhere(st fsat.Stat) bool {
	if st.MntID != 0 && c.root.MntID != 0 {
		return st.MntID != c.root.MntID // unlike Dev, the same in subvolumes
	}
	return st.Dev != c.root.Dev
}

// putOff keeps a file that has more names for the end.
func (c *copier) putOff(st fsat.Stat, n name) {
	n.dir.pending.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.links[idOf(st)] = append(c.links[idOf(st)], n)
}

// copyLinked copies a file by the first of its names that is still there and
// links the others to it. Most often there is one: the others are outside of
// the workspace, in a package manager's store.
func (c *copier) copyLinked(names []name) error {
	slices.SortFunc(names, func(a, b name) int { return strings.Compare(a.rel(), b.rel()) })
	var host fsat.Stat
	var done []name
	for _, n := range names {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		var err error
		if len(done) == 0 {
			host, err = c.copyFirst(n)
		} else {
			err = c.link(done[0], n)
		}
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return err
		}
		done = append(done, n)
	}
	if len(done) > 0 {
		st, err := fsat.Lstat(c.dst, done[0].rel())
		if err != nil {
			return err
		}
		for _, n := range done {
			c.record(n.rel(), st, host.Ino)
		}
	}
	for _, n := range names {
		if err := c.release(n.dir); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) copyFirst(n name) (fsat.Stat, error) {
	src, err := openSource(c.src, n.dir.rel, unix.O_DIRECTORY)
	if errors.Is(err, errChanged) {
		return fsat.Stat{}, errGone
	}
	if err != nil {
		return fsat.Stat{}, sourceError(n.dir.rel, err)
	}
	defer unix.Close(src)
	dst, err := fsat.OpenDir(c.dst, n.dir.rel)
	if err != nil {
		return fsat.Stat{}, err
	}
	defer unix.Close(dst)
	st, err := fsat.LstatName(src, n.name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return st, errGone
	case err != nil:
		return st, sourceError(n.rel(), err)
	case st.Type == fsat.Regular:
		st, err = c.fillFile(src, dst, n, true)
	case st.Type == fsat.Symlink, st.Type == fsat.FIFO, st.Type == fsat.Socket:
		_, err = c.makeNode(src, dst, n, st)
	default:
		return st, errGone
	}
	if errors.Is(err, errChanged) {
		err = errGone // replaced just now, and this one never had its turn
	}
	return st, err
}

func (c *copier) link(first, n name) error {
	from, err := fsat.Open(c.dst, first.dir.rel, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := fsat.Open(c.dst, n.dir.rel, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := unix.Linkat(from, first.name, to, n.name, 0); err != nil {
		return fmt.Errorf("link %q to %q: %w", n.rel(), first.rel(), err)
	}
	return nil
}

// notes says what a user should know of the tree.
func (c *copier) notes() []string {
	notes := slices.Concat(c.mounts.note(), c.devices.note(), c.own.note())
	if n := c.copied.Load(); n > 0 {
		notes = append(notes, fmt.Sprintf("%d files (%.1f MiB) could not be cloned and were copied", n, float64(c.copiedBytes.Load())/(1<<20)))
	}
	return notes
}
