package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"hutch/internal/jail/filter"
)

func committed(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCommitted makes sure that what is embedded is what the policy says.
func TestCommitted(t *testing.T) {
	for _, a := range arches {
		program, err := compile(a)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(program, committed(t, "filter_"+a.goarch+".bpf")) {
			t.Errorf("filter_%s.bpf is not what the policy compiles to: run go generate", a.goarch)
		}
		if program, err = compileCommands(a); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(program, committed(t, "command_"+a.goarch+".bpf")) {
			t.Errorf("command_%s.bpf is not what the policy compiles to: run go generate", a.goarch)
		}
		if program, err = compilePorts(a); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(program, committed(t, "ports_"+a.goarch+".bpf")) {
			t.Errorf("ports_%s.bpf is not what the policy compiles to: run go generate", a.goarch)
		}
		names, err := refused(a)
		if err != nil {
			t.Fatal(err)
		}
		if names != string(committed(t, "refused_"+a.goarch+".txt")) {
			t.Errorf("refused_%s.txt does not name what the policy refuses: run go generate", a.goarch)
		}
	}
}

// TestGolden runs the committed program on every number under every
// interface, and compares with the table a human has read.
func TestGolden(t *testing.T) {
	for _, a := range arches {
		got, err := describe(a, committed(t, "filter_"+a.goarch+".bpf"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(committed(t, "golden_"+a.goarch+".txt")), got); diff != "" {
			t.Errorf("%s: the verdicts changed (-committed +now):\n%s", a.goarch, diff)
		}
		if got, err = describeCommands(a); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(committed(t, "golden_command_"+a.goarch+".txt")), got); diff != "" {
			t.Errorf("%s: the verdicts for commands changed (-committed +now):\n%s", a.goarch, diff)
		}
	}
}

// TestWanted holds the table itself to what boxes need and must not have,
// whatever moby's next profile says.
func TestWanted(t *testing.T) {
	wanted := map[string]string{
		"allow": `memfd_create memfd_secret landlock_create_ruleset landlock_add_rule landlock_restrict_self pidfd_open
			pidfd_send_signal rseq futex_waitv futex_wait futex_wake statx close_range openat2 faccessat2 fchmodat2 clock_nanosleep
			copy_file_range getrandom membarrier preadv2 execve execveat ptrace process_vm_readv process_vm_writev seccomp prctl
			mknodat fchmodat fchmod inotify_init1 eventfd2 signalfd4 timerfd_create epoll_pwait2 io_setup mseal
			map_shadow_stack waitid kill tgkill renameat2 linkat symlinkat setxattr removexattr sched_setaffinity shmget msgget
			semget mq_open splice vmsplice sendfile`,
		"told:EPERM": `unshare setns mount umount2 pivot_root chroot fsopen fsmount fsconfig fspick move_mount open_tree open_tree_attr
			mount_setattr kcmp pidfd_getfd bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl
			add_key request_key kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct
			quotactl quotactl_fd open_by_handle_at name_to_handle_at fanotify_init settimeofday clock_settime clock_adjtime
			adjtimex sethostname setdomainname iopl ioperm vhangup syslog nfsservctl lookup_dcookie modify_ldt
			process_madvise listns`,
		"EPERM":     `mbind set_mempolicy get_mempolicy migrate_pages move_pages`,
		"ENOSYS":    `clone3 file_getattr file_setattr`,
		"arguments": `clone ioctl personality prlimit64 socket socketpair`,
	}
	absent := map[string][]string{"arm64": {"iopl", "ioperm", "modify_ldt"}}
	for _, a := range arches {
		table := readGolden(t, a)
		for verdict, names := range wanted {
			for _, name := range strings.Fields(names) {
				got, ok := table.byName[name]
				if !ok {
					if !slices.Contains(absent[a.goarch], name) {
						t.Errorf("%s: no %s in the table", a.goarch, name)
					}
				} else if got != verdict {
					t.Errorf("%s: %s is %s, want %s", a.goarch, name, got, verdict)
				}
			}
		}
	}
}

// golden is the first part of a golden file, read back.
type golden struct {
	byName map[string]string
	byNr   map[uint32]string
	names  map[uint32]string
}

func readGolden(t testing.TB, a arch) golden {
	g := golden{make(map[string]string), make(map[uint32]string), make(map[uint32]string)}
	for line := range strings.Lines(string(committed(t, "golden_"+a.goarch+".txt"))) {
		f := strings.Fields(line)
		if len(f) != 5 {
			continue
		}
		nr, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			continue
		}
		g.byNr[uint32(nr)], g.byName[f[1]], g.names[uint32(nr)] = f[2], f[2], f[1]
	}
	if len(g.byNr) != lastNumber+1 {
		t.Fatalf("%s: %d numbers in the golden table", a.goarch, len(g.byNr))
	}
	return g
}

