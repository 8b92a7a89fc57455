package limits

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"hutch/test/lab"
)

func TestCPUTimeLimit(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	// Of all processes together, also those that have ended.
	out, r := w.JSON("--cpu-time", "1s", "--timeout", "100s", "--", "sh", "-c", "./act spin 3 200; ./act spin 2 3600000")
	ended(t, w, out, r, "cpu_exceeded", 124)
	if out.CPUMS < 950 || out.CPUMS > 5000 {
		t.Errorf("cpu_ms %v under --cpu-time 1s", out.CPUMS)
	}
	if out.CPUSource != source() {
		t.Errorf("cpu_source %q, want %q", out.CPUSource, source())
	}
}

func TestCPUTimeWithinTheLimit(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	out, r := w.JSON("--cpu-time", "30s", "--", "./act", "spin", "2", "200")
	ended(t, w, out, r, "success", 0)
}

func TestProcessorTimeOfOrphansCounts(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	out, r := w.JSON("--", "./act", "orphan", "600")
	ended(t, w, out, r, "success", 0)
	if out.CPUMS < 400 {
		t.Errorf("cpu_ms %v (%s), and one process alone took 600", out.CPUMS, out.CPUSource)
	}
}

func TestCPULimit(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	// Nice by itself makes no difference to what a box may take.
	out, r := w.JSON("--cpus", "0.5", "--timeout", "3s", "--", "nice", "-n", "19", "./act", "spin", "3", "3600000")
	ended(t, w, out, r, "timeout", 124)
	// Three loops for three seconds: 1.5 s of CPU when limited, up to 6 s of it
	// when not. A slow machine can only make it less.
	limited := out.CPUMS < 2500
	if cgroups() != "none" && !limited {
		t.Errorf("took %v ms of CPU in 3 s under --cpus 0.5", out.CPUMS)
	}
	if cgroups() == "none" && out.CPUMS > 3500 {
		t.Errorf("took %v ms of CPU in 3 s on one processor", out.CPUMS)
	}
	if !limited && !slices.Contains(out.Missing, "limits") {
		t.Errorf("CPU was not limited (%v ms), and missing does not say so: %q", out.CPUMS, out.Missing)
	}
}

func TestLimitsTogether(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	w.Want(w.Box("--memory", "256M", "--swap", "10M", "--pids", "64", "--cpus", "1.5", "--cpu-time", "10s", "--timeout", "30s", "--output-limit", "10M",
		"--disk", "100M", "--files", "1000", "--open-files", "100", "--core", "1M", "--", "./act", "spin", "1", "10"), 0)
}

func TestOpenFiles(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	r := w.Box("--open-files", "64", "--", "./act", "open")
	w.Want(r, 0)
	n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
	if err != nil || n > 61 || n < 40 {
		t.Errorf("%q files could be opened beside 3 under --open-files 64", r.Stdout)
	}
	// It cannot be raised again.
	if r := w.Box("--open-files", "64", "--", "sh", "-c", "ulimit -n 65"); r.Code == 0 {
		t.Error("a limit of open files was raised in the box")
	}
}
