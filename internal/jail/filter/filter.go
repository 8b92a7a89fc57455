// Package filter is the seccomp programs of a box, as ready bytes.
//
// They are written down in gen (the policy, one reason per row), compiled
// there, and committed; a box only copies bytes. golden_GOARCH.txt says in words
// what the program of the box answers for every system call,
// golden_command_GOARCH.txt what those of its commands do. After a change of the
// policy or of the modules it comes from:
//
//	go generate ./internal/jail/filter && git diff internal/jail/filter
//
// # What it answers
//
// Everything is denied that is not allowed. The allowlist is that of
// github.com/moby/profiles (what a Docker container without capabilities may
// call), less and plus a few rows. The answers are:
//
//   - allow: the kernel decides.
//   - EPERM: a call that is known and denied, and that programs try and do
//     without (placing memory on the nodes of a large machine).
//   - told:EPERM and the like: a call that is denied and counted, see below.
//   - ENOSYS: a number without a name, a name younger than the allowlist, an x32
//     number, and clone3, whose flags lie in memory where no filter can read
//     them. A libc takes this for an old kernel and falls back: clone3 to
//     clone, whose flags are in a register.
//   - told:EAFNOSUPPORT, told:EPROTONOSUPPORT, told:EOPNOTSUPP: sockets that are
//     not for boxes. It is what a kernel built without that family or protocol says,
//     which programs are ready for.
//   - kill: a system call of another architecture (i386 through int 0x80 or by
//     executing a 32-bit binary; on arm64, AArch32). The same number means
//     another call there, so no errno could be right; the process ends with
//     SIGSYS, always.
//
// Arguments the kernel takes as int are compared in their low 32 bits only,
// as the kernel does: comparing all 64 lets a set high bit pass a denied value
// (CVE-2019-10063).
//
// # Who is told
//
// A refusal that the program gives by itself nobody can count: the kernel's log
// of seccomp needs rights over the host. So a refused call is handed to a
// listener (SECCOMP_RET_USER_NOTIF), PID 1 of the box, which gives the errno and
// counts it. Default, which PID 1 carries as well, does so without a listener:
// the kernel then answers ENOSYS, and the call is refused all the same. Commands
// carry a second program, a Command, with the listener. Of all filters that want
// to tell a listener the kernel asks that of the newest only, so a Command tells
// of all that Default tells of. It also asks the mover about renames; boxinit
// tells the kernel to go on with nothing else, for that overrides every filter.
//
// The kernel takes one listener for a process. Where hutch itself runs under
// one, commands carry a Command that gives the errnos by itself (Untold: an errno
// wins over a listener), and nothing is counted. A process in a box can likewise
// have no listener of its own (EBUSY).
//
// The wait for PID 1 can be broken off by a signal: a refused call then begins
// anew after the handler, or returns EINTR where the program asked for that. It
// is never let pass.
//
// # What a policy takes away
//
// NoDebug: ptrace and process_vm_readv and their kind. What /proc shows of a
// process's memory is not a matter of system calls and stays, for what the box
// started itself.
//
// NoSubprocess: fork, vfork, clone of anything but a thread, execveat, and every
// execve but the first. The kernel reads three arguments of execve and empties
// all registers for the program that starts; boxinit puts 128 random bits into
// the fourth and fifth, and into the filter that compares them, anew for each
// start. Filters can be read back with CAP_SYS_ADMIN over the host only.
//
// # What stays allowed, and why that is safe
//
// ptrace, process_vm_readv and process_vm_writev, unless NoDebug: debuggers and
// strace need them on their own children. Outsiders are out of reach, for a pid namespace
// leaves them without a number (and where there is none, Landlock refuses
// every tracee outside its domain). PID 1 of the box is not dumpable and the
// box has no CAP_SYS_PTRACE, so the kernel refuses to attach to it. A tracer
// gains nothing on the filter: since Linux 4.8 the filter judges a call after
// the tracer has had its say.
//
// seccomp and prctl(PR_SET_SECCOMP): browsers and build tools stack filters of
// their own. Every filter is asked and the strictest answer wins, an errno
// before a user notification, so neither a later filter nor the listener of
// one (SECCOMP_FILTER_FLAG_NEW_LISTENER) can allow what this one denies. A
// listener only rules processes that its owner could ptrace, and where the box
// has one the kernel refuses a second.
//
// personality(ADDR_NO_RANDOMIZE): gdb starts what it debugs so. It weakens
// nobody but the program that is started.
//
// netlink: only NETLINK_ROUTE, which getaddrinfo, getifaddrs and
// os.networkInterfaces ask for the interfaces. It shows the network namespace
// the box is in, and without CAP_NET_ADMIN it changes nothing there.
//
// memfd_create, and execve of a memfd: a box may run what it can write.
//
// chmod with S_ISUID: a filter could see the bit, but not the path; there is no
// way to gain rights inside (no_new_privs), and promotion strips the bit.
package filter

//go:generate go run ./gen
