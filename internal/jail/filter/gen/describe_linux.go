package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"hutch/internal/jail/filter"
)

// lastNumber is the last system call number that is described: some way
// beyond the newest.
const lastNumber = 600

// x32Bit marks the numbers of the x32 interface of amd64.
const x32Bit = 0x40000000

// A call is struct seccomp_data, less the instruction pointer.
type call struct {
	nr, arch uint32
	args     [6]uint64
}

// A probe is a call whose verdict hangs on its arguments, written out.
type probe struct {
	text string
	name string
	args [6]uint64
}

// high has bits set only where an int argument has none.
const high = 0xdead_beef_0000_0000

var probes = []probe{
	{"clone(CLONE_VM|CLONE_VFORK|SIGCHLD)", "clone", [6]uint64{unix.CLONE_VM | unix.CLONE_VFORK | 17}},
	{"clone(CLONE_THREAD|...)", "clone", [6]uint64{0x3d0f00}},
	{"clone(CLONE_NEWUSER)", "clone", [6]uint64{unix.CLONE_NEWUSER}},
	{"clone(CLONE_NEWNS)", "clone", [6]uint64{unix.CLONE_NEWNS}},
	{"clone(CLONE_NEWPID|SIGCHLD)", "clone", [6]uint64{unix.CLONE_NEWPID | 17}},
	{"clone(CLONE_NEWNET)", "clone", [6]uint64{unix.CLONE_NEWNET}},
	{"clone(CLONE_NEWIPC)", "clone", [6]uint64{unix.CLONE_NEWIPC}},
	{"clone(CLONE_NEWUTS)", "clone", [6]uint64{unix.CLONE_NEWUTS}},
	{"clone(CLONE_NEWCGROUP)", "clone", [6]uint64{unix.CLONE_NEWCGROUP}},
	{"clone(high bits|CLONE_NEWUSER)", "clone", [6]uint64{high | unix.CLONE_NEWUSER}},

	{"ioctl(TCGETS)", "ioctl", [6]uint64{0, unix.TCGETS}},
	{"ioctl(FICLONE)", "ioctl", [6]uint64{0, unix.FICLONE}},
	{"ioctl(TIOCSTI)", "ioctl", [6]uint64{0, unix.TIOCSTI}},
	{"ioctl(high bits|TIOCSTI)", "ioctl", [6]uint64{0, high | unix.TIOCSTI}},
	{"ioctl(TIOCLINUX)", "ioctl", [6]uint64{0, unix.TIOCLINUX}},
	{"ioctl(high bits|TIOCLINUX)", "ioctl", [6]uint64{0, high | unix.TIOCLINUX}},
	{"ioctl(TIOCSETD)", "ioctl", [6]uint64{0, unix.TIOCSETD}},

	{"prlimit64(0)", "prlimit64", [6]uint64{0}},
	{"prlimit64(1)", "prlimit64", [6]uint64{1}},
	{"prlimit64(high bits|1)", "prlimit64", [6]uint64{high | 1}},
	{"personality(0)", "personality", [6]uint64{0}},
	{"personality(UNAME26)", "personality", [6]uint64{0x20000}},
	{"personality(PER_LINUX32)", "personality", [6]uint64{8}},
	{"personality(PER_LINUX32|UNAME26)", "personality", [6]uint64{0x20008}},
	{"personality(0xffffffff)", "personality", [6]uint64{0xffffffff}},
	{"personality(-1)", "personality", [6]uint64{^uint64(0)}},
	{"personality(ADDR_NO_RANDOMIZE)", "personality", [6]uint64{0x40000}},
	{"personality(READ_IMPLIES_EXEC)", "personality", [6]uint64{0x400000}},
	{"personality(high bits|READ_IMPLIES_EXEC)", "personality", [6]uint64{high | 0x400000}},

	{"socket(AF_UNIX, SOCK_STREAM, 0)", "socket", [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}},
	{"socket(AF_UNIX, SOCK_SEQPACKET|SOCK_CLOEXEC, 0)", "socket", [6]uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC, 0}},
	{"socket(AF_INET, SOCK_STREAM, 0)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, 0}},
	{"socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC|SOCK_NONBLOCK, IPPROTO_MPTCP)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP}},
	{"socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP)", "socket", [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}},
	{"socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}},
	{"socket(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6)", "socket", [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}},
	{"socket(AF_INET, SOCK_RAW, IPPROTO_ICMP)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}},
	{"socket(AF_INET, SOCK_STREAM, IPPROTO_SCTP)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}},
	{"socket(AF_INET, SOCK_SEQPACKET, 0)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_SEQPACKET, 0}},
	{"socket(AF_INET, SOCK_DCCP, 0)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_DCCP, 0}},
	{"socket(AF_INET, SOCK_DGRAM, IPPROTO_L2TP)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_L2TP}},
	{"socket(AF_INET, SOCK_DGRAM, IPPROTO_UDPLITE)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}},
	{"socket(AF_INET, SOCK_STREAM, IPPROTO_SMC)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, 256}},
	{"socket(AF_INET, SOCK_PACKET, 0)", "socket", [6]uint64{unix.AF_INET, unix.SOCK_PACKET, 0}},
	{"socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)", "socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}},
	{"socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG)", "socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG}},
	{"socket(AF_NETLINK, SOCK_RAW, NETLINK_AUDIT)", "socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}},
	{"socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER)", "socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}},
	{"socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC)", "socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC}},
	{"socket(AF_NETLINK, SOCK_RAW, high bits|NETLINK_NETFILTER)", "socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, high | unix.NETLINK_NETFILTER}},
	{"socket(AF_UNSPEC)", "socket", [6]uint64{unix.AF_UNSPEC, unix.SOCK_STREAM, 0}},
	{"socket(AF_VSOCK)", "socket", [6]uint64{unix.AF_VSOCK, unix.SOCK_STREAM, 0}},
	{"socket(high bits|AF_VSOCK)", "socket", [6]uint64{high | unix.AF_VSOCK, unix.SOCK_STREAM, 0}},
	{"socket(AF_ALG)", "socket", [6]uint64{unix.AF_ALG, unix.SOCK_SEQPACKET, 0}},
	{"socket(AF_PACKET)", "socket", [6]uint64{unix.AF_PACKET, unix.SOCK_RAW, 0}},
	{"socket(AF_XDP)", "socket", [6]uint64{unix.AF_XDP, unix.SOCK_RAW, 0}},
	{"socket(AF_RDS)", "socket", [6]uint64{unix.AF_RDS, unix.SOCK_SEQPACKET, 0}},
	{"socket(AF_KEY)", "socket", [6]uint64{unix.AF_KEY, unix.SOCK_RAW, 2}},
	{"socket(AF_BLUETOOTH)", "socket", [6]uint64{unix.AF_BLUETOOTH, unix.SOCK_RAW, 0}},
	{"socket(AF_TIPC)", "socket", [6]uint64{unix.AF_TIPC, unix.SOCK_STREAM, 0}},
	{"socket(AF_CAN)", "socket", [6]uint64{unix.AF_CAN, unix.SOCK_RAW, 0}},

	{"socketpair(AF_UNIX)", "socketpair", [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM, 0}},
	{"socketpair(AF_TIPC)", "socketpair", [6]uint64{unix.AF_TIPC, unix.SOCK_STREAM, 0}},
	{"socketpair(high bits|AF_TIPC)", "socketpair", [6]uint64{high | unix.AF_TIPC, unix.SOCK_STREAM, 0}},
}

// machine runs a program outside the kernel.
func machine(program []byte) (func(call) verdict, error) {
	var raw []bpf.RawInstruction
	for ; len(program) >= 8; program = program[8:] {
		raw = append(raw, bpf.RawInstruction{
			Op: binary.LittleEndian.Uint16(program),
			Jt: program[2],
			Jf: program[3],
			K:  binary.LittleEndian.Uint32(program[4:]),
		})
	}
	instructions, ok := bpf.Disassemble(raw)
	if !ok {
		return nil, fmt.Errorf("the program holds an instruction that is none")
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		return nil, err
	}
	return func(c call) verdict {
		v, err := vm.Run(c.words())
		if err != nil {
			panic(err) // NewVM has checked the program
		}
		return verdict(uint32(v))
	}, nil
}

// words is a call as the interpreter reads it. Seccomp loads words as the
// machine has them, the interpreter reads packets: hence big-endian, with the
// low half of an argument first.
func (c call) words() []byte {
	b := make([]byte, 64)
	binary.BigEndian.PutUint32(b, c.nr)
	binary.BigEndian.PutUint32(b[4:], c.arch)
	for i, arg := range c.args {
		binary.BigEndian.PutUint32(b[16+8*i:], uint32(arg))
		binary.BigEndian.PutUint32(b[20+8*i:], uint32(arg>>32))
	}
	return b
}

var commandProbes = append([]probe{
	{"clone(CLONE_PARENT|SIGCHLD)", "clone", [6]uint64{unix.CLONE_PARENT | 17}},
	{"clone(CLONE_PARENT|CLONE_NEWUSER)", "clone", [6]uint64{unix.CLONE_PARENT | unix.CLONE_NEWUSER}},
	{"clone(CLONE_PARENT|CLONE_THREAD|...)", "clone", [6]uint64{0x3d0f00 | unix.CLONE_PARENT}},
	{"clone(CLONE_THREAD|CLONE_NEWUSER)", "clone", [6]uint64{0x3d0f00 | unix.CLONE_NEWUSER}},
	{"execve(path, args, env)", "execve", [6]uint64{1, 2, 3}},
	{"execve(path, args, env, nonce)", "execve", [6]uint64{1, 2, 3, uint64(word(0, 1)), uint64(word(2, 3))}},
	{"execve(path, args, env, nonce, junk)", "execve", [6]uint64{1, 2, 3, uint64(word(0, 1)), uint64(word(2, 3)), 7}},
	{"execve(path, args, env, half of the nonce)", "execve", [6]uint64{1, 2, 3, uint64(word(0, 1))}},
	{"execve(path, args, env, other half of it)", "execve", [6]uint64{1, 2, 3, 0, uint64(word(2, 3))}},
	{"execve(path, args, env, low words of it)", "execve", [6]uint64{1, 2, 3, uint64(filter.Nonce[1]), uint64(filter.Nonce[3])}},
	{"execve(path, args, env, high words of it)", "execve", [6]uint64{1, 2, 3, uint64(filter.Nonce[0]) << 32, uint64(filter.Nonce[2]) << 32}},
	{"prctl(PR_SET_CHILD_SUBREAPER)", "prctl", [6]uint64{unix.PR_SET_CHILD_SUBREAPER}},
	{"prctl(high bits|PR_SET_CHILD_SUBREAPER)", "prctl", [6]uint64{high | unix.PR_SET_CHILD_SUBREAPER}},
	{"prctl(PR_SET_NAME)", "prctl", [6]uint64{unix.PR_SET_NAME}},
}, probes...)

// describeCommands says what the programs of commands answer, each a column, to
// the calls about which they do not agree that all are allowed.
func describeCommands(a arch) (string, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# What the programs for commands answer on %s, written by gen; a call that is not\n# listed all of them allow. Of another architecture, and of x32, they allow all:\n# the program of the box refuses it.\n", a.goarch)
	var runs []func(call) verdict
	head := ""
	for i := range filter.Commands {
		c := filter.CommandOf(i)
		if c.Untold && c.Renames {
			continue
		}
		program, err := compileCommand(a, c)
		if err != nil {
			return "", err
		}
		run, err := machine(program)
		if err != nil {
			return "", err
		}
		runs = append(runs, run)
		fmt.Fprintf(&b, "# %2d: %+v, %d instructions\n", len(runs), c, len(program)/8)
		head += fmt.Sprintf(" %-20d", len(runs))
	}
	row := func(text string, nr, audit uint32, args [6]uint64) {
		var line strings.Builder
		allowed := true
		for _, run := range runs {
			v := run(call{nr, audit, args})
			allowed = allowed && v == allow
			fmt.Fprintf(&line, " %-20s", v)
		}
		if !allowed {
			fmt.Fprintf(&b, "%-60s%s\n", text, strings.TrimRight(line.String(), " "))
		}
	}
	fmt.Fprintf(&b, "%-60s%s\n", "call", strings.TrimRight(head, " "))
	judged := make(map[string]bool)
	for _, p := range commandProbes {
		judged[p.name] = true
		row(p.text, uint32(numbers[p.name]), a.audit, p.args)
	}
	names := make(map[uint32]string)
	for name, nr := range numbers {
		names[uint32(nr)] = name
	}
	for nr := range uint32(lastNumber + 1) {
		if !judged[names[nr]] {
			row(fmt.Sprintf("%d %s", nr, names[nr]), nr, a.audit, [6]uint64{})
		}
		row(fmt.Sprintf("%d of the 32-bit architecture", nr), nr, a.foreign, [6]uint64{})
		row(fmt.Sprintf("%d of x32", nr), nr|x32Bit, a.audit, [6]uint64{})
	}
	return b.String(), nil
}

// describe says what a program answers. It asks the program, not the policy.
func describe(a arch, program []byte) (string, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return "", err
	}
	run, err := machine(program)
	if err != nil {
		return "", err
	}
	names := make(map[uint32]string)
	for name, nr := range numbers {
		names[uint32(nr)] = name
	}

	// overall is the verdict on a number, if its arguments do not matter.
	overall := func(nr, audit uint32) string {
		first := run(call{nr: nr, arch: audit})
		for _, p := range probes {
			if run(call{nr, audit, p.args}) != first {
				return "arguments"
			}
		}
		return first.String()
	}

	var b strings.Builder
	fmt.Fprintf(&b, "# What the program for %s answers (%d instructions), written by gen. \"arguments\":\n", a.goarch, len(program)/8)
	fmt.Fprintf(&b, "# they decide, and examples stand at the end. A dot: no such system call.\n")
	fmt.Fprintf(&b, "%-4s %-24s %-10s %-8s %s\n", "nr", "name", "native", "32-bit", "x32")
	for nr := range uint32(lastNumber + 1) {
		name, ok := names[nr]
		if !ok {
			name = "."
		}
		fmt.Fprintf(&b, "%-4d %-24s %-10s %-8s %s\n", nr, name, overall(nr, a.audit), overall(nr, a.foreign), overall(nr|x32Bit, a.audit))
	}
	fmt.Fprintf(&b, "\n# By arguments\n")
	for _, p := range probes {
		fmt.Fprintf(&b, "%-20s %s\n", run(call{uint32(numbers[p.name]), a.audit, p.args}), p.text)
	}
	return b.String(), nil
}
