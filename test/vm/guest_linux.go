package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/vm/machine"
)

// guest is the guest's init: it runs the turns and says on the console how they
// went. It never returns.
func guest() {
	if err := turns(); err != nil {
		fmt.Println("FAILED", err)
	} else {
		fmt.Println("DONE")
	}
	machine.PowerOff()
	select {}
}

func turns() error {
	early, err := initramfs()
	if err != nil {
		return err
	}
	if err := machine.Boot(); err != nil {
		return err
	}
	os.Setenv("PATH", "/usr/bin")
	text, err := os.ReadFile("/vm/plan")
	if err != nil {
		return err
	}
	var plan guestPlan
	if err := json.Unmarshal(text, &plan); err != nil {
		return err
	}
	if err := settle(plan); err != nil {
		return err
	}
	if err := layout(); err != nil {
		return err
	}
	plan.report(early)
	for _, t := range plan.Turns {
		fmt.Println("TURN", t.Name)
		began := time.Now()
		code, err := t.run(plan)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		fmt.Printf("took %v\nENDED %d %s\n", time.Since(began).Round(time.Second), code, t.Name)
	}
	return nil
}

// initramfs runs hutch as root in the kernel's first root, which nobody can
// pivot away from before Linux 7, and returns what it said.
func initramfs() (said string, err error) {
	for _, fs := range [][2]string{{"proc", "proc"}, {"sysfs", "sys"}, {"devtmpfs", "dev"}} {
		if err := machine.Mount(fs[0], "/"+fs[1], fs[0], 0, ""); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir("/root/ws", 0o755); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/vm/hutch", "run", "--", "/usr/bin/echo", "ran")
	cmd.Dir = "/root/ws"
	cmd.Env = []string{"PATH=/usr/bin", "HOME=/root"}
	start := time.Now()
	out, err := cmd.CombinedOutput()
	fmt.Println("in an initramfs hutch took", time.Since(start).Round(time.Millisecond))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	return fmt.Sprintf("%d %s", cmd.ProcessState.ExitCode(), out), nil
}

// report judges what hutch said in the first root: it ran, or one line says why
// it cannot and what to do.
func (p guestPlan) report(early string) {
	if !p.Initramfs {
		return
	}
	fmt.Println("TURN initramfs")
	word, code := "PASS", 0
	refused := strings.HasPrefix(early, "125 ") && (strings.Contains(early, "switch_root") || strings.Contains(early, "needs Linux 5.12")) && strings.Count(early, "\n") == 1
	if !strings.HasPrefix(early, "0 ran\n") && !refused {
		word, code = "FAIL", 1
	}
	fmt.Println("hutch in an initramfs:", strings.TrimSpace(early))
	fmt.Printf("\x16--- %s: initramfs (0.00s)\nENDED %d initramfs\n", word, code)
}

// settle mounts what a system has mounted.
func settle(plan guestPlan) error {
	for _, m := range []struct {
		source, at, fs string
		flags          uintptr
		data           string
	}{
		{"devpts", "/dev/pts", "devpts", 0, "mode=620,ptmxmode=666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""},
		{"/dev/vda", "/home", "ext4", 0, ""},
		{"/dev/vdb", "/mnt/" + plan.Reflink, plan.Reflink, 0, ""},
	} {
		if err := machine.Mount(m.source, m.at, m.fs, m.flags, m.data); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	_ = unix.Sethostname([]byte("guest"))
	for _, argv := range [][]string{{"fallocate", "-l", "128M", "/home/swap"}, {"mkswap", "/home/swap"}, {"swapon", "/home/swap"}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w: %s", argv, err, out)
		}
	}
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// layout makes the cgroups that systemd makes for root's login, a user's, and
// his own services and terminals.
func layout() error {
	const top = "/sys/fs/cgroup"
	var errs []error
	enable := func(dir string) {
		for _, c := range []string{"memory", "pids", "cpu"} {
			// Each by itself: one that this kernel lacks must not cost the others.
			_ = os.WriteFile(filepath.Join(top, dir, "cgroup.subtree_control"), []byte("+"+c), 0)
		}
	}
	mkdir := func(dirs ...string) {
		for _, d := range dirs {
			errs = append(errs, os.MkdirAll(filepath.Join(top, d), 0o755))
		}
	}
	mkdir("init.scope", inSession, inNone, inDelegated)
	errs = append(errs, os.WriteFile(top+"/init.scope/cgroup.procs", []byte("1"), 0))
	for _, dir := range []string{"", "user.slice", "user.slice/user-0.slice", "user.slice/user-1000.slice"} {
		enable(dir)
	}
	// What Delegate=yes hands over, and what the user's systemd makes of it.
	service := filepath.Join(top, "user.slice/user-1000.slice/user@1000.service")
	for _, name := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		errs = append(errs, os.Chown(filepath.Join(service, name), 1000, 1000))
	}
	for _, dir := range []string{"app.slice", "app.slice/terminal.scope"} {
		errs = append(errs, filepath.WalkDir(filepath.Join(service, dir), func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, 1000, 1000))
		}))
	}
	enable("user.slice/user-1000.slice/user@1000.service")
	return errors.Join(errs...)
}

