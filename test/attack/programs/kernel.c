// The surface of the kernel.

#include "attack.h"
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/swap.h>
#include <sys/timex.h>
#include <sys/uio.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#define SYS_fsopen 430
#define SYS_fsconfig 431
#define SYS_fsmount 432
#define SYS_fspick 433
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

struct clone3_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

// Gives a child that was made to end.
static long ended(long pid)
{
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid((pid_t)pid, 0, 0);
	return pid;
}

static void userns_again(void)
{
	static const struct { const char *name; unsigned long flag; } spaces[] = {{"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID}, {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS}, {"cgroup", CLONE_NEWCGROUP}, {"user and mount", CLONE_NEWUSER | CLONE_NEWNS}};
	char what[96];
	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
		snprintf(what, sizeof what, "clone(%s)", spaces[i].name);
		judge(what, ended(syscall(SYS_clone, spaces[i].flag | SIGCHLD, 0, 0, 0, 0)), REFUSED " ENOSPC EUSERS", "");
		snprintf(what, sizeof what, "clone3(%s)", spaces[i].name);
		struct clone3_args args = {.flags = spaces[i].flag, .exit_signal = SIGCHLD};
		judge(what, ended(syscall(SYS_clone3, &args, sizeof args)), REFUSED " ENOSPC EUSERS", "");
	}
	for (size_t i = sizeof spaces / sizeof *spaces; i-- > 0;) {
		snprintf(what, sizeof what, "unshare(%s)", spaces[i].name);
		pid_t pid = fork();
		if (pid == 0) {
			judge(what, syscall(SYS_unshare, spaces[i].flag), REFUSED " ENOSPC EUSERS", "");
			_exit(0);
		}
		waitpid(pid, 0, 0);
	}
}

static void mount_anything(void)
{
	syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS); // a way to the right, where it is open
	mkdir("m", 0755);
	judge("mount(tmpfs)", mount("none", "m", "tmpfs", 0, 0), REFUSED, "");
	judge("mount(proc)", mount("none", "m", "proc", 0, 0), REFUSED, "");
	judge("mount(bind)", mount("/", "m", 0, MS_BIND, 0), REFUSED, "EINVAL");
	judge("mount(remount, rw)", bare() ? (errno = EPERM, -1) : mount("none", "/", 0, MS_REMOUNT, 0), REFUSED, "EINVAL EBUSY");
	judge("mount(shared)", bare() ? (errno = EPERM, -1) : mount("none", "/", 0, MS_SHARED | MS_REC, 0), REFUSED, "EINVAL");
	judge("mount(overlay)", mount("none", "m", "overlay", 0, "lowerdir=/etc:/usr"), REFUSED, "EINVAL");
	int fs = (int)syscall(SYS_fsopen, "tmpfs", 0);
	judge("fsopen", fs, REFUSED, "");
	judge("fsconfig", syscall(SYS_fsconfig, fs, 6, 0, 0, 0), REFUSED, "EBADF EINVAL");
	int mnt = (int)syscall(SYS_fsmount, fs, 0, 0);
	judge("fsmount", mnt, REFUSED, "EBADF EINVAL");
	judge("fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0), REFUSED, "EINVAL");
	int tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/etc", 1 /* OPEN_TREE_CLONE */);
	judge("open_tree", tree, REFUSED, "EINVAL");
	judge("move_mount", syscall(SYS_move_mount, tree, "", AT_FDCWD, "m", 4), REFUSED, "EBADF EINVAL");
	struct { uint64_t set, clear, propagation, userns; } attr = {.clear = 1};
	judge("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/usr", 0, &attr, sizeof attr), REFUSED, "EINVAL");
	judge("open_tree_attr", syscall(467, AT_FDCWD, "/usr", 0, &attr, sizeof attr), REFUSED, "EINVAL EBADF");
	judge("pivot_root", syscall(SYS_pivot_root, "m", "m"), REFUSED, "EINVAL EBUSY");
	judge("umount2", umount2("m", MNT_DETACH), REFUSED, "EINVAL");
	static const char *const covered[] = {"/proc/sys", "/etc/shadow", "/sys", "/proc"};
	for (size_t i = 0; i < 4 && !bare(); i++)
		judge("umount2 of a cover", umount2(covered[i], MNT_DETACH), REFUSED, "EINVAL ENOENT");
	umount2("m", MNT_DETACH);
	rmdir("m");
}

