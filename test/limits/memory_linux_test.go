package limits

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

func TestMemoryLimit(t *testing.T) {
	each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, r := w.JSON("--commit", "--memory", "100M", "--", "sh", "-c", ": > new; ./act anon 400 60")
		ended(t, w, out, r, "memory_exceeded", 137)
		if out.PeakMemorySource != source() {
			t.Errorf("peak_memory_source %q, want %q", out.PeakMemorySource, source())
		}
		w.Untouched(before)
	})
}

// What kind of memory a box takes makes no difference to its limit, nor to what
// lives beside it.
func TestMemoryBombs(t *testing.T) {
	canary := exec.Command("sleep", "600")
	if err := canary.Start(); err != nil {
		t.Fatal(err)
	}
	defer lab.Expect(canary.Process.Pid)()
	defer func() { canary.Process.Kill(); canary.Wait() }()
	for _, bomb := range []struct {
		name    string
		command string
		kernel  bool // nobody but a cgroup counts it
	}{ // the pipes of one user are at most 64 MB large
		{"anonymous", "./act anon 300 60", false},
		{"many maps", "./act small 300 60", false},
		{"tmp", "./act file /tmp/f 300 60", false},
		{"dev shm", "./act file /dev/shm/f 300 60", false},
		{"memfd", "./act memfd 300 60", false},
		{"four processes", "for i in 1 2 3 4; do ./act anon 40 60 & done; wait", false},
		{"pipes", "./act pipes 60 60", true},
	} {
		t.Run(bomb.name, func(t *testing.T) {
			if bomb.kernel && cgroups() == "none" {
				// Held by the number of descriptors and, at last, by the
				// kernel's choice of a box before the host: see README.
				t.Skip("no cgroup here, and nothing else counts it")
			}
			w := newWorld(t, lab.Strategy{})
			limit := "96M"
			if bomb.kernel {
				limit = "40M"
			}
			out, r := w.JSON("--memory", limit, "--timeout", "100s", "--", "sh", "-c", bomb.command)
			ended(t, w, out, r, "memory_exceeded", 137)
			if text, err := os.ReadFile("/proc/" + strconv.Itoa(canary.Process.Pid) + "/stat"); err != nil || strings.Contains(string(text), ") Z ") {
				t.Error("a process beside the box died")
			}
		})
	}
}

func TestPageCacheIsNoMemoryOfTheBox(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	out, r := w.JSON("--memory", "96M", "--", "./act", "file", "f", "300", "0")
	ended(t, w, out, r, "success", 0)
}

func TestMemoryWithinTheLimit(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	// 8 GB of addresses are no memory.
	out, r := w.JSON("--memory", "300M", "--", "./act", "anon", "100", "1")
	ended(t, w, out, r, "success", 0)
	if out.PeakMemoryMB == nil || *out.PeakMemoryMB < 100 || *out.PeakMemoryMB > 130 {
		t.Errorf("peak_memory_mb %v after 100 MB were taken", out.PeakMemoryMB)
	}
}

func TestSwapLimit(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	// With or without swap on this machine, what is over both together ends.
	out, r := w.JSON("--memory", "64M", "--swap", "32M", "--", "./act", "anon", "300", "60")
	ended(t, w, out, r, "memory_exceeded", 137)
}

func TestPeakAndProcessorTimeAreThoseOfTheCgroup(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	stop := make(chan struct{})
	last := watchGroups(stop)
	out, r := w.JSON("--memory", "1G", "--", "sh", "-c", "./act anon 300 1; ./act spin 3 500")
	close(stop)
	seen := <-last
	ended(t, w, out, r, "success", 0)
	near := func(what string, got, want float64) {
		t.Helper()
		if got < want*0.95 || got > want*1.05 {
			t.Errorf("%s is %.1f, and %.1f was counted beside it", what, got, want)
		}
	}
	kind := cgroups()
	t.Logf("cgroups: %s; %v", kind, seen)
	if out.PeakMemoryMB == nil {
		t.Fatal("no peak_memory_mb")
	}
	burnt, err := strconv.ParseFloat(strings.TrimSpace(out.Stdout), 64)
	if err != nil {
		t.Fatal(err)
	}
	if out.CPUMS < burnt*0.95 {
		t.Errorf("cpu_ms is %.1f, and a part of it took %.1f", out.CPUMS, burnt)
	}
	switch kind {
	case "none":
		if out.PeakMemorySource != "polled" || out.CPUSource != "polled" {
			t.Errorf("sources %q and %q", out.PeakMemorySource, out.CPUSource)
		}
		near("peak_memory_mb", *out.PeakMemoryMB, 306) // the actor's own included
		return
	case "v1":
		near("peak_memory_mb", *out.PeakMemoryMB, float64(number(seen["memory.max_usage_in_bytes"]))/(1<<20))
		near("cpu_ms", out.CPUMS, float64(number(seen["cpuacct.usage"]))/1e6)
	case "v2":
		near("peak_memory_mb", *out.PeakMemoryMB, float64(number(seen["memory.peak"]))/(1<<20))
		near("cpu_ms", out.CPUMS, float64(number(seen["cpu.stat"]))/1e3)
	}
	if out.PeakMemorySource != "cgroup" || out.CPUSource != "cgroup" {
		t.Errorf("sources %q and %q", out.PeakMemorySource, out.CPUSource)
	}
}

func TestMissingLimitsAreNamed(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	out, _ := w.JSON("--memory", "200M", "--", "true")
	if got := slices.Contains(out.Missing, "limits"); got == (cgroups() != "none") {
		t.Errorf("missing %q; cgroups: %s", out.Missing, cgroups())
	}
}

// A hutch that was killed leaves its cgroups; the next one that makes some takes
// them away, and gc does, but never those of a box that runs.
func TestGroupsOfTheKilledAreRemoved(t *testing.T) {
	if cgroups() == "none" {
		t.Skip("no cgroup here, and so none to be left")
	}
	for _, clear := range [][]string{{"run", "--memory", "200M", "--", "true"}, {"gc"}} {
		w := newWorld(t, lab.Strategy{})
		census := lab.TakeCensus(w.Base)
		left := func() (groups []string) {
			for _, what := range lab.Leftovers(census, 0, w.Base) {
				if strings.HasPrefix(what, "cgroup") {
					groups = append(groups, what)
				}
			}
			return groups
		}
		alive := w.Start(lab.Options{}, "run", "--memory", "200M", "--", "sh", "-c", "echo ready; sleep 100")
		alive.WaitFor("ready")
		census = lab.TakeCensus(w.Base) // with the groups of the one that lives
		killed := w.Start(lab.Options{}, "run", "--memory", "200M", "--", "sh", "-c", "echo ready; sleep 100")
		killed.WaitFor("ready")
		killed.Signal(9)
		w.Want(killed.Wait(), 137)
		for deadline := time.Now().Add(10 * time.Second); len(left()) > 0 && time.Now().Before(deadline); {
			// The kernel needs a moment until the box is gone.
			w.Want(w.Run(clear...), 0)
		}
		if groups := left(); len(groups) > 0 {
			t.Errorf("after hutch %s: %q", clear[0], groups)
		}
		alive.Signal(15)
		w.Want(alive.Wait(), 143)
		w.Age()
		w.Want(w.Run("gc"), 0)
	}
}
