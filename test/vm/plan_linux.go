package main

import (
	"fmt"
	"slices"
)

// turn is one run of a test binary in a guest, as one user in one place.
type turn struct {
	Name    string
	Binary  string
	Tests   []string          // top-level tests; each must end
	Only    string            // of their subtests, a pattern; "" is all
	User    int               // uid
	Cgroup  string            // where it starts: see layout
	Tmpfs   bool              // worlds lie on a tmpfs, not on ext4
	Env     []string          // added
	Sysctls map[string]string // name, with slashes, and value while it lasts
}

// boot is one start of a guest.
type boot struct {
	name    string // "" is the main one
	append  string // to the kernel's command line
	reflink string // the file system with reflinks
	turns   []turn
}

// guestPlan is what the guest is told.
type guestPlan struct {
	Turns     []turn
	Reflink   string
	Initramfs bool // hutch runs in the kernel's first root, too
}

// Cgroups in which a turn can start, as systemd makes them.
const (
	inSession   = "/user.slice/user-0.slice/session-1.scope"                               // root's login
	inNone      = "/user.slice/user-1000.slice/session-2.scope"                            // a user's login: nothing is delegated there
	inDelegated = "/user.slice/user-1000.slice/user@1000.service/app.slice/terminal.scope" // a user's own
)

// What runs in each guest, by the packages that hold it.
var (
	limits = []string{
		"TestMemory", "TestSwap", "TestPids", "TestPidsAlone", "TestCPUs", "TestLimitsTogether", "TestCountsAreTheCgroups", "TestMissing", "TestDeadline", "TestOutput",
	}
	smoke = []string{"TestSmoke", "TestRam", "TestRenames", "TestNothingIsLeft"}       // the main job
	few   = []string{"TestSmoke", "TestMemory", "TestPids", "TestCPUs", "TestMissing"} // where no cgroup is to be had
	runs  = []string{
		"TestPromotionEqualsAPlainCopy", "TestRenameSemantics", "TestJail", "TestNoNetworkInside", "TestDeadlineKillsAForkBomb", "TestHostNodesKeepTheirModes",
	}
	mover   = []string{"TestMoveSurvivesBrokenWaits"}
	seccomp = []string{"TestKernel", "TestNotifyVerdicts"}
	refused = map[string]map[string]string{
		"user.max_user_namespaces=0":         {"user/max_user_namespaces": "0"},
		"user.max_mnt_namespaces=0":          {"user/max_mnt_namespaces": "0"},
		"kernel.unprivileged_userns_clone=0": {"kernel/unprivileged_userns_clone": "0"},
	}
)

// planOf says what is run on a kernel.
func planOf(series string) []boot {
	reflink := map[string]string{"6.1": "btrfs", "6.12": "xfs"}[series]
	if reflink == "" {
		reflink = "btrfs"
	}
	userRuns := "overlay"
	if series == "5.10" { // no overlay in a user namespace
		userRuns = "copy"
	}
	main := boot{reflink: reflink, turns: []turn{
		{Name: "root", Binary: "inside", Tests: slices.Concat(smoke, limits), Cgroup: inSession},
		{Name: "user delegated", Binary: "inside", Tests: slices.Concat(smoke, limits), User: 1000, Cgroup: inDelegated},
		{Name: "user", Binary: "inside", Tests: few, User: 1000, Cgroup: inNone},
		{Name: "run root", Binary: "run", Tests: runs, Only: "overlay", Cgroup: inSession},
		{Name: "run user", Binary: "run", Tests: runs, Only: userRuns, User: 1000, Cgroup: inNone},
		{Name: "seccomp", Binary: "filter", Tests: seccomp, User: 1000, Cgroup: inNone},
	}}
	if series != "5.10" {
		main.turns = append(main.turns, turn{Name: "mover", Binary: "jail", Tests: mover, User: 1000, Cgroup: inNone})
	}
	if series != "6.12" { // before Linux 6.6 a tmpfs keeps no attributes of users
		main.turns = append(main.turns, turn{Name: "user tmpfs", Binary: "inside", Tests: []string{"TestSmoke", "TestRenames"}, User: 1000, Cgroup: inNone, Tmpfs: true})
	}
	for name, sysctls := range refused {
		main.turns = append(main.turns, turn{
			Name: "refused " + name, Binary: "inside", Tests: []string{"TestRefused"}, User: 1000, Cgroup: inNone,
			Env: []string{"HUTCH_VM_REFUSED=" + name}, Sysctls: sysctls,
		})
	}
	boots := []boot{main}
	if series == "6.12" {
		env := []string{"HUTCH_VM_LANDLOCK=no", "HUTCH_VM_MEMORY=no"}
		less := boot{name: "less", append: "lsm=lockdown,yama,apparmor cgroup_disable=memory", reflink: reflink}
		for _, who := range []turn{{Name: "root", Cgroup: inSession}, {Name: "user delegated", User: 1000, Cgroup: inDelegated}} {
			who.Binary, who.Env, who.Tests = "inside", env, []string{"TestSmoke", "TestMissing", "TestMemory", "TestLimitsTogether"}
			less.turns = append(less.turns, who)
		}
		boots = append(boots, less)
	}
	return boots
}

func (t turn) pattern() string {
	names := ""
	for i, name := range t.Tests {
		if i > 0 {
			names += "|"
		}
		names += name
	}
	pattern := fmt.Sprintf("^(%s)$", names)
	if t.Only != "" {
		pattern += fmt.Sprintf("/^(%s)$", t.Only)
	}
	return pattern
}
