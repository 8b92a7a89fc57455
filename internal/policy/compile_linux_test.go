package policy

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/plan"
	"hutch/internal/view"
)

func testBox() *Box {
	return &Box{
		User: view.User{UID: 1000, GID: 1000}, UIDMap: "1000 1000 1", GIDMap: "1000 1000 1",
		Policy:    InForce{Subprocess: true, FSRead: true, FSWrite: true, TTY: true, Debug: true},
		Workspace: "/home/u/project", Home: "/home/u", Hostname: "hutch", LandlockABI: 6, Filter: make([]byte, 16),
		Commands: func(bool, bool, bool) (told, untold []byte) { return make([]byte, 8), make([]byte, 16) },
		Mount:    Mount{Lower: "/home/u/project", Upper: "/state/upper", Work: "/state/work"},
		Show: []view.Show{
			{Path: "/etc", Mode: view.ReadOnly}, {Path: "/home/u/.cache/go-build", Mode: view.CopyOnWrite}, {Path: "/home/u/.pyenv", Mode: view.ReadOnly}, {Path: "/home/u/go/pkg/mod", Mode: view.CopyOnWrite},
			{Path: "/tmp/tools", Mode: view.ReadOnly}, {Path: "/usr", Mode: view.ReadOnly},
		},
		Links:     []view.Symlink{{Path: "/bin", Target: "usr/bin"}, {Path: "/home/u/link", Target: "project"}},
		Masks:     []string{"/etc/shadow"},
		CacheDirs: []string{"/state/cache0"},
	}
}

func compiled(t *testing.T, b *Box) []plan.Op {
	t.Helper()
	view, err := b.View()
	if err != nil {
		t.Fatal(err)
	}
	return append(b.Base().Ops, view.Ops...)
}

// find returns where the first step with this code, and this text among its
// strings, stands.
func find(t *testing.T, ops []plan.Op, code plan.Code, text string) int {
	t.Helper()
	at := slices.IndexFunc(ops, func(op plan.Op) bool {
		return op.Code == code && (text == "" || slices.Contains(op.Strings, text))
	})
	if at < 0 {
		t.Fatalf("the plan has no step %q with %q", code, text)
	}
	return at
}

func TestPlanIsInTheOrderTheKernelDemands(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		b := testBox()
		b.Privileged, b.Trusted = privileged, privileged
		ops := compiled(t, b)
		order := []int{
			find(t, ops, plan.Unshare, ""), find(t, ops, plan.Fork, ""), find(t, ops, plan.Root, ""),
			find(t, ops, plan.Rebind, "/tmp"), find(t, ops, plan.ReadOnly, "/proc/sys"), find(t, ops, plan.Bind, "/usr"), find(t, ops, plan.Rebind, "/home/u"),
			find(t, ops, plan.Rebind, "/home/u/.pyenv"), find(t, ops, plan.Bind, "/tmp/tools"),
			find(t, ops, plan.Overlay, "/home/u/project"), find(t, ops, plan.Mask, "/home/u/project/.hutch"), find(t, ops, plan.Mask, "/etc/shadow"),
			find(t, ops, plan.Pivot, ""), find(t, ops, plan.MaxUserNS, ""), find(t, ops, plan.BoundCaps, ""),
			find(t, ops, plan.DropCaps, ""), find(t, ops, plan.LandlockApply, ""), find(t, ops, plan.Seccomp, ""), find(t, ops, plan.Assert, ""), find(t, ops, plan.Serve, ""),
		}
		if !slices.IsSorted(order) {
			t.Errorf("privileged %v: steps stand at %v", privileged, order)
		}
		if last := ops[len(ops)-1]; last.Code != plan.Serve {
			t.Errorf("the last step is %q", last.Code)
		}
		find(t, ops, plan.Symlink, "/bin")
		if privileged {
			if ids, bound := find(t, ops, plan.IDs, ""), find(t, ops, plan.BoundCaps, ""); ids < bound {
				t.Error("ids are given up before the bounding set, which then cannot be")
			}
			find(t, ops, plan.UserNS, "")
		}
	}
}

func TestCachesOfTheHomeShareOneOverlay(t *testing.T) {
	b := testBox()
	if n := b.Caches(); n != 1 {
		t.Fatalf("%d layers for two caches of the home", n)
	}
	ops := compiled(t, b)
	hidden := find(t, ops, plan.Overlay, "/state/cache0/upper")
	if ops[hidden].Strings[0] != "/home/u" || ops[hidden].Strings[3] != "" {
		t.Errorf("overlay over %q at %q", ops[hidden].Strings[0], ops[hidden].Strings[3])
	}
	for _, path := range []string{"/home/u/.cache/go-build", "/home/u/go/pkg/mod"} {
		if at := find(t, ops, plan.Rebind, path); at < hidden || ops[at].A != 0 {
			t.Errorf("%s stands at %d, its overlay at %d", path, at, hidden)
		}
	}
	// Read-only, but of the same overlay: a socket in it is none any more.
	if at := find(t, ops, plan.Rebind, "/home/u/.pyenv"); at < hidden || ops[at].C != attrSystem {
		t.Errorf(".pyenv stands at %d with attributes %#x", at, ops[at].C)
	}
	b.ApartCaches, b.CacheDirs = true, []string{"/state/cache0", "/state/cache1"}
	if n := b.Caches(); n != 2 {
		t.Fatalf("%d layers for two caches apart", n)
	}
	ops = compiled(t, b)
	find(t, ops, plan.Overlay, "/home/u/go/pkg/mod")
}

