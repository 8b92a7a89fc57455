package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Where the disk of the guest is mounted, and what lies on it.
const (
	diskAt    = "/disk"
	workspace = "ws"
	state     = "state"
)

// guest is the guest's init: it promotes generation after generation and says
// so on the console, until the machine dies. It never returns.
func guest() {
	fmt.Println("FAILED", strings.ReplaceAll(generations().Error(), "\n", "; "))
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// generations goes on until something fails.
func generations() error {
	if err := boot(); err != nil {
		return err
	}
	ws := filepath.Join(diskAt, workspace)
	if _, err := hutch("recover"); err != nil {
		return err
	}
	n, err := generation(ws)
	if err != nil {
		return err
	}
	fmt.Println("AT", n)
	for {
		n++
		out, err := hutch("run", "--json", "--preserve", "--", "/bin/guest", "become", fmt.Sprint(n))
		if err != nil {
			return err
		}
		var box struct{ ID string }
		if err := json.Unmarshal(out, &box); err != nil {
			return err
		}
		fmt.Println("BEGIN", n)
		if _, err := hutch("commit", box.ID); err != nil {
			return err
		}
		fmt.Println("DONE", n)
	}
}

func hutch(args ...string) ([]byte, error) {
	cmd := exec.Command("/bin/hutch", args...)
	cmd.Dir = filepath.Join(diskAt, workspace)
	cmd.Env = []string{"PATH=/bin", "HOME=/root", "TMPDIR=/tmp", "XDG_STATE_HOME=" + filepath.Join(diskAt, state)}
	out, err := cmd.Output()
	if err != nil {
		why := ""
		if exit, ok := err.(*exec.ExitError); ok {
			why = string(exit.Stderr)
		}
		return out, fmt.Errorf("hutch %q: %w: %s %s", args, err, why, out)
	}
	return out, nil
}

// boot makes a system of an initial RAM file system: the root moves to a tmpfs,
// since nobody can pivot away from the first one, and the disk is mounted.
func boot() error {
	mount := func(source, at, fs string, flags uintptr, data string) error {
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, at, fs, flags, data); err != nil {
			return fmt.Errorf("mount %s: %w", at, err)
		}
		return nil
	}
	if err := mount("tmpfs", "/new", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"bin", "etc", "modules", "root", "tmp", "usr"} {
		if err := copyTree("/"+dir, "/new/"+dir); err != nil {
			return err
		}
	}
	for _, fs := range [][2]string{{"proc", "proc"}, {"sysfs", "sys"}, {"devtmpfs", "dev"}} {
		if err := mount(fs[0], "/new/"+fs[1], fs[0], 0, ""); err != nil {
			return err
		}
	}
	if err := os.Chdir("/new"); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	modules, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(modules)
	for _, path := range modules {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
			return fmt.Errorf("load %s: %w", path, err)
		}
		f.Close()
	}
	text, err := os.ReadFile("/etc/disk")
	if err != nil {
		return err
	}
	return mount("/dev/vda", diskAt, string(text), 0, "")
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := to + strings.TrimPrefix(path, from)
		if d.IsDir() {
			return os.MkdirAll(at, 0o755)
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, in)
		out.Close()
		return err
	})
}
