package supervise

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// proc reads the files of /proc into one buffer: what looks at thousands of
// processes must not make garbage for each.
type proc struct {
	buf []byte
}

// read returns the content of /proc/PID/name until the next call; nothing when
// there is none.
func (p *proc) read(pid int, name string) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for n := 0; ; {
		if n == len(p.buf) {
			p.buf = append(p.buf, make([]byte, max(4<<10, n))...)
		}
		more, err := unix.Read(fd, p.buf[n:])
		if more <= 0 || err != nil {
			return p.buf[:n]
		}
		n += more
	}
}

// tree yields the descendants of pid: all others of the box, since orphans fall
// to its PID 1.
func tree(pid int) func(func(int) bool) {
	return func(yield func(int) bool) {
		var p proc
		queue := []int{pid}
		for len(queue) > 0 {
			parent := strconv.Itoa(queue[0])
			queue = queue[1:]
			tasks, err := os.ReadDir("/proc/" + parent + "/task")
			if err != nil {
				continue
			}
			for _, task := range tasks {
				tid, _ := strconv.Atoi(task.Name())
				for field := range bytes.FieldsSeq(p.read(tid, "task/"+task.Name()+"/children")) {
					child, err := strconv.Atoi(string(field))
					if err != nil {
						continue
					}
					queue = append(queue, child)
					if !yield(child) {
						return
					}
				}
			}
		}
	}
}

// processorTime returns what a process used, and what the descendants used that
// it waited for.
func (p *proc) processorTime(pid int) (own, waited time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 (proc_pid_stat(5))
	text := p.read(pid, "stat")
	// The name, field 2, may hold anything but ends at the last ")".
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return 0, 0
	}
	var ticks [4]int64 // utime, stime, cutime, cstime
	for i := range ticks {
		ticks[i], _ = strconv.ParseInt(string(fields[11+i]), 10, 64)
	}
	return time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick
}

// cpuTime adds up the processor time of the living descendants of pid and of
// what they waited for, as far as a millisecond of looking goes.
func cpuTime(pid int) time.Duration {
	var p proc
	var total time.Duration
	began := time.Now()
	for child := range tree(pid) {
		own, waited := p.processorTime(child)
		total += own + waited
		if time.Since(began) > time.Millisecond {
			break
		}
	}
	return total
}

// resident is the memory of one process, in bytes, what it shares counted
// proportionally (PSS).
type resident struct {
	own     int64 // anonymous memory and files
	shared  int64 // of tmpfs, memfds and other shared memory
	swapped int64
}

func (p *proc) resident(pid int) resident {
	if text := p.read(pid, "smaps_rollup"); len(text) > 0 {
		shared := keyed(text, "Pss_Shmem") << 10 // since Linux 5.9
		return resident{keyed(text, "Pss")<<10 - shared, shared, keyed(text, "SwapPss") << 10}
	}
	// Not dumpable: its resident set is all one may know.
	fields := bytes.Fields(p.read(pid, "statm"))
	if len(fields) < 2 {
		return resident{}
	}
	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return resident{own: pages * int64(os.Getpagesize())}
}

// keyed returns the number after a name at the beginning of a line.
func keyed(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
		if !ok {
			continue
		}
		if fields := bytes.Fields(bytes.TrimPrefix(rest, []byte(":"))); len(fields) > 0 && len(rest) > 0 && (rest[0] == ' ' || rest[0] == ':') {
			n, _ := strconv.ParseInt(string(fields[0]), 10, 64)
			return n
		}
	}
	return 0
}
