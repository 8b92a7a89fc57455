package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Census counts what the machine holds of the kinds of thing that a run could
// leave behind. Keys are readable sentences.
type Census map[string]bool

// TakeCensus looks at mounts and loop devices that mention one of the paths,
// at cgroups named hutch*, and at every live process that descends from this
// one. Processes count by descent because a box hides its paths and its
// environment; BecomeReaper keeps orphans in the family.
func TakeCensus(paths ...string) Census {
	c := Census{}
	mentions := func(s string) bool {
		return slices.ContainsFunc(paths, func(p string) bool { return p != "" && strings.Contains(s, p) })
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if mentions(line) {
			fields := strings.Fields(line)
			c[fmt.Sprintf("mount %s at %s", fields[0], fields[4])] = true
		}
	}
	backings, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backings {
		if file, _ := os.ReadFile(b); mentions(string(file)) {
			c["loop device of "+strings.TrimSpace(string(file))] = true
		}
	}
	ours := descendants()
	for _, dir := range hutchCgroups() {
		if !inhabitedByOthers(dir, ours) {
			c["cgroup "+dir] = true
		}
	}
	for _, p := range ours {
		c[p.String()] = true
	}
	return c
}

// hutchCgroups finds the directories named hutch* in the cgroup hierarchies,
// four levels down: a delegated subtree of systemd's lies that deep.
func hutchCgroups() []string {
	var found []string
	for _, pattern := range []string{"*", "*/*", "*/*/*", "*/*/*/*", "*/*/*/*/*"} {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/" + pattern + "/hutch*")
		for _, d := range dirs {
			if st, err := os.Stat(d); err == nil && st.IsDir() {
				found = append(found, d)
			}
		}
	}
	return found
}

// inhabitedByOthers reports whether a cgroup is that of a box which another test
// process on this machine is running.
func inhabitedByOthers(dir string, ours []process) bool {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	inside := strings.Fields(string(text))
	if err != nil || len(inside) == 0 {
		return false
	}
	for _, p := range ours {
		if slices.Contains(inside, strconv.Itoa(p.pid)) {
			return false
		}
	}
	return true
}

type process struct {
	pid, ppid int
	state     byte
	name      string
}

func (p process) String() string {
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
	return fmt.Sprintf("process %d (%s) %s", p.pid, p.name, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))
}

func processes() map[int]process {
	all := map[int]process{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		stat, err := os.ReadFile(d + "/stat")
		if err != nil {
			continue
		}
		// pid (comm) state ppid ...; comm may hold anything but ends at
		// the last parenthesis.
		open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if open < 0 || end < open {
			continue
		}
		rest := strings.Fields(string(stat[end+1:]))
		pid, _ := strconv.Atoi(filepath.Base(d))
		ppid, _ := strconv.Atoi(rest[1])
		all[pid] = process{pid: pid, ppid: ppid, state: rest[0][0], name: string(stat[open+1 : end])}
	}
	return all
}

// expected holds the pids of children that a test runs on purpose.
var expected sync.Map

// Expect keeps a child of a test, and what descends from it, out of the census
// until the returned function is called.
func Expect(pid int) (done func()) {
	expected.Store(pid, true)
	return func() { expected.Delete(pid) }
}

// descendants lists the live processes below this one, those below an
// expected child excluded. A zombie is not alive.
func descendants() []process {
	all := processes()
	self := os.Getpid()
	var found []process
	for pid, p := range all {
		if p.state == 'Z' || p.state == 'X' {
			continue
		}
		for at := p; ; {
			if _, ok := expected.Load(at.pid); ok {
				break
			}
			if at.ppid == self {
				found = append(found, all[pid])
				break
			}
			next, ok := all[at.ppid]
			if !ok {
				break
			}
			at = next
		}
	}
	slices.SortFunc(found, func(a, b process) int { return a.pid - b.pid })
	return found
}

// BecomeReaper makes orphans among this process's descendants its children, so
// that what outlives a hutch that was killed is still found.
func BecomeReaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// Leftovers returns what is there now and was not in before. It looks again
// until nothing is, or until wait has passed: a thing counts only if it is
// there every time, so what a test beside this one makes and removes does not.
func Leftovers(before Census, wait time.Duration, paths ...string) []string {
	deadline := time.Now().Add(wait)
	var left Census
	for {
		now := TakeCensus(paths...)
		next := Census{}
		for what := range now {
			if !before[what] && (left == nil || left[what]) {
				next[what] = true
			}
		}
		left = next
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	var out []string
	for what := range left {
		out = append(out, what)
	}
	slices.Sort(out)
	return out
}