static void trace_others(void)
{
	int pids[] = {1, (int)number("pid", 0), (int)number("hutch", 0), getppid()};
	char what[96], buffer[16] = "";
	for (size_t i = 0; i < 4; i++) {
		int pid = pids[i];
		if (!pid || (bare() && pid != pids[1]))
			continue;
		snprintf(what, sizeof what, "ptrace(SEIZE, %d)", pid);
		if (judge(what, ptrace(PTRACE_SEIZE, pid, 0, 0), REFUSED " ESRCH", "") == GRANTED)
			ptrace(PTRACE_DETACH, pid, 0, 0);
		snprintf(what, sizeof what, "ptrace(ATTACH, %d)", pid);
		if (judge(what, ptrace(PTRACE_ATTACH, pid, 0, 0), REFUSED " ESRCH", "") == GRANTED) {
			waitpid(pid, 0, __WALL);
			ptrace(PTRACE_DETACH, pid, 0, 0);
		}
		struct iovec mine = {buffer, 8}, theirs = {(void *)0x400000, 8};
		snprintf(what, sizeof what, "process_vm_readv(%d)", pid);
		judge(what, process_vm_readv(pid, &mine, 1, &theirs, 1, 0), REFUSED " ESRCH", "EFAULT");
		snprintf(what, sizeof what, "process_vm_writev(%d)", pid);
		judge(what, process_vm_writev(pid, &mine, 1, &theirs, 1, 0), REFUSED " ESRCH", "EFAULT");
		snprintf(what, sizeof what, "kcmp(%d)", pid);
		judge(what, syscall(SYS_kcmp, pid, getpid(), 0, 0, 1), REFUSED " ESRCH", "EBADF");
		snprintf(what, sizeof what, "prlimit(%d)", pid);
		uint64_t limit[2] = {100, 100};
		judge(what, syscall(SYS_prlimit64, pid, 7, limit, 0), REFUSED " ESRCH", "");
		snprintf(what, sizeof what, "sched_setaffinity(%d)", pid);
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET(0, &one);
		// A thing of one's own user; it must only not reach out of the box.
		long ret = pid == 1 || pid == getppid() ? (errno = EPERM, -1) : sched_setaffinity(pid, sizeof one, &one);
		judge(what, ret, REFUSED " ESRCH", "");
	}
}

static void userfaultfd_(void)
{
	judge("userfaultfd(user mode)", syscall(SYS_userfaultfd, O_CLOEXEC | 1), REFUSED, "");
	judge("userfaultfd", syscall(SYS_userfaultfd, O_CLOEXEC), REFUSED, "");
	judge_open("/dev/userfaultfd", O_RDWR);
}

static void io_uring(void)
{
	char params_[256] = {0};
	long fd = syscall(SYS_io_uring_setup, 4, params_);
	judge("io_uring_setup", fd, REFUSED, "");
	judge("io_uring_enter", syscall(426, fd < 0 ? 0 : fd, 0, 0, 0, 0, 0), REFUSED, "EBADF EOPNOTSUPP");
	judge("io_uring_register", syscall(427, fd < 0 ? 0 : fd, 0, 0, 0), REFUSED, "EBADF EOPNOTSUPP EFAULT EINVAL");
}

static void bpf_(void)
{
	union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
	judge("bpf(map)", syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr), REFUSED, "EINVAL");
	static const struct bpf_insn code[] = {{.code = 0xb7}, {.code = 0x95}};
	union bpf_attr load = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2, .insns = (uint64_t)(uintptr_t)code, .license = (uint64_t)(uintptr_t) "GPL"};
	judge("bpf(program)", syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load), REFUSED, "EINVAL");
}

static void perf_event(void)
{
	struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1, .exclude_hv = 1};
	judge("perf_event_open", syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0), REFUSED, "EINVAL ENOENT");
	attr.exclude_kernel = 0;
	judge("perf_event_open(kernel)", syscall(SYS_perf_event_open, &attr, -1, 0, -1, 0), REFUSED, "EINVAL ENOENT");
}

