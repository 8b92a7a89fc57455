package machine

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed fetch.sh
var fetch string

// ErrNone says that a kernel, or QEMU, cannot be had here; the text says why.
var ErrNone = errors.New("not to be had here")

// Kernel is a Debian kernel that was fetched.
type Kernel struct {
	Series  string // as Fetch was asked for it
	Version string // uname -r
	Image   string
	Modules []string // in the order in which they must be loaded
}

// Fetch returns the kernel of a series ("5.10", "6.1", "6.12" or "newest"), from
// the cache, a directory, or else from Debian. QEMU is installed where root may.
func Fetch(cache, series string) (Kernel, error) {
	cmd := exec.Command("sh", "-c", fetch, "fetch.sh", cache, series)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		return Kernel{}, fmt.Errorf("%w: %s", ErrNone, strings.TrimSpace(string(out)))
	}
	if err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel %s: %w: %s%s", series, err, out, stderr.String())
	}
	dir := filepath.Join(cache, series)
	version, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		return Kernel{}, err
	}
	modules, err := filepath.Glob(filepath.Join(dir, "modules", "*.ko")) // sorted
	if err != nil {
		return Kernel{}, err
	}
	return Kernel{Series: series, Version: strings.TrimSpace(string(version)), Image: filepath.Join(dir, "kernel"), Modules: modules}, nil
}

// Pack adds to an archive what Boot needs.
func (k Kernel) Pack(a *Archive) error {
	for _, dir := range []string{"new", "dev", "proc", "sys", "tmp", "root"} {
		a.Dir(dir)
	}
	for _, path := range k.Modules {
		if err := a.File(filepath.Join("modules", filepath.Base(path)), path); err != nil {
			return err
		}
	}
	return nil
}

// Start is the parts of a start of QEMU that differ.
type Start struct {
	Initramfs string
	Append    string // to the kernel's command line
	Megabytes int    // of memory
	Disks     []Disk // /dev/vda and so on
}

// Disk is an image.
type Disk struct {
	Image   string
	Scratch bool // what the guest writes is dropped
}

// Command is QEMU with the guest's console as its standard output. The machine
// is of software alone: KVM within another virtual machine fails in too many
// ways, and would make two kinds of run of one.
func (k Kernel) Command(s Start) *exec.Cmd {
	args := []string{
		"-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", fmt.Sprint(s.Megabytes), "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-serial", "stdio", "-kernel", k.Image, "-initrd", s.Initramfs,
		// Of the kernel's own messages only the last, of a panic; and none of
		// the work that an emulated processor needs least.
		"-append", strings.TrimSpace("console=ttyS0 panic=-1 quiet loglevel=1 mitigations=off init_on_alloc=0 " + s.Append),
	}
	for i, d := range s.Disks {
		drive := fmt.Sprintf("id=d%d,if=none,format=raw,cache=writeback,file=%s", i, d.Image)
		if d.Scratch {
			drive += ",snapshot=on"
		}
		args = append(args, "-drive", drive, "-device", fmt.Sprintf("virtio-blk-pci,drive=d%d", i))
	}
	cmd := exec.Command("qemu-system-x86_64", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}
