package box

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/plan"
)

// What a kernel that refuses says, and that hutch meets it, is tested in guests
// (test/vm); here, that each setting is named, and the way out of it.
func TestRefusalsNameTheirCause(t *testing.T) {
	for _, c := range []struct {
		setting string
		value   int
		want    string
	}{
		{"user.max_user_namespaces", 0, "sysctl user.max_user_namespaces=15000"},
		{"user.max_mnt_namespaces", 0, "sysctl user.max_mnt_namespaces=15000"},
		{"user.max_net_namespaces", 0, "sysctl user.max_net_namespaces=15000"},
		{"kernel.unprivileged_userns_clone", 0, "sysctl kernel.unprivileged_userns_clone=1"},
		{"kernel.apparmor_restrict_unprivileged_userns", 1, "sysctl kernel.apparmor_restrict_unprivileged_userns=0"},
		{"kernel.apparmor_restrict_unprivileged_userns", 0, "security module"},
		{"user.max_user_namespaces", 100, "security module"},
	} {
		got := noNamespaces(func(name string) (int, bool) { return c.value, name == c.setting })
		if !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%s=%d: %q, want %q in it", c.setting, c.value, got, c.want)
		}
	}
}

func TestAnInitramfsCannotBeLeft(t *testing.T) {
	err := explain(fmt.Errorf("box: %w", &jail.StepError{Op: plan.Pivot, Arg: "pivot_root", Err: unix.EINVAL}))
	if !strings.Contains(err.Error(), "switch_root") {
		t.Error(err)
	}
}

func TestAMissingCallNamesTheKernel(t *testing.T) {
	if got := noCall(false); !strings.Contains(got, "Linux 5.12") {
		t.Error(got)
	}
	err := explain(&jail.StepError{Op: plan.Bind, Arg: "/dev/full", Err: unix.ENOSYS})
	if !strings.Contains(err.Error(), "seccomp profile") && !strings.Contains(err.Error(), "Linux 5.12") {
		t.Error(err)
	}
}