static void keyrings(void)
{
	// One that was left, or is the host's, is found by its description.
	judge("request_key", syscall(SYS_request_key, "user", *param("key") ? param("key") : "hutch-canary-key", 0, -3), REFUSED " ENOKEY", "");
	judge("add_key", syscall(SYS_add_key, "user", "hutch-attack", "x", 1, -3 /* session */), REFUSED, "EDQUOT");
	judge("add_key(user's)", syscall(SYS_add_key, "user", "hutch-attack", "x", 1, -4), REFUSED, "EDQUOT");
	judge("keyctl(join)", syscall(SYS_keyctl, 1, 0, 0, 0, 0), REFUSED, "");
	judge("keyctl(get id)", syscall(SYS_keyctl, 0, -4, 1, 0, 0), REFUSED, "ENOKEY");
	for (int i = -1; i > -6; i--) {
		char buffer[64];
		judge("keyctl(read)", syscall(SYS_keyctl, 11, i, buffer, sizeof buffer, 0), REFUSED, "ENOKEY");
	}
	char *keys = slurp("/proc/keys");
	if (keys && *keys)
		line("GOT", "/proc/keys", "%s", keys);
	else
		line("TRIED", "/proc/keys", "%s", keys ? "empty" : errno_name(errno));
}

// A key of the same user outside: is it found where the filter is gone?
static void keyring_of_host(void)
{
	static const struct { const char *name; int ring; } rings[] = {{"session", -3}, {"user", -4}, {"user session", -5}, {"thread", -1}, {"process", -2}};
	char what[96];
	for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
		snprintf(what, sizeof what, "search the %s keyring", rings[i].name);
		judge(what, syscall(SYS_keyctl, 10, rings[i].ring, "user", param("key"), 0), REFUSED " ENOKEY", "");
	}
	judge("request_key", syscall(SYS_request_key, "user", param("key"), 0, -3), REFUSED " ENOKEY ENOENT", "");
}

// Calls with arguments that a kernel which lets them pass refuses with another
// errno: nothing is done to the machine.
static void machine_calls(void)
{
	judge("reboot", syscall(SYS_reboot, 1, 2, 3, 0), REFUSED, "EINVAL");
	judge("kexec_load", syscall(SYS_kexec_load, 0, 1000, 0, 0), REFUSED, "EINVAL");
#ifdef SYS_kexec_file_load
	judge("kexec_file_load", syscall(SYS_kexec_file_load, -1, -1, 0, 0, 0xdead), REFUSED, "EINVAL EBADF");
#endif
	judge("init_module", syscall(SYS_init_module, 0, 0, ""), REFUSED, "EFAULT ENOEXEC EINVAL");
	judge("finit_module", syscall(SYS_finit_module, -1, "", 0), REFUSED, "EBADF ENOEXEC EINVAL");
	judge("delete_module", syscall(SYS_delete_module, "hutch-no-such", O_NONBLOCK), REFUSED, "ENOENT");
	judge("swapon", swapon("/hutch-no-such", 0), REFUSED, "ENOENT EINVAL");
	judge("swapoff", swapoff("/hutch-no-such"), REFUSED, "ENOENT EINVAL");
	judge("acct", syscall(SYS_acct, "/hutch-no-such"), REFUSED, "ENOENT EROFS");
	judge("quotactl", syscall(SYS_quotactl, 0x80000700 | 0x800003, "/hutch-no-such", 0, 0), REFUSED, "ENOENT ENOTBLK EINVAL ENODEV");
	judge("syslog", syscall(SYS_syslog, 10, 0, 0), REFUSED, "");
	judge("settimeofday", syscall(SYS_settimeofday, (long[2]){-1, -1}, 0), REFUSED, "EINVAL");
	judge("clock_settime", syscall(SYS_clock_settime, CLOCK_REALTIME, (long[2]){-1, -1}), REFUSED, "EINVAL");
	struct timex t = {.modes = ADJ_TICK, .tick = 1};
	judge("clock_adjtime", syscall(SYS_clock_adjtime, CLOCK_REALTIME, &t), REFUSED, "EINVAL");
	judge("adjtimex", syscall(SYS_adjtimex, &t), REFUSED, "EINVAL");
	judge("sethostname", syscall(SYS_sethostname, "x", -1), REFUSED, "EINVAL");
	judge("setdomainname", syscall(SYS_setdomainname, "x", -1), REFUSED, "EINVAL");
	judge("vhangup", bare() ? (errno = EPERM, -1) : syscall(SYS_vhangup), REFUSED, "");
#ifdef SYS_iopl
	judge("iopl", syscall(SYS_iopl, 3), REFUSED, "");
	judge("ioperm", syscall(SYS_ioperm, 0x80, 1, 1), REFUSED, "");
#endif
	judge("lookup_dcookie", syscall(SYS_lookup_dcookie, 0, 0, 0), REFUSED, "EINVAL");
}

