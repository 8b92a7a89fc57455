package limits

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == actor {
		act(os.Args[1:])
		os.Exit(0)
	}
	lab.Main(m)
}

// newWorld makes a world whose workspace holds the actor.
func newWorld(t *testing.T, s lab.Strategy) *lab.World {
	t.Helper()
	w := lab.NewWith(t, s)
	putActor(t, w)
	return w
}

func putActor(t *testing.T, w *lab.World) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(w.Dir, actor), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
}

// each runs f with a world of each strategy.
func each(t *testing.T, f func(t *testing.T, w *lab.World)) {
	t.Helper()
	lab.Each(t, func(t *testing.T, w *lab.World) {
		putActor(t, w)
		f(t, w)
	})
}

// ended fails the test unless the box ended with a status.
func ended(t *testing.T, w *lab.World, out lab.Outcome, r lab.Result, status string, code int) {
	t.Helper()
	if out.Status != status || r.Code != code {
		t.Fatalf("status %q, exit %d; want %q, %d\n%v", out.Status, r.Code, status, code, r)
	}
}

// cgroups tells in which form this process can make cgroups with a memory
// limit, found out by making one: "v1", "v2" or "none".
func cgroups() string {
	own, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && strings.Contains(","+parts[1]+",", ",memory,") {
			if canMake("/sys/fs/cgroup/memory"+parts[2], "memory.limit_in_bytes") {
				return "v1"
			}
			return "none"
		}
		if len(parts) == 3 && parts[0] == "0" {
			for dir := "/sys/fs/cgroup" + parts[2]; strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = filepath.Dir(dir) {
				// As far up as hutch looks; what it may not change it does not get.
				os.WriteFile(dir+"/cgroup.subtree_control", []byte("+memory"), 0)
				if canMake(dir, "memory.max") && syscall.Access(dir+"/cgroup.procs", 2) == nil {
					return "v2"
				}
			}
		}
	}
	return "none"
}

func canMake(parent, file string) bool {
	dir, err := os.MkdirTemp(parent, "probe-")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	_, err = os.Stat(filepath.Join(dir, file))
	return err == nil
}

// source is who must have counted.
func source() string {
	if cgroups() == "none" {
		return "polled"
	}
	return "cgroup"
}

// watchGroups follows the files of the groups of one box from outside, until
// they are gone. The result holds the last reading of each.
func watchGroups(stop <-chan struct{}) <-chan map[string]string {
	last := make(chan map[string]string, 1)
	go func() {
		seen := map[string]string{}
		defer func() { last <- seen }()
		for {
			for _, pattern := range []string{"memory.max_usage_in_bytes", "cpuacct.usage", "memory.peak", "cpu.stat"} {
				var files []string
				for _, depth := range []string{"", "*/", "*/*/", "*/*/*/", "*/*/*/*/", "*/*/*/*/*/"} {
					found, _ := filepath.Glob("/sys/fs/cgroup/" + depth + "hutch-*/" + pattern)
					files = append(files, found...)
				}
				for _, file := range files {
					// Other tests run boxes too: the one with most of it is ours.
					if text, err := os.ReadFile(file); err == nil && (seen[pattern] == "" || number(string(text)) > number(seen[pattern])) {
						seen[pattern] = string(text)
					}
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return last
}

// number returns the first number of a file, or that after usage_usec.
func number(text string) (n int64) {
	scanner := bufio.NewScanner(strings.NewReader(text))
	scanner.Split(bufio.ScanWords)
	for scanner.Scan() {
		word := scanner.Text()
		if word == "usage_usec" {
			continue
		}
		for _, c := range word {
			if c < '0' || c > '9' {
				return n
			}
			n = n*10 + int64(c-'0')
		}
		return n
	}
	return n
}
