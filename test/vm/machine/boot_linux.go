package machine

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Boot makes a system of the first root file system: the root moves to a tmpfs,
// since before Linux 7 nobody can pivot away from the first one, and the modules
// are loaded. For PID 1 of a guest.
func Boot() error {
	if err := Mount("tmpfs", "/new", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	own := []string{"new", "proc", "sys", "dev"}
	for _, e := range entries {
		if slices.Contains(own, e.Name()) {
			continue
		}
		if err := move("/"+e.Name(), "/new/"+e.Name()); err != nil {
			return err
		}
	}
	for _, fs := range [][2]string{{"proc", "proc"}, {"sysfs", "sys"}, {"devtmpfs", "dev"}} {
		// Mounted on the first root already, by a guest that had to look.
		_ = unix.Unmount("/"+fs[1], unix.MNT_DETACH)
		if err := Mount(fs[0], "/new/"+fs[1], fs[0], 0, ""); err != nil {
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
	return loadModules()
}

// Mount mounts, and makes the directory to mount on.
func Mount(source, at, fs string, flags uintptr, data string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, fs, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return nil
}

// PowerOff ends the guest.
func PowerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func loadModules() error {
	modules, err := filepath.Glob("/modules/*.ko") // sorted
	if err != nil {
		return err
	}
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
	return nil
}

// move copies a tree, and removes each file once it is copied: both are memory.
func move(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		at := to + strings.TrimPrefix(path, from)
		switch {
		case d.IsDir():
			return os.MkdirAll(at, 0o755)
		case d.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, at)
		case !d.Type().IsRegular():
			return nil
		}
		in, err := os.Open(path)
		if err != nil {
			return err
		}
		defer in.Close()
		info, err := in.Stat()
		if err != nil {
			return err
		}
		out, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY, info.Mode().Perm())
		if err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
		if err := out.Close(); err != nil {
			return err
		}
		return os.Remove(path)
	})
}