static void fanotify_(void)
{
	judge("fanotify_init", syscall(SYS_fanotify_init, 0x200 /* FAN_REPORT_FID */, O_RDONLY), REFUSED, "EINVAL");
	judge("fanotify_init(permission)", syscall(SYS_fanotify_init, 4, O_RDONLY), REFUSED, "EINVAL");
}

// How a child that makes a system call the old way ends: 0 it came back, else
// the signal.
static int by_hand(void (*call)(void))
{
	pid_t pid = fork();
	if (pid == 0) {
		call();
		_exit(0);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

#ifdef __x86_64__
static void int80(void)
{
	long ret = 20; // getpid
	__asm__ volatile("int $0x80" : "+a"(ret) : : "memory", "r8", "r9", "r10", "r11");
	if (ret < 0)
		raise(SIGSEGV);
}
static void int80_mount(void)
{
	long ret = 21;
	__asm__ volatile("int $0x80" : "+a"(ret) : "b"(0), "c"(0), "d"(0), "S"(0), "D"(0) : "memory", "r8", "r9", "r10", "r11");
}
#endif

static void compat_abi(void)
{
#ifdef __x86_64__
	int how = by_hand(int80);
	if (how == SIGSYS)
		line("TRIED", "int 0x80", "SIGSYS");
	else if (how == SIGSEGV)
		line("NA", "this kernel has no 32-bit calls", "");
	else
		line("GOT", "int 0x80", "getpid answered (%d)", how);
	how = by_hand(int80_mount);
	line(how == SIGSYS ? "TRIED" : "SAY", "int 0x80, mount", "signal %d", how);
	long pid = syscall(0x40000000 | SYS_getpid);
	if (pid == getpid())
		line("GOT", "x32", "getpid answered");
	else
		judge("x32", pid, "ENOSYS EPERM", "");
	judge("x32, ptrace", syscall(0x40000000 | 521, 0, 0, 0, 0), "ENOSYS EPERM", "EFAULT EIO");
#else
	(void)by_hand;
	line("NA", "no second interface on this architecture", "");
#endif
}

// Input that a terminal takes for typed.
static void terminal_input(int fd, const char *which)
{
	char what[96];
	static const struct { const char *name; unsigned long request; } wanted[] = {{"TIOCSTI", 0x5412}, {"TIOCSTI with high bits", 0x5412 | 1UL << 32}, {"TIOCSTI with other high bits", 0x5412 | 0xffffffffUL << 32}, {"TIOCLINUX", 0x541c}, {"TIOCLINUX with high bits", 0x541c | 1UL << 40}};
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		char c = i < 3 ? 'Q' : 6; // TIOCLINUX 6: the shift state, which only a console has
		snprintf(what, sizeof what, "%s on %s", wanted[i].name, which);
		judge(what, syscall(SYS_ioctl, fd, wanted[i].request, &c), REFUSED, i < 3 ? "EIO" : "EINVAL ENOTTY");
	}
}

static void tiocsti(void)
{
	int own = open("/dev/tty", O_RDWR | O_CLOEXEC);
	if (own >= 0)
		terminal_input(own, "the box's terminal");
	else
		line("SAY", "/dev/tty", "%s", errno_name(errno));
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC), lock = 0, nr;
	if (master < 0) {
		line("ODD", "/dev/ptmx", "%s", errno_name(errno));
		return;
	}
	char path[64];
	ioctl(master, TIOCSPTLCK, &lock);
	ioctl(master, TIOCGPTN, &nr);
	snprintf(path, sizeof path, "/dev/pts/%d", nr);
	pid_t pid = fork();
	if (pid == 0) {
		setsid();
		int slave = open(path, O_RDWR);
		if (slave < 0 || ioctl(slave, TIOCSCTTY, 0) < 0)
			line("ODD", path, "%s", errno_name(errno));
		else
			terminal_input(slave, "a terminal of its own");
		_exit(0);
	}
	waitpid(pid, 0, 0);
	// Others' terminals, by their numbers.
	for (int i = 0; i < 64 && !bare(); i++) {
		snprintf(path, sizeof path, "/dev/pts/%d", i);
		if (i != nr) {
			int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
			if (fd >= 0 && own < 0)
				line("GOT", path, "a terminal that is not ours");
			if (fd >= 0)
				close(fd);
		}
	}
}

