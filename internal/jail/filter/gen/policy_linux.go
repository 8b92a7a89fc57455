package main

import (
	"fmt"
	"slices"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// A row is a decision about some system calls, and its reason.
type row struct {
	why   string
	names []string
}

// allowed is what a box may call beyond moby's allowlist.
var allowed = []row{
	{"the kernel itself enters these from its own trampolines when a process is probed", []string{"uprobe", "uretprobe"}},
}

// denied is what a box may not call, whatever moby says of it. Most of it is
// not on moby's allowlist either; it stands here so that a change there cannot
// open it.
var denied = []row{
	{"namespaces: a new one brings capabilities and the kernel code behind them; an old one is a way out",
		[]string{"unshare", "setns", "listns"}},
	{"mounts: a box can never change what it sees",
		[]string{"mount", "umount2", "pivot_root", "chroot", "fsopen", "fsmount", "fsconfig", "fspick", "move_mount", "open_tree", "open_tree_attr", "mount_setattr"}},
	{"reaching into other processes where a debugger does not have to",
		[]string{"kcmp", "pidfd_getfd", "process_madvise"}},
	{"kernel code too large for its use in a box",
		[]string{"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"}},
	{"keyrings are not namespaced: they outlive the box and reach others of the same uid",
		[]string{"keyctl", "add_key", "request_key"}},
	{"the kernel and the machine",
		[]string{"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module", "get_kernel_syms", "query_module", "reboot", "swapon", "swapoff", "acct", "syslog", "iopl", "ioperm", "vhangup", "nfsservctl", "uselib", "ustat", "sysfs", "_sysctl"}},
	{"quotas of the host's file systems",
		[]string{"quotactl", "quotactl_fd"}},
	{"files by handle reach outside every mount; nothing needs a handle that it cannot open",
		[]string{"name_to_handle_at", "open_by_handle_at", "lookup_dcookie", "fanotify_init"}},
	{"the host's clock and name; reading it through adjtimex serves only time daemons, and the modes lie in memory",
		[]string{"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname"}},
	{"segments for 16- and 32-bit code, which this filter refuses anyway",
		[]string{"modify_ldt"}},
	{"security labels are the host's",
		[]string{"lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules"}},
}

// ioctls is what a box may not ask of a device it holds, its terminal mostly.
var ioctls = []struct {
	why     string
	request uintptr
}{
	{"TIOCSTI types into the terminal hutch was started from, and what is typed runs outside", unix.TIOCSTI},
	{"TIOCLINUX does the same on a console, by selection and paste", unix.TIOCLINUX},
	{"TIOCSETD makes the kernel load rarely used line disciplines", unix.TIOCSETD},
}

// A clause is one rule about a system call: the verdict where when holds. The
// first clause of a call that holds decides.
type clause struct {
	when    seccomp.SyscallRule
	verdict verdict
}

const (
	newNamespace = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	addrNoRandomize = 0x0040000 // in linux/personality.h
)

// judged are the calls whose arguments decide.
func judged(personalities []uint64) map[string][]clause {
	var persona []uintptr
	for _, p := range personalities {
		// gdb and setarch start programs without address randomisation, which
		// weakens nobody but these.
		persona = append(persona, uintptr(p), uintptr(p)|addrNoRandomize)
	}
	var requests []uintptr
	for _, i := range ioctls {
		requests = append(requests, i.request)
	}
	inet := is(0, unix.AF_INET, unix.AF_INET6)
	return map[string][]clause{
		"clone": {
			{seccomp.PerArg{seccomp.MaskedEqual(newNamespace, 0)}, allow},
			{always, told(eperm)},
		},
		"clone3":      {{always, enosys}},
		"personality": {{is(0, persona...), allow}, {always, told(eperm)}},
		// Init is of the same user: with its open files limited it could no
		// longer poll, and a box would end without its command's status. The
		// threads of the mover lead to the same limits, so by number nothing
		// but oneself (0) is let through.
		"prlimit64": {{is(0, 0), allow}, {always, told(eperm)}},
		"ioctl":     {{is(1, requests...), told(eperm)}, {always, allow}},
		"socket": {
			{is(0, unix.AF_UNIX), allow},
			{seccomp.And{is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE)}, allow},
			// Any other protocol (SCTP, DCCP, L2TP, SMC, ...) is a kernel
			// module loaded on demand; MPTCP is what Go listens with. Raw
			// sockets load none and need a capability no box has.
			{seccomp.And{inet, socktype(unix.SOCK_RAW)}, allow},
			{seccomp.And{inet, socktype(unix.SOCK_STREAM, unix.SOCK_DGRAM), is(2, 0,
				unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6, unix.IPPROTO_MPTCP)}, allow},
			{is(0, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK), told(eprotonosupport)},
			{always, told(eafnosupport)},
		},
		"socketpair": {{is(0, unix.AF_UNIX), allow}, {always, told(eopnotsupp)}},
	}
}

