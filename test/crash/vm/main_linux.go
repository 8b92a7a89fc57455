package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
	"hutch/test/vm/machine"
)

var (
	kills   = flag.Int("kills", 12, "how often the machine is killed on each file system")
	budget  = flag.Duration("budget", 80*time.Second, "how long it may be killed on each; what was met by then counts")
	systems = flag.String("fs", "ext4,xfs,btrfs", "file systems of the guest's disk")
	seed    = flag.Uint64("seed", 20261129, "of the moments of the kills")
	cache   = flag.String("dir", "build/vm", "where qemu's kernel is kept")
	binary  = flag.String("hutch", "bin/hutch", "what is tested")
)

const inner = "HUTCH_CRASH_INNER" // set in the process that has a mount namespace of its own

func main() {
	switch {
	case os.Getpid() == 1:
		guest()
	case len(os.Args) == 3 && os.Args[1] == "become":
		n, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = become(".", n)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if os.Geteuid() != 0 {
		fmt.Println("vm: skipped: only root can mount the disks of the guest")
		return
	}
	if os.Getenv(inner) == "" {
		os.Exit(lab.Again("vm", inner, syscall.SIGKILL))
	}
	kernel, err := machine.Fetch(*cache, "6.1")
	if errors.Is(err, machine.ErrNone) {
		fmt.Println("vm: skipped:", err)
		return
	}
	if err == nil {
		err = host(kernel)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(1)
	}
}

// subject is a virtual machine and its disk.
type subject struct {
	kernel         machine.Kernel
	dir, image, fs string
	rnd            *rand.Rand
	took           time.Duration // a promotion, so far
	log            strings.Builder
}

func host(kernel machine.Kernel) (err error) {
	dir, err := os.MkdirTemp("", "hutch-crash-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir+"/guest", "hutch/test/crash/vm")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the guest: %w: %s", err, out)
	}
	for _, fs := range strings.Split(*systems, ",") {
		m := &subject{kernel: kernel, dir: dir, image: dir + "/" + fs + ".img", fs: fs, rnd: rand.New(rand.NewPCG(*seed, 0)), took: time.Second}
		if err := m.prepare(); err != nil {
			return fmt.Errorf("%s: %w", fs, err)
		}
		var t tally
		start := time.Now()
		for i := range *kills {
			if i > 0 && time.Since(start) > *budget {
				break
			}
			if err := m.life(&t); err != nil {
				return fmt.Errorf("%s, kill %d: %w\nthe guest said:\n%s", fs, i+1, err, m.log.String())
			}
			t.kills++
		}
		fmt.Printf("vm: %s: killed %d times, %d of them in a promotion: %d old, %d new, %d transactions recovered, 0 mixed; %d promotions done, none lost; %v\n",
			fs, t.kills, t.within, t.old, t.within-t.old, t.recovered, t.done, time.Since(start).Round(time.Second))
		if t.within == 0 || t.done == 0 {
			return fmt.Errorf("%s: no kill met a promotion, or none was ever done", fs)
		}
	}
	return nil
}

// prepare makes the disk with generation 0 on it, and what the guest boots.
func (m *subject) prepare() error {
	size := "128M"
	switch m.fs {
	case "xfs":
		size = "320M" // mkfs.xfs refuses less than 300 MiB
	case "btrfs":
		size = "256M"
	}
	for _, argv := range [][]string{{"truncate", "-s", size, m.image}, {"mkfs." + m.fs, "-q", m.image}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w: %s", argv, err, out)
		}
	}
	err := m.mounted(func(at string) error {
		return errors.Join(os.Mkdir(at+"/"+workspace, 0o755), os.Mkdir(at+"/"+state, 0o755), become(at+"/"+workspace, 0))
	})
	if err != nil {
		return err
	}
	var root machine.Archive
	if err := m.kernel.Pack(&root); err != nil {
		return err
	}
	root.Dir("usr")
	root.Text("etc/disk", m.fs)
	root.Text("etc/passwd", "root:x:0:0::/root:/bin/guest\n")
	for name, from := range map[string]string{"init": m.dir + "/guest", "bin/guest": m.dir + "/guest", "bin/hutch": *binary} {
		if err := root.File(name, from); err != nil {
			return err
		}
	}
	return root.Write(m.dir + "/initramfs")
}