func TestNothingOfTheHostIsWritable(t *testing.T) {
	for _, op := range compiled(t, testBox()) {
		if op.Code == plan.Bind && op.A&unix.MOUNT_ATTR_RDONLY == 0 {
			t.Errorf("%s is bound writable", op.Strings[0])
		}
		if op.Code == plan.Bind && op.A&unix.MOUNT_ATTR_NOSUID == 0 {
			t.Errorf("%s is bound with setuid", op.Strings[0])
		}
	}
}

func TestNetworkIsAbsentUnlessAsked(t *testing.T) {
	for _, network := range []bool{false, true} {
		b := testBox()
		b.Network = network
		ops := compiled(t, b)
		own := ops[find(t, ops, plan.Unshare, "")].A&unix.CLONE_NEWNET != 0
		if own == network {
			t.Errorf("network %v: a network namespace of its own: %v", network, own)
		}
	}
}

func TestHomeInsideTheWorkspaceIsTheWorkspaces(t *testing.T) {
	b := testBox()
	b.Workspace, b.Home, b.Show, b.Links = "/home/u", "/home/u", []view.Show{{Path: "/usr", Mode: view.ReadOnly}}, nil
	b.Mount.Lower, b.CacheDirs = "/home/u", nil
	for _, op := range compiled(t, b) {
		if op.Code == plan.Rebind && op.Strings[1] == "/home/u" {
			t.Error("an empty home was laid over the workspace")
		}
	}
}

func TestTheMoverIsOnlyWhereTheOverlayCannotRename(t *testing.T) {
	for _, c := range []struct {
		name    string
		trusted bool
		tree    string
		ram     bool
		want    bool
	}{
		{"overlay", false, "", false, true},
		{"layer in RAM", false, "", true, true},
		{"trusted overlay", true, "", false, false},
		{"copy", false, "/state/tree", false, false},
	} {
		b := testBox()
		b.Trusted, b.Privileged, b.Mount.Tree = c.trusted, c.trusted, c.tree
		if c.ram {
			b.Mount.Upper, b.Mount.Work = "", ""
		}
		ops := compiled(t, b)
		at := slices.IndexFunc(ops, func(op plan.Op) bool { return op.Code == plan.Commands && op.C&plan.CommandsRename != 0 })
		if (at >= 0) != c.want {
			t.Errorf("%s: the mover stands at %d", c.name, at)
		}
		// The mover must not carry the filter whose calls it answers, and
		// must have given up everything else.
		if at >= 0 && at < find(t, ops, plan.Seccomp, "") {
			t.Errorf("%s: the mover comes before the filter", c.name)
		}
	}
}

func TestDeterminismIsSetBeforeTheFilter(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		b := testBox()
		b.Policy.Deterministic = deterministic
		ops := compiled(t, b)
		for _, code := range []plan.Code{plan.Personality, plan.Umask} {
			at := slices.IndexFunc(ops, func(op plan.Op) bool { return op.Code == code })
			if at >= 0 != deterministic || at > find(t, ops, plan.Seccomp, "") {
				t.Errorf("deterministic %v: step %q stands at %d", deterministic, code, at)
			}
		}
	}
}

func TestWorkspaceIsShownAsThePolicySays(t *testing.T) {
	const workspace = "/home/u/project"
	for _, c := range []struct {
		name        string
		read, write bool
		tree        string
		want        plan.Code
		readOnly    bool
	}{
		{"written", true, true, "", plan.Overlay, false},
		{"read-only", true, false, "", plan.Overlay, true},
		{"a tree, written", true, true, "/state/tree", plan.Bind, false},
		{"a tree, read-only", true, false, "/state/tree", plan.Bind, true},
		{"absent", false, false, "", plan.Rebind, true},
		{"a tree, absent", false, false, "/state/tree", plan.Rebind, true},
	} {
		b := testBox()
		b.Policy.FSRead, b.Policy.FSWrite, b.Mount.Tree = c.read, c.write, c.tree
		ops := compiled(t, b)
		found, readOnly := false, false
		for _, op := range ops {
			if !slices.Contains(op.Strings, workspace) {
				continue
			}
			switch op.Code {
			case plan.Overlay, plan.Bind:
				found = found || op.Code == c.want
				readOnly = readOnly || op.A&unix.MOUNT_ATTR_RDONLY != 0
				if op.Code != c.want {
					t.Errorf("%s: the workspace is mounted by %v", c.name, op.Code)
				}
			case plan.Rebind:
				found = found || op.Code == c.want
			case plan.ReadOnly:
				readOnly = true
			}
		}
		if !found || readOnly != c.readOnly {
			t.Errorf("%s: found %v, read-only %v", c.name, found, readOnly)
		}
	}
}

