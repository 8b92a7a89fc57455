package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hutch/test/lab"
)

var (
	n       = flag.Int("n", 1000, "warm commands and forks; of what takes longer fewer are made")
	warm    = flag.Int("warm", 50, "runs before the clock counts")
	ballast = flag.Int("ballast", 512, "megabytes that this process has touched, as a program that asks may")
	hutch   = flag.String("hutch", "bin/hutch", "the binary; hutchd lies beside it")
	span    = flag.Duration("span", 2*time.Second, "how long each number of clients is counted")
	only    = flag.String("only", "", "only what this regular `expression` matches: commands, boxes, forks, checkpoints, clients")
	svg     = flag.String("svg", "", "write a plot to this `file`; only when all is timed")
)

func main() {
	flag.Parse()
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, "live:", err)
		os.Exit(1)
	}
}

// rig is a daemon and what it is compared with.
type rig struct {
	*lab.Daemon
	dir, workspace, program string
}

func bench() error {
	heap := make([]byte, *ballast<<20)
	for i := 0; i < len(heap); i += 4096 {
		heap[i] = 1
	}
	defer runtime.KeepAlive(heap)
	bin, err := filepath.Abs(*hutch)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hutch-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	source, program := filepath.Join(dir, "nothing.c"), filepath.Join(dir, "nothing")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		return err
	}
	if out, err := exec.Command("cc", "-O", "-static", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("cc: %w: %s", err, out)
	}
	fmt.Printf("uid %d, %d MB of ballast in the client; load %s; µs unless said\n\n", os.Getuid(), *ballast, lab.Load())
	fmt.Printf("%-46s %6s %9s %9s %9s %12s\n", "", "n", "p50", "p90", "p99", "p50 / first")
	var p plot
	match, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		time func(*rig, *plot) error
	}{{"commands", commands}, {"boxes", boxes}, {"forks", forks}, {"checkpoints", checkpoints}, {"clients", clients}} {
		if !match.MatchString(part.name) {
			continue
		}
		// Each with a daemon and a state directory of its own, so that none finds
		// what another left.
		if err := with(bin, dir, program, "4", func(r *rig) error { return part.time(r, &p) }); err != nil {
			return err
		}
	}
	fmt.Printf("\nload at the end %s\n", lab.Load())
	if *svg == "" || *only != "" {
		return nil
	}
	return os.WriteFile(*svg, []byte(p.svg()), 0o644)
}

// with starts a daemon, and ends it when do is done.
func with(bin, dir, program, pool string, do func(*rig) error) (err error) {
	own, err := os.MkdirTemp(dir, "d-")
	if err != nil {
		return err
	}
	d, err := lab.NewDaemon(bin, own, "--idle", "0", "--log", "-", "--pool", pool, "--drain", "1s")
	if err != nil {
		return err
	}
	r := &rig{d, own, filepath.Join(own, "ws"), program}
	if err := os.MkdirAll(r.workspace, 0o755); err != nil {
		return err
	}
	// The box sees its workspace, and so the program there.
	for i := range 100 {
		if err := os.WriteFile(filepath.Join(r.workspace, fmt.Sprintf("f%d", i)), []byte("x"), 0o644); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.workspace, "nothing"), text, 0o755)
	}
	if err != nil {
		return err
	}
	if err := d.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.End(syscall.SIGTERM, 30*time.Second)) }()
	return do(r)
}

// contestant is one thing that is timed. before, where it is set, is done each
// time and not timed; so is after.
type contestant struct {
	name   string
	before func() error
	run    func() error
	after  func() error
	times  []time.Duration
}

