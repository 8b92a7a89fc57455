package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/jail/filter"
	"hutch/internal/plan"
	"hutch/internal/policy"
	"hutch/internal/view"
)

var (
	n       = flag.Int("n", 1000, "runs of each")
	warm    = flag.Int("warm", 50, "runs before the clock counts")
	ballast = flag.Int("ballast", 512, "megabytes that this process has touched, as a daemon may")
)

func main() {
	flag.Parse()
	runtime.LockOSThread()
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, "warm:", err)
		os.Exit(1)
	}
}

func bench() error {
	heap := make([]byte, *ballast<<20)
	for i := 0; i < len(heap); i += 4096 {
		heap[i] = 1
	}
	defer runtime.KeepAlive(heap)
	world, err := os.MkdirTemp("", "hutch-bench-")
	if err != nil {
		return err
	}
	defer clean(world)
	for _, dir := range []string{"bin", "ws", "home", "layers"} {
		if err := os.Mkdir(filepath.Join(world, dir), 0o755); err != nil {
			return err
		}
	}
	source, program := filepath.Join(world, "nothing.c"), filepath.Join(world, "bin", "nothing")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o644); err != nil {
		return err
	}
	if out, err := exec.Command("cc", "-O", "-static", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("cc: %w: %s", err, out)
	}
	full, err := open(world, "full", true)
	if err != nil {
		return err
	}
	defer full.close()
	bare, err := open(world, "bare", false)
	if err != nil {
		return err
	}
	defer bare.close()
	keeper, err := jail.StartKeeper()
	if err != nil {
		return err
	}
	defer keeper.Close()
	one, err := full.remounts(keeper, world, 1)
	if err != nil {
		return err
	}
	many, err := full.remounts(keeper, world, 16)
	if err != nil {
		return err
	}
	fmt.Printf("uid %d, %d runs of each, interleaved, after %d to warm up; %d MB of ballast; µs\n\n", os.Getuid(), *n, *warm, *ballast)
	fmt.Printf("%-38s %8s %8s %8s %14s\n", "", "p50", "p90", "p99", "p50 / first")
	// What a remount leaves to be done afterwards is not to be a command's.
	for _, all := range [][]*contestant{{
		{name: "vfork, exec, wait", run: func() error { return floor(program) }},
		{name: "in a box", run: func() error { return full.run(program) }},
		{name: "in a box, no filter of the command's", run: func() error { return bare.run(program) }},
	}, {
		{name: "remount, 1 layer below", run: one},
		{name: "remount, 16 layers below", run: many},
	}} {
		if err := compare(all); err != nil {
			return err
		}
	}
	return nil
}

func compare(all []*contestant) error {
	for i := range *warm + *n {
		for j := range all {
			c := all[(i+j)%len(all)]
			start := time.Now()
			if err := c.run(); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if i >= *warm {
				c.times = append(c.times, time.Since(start))
			}
		}
	}
	for _, c := range all {
		slices.Sort(c.times)
		fmt.Printf("%-38s %8d %8d %8d %14.2f\n", c.name, c.at(50), c.at(90), c.at(99), float64(c.at(50))/float64(all[0].at(50)))
	}
	return nil
}

type contestant struct {
	name  string
	run   func() error
	times []time.Duration
}

func (c *contestant) at(percent int) int64 {
	return c.times[min(len(c.times)*percent/100, len(c.times)-1)].Microseconds()
}

func floor(program string) error {
	pid, err := syscall.ForkExec(program, []string{"nothing"}, &syscall.ProcAttr{})
	if err != nil {
		return err
	}
	_, err = syscall.Wait4(pid, nil, 0, nil)
	return err
}

// box is one that serves many commands.
type box struct {
	*jail.Box
	ns        *jail.Namespaces
	workspace string
	last      uint32
}

