package run

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// cgroups reports whether this user can make a cgroup with a memory limit
// here: root on v1 or v2; an ordinary user only where one is delegated.
func cgroups() bool {
	if !root() {
		return false
	}
	return unix.Access("/sys/fs/cgroup/memory", unix.W_OK) == nil || unix.Access("/sys/fs/cgroup/memory.max", unix.W_OK) == nil ||
		hasController("/sys/fs/cgroup/cgroup.controllers", "memory")
}

func hasController(file, name string) bool {
	b, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(b)), name)
}

// source is what must have measured a peak.
func source() string {
	if cgroups() {
		return "cgroup"
	}
	return "polled"
}

// eat takes memory step by step, faster than a slow watchdog but not at once.
const eat = `
import time
hold = []
for i in range(400):
    hold.append(bytearray(b"x" * (5 << 20)))
    time.sleep(0.02)
`

func TestMemoryLimit(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, r := w.JSON("--commit", "--memory", "100M", "--", "python3", "-c", "open('new.txt','w').close()"+eat)
		w.Want(r, 137)
		if out.Status != "memory_exceeded" {
			t.Errorf("status %q", out.Status)
		}
		if out.PeakMemorySource != source() {
			t.Errorf("peak_memory_source %q, want %q", out.PeakMemorySource, source())
		}
		w.Untouched(before)
	})
}

func TestMemoryLimitIsOfTheWholeTree(t *testing.T) {
	w := lab.New(t)
	// Four processes of 40 MB each: none is over the limit by itself.
	out, r := w.JSON("--memory", "100M", "--timeout", "60s", "--", "python3", "-c", `
import os, time
for i in range(4):
    if os.fork() == 0:
        os.setsid()
        hold = bytearray(b"x" * (40 << 20))
        time.sleep(50)
        os._exit(0)
time.sleep(50)`)
	w.Want(r, 137)
	if out.Status != "memory_exceeded" {
		t.Errorf("status %q", out.Status)
	}
}

func TestMemoryWithinTheLimit(t *testing.T) {
	w := lab.New(t)
	out, r := w.JSON("--memory", "300M", "--", "python3", "-c", "import time; x = bytearray(b'x' * (80 << 20)); time.sleep(0.5)")
	w.Want(r, 0)
	if out.PeakMemoryMB == nil || *out.PeakMemoryMB < 80 || *out.PeakMemoryMB > 300 {
		t.Errorf("peak_memory_mb %v, want 80 to 300", out.PeakMemoryMB)
	}
}

func TestMemoryLimitLetsAddressSpaceBe(t *testing.T) {
	w := lab.New(t)
	// 8 GB reserved and never touched: no memory is used.
	w.Want(w.Box("--memory", "100M", "--", "python3", "-c", "import mmap; m = mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|0x4000); m[0] = 1"), 0)
}

func TestPidsLimit(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		r := w.Box("--pids", "32", "--", "python3", "-c", `
import os, signal
pids = []
try:
    while len(pids) < 200:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pids.append(pid)
except OSError as e:
    pass
print(len(pids))
for p in pids:
    os.kill(p, 9)
`)
		w.Want(r, 0)
		n, err := strconv.Atoi(strings.TrimSpace(r.Stdout))
		if err != nil || n > 32 || n < 8 {
			t.Errorf("%q processes were started under --pids 32", r.Stdout)
		}
	})
}

func TestCPULimit(t *testing.T) {
	w := lab.New(t)
	out, r := w.JSON("--cpus", "0.5", "--", "sh", "-c", `
		for i in 1 2 3; do (timeout 3 sh -c 'while :; do :; done') & done; sleep 3; wait; exit 0`)
	w.Want(r, 0)
	// Three loops for three seconds: 1.5 s of CPU when limited, up to 9 s of
	// it when not. A slow machine can only make it less.
	limited := out.CPUMS < 2500
	if cgroups() && !limited {
		t.Errorf("took %v ms of CPU in 3 s under --cpus 0.5", out.CPUMS)
	}
	if !limited && !slices.Contains(out.Missing, "limits") {
		t.Errorf("CPU was not limited (%v ms), and missing does not say so: %q", out.CPUMS, out.Missing)
	}
	if out.CPUMS <= 0 {
		t.Errorf("cpu_ms %v", out.CPUMS)
	}
}

func TestMissingLimitsAreNamed(t *testing.T) {
	w := lab.New(t)
	out, _ := w.JSON("--memory", "200M", "--", "true")
	if got := slices.Contains(out.Missing, "limits"); got == cgroups() {
		t.Errorf("missing %q; a cgroup can be had here: %v", out.Missing, cgroups())
	}
}

func TestLimitsTogether(t *testing.T) {
	w := lab.New(t)
	w.Want(w.Box("--memory", "256M", "--pids", "64", "--cpus", "1.5", "--timeout", "30s", "--output-limit", "10M", "--", "true"), 0)
}
