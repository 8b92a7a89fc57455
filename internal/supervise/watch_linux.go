package supervise

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
)

// watcher looks now and then at what the kernel does not bound for a box. It
// runs in a goroutine of its own: a look at hundreds of processes takes long on
// a machine that they keep busy, and the deadline must not wait for it.
type watcher struct {
	Limits  Limits
	Cgroup  *jail.Cgroup
	pid1    int
	private int           // directory on the box's own tmpfs; -1
	layer   int           // the same of a layer in RAM; -1
	making  time.Duration // processor time that making the box took, as far as is known
	over    func(End)
	// Of a box that lives on; nil for one command. begin is called before each
	// look, seen is told what the box holds in memory, and rest tells how long
	// the next look has to wait at least: less than 0, there is none.
	begin func()
	seen  func(bytes int64)
	more  func() time.Duration
	rest  func() time.Duration
	hurry chan struct{} // another command has started
	// Whoever looks at the disk holds it; nil where nobody else does.
	diskMu *sync.Mutex

	stop    chan struct{}
	done    chan struct{}
	stopped atomic.Bool

	proc     proc
	shmem    int64 // of the whole machine, when the watch began
	interval time.Duration
	peak     int64         // bytes; 0: the cgroup knows, or nobody
	cpu      time.Duration // at the last look
}

const (
	firstLook   = 4 * time.Millisecond
	longestLook = 250 * time.Millisecond
	limitedLook = 20 * time.Millisecond
	// share bounds what looking may cost: a twentieth of a processor.
	share = 20
)

// look is one thing to watch. It returns how long it may wait for the next time.
type look struct {
	take func() time.Duration
	due  time.Time
}

func (w *watcher) run() {
	defer close(w.done)
	now := time.Now()
	w.interval, w.shmem = firstLook, machineShmem()
	var looks []look
	_, counted := w.Cgroup.CPUTime()
	if _, kept := w.Cgroup.PeakMemory(); !kept || !counted {
		looks = append(looks, look{sparing(w.processes), now})
	}
	if w.Limits.CPU > 0 && counted {
		looks = append(looks, look{w.processor, now})
	}
	if w.Limits.Disk != nil {
		looks = append(looks, look{w.disk, now})
	}
	if w.more != nil {
		looks = append(looks, look{w.more, now})
	}
	for len(looks) > 0 {
		next := slices.MinFunc(looks, func(a, b look) int { return a.due.Compare(b.due) }).due
		select {
		case <-w.stop:
			return
		case <-w.hurry:
			w.interval = firstLook
			for i := range looks {
				looks[i].due = time.Now().Add(firstLook)
			}
			continue
		case <-time.After(time.Until(next)):
		}
		if w.begin != nil {
			w.begin()
		}
		for i := range looks {
			if looks[i].due.After(time.Now()) || w.stopped.Load() {
				continue
			}
			looks[i].due = time.Now().Add(looks[i].take())
		}
		if w.rest == nil {
			continue
		}
		wait := w.rest()
		if wait < 0 {
			return
		}
		for i := range looks {
			if at := time.Now().Add(wait); looks[i].due.Before(at) {
				looks[i].due = at
			}
		}
	}
}

// sparing bounds what a look costs by looking less often.
func sparing(take func() time.Duration) func() time.Duration {
	return func() time.Duration {
		began := time.Now()
		wait := take()
		return max(wait, share*time.Since(began))
	}
}

// end stops the watch and waits for it.
func (w *watcher) end() {
	w.stopped.Store(true)
	close(w.stop)
	<-w.done
}