// portRules is what Landlock's rules about TCP ports leave open: its hooks sit at
// connect(2) and bind(2) of a TCP socket.
func portRules() map[string][]clause {
	fastOpen := func(arg int) []clause {
		var p seccomp.PerArg
		p[arg] = seccomp.MaskedEqual(unix.MSG_FASTOPEN, 0)
		return []clause{{p, allow}, {always, eopnotsupp}}
	}
	return map[string][]clause{
		// Sends the first bytes with the SYN, without a connect.
		"sendto": fastOpen(3), "sendmsg": fastOpen(2), "sendmmsg": fastOpen(3),
		// Falls back to TCP on the wire, but is no TCP socket. Go does without.
		"socket": {{seccomp.And{is(0, unix.AF_INET, unix.AF_INET6), is(2, unix.IPPROTO_MPTCP)}, eprotonosupport}, {always, allow}},
	}
}

var always = seccomp.MatchAll{}

// is holds when the low 32 bits of an argument are one of values.
func is(arg int, values ...uintptr) seccomp.SyscallRule {
	return masked(arg, 0xffffffff, values)
}

// socktype holds when a socket's type, less its flags, is one of types.
func socktype(types ...uintptr) seccomp.SyscallRule {
	const sockTypeMask = 0xf // SOCK_TYPE_MASK in linux/net.h
	return masked(1, sockTypeMask, types)
}

func masked(arg int, mask uintptr, values []uintptr) seccomp.SyscallRule {
	var or seccomp.Or
	for _, v := range values {
		var p seccomp.PerArg
		p[arg] = seccomp.MaskedEqual(mask, v)
		or = append(or, p)
	}
	return or
}

// resolve decides about every named system call of an architecture.
func resolve(a arch, numbers map[string]uintptr) (map[string][]clause, error) {
	base := mobyAllows(a.goarch)
	rules := make(map[string][]clause)

	// What moby says nothing of and is younger than all it knows is answered
	// as if the kernel were older.
	var newest uintptr
	for _, name := range base.mentioned {
		newest = max(newest, numbers[name])
	}
	for name, nr := range numbers {
		if nr <= newest {
			rules[name] = []clause{{always, eperm}}
		}
	}

	for _, name := range base.names {
		rules[name] = []clause{{always, allow}}
	}
	judged := judged(base.personalities)
	for _, name := range base.conditional {
		if judged[name] == nil {
			return nil, fmt.Errorf("moby allows %s by its arguments: decide about it here", name)
		}
	}
	for _, r := range allowed {
		for _, name := range r.names {
			rules[name] = []clause{{always, allow}}
		}
	}
	for name, clauses := range judged {
		rules[name] = clauses
	}
	for _, r := range denied {
		for _, name := range r.names {
			if judged[name] != nil || slices.ContainsFunc(allowed, func(r row) bool { return slices.Contains(r.names, name) }) {
				return nil, fmt.Errorf("%s is decided twice", name)
			}
			rules[name] = []clause{{always, told(eperm)}}
		}
	}
	return rules, nil
}

// profile is moby's default profile for a container without capabilities.
type profile struct {
	names         []string // allowed, whatever their arguments
	conditional   []string // allowed or answered by their arguments
	personalities []uint64 // what personality(2) may be called with
	mentioned     []string // every name it knows
}

func mobyAllows(goarch string) profile {
	var p profile
	for _, s := range moby.DefaultProfile().Syscalls {
		p.mentioned = append(p.mentioned, s.Names...)
		if in := s.Includes; in != nil && (len(in.Caps) > 0 || len(in.Arches) > 0 && !slices.Contains(in.Arches, goarch)) {
			continue
		}
		// The only other condition is a kernel of at least 4.8, and a box
		// needs a younger one.
		if ex := s.Excludes; ex != nil && slices.Contains(ex.Arches, goarch) {
			continue
		}
		if s.Action == specs.ActAllow && len(s.Args) == 0 {
			p.names = append(p.names, s.Names...)
			continue
		}
		p.conditional = append(p.conditional, s.Names...)
		if slices.Contains(s.Names, "personality") {
			p.personalities = append(p.personalities, s.Args[0].Value)
		}
	}
	return p
}