static void socket_families(void)
{
	static const struct { const char *name; int family, type, protocol; } wanted[] = {
		{"vsock", 40, SOCK_STREAM, 0}, {"alg", 38, SOCK_SEQPACKET, 0}, {"packet", 17, SOCK_RAW, 0x300}, {"packet datagram", 17, SOCK_DGRAM, 0}, {"key", 15, SOCK_RAW, 2}, {"xdp", 44, SOCK_RAW, 0}, {"rds", 21, SOCK_SEQPACKET, 0},
		{"tipc", 30, SOCK_STREAM, 0}, {"can", 29, SOCK_RAW, 1}, {"bluetooth", 31, SOCK_RAW, 1}, {"nfc", 39, SOCK_RAW, 0}, {"kcm", 41, SOCK_SEQPACKET, 0}, {"qipcrtr", 42, SOCK_DGRAM, 0}, {"smc", 43, SOCK_STREAM, 0}, {"llc", 26, SOCK_STREAM, 0},
		{"ax25", 3, SOCK_DGRAM, 0}, {"pppox", 24, SOCK_STREAM, 0}, {"rxrpc", 33, SOCK_DGRAM, 2}, {"netlink audit", 16, SOCK_RAW, 9}, {"netlink uevent", 16, SOCK_RAW, 15}, {"netlink sock_diag", 16, SOCK_RAW, 4}, {"netlink netfilter", 16, SOCK_RAW, 12}, {"netlink xfrm", 16, SOCK_RAW, 6},
		{"netlink generic", 16, SOCK_RAW, 16}, {"netlink connector", 16, SOCK_RAW, 11}, {"netlink crypto", 16, SOCK_RAW, 21}, {"sctp", AF_INET, SOCK_STREAM, 132}, {"dccp", AF_INET, SOCK_DCCP, 33}, {"udplite", AF_INET, SOCK_DGRAM, 136},
	};
	char what[96];
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		snprintf(what, sizeof what, "socket(%s)", wanted[i].name);
		judge(what, socket(wanted[i].family, wanted[i].type | SOCK_CLOEXEC, wanted[i].protocol), "EPERM EACCES EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT", "");
	}
	judge("socket(raw icmp)", socket(AF_INET, SOCK_RAW, 1), REFUSED, "");
	judge("socket(raw)", socket(AF_INET, SOCK_RAW, 255), REFUSED, "");
	int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (nl < 0) {
		judge("socket(netlink route)", nl, REFUSED " EAFNOSUPPORT EPROTONOSUPPORT", "");
		return;
	}
	// Reading the own interfaces is needed; changing them is not.
	struct {
		struct nlmsghdr head;
		struct ifinfomsg info;
	} down = {{sizeof down, RTM_NEWLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0}, {.ifi_index = 1, .ifi_change = bare() ? 0 : 1}};
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char rest[512];
	} reply;
	if (send(nl, &down, sizeof down, 0) < 0 || recv(nl, &reply, sizeof reply, 0) < (ssize_t)(sizeof reply.head + sizeof reply.error)) {
		line("ODD", "take lo down", "%s", errno_name(errno));
		return;
	}
	errno = -reply.error.error;
	judge("take lo down", reply.error.error ? -1 : 0, REFUSED, "");
}