// compare runs all in turn, and prints them.
func compare(runs, warm int, all ...*contestant) error {
	for i := range warm + runs {
		// The order turns, so that none always follows the same other.
		for j := range all {
			c := all[(i+j)%len(all)]
			if c.before != nil {
				if err := c.before(); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
			start := time.Now()
			err := c.run()
			took := time.Since(start)
			if err == nil && c.after != nil {
				err = c.after()
			}
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if i >= warm {
				c.times = append(c.times, took)
			}
		}
	}
	for _, c := range all {
		slices.Sort(c.times)
		ratio := ""
		if len(all) > 1 {
			ratio = fmt.Sprintf("%.2f", float64(c.at(50))/float64(all[0].at(50)))
		}
		fmt.Printf("%-46s %6d %9d %9d %9d %12s\n", c.name, len(c.times), c.at(50), c.at(90), c.at(99), ratio)
	}
	return nil
}

// at is a percentile in microseconds.
func (c *contestant) at(percent int) int64 {
	return c.times[min(len(c.times)*percent/100, len(c.times)-1)].Microseconds()
}

// floor is what the kernel takes.
func floor(program string) error {
	pid, err := syscall.ForkExec(program, []string{"nothing"}, &syscall.ProcAttr{})
	if err != nil {
		return err
	}
	_, err = syscall.Wait4(pid, nil, 0, nil)
	return err
}

func (r *rig) create() (string, error) {
	var b struct{ ID string }
	err := r.Call(context.Background(), "POST", "/v1/boxes", map[string]any{"workspace": r.workspace}, &b)
	return b.ID, err
}

func (r *rig) remove(box string) error {
	return r.Call(context.Background(), "DELETE", "/v1/boxes/"+box, nil, nil)
}

func (r *rig) run(box string, argv ...string) error {
	var out struct{ Status, Error, Stderr string }
	if err := r.Call(context.Background(), "POST", "/v1/boxes/"+box+"/execs", map[string]any{"argv": argv}, &out); err != nil {
		return err
	}
	if out.Status != "success" {
		return fmt.Errorf("%q: %s: %s%s", argv, out.Status, out.Error, out.Stderr)
	}
	return nil
}

func (r *rig) nothing() string { return filepath.Join(r.workspace, "nothing") }

// commands times a warm command.
func commands(r *rig, p *plot) error {
	box, err := r.create()
	if err != nil {
		return err
	}
	all := []*contestant{
		{name: "vfork, exec, wait", run: func() error { return floor(r.program) }},
		{name: "a command in a box that lives", run: func() error { return r.run(box, r.nothing()) }},
		{name: "a request that does nothing (health)", run: func() error { return r.Call(context.Background(), "GET", "/v1/health", nil, nil) }},
	}
	if err := compare(*n, *warm, all...); err != nil {
		return err
	}
	p.floor, p.warm = all[0], all[1]
	fmt.Printf("%-46s p50 %.2f x (goal 1.5), p99 %.2f x (goal 3)\n\n", "", ratio(all[1], all[0], 50), ratio(all[1], all[0], 99))
	return r.remove(box)
}

func ratio(c, first *contestant, percent int) float64 {
	return float64(c.at(percent)) / float64(first.at(percent))
}

// boxes times a box from its creation to the end of its first command: from a
// jail that is at hand, and from none.
func boxes(pooled *rig, _ *plot) error {
	return with(pooled.Program, pooled.dir, pooled.program, "0", func(cold *rig) error {
		one := func(r *rig, name string, wait time.Duration) *contestant {
			var box string
			return &contestant{
				name: name, before: func() error { time.Sleep(wait); return nil },
				run: func() (err error) {
					if box, err = r.create(); err == nil {
						err = r.run(box, r.nothing())
					}
					return err
				},
				after: func() error { return r.remove(box) },
			}
		}
		// The pool has time to make the next: what is timed is a box that finds one.
		err := compare(max(20, *n/10), 5, one(cold, "create and first command, no pool", 0), one(pooled, "create and first command, from the pool", 20*time.Millisecond))
		fmt.Println()
		return err
	})
}

// forks times forks of a quiet box: one on the disk only, and one that lives.
func forks(r *rig, _ *plot) error {
	one := func(name string, live bool) (*contestant, error) {
		box, err := r.create()
		if err == nil {
			err = r.run(box, "sh", "-c", "mkdir d; for i in 1 2 3 4 5 6 7 8 9; do echo $i >d/$i; done")
		}
		if err == nil && !live {
			err = r.Call(context.Background(), "POST", "/v1/boxes/"+box+"/release", nil, nil)
		}
		var forks []struct{ ID string }
		return &contestant{
			name: name,
			run: func() error {
				return r.Call(context.Background(), "POST", "/v1/boxes/"+box+"/fork", map[string]any{}, &forks)
			},
			after: func() error { return r.remove(forks[0].ID) },
		}, err
	}
	disk, err := one("fork of a box on the disk", false)
	if err != nil {
		return err
	}
	live, err := one("fork of a quiet box that lives", true)
	if err != nil {
		return err
	}
	// And with something new to freeze each time.
	fresh, err := one("fork of one that changed since", true)
	if err != nil {
		return err
	}
	box, err := r.create()
	if err != nil {
		return err
	}
	var made []struct{ ID string }
	fresh.before = func() error { return r.run(box, "sh", "-c", "echo >>new") }
	fresh.run = func() error {
		return r.Call(context.Background(), "POST", "/v1/boxes/"+box+"/fork", map[string]any{}, &made)
	}
	fresh.after = func() error { return r.remove(made[0].ID) }
	err = compare(max(50, *n/3), 10, disk, live, fresh)
	fmt.Printf("%-46s p50 %.2f ms (goal 1 ms)\n\n", "", float64(disk.at(50))/1000)
	return err
}

// changes are how many files a box has changed when a checkpoint is made.
var changes = []int{10, 1000, 10_000}

// checkpoints times those of a quiet box and of one in which a process runs.
func checkpoints(r *rig, p *plot) error {
	script := func(many int, dir string) string {
		return fmt.Sprintf("mkdir %s; cd %s; i=0; while [ $i -lt %d ]; do echo $i >$i; i=$((i+1)); done", dir, dir, many)
	}
	for _, many := range changes {
		runs := max(3, min(*n/20, 20_000/many))
		names, rounds := 0, 0
		var quiet, busy string
		checkpoint := func(box *string) func() error {
			return func() error {
				names++
				return r.Call(context.Background(), "POST", "/v1/boxes/"+*box+"/checkpoints", map[string]any{"name": fmt.Sprintf("c%d", names)}, nil)
			}
		}
		begin := func(box *string, background bool) func() error {
			return func() (err error) {
				rounds++
				if *box, err = r.create(); err == nil {
					err = r.run(*box, "sh", "-c", script(many, fmt.Sprintf("d%d", rounds)))
				}
				if err == nil && background {
					err = r.Call(context.Background(), "POST", "/v1/boxes/"+*box+"/execs?detach=true", map[string]any{"argv": []string{"sleep", "1000"}}, nil)
				}
				return err
			}
		}
		end := func(box *string) func() error { return func() error { return r.remove(*box) } }
		all := []*contestant{
			{name: fmt.Sprintf("checkpoint of a quiet box, %d changes", many), before: begin(&quiet, false), run: checkpoint(&quiet), after: end(&quiet)},
			{name: fmt.Sprintf("checkpoint of a busy box, %d changes", many), before: begin(&busy, true), run: checkpoint(&busy), after: end(&busy)},
		}
		if err := compare(runs, 1, all...); err != nil {
			return err
		}
		p.quiet, p.busy = append(p.quiet, all[0]), append(p.busy, all[1])
	}
	fmt.Println()
	return nil
}

// widths are numbers of clients at once.
var widths = []int{1, 2, 4, 8, 16, 32, 64}

// clients counts commands a second.
func clients(r *rig, p *plot) error {
	var ids []string
	for range 16 {
		box, err := r.create()
		if err == nil {
			err = r.run(box, r.nothing())
		}
		if err != nil {
			return err
		}
		ids = append(ids, box)
	}
	cores := runtime.NumCPU()
	bare := func(d time.Duration) (float64, error) {
		return count(cores, d, func(int) error { return floor(r.program) })
	}
	fmt.Printf("%-46s %9s %9s %9s\n", "commands a second", "hutchd", "floor", "share")
	for _, width := range widths {
		// The floor on both sides of what is compared with it.
		first, err := bare(*span / 2)
		if err != nil {
			return err
		}
		got, err := count(width, *span, func(i int) error { return r.run(ids[i%len(ids)], r.nothing()) })
		if err != nil {
			return err
		}
		last, err := bare(*span / 2)
		if err != nil {
			return err
		}
		under := (first + last) / 2
		fmt.Printf("%-46s %9.0f %9.0f %8.0f%%\n", fmt.Sprintf("%d clients; floor: vfork, exec, wait on %d cores", width, cores), got, under, 100*got/under)
		p.rates = append(p.rates, rate{width, got, under})
	}
	fmt.Println("goal: 50% of the floor")
	for _, box := range ids {
		if err := r.remove(box); err != nil {
			return err
		}
	}
	return nil
}

// count tells how often a second something is done by so many at once.
func count(width int, d time.Duration, do func(i int) error) (float64, error) {
	var done atomic.Int64
	errs := make(chan error, width)
	var all sync.WaitGroup
	start := time.Now()
	for i := range width {
		all.Go(func() {
			for time.Since(start) < d {
				if err := do(i); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	close(errs)
	return float64(done.Load()) / time.Since(start).Seconds(), <-errs
}