// run runs the tests of a turn and returns their exit code.
func (t turn) run(plan guestPlan) (int, error) {
	base := "/home/turn"
	if t.Tmpfs {
		base = "/tmp/turn"
	}
	reflink := "/mnt/" + plan.Reflink + "/turn"
	dirs := []string{base, reflink}
	for _, d := range []string{"home", "state", "tmp", "cache", "config", "data"} {
		dirs = append(dirs, filepath.Join(base, d))
	}
	for _, d := range dirs {
		if err := errors.Join(os.Mkdir(d, 0o755), os.Chown(d, t.User, t.User)); err != nil {
			return 0, err
		}
	}
	if name, value := t.Sysctl[0], t.Sysctl[1]; name != "" {
		path := "/proc/sys/" + name
		was, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(value), 0)
		}
		if err != nil {
			return 0, err
		}
		defer os.WriteFile(path, was, 0)
	}
	group, err := os.Open("/sys/fs/cgroup" + t.Cgroup)
	if err != nil {
		return 0, err
	}
	defer group.Close()
	before, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return 0, err
	}
	cmd := exec.Command("/vm/"+t.Binary, "-test.v=test2json", "-test.timeout=5m", "-test.run="+t.pattern())
	cmd.Dir = base
	cmd.Env = append([]string{
		"PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=" + base + "/home", "XDG_STATE_HOME=" + base + "/state", "XDG_CACHE_HOME=" + base + "/cache",
		"XDG_CONFIG_HOME=" + base + "/config", "XDG_DATA_HOME=" + base + "/data", "TMPDIR=" + base + "/tmp",
		"HUTCH_BIN=/vm/hutch", "HUTCH_ATTACK_PROGRAM=/vm/" + attacks, "HUTCH_TEST_REFLINK_DIRS=" + reflink, "HUTCH_VM_CGROUP=" + t.Cgroup,
	}, t.Env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if t.User != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(t.User), Gid: uint32(t.User)}
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	code := cmd.ProcessState.ExitCode()
	for _, left := range leftBehind(string(before), base+"/tmp", reflink) {
		fmt.Println("left behind:", left)
		code = max(code, 1)
	}
	return code, errors.Join(os.RemoveAll(base), os.RemoveAll(reflink))
}

// leftBehind looks at what a turn may not leave: it is PID 1 that looks, to
// whom every orphan falls.
func leftBehind(mounts string, dirs ...string) []string {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left = nil
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
		found, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, exe := range found {
			if target, err := os.Readlink(exe); err == nil && filepath.Dir(filepath.Dir(exe)) == "/proc" && filepath.Base(filepath.Dir(exe)) != "1" {
				left = append(left, "process "+exe+" "+target)
			}
		}
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && len(d.Name()) > 6 && d.Name()[:6] == "hutch-" {
				left = append(left, "cgroup "+path)
			}
			return nil
		})
		if now, err := os.ReadFile("/proc/mounts"); err != nil || string(now) != mounts {
			left = append(left, "mounts: "+string(now))
		}
		for _, dir := range dirs {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				left = append(left, "file "+filepath.Join(dir, e.Name()))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}
