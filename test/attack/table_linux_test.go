package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An attack is a row of the table: what runs, as whom, and how it is judged.
type attack struct {
	name, kind string
	run        string   // the program's name for it; "" is name
	params     []string // KEY=VALUE for the program
	flags      []string // of hutch run
	strategies bool     // one for each strategy: it is about files or promotion
	changes    []string // what the snapshot of the canaries may show changed
	seldom     bool     // takes long: not in the sample
	keeps      bool     // hutch keeps something of it on purpose
	onlyLive   bool     // it is about what only a box that lives has
	notLive    string   // why it is not made in a box that lives
	notAs      string   // a user as whom it is not held, which docs/security.md says
	setup      func(st *stage)
	verdict    func(a *account) (string, string) // nil: account.judge
	asked      func(a *account, id string)       // what the user asks of the box afterwards; id is "" without one
	// watchMemory looks at how much memory hutch itself takes.
	watchMemory bool

	guard guard
}

// A guard is what stands against an attack, and how it is left out.
type guard struct {
	bare    bool                              // no box at all
	without string                            // steps of the plan, by name
	flags   []string                          // of hutch run, then
	verdict func(a *account) (string, string) // nil: as with the guard
	none    string                            // why it cannot be left out
	root    string                            // why it shows only where root may be attacked
}

func (a *attack) program() string {
	if a.run != "" {
		return a.run
	}
	return a.name
}

const (
	aboutFiles      = "files"
	aboutKernel     = "kernel"
	aboutNeighbours = "neighbours"
	aboutDenial     = "denial"
	aboutPromotion  = "promotion"
	aboutPolicy     = "policy"
)

var unguarded = guard{bare: true}

// rootOnly is a guard that shows only with root's rights: the kernel refuses
// an ordinary user by itself.
var rootOnly = guard{bare: true, root: "the kernel refuses an ordinary user by itself"}

// The steps of a plan that make up its two walls.
const (
	filters  = "seccomp,filter of commands"
	landlock = "landlock,landlock path,landlock port,landlock apply"
)

func filterOff(more ...string) guard {
	return guard{without: strings.Join(append([]string{filters}, more...), ",")}
}