// processes adds up what the processes of the box take, where no cgroup does.
// Peaks are seen only as fine as this looks. ru_maxrss would be wrong by a
// factor: it is the largest single process, and a vforked child inherits its
// parent's.
func (w *watcher) processes() time.Duration {
	longest := longestLook
	limited := w.Limits.Memory > 0
	if limited || w.Limits.CPU > 0 || w.Limits.Tasks > 0 {
		longest = limitedLook
	}
	w.interval = min(w.interval*2, longest)

	var all resident
	var cpu time.Duration
	var tasks int64
	total, counted := w.Cgroup.Memory()
	for pid := range tree(w.pid1) {
		if w.stopped.Load() {
			break // what was seen so far, it took
		}
		if tasks++; w.Limits.Tasks > 0 && tasks > w.Limits.Tasks {
			w.over(TooManyTasks)
			return w.interval
		}
		if !counted {
			r := w.proc.resident(pid)
			all.own += r.own
			all.shared += r.shared
			all.swapped += r.swapped
		}
		own, waited := w.proc.processorTime(pid)
		cpu += own + waited
		if limited && all.own > w.Limits.Memory {
			break
		}
	}
	if !counted {
		total = all.own + w.sharedMemory(all.shared)
	}
	w.peak = max(w.peak, total)
	if w.seen != nil {
		w.seen(total)
	}
	if limited && (total > w.Limits.Memory || all.swapped > w.Limits.Swap) && !w.stopped.Load() {
		w.over(OutOfMemory)
	}
	if _, counted := w.Cgroup.CPUTime(); !counted {
		_, waited := w.proc.processorTime(w.pid1)
		w.cpu = max(w.cpu, cpu+waited)
		if w.Limits.CPU > 0 {
			return min(w.interval, w.left(w.cpu))
		}
	}
	return w.interval
}

// sharedMemory estimates the box's shared memory, of which mapped is what its
// processes map: the files of its tmpfs, and memfds, are memory also when
// nobody maps them.
func (w *watcher) sharedMemory(mapped int64) int64 {
	files := onFileSystem(w.private) + onFileSystem(w.layer)
	if w.Limits.Memory <= 0 {
		return max(mapped, files)
	}
	grown := machineShmem() - w.shmem
	if unknown := grown - mapped - files; unknown > w.Limits.Memory/8 {
		files += w.memfds()
	}
	// What is both mapped and a file counts twice in the sum; the machine's own
	// growth says which of the two it is, where nobody else is at work.
	return min(mapped+files, max(mapped, files, grown))
}

// memfds adds up the files in memory that the processes of the box hold open.
func (w *watcher) memfds() int64 {
	var total int64
	seen := map[uint64]bool{}
	for pid := range tree(w.pid1) {
		if w.stopped.Load() {
			break
		}
		dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			var st unix.Stat_t
			target, err := os.Readlink(dir + fd.Name())
			if err == nil && strings.HasPrefix(target, "/memfd:") && unix.Stat(dir+fd.Name(), &st) == nil && !seen[st.Ino] {
				seen[st.Ino] = true
				total += st.Blocks * 512
			}
		}
	}
	return total
}

// onFileSystem returns how much the file system of a directory holds.
func onFileSystem(fd int) int64 {
	var st unix.Statfs_t
	if fd < 0 || unix.Fstatfs(fd, &st) != nil {
		return 0
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

func machineShmem() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return keyed(text, "Shmem") << 10
}

// processor reads the processor time from the cgroup.
func (w *watcher) processor() time.Duration {
	used, _ := w.Cgroup.CPUTime()
	return w.left(used - w.making)
}

// left ends the box that used up its processor time, and returns how long one
// with processors of its own could go on.
func (w *watcher) left(used time.Duration) time.Duration {
	left := w.Limits.CPU - used
	if left <= 0 {
		w.over(OutOfTime)
	}
	return max(left/time.Duration(runtime.NumCPU()), 2*time.Millisecond)
}

// disk looks at what the layers take of the host's file system.
func (w *watcher) disk() time.Duration {
	if w.diskMu != nil {
		w.diskMu.Lock()
	}
	over, wait := w.Limits.Disk.look(w.pid1, &w.stopped)
	if w.diskMu != nil {
		w.diskMu.Unlock()
	}
	if over {
		w.over(OutOfDisk)
	}
	return wait
}
