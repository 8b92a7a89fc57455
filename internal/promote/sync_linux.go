package promote

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

const (
	// Up to fewFiles an fsync each, all at once, is not the dearer way. The
	// figure comes from btrfs, where the fsync of a file with a new link
	// commits the whole file system, as a syncfs does once.
	fewFiles       = 8
	flushers       = 8   // fsyncs under way at a time: the file system merges them
	microsPerFile  = 200 // what an fsync costs then
	dirtyKBPerMsec = 400 // how fast dirty pages of others go out under syncfs
)

// The barriers of a promotion: after each, what came before it is on the disk.
const (
	stagedBarrier  = "staged"  // B1: slots and journal, before the commit point
	journalBarrier = "journal" // the journal's part of B1
	commitBarrier  = "commit"  // the journal's name, before any step
	appliedBarrier = "applied" // B3: all steps, before the journal is done
	doneBarrier    = "done"    // before success is reported
)

// flush makes the named files and directories beneath dir durable, by an
// fsync of each or by one syncfs, whichever should be cheaper. An extra
// descriptor is flushed with them.
func flush(dir int, names []string, extra ...int) error {
	if len(names)+len(extra) > fewFiles && dirtyKB()/dirtyKBPerMsec < int64(len(names))*microsPerFile/1000 {
		return syncfs(dir)
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		slot = make(chan struct{}, flushers)
	)
	start := func(fd int, owned bool) {
		// The fault comes before the goroutine, so that tests meet the
		// same points in the same order.
		if err := trip("fsync"); err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
			if owned {
				unix.Close(fd)
			}
			return
		}
		slot <- struct{}{}
		wg.Go(func() {
			err := fsat.Fsync(fd)
			if owned {
				unix.Close(fd)
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
			<-slot
		})
	}
	for _, fd := range extra {
		start(fd, false)
	}
	t := newTree(dir)
	defer t.close()
	whole := false
	for _, name := range names {
		fd, err := openToFlush(t, name)
		if errors.Is(err, unix.EACCES) {
			whole = true // not readable by its owner
			continue
		}
		if err != nil {
			errs = append(errs, err)
			break
		}
		start(fd, true)
	}
	wg.Wait()
	if whole {
		errs = append(errs, syncfs(dir))
	}
	return errors.Join(errs...)
}

func openToFlush(t *tree, name string) (int, error) {
	if name == "." {
		return fsat.OpenDir(t.root, ".")
	}
	dir, last, err := t.parent(name)
	if err != nil {
		return -1, err
	}
	return fsat.Open(dir, last, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// dirtyKB is how much the system has still to write, all file systems taken
// together: syncfs may have to wait for all of it. Tests replace it.
var dirtyKB = readDirtyKB

func readDirtyKB() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), "\nDirty:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kb, _ := strconv.ParseInt(fields[0], 10, 64)
	return kb
}
