package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"hutch/test/vm/machine"
)

var (
	series  = flag.String("kernels", "5.10,6.1,6.12,newest", "kernels to boot")
	jobs    = flag.Int("jobs", 2, "guests that run at the same time")
	cache   = flag.String("dir", "build/vm", "where kernels are kept")
	binary  = flag.String("hutch", "bin/hutch", "what is tested")
	limit   = flag.Duration("timeout", 10*time.Minute, "limit for one guest")
	only    = flag.String("run", "", "run only the turns whose name holds this")
	short   = flag.Bool("short", false, "divide the turns among 6.1 and 6.12")
	verbose = flag.Bool("v", false, "print all that the guests say")
)

func main() {
	if os.Getpid() == 1 {
		guest()
	}
	flag.Parse()
	ok, err := host()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// host boots every kernel and reports whether all of them ran and nothing
// failed. What cannot be had here did not run, and so did not pass.
func host() (ok bool, err error) {
	dir, err := os.MkdirTemp("", "hutch-vm-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		return false, err
	}
	ok = true
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(*jobs, 1))
	for _, s := range strings.Split(*series, ",") {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			passed, report := boots(dir, s)
			mu.Lock()
			defer mu.Unlock()
			fmt.Print(report)
			ok = ok && passed
		})
	}
	wg.Wait()
	return ok, nil
}

// build makes what all guests have in common: this program, which is their
// init, and the tests.
func build(dir string) error {
	for name, args := range map[string][]string{
		"guest":  {"build", "hutch/test/vm"},
		"inside": {"test", "-c", "-tags", "vm", "hutch/test/vm/inside"},
		"run":    {"test", "-c", "hutch/test/run"},
		"limits": {"test", "-c", "hutch/test/limits"},
		"jail":   {"test", "-c", "hutch/internal/jail"},
		"filter": {"test", "-c", "hutch/internal/jail/filter"},
		"attack": {"test", "-c", "hutch/test/attack"},
	} {
		args = append([]string{args[0], "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, name)}, args[1:]...)
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %q: %w: %s", args, err, out)
		}
	}
	sources, err := filepath.Glob("test/attack/programs/*.c")
	if err != nil || len(sources) == 0 {
		return fmt.Errorf("the attacks' sources: %d, %w", len(sources), err)
	}
	args := append([]string{"-static", "-O1", "-pthread", "-Wno-format-truncation", "-Wno-unused-result", "-o", filepath.Join(dir, attacks)}, sources...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("compile the attacks: %w: %s", err, out)
	}
	return nil
}

// attacks is the program that attacks from inside a box.
const attacks = "attacks"

// boots runs all boots of one kernel.
func boots(dir, series string) (ok bool, report string) {
	kernel, err := machine.Fetch(*cache, series)
	if err != nil {
		if errors.Is(err, machine.ErrNone) {
			return false, fmt.Sprintf("vm %s: not run: %v\n", series, err)
		}
		return false, fmt.Sprintf("vm %s: failed: %v\n", series, err)
	}
	ok = true
	for _, b := range planOf(series, *short) {
		b.turns = selected(b.turns)
		if len(b.turns) == 0 {
			continue
		}
		start := time.Now()
		r := run(dir, kernel, b)
		ok = ok && r.ok()
		report += r.text(fmt.Sprintf("vm %s", strings.TrimSpace(series+" "+b.name)), kernel.Version, time.Since(start))
	}
	return ok, report
}

func selected(turns []turn) []turn {
	var list []turn
	for _, t := range turns {
		if strings.Contains(t.Name, *only) {
			list = append(list, t)
		}
	}
	return list
}

// run boots a kernel once.
func run(dir string, kernel machine.Kernel, b boot) *result {
	r := newResult(b.turns)
	own, err := os.MkdirTemp(dir, kernel.Series+"-")
	if err != nil {
		r.broken = err.Error()
		return r
	}
	defer os.RemoveAll(own)
	disks, err := makeDisks(own, b.reflink)
	if err == nil {
		err = pack(dir, own, kernel, b)
	}
	if err != nil {
		r.broken = err.Error()
		return r
	}
	cmd := kernel.Command(machine.Start{Initramfs: own + "/initramfs", Append: b.append, Megabytes: 1024, Disks: disks})
	console, err := cmd.StdoutPipe()
	if err != nil {
		r.broken = err.Error()
		return r
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		r.broken = err.Error()
		return r
	}
	stop := time.AfterFunc(*limit, func() {
		r.timedOut.Store(true)
		_ = cmd.Process.Kill()
	})
	r.read(console)
	_ = cmd.Wait()
	stop.Stop()
	r.qemu = stderr.String()
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return r
}

// makeDisks makes the disks of a guest: ext4 for what is tested, and one with
// reflinks.
func makeDisks(dir, reflink string) ([]machine.Disk, error) {
	var disks []machine.Disk
	for _, fs := range [][]string{{"1G", "mkfs.ext4", "-q", "-E", "lazy_itable_init=1"}, {"512M", "mkfs." + reflink, "-q"}} {
		image := filepath.Join(dir, fs[1]+".img")
		for _, argv := range [][]string{{"truncate", "-s", fs[0], image}, append(fs[1:], image)} {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%q: %w: %s", argv, err, out)
			}
		}
		disks = append(disks, machine.Disk{Image: image, Scratch: true})
	}
	return disks, nil
}
