package supervise

import (
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// slack is how far free space may fall unexplained before it is looked into.
const slack = 1 << 20

// Begin notes what is there before the command starts: what was copied, what
// hides a file, and what overlays, not yet mounted, need is not what the box adds.
func (d *Disk) Begin(overlays int) error {
	var err error
	if d.base, err = d.walk(nil, false); err != nil {
		return err
	}
	const ofOverlay = 4 // work, work/incompat, work/incompat/volatile, and dirty in it
	d.base.files += ofOverlay * int64(overlays)
	d.before = d.space()
	d.now, d.walked = d.base, d.before
	d.next = time.Now().Add(longestWithoutWalk)
	return nil
}

// longestWithoutWalk: what the box takes may hide behind what others give back.
const longestWithoutWalk = 5 * time.Second

func (d *Disk) space() space {
	var st unix.Statfs_t
	if unix.Fstatfs(d.Dir, &st) != nil {
		return space{}
	}
	s := space{bytes: int64(st.Bfree) * st.Bsize, files: int64(st.Ffree), total: int64(st.Blocks) * st.Bsize}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
	default:
		// btrfs gives blocks to a file only when it writes them back.
		s.dirtied = machineDirtied()
	}
	return s
}

// machineDirtied returns how much the machine has written to its page cache.
func machineDirtied() int64 {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	return keyed(text, "nr_dirtied") * int64(os.Getpagesize())
}

// look tells whether the limit is passed, and when to look again. When pid1 is 0
// the box has ended: then it walks in any case, since others may have freed what
// the box took.
func (d *Disk) look(pid1 int, stopped *atomic.Bool) (over bool, wait time.Duration) {
	space := d.space()
	fell := max(d.walked.bytes-space.bytes, space.dirtied-d.walked.dirtied)
	fewer := d.walked.files - space.files
	left, leftFiles := d.Bytes-(d.now.bytes-d.base.bytes), d.Files-(d.now.files-d.base.files)
	due := d.Bytes > 0 && fell > left/2 || d.Files > 0 && fewer > leftFiles/2
	// Such a file system does not say how many inodes it has left.
	due = due || d.Files > 0 && space.dirtied > d.walked.dirtied && time.Now().After(d.soon)
	wait = d.pause(left, leftFiles)
	if !due && pid1 != 0 && time.Now().Before(d.next) {
		return false, wait
	}
	began := time.Now()
	used, err := d.walk(stopped, true)
	took := time.Since(began)
	if stopped.Load() && err == nil && !d.passed(used) {
		return false, wait
	}
	d.now, d.walked = used, space
	d.next = time.Now().Add(max(longestWithoutWalk, 50*took))
	d.soon = time.Now().Add(max(time.Second, 20*took))
	if d.passed(used) || errors.Is(err, errTooDeep) {
		return true, wait
	}
	return d.hides(pid1, space, used), max(d.pause(d.Bytes-(used.bytes-d.base.bytes), d.Files-(used.files-d.base.files)), 4*took)
}

func (d *Disk) passed(used usage) bool {
	return d.Bytes > 0 && used.bytes-d.base.bytes > d.Bytes || d.Files > 0 && used.files-d.base.files > d.Files
}

// pause is how long a fast disk takes to fill half of what is left.
func (d *Disk) pause(left, leftFiles int64) time.Duration {
	const perSecond, filesPerSecond = 4 << 30, 500_000
	pause := 250 * time.Millisecond
	if d.Bytes > 0 {
		pause = min(pause, time.Duration(float64(left)/2/perSecond*float64(time.Second)))
	}
	if d.Files > 0 {
		pause = min(pause, time.Duration(float64(leftFiles)/2/filesPerSecond*float64(time.Second)))
	}
	return max(pause, 5*time.Millisecond)
}

// hides tells whether files without a name, which no walk finds, take the box
// over its limit. Where a process does not show what it holds open, and where
// the file system is nearly full, what nobody else accounts for is the box's.
func (d *Disk) hides(pid1 int, space space, used usage) bool {
	unknown := d.before.bytes - space.bytes - (used.bytes - d.base.bytes)
	written := space.dirtied - d.before.dirtied
	if pid1 == 0 || d.Bytes <= 0 || max(unknown, written) < max(slack, d.Bytes/8) {
		return false
	}
	named, hidden := nameless(pid1)
	hidden = hidden || used.closed
	if used.bytes-d.base.bytes+named > d.Bytes {
		return true
	}
	full := space.bytes < min(1<<30, space.total/20)
	return unknown > d.Bytes && (hidden || full)
}

