package limits

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// bomb forks for ever.
const bomb = `b() { b | b & }; while :; do b; sleep 0.01; done`

// owners are whose a workspace may be: root's boxes of an ordinary user's
// workspace run as that user, whom the kernel counts.
func owners() []int {
	if os.Geteuid() == 0 {
		return []int{0, 1000}
	}
	return []int{os.Geteuid()}
}

func TestPidsLimit(t *testing.T) {
	for _, owner := range owners() {
		t.Run("uid "+strconv.Itoa(owner), func(t *testing.T) {
			w := newWorld(t, lab.Strategy{})
			if err := os.Chown(w.Dir, owner, owner); err != nil {
				t.Fatal(err)
			}
			r := w.Box("--pids", "40", "--", "./act", "start", "200")
			w.Want(r, 0)
			n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
			if err != nil || n > 39 || n < 15 { // the actor has threads
				t.Errorf("%q processes were started under --pids 40", r.Stdout)
			}
		})
	}
}

// Without any flag, a fork bomb ends at the deadline, and soon.
func TestForkBomb(t *testing.T) {
	for _, owner := range owners() {
		t.Run("uid "+strconv.Itoa(owner), func(t *testing.T) {
			w := newWorld(t, lab.Strategy{})
			if err := os.Chown(w.Dir, owner, owner); err != nil {
				t.Fatal(err)
			}
			out, r := w.JSON("--timeout", "1s", "--", "sh", "-c", bomb)
			ended(t, w, out, r, "timeout", 124)
			t.Logf("uid %d: ended %.0f ms after the deadline", owner, out.DurationMS-1000)
			if out.DurationMS > 60_000 {
				t.Errorf("took %v ms under a deadline of 1 s", out.DurationMS)
			}
		})
	}
}

// withoutCgroups runs hutch where the cgroups are covered; only for root.
func withoutCgroups(t *testing.T, w *lab.World, args ...string) (lab.Outcome, lab.Result) {
	t.Helper()
	argv := []string{"-m", "sh", "-c", `mount -t tmpfs none /sys/fs/cgroup && exec "$@"`, "sh", lab.Hutch(t), "run", "--json"}
	cmd := exec.Command("unshare", append(argv, args...)...)
	cmd.Dir, cmd.Env = w.Dir, w.Environ()
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &stdout, &stderr, 5*time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer lab.Expect(cmd.Process.Pid)()
	timer := time.AfterFunc(lab.HardLimit, func() { cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait()
	r := lab.Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
	return lab.ParseOutcome(t, r), r
}

// The kernel does not count the processes of the host's root: without a cgroup
// something else must.
func TestRootWithoutCgroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an ordinary user: the other tests run without cgroups")
	}
	w := newWorld(t, lab.Strategy{})
	out, r := withoutCgroups(t, w, "--memory", "96M", "--", "./act", "anon", "300", "60")
	ended(t, w, out, r, "memory_exceeded", 137)
	if out.PeakMemorySource != "polled" {
		t.Errorf("peak_memory_source %q", out.PeakMemorySource)
	}
	out, r = withoutCgroups(t, w, "--memory", "96M", "--", "./act", "memfd", "300", "60")
	ended(t, w, out, r, "memory_exceeded", 137)
	out, r = withoutCgroups(t, w, "--cpu-time", "500ms", "--", "./act", "spin", "2", "3600000")
	ended(t, w, out, r, "cpu_exceeded", 124)
	out, r = withoutCgroups(t, w, "--pids", "40", "--timeout", "60s", "--", "./act", "start", "600")
	n, _ := strconv.Atoi(strings.TrimSpace(out.Stdout))
	switch {
	case len(out.Notes) == 0:
		t.Errorf("nothing says what counts the processes\n%v", r)
	case strings.Contains(out.Notes[0], "watch"):
		ended(t, w, out, r, "killed", 137)
	default:
		ended(t, w, out, r, "success", 0)
		if n > 340 || n < 40 {
			t.Errorf("%d processes were started under --pids 40", n)
		}
	}
	out, r = withoutCgroups(t, w, "--timeout", "1s", "--", "sh", "-c", bomb)
	ended(t, w, out, r, "timeout", 124)
	if out.DurationMS > 60_000 {
		t.Errorf("a fork bomb took %v ms under a deadline of 1 s", out.DurationMS)
	}
}
