package jail

import (
	"os"
	"path/filepath"
	"testing"
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