// nameless adds up the files on disk without a name that processes of the box
// hold open; hidden tells that one of them does not let us see.
func nameless(pid1 int) (bytes int64, hidden bool) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	for pid := range tree(pid1) {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		fds, err := os.ReadDir(dir)
		if errors.Is(err, unix.EACCES) {
			hidden = true
		}
		for _, fd := range fds {
			var st unix.Stat_t
			var fs unix.Statfs_t
			path := dir + "/" + fd.Name()
			if unix.Stat(path, &st) != nil || st.Nlink > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || seen[inode{st.Dev, st.Ino}] {
				continue
			}
			if unix.Statfs(path, &fs) != nil || fs.Type == unix.TMPFS_MAGIC {
				continue
			}
			seen[inode{st.Dev, st.Ino}] = true
			bytes += st.Blocks * 512
		}
	}
	return bytes, hidden
}

// errTooDeep: more directories lie in each other, each with others beside it,
// than there are descriptors to follow them.
var errTooDeep = errors.New("directories nested too deep")

const deepest = 512

// walk adds up what the layers take. With early it ends as soon as that is more
// than the limit.
func (d *Disk) walk(stopped *atomic.Bool, early bool) (usage, error) {
	w := walker{disk: d, stopped: stopped, early: early, links: map[uint64]bool{}}
	for _, name := range d.Names {
		fd, err := fsat.OpenDir(d.Dir, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return w.usage, err
		}
		if err := w.directory(fd, 0); err != nil {
			return w.usage, err
		}
	}
	return w.usage, nil
}

type walker struct {
	usage
	disk    *Disk
	stopped *atomic.Bool
	early   bool
	links   map[uint64]bool // inodes that have more names, seen
}

// lstat looks past the mode of a directory of the user's own.
func lstat(dir int, name string, st *unix.Stat_t) error {
	err := unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW)
	if !errors.Is(err, unix.EACCES) {
		return err
	}
	fd, err := fsat.OpenPath(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, st)
}

func (w *walker) enough() bool {
	return w.stopped != nil && w.stopped.Load() || w.early && w.disk.passed(w.usage)
}

// directory counts what lies in a directory, whose descriptor it closes, and in
// those below it. It holds no descriptor of one of which the last entry is being
// walked, so that a chain of any length takes one.
func (w *walker) directory(fd, depth int) error {
	for {
		below, err := w.entries(fd)
		if err != nil || len(below) == 0 {
			unix.Close(fd)
			return err
		}
		if depth > deepest {
			unix.Close(fd)
			return errTooDeep
		}
		for _, name := range below[:len(below)-1] {
			next, err := fsat.OpenDir(fd, name)
			w.closed = w.closed || errors.Is(err, unix.EACCES)
			if err == nil {
				if err := w.directory(next, depth+1); err != nil {
					unix.Close(fd)
					return err
				}
			}
		}
		next, err := fsat.OpenDir(fd, below[len(below)-1])
		unix.Close(fd)
		if err != nil {
			w.closed = w.closed || errors.Is(err, unix.EACCES)
			return nil // it has gone
		}
		fd = next
	}
}

// entries counts the entries of one directory and returns those that are
// directories.
func (w *walker) entries(fd int) (below []string, err error) {
	var buf [32 << 10]byte
	for {
		n, err := unix.ReadDirent(fd, buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return below, nil // it has gone
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			var st unix.Stat_t
			if err := lstat(fd, name, &st); err != nil {
				w.closed = w.closed || errors.Is(err, unix.EACCES)
				continue
			}
			directory := st.Mode&unix.S_IFMT == unix.S_IFDIR
			if !directory && st.Nlink > 1 {
				if w.links[st.Ino] {
					continue
				}
				w.links[st.Ino] = true
			}
			w.files++
			w.bytes += st.Blocks * 512
			if directory {
				below = append(below, name)
			}
			if w.enough() {
				return nil, nil
			}
		}
	}
}