// mounted lets do look at the disk.
func (m *subject) mounted(do func(at string) error) error {
	at := m.dir + "/mnt"
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-t", m.fs, "-o", "loop", m.image, at).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	err := do(at)
	for range 100 {
		failed := unix.Unmount(at, 0)
		if failed == nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.Join(err, unix.Unmount(at, 0))
}

// tally counts kills.
type tally struct{ kills, within, old, done, recovered int }

// life is one run of the machine, from its start to its kill, and what it left.
func (m *subject) life(t *tally) error {
	first, begun, done, err := m.run()
	if err != nil {
		return err
	}
	t.done += done - first
	return m.mounted(func(at string) error {
		said, err := m.hutch(at, "recover")
		if err != nil {
			return err
		}
		n, err := generation(at + "/" + workspace)
		if err != nil {
			return fmt.Errorf("a mix: %w", err)
		}
		if n < done || n > begun {
			return fmt.Errorf("generation %d stands; %d was done, %d begun", n, done, begun)
		}
		if again, err := m.hutch(at, "recover"); err != nil || again != "" {
			return fmt.Errorf("a second recovery: %s, %w", again, err)
		}
		if err := m.receipts(at); err != nil {
			return err
		}
		if begun > done {
			t.within++
			if n == done {
				t.old++
			}
		}
		if said != "" {
			t.recovered++
		}
		return nil
	})
}

// receipts checks the chain. The receipt of a run that promoted nothing is not
// flushed: the end of the file may be a torn one, until the next is written.
func (m *subject) receipts(at string) error {
	_, err := m.hutch(at, "receipts", "verify")
	if err == nil || !strings.Contains(err.Error(), "the last append was cut short") {
		return err
	}
	if _, err := m.hutch(at, "run", "--", "true"); err != nil {
		return err
	}
	_, err = m.hutch(at, "receipts", "verify")
	return err
}

func (m *subject) hutch(at string, args ...string) (string, error) {
	bin, err := filepath.Abs(*binary)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(bin, args...)
	cmd.Dir = at + "/" + workspace
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir, "XDG_STATE_HOME=" + at + "/" + state}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("hutch %q: %w: %s", args, err, out)
	}
	return string(out), err
}

// boots is how long a machine may take to come up under software emulation.
const boots = 3 * time.Minute

// run starts the machine and kills it at a random moment of a promotion, or
// right after. It returns the generation that it found, the last that was begun,
// and the last that the guest called done.
func (m *subject) run() (first, begun, done int, err error) {
	m.log.Reset()
	cmd := m.kernel.Command(machine.Start{Initramfs: m.dir + "/initramfs", Megabytes: 512, Disks: []machine.Disk{{Image: m.image}}})
	console, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, 0, err
	}
	cmd.Stderr = &m.log
	if err := cmd.Start(); err != nil {
		return 0, 0, 0, err
	}
	defer cmd.Wait()
	limit := time.AfterFunc(boots, func() { cmd.Process.Kill() })
	defer limit.Stop()

	victim := -1 // the generation whose promotion is cut
	killed := false
	var since time.Time
	lines := bufio.NewScanner(io.TeeReader(console, &m.log))
	for lines.Scan() {
		word, number, _ := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if word == "FAILED" {
			cmd.Process.Kill()
			return first, begun, done, errors.New("the guest failed")
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		switch word {
		case "AT":
			first, begun, done = n, n, n
			victim = n + 1 + m.rnd.IntN(3)
		case "BEGIN":
			begun, since = n, time.Now()
			if n == victim {
				killed = true
				time.AfterFunc(time.Duration(m.rnd.Float64()*1.1*float64(m.took)), func() { cmd.Process.Kill() })
			}
		case "DONE":
			done = n
			m.took = time.Since(since)
		}
	}
	if !killed {
		return first, begun, done, errors.New("the guest ended by itself, or did not come up")
	}
	return first, begun, done, nil
}
