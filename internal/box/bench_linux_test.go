package box

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"hutch/internal/api"
)

// BenchmarkExec is a command in a box that lives, with its records and receipt.
// BenchmarkSpawn is the floor: the same program by plain vfork, exec and wait.
func BenchmarkExec(b *testing.B) {
	b.Setenv("XDG_STATE_HOME", tempDir(b))
	boxes, err := OpenBoxes(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer boxes.Close(context.Background())
	box, err := boxes.Create(b.Context(), api.Create{Workspace: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	said(b, ran(b, boxes, box.ID, api.Run{Argv: []string{"/bin/true"}}), "")
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		ran(b, boxes, box.ID, api.Run{Argv: []string{"/bin/true"}})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)/10].Nanoseconds())/1e3, "p10-µs")
}

func BenchmarkSpawn(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)/10].Nanoseconds())/1e3, "p10-µs")
}

// BenchmarkFirst is the first command of a box: its jail is made, or taken from a
// pool that was given the time to make one.
func BenchmarkFirst(b *testing.B) {
	for _, c := range []struct {
		name string
		pool int
	}{{"cold", 0}, {"pool", 4}} {
		b.Run(c.name, func(b *testing.B) {
			b.Setenv("XDG_STATE_HOME", tempDir(b))
			boxes, err := OpenBoxes(Options{Pool: c.pool})
			if err != nil {
				b.Fatal(err)
			}
			defer boxes.Close(context.Background())
			ws := b.TempDir()
			for b.Loop() {
				b.StopTimer()
				box, err := boxes.Create(b.Context(), api.Create{Workspace: ws})
				if err != nil {
					b.Fatal(err)
				}
				for c.pool > 0 && parkedJails(boxes) == 0 {
					time.Sleep(time.Millisecond)
				}
				b.StartTimer()
				ran(b, boxes, box.ID, api.Run{Argv: []string{"/bin/true"}})
				b.StopTimer()
				if err := boxes.Remove(box.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

func parkedJails(b *Boxes) (n int) {
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	for _, k := range b.pool.kinds {
		n += len(k.parked)
	}
	return n
}
