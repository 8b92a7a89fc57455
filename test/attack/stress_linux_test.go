package attack

import (
	"math/rand"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// TestStress runs whole classes of stress-ng in boxes with limits: the host is
// as it was, and its kernel said nothing.
func TestStress(t *testing.T) {
	if _, err := exec.LookPath("stress-ng"); err != nil {
		t.Fatal("no stress-ng (make deps)")
	}
	all, seconds := []string{"os", "filesystem", "memory", "pipe"}, "10"
	if !lab.Proof() {
		seconds = "2"
	}
	for _, u := range whos() {
		classes := all
		if !lab.Proof() { // one of them
			classes = all[rand.Intn(len(all)):][:1]
		}
		for _, class := range classes {
			t.Run(u.name+"/"+class, func(t *testing.T) {
				st := newStage(t, lab.Strategies(t)[0], u)
				st.remember()
				before := oopses()
				args := append([]string{"run", "--memory", "256M", "--pids", "400", "--timeout", "60s"}, u.args...)
				// All stressors of the class at once, one of each.
				r := st.Run(append(args, "--", "stress-ng", "--class", class, "--all", "1", "--timeout", seconds, "--vm-bytes", "16M", "--hdd-bytes", "1M", "--oom-avoid", "--no-rand-seed", "--metrics-brief", "--temp-path", ".")...)
				said := r.Stdout + r.Stderr
				if !strings.Contains(said, "dispatching hogs") {
					t.Errorf("it did not run: %v", r)
				}
				for _, d := range st.damage() {
					t.Error(d)
				}
				if after := oopses(); after != before {
					t.Errorf("the kernel says:\n%s", strings.TrimPrefix(after, before))
				}
			})
		}
	}
	// What it names its files, beside the workspace.
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		if left, _ := filepath.Glob(filepath.Join(dir, "stress-ng-*")); len(left) > 0 {
			t.Errorf("left in %s: %q", dir, left)
		}
	}
}

// oopses returns what the kernel has said of its own faults, where that can be
// read.
func oopses() string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var found strings.Builder
	buf := make([]byte, 8192)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EPIPE {
			continue // overwritten meanwhile
		}
		if err != nil || n <= 0 {
			return found.String()
		}
		for _, sign := range []string{"BUG:", "Oops", "WARNING:", "general protection", "kernel panic", "KASAN", "UBSAN"} {
			if strings.Contains(string(buf[:n]), sign) {
				found.Write(buf[:n])
				break
			}
		}
	}
}
