package jail

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMountedCgroup(t *testing.T) {
	const mounts = `22 27 0:21 / /proc rw,relatime - proc proc rw
30 25 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 /docker/abc /sys/fs/cgroup/pids ro,relatime - cgroup cgroup rw,pids
33 25 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	for _, c := range []struct{ fstype, controller, path, want string }{
		{"cgroup", "memory", "/user/x", "/sys/fs/cgroup/memory/user/x"},
		{"cgroup", "cpu", "/", "/sys/fs/cgroup/cpu,cpuacct"},
		{"cgroup", "pids", "/docker/abc/sub", "/sys/fs/cgroup/pids/sub"},
		{"cgroup2", "", "/user.slice/a", "/sys/fs/cgroup/unified/user.slice/a"},
		{"cgroup", "hugetlb", "/", ""},
	} {
		got, _, err := mountedCgroup(mounts, c.fstype, c.controller, c.path)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s %s %s: %q, %v; want %q", c.fstype, c.controller, c.path, got, err, c.want)
		}
	}
}

func TestKey(t *testing.T) {
	const events = "low 0\nhigh 3\noom 2\noom_kill 1\noom_group_kill 7\n"
	for name, want := range map[string]int64{"oom_kill": 1, "oom": 2, "max": 0} {
		if got := key(events, name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// What the kernel does of it is tested in guests (test/vm).
func TestGroupsThatHoldProcessesHaveNoChildren(t *testing.T) {
	for _, c := range []struct {
		procs, kind string
		want        bool
	}{{"", "domain\n", true}, {"12\n", "domain\n", false}, {"12\n", "", true}} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(c.procs), 0o644); err != nil {
			t.Fatal(err)
		}
		if c.kind != "" { // the root has none
			if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte(c.kind), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := mayHaveChildren(dir); got != c.want {
			t.Errorf("processes %q, type %q: %v", c.procs, c.kind, got)
		}
	}
}

func TestFreeze(t *testing.T) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	_, top, err := mountedCgroup(string(mounts), "cgroup2", "", "/")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("as root, where there is cgroup v2")
	}
	dir := filepath.Join(top, fmt.Sprintf("%sfreeze-%d", groupName, os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	group := &Cgroup{v2: dir, oom: -1}
	busy := exec.Command("sh", "-c", "echo 0 >$0/cgroup.procs; while :; do :; done", dir)
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		group.Thaw()
		busy.Process.Kill()
		busy.Wait()
		for range 100 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Error("the group was left")
	})
	used := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", busy.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(string(text))[13:15], " ")
	}
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")); len(procs) > 0 {
			break
		} else if time.Since(start) > 30*time.Second {
			t.Fatal("it did not join")
		}
	}
	if ok, err := group.Freeze(30 * time.Second); !ok || err != nil {
		t.Fatal(ok, err)
	}
	before := used()
	time.Sleep(100 * time.Millisecond)
	if after := used(); after != before {
		t.Errorf("it ran while it was frozen: %s, %s", before, after)
	}
	group.Thaw()
	for start := time.Now(); used() == before; time.Sleep(time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatal("it did not go on")
		}
	}
	var none *Cgroup
	if ok, _ := none.Freeze(time.Second); ok {
		t.Error("frozen, without a group")
	}
}
