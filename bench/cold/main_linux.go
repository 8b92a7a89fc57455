package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

var (
	n        = flag.Int("n", 300, "runs of each, at least 200 for a figure to quote")
	warm     = flag.Int("warm", 20, "runs before the clock counts")
	hutch    = flag.String("hutch", "bin/hutch", "the binary")
	args     = flag.String("flags", "", "one more `flag` for hutch run")
	ownState = flag.Bool("state", false, "use the state directory of this user instead of a new one")
)

// contestant is one way to run true.
type contestant struct {
	name  string
	argv  []string
	times []time.Duration
}

func main() {
	flag.Parse()
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, "cold:", err)
		os.Exit(1)
	}
}

func bench() error {
	bin, err := filepath.Abs(*hutch)
	if err != nil {
		return err
	}
	world, err := os.MkdirTemp("", "hutch-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(world)
	workspace := filepath.Join(world, "ws")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		return err
	}
	for i := range 100 {
		if err := os.WriteFile(fmt.Sprintf("%s/f%d", workspace, i), []byte("x"), 0o644); err != nil {
			return err
		}
	}
	if !*ownState {
		os.Setenv("XDG_STATE_HOME", filepath.Join(world, "state"))
	}
	truth, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		return fmt.Errorf("%w (make deps)", err)
	}
	run := []string{bin, "run"}
	if *args != "" {
		run = append(run, *args)
	}
	all := []*contestant{
		{name: "true", argv: []string{truth}},
		{name: "bwrap", argv: []string{bwrap, "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", truth}},
		{name: "hutch", argv: append(run, "--", "true")},
	}
	for i := range *warm + *n {
		// The order turns, so that none always follows the same other.
		for j := range all {
			c := all[(i+j)%len(all)]
			cmd := exec.Command(c.argv[0], c.argv[1:]...)
			cmd.Dir = workspace
			start := time.Now()
			err := cmd.Run()
			took := time.Since(start)
			if err != nil {
				return fmt.Errorf("%q: %w", c.argv, err)
			}
			if i >= *warm {
				c.times = append(c.times, took)
			}
		}
	}
	fmt.Printf("uid %d, %d runs of each, interleaved, after %d to warm up; whole process, ms\n\n", os.Getuid(), *n, *warm)
	fmt.Printf("%-8s %8s %8s %8s %14s %14s\n", "", "p50", "p90", "p99", "p50 / bwrap", "p50 / true")
	for _, c := range all {
		slices.Sort(c.times)
	}
	for _, c := range all {
		fmt.Printf("%-8s %8.2f %8.2f %8.2f %14.2f %14.2f\n", c.name, at(c, 50), at(c, 90), at(c, 99), at(c, 50)/at(all[1], 50), at(c, 50)/at(all[0], 50))
	}
	return nil
}

// at returns a percentile in milliseconds.
func at(c *contestant, percent int) float64 {
	return float64(c.times[min(len(c.times)*percent/100, len(c.times)-1)].Microseconds()) / 1000
}