static void setns_(void)
{
	static const char *const names[] = {"mnt", "user", "pid", "net", "ipc", "uts", "cgroup", "time"};
	char path[64], what[96];
	const char *pids[] = {"self", "1", param("pid")};
	for (size_t p = 0; p < 3; p++)
		for (size_t i = 0; i < sizeof names / sizeof *names && *pids[p]; i++) {
			snprintf(path, sizeof path, "/proc/%s/ns/%s", pids[p], names[i]);
			snprintf(what, sizeof what, "setns(%s)", path);
			int fd = open(path, O_RDONLY | O_CLOEXEC);
			if (fd < 0 && p > 0) {
				judge(what, fd, ABSENT " ESRCH", "");
				continue;
			}
			judge(what, setns(fd, 0), REFUSED, p == 0 ? "EINVAL" : "EINVAL EUSERS");
			if (fd >= 0)
				close(fd);
		}
	for (int pid = 1; pid < 4 && !bare(); pid++) {
		int pidfd = (int)syscall(434, pid, 0);
		if (pidfd >= 0) {
			snprintf(what, sizeof what, "setns(pidfd of %d)", pid);
			judge(what, setns(pidfd, CLONE_NEWNS), REFUSED, "EINVAL");
			close(pidfd);
		}
	}
	int root = open("/", O_RDONLY | O_CLOEXEC);
	judge("ioctl(NS_GET_PARENT)", syscall(SYS_ioctl, open("/proc/self/ns/user", O_RDONLY), 0xb702), REFUSED " ENOTTY", "");
	close(root);
}

// Renames whose names change while the mover looks at them.
static char name_from[256], name_to[256];
static const char *volatile other_from, *volatile other_to;
static volatile int racing;

static void *swap_names(void *unused)
{
	(void)unused;
	while (racing) {
		memcpy(name_from, other_from, strlen(other_from) + 1);
		memcpy(name_to, other_to, strlen(other_to) + 1);
		memcpy(name_from, "race-a", 7);
		memcpy(name_to, "race-b", 7);
	}
	return 0;
}

static void notify_race(void)
{
	char secret[300];
	snprintf(secret, sizeof secret, "%s", param("canarydir"));
	mkdir("race-a", 0755);
	mkdir("race-a/sub", 0755);
	other_from = *secret ? secret : "/etc";
	other_to = "race-c";
	strcpy(name_from, "race-a");
	strcpy(name_to, "race-b");
	racing = 1;
	pthread_t thread;
	pthread_create(&thread, 0, swap_names, 0);
	long moved = 0, refused = 0;
	for (long i = 0, n = number("rounds", 2000); i < n; i++) {
		if (rename(name_from, name_to) == 0)
			moved++;
		else
			refused++;
		rename("race-b", "race-a");
		if (!access("race-c", F_OK)) {
			char to[600];
			snprintf(to, sizeof to, "race-c/%s", param("name"));
			if (*param("name") && !access(to, F_OK)) {
				line("GOT", "rename", "what lay outside is here");
				rename("race-c", other_from); // back
			}
			rename("race-c", "race-a");
		}
	}
	racing = 0;
	pthread_join(thread, 0);
	line("TRIED", "renames", "%ld moved, %ld refused", moved, refused);
	if (*secret) { // and plainly
		judge("rename of what lies outside", rename(secret, "race-d"), ABSENT " EROFS EXDEV", "");
	}
	// A listener of one's own over the box's calls is no way around it.
	rmdir("race-a/sub");
	rmdir("race-b/sub");
	rmdir("race-c/sub");
	rmdir("race-a");
	rmdir("race-b");
	rmdir("race-c");
}

static void cgroup_clone(void)
{
	int fd = open(*param("cgroup2") ? param("cgroup2") : "/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct clone3_args args = {.flags = 0x200000000ULL, .exit_signal = SIGCHLD, .cgroup = (uint64_t)fd};
	judge("clone3 into a cgroup", ended(syscall(SYS_clone3, &args, sizeof args)), REFUSED, "EBADF EINVAL EBUSY");
}

static int find_cgroup_files(const char *dir, int depth)
{
	DIR *d = opendir(dir);
	int seen = 0;
	if (!d)
		return 0;
	static const char *const wanted[] = {"cgroup.procs", "tasks", "release_agent", "memory.max", "memory.limit_in_bytes", "pids.max", "cgroup.kill"};
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		char path[4200];
		snprintf(path, sizeof path, "%s/%s", dir, wanted[i]);
		if (!access(path, F_OK)) {
			seen++;
			judge_open(path, O_WRONLY);
		}
	}
	for (struct dirent *e; (e = readdir(d)) && depth < 3;) {
		char path[4200];
		if (e->d_name[0] != '.' && e->d_type == DT_DIR && snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path)
			seen += find_cgroup_files(path, depth + 1);
	}
	closedir(d);
	return seen;
}