// model is the policy once more, written without the tables and the compiler:
// plain code over the golden table.
func (g golden) model(a arch, c call) string {
	if c.arch != a.audit {
		return "kill"
	}
	if c.nr > lastNumber {
		return "ENOSYS"
	}
	low := func(i int) uint32 { return uint32(c.args[i]) }
	switch g.names[c.nr] {
	case "clone":
		// NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
		for _, bit := range []uint{17, 25, 26, 27, 28, 29, 30} {
			if low(0)>>bit&1 == 1 {
				return "told:EPERM"
			}
		}
		return "allow"
	case "ioctl":
		switch low(1) {
		case 0x5412, 0x541c, 0x5423:
			return "told:EPERM"
		}
		return "allow"
	case "personality":
		switch low(0) {
		case 0, 8, 0x20000, 0x20008, 0x40000, 0x40008, 0x60000, 0x60008, 0xffffffff:
			return "allow"
		}
		return "told:EPERM"
	case "prlimit64":
		if low(0) != 0 {
			return "told:EPERM"
		}
		return "allow"
	case "socketpair":
		if low(0) != 1 {
			return "told:ENOTSUP"
		}
		return "allow"
	case "socket":
		family, kind, protocol := low(0), low(1)%16, low(2)
		switch family {
		case 1:
			return "allow"
		case 16:
			if protocol == 0 {
				return "allow"
			}
			return "told:EPROTONOSUPPORT"
		case 2, 10:
			if kind == 3 {
				return "allow"
			}
			if (kind == 1 || kind == 2) && slices.Contains([]uint32{0, 1, 6, 17, 58, 262}, protocol) {
				return "allow"
			}
			return "told:EPROTONOSUPPORT"
		}
		return "told:EAFNOSUPPORT"
	}
	return g.byNr[c.nr]
}

// commandModel is the same for the programs of commands: what the box's program
// tells of, these must tell of too, or a call would be answered as if the kernel
// did not have it.
func (g golden) commandModel(a arch, command filter.Command, c call) string {
	if c.arch != a.audit || c.nr > lastNumber {
		return "allow"
	}
	refuse := "told:EPERM"
	verdict := func() string {
		name, flags := g.names[c.nr], c.args[0]
		switch name {
		case "ptrace", "process_vm_readv", "process_vm_writev":
			if command.NoDebug {
				return refuse
			}
		case "fork", "vfork", "execveat":
			if command.NoSubprocess {
				return refuse
			}
		case "execve":
			first := c.args[3]>>32 == uint64(filter.Nonce[0]) && c.args[3]&0xffffffff == uint64(filter.Nonce[1]) &&
				c.args[4]>>32 == uint64(filter.Nonce[2]) && c.args[4]&0xffffffff == uint64(filter.Nonce[3])
			if command.NoSubprocess && !first {
				return refuse
			}
		case "clone":
			const thread, parent = 0x10000, 0x8000
			if command.NoSubprocess && flags&thread == 0 {
				return refuse
			}
			if g.model(a, c) == "allow" && command.Renames && flags&parent != 0 {
				return "ask"
			}
		case "rename", "renameat", "renameat2", "landlock_restrict_self":
			if command.Renames {
				return "ask"
			}
		case "prctl":
			if command.Renames && uint32(c.args[0]) == 36 {
				return "ask"
			}
		}
		if box := g.model(a, c); strings.HasPrefix(box, "told:") {
			return box
		}
		return "allow"
	}()
	if command.Untold {
		return strings.TrimPrefix(verdict, "told:")
	}
	return verdict
}

// TestCommandModel compares the programs of commands with their model, and makes
// sure that every instruction was reached.
func TestCommandModel(t *testing.T) {
	const calls = 15_000
	for _, a := range arches {
		for i := range filter.Commands {
			c := filter.CommandOf(i)
			if c.Untold && c.Renames {
				continue
			}
			t.Run(fmt.Sprintf("%s/%+v", a.goarch, c), func(t *testing.T) {
				program, err := compileCommand(a, c)
				if err != nil {
					t.Fatal(err)
				}
				g := readGolden(t, a)
				compareWithModel(t, a, program, g, calls, commandProbes, func(at call) string { return g.commandModel(a, c, at) })
			})
		}
	}
}

