package supervise_test

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"hutch/internal/jail"
	"hutch/internal/supervise"
)

// staticTrue compiles a program that does nothing, the least that can be run.
func staticTrue(b *testing.B, dir string) string {
	source, program := filepath.Join(b.TempDir(), "true.c"), filepath.Join(dir, "static-true")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	if out, err := osexec.Command("cc", "-O2", "-static", "-o", program, source).CombinedOutput(); err != nil {
		b.Skipf("cc: %v: %s", err, out)
	}
	return program
}

// percentiles reports how long single rounds took.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(p float64) float64 { return float64(took[int(p*float64(len(took)-1))].Nanoseconds()) / 1e3 }
	b.ReportMetric(at(.5), "p50-µs")
	b.ReportMetric(at(.9), "p90-µs")
	b.ReportMetric(at(.99), "p99-µs")
}

// BenchmarkFloor is what a warm exec is measured against: vfork, exec, wait.
func BenchmarkFloor(b *testing.B) {
	program := staticTrue(b, b.TempDir())
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{Env: []string{}, Files: []uintptr{0, 1, 2}})
		if err != nil {
			b.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status != 0 {
			b.Fatal(err, status)
		}
		took = append(took, time.Since(began))
	}
	percentiles(b, took)
}

// BenchmarkWarmExec is a command in a box that is there already, in the process
// that holds it, from the request to its result.
func BenchmarkWarmExec(b *testing.B) {
	box := newBox(b, nil, supervise.FollowOptions{})
	program := staticTrue(b, box.workspace)
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		r, err := box.Start(supervise.LiveCommand{
			Exec:   jail.Command{Argv: []string{program}, Env: []string{"PATH=/usr/bin"}, Dir: box.workspace},
			Limits: supervise.Limits{Timeout: time.Minute, Output: 1 << 20},
			Stdout: supervise.NewSmallCapture(16<<10, nil, nil), Stderr: supervise.NewSmallCapture(16<<10, nil, nil),
		})
		if err != nil {
			b.Fatal(err)
		}
		if res := r.Result(); !res.Known || res.Wait != 0 {
			b.Fatalf("%+v", res)
		}
		took = append(took, time.Since(began))
	}
	percentiles(b, took)
}
