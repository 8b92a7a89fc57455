package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"hutch/test/lab"
)

func main() {
	c := config{logf: func(format string, args ...any) {
		fmt.Printf("%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
	}}
	flag.StringVar(&c.hutch, "hutch", "bin/hutch", "the binary; hutchd lies beside it")
	flag.Uint64Var(&c.seed, "seed", rand.Uint64N(1e9), "draws what is done; the same does the same again, as far as the daemon's deaths let it")
	flag.IntVar(&c.execs, "execs", 100_000, "commands")
	flag.IntVar(&c.workers, "workers", 8, "clients at the same time")
	flag.IntVar(&c.most, "boxes", 4, "boxes on each of a client's two workspaces")
	flag.IntVar(&c.kills, "kills", 100, "deaths of the daemon")
	flag.BoolVar(&c.long, "wait", true, "wait for the kernel's memory where it is measured")
	keep := flag.Bool("keep", false, "keep the directory")
	flag.Parse()
	syscall.Umask(0o022)
	err := func() (err error) {
		if err := lab.BecomeReaper(); err != nil {
			return err
		}
		if c.hutch, err = filepath.Abs(c.hutch); err != nil {
			return err
		}
		if c.dir, err = os.MkdirTemp("", "hutch-soak-"); err != nil {
			return err
		}
		if err := os.Chmod(c.dir, 0o755); err != nil {
			return err
		}
		if !*keep {
			defer os.RemoveAll(c.dir)
		}
		c.logf("seed %d, uid %d, %d execs by %d clients, %d deaths of the daemon, load %s; %s", c.seed, os.Getuid(), c.execs, c.workers, c.kills, lab.Load(), c.dir)
		if faults := c.run(); len(faults) > 0 {
			for _, f := range faults {
				c.logf("FAULT %v", f)
			}
			return fmt.Errorf("%d faults; seed %d", len(faults), c.seed)
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	fmt.Println("nothing was left, and everything was as it must be")
}
