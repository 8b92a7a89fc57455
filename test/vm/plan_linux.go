package main

import (
	"fmt"
	"slices"
	"strings"
)

// turn is one run of a test binary in a guest, as one user in one place.
type turn struct {
	Name   string
	Binary string
	Tests  []string  // top-level tests; each must end
	Only   string    // of their subtests, a pattern; "" is all
	Least  int       // so many of those, two levels down, must end
	User   int       // uid
	Cgroup string    // where it starts: see layout
	Tmpfs  bool      // worlds lie on a tmpfs, not on ext4
	Env    []string  // added
	Sysctl [2]string // name, with slashes, and value while it lasts
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
	few    = []string{"TestMissing", "TestPids", "TestMemory"}
	smoke  = slices.Concat(few, []string{"TestRenames"})
	more   = []string{"TestSmoke", "TestRam", "TestSwap", "TestCounts"}
	limits = []string{
		"TestMemoryLimit", "TestGroupsOfTheKilledAreRemoved", "TestCPULimit", "TestPidsLimit",
		"TestCPUTimeLimit", "TestDiskLimitOfALayerInRAM", "TestLimitsTogether",
	}
	runs    = []string{"TestRenameSemantics", "TestHostNodesKeepTheirModes", "TestJail"}
	seccomp = []string{"TestKernel", "TestCompat"}
	// Attacks by what may differ from kernel to kernel: namespaces, /proc,
	// descriptors, calls that are refused, neighbours.
	tried = []string{
		"exe-overwrite", "fd-init-steal", "chroot-breakout", "old-root-reach", "host-secret-read", "masked-unmask", "proc-sys-write", "userns-again", "mount-anything", "trace-others",
		"keyrings", "compat-abi", "socket-families", "setns", "notify-race", "cgroup-clone", "cgroup-escape", "unix-abstract", "unix-path", "kill-host",
	}
	refused = [][2]string{{"user/max_user_namespaces", "0"}, {"user/max_mnt_namespaces", "0"}, {"kernel/unprivileged_userns_clone", "0"}}
)

// planOf says what is run on a kernel. In short, what runs as root and as an
// ordinary user runs on 6.12 as the one and on 6.1 as the other, with a quarter of
// the attacks each.
func planOf(series string, short bool) []boot {
	reflink := "btrfs"
	if series == "6.12" {
		reflink = "xfs"
	}
	root, delegated, user := turn{Cgroup: inSession}, turn{User: 1000, Cgroup: inDelegated}, turn{User: 1000, Cgroup: inNone}
	named := func(name string, t turn, binary string, only string, tests ...string) turn {
		t.Name, t.Binary, t.Only, t.Tests = name, binary, only, tests
		return t
	}
	main := boot{reflink: reflink}
	if series == "5.10" {
		main.turns = []turn{
			named("root", root, "inside", "", "TestTooOld"),
			named("user delegated", delegated, "inside", "", "TestTooOld"),
			named("user", user, "inside", "", "TestTooOld"),
		}
		return []boot{main}
	}
	add := func(turns ...turn) { main.turns = append(main.turns, turns...) }
	asRoot, asUser := slices.Concat(smoke, more), slices.Concat(smoke, more)
	switch {
	case short && series == "6.12":
		asUser = smoke
	case short:
		asRoot = smoke
	}
	add(
		named("root", root, "inside", "", asRoot...),
		named("user delegated", delegated, "inside", "", asUser...),
		named("user", user, "inside", "", few...),
	)
	attempts, limits, runs := tried, limits, runs
	if short {
		attempts, limits, runs = nil, limits[:4], runs[:2] // limits that a cgroup holds
		for i, name := range tried {
			if i%4 == map[string]int{"6.1": 0, "6.12": 2}[series] {
				attempts = append(attempts, name)
			}
		}
	}
	attack := strings.Join(attempts, "|") + ")$/./^(overlay|copy|reflink-.*"
	if !short || series == "6.12" {
		add(
			named("limits root", root, "limits", "overlay|uid .*", limits...),
			named("run root", root, "run", "overlay", runs...),
			named("report root", root, "attack", "", "TestReport"),
			named("attacks root", root, "attack", attack, "TestAttacks"),
		)
		main.turns[len(main.turns)-1].Least = len(attempts)
	}
	if !short || series != "6.12" {
		add(
			named("limits user delegated", delegated, "limits", "overlay|uid .*", limits...),
			named("run user", user, "run", "overlay", runs...),
			named("report user", user, "attack", "", "TestReport"),
			named("attacks user", user, "attack", attack, "TestAttacks"),
		)
		main.turns[len(main.turns)-1].Least = len(attempts)
	}
	if !short {
		add(
			named("mover", user, "jail", "", "TestMoveSurvivesBrokenWaits"),
			named("disk", user, "limits", "overlay", "TestDiskLimit"),
		)
	}
	add(named("seccomp", user, "filter", "", seccomp...))
	if series != "6.12" { // before Linux 6.6 a tmpfs keeps no attributes of users
		t := named("user tmpfs", user, "inside", "", "TestRenames", "TestSmoke")
		if short {
			t.Tests = t.Tests[:1]
		}
		t.Tmpfs, t.Env = true, []string{"HUTCH_VM_TMPFS=yes"}
		add(t)
	}
	for _, setting := range refused {
		name := strings.ReplaceAll(setting[0], "/", ".")
		t := named("refused "+name, user, "inside", "", "TestRefused")
		t.Env, t.Sysctl = []string{"HUTCH_VM_REFUSED=" + name}, setting
		add(t)
	}
	boots := []boot{main}
	if series == "6.12" {
		less := boot{name: "less", append: "lsm=lockdown,yama,apparmor cgroup_disable=memory", reflink: reflink, turns: []turn{
			named("root", root, "inside", "", few...),
			named("user delegated", delegated, "inside", "", few...),
		}}
		for i := range less.turns {
			less.turns[i].Env = []string{"HUTCH_VM_LANDLOCK=no", "HUTCH_VM_MEMORY=no"}
		}
		if short {
			less.turns = less.turns[1:]
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
