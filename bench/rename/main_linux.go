package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

var (
	hutch  = flag.String("hutch", "bin/hutch", "the binary")
	n      = flag.Int("n", 5000, "renames in a round")
	rounds = flag.Int("rounds", 9, "rounds of each, interleaved")
	inner  = flag.String("inner", "", "time renames in this `directory` and print them: what runs in the box")
	move   = flag.String("move", "", "time the rename of this `directory` instead")
)

func main() {
	flag.Parse()
	run := bench
	if *inner != "" || *move != "" {
		run = timed
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "rename:", err)
		os.Exit(1)
	}
}

// timed prints nanoseconds as JSON.
func timed() error {
	var times []int64
	clock := func(from, to string) error {
		start := time.Now()
		err := os.Rename(from, to)
		times = append(times, time.Since(start).Nanoseconds())
		return err
	}
	if *move != "" {
		if err := clock(*move, *move+"-moved"); err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(times)
	}
	a, b := filepath.Join(*inner, "a"), filepath.Join(*inner, "b")
	if err := os.WriteFile(a, nil, 0o644); err != nil {
		return err
	}
	for range *n {
		if err := clock(a, b); err != nil {
			return err
		}
		a, b = b, a
	}
	return json.NewEncoder(os.Stdout).Encode(times)
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
	os.Setenv("XDG_STATE_HOME", filepath.Join(world, "state"))
	workspace := filepath.Join(world, "ws")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		return err
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(workspace, "probe"), self, 0o755); err != nil {
		return err
	}
	sizes := []int{1, 10, 100, 1000}
	for _, size := range sizes {
		dir := filepath.Join(workspace, fmt.Sprint("dir", size))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for i := range size {
			if err := os.WriteFile(fmt.Sprintf("%s/f%d", dir, i), []byte("x"), 0o644); err != nil {
				return err
			}
		}
	}
	in := func(strategy string, args ...string) ([]int64, error) {
		argv := append([]string{bin, "run", "--strategy", strategy, "--", "./probe"}, args...)
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir, cmd.Stderr = workspace, os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%q: %w", argv, err)
		}
		var times []int64
		return times, json.NewDecoder(bytes.NewReader(out)).Decode(&times)
	}

	without, with := []int64{}, []int64{}
	for range *rounds {
		for _, s := range []struct {
			strategy string
			into     *[]int64
		}{{"copy", &without}, {"overlay", &with}} {
			times, err := in(s.strategy, "-n", fmt.Sprint(*n), "-inner", "/tmp")
			if err != nil {
				return err
			}
			*s.into = append(*s.into, times...)
		}
	}
	fmt.Printf("uid %d; rename of a file, %d rounds of %d, interleaved; µs\n\n", os.Getuid(), *rounds, *n)
	fmt.Printf("%-14s %8s %8s %8s %8s\n", "", "p50", "p90", "p99", "ratio")
	for _, row := range []struct {
		name  string
		times []int64
	}{{"without mover", without}, {"with mover", with}} {
		slices.Sort(row.times)
		fmt.Printf("%-14s %8.1f %8.1f %8.1f %8.2f\n", row.name, at(row.times, 50), at(row.times, 90), at(row.times, 99), at(row.times, 50)/at(without, 50))
	}

	fmt.Printf("\nrename of a directory of the layer below, %d runs of each; ms\n\n%-14s %8s %8s\n", *rounds, "entries", "p50", "max")
	for _, size := range sizes {
		var times []int64
		for range *rounds {
			took, err := in("overlay", "-move", fmt.Sprint("dir", size))
			if err != nil {
				return err
			}
			times = append(times, took...)
		}
		slices.Sort(times)
		fmt.Printf("%-14d %8.2f %8.2f\n", size, at(times, 50)/1000, at(times, 100)/1000)
	}
	return nil
}

// at returns a percentile of sorted nanoseconds, in microseconds.
func at(times []int64, percent int) float64 {
	return float64(times[min(len(times)*percent/100, len(times)-1)]) / 1000
}