func TestPortsModel(t *testing.T) {
	for _, a := range arches {
		g := readGolden(t, a)
		near := []probe{
			{"", "sendto", [6]uint64{3, 1, 1, unix.MSG_FASTOPEN}}, {"", "sendto", [6]uint64{3, 1, 1, high | unix.MSG_NOSIGNAL}},
			{"", "sendmsg", [6]uint64{3, 1, high | unix.MSG_FASTOPEN}}, {"", "sendmmsg", [6]uint64{3, 1, 1, unix.MSG_FASTOPEN | 1}},
			{"", "socket", [6]uint64{unix.AF_INET, 1, high | unix.IPPROTO_MPTCP}}, {"", "socket", [6]uint64{unix.AF_INET6, 1, unix.IPPROTO_MPTCP}},
			{"", "socket", [6]uint64{unix.AF_UNIX, 1, unix.IPPROTO_MPTCP}}, {"", "socket", [6]uint64{unix.AF_INET, 1, 0}},
		}
		compareWithModel(t, a, committed(t, "ports_"+a.goarch+".bpf"), g, 20_000, near, func(c call) string {
			if c.arch != a.audit {
				return "allow"
			}
			flags := map[string]int{"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
			name := g.names[c.nr]
			if at, ok := flags[name]; ok && uint32(c.args[at])&unix.MSG_FASTOPEN != 0 {
				return "ENOTSUP"
			}
			if family := uint32(c.args[0]); name == "socket" && (family == 2 || family == 10) && uint32(c.args[2]) == 262 {
				return "EPROTONOSUPPORT"
			}
			return "allow"
		})
	}
}

// TestNonceIsFoundOnce: boxinit looks for each of the words and puts a random
// one in its place.
func TestNonceIsFoundOnce(t *testing.T) {
	for _, a := range arches {
		for i := range filter.Commands {
			c := filter.CommandOf(i)
			if c.Untold && c.Renames {
				continue
			}
			program, err := compileCommand(a, c)
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range filter.Nonce {
				found := 0
				for at := 0; at < len(program); at += 8 {
					if binary.LittleEndian.Uint32(program[at+4:]) == word {
						found++
						if op := binary.LittleEndian.Uint16(program[at:]); op != unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K {
							t.Errorf("%s %+v: the nonce stands in an instruction %#x", a.goarch, c, op)
						}
					}
				}
				if want := map[bool]int{true: 1}[c.NoSubprocess]; found != want {
					t.Errorf("%s %+v: %#x is found %d times, want %d", a.goarch, c, word, found, want)
				}
			}
		}
	}
}

// TestModel compares the program with the model on calls of every kind, and
// makes sure that they reached every instruction.
func TestModel(t *testing.T) {
	calls := 200_000
	if testing.Short() {
		calls = 40_000
	}
	for _, a := range arches {
		t.Run(a.goarch, func(t *testing.T) {
			g := readGolden(t, a)
			compareWithModel(t, a, committed(t, "filter_"+a.goarch+".bpf"), g, calls, probes, func(c call) string { return g.model(a, c) })
		})
	}
}

func compareWithModel(t *testing.T, a arch, program []byte, g golden, calls int, probes []probe, model func(call) string) {
	t.Helper()
	run, err := machine(program)
	if err != nil {
		t.Fatal(err)
	}
	reached := make([]bool, len(program)/8)
	check := func(c call) {
		got, want := run(c), model(c)
		if got.String() != want {
			t.Fatalf("%s (%+v): the program says %v, the model %s", g.names[c.nr], c, got, want)
		}
		if own := trace(program, c, reached); own != got {
			t.Fatalf("%+v: two interpreters disagree: %v, %v", c, own, got)
		}
	}
	for nr := range uint32(lastNumber + 1) {
		check(call{nr: nr, arch: a.audit})
		check(call{nr: nr, arch: a.foreign})
		check(call{nr: nr | x32Bit, arch: a.audit})
	}
	for _, p := range probes {
		for nr, name := range g.names {
			if name == p.name {
				check(call{nr, a.audit, p.args})
			}
		}
	}
	r := rand.New(rand.NewPCG(1, uint64(a.audit)))
	for range calls {
		check(randomCall(r, a, g))
	}
	if i := slices.Index(reached, false); i >= 0 {
		t.Errorf("instruction %d was never reached", i)
	}
}

// randomCall makes a call that is likely to be near a decision.
func randomCall(r *rand.Rand, a arch, g golden) call {
	c := call{nr: r.Uint32N(lastNumber + 1), arch: a.audit}
	switch r.IntN(20) {
	case 0:
		c.arch = []uint32{a.foreign, r.Uint32(), 0, a.audit ^ 1<<r.IntN(32)}[r.IntN(4)]
	case 1:
		c.nr = []uint32{c.nr | x32Bit, r.Uint32(), ^uint32(0)}[r.IntN(3)]
	case 2, 3, 4, 5, 6, 7, 8, 9:
		for g.byNr[c.nr] != "arguments" && g.names[c.nr] != "execve" && g.names[c.nr] != "prctl" {
			c.nr = r.Uint32N(300)
		}
	}
	for i := range c.args {
		c.args[i] = randomArg(r)
	}
	return c
}

func randomArg(r *rand.Rand) uint64 {
	near := []uint64{0, 1, 2, 3, 5, 6, 8, 10, 16, 17, 58, 132, 256, 262, 0x5411, unix.TIOCSTI, unix.TIOCLINUX, unix.TIOCSETD, 0x20000, 0x20008, 0x40000, 0x8000, 0x10000, 36,
		0xffffffff, uint64(word(0, 1)), uint64(word(2, 3))}
	v := near[r.IntN(len(near))]
	switch r.IntN(6) {
	case 0:
		v = r.Uint64()
	case 1:
		v ^= 1 << r.IntN(64)
	case 2:
		v |= uint64(r.Uint32()) << 32
	case 3:
		v |= unix.SOCK_CLOEXEC
	}
	return v
}

// trace is a second interpreter, of just what seccomp programs consist of,
// which notes the instructions it reached.
func trace(program []byte, c call, reached []bool) verdict {
	data := c.words()
	var acc uint32
	for pc := 0; ; pc++ {
		reached[pc] = true
		in := program[8*pc:]
		k := binary.LittleEndian.Uint32(in[4:])
		jump := func(taken bool) {
			if taken {
				pc += int(in[2])
			} else {
				pc += int(in[3])
			}
		}
		switch op := binary.LittleEndian.Uint16(in); op {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			acc = binary.BigEndian.Uint32(data[k:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= k
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(k)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(acc == k)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(acc > k)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(acc >= k)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(acc&k != 0)
		case unix.BPF_RET | unix.BPF_K:
			return verdict(k)
		default:
			panic("an instruction no filter of ours has: " + strconv.Itoa(int(op)))
		}
	}
}

func FuzzModel(f *testing.F) {
	var runs []func(call) verdict
	var tables []golden
	commands := make([][filter.Commands]func(call) verdict, len(arches))
	for i, a := range arches {
		run, err := machine(committed(f, "filter_"+a.goarch+".bpf"))
		if err != nil {
			f.Fatal(err)
		}
		runs, tables = append(runs, run), append(tables, readGolden(f, a))
		for c := range filter.Commands {
			if c := filter.CommandOf(c); c.Untold && c.Renames {
				continue
			}
			program, err := compileCommand(a, filter.CommandOf(c))
			if err != nil {
				f.Fatal(err)
			}
			if commands[i][c], err = machine(program); err != nil {
				f.Fatal(err)
			}
		}
	}
	f.Add(uint32(41), uint32(unix.AUDIT_ARCH_X86_64), uint64(unix.AF_VSOCK), uint64(1), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(16), uint32(unix.AUDIT_ARCH_X86_64), uint64(0), uint64(high|unix.TIOCSTI), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(220), uint32(unix.AUDIT_ARCH_AARCH64), uint64(unix.CLONE_NEWUSER), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(59), uint32(unix.AUDIT_ARCH_X86_64), uint64(1), uint64(2), uint64(3), uint64(word(0, 1)), uint64(word(2, 3)))
	f.Fuzz(func(t *testing.T, nr, arch uint32, a0, a1, a2, a3, a4 uint64) {
		c := call{nr, arch, [6]uint64{a0, a1, a2, a3, a4}}
		for i, a := range arches {
			if got, want := runs[i](c), tables[i].model(a, c); got.String() != want {
				t.Errorf("%s %+v: the program says %v, the model %s", a.goarch, c, got, want)
			}
			for n, run := range commands[i] {
				if run == nil {
					continue
				}
				command := filter.CommandOf(n)
				if got, want := run(c), tables[i].commandModel(a, command, c); got.String() != want {
					t.Errorf("%s %+v %+v: the program says %v, the model %s", a.goarch, command, c, got, want)
				}
			}
		}
	})
}
