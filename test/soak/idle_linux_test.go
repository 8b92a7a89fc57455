package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// mostPrivate is how much memory of its own PID 1 of an idle box may have.
const mostPrivate = 300 << 10

// serve starts a daemon in a world of its own.
func serve(t *testing.T, args ...string) (*lab.World, *lab.Daemon) {
	t.Helper()
	w := lab.New(t)
	d, err := lab.NewDaemon(lab.Hutch(t), w.Base, append([]string{"--idle", "0", "--log", "-"}, args...)...)
	if err == nil {
		err = d.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.End(syscall.SIGTERM, 60*time.Second); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the daemon's log ends:\n%s", d.LogTail(4000))
		}
		if err := os.Remove(d.Socket()); err == nil {
			t.Error("the socket was left behind")
		}
	})
	return w, d
}

// each does something for each of so many numbers, eight at once.
func each(n int, do func(i int) error) error {
	work, errs := make(chan int), make(chan error, n)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range work {
				if err := do(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	all.Wait()
	close(errs)
	return <-errs
}

// Many idle boxes live at once, cost little, and cost the daemon no thread each.
func TestIdleBoxes(t *testing.T) {
	n := 100
	if lab.Proof() {
		n = 1000
	}
	w, d := serve(t, "--max-boxes", "0", "--pool", "0")
	ctx := context.Background()
	if err := os.WriteFile(filepath.Join(w.Dir, "f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	// One box first, that is there when everything is measured for comparison: what
	// a first one costs the others do not.
	ids := make([]string, n)
	begin := func(i int) error {
		var b boxJSON
		if err := d.Call(ctx, "POST", "/v1/boxes", map[string]any{"workspace": w.Dir}, &b); err != nil {
			return err
		}
		ids[i] = b.ID
		return expect(d, b.ID, "cat f", "x")
	}
	if err := begin(0); err != nil {
		t.Fatal(err)
	}
	before, err := lab.UsageOf(d.PID())
	if err != nil {
		t.Fatal(err)
	}
	known, free, load := lab.Children(d.PID()), lab.MemInfo("MemAvailable"), lab.Load()
	start := time.Now()
	if err := each(n-1, func(i int) error { return begin(i + 1) }); err != nil {
		t.Fatal(err)
	}
	made := time.Since(start)
	taken := free - lab.MemInfo("MemAvailable")
	after, err := lab.UsageOf(d.PID())
	if err != nil {
		t.Fatal(err)
	}
	var private []int64
	for _, pid := range lab.Children(d.PID()) {
		if slices.Contains(known, pid) {
			continue
		}
		u, err := lab.UsageOf(pid)
		if err != nil {
			t.Fatal(err)
		}
		private = append(private, u.Private)
	}
	var status struct{ Live int }
	if err := d.Call(ctx, "GET", "/v1/status", nil, &status); err != nil || status.Live != n {
		t.Errorf("%d boxes are said to live, not %d (%v)", status.Live, n, err)
	}
	if len(private) != n-1 {
		t.Fatalf("%d boxes were made, and the daemon has %d children more", n-1, len(private))
	}
	slices.Sort(private)
	per := float64(n - 1)
	kb := func(bytes int64) float64 { return float64(bytes) / 1024 / per }
	t.Logf("%d boxes, each with one command, in %v (load %s); of each: PID 1 has %d KB of its own (p50; most %d KB), the machine %.0f KB less available, the daemon %.1f KB more RSS and %.1f fds; it has %d threads",
		n, made.Round(time.Millisecond), load, private[len(private)/2]>>10, private[len(private)-1]>>10, kb(taken), kb(after.RSS-before.RSS), float64(after.FDs-before.FDs)/per, after.Threads)
	if os.Geteuid() == 0 { // PID 1 lets nobody else look
		if private[0] == 0 || private[len(private)-1] > mostPrivate {
			t.Errorf("PID 1 of an idle box has %d to %d KB of its own", private[0]>>10, private[len(private)-1]>>10)
		}
	}
	if after.Threads > before.Threads+40 {
		t.Errorf("the daemon has %d threads, and had %d with one box", after.Threads, before.Threads)
	}
	// Idle is idle.
	const look = 3 * time.Second
	worked := lab.CPU(d.PID())
	time.Sleep(look)
	if worked = lab.CPU(d.PID()) - worked; worked > look/20 {
		t.Errorf("with %d idle boxes the daemon worked for %v of %v", n, worked, look)
	}
	// All of them still serve.
	if err := each(n, func(i int) error {
		return expect(d, ids[i], fmt.Sprintf("echo %d >g; cat f g", i), fmt.Sprintf("x%d\n", i))
	}); err != nil {
		t.Error(err)
	}
	start = time.Now()
	if err := each(n, func(i int) error { return d.Call(ctx, "DELETE", "/v1/boxes/"+ids[i], nil, nil) }); err != nil {
		t.Error(err)
	}
	t.Logf("all were removed in %v", time.Since(start).Round(time.Millisecond))
}

// expect runs a line of shell in a box.
func expect(d *lab.Daemon, box, text, stdout string) error {
	var out lab.Outcome
	if err := d.Call(context.Background(), "POST", "/v1/boxes/"+box+"/execs", shell(text), &out); err != nil {
		return err
	}
	if out.Status != "success" || out.Stdout != stdout {
		return fmt.Errorf("box %s: %q: %s, stdout %q, not %q; %s%s", box, text, out.Status, out.Stdout, stdout, out.Stderr, out.Error)
	}
	return nil
}