static void cgroup_escape(void)
{
	int seen = find_cgroup_files("/sys/fs/cgroup", 0);
	line("TRIED", "files of cgroups", "%d seen", seen);
	char *own = slurp("/proc/self/cgroup"), *end;
	for (char *at = own; at && *at; at = end) {
		end = strchr(at, '\n');
		if (end)
			*end++ = 0;
		else
			end = at + strlen(at);
		if (strstr(at, "hutch"))
			line(bare() ? "SAY" : "GOT", "/proc/self/cgroup", "shows the host's name of it: %s", at);
		else
			line("TRIED", "/proc/self/cgroup", "%s", at);
	}
	syscall(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWCGROUP);
	mkdir("cg", 0755);
	judge("mount(cgroup2)", mount("none", "cg", "cgroup2", 0, 0), REFUSED, "EBUSY EINVAL");
	if (judge("mount(cgroup)", mount("none", "cg", "cgroup", 0, "rdma"), REFUSED, "EBUSY EINVAL ENODEV ENOENT") == GRANTED)
		judge_open("cg/release_agent", O_WRONLY);
	umount2("cg", MNT_DETACH);
	umount2("cg", MNT_DETACH);
	rmdir("cg");
}

// What a filter is asked on the way that was not thought of: every number, with
// arguments that do nothing. None may kill the box's init or come back as a
// success that is not on the list.
static void every_number(void)
{
	int killed = 0, refused = 0, passed = 0;
	for (int nr = 0; nr < 600; nr++) {
		// Those that never return, or wait, or end us.
		static const int skip[] = {SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_kill, SYS_tkill, SYS_tgkill, SYS_wait4, SYS_waitid, SYS_futex, SYS_ppoll, SYS_pselect6, SYS_read, SYS_readv,
#ifdef SYS_pause
			SYS_pause, SYS_fork, SYS_vfork, SYS_poll, SYS_select,
#endif
			SYS_clone, SYS_clone3, SYS_munmap, SYS_shutdown, SYS_close, SYS_close_range, SYS_sync, SYS_write};
		int leave_out = 0;
		for (size_t i = 0; i < sizeof skip / sizeof *skip; i++)
			leave_out |= skip[i] == nr;
		if (leave_out)
			continue;
		pid_t pid = fork();
		if (pid == 0) {
			alarm(1);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			long ret = syscall(nr, -1L, -1L, -1L, -1L, -1L, -1L);
			_exit(ret >= 0 ? 0 : errno == EPERM || errno == ENOSYS ? 1 : 2);
		}
		int status;
		waitpid(pid, &status, 0);
		if (WIFSIGNALED(status))
			killed++;
		else if (WEXITSTATUS(status) == 1)
			refused++;
		else
			passed++;
	}
	line("TRIED", "every number", "%d refused, %d passed on, %d ended by a signal", refused, passed, killed);
}

const struct attack kernel[] = {
	{"userns-again", userns_again}, {"mount-anything", mount_anything}, {"trace-others", trace_others}, {"userfaultfd", userfaultfd_}, {"io-uring", io_uring}, {"bpf", bpf_}, {"perf-event", perf_event},
	{"keyrings", keyrings}, {"keyring-of-host", keyring_of_host}, {"machine-calls", machine_calls}, {"fanotify", fanotify_}, {"compat-abi", compat_abi}, {"tiocsti", tiocsti}, {"socket-families", socket_families},
	{"setns", setns_}, {"notify-race", notify_race}, {"cgroup-clone", cgroup_clone}, {"cgroup-escape", cgroup_escape}, {"every-number", every_number}, {0, 0},
};