func TestPortsAreLandlocks(t *testing.T) {
	b := testBox()
	b.Policy.Network, b.Network, b.Ports = true, true, make([]byte, 24)
	b.Policy.Connect, b.Policy.Bind = []uint16{443, 80}, []uint16{8080}
	ops := compiled(t, b)
	if ruleset := ops[find(t, ops, plan.Landlock, "")]; ruleset.B != landlockBind|landlockConnect {
		t.Errorf("the ruleset handles %#x of the network", ruleset.B)
	}
	var rules [][2]uint64
	filters := 0
	for _, op := range ops {
		switch op.Code {
		case plan.LandlockPort:
			rules = append(rules, [2]uint64{op.A, op.B})
		case plan.Seccomp:
			filters++
		}
	}
	if want := [][2]uint64{{landlockBind, 8080}, {landlockConnect, 443}, {landlockConnect, 80}}; !slices.Equal(rules, want) {
		t.Errorf("rules %v, want %v", rules, want)
	}
	if filters != 2 {
		t.Errorf("%d filters, want one for the ways past Landlock too", filters)
	}
	b.Policy.Bind = nil
	ops = compiled(t, b)
	if ruleset := ops[find(t, ops, plan.Landlock, "")]; ruleset.B != landlockConnect {
		t.Errorf("without named ports to listen at the ruleset handles %#x of the network", ruleset.B)
	}
	b.LandlockABI = 3
	if _, err := b.View(); err == nil || !strings.Contains(err.Error(), "Landlock") {
		t.Errorf("ports on a kernel that cannot hold them: %v", err)
	}
}

func TestLandlockGivesNoMoreThanThePolicy(t *testing.T) {
	for _, write := range []bool{true, false} {
		b := testBox()
		b.Workspace, b.Policy.FSWrite = "/srv/project", write
		for _, op := range compiled(t, b) {
			if op.Code == plan.LandlockPath && op.Strings[0] == "/srv/project" && !write {
				t.Errorf("rights %#x to a workspace that may not be written", op.A)
			}
		}
		granted := slices.ContainsFunc(compiled(t, b), func(op plan.Op) bool {
			return op.Code == plan.LandlockPath && op.Strings[0] == "/srv/project"
		})
		if granted != write {
			t.Errorf("fs_write %v: the workspace has a rule: %v", write, granted)
		}
	}
}

func TestABoxThatLivesIsMadeWithoutItsBranch(t *testing.T) {
	for _, privileged := range []bool{false, true} {
		b := testBox()
		b.Privileged, b.Trusted, b.Resident = privileged, privileged, true
		b.Masks = append(b.Masks, "/home/u/project/.env")
		told := false
		b.Commands = func(renames, _, _ bool) ([]byte, []byte) { told = renames; return make([]byte, 8), make([]byte, 16) }
		ops := compiled(t, b)
		point := find(t, ops, plan.Dir, "/home/u/project")
		if pivot := find(t, ops, plan.Pivot, ""); point > pivot {
			t.Errorf("privileged %v: the mount point is made at %d, and the root is read-only from %d on", privileged, point, pivot)
		}
		root := ops[find(t, ops, plan.SendFD, "/")]
		if root.A != plan.TagRoot {
			t.Errorf("privileged %v: the root is sent with tag %d", privileged, root.A)
		}
		above := ops[find(t, ops, plan.LandlockPath, "/home/u")]
		if above.A&landlockWrite == 0 {
			t.Errorf("privileged %v: nothing may be written below the mount point: rights %#x", privileged, above.A)
		}
		for _, op := range ops {
			switch {
			case op.Code == plan.Overlay && slices.Contains(op.Strings, b.Workspace):
				t.Errorf("privileged %v: the branch is mounted by the plan", privileged)
			case op.Code == plan.Mask && strings.HasPrefix(op.Strings[0], b.Workspace+"/"):
				t.Errorf("privileged %v: %s is masked, which the next mount undoes", privileged, op.Strings[0])
			case op.Code == plan.LandlockPath && op.Strings[0] == b.Workspace:
				t.Errorf("privileged %v: a rule on what is mounted over", privileged)
			case op.Code == plan.Serve && op.A != 0:
				t.Errorf("privileged %v: it ends with its first command", privileged)
			}
		}
		if !told {
			t.Errorf("privileged %v: nobody moves directories, and the overlay must not", privileged)
		}
		find(t, ops, plan.Mask, "/etc/shadow")
	}

	b := testBox()
	b.Resident, b.Policy.FSWrite, b.Workspace, b.Links = true, false, "/srv/code/project", nil
	for _, op := range compiled(t, b) {
		if op.Code == plan.LandlockPath && op.Strings[0] == "/srv/code" {
			t.Error("a workspace that is read-only can be written to as far as Landlock is asked")
		}
	}
}
