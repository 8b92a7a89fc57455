//go:build vm

package inside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// hold takes so many megabytes, and keeps them until its reader ends.
func hold(mb int) string {
	return fmt.Sprintf("dd if=/dev/zero bs=%dM count=1 2>/dev/null | sleep 30", mb)
}

func TestMemory(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	out, r := w.JSON("--commit", "--memory", "64M", "--", "sh", "-c", "echo x > new.txt; "+hold(100))
	w.Want(r, 137)
	if out.Status != "memory_exceeded" {
		t.Errorf("status %q", out.Status)
	}
	want := "polled"
	if peak(t) {
		want = "cgroup"
		if out.PeakMemoryMB == nil || *out.PeakMemoryMB > 64*1.05 || *out.PeakMemoryMB < 60 {
			t.Errorf("peak_memory_mb %v of 64", out.PeakMemoryMB)
		}
	}
	if out.PeakMemorySource != want {
		t.Errorf("peak_memory_source %q, want %q", out.PeakMemorySource, want)
	}
	wantMissing(t, out, !memory())
	w.Untouched(before)
}

// TestSwap: the guest has swap, which must not stretch the limit.
func TestSwap(t *testing.T) {
	w := lab.New(t)
	if swaps, err := os.ReadFile("/proc/swaps"); err != nil || strings.Count(string(swaps), "\n") < 2 {
		t.Fatalf("this guest has no swap: %s %v", swaps, err)
	}
	if !memory() {
		t.Skip("no cgroup is to be had here, and nothing else knows of swap")
	}
	out, r := w.JSON("--memory", "40M", "--timeout", "100s", "--", "sh", "-c", hold(70))
	w.Want(r, 137)
	if out.Status != "memory_exceeded" {
		t.Errorf("status %q", out.Status)
	}
}

// forks starts processes until the kernel refuses one, which ends this shell,
// and says how many it has.
const forks = `i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); echo $i; done`

// TestPids asks for this limit alone. A controller for threads can be had in a
// group that holds processes, at the price that no group below it can; and
// before Linux 5.14 a user namespace has no count of its own.
func TestPids(t *testing.T) {
	w := lab.New(t)
	for range 20 { // of the same user, outside: they do not count
		other := exec.Command("sleep", "300")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		done := lab.Expect(other.Process.Pid)
		defer func() { _ = other.Process.Kill(); _ = other.Wait(); done() }()
	}
	out, _ := w.JSON("--pids", "20", "--", "sh", "-c", forks)
	said := strings.Fields(out.Stdout)
	if len(said) > 20 || len(said) < 8 {
		t.Errorf("%d processes were started under --pids 20: %s", len(said), out.Stderr)
	}
}

func TestMissing(t *testing.T) {
	w := lab.New(t)
	for _, c := range []struct {
		flags []string
		given bool
	}{
		{nil, true},
		{[]string{"--memory", "200M"}, memory()},
		// Since Linux 5.14 a user namespace counts its own processes.
		{[]string{"--pids", "50"}, cgroups() || since(t, 5, 14)},
		{[]string{"--cpus", "1"}, cgroups()},
	} {
		out, r := w.JSON(append(c.flags, "--", "true")...)
		w.Want(r, 0)
		wantMissing(t, out, !c.given)
	}
	r := w.Box("--memory", "200M", "--require", "limits", "--", "echo", "ran")
	if want := map[bool]int{true: 0, false: 125}[memory()]; r.Code != want {
		t.Errorf("--require limits: exit %d, want %d: %v", r.Code, want, r)
	}
}

// group waits for the cgroup of the box that runs.
func group(t *testing.T) string {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		found := ""
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "hutch-") {
				found = path
			}
			return nil
		})
		if found != "" {
			return found
		}
	}
	t.Fatal("the box has no cgroup")
	return ""
}

func number(text, key string) (float64, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), key); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return n, err == nil
		}
	}
	return 0, false
}

// TestCounts holds the outcome's peak and processor time against
// what the kernel's own counters of the group say while it still exists.
func TestCounts(t *testing.T) {
	if !cgroups() {
		t.Skip("no cgroup is to be had here")
	}
	w := lab.New(t)
	run := w.Start(lab.Options{}, "run", "--json", "--memory", "300M", "--pids", "20", "--", "sh", "-c",
		"sleep 3; dd if=/dev/zero bs=80M count=1 of=/dev/null; timeout 2 sh -c 'while :; do :; done'; sleep 2")
	dir := group(t)
	// Making the box is counted by the group, and is not the command's: made is
	// what was counted when the command first slept.
	var memory, cpu, made float64
	changed, counted := time.Now(), false
	for {
		stat, err := os.ReadFile(dir + "/cpu.stat")
		if err != nil {
			break // it is gone, and the box with it
		}
		if n, ok := number(string(stat), "usage_usec"); ok {
			if n/1000 != cpu {
				cpu, changed = n/1000, time.Now()
			} else if made == 0 && time.Since(changed) > 800*time.Millisecond {
				made = cpu
			}
		}
		if text, err := os.ReadFile(dir + "/memory.peak"); err == nil {
			if n, ok := number(string(text), ""); ok {
				memory, counted = n/(1<<20), true
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	r := run.Wait()
	out := lab.ParseOutcome(t, r)
	within := func(what string, got, least, most float64) {
		said := fmt.Sprintf("%s: %.1f, the cgroup counted %.1f to %.1f", what, got, least, most)
		if least == 0 || got < least*0.95 || got > most*1.05 {
			t.Error(said)
			return
		}
		t.Log(said)
	}
	within("cpu_ms", out.CPUMS, cpu-made, cpu)
	if peak(t) {
		if !counted {
			t.Fatal("no memory.peak was read")
		}
		if out.PeakMemorySource != "cgroup" || out.PeakMemoryMB == nil {
			t.Fatalf("peak_memory_source %q", out.PeakMemorySource)
		}
		within("peak_memory_mb", *out.PeakMemoryMB, memory, memory)
	}
}
