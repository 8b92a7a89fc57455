package box

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/plan"
)

// explain adds the cause and what to do to the kernel's refusals that users
// meet.
func explain(err error) error {
	var step *jail.StepError
	if !errors.As(err, &step) {
		return err
	}
	switch {
	case step.Op == plan.Unshare || step.Op == plan.Map || step.Op == plan.UserNS:
		return fmt.Errorf("no box can be made here: %w; %s", err, noNamespaces(sysctl))
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("no box can be made here: %w; %s", err, noCall(kernelAtLeast(5, 12)))
	case step.Op == plan.Pivot && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("no box can be made here: %w; the root of this system is the kernel's first one (an initramfs), which cannot be left before Linux 7: switch_root to another file system first", err)
	case errors.Is(err, unix.EOVERFLOW):
		return fmt.Errorf("%w; the workspace holds files of users or groups that an ordinary user's box cannot map: use --strategy reflink or copy", err)
	case step.Op == plan.Overlay:
		return fmt.Errorf("%w; this workspace cannot be an overlay's lower directory (a mount inside it, or a file system that refuses): use --strategy reflink or copy", err)
	}
	return fmt.Errorf("no box can be made here: %w", err)
}

// noCall says why a system call is not there. mount_setattr, of Linux 5.12, is
// the youngest that no box can do without.
func noCall(young bool) string {
	if young {
		return "this kernel is young enough to have it, so a seccomp profile refuses it: that of a container, which root there can change"
	}
	return "hutch needs Linux 5.12 or later"
}

// noNamespaces says which setting refuses namespaces, and what undoes it. The
// kernel's answers are of no help: ENOSPC, EPERM and EACCES have each several
// causes.
func noNamespaces(sysctl func(string) (int, bool)) string {
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		if name := "user.max_" + kind + "_namespaces"; is(sysctl, name, 0) {
			return fmt.Sprintf("%s is 0; root can allow them: sysctl %s=15000", name, name)
		}
	}
	if name := "kernel.unprivileged_userns_clone"; is(sysctl, name, 0) {
		return fmt.Sprintf("%s is 0; root can allow them: sysctl %s=1", name, name)
	}
	if name := "kernel.apparmor_restrict_unprivileged_userns"; is(sysctl, name, 1) {
		return fmt.Sprintf("%s is 1; root can allow hutch to make them by an AppArmor profile that has userns, or everyone: sysctl %s=0", name, name)
	}
	if _, err := os.Stat("/proc/self/ns/user"); err != nil {
		return "this kernel was built without user namespaces (CONFIG_USER_NS)"
	}
	return "user namespaces are not allowed here: in a container its seccomp profile may refuse them, or a security module"
}

func is(sysctl func(string) (int, bool), name string, value int) bool {
	n, ok := sysctl(name)
	return ok && n == value
}

// sysctl reads a setting of the kernel that is a number.
func sysctl(name string) (int, bool) {
	text, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	return n, err == nil
}