func open(world, name string, filtered bool) (*box, error) {
	uid, gid := os.Geteuid(), os.Getegid()
	workspace := filepath.Join(world, "ws")
	d := &policy.Box{
		User: view.User{UID: uint32(uid), GID: uint32(gid)}, UIDMap: fmt.Sprintf("%d %d 1", uid, uid), GIDMap: fmt.Sprintf("%d %d 1", gid, gid),
		Privileged: uid == 0, Trusted: uid == 0,
		Workspace: workspace, Home: filepath.Join(world, "home"), Hostname: "localhost", Filter: filter.Default(),
		Policy: policy.InForce{Subprocess: true, FSRead: true, FSWrite: true, Debug: true},
		Commands: func(renames, debug, subprocess bool) (told, untold []byte) {
			c := filter.Command{Renames: renames, NoDebug: !debug, NoSubprocess: !subprocess}
			return c.Program(), filter.Command{NoDebug: !debug, NoSubprocess: !subprocess, Untold: true}.Program()
		},
		Show: []view.Show{{Path: filepath.Join(world, "bin"), Mode: view.ReadOnly}},
	}
	var err error
	if d.Privileged {
		if d.UIDMap, err = policy.IDMap("/proc/self/uid_map"); err == nil {
			d.GIDMap, err = policy.IDMap("/proc/self/gid_map")
		}
		if err != nil {
			return nil, err
		}
	}
	d.Mount.Lower, d.Mount.Upper, d.Mount.Work = workspace, filepath.Join(world, name), filepath.Join(world, name+"-work")
	for _, dir := range []string{d.Mount.Upper, d.Mount.Work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	p, err := d.View()
	if err != nil {
		return nil, err
	}
	p.Ops = slices.DeleteFunc(p.Ops, func(op plan.Op) bool { return op.Code == plan.SendFD || op.Code == plan.Commands && !filtered })
	p.Ops[len(p.Ops)-1].A = 0 // many commands
	b := &box{workspace: workspace}
	if b.Box, err = jail.StartResident(d.Base(), nil); err != nil {
		return nil, err
	}
	if b.ns, err = b.Namespaces(); err != nil {
		return nil, err
	}
	if err := b.Send(p); err != nil {
		return nil, err
	}
	return b, b.await(func(r jail.Report) bool { return r.Kind == jail.Ready })
}

func (b *box) await(wanted func(jail.Report) bool) error {
	for {
		r, ok, err := b.Receive()
		switch {
		case err != nil:
			return err
		case !ok:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(b.Control), Events: unix.POLLIN}}, -1)
		case r.Kind == jail.Failed || r.Kind == jail.NotStarted:
			return fmt.Errorf("%+v", r)
		case wanted(r):
			return nil
		}
	}
}

var null = func() int {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return fd
}()

func (b *box) run(program string) error {
	b.last++
	if err := b.Exec(&jail.Command{ID: b.last, Argv: []string{program}, Dir: "/", Stdin: -1, Stdout: null, Stderr: null}); err != nil {
		return err
	}
	return b.await(func(r jail.Report) bool { return r.Kind == jail.Exited && r.Exec == b.last })
}

// remounts returns what puts a new overlay in the place of the workspace's.
func (b *box) remounts(k *jail.Keeper, world string, layers int) (func() error, error) {
	options := "userxattr,index=off,metacopy=off,volatile"
	if os.Geteuid() == 0 {
		options = "redirect_dir=off,index=off,metacopy=off,volatile"
	}
	lower := []string{b.workspace}
	for i := range layers - 1 {
		dir := filepath.Join(world, "layers", fmt.Sprint(layers, "-", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		lower = append([]string{dir}, lower...)
	}
	count := 0
	return func() error {
		// New directories each time, as a checkpoint has.
		count++
		upper := filepath.Join(world, fmt.Sprint("upper", layers, "-", count))
		work := upper + "-work"
		if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
			return err
		}
		root, err := k.Remount(jail.Remount{NS: b.ns, Lower: lower, Upper: upper, Work: work, Options: options, Target: b.workspace, Replace: true})
		if err != nil {
			return err
		}
		return unix.Close(root)
	}, nil
}

func (b *box) close() {
	b.Kill()
	_, _ = b.Reap()
	b.ns.Close()
}

// clean removes what the kernel made of mode 0, too.
func clean(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}
