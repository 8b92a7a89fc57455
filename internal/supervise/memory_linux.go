package supervise

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"
)

// memoryPoller adds up the proportional set size of a box's processes, now and
// then: what stands in where no cgroup counts. It sees peaks only as fine as
// it polls, and says so ("polled"). ru_maxrss would be wrong by a factor: it is
// the largest single process, and a vforked child inherits its parent's.
type memoryPoller struct {
	next     time.Time
	interval time.Duration
	limited  bool
	peak     int64
}

const (
	firstPoll   = 4 * time.Millisecond
	longestPoll = 250 * time.Millisecond
	limitedPoll = 20 * time.Millisecond
)

func (m *memoryPoller) begin(now time.Time, limited bool) {
	m.limited = limited
	m.interval = firstPoll
	m.next = now.Add(m.interval)
}

// poll returns the bytes the tree below pid 1 of the box uses now.
func (m *memoryPoller) poll(pid1 int) int64 {
	start := time.Now()
	var total int64
	for pid := range tree(pid1) {
		total += proportional(pid)
	}
	m.peak = max(m.peak, total)
	longest := longestPoll
	if m.limited {
		longest = limitedPoll
	}
	m.interval = min(m.interval*2, longest)
	// Never more than a twentieth of a processor.
	m.next = time.Now().Add(max(m.interval, 20*time.Since(start)))
	return total
}

// tree yields the descendants of pid: all others of the box, since orphans fall
// to its PID 1.
func tree(pid int) func(func(int) bool) {
	return func(yield func(int) bool) {
		queue := []int{pid}
		for len(queue) > 0 {
			pid := queue[0]
			queue = queue[1:]
			tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
			if err != nil {
				continue
			}
			for _, task := range tasks {
				text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + task.Name() + "/children")
				if err != nil {
					continue
				}
				for field := range strings.FieldsSeq(string(text)) {
					child, err := strconv.Atoi(field)
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

// cpuTime adds up the processor time of the living descendants of pid and of
// what they waited for, as far as a millisecond of looking goes.
func cpuTime(pid int) time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 (proc_pid_stat(5))
	var ticks int64
	began := time.Now()
	for child := range tree(pid) {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat")
		if err != nil {
			continue
		}
		// The name, field 2, may hold anything but ends at the last ")".
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 15 {
			continue
		}
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
		if time.Since(began) > time.Millisecond {
			break
		}
	}
	return time.Duration(ticks) * tick
}

func proportional(pid int) int64 {
	dir := "/proc/" + strconv.Itoa(pid)
	if text, err := os.ReadFile(dir + "/smaps_rollup"); err == nil {
		for line := range bytes.Lines(text) {
			if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
				kb, _ := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
				return kb << 10
			}
		}
	}
	// Not dumpable: its resident set is all one may know.
	text, err := os.ReadFile(dir + "/statm")
	if err != nil {
		return 0
	}
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}