// attacks is the table.
var attacks = []attack{
	{name: "exe-overwrite", kind: aboutFiles, strategies: true, guard: unguarded},
	{name: "fd-leak-list", kind: aboutFiles, guard: guard{none: "the descriptors are closed by number right before the command starts, by no step of the plan"}},
	{name: "fd-init-steal", kind: aboutFiles, guard: unguarded},
	{name: "chroot-breakout", kind: aboutFiles, strategies: true, guard: unguarded},
	{name: "old-root-reach", kind: aboutFiles, strategies: true, guard: unguarded},
	{name: "handle-guess", kind: aboutFiles, guard: filterOff()},
	{name: "host-secret-read", kind: aboutFiles, strategies: true, guard: unguarded},
	{name: "walk-view", kind: aboutFiles, strategies: true, guard: unguarded},
	{name: "suid-gain", kind: aboutFiles, setup: plantSetuid, guard: guard{bare: true, root: ""}, changes: []string{"ws/suid", "ws/fcaps"}},
	{name: "device-open", kind: aboutFiles, guard: unguarded},
	{name: "masked-unmask", kind: aboutFiles, guard: guard{without: "mask"}},
	{name: "proc-sys-write", kind: aboutFiles, guard: guard{bare: true, root: "the kernel refuses an ordinary user by itself"}},

	{name: "userns-again", kind: aboutKernel, guard: filterOff("max_user_namespaces", "assert")},
	{name: "userns-again-unfiltered", kind: aboutKernel, run: "userns-again", guard: guard{none: "it is an attack on the second guard, the count of user namespaces, with the first left out"}, setup: withoutFilter, verdict: secondWall, notLive: "what is tried is the wall behind, which is the same"},
	{name: "mount-anything", kind: aboutKernel, guard: unguarded},
	{name: "trace-others", kind: aboutKernel, guard: unguarded},
	{name: "userfaultfd", kind: aboutKernel, guard: filterOff()},
	{name: "io-uring", kind: aboutKernel, guard: filterOff()},
	{name: "bpf", kind: aboutKernel, guard: rootOnly},
	{name: "perf-event", kind: aboutKernel, guard: filterOff()},
	{name: "keyrings", kind: aboutKernel, guard: filterOff()},
	{name: "keyring-of-host", kind: aboutKernel, setup: withoutFilter, verdict: secondWall, guard: guard{bare: true}, notLive: "what is tried is the wall behind, which is the same"},
	{name: "machine-calls", kind: aboutKernel, guard: filterOff()},
	{name: "fanotify", kind: aboutKernel, guard: filterOff()},
	{name: "compat-abi", kind: aboutKernel, guard: filterOff()},
	{name: "tiocsti", kind: aboutKernel, guard: filterOff()},
	{name: "tiocsti-tty", kind: aboutKernel, run: "tiocsti", flags: []string{"--tty"}, guard: filterOff()},
	{name: "socket-families", kind: aboutKernel, guard: filterOff()},
	{name: "setns", kind: aboutKernel, guard: filterOff()},
	{name: "notify-race", kind: aboutKernel, strategies: true, guard: guard{none: "the mover has the box's own rights, so no check of names stands between it and the host"}},
	{name: "cgroup-clone", kind: aboutKernel, guard: filterOff()},
	{name: "cgroup-escape", kind: aboutKernel, flags: []string{"--pids", "200"}, guard: unguarded},
	{name: "every-number", kind: aboutKernel, guard: guard{none: "it only looks whether any number upsets the box"}},

	{name: "unix-abstract", kind: aboutNeighbours, guard: unguarded},
	{name: "unix-abstract-net", kind: aboutNeighbours, run: "unix-abstract", flags: []string{"--allow-net"}, params: []string{"net=1"}, guard: guard{without: landlock}},
	{name: "unix-path", kind: aboutNeighbours, strategies: true, guard: unguarded},
	{name: "unix-path-shown", kind: aboutNeighbours, run: "unix-path", setup: showSocket, notAs: "owner", guard: unguarded},
	{name: "unix-path-net", kind: aboutNeighbours, run: "unix-path", flags: []string{"--allow-net"}, guard: unguarded},
	{name: "ipc-names", kind: aboutNeighbours, guard: guard{without: "ipc"}},
	{name: "kill-host", kind: aboutNeighbours, guard: unguarded},
	{name: "kill-host-net", kind: aboutNeighbours, run: "kill-host", flags: []string{"--allow-net"}, guard: unguarded},
	{name: "net-default", kind: aboutNeighbours, guard: guard{without: "net,loopback"}},
	{name: "env-leak", kind: aboutNeighbours, setup: secretEnvironment, guard: unguarded},
	{name: "residue", kind: aboutNeighbours, run: "residue-find", setup: leaveResidue, guard: unguarded, notLive: "the commands of one box share what they leave"},

	{name: "daemon-socket", kind: aboutNeighbours, onlyLive: true, setup: showDaemon, guard: guard{bare: true, verdict: answered}},
	{name: "files-asked-for", kind: aboutNeighbours, onlyLive: true, asked: askForFiles, changes: []string{"ws/links"}, guard: unguarded},

	{name: "fork-bomb", kind: aboutDenial, flags: []string{"--pids", "64"}, verdict: bounded, guard: unguarded},
	{name: "memory-anonymous", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=anonymous"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: unguarded},
	{name: "memory-shared", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=shared"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: unguarded},
	{name: "memory-processes", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=processes"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: unguarded},
	{name: "memory-tmpfs", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=tmpfs"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: unguarded},
	{name: "memory-shm", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=shm"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: unguarded},
	{name: "memory-memfd", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=memfd", "slowly=2000"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: unguarded},
	{name: "memory-pipes", kind: aboutDenial, run: "memory-bomb", params: []string{"kind=pipes"}, flags: []string{"--memory", "64M"}, verdict: bounded, guard: guard{none: "the kernel bounds a user's pipe buffers by itself"}},
	{name: "output-flood", kind: aboutDenial, watchMemory: true, keeps: true, verdict: flatMemory, guard: guard{none: "hutch's memory does not grow by any switch"}},
	{name: "orphans", kind: aboutDenial, verdict: noOrphans, guard: unguarded},
	{name: "confuse-init", kind: aboutDenial, verdict: goesOn, guard: unguarded},
	{name: "deep-and-many", kind: aboutDenial, strategies: true, seldom: true, guard: guard{none: "what is tried is that the clearing ends"}},
	{name: "cpu-spin", kind: aboutDenial, flags: []string{"--timeout", "1s"}, verdict: timedOut, guard: rootOnly},

	{name: "disk-bomb", kind: aboutDenial, strategies: true, flags: []string{"--disk", "16M"}, verdict: diskBounded, guard: guard{bare: true}},
	{name: "disk-bomb-ram", kind: aboutDenial, run: "disk-bomb", flags: []string{"--disk", "16M", "--layer", "ram"}, verdict: diskBounded, guard: guard{bare: true}},
	{name: "inode-bomb", kind: aboutDenial, strategies: true, run: "disk-bomb", params: []string{"files=4000"}, flags: []string{"--files", "500"}, verdict: diskBounded, guard: guard{bare: true}},

	{name: "no-subprocess", kind: aboutPolicy, flags: []string{"--no-subprocess"}, guard: unguarded},
	{name: "read-only", kind: aboutPolicy, strategies: true, flags: []string{"--read-only"}, guard: guard{bare: true}},
	{name: "ports", kind: aboutPolicy, flags: []string{"--allow-net", "--connect", "1", "--bind", "1"}, guard: guard{without: landlock + "," + filters}},

	{name: "symlink-out", kind: aboutPromotion, strategies: true, flags: []string{"--commit"}, changes: []string{"ws", "home/.cache"}, verdict: nothingOutside, guard: guard{bare: true, verdict: wroteThrough}},
	{name: "odd-names", kind: aboutPromotion, strategies: true, flags: []string{"--commit"}, changes: []string{"ws"}, verdict: nothingOutside, guard: guard{bare: true}},
	{name: "handoffs", kind: aboutPromotion, strategies: true, flags: []string{"--commit", "--git", "include"}, changes: []string{"ws"}, verdict: heldBack, guard: guard{bare: true}},
	{name: "rights", kind: aboutPromotion, strategies: true, flags: []string{"--commit"}, changes: []string{"ws"}, verdict: noRights, guard: guard{bare: true}},
	{name: "odd-nodes", kind: aboutPromotion, strategies: true, flags: []string{"--commit"}, changes: []string{"ws"}, verdict: noNodes, guard: guard{bare: true}},
	{name: "overlay-forge", kind: aboutPromotion, strategies: true, flags: []string{"--commit"}, changes: []string{"ws"}, verdict: nothingForged, guard: guard{none: "the marks of the other mode are not believed by any switch; internal/changeset tries them one by one"}},
	{name: "overlay-planted", kind: aboutPromotion, strategies: true, flags: []string{"--commit"}, setup: plantMarks, changes: []string{"ws"}, verdict: nothingForged, guard: guard{none: "as overlay-forge"}},
}

// plantSetuid puts programs with rights into the workspace, where the harness
// may.
func plantSetuid(st *stage) {
	if !root() {
		return
	}
	text, err := os.ReadFile(st.program)
	must(st.t, err)
	for _, name := range []string{"suid", "fcaps"} {
		path := filepath.Join(st.Dir, name)
		must(st.t, os.WriteFile(path, text, 0o755))
		st.param("%s=%s", name, path)
	}
	must(st.t, os.Chmod(filepath.Join(st.Dir, "suid"), 0o4755|os.ModeSetuid))
	// cap_sys_admin, permitted and effective.
	capability := []byte{1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	must(st.t, unix.Setxattr(filepath.Join(st.Dir, "fcaps"), "security.capability", capability, 0))
}

// showSocket puts a listening socket into a part of the home that is shown: what
// lies beside the user's own programs.
func showSocket(st *stage) {
	must(st.t, os.MkdirAll(filepath.Join(st.Home, ".local", "bin"), 0o755))
	must(st.t, os.MkdirAll(filepath.Join(st.Home, ".local", "lib"), 0o755))
	must(st.t, os.MkdirAll(filepath.Join(st.Home, ".cache", "go-build"), 0o755))
	must(st.t, os.WriteFile(filepath.Join(st.Home, ".local", "bin", "own"), []byte("#!/bin/sh\n"), 0o755))
	st.Env = append(st.Env, "PATH="+filepath.Join(st.Home, ".local", "bin")+":"+os.Getenv("PATH"))
	st.serve("a socket beside the user's programs", filepath.Join(st.Home, ".local", "lib", "d.sock"), 4)
	if st.who.uid != os.Getuid() {
		filepath.WalkDir(st.Home, func(path string, _ os.DirEntry, _ error) error { return os.Lchown(path, st.who.uid, st.who.uid) })
	}
}

// showDaemon shows the box its daemon's socket.
func showDaemon(st *stage) {
	st.t.Helper()
	dir := filepath.Join(st.beside, "daemon")
	must(st.t, os.Mkdir(dir, 0o755))
	st.live(filepath.Join(dir, "s"))
	st.want(st.Run("daemon", "start"))
	st.moreFlags = append(st.moreFlags, "--read", dir)
	st.param("daemon=%s", filepath.Join(dir, "s"))
}

// answered: without a box the daemon answers its own user.
func answered(a *account) (string, string) {
	v, why := a.judge()
	if v == Held && a.st.who.uid != os.Getuid() {
		return NotApplicable, "root's hutchd lets in root only"
	}
	return v, why
}

// askForFiles asks for the files of a box by the names of links that it made.
func askForFiles(a *account, id string) {
	names := []string{"secret", "neighbour", "up", "root/etc/hostname", "fd/0"}
	for range 40 {
		names = append(names, "swap/secret")
	}
	for _, name := range names {
		if id != "" {
			a.text += a.st.Run("box", "cat", id, "links/"+name).Stdout
		} else if text, err := os.ReadFile(filepath.Join(a.st.Dir, "links", name)); err == nil && name != "fd/0" {
			a.text += string(text)
		}
	}
	if id == "" {
		return
	}
	// A copy holds what is the box's own, and links that lead to it only.
	to := filepath.Join(a.st.Base, "tmp", "copied")
	a.st.Run("box", "cp", id+":links", to)
	filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := os.ReadFile(path)
			a.text += string(text)
		}
		return nil
	})
	must(a.st.t, os.RemoveAll(to))
}

func withoutFilter(st *stage) { st.leaveOut(filters) }

// secondWall judges an attack on what stands behind the filter: the kernel's
// own answers are refusals too.
func secondWall(a *account) (string, string) { return a.judge() }

func secretEnvironment(st *stage) {
	st.Env = append(st.Env, "API_TOKEN="+st.token, "MY_OWN_SETTING="+st.token, "PYTHONSTARTUP=/x/"+st.token, "SSH_AUTH_SOCK=/run/"+st.token, "LS_COLORS_X="+st.token)
}

// leaveResidue is the run before.
func leaveResidue(st *stage) {
	st.t.Helper()
	first := attack{name: "residue-leave", kind: aboutNeighbours}
	var acc *account
	if st.unboxed {
		acc = st.bare(&first)
		st.teardown = append(st.teardown, removeResidue)
	} else {
		acc = st.box(&first)
	}
	if v, why := acc.reached(); v != Held {
		st.t.Fatalf("the run before: %s %s", v, why)
	}
}

// removeResidue takes away what the run without a box left.
func removeResidue() {
	for _, path := range []string{"/tmp/hutch-residue", "/dev/shm/hutch-residue", "/var/tmp/hutch-residue", "/run/hutch-residue"} {
		os.Remove(path)
	}
	mqUnlink("hutch-residue")
	if id, _, e := unix.Syscall(unix.SYS_SHMGET, 0x68757499, 0, 0); e == 0 {
		unix.Syscall(unix.SYS_SHMCTL, id, ipcRemove, 0)
	}
	if id, err := unix.KeyctlSearch(unix.KEY_SPEC_USER_KEYRING, "user", "hutch-residue", 0); err == nil {
		unix.KeyctlInt(unix.KEYCTL_UNLINK, id, unix.KEY_SPEC_USER_KEYRING, 0, 0)
	}
}

// bounded: the limit ended it, or it was refused more.
func bounded(a *account) (string, string) {
	if v, why := a.broken(); v != "" {
		return v, why
	}
	if len(a.find("ODD")) > 0 {
		return Error, a.first("ODD")
	}
	if a.out.Status == "memory_exceeded" {
		return Held, sprint("memory_exceeded, peak %s", mb(a.out.PeakMemoryMB))
	}
	if tried := a.find("TRIED"); len(tried) > 0 {
		return Held, tried[0].what + ": " + tried[0].detail
	}
	return Error, "no limit was met: " + a.summary()
}

// diskBounded: the limit ended it, or the layer was full.
func diskBounded(a *account) (string, string) {
	if a.st.unboxed {
		return a.judge()
	}
	if v, why := a.broken(); v != "" {
		return v, why
	}
	if a.out.Status == "disk_exceeded" {
		return Held, sprint("disk_exceeded after %.0f ms", a.out.DurationMS)
	}
	if tried := a.find("TRIED"); len(tried) > 0 {
		return Held, tried[0].what + ": " + tried[0].detail
	}
	return Error, "no limit was met: " + a.summary()
}

func mb(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return sprint("%.0f MB", *v)
}

// flatMemory: hutch did not grow with what the command printed.
func flatMemory(a *account) (string, string) {
	if len(a.damage) > 0 {
		return Escaped, a.damage[0]
	}
	if a.peakRSS == 0 || a.out.StdoutBytes < 100<<20 && a.out.Status != "output_exceeded" {
		return Error, sprint("%d bytes came, hutch took %d KiB: %s", a.out.StdoutBytes, a.peakRSS, a.summary())
	}
	if a.peakRSS > 160<<10 {
		return Escaped, sprint("hutch took %d MiB for %d MiB of output", a.peakRSS>>10, a.out.StdoutBytes>>20)
	}
	return Held, sprint("hutch took %d MiB for %d MiB of output", a.peakRSS>>10, a.out.StdoutBytes>>20)
}

// noOrphans looks for processes with the attack's name on the whole machine.
func noOrphans(a *account) (string, string) {
	name := ""
	for _, p := range a.st.params {
		if rest, ok := strings.CutPrefix(p, "nonce="); ok {
			name = rest
		}
	}
	living := 0
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, path := range comms {
		text, _ := os.ReadFile(path)
		if strings.TrimSpace(string(text)) == name {
			living++
			var pid int
			if fmt.Sscanf(path, "/proc/%d/comm", &pid); a.st.unboxed {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	if living > 0 {
		return Escaped, sprint("%d processes outlived it", living)
	}
	if len(a.find("TRIED")) == 0 {
		return Error, a.summary()
	}
	return Held, "20 orphans were made, none outlived the box"
}

// goesOn: whatever was done to init, the command ended as it should and hutch
// told so.
func goesOn(a *account) (string, string) {
	if v, why := a.judge(); v != Held {
		return v, why
	}
	if a.out.Status != "success" || a.out.ExitCode != 0 {
		return Escaped, "init was confused: " + a.summary()
	}
	return Held, "init went on; exit 0 was told"
}

func timedOut(a *account) (string, string) {
	if v, why := a.broken(); v != "" {
		return v, why
	}
	if a.st.unboxed {
		return a.reached()
	}
	if v, why := a.reached(); v != Held {
		return v, why
	}
	if a.out.Status != "timeout" {
		return Escaped, "the deadline did not end it: " + a.summary()
	}
	if a.took > 45*time.Second {
		return Escaped, sprint("it took %v to end", a.took)
	}
	return Held, sprint("timeout, and gone; setpriority: %s", a.find("TRIED")[0].detail)
}

// nothingOutside is for a promotion: the canaries are as they were, and what
// was written elsewhere than in the workspace is nowhere.
func nothingOutside(a *account) (string, string) {
	made := ""
	for _, path := range []string{"/etc/escaped", "/escaped", filepath.Join(filepath.Dir(a.st.Base), "escaped"), filepath.Join(a.st.Base, "escaped"), filepath.Join(a.st.beside, "escaped")} {
		if _, err := os.Lstat(path); err == nil {
			made = path
			os.Remove(path)
		}
	}
	if made != "" {
		return Escaped, made + " was made"
	}
	if len(a.damage) > 0 {
		return Escaped, "outside: " + a.damage[0]
	}
	if strings.Contains(a.text, a.st.token) {
		return Escaped, "a secret was read"
	}
	if len(a.find("TRIED")) == 0 || len(a.find("END")) == 0 {
		return Error, a.summary()
	}
	// A link that leads out must not have arrived.
	escape := ""
	filepath.WalkDir(a.st.Dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&os.ModeSymlink != 0 {
			to, _ := os.Readlink(path)
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(path), to)
			}
			if rel, err := filepath.Rel(a.st.Dir, to); err != nil || strings.HasPrefix(rel, "..") {
				escape = path + " -> " + to
			}
		}
		return nil
	})
	if escape != "" {
		return Escaped, "a link that leads out arrived: " + escape
	}
	return Held, sprint("%s, exit %d", a.out.Status, a.result.Code)
}

// wroteThrough is the same without a box: what was written through the link
// arrived.
func wroteThrough(a *account) (string, string) {
	if text, err := os.ReadFile(filepath.Join(a.st.beside, "neighbour", "secret")); err == nil && strings.HasPrefix(string(text), "owned") {
		return Escaped, "the canary was written through a link"
	}
	return nothingOutside(a)
}

func heldBack(a *account) (string, string) {
	if v, why := nothingOutside(a); v != Held {
		return v, why
	}
	for _, name := range []string{".git/hooks/pre-commit", ".git/config", ".gitmodules", ".envrc", ".bashrc", ".vscode/tasks.json"} {
		if a.st.Exists(name) {
			return Escaped, name + " arrived"
		}
	}
	if a.out.Status != "held" {
		return Error, "nothing arrived and nothing was held: " + a.summary()
	}
	return Held, sprint("held: %d paths", len(a.out.Held))
}

func noRights(a *account) (string, string) {
	for _, name := range []string{"setuid", "setgid", "setgid-dir", "capable", "worldly"} {
		path := filepath.Join(a.st.Dir, name)
		st, err := os.Lstat(path)
		if err != nil {
			continue
		}
		if st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			return Escaped, sprint("%s arrived as %v", name, st.Mode())
		}
		var buf [256]byte
		if n, err := unix.Lgetxattr(path, "security.capability", buf[:]); err == nil && n > 0 {
			return Escaped, name + " arrived with capabilities"
		}
	}
	if v, why := nothingOutside(a); v != Held {
		return v, why
	}
	return Held, sprint("%s, %d held, %d skipped", a.out.Status, len(a.out.Held), len(a.out.Skipped))
}

func noNodes(a *account) (string, string) {
	if a.st.unboxed {
		if _, err := os.Lstat(filepath.Join(a.st.Dir, "fifo")); err == nil {
			return Escaped, "a FIFO is in the workspace"
		}
	}
	for _, name := range []string{"fifo", "socket", "null", "device", "kept"} {
		st, err := os.Lstat(filepath.Join(a.st.Dir, name))
		if err == nil && st.Mode()&(os.ModeDevice|os.ModeNamedPipe|os.ModeSocket) != 0 {
			return Escaped, sprint("%s arrived as %v", name, st.Mode())
		}
	}
	if v, why := nothingOutside(a); v != Held {
		return v, why
	}
	return Held, sprint("%s, skipped %d", a.out.Status, len(a.out.Skipped))
}

// plantMarks puts overlay's marks into the workspace before the box is made, as
// an archive could.
func plantMarks(st *stage) {
	if !root() && unix.Access("/", unix.R_OK) != nil {
		return
	}
	st.Write("planted-redirect/own", "own\n")
	st.Write("planted-opaque/kept", "kept\n")
	st.Write("planted-x/hidden", "hidden\n")
	st.Write("planted-metacopy", "content\n")
	for _, prefix := range []string{"user.overlay.", "trusted.overlay."} {
		for name, value := range map[string][2]string{
			"redirect": {"planted-redirect", filepath.Join(st.beside, "neighbour")}, "opaque": {"planted-opaque", "y"}, "metacopy": {"planted-metacopy", ""},
		} {
			err := unix.Setxattr(filepath.Join(st.Dir, value[0]), prefix+name, []byte(value[1]), 0)
			if err != nil && (root() || prefix == "user.overlay.") {
				st.t.Fatalf("plant %s%s: %v", prefix, name, err)
			}
		}
		unix.Setxattr(filepath.Join(st.Dir, "planted-x"), prefix+"opaque", []byte("x"), 0)
		unix.Setxattr(filepath.Join(st.Dir, "planted-x", "hidden"), prefix+"whiteout", []byte("y"), 0)
	}
	if st.who.uid != os.Getuid() {
		filepath.WalkDir(st.Dir, func(path string, _ os.DirEntry, _ error) error { return os.Lchown(path, st.who.uid, st.who.uid) })
	}
}

// nothingForged: what the marks name did not come in, and what lay in the marked
// directories is still there.
func nothingForged(a *account) (string, string) {
	var out []string
	filepath.WalkDir(a.st.Dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if text, _ := os.ReadFile(path); strings.Contains(string(text), a.st.token) && !strings.Contains(path, "/.hutch/") {
				out = append(out, "a secret came into "+path)
			}
		}
		return nil
	})
	for _, name := range []string{"tree/inner/file", "tree/other", "kept", "gone"} {
		if !a.st.Exists(name) {
			out = append(out, name+" was deleted by a mark")
		}
	}
	for _, name := range []string{"planted-opaque/kept", "planted-x/hidden", "planted-redirect/own", "planted-metacopy"} {
		if a.st.Exists("planted-x") && !a.st.Exists(name) {
			out = append(out, name+" was deleted by a mark")
		}
	}
	slices.Sort(out)
	if len(out) > 0 {
		return Escaped, out[0]
	}
	if v, why := nothingOutside(a); v != Held {
		return v, why
	}
	if len(a.find("GOT")) > 0 {
		return Escaped, a.first("GOT")
	}
	return Held, sprint("%s, %d entries skipped", a.out.Status, len(a.out.Skipped))
}
