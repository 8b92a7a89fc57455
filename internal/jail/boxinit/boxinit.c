// boxinit: PID 1 of a box; in another role, the keeper (keeper.c).
//
// It is started from a sealed memfd with a seqpacket socket as descriptor 3,
// and executes the plan that arrives there, operation by operation, in the
// order in which a box is made: leave the host's namespaces, build a new root,
// enter it, give up every right. Then it serves: starts commands, reaps,
// reports. It holds no policy and decides nothing; the operations are described
// in internal/plan/plan.go, and both sides must agree on them.
//
// It is freestanding: no libc and no heap; the only
// threads are those of mover.c. Any failure is reported
// with the step, its argument and errno, and ends the box.

#include "boxinit.h"
#include "mover.h"
#include "refusal.h"
#include "report.h"
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>

// ---- the plan's part of the protocol (internal/plan/plan.go) ----

enum op_code {
	OP_CGROUP = 1, OP_UNSHARE, OP_MAP, OP_FORK, OP_USERNS, OP_ROOT, OP_DIR, OP_FILE, OP_SYMLINK, OP_BIND, OP_TMPFS,
	OP_OVERLAY, OP_PROC, OP_SYSFS, OP_DEVPTS, OP_MQUEUE, OP_MASK, OP_READONLY, OP_PIVOT, OP_HOSTNAME, OP_LOOPBACK,
	OP_RLIMIT, OP_SENDFD, OP_IDS, OP_MAXUSERNS, OP_DROPCAPS, OP_LANDLOCK, OP_LANDLOCK_PATH, OP_LANDLOCK_APPLY,
	OP_SECCOMP, OP_ASSERT, OP_SERVE, OP_RAMLAYER, OP_BOUNDCAPS, OP_REBIND, OP_COMMANDS,
	OP_OOM_SCORE, OP_PERSONALITY, OP_UMASK,
	OP_LAYER_DIR, OP_WHITEOUT,
	OP_SYSCTL,
	OP_LANDLOCK_PORT,
};

enum { BIND_OPTIONAL = 1, FORK_MAPS = 1, ASSERT_NO_USERNS = 1, ASSERT_READONLY_ROOT = 2, ASSERT_NO_CAPS = 4, SERVE_ONESHOT = 1,
	TAG_TERMINAL = 4,
	OVERLAY_HIDDEN = 1, LAYER_RAM = 1, LAYER_OPAQUE = 2, LAYER_TRUSTED = 4 };

struct op {
	u32 code, size; // size: of the whole record, a multiple of 8
	u64 a, b, c;
	char data[]; // NUL-terminated strings, or raw bytes
};

struct report {
	u32 kind, op, step;
	int32_t err;
	u32 exec, unused; // exec: the command it is about, as numbered by the supervisor
	u64 a, b, c, d;
	char text[256];
};

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall boxinit_main\n\thlt\n");
#else
__asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tbl boxinit_main\n\tbrk #0\n");
#endif

// What the compiler may call.

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	char *t = to;
	const char *f = from;
	while (n--)
		*t++ = *f++;
	return to;
}

void *memset(void *to, int c, size_t n)
{
	char *t = to;
	while (n--)
		*t++ = (char)c;
	return to;
}

// ---- reports ----

static u32 step, step_op;
int report_fd = CONTROL_FD;

long send_report(u32 kind, u32 exec, int err, const char *text, u64 a, u64 b, u64 c, u64 d, int fd, int how)
{
	struct report r = {.kind = kind, .op = step_op, .step = step, .err = err, .exec = exec, .a = a, .b = b, .c = c, .d = d};
	for (size_t i = 0; text && text[i] && i < sizeof r.text - 1; i++)
		r.text[i] = text[i];
	struct iovec iov = {&r, sizeof r};
	struct kernel_cmsghdr cm = {.len = offsetof(struct kernel_cmsghdr, fds) + sizeof(int), .level = SOL_SOCKET_, .type = SCM_RIGHTS_, .fds = {fd}};
	struct kernel_msghdr m = {.iov = &iov, .iovlen = 1};
	if (fd >= 0) {
		m.control = &cm;
		m.controllen = (cm.len + 7) & ~7UL;
	}
	long ret;
	do
		ret = sys(sendmsg, report_fd, &m, 0x4000 /* MSG_NOSIGNAL */ | (how == REPORT_MAY_FAIL ? 0x40 /* MSG_DONTWAIT */ : 0));
	while (ret == -EINTR);
	return ret;
}

void report(u32 kind, int err, const char *text, u64 a, u64 b, u64 c, u64 d, int fd)
{
	send_report(kind, 0, err, text, a, b, c, d, fd, REPORT_WAITS);
}

static void report_command(u32 kind, u32 exec, int err, const char *text, u64 a, u64 b, u64 c, u64 d, int fd)
{
	send_report(kind, exec, err, text, a, b, c, d, fd, REPORT_WAITS);
}

void leave(int status)
{
	for (;;)
		sys(exit_group, status);
}

void fail(long err, const char *text)
{
	report(REP_ERROR, err < 0 ? (int)-err : (int)err, text, 0, 0, 0, 0, -1);
	leave(1);
}

long must(long ret, const char *text)
{
	if (ret < 0)
		fail(ret, text);
	return ret;
}

// ---- building the new root ----
//
// The new root is a tmpfs mounted on top of "/". Our own root directory stays
// the old one beneath it (a walk that starts at a root does not cross a mount on
// that root), so sources are the host's absolute paths and targets are resolved
// from root_fd: no path of the host is ever covered while we need it.

static int root_fd = -1, proc_sys_fd = -1, map_pipe = -1, hidden_fd = -1;

// A directory that masks other directories; it has no name any more once the
// box is entered, so nothing can be put into it.
#define EMPTY ".hutch-empty"

static int empty_made;

// Writes a file of /proc, and of no other file system: what is mounted there by
// somebody else would take our word for something else (CVE-2025-52881).
static long write_proc(int dirfd, const char *path, const char *text)
{
	u64 fs[32]; // struct statfs, whose first word is the type
	long fd = sys(openat, dirfd, path, O_WRONLY_ | O_CLOEXEC_, 0);
	if (fd < 0)
		return fd;
	long ret = sys(fstatfs, fd, fs);
	if (ret >= 0)
		ret = fs[0] == PROC_SUPER_MAGIC_ ? sys(write, fd, text, length(text)) : -EXDEV;
	sys(close, fd);
	return ret;
}

static const char *relative(const char *path)
{
	while (*path == '/')
		path++;
	return *path ? path : ".";
}

static long open_in_root(const char *path, u64 flags)
{
	// No component may be a symlink: the plan's paths are resolved, and what
	// a workspace or a home holds must not redirect a mount.
	struct open_how how = {.flags = flags | O_CLOEXEC_, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
	return sys(openat2, root_fd, relative(path), &how, sizeof how);
}

static void close_unless_root(int fd)
{
	if (fd != root_fd)
		sys(close, fd);
}

// Opens the parent directory of path in the new root, making what is missing,
// and sets *name to the last component.
static int make_parent(const char *path, const char **name)
{
	static char part[4096];
	const char *rel = relative(path);
	size_t n = length(rel), slash = 0;
	if (n >= sizeof part)
		fail(ENAMETOOLONG, path);
	for (size_t i = 0; i < n; i++)
		if (rel[i] == '/')
			slash = i;
	*name = slash ? rel + slash + 1 : rel;
	if (!slash)
		return root_fd;
	memcpy(part, rel, slash);
	part[slash] = 0;
	long fd = open_in_root(part, O_PATH_ | O_DIRECTORY_);
	if (fd != -ENOENT)
		return (int)must(fd, path);
	for (size_t i = 1; i <= slash; i++) {
		if (part[i] != '/' && part[i] != 0)
			continue;
		char keep = part[i];
		part[i] = 0;
		long ret = sys(mkdirat, root_fd, part, 0755);
		if (ret < 0 && ret != -EEXIST)
			fail(ret, path);
		part[i] = keep;
	}
	return (int)must(open_in_root(part, O_PATH_ | O_DIRECTORY_), path);
}

static void make_dir(const char *path, u32 mode)
{
	const char *name;
	int parent = make_parent(path, &name);
	long ret = sys(mkdirat, parent, name, mode);
	if (ret < 0 && ret != -EEXIST)
		fail(ret, path);
	close_unless_root(parent);
}

static long make_file_at(int parent, const char *name, u32 mode)
{
	return sys(openat, parent, name, O_WRONLY_ | O_CREAT_ | O_EXCL_ | O_NOFOLLOW_ | O_CLOEXEC_, mode);
}

static void make_file(const char *path, u32 mode, const char *content, const u64 *owner)
{
	const char *name;
	int parent = make_parent(path, &name);
	long fd = make_file_at(parent, name, mode);
	if (fd != -EEXIST) {
		must(fd, path);
		for (size_t left = length(content); left;) {
			size_t n = (size_t)must(sys(write, fd, content, left), path);
			content += n;
			left -= n;
		}
		if (owner)
			must(sys(fchown, fd, *owner >> 32, *owner & 0xffffffff), path);
		sys(close, fd);
	}
	close_unless_root(parent);
}

static int is_directory(int fd)
{
	struct statx st;
	must(sys(statx, fd, "", AT_EMPTY_PATH_, STATX_TYPE, &st), "statx");
	return (st.stx_mode & 0170000) == 0040000;
}

static void set_attr(int mount_fd, u64 attr, const char *what)
{
	struct mount_attr ma = {.attr_set = attr};
	if (attr)
		must(sys(mount_setattr, mount_fd, "", AT_EMPTY_PATH_ | AT_RECURSIVE_, &ma, sizeof ma), what);
}

// Attaches a detached mount at path in the new root, making the mount point
// where the new root has none. A symlink in its place is not followed.
static void attach(int mount_fd, const char *path)
{
	const char *name;
	int parent = make_parent(path, &name);
	long ret = sys(move_mount, mount_fd, "", parent, name, MOVE_MOUNT_F_EMPTY_PATH);
	if (ret == -ENOENT) {
		if (is_directory(mount_fd)) {
			must(sys(mkdirat, parent, name, 0755), path);
		} else {
			sys(close, must(make_file_at(parent, name, 0444), path));
		}
		ret = sys(move_mount, mount_fd, "", parent, name, MOVE_MOUNT_F_EMPTY_PATH);
	}
	must(ret, path);
	close_unless_root(parent);
	sys(close, mount_fd);
}

// Attaches a mount where the box will not see it, on a directory of the old
// root that is no source of anything: it goes with the old root. To take it away
// by itself would cost a grace period of the whole machine.
static void hide(int mount_fd, const char *what)
{
	static const char *const places[] = {"/sys", "/mnt", "/srv", "/media"};
	long ret = -ENOENT;
	for (size_t i = 0; i < sizeof places / sizeof *places && ret < 0; i++)
		ret = sys(move_mount, mount_fd, "", AT_FDCWD_, places[i], MOVE_MOUNT_F_EMPTY_PATH);
	must(ret, what);
}

static void attach_or_hide(int mount_fd, const char *path)
{
	if (*path) {
		attach(mount_fd, path);
		return;
	}
	if (hidden_fd >= 0)
		sys(close, hidden_fd);
	hide(mount_fd, "hidden mount");
	hidden_fd = mount_fd;
}

long new_mount(const char *type, const struct option *options, u64 attr)
{
	long fs = sys(fsopen, type, FSOPEN_CLOEXEC);
	if (fs < 0)
		return fs;
	long ret = 0;
	for (; options && options->key && ret >= 0; options++)
		ret = sys(fsconfig, fs, options->value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, options->key, options->value, 0);
	if (ret >= 0)
		ret = sys(fsconfig, fs, FSCONFIG_CMD_CREATE, 0, 0, 0);
	if (ret >= 0)
		ret = sys(fsmount, fs, FSMOUNT_CLOEXEC, attr);
	sys(close, fs);
	return ret;
}

const struct option *split_options(const char *text)
{
	static char words[512];
	static struct option list[OPTIONS_MAX];
	size_t size = length(text) + 1;
	if (size > sizeof words)
		fail(E2BIG, text);
	memcpy(words, text, size);
	int n = 0;
	for (char *w = words; *w && n < OPTIONS_MAX - 1;) {
		char *end = w, *value = 0;
		for (; *end && *end != ','; end++)
			if (*end == '=' && !value) {
				*end = 0;
				value = end + 1;
			}
		char last = *end;
		*end = 0;
		list[n].key = w;
		list[n++].value = value;
		w = last ? end + 1 : end;
	}
	list[n].key = 0;
	return list;
}

static long new_tmpfs(u64 attr, const char *options)
{
	return new_mount("tmpfs", split_options(options), attr);
}

static void do_root(const char *options)
{
	// First of all: a mount made here must not propagate to the host.
	must(sys(mount, 0, "/", 0, MS_REC_ | MS_PRIVATE_, 0), "make / private");
	root_fd = (int)must(new_tmpfs(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, options), "tmpfs for /");
	must(sys(move_mount, root_fd, "", AT_FDCWD_, "/", MOVE_MOUNT_F_EMPTY_PATH), "new root over /");
}

static void do_bind(const char *from, const char *to, u64 attr, u64 flags)
{
	// Recursive, or the kernel refuses: the mounts below are locked to their
	// parents in an unprivileged namespace.
	long fd = sys(open_tree, AT_FDCWD_, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE_);
	if (fd == -ENOENT && flags & BIND_OPTIONAL)
		return;
	must(fd, from);
	set_attr((int)fd, attr, from);
	attach((int)fd, to);
}

static int ram_upper_fd = -1, ram_work_fd = -1;

static void do_ramlayer(const char *options, u64 mode, u64 owner, u64 tag)
{
	int top = (int)must(new_tmpfs(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, options), "tmpfs for the layer");
	hide(top, "layer");
	must(sys(mkdirat, top, "upper", mode), "layer");
	must(sys(fchownat, top, "upper", owner >> 32, owner & 0xffffffff, 0), "layer");
	must(sys(mkdirat, top, "work", 0700), "layer");
	ram_upper_fd = (int)must(sys(openat, top, "upper", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), "layer");
	ram_work_fd = (int)must(sys(openat, top, "work", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), "layer");
	sys(close, top);
	report(REP_FD, 0, "layer", tag, 0, 0, 0, ram_upper_fd);
}

static void fd_path(char *to, int fd)
{
	append_number(append(to, "/proc/self/fd/"), (u64)fd);
}

// Layers are given as descriptors: a path with ':' or ',' needs no escaping so,
// and the box's mount table does not show the host's paths.
static void do_overlay(const char *lower, const char *upper, const char *work, const char *to, const char *options, u64 attr, u64 flags)
{
	char lower_path[32], upper_path[32], work_path[32];
	int fds[3];
	const char *dirs[3] = {lower, upper, work};
	char *paths[3] = {lower_path, upper_path, work_path};
	for (int i = 0; i < 3; i++) {
		if (i > 0 && !*dirs[i]) // in RAM: OP_RAMLAYER made them
			fds[i] = i == 1 ? ram_upper_fd : ram_work_fd;
		else
			fds[i] = (int)must(sys(openat, i > 0 && flags & OVERLAY_HIDDEN ? hidden_fd : AT_FDCWD_, dirs[i], O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), dirs[i]);
		fd_path(paths[i], fds[i]);
	}
	struct option list[OPTIONS_MAX] = {{"lowerdir", lower_path}, {"upperdir", upper_path}, {"workdir", work_path}};
	int n = 3;
	for (const struct option *extra = split_options(options); extra->key && n < OPTIONS_MAX - 1; extra++)
		list[n++] = *extra;
	int fd = (int)must(new_mount("overlay", list, attr), *to ? to : "home");
	for (int i = 0; i < 3; i++)
		sys(close, fds[i]);
	attach_or_hide(fd, to);
}

// Layers in memory, filled before they are mounted: no process of the box is
// there yet, and nothing in them is a link.
static int layer_base(u64 flags)
{
	return flags & LAYER_RAM ? ram_upper_fd : hidden_fd;
}

static void do_layer_dir(const char *path, u64 mode, u64 owner, u64 flags)
{
	int base = layer_base(flags);
	long ret = sys(mkdirat, base, path, mode);
	if (ret == -EEXIST)
		return;
	must(ret, path);
	if (owner)
		must(sys(fchownat, base, path, owner >> 32, owner & 0xffffffff, 0), path);
	if (flags & LAYER_OPAQUE) {
		int fd = (int)must(sys(openat, base, path, O_DIRECTORY_ | O_CLOEXEC_, 0), path);
		ret = sys(fsetxattr, fd, flags & LAYER_TRUSTED ? "trusted.overlay.opaque" : "user.overlay.opaque", "y", 1, 0);
		must(ret, path);
		sys(close, fd);
	}
}

// A whiteout: overlayfs then shows nothing there, whatever comes to lie below.
static void do_whiteout(const char *path, u64 flags)
{
	long ret = sys(mknodat, layer_base(flags), path, 0020000 /* S_IFCHR */, 0);
	if (ret != -EEXIST)
		must(ret, path);
}

// As do_bind, from a path in the hidden mount, which is made when mode is given.
static void do_rebind(const char *from, const char *to, u64 mode, u64 owner, u64 attr)
{
	if (mode) {
		must(sys(mkdirat, hidden_fd, from, mode), to);
		if (owner) // what we make is ours already, and root need not be mapped
			must(sys(fchownat, hidden_fd, from, owner >> 32, owner & 0xffffffff, 0), to);
	}
	// What lies in a home must not lead the mount elsewhere.
	struct open_how how = {.flags = O_PATH_ | O_CLOEXEC_, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
	int source = (int)must(sys(openat2, hidden_fd, from, &how, sizeof how), to);
	int fd = (int)must(sys(open_tree, source, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH_), to);
	sys(close, source);
	set_attr(fd, attr, to);
	attach(fd, to);
}

static void do_mask(const char *path)
{
	long target = open_in_root(path, O_PATH_);
	if (target == -ENOENT || target == -ENOTDIR || target == -EACCES)
		return;
	must(target, path);
	long fd;
	if (is_directory((int)target)) {
		if (!empty_made)
			make_dir("/" EMPTY, 0555);
		empty_made = 1;
		fd = must(sys(open_tree, root_fd, EMPTY, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), path);
		set_attr((int)fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, path);
	} else {
		fd = must(sys(open_tree, AT_FDCWD_, "/dev/null", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), "/dev/null");
		struct statx st;
		must(sys(statx, fd, "", AT_EMPTY_PATH_, STATX_BASIC_STATS, &st), "/dev/null");
		// By number, not by name: CVE-2025-31133.
		if ((st.stx_mode & 0170000) != 0020000 || st.stx_rdev_major != 1 || st.stx_rdev_minor != 3)
			fail(ENODEV, "/dev/null is not the null device");
		set_attr((int)fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, path);
	}
	must(sys(move_mount, fd, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH), path);
	sys(close, target);
	sys(close, fd);
}

static void do_readonly(const char *path)
{
	long target = open_in_root(path, O_PATH_);
	if (target == -ENOENT)
		return;
	must(target, path);
	int fd = (int)must(sys(open_tree, target, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE_ | AT_EMPTY_PATH_), path);
	set_attr(fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, path);
	must(sys(move_mount, fd, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH), path);
	sys(close, target);
	sys(close, fd);
}

static void do_special(const char *type, const char *path, const struct option *options, u64 attr, int optional)
{
	long fd = new_mount(type, options, attr);
	if (fd < 0 && optional) {
		report(REP_MISSING, (int)-fd, type, 0, 0, 0, 0, -1);
		make_dir(path, 0555);
		return;
	}
	attach((int)must(fd, path), path);
}

static void do_proc(const char *path, u64 attr, int optional)
{
	// A fresh /proc is refused where the outer one is masked (containers);
	// then there is none, never the outer one.
	do_special("proc", path, 0, attr, optional);
	// Opened before /proc/sys turns read-only, for OP_MAXUSERNS.
	long fd = open_in_root("proc/sys/user", O_PATH_ | O_DIRECTORY_);
	proc_sys_fd = fd < 0 ? -1 : (int)fd;
}

static void do_pivot(void)
{
	if (empty_made)
		must(sys(unlinkat, root_fd, EMPTY, 0x200 /* AT_REMOVEDIR */), EMPTY);
	// Only the root mount itself, not what is mounted in it.
	struct mount_attr ma = {.attr_set = MOUNT_ATTR_RDONLY};
	must(sys(mount_setattr, root_fd, "", AT_EMPTY_PATH_, &ma, sizeof ma), "read-only /");
	must(sys(fchdir, root_fd), "/");
	must(sys(pivot_root, ".", "."), "pivot_root");
	// The old root now lies on top of the new one, with nothing below it that
	// the box may keep.
	must(sys(umount2, ".", MNT_DETACH_), "umount the old root");
	must(sys(chdir, "/"), "/");
	sys(close, root_fd);
	if (hidden_fd >= 0)
		sys(close, hidden_fd);
	root_fd = hidden_fd = -1;
}

// ---- ids and rights ----

static void map_ids(int proc, const char *uid_map, const char *gid_map, int deny_setgroups)
{
	if (deny_setgroups)
		must(write_proc(proc, "setgroups", "deny"), "setgroups");
	must(write_proc(proc, "uid_map", uid_map), "uid_map");
	must(write_proc(proc, "gid_map", gid_map), "gid_map");
}

// Makes PID 1 of the box: a child of our parent, so that the supervisor waits
// for it itself. Returns in the child only.
static void do_fork(u64 flags, const char *uid_map, const char *gid_map)
{
	int pipe[2] = {-1, -1}, pidfd = -1, host_proc = -1;
	if (flags & FORK_MAPS) {
		// Before the child's pivot_root, which moves our root as well: we
		// share its mount namespace.
		host_proc = (int)must(sys(openat, AT_FDCWD_, "/proc", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), "/proc");
		must(sys(socketpair, 1 /* AF_UNIX */, 5 /* SOCK_SEQPACKET */ | O_CLOEXEC_, 0, pipe), "socketpair");
	}
	unsigned long clone_flags = CLONE_PARENT | CLONE_PIDFD;
	long pid = must(sys(clone, clone_flags, 0, &pidfd, 0, 0), "clone");
	if (pid == 0) {
		map_pipe = pipe[1];
		if (pipe[0] >= 0) {
			sys(close, pipe[0]);
			sys(close, host_proc);
		}
		return;
	}
	report(REP_BORN, 0, 0, (u64)pid, 0, 0, 0, pidfd);
	if (flags & FORK_MAPS) {
		// The child leaves our user namespace last, when all mounts are
		// made; nobody inside may map more than one id, so we do it.
		char byte, name[24];
		sys(close, pipe[1]);
		if (sys(read, pipe[0], &byte, 1) == 1) {
			append_number(name, (u64)pid);
			int proc = (int)must(sys(openat, host_proc, name, O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), name);
			map_ids(proc, uid_map, gid_map, 0);
			must(sys(write, pipe[0], "m", 1), "map pipe");
		}
	}
	leave(0);
}

static void do_userns(void)
{
	char byte;
	must(sys(unshare, CLONE_NEWUSER), "user namespace");
	must(sys(write, map_pipe, "u", 1), "map pipe");
	if (sys(read, map_pipe, &byte, 1) != 1)
		fail(EPIPE, "the user namespace was not mapped");
	sys(close, map_pipe);
}

static void do_ids(u64 uid, u64 gid, u64 set_groups, const u32 *groups, u64 count)
{
	if (set_groups)
		must(sys(setgroups, count, groups), "setgroups");
	must(sys(setresgid, gid, gid, gid), "setresgid");
	must(sys(setresuid, uid, uid, uid), "setresuid");
}

static void do_maxuserns(void)
{
	if (proc_sys_fd < 0)
		return; // no /proc: the filter alone refuses it, and OP_ASSERT proves that
	must(write_proc(proc_sys_fd, "max_user_namespaces", "0"), "user.max_user_namespaces");
	sys(close, proc_sys_fd);
	proc_sys_fd = -1;
	if (sys(unshare, CLONE_NEWUSER) != -ENOSPC)
		fail(EPERM, "assertion: user.max_user_namespaces does not hold");
}

// While ids can still be changed: empties what later execs could regain.
static void do_boundcaps(void)
{
	// uid 0 regains what its bounding set holds at every exec, and
	// no_new_privs does not stop that.
	for (int cap = 0; sys(prctl, PR_CAPBSET_DROP, cap, 0, 0, 0) >= 0; cap++)
		;
	must(sys(prctl, PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |
		SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED, 0, 0, 0), "securebits");
}

static void do_dropcaps(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
	must(sys(capset, &head, none), "capset");
	must(sys(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	// A session keyring of its own: keyrings are not namespaced, and the
	// caller's would be shared. Absent where keys are not compiled in.
	sys(keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, 0);
}

static int own_network;

static void do_loopback(void)
{
	own_network = 1;
	struct { // ifreq of netdevice(7)
		char name[16];
		short flags;
		char rest[22];
	} req = {"lo", 0x41 /* IFF_UP | IFF_RUNNING */, {0}};
	int fd = (int)must(sys(socket, AF_INET_, SOCK_DGRAM_ | O_CLOEXEC_, 0), "socket");
	must(sys(ioctl, fd, 0x8914 /* SIOCSIFFLAGS */, &req), "loopback");
	sys(close, fd);
}

// ---- Landlock: structures of our own, since old headers lack the newer fields ----

static int ruleset_fd = -1;

static void do_landlock(u64 fs, u64 net, u64 scoped)
{
	struct {
		u64 fs, net, scoped;
	} attr = {fs, net, scoped};
	size_t size = scoped ? 24 : net ? 16 : 8;
	ruleset_fd = (int)must(sys(landlock_create_ruleset, &attr, size, 0), "landlock");
}

static void do_landlock_path(const char *path, u64 access, u64 optional)
{
	struct {
		u64 access;
		int32_t fd;
	} __attribute__((packed)) rule = {access, 0};
	long fd = sys(openat, AT_FDCWD_, path, O_PATH_ | O_CLOEXEC_, 0);
	if (fd < 0 && optional)
		return;
	rule.fd = (int)must(fd, path);
	must(sys(landlock_add_rule, ruleset_fd, 1, &rule, 0), path);
	sys(close, fd);
}

static void do_landlock_port(u64 access, u64 port)
{
	struct {
		u64 access, port;
	} rule = {access, port};
	must(sys(landlock_add_rule, ruleset_fd, 2 /* LANDLOCK_RULE_NET_PORT */, &rule, 0), "landlock port");
}

static void do_assert(u64 what)
{
	if (what & ASSERT_NO_USERNS) {
		long ret = sys(unshare, CLONE_NEWUSER);
		if (ret >= 0)
			fail(EPERM, "assertion: a further user namespace could be made");
	}
	if (what & ASSERT_READONLY_ROOT) {
		long ret = sys(mkdirat, AT_FDCWD_, "/.hutch-assert", 0700);
		if (ret != -EROFS)
			fail(EPERM, "assertion: / is not read-only");
	}
	if (what & ASSERT_NO_CAPS) {
		struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
		struct __user_cap_data_struct have[2];
		must(sys(capget, &head, have), "capget");
		if (have[0].effective | have[0].permitted | have[0].inheritable | have[1].effective | have[1].permitted | have[1].inheritable)
			fail(EPERM, "assertion: capabilities are left");
	}
}

// ---- serving ----

static struct {
	char **args, **env;
	const char *cwd, *search;
	int in, out, err;
	int terminal; // in is one of the box's own, to be the controlling terminal
	int untold;   // no listener is to be had
	u64 open_files[2]; // RLIMIT_NOFILE, soft and hard, where it is set: PID 1 itself needs its own
	u64 nonce[2];   // what makes an execve the first
	volatile long failure, no_cwd, listener, pid;
} start;

// The filter that commands are started with beside the one that PID 1 carries
// too (internal/jail/filter): told waits for PID 1, which must not wait for
// itself; untold refuses alone, where no listener can be had. Under either a
// nonce can stand for the one execve that is allowed.
static struct command_filter {
	struct sock_filter code[256];
	struct sock_fprog program;
	unsigned short nonce_at[4];
} told, untold;

static int command_flags; // LISTEN_*

static long caller_umask;
static char child_stack[16384] __attribute__((aligned(16)));

static u64 now(void)
{
	struct kernel_timespec ts;
	sys(clock_gettime, CLOCK_MONOTONIC_, &ts);
	return (u64)ts.sec * 1000000000u + (u64)ts.nsec;
}

static long try_exec(const char *path)
{
	long ret = sys(execve, path, start.args, start.env, start.nonce[0], start.nonce[1]);
	if (ret != -ENOEXEC)
		return ret;
	// A script without "#!": a shell runs it, as execvp(3) and every shell do.
	static char *shell_args[4096];
	size_t n = 0;
	while (start.args[n] && n < 4093)
		n++;
	if (start.args[n])
		return -E2BIG;
	shell_args[0] = (char *)"sh";
	shell_args[1] = (char *)path;
	for (size_t i = 1; i <= n; i++)
		shell_args[i + 1] = start.args[i];
	if (n == 0)
		shell_args[2] = 0;
	return sys(execve, "/bin/sh", shell_args, start.env, start.nonce[0], start.nonce[1]);
}

static long search_and_exec(void)
{
	static char path[4096];
	const char *name = start.args[0];
	size_t n = length(name);
	if (n == 0)
		return -ENOENT;
	for (size_t i = 0; i < n; i++)
		if (name[i] == '/')
			return try_exec(name);
	long result = -ENOENT;
	for (const char *dir = start.search; *dir;) {
		size_t len = 0;
		while (dir[len] && dir[len] != ':')
			len++;
		if (len && len + n + 2 < sizeof path) {
			memcpy(path, dir, len);
			path[len] = '/';
			memcpy(path + len + 1, name, n + 1);
			long ret = try_exec(path);
			if (ret == -EACCES)
				result = ret;
			else if (ret != -ENOENT && ret != -ENOTDIR)
				return ret;
		}
		dir += len;
		if (*dir)
			dir++;
	}
	return result;
}

// What stands in a filter for the nonce, and is found once each
// (internal/jail/filter/command.go).
static const u32 nonce_marks[4] = {0x6e6f6e63, 0x65206f66, 0x20626f78, 0x696e6974};

static void set_command_filter(struct command_filter *f, const void *code, size_t size)
{
	if (size == 0 || size > sizeof f->code || size % sizeof *f->code)
		fail(EPROTO, "plan: filter");
	memcpy(f->code, code, size);
	f->program = (struct sock_fprog){(unsigned short)(size / sizeof *f->code), f->code};
	for (int word = 0; command_flags & LISTEN_NO_SUBPROCESS && word < 4; word++) {
		int found = 0;
		for (unsigned short i = 0; i < f->program.len; i++)
			if (f->code[i].code == (BPF_JMP | BPF_JEQ | BPF_K) && f->code[i].k == nonce_marks[word]) {
				f->nonce_at[word] = i;
				found++;
			}
		if (found != 1)
			fail(EPROTO, "plan: nonce");
	}
}

// The program that starts cannot know the nonce: the kernel empties the registers
// for it, our memory is closed to it, and nobody in a box can read a filter back.
static long draw_nonce(void)
{
	if (!(command_flags & LISTEN_NO_SUBPROCESS))
		return 0;
	if (sys(getrandom, start.nonce, sizeof start.nonce, 0) != sizeof start.nonce)
		return -EIO;
	struct command_filter *filters[2] = {&told, &untold};
	for (int i = 0; i < 2; i++)
		for (int word = 0; word < 4; word++)
			filters[i]->code[filters[i]->nonce_at[word]].k = (u32)(start.nonce[word / 2] >> (word % 2 ? 0 : 32));
	return 0;
}

// Puts the filter on, and sets start.listener, in a descriptor table that is PID 1's.
static long put_filter_on(void)
{
	unsigned long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | (command_flags & LISTEN_RESTARTS ? 0 : 1UL << 5 /* WAIT_KILLABLE_RECV, since Linux 5.19 */);
	long ret = start.untold ? -ENFILE : sys(seccomp, SECCOMP_SET_MODE_FILTER, flags, &told.program);
	if (ret == -EINVAL && !(command_flags & LISTEN_RESTARTS)) {
		command_flags |= LISTEN_RESTARTS;
		ret = sys(seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &told.program);
	}
	start.listener = ret;
	if (ret < 0) // EBUSY: hutch itself runs under a filter with a listener
		ret = sys(seccomp, SECCOMP_SET_MODE_FILTER, 0, &untold.program);
	return ret < 0 ? ret : 0;
}

// Tells that nobody will be told, and listens where somebody is.
static void take_listener(u32 exec)
{
	if (start.listener >= 0) {
		mover_listen((int)start.listener, command_flags);
		return;
	}
	int err = start.untold ? ENFILE : (int)-start.listener;
	report_command(REP_MISSING, exec, err, "violations", 0, 0, 0, 0, -1);
	if (command_flags & LISTEN_RENAMES)
		report_command(REP_MISSING, exec, err, "rename", 0, 0, 0, 0, -1);
}

// A thread of ours that carries the filter, and so do the commands that it starts:
// to compile it anew for each takes 0.1 ms and more, a good part of what a command
// costs that is started in a box that lives. It has a thread's protection (nothing
// in a box can stop it), and where a command is stopped before it execs, only it
// waits. Not where the filter forbids to make processes, nor for one command alone.
static struct {
	int work_fd, done_fd; // eventfds; work_fd is -1 without such a thread
	char stack[16384] __attribute__((aligned(16)));
} launcher = {.work_fd = -1};

// Runs in the child, which shares our memory until it execs.
static void run_command(void *unused)
{
	(void)unused;
	u64 no_signals = 0;
	long ret = 0;
	if (told.program.len && launcher.work_fd < 0) {
		ret = put_filter_on();
		if (ret >= 0) // the table was PID 1's: a copy of our own
			ret = sys(close_range, ~0U, ~0U, 2 /* CLOSE_RANGE_UNSHARE */);
	}
	if (ret >= 0)
		ret = sys(setsid);
	if (ret >= 0 && start.terminal)
		ret = sys(ioctl, start.in, 0x540e /* TIOCSCTTY */, 0);
	if (ret >= 0)
		ret = sys(dup3, start.in, 0, 0);
	if (ret >= 0)
		ret = sys(dup3, start.out, 1, 0);
	if (ret >= 0)
		ret = sys(dup3, start.err, 2, 0);
	// Nothing but 0, 1, 2: not by the flag on each descriptor, but by number
	// (CVE-2024-21626 was one descriptor that had been forgotten).
	if (ret >= 0)
		ret = sys(close_range, 3, ~0U, 0);
	if (ret >= 0) {
		static char cwd[4096];
		ret = sys(chdir, start.cwd);
		// "(unreachable)" would mean a directory outside our root.
		if (ret >= 0)
			ret = sys(getcwd, cwd, sizeof cwd);
		if (ret >= 0 && cwd[0] != '/')
			ret = -EXDEV;
		start.no_cwd = ret < 0;
	}
	if (ret >= 0 && start.open_files[1])
		ret = sys(prlimit64, 0, RLIMIT_NOFILE_, start.open_files, 0);
	if (ret >= 0)
		ret = sys(rt_sigprocmask, SIG_SETMASK_, &no_signals, 0, 8);
	sys(umask, caller_umask);
	if (ret >= 0)
		ret = search_and_exec();
	start.failure = ret;
	sys(exit, 127);
}

char *next_string(char **at, char *end)
{
	char *s = *at;
	while (*at < end && **at)
		(*at)++;
	if (*at >= end)
		fail(EPROTO, "start message");
	(*at)++;
	return s;
}

// The commands that run. Each is told apart by the number that the supervisor
// gave it, and a process of it that outlives it is the box's.
enum { COMMANDS_MAX = 256 };
static struct running {
	int pid; // 0: free
	u32 exec;
	int terminal; // or -1
	u64 began;
} running[COMMANDS_MAX];
static int running_count;

static int one_shot;

// Whether packets may have tried to leave. To look takes a tenth of a millisecond:
// not after a single command that succeeded at once.
static int look_for_traffic = 1;
enum { SHORT_NS = 10000000 };

// Makes the command's terminal in the box's own devpts, so that it has a name
// there and can be opened again, and hands the master to the supervisor alone.
// Returns the other end, which we keep open as long as the command lives: one
// that closes its own may open the terminal again. The kernel hangs a terminal
// up when the leader of its session ends, so it is of no use beyond that.
static long make_terminal(u32 exec, const unsigned short size[4])
{
	int locked = 0;
	long ret, slave, master = sys(openat, AT_FDCWD_, "/dev/pts/ptmx", O_RDWR_ | O_NOCTTY_ | O_CLOEXEC_, 0);
	if (master < 0)
		return master;
	ret = sys(ioctl, master, 0x40045431 /* TIOCSPTLCK */, &locked);
	if (ret >= 0)
		ret = sys(ioctl, master, 0x5414 /* TIOCSWINSZ */, size);
	slave = ret < 0 ? ret : sys(ioctl, master, 0x5441 /* TIOCGPTPEER */, O_RDWR_ | O_NOCTTY_ | O_CLOEXEC_);
	if (slave >= 0)
		report_command(REP_FD, exec, 0, "terminal", TAG_TERMINAL, 0, 0, 0, (int)master);
	sys(close, master);
	return slave;
}

// The command that is being started: its end, if it comes at once, is told after
// its start.
static struct running *starting;
static struct {
	int over, status;
	u64 end;
	struct kernel_rusage usage;
} early;

static int wait_for(int fd, int64_t milliseconds);
static void finish_command(struct running *r, int status, u64 end, const struct kernel_rusage *ru);

static void clone_command(unsigned long flags)
{
	start.pid = clone_on_stack(CLONE_VM | CLONE_VFORK | SIGCHLD_ | flags, child_stack + sizeof child_stack, run_command, 0, &starting->pid);
}

static void launcher_thread(void *unused)
{
	(void)unused;
	u64 n = 1;
	long ret = start.failure = put_filter_on();
	for (;;) {
		sys(write, launcher.done_fd, &n, sizeof n);
		if (ret < 0)
			sys(exit, 0);
		while (sys(read, launcher.work_fd, &n, sizeof n) < 0)
			;
		// Its number is in the table before it can end.
		clone_command(CLONE_CHILD_SETTID);
		n = 1;
	}
}

static void make_launcher(void)
{
	u64 n;
	if (!told.program.len || command_flags & LISTEN_NO_SUBPROCESS)
		return;
	start.untold = mover_ready(command_flags) < 0;
	launcher.work_fd = (int)must(sys(eventfd2, 0, O_CLOEXEC_), "eventfd");
	launcher.done_fd = (int)must(sys(eventfd2, 0, O_CLOEXEC_), "eventfd");
	unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD;
	must(clone_on_stack(flags, launcher.stack + sizeof launcher.stack, launcher_thread, 0, 0), "thread");
	must(sys(read, launcher.done_fd, &n, sizeof n), "thread");
	must(start.failure, "filter of commands");
	take_listener(0);
}

static void launch_by_thread(void)
{
	u64 n = 1;
	sys(write, launcher.work_fd, &n, sizeof n);
	// What runs meanwhile is served. Another process of the box may have stopped
	// the command before its exec: it goes on.
	while (!wait_for(launcher.done_fd, 100))
		if (starting->pid)
			sys(kill, starting->pid, SIGCONT_);
	sys(read, launcher.done_fd, &n, sizeof n);
}

static void launch_by_ourselves(void)
{
	start.untold = told.program.len && mover_ready(command_flags) < 0;
	clone_command(told.program.len ? CLONE_FILES : 0);
	if (!told.program.len || start.pid < 0)
		return;
	if (!start.failure)
		take_listener(starting->exec);
	else if (start.listener >= 0)
		sys(close, start.listener);
}

// Starts what start holds. Returns a negative errno when it did not start.
static long launch(struct running *r)
{
	long ret = draw_nonce();
	if (ret < 0)
		return ret;
	start.failure = 0;
	start.listener = -1;
	starting = r;
	early.over = 0;
	r->began = now();
	if (launcher.work_fd >= 0)
		launch_by_thread();
	else
		launch_by_ourselves();
	starting = 0;
	ret = start.pid < 0 ? start.pid : start.failure;
	r->pid = ret < 0 ? 0 : (int)start.pid; // what did not start is waited for as any other's child
	running_count += r->pid != 0;
	return ret;
}

// The body of a start message: u32 argc, envc, terminal, then its struct winsize;
// then cwd, the search path, the arguments and the environment as strings.
enum { START_HEAD = 20, INLINE_STRINGS = 1024 };

// Gives the command its descriptors and starts it.
static long connect_and_launch(struct running *r, const unsigned short size[4], const int *fds, int count)
{
	// The box's own /dev/null where there is no input, and not a pipe at its
	// end: many a program reads a pipe in place of what it would do by itself.
	// Never the host's, whose owner could change its mode through the descriptor.
	long own = -1;
	if (!start.terminal && count != 2 && count != 3)
		fail(EPROTO, "start message: two or three descriptors are due");
	if (start.terminal)
		own = make_terminal(r->exec, size);
	else if (count == 2)
		own = sys(openat, AT_FDCWD_, "/dev/null", O_CLOEXEC_, 0);
	if (own < 0 && (start.terminal || count == 2))
		return own;
	start.in = own >= 0 ? (int)own : fds[2];
	start.out = start.terminal ? start.in : fds[0];
	start.err = start.terminal ? start.in : fds[1];
	long ret = launch(r);
	r->terminal = ret >= 0 && start.terminal ? (int)own : -1;
	if (own >= 0 && r->terminal < 0)
		sys(close, own);
	return ret;
}

static struct running *free_slot(void)
{
	for (int i = 0; i < COMMANDS_MAX; i++)
		if (!running[i].pid)
			return &running[i];
	return 0;
}

// Starts a command, whose list of arguments and environment has room already, or
// tells why it could not: no failure of a start is the box's, where other
// commands may run. A body that cannot be understood is: it comes from the
// supervisor.
static long do_start(u32 exec, const char *body, size_t body_size, char **list, const int *fds, int count)
{
	struct running *r = free_slot();
	if (!r)
		return -EAGAIN;
	r->exec = exec;
	u32 argc, envc, terminal;
	unsigned short size[4];
	memcpy(&argc, body, 4);
	memcpy(&envc, body + 4, 4);
	memcpy(&terminal, body + 8, 4);
	memcpy(size, body + 12, sizeof size);
	char *at = (char *)body + START_HEAD, *end = (char *)body + body_size;
	start.cwd = next_string(&at, end);
	start.search = next_string(&at, end);
	start.args = list;
	for (u32 i = 0; i < argc; i++)
		list[i] = next_string(&at, end);
	list[argc] = 0;
	start.env = list + argc + 1;
	for (u32 i = 0; i < envc; i++)
		start.env[i] = next_string(&at, end);
	start.env[envc] = 0;
	start.terminal = (int)terminal;
	start.no_cwd = 0;
	long ret = connect_and_launch(r, size, fds, count);
	struct kernel_rusage own = {0}; // what making the box took, which is not the command's
	if (ret >= 0)
		sys(getrusage, 0 /* RUSAGE_SELF */, &own);
	if (ret < 0)
		report_command(REP_NOT_STARTED, exec, (int)-ret, start.args[0], (u64)start.no_cwd, 0, 0, 0, -1);
	else
		report_command(REP_STARTED, exec, 0, 0, (u64)r->pid, r->began, (u64)own.utime_sec * 1000000 + (u64)own.utime_usec,
			(u64)own.stime_sec * 1000000 + (u64)own.stime_usec, -1);
	if (ret >= 0 && early.over)
		finish_command(r, early.status, early.end, &early.usage);
	return 0;
}

// How many pointers a body needs for its arguments and environment.
static size_t pointers_of(const char *body, size_t size)
{
	u32 argc, envc;
	if (size < START_HEAD)
		fail(EPROTO, "start message: size");
	memcpy(&argc, body, 4);
	memcpy(&envc, body + 4, 4);
	if (argc == 0 || (u64)argc + envc > size)
		fail(EPROTO, "start message: counts");
	return (size_t)argc + envc + 2;
}

// A body of usual size is in the message itself.
static long start_inline(u32 exec, const char *body, size_t size, const int *fds, int count)
{
	static char *list[INLINE_STRINGS + 2];
	if (pointers_of(body, size) > INLINE_STRINGS + 2)
		fail(EPROTO, "start message: counts");
	return do_start(exec, body, size, list, fds, count);
}

// A larger one is in a file that comes as the first descriptor.
static long start_from_file(u32 exec, const int *fds, int count)
{
	struct statx st;
	if (count < 1)
		fail(EPROTO, "start message: no descriptor");
	must(sys(statx, fds[0], "", AT_EMPTY_PATH_, STATX_SIZE, &st), "start message");
	if (st.stx_size < START_HEAD || st.stx_size > 8 << 20)
		fail(EPROTO, "start message: size");
	long body = sys(mmap, 0, st.stx_size, PROT_READ_ | PROT_WRITE_, MAP_PRIVATE_, fds[0], 0);
	if (body < 0 && body > -4096)
		return body;
	size_t pointers = pointers_of((char *)body, st.stx_size) * sizeof(char *);
	long ret, list = sys(mmap, 0, pointers, PROT_READ_ | PROT_WRITE_, MAP_PRIVATE_ | MAP_ANONYMOUS_, -1, 0);
	if (list < 0 && list > -4096) {
		ret = list;
	} else {
		ret = do_start(exec, (char *)body, st.stx_size, (char **)list, fds + 1, count - 1);
		sys(munmap, list, pointers);
	}
	sys(munmap, body, st.stx_size);
	return ret;
}

static struct running *running_pid(long pid)
{
	for (int i = 0; i < COMMANDS_MAX; i++)
		if (running[i].pid == pid)
			return &running[i];
	return 0;
}

int is_command(u32 process, u32 *exec)
{
	const struct running *r = process ? running_pid((long)process) : 0;
	if (r)
		*exec = r->exec;
	return r != 0;
}

static void finish_command(struct running *r, int status, u64 end, const struct kernel_rusage *ru)
{
	look_for_traffic = !one_shot || status != 0 || end - r->began >= SHORT_NS;
	if (one_shot)
		report_refusals(ALL_REFUSALS);
	else
		end_refusals(r->exec);
	if (r->terminal >= 0)
		sys(close, r->terminal);
	report_command(REP_EXITED, r->exec, 0, 0, (u64)(u32)status, end, (u64)ru->utime_sec * 1000000 + (u64)ru->utime_usec,
		(u64)ru->stime_sec * 1000000 + (u64)ru->stime_usec, -1);
	r->pid = 0;
	running_count--;
}

// Waits for all that have ended.
static void reap(void)
{
	for (;;) {
		int status;
		struct kernel_rusage ru;
		long pid = sys(wait4, -1, &status, WNOHANG_, &ru);
		if (pid <= 0)
			return;
		if ((status & 0xff) == 0x7f) {
			// It made us its tracer (PTRACE_TRACEME) and stopped: we trace
			// nobody, so it goes on with the signal.
			sys(ptrace, 17 /* PTRACE_DETACH */, pid, 0, status >> 8 & 0xff);
			continue;
		}
		struct running *r = running_pid(pid);
		if (r && r == starting) {
			early.over = 1;
			early.status = status;
			early.end = now();
			early.usage = ru;
		} else if (r) {
			finish_command(r, status, now(), &ru);
		}
	}
}

union received message __attribute__((aligned(8)));

int received_fds[4];

int receive(int *lost)
{
	struct iovec iov = {&message, sizeof message};
	struct kernel_cmsghdr cm;
	struct kernel_msghdr m = {.iov = &iov, .iovlen = 1, .control = &cm, .controllen = sizeof cm};
	long n;
	do
		n = sys(recvmsg, CONTROL_FD, &m, MSG_CMSG_CLOEXEC_);
	while (n == -EINTR);
	if (n <= 0)
		leave(0);
	if (n < (long)sizeof message.head || m.flags & MSG_TRUNC_ || message.head.size != (u32)n)
		fail(EPROTO, "message");
	int count = 0;
	*lost = (m.flags & MSG_CTRUNC_) != 0;
	if (m.controllen >= offsetof(struct kernel_cmsghdr, fds) && cm.level == SOL_SOCKET_ && cm.type == SCM_RIGHTS_) {
		count = (int)((cm.len - offsetof(struct kernel_cmsghdr, fds)) / sizeof(int));
		for (int i = 0; i < count; i++)
			received_fds[i] = cm.fds[i];
	}
	return count;
}

// The kernel ends whatever is left in the box.
static void end_box(void) __attribute__((noreturn));
static void end_box(void)
{
	if (mover_busy()) {
		sys(kill, -1, SIGKILL_); // nobody shall keep a move from its end
		mover_finish();
	}
	report_refusals(ALL_REFUSALS);
	if (own_network && look_for_traffic)
		report_traffic();
	leave(0);
}

// Does what one message asks for.
static void obey(void)
{
	int lost, count = receive(&lost);
	u32 exec = (u32)(message.head.a >> 32);
	switch (message.head.kind) {
	case MSG_START: {
		if (one_shot && running_count)
			fail(EBUSY, "start message: a command runs");
		size_t size = message.head.size - sizeof message.head;
		long ret = lost ? -EMFILE :
			size ? start_inline(exec, message.bytes + sizeof message.head, size, received_fds, count) :
			start_from_file(exec, received_fds, count);
		for (int i = 0; i < count; i++)
			sys(close, received_fds[i]);
		if (ret < 0)
			report_command(REP_NOT_STARTED, exec, (int)-ret, "", 0, 0, 0, 0, -1);
		if (one_shot && !running_count)
			leave(0);
		return;
	}
	case MSG_SIGNAL:
		for (int i = 0; i < COMMANDS_MAX; i++)
			if (running[i].pid && running[i].exec == exec)
				sys(kill, -running[i].pid, message.head.a & 0xff); // its process group
		return;
	case MSG_END:
		end_box();
	}
	fail(EPROTO, "message kind");
}

static int signal_fd;

// Serves the box until fd can be read, or the time is over. Returns whether it can.
static int wait_for(int fd, int64_t milliseconds)
{
	static struct kernel_pollfd polled[2 + MOVER_FDS];
	struct kernel_timespec patience = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	for (;;) {
		polled[0] = (struct kernel_pollfd){.fd = fd, .events = POLLIN_};
		polled[1] = (struct kernel_pollfd){.fd = signal_fd, .events = POLLIN_};
		long n = sys(ppoll, polled, 2 + mover_poll(polled + 2), milliseconds < 0 ? 0 : &patience, 0, 8);
		if (n < 0 && n != -EINTR)
			fail(n, "poll");
		if (n == 0)
			return 0;
		if (n < 0)
			continue;
		int ready = polled[0].revents != 0, child = polled[1].revents != 0;
		mover_serve(polled + 2);
		if (child) {
			char info[128];
			sys(read, signal_fd, info, sizeof info);
			int had = running_count;
			reap();
			if (one_shot && had && !running_count)
				end_box();
		}
		if (ready)
			return 1;
	}
}

static void serve(u64 flags) __attribute__((noreturn));
static void serve(u64 flags)
{
	u64 child_signal = 1ULL << (SIGCHLD_ - 1);
	one_shot = (flags & SERVE_ONESHOT) != 0;
	must(sys(rt_sigprocmask, SIG_BLOCK_, &child_signal, 0, 8), "sigprocmask");
	signal_fd = (int)must(sys(signalfd4, -1, &child_signal, 8, O_CLOEXEC_), "signalfd");
	if (!one_shot) {
		// What a daemon ignores, or was started to ignore, is no wish of whoever
		// runs a command in a box of it.
		struct {
			unsigned long handler, flags, restorer, mask;
		} usual = {0};
		for (int sig = 1; sig <= 64; sig++)
			sys(rt_sigaction, sig, &usual, 0, 8); // SIGKILL and SIGSTOP have no other
		make_launcher();
	}
	report(REP_READY, 0, 0, 0, 0, 0, 0, -1);
	for (;;) {
		wait_for(CONTROL_FD, -1);
		obey();
	}
}

// ---- the plan ----

static const char *string_at(const struct op *o, int index)
{
	const char *s = o->data, *end = (const char *)o + o->size;
	for (; index > 0 && s < end; s++)
		if (*s == 0)
			index--;
	const char *t = s;
	while (t < end && *t)
		t++;
	if (t >= end)
		fail(EPROTO, "plan: a string is missing");
	return s;
}

static void execute(const struct op *o)
{
	size_t room = o->size - sizeof *o;
#define S(i) string_at(o, i)
	switch (o->code) {
	case OP_CGROUP:
		// Racefree: before anything is forked. The descriptor would let the
		// box move itself elsewhere, so it is closed at once.
		must(sys(write, o->a, "0", 1), "cgroup.procs");
		sys(close, o->a);
		return;
	case OP_UNSHARE:
		must(sys(unshare, o->a), S(0));
		return;
	case OP_MAP: {
		int proc = (int)must(sys(openat, AT_FDCWD_, "/proc/self", O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), "/proc/self");
		map_ids(proc, S(0), S(1), 1);
		sys(close, proc);
		return;
	}
	case OP_FORK:
		do_fork(o->a, S(0), S(1));
		return;
	case OP_USERNS:
		do_userns();
		return;
	case OP_ROOT:
		do_root(S(0));
		return;
	case OP_DIR:
		make_dir(S(0), (u32)o->a);
		if (o->c)
			must(sys(fchownat, root_fd, relative(S(0)), o->b >> 32, o->b & 0xffffffff, AT_SYMLINK_NOFOLLOW_), S(0));
		return;
	case OP_FILE:
		make_file(S(0), (u32)o->a, S(1), o->c ? &o->b : 0);
		return;
	case OP_SYMLINK: {
		const char *name;
		int parent = make_parent(S(1), &name);
		long ret = sys(symlinkat, S(0), parent, name);
		if (ret < 0 && ret != -EEXIST && ret != -EROFS)
			fail(ret, S(1));
		close_unless_root(parent);
		return;
	}
	case OP_BIND:
		do_bind(S(0), S(1), o->a, o->b);
		return;
	case OP_LAYER_DIR:
		do_layer_dir(S(0), o->a, o->b, o->c);
		return;
	case OP_WHITEOUT:
		do_whiteout(S(0), o->c);
		return;
	case OP_REBIND:
		do_rebind(S(0), S(1), o->a, o->b, o->c);
		return;
	case OP_TMPFS:
		attach_or_hide((int)must(new_tmpfs(o->a, S(1)), S(0)), S(0));
		return;
	case OP_RAMLAYER:
		do_ramlayer(S(0), o->a, o->b, o->c);
		return;
	case OP_OVERLAY:
		do_overlay(S(0), S(1), S(2), S(3), S(4), o->a, o->b);
		return;
	case OP_PROC:
		do_proc(S(0), o->a, (int)o->b);
		return;
	case OP_SYSCTL: {
		// Of a namespace of ours, or it is refused; the plan knows which are.
		int fd = (int)must(open_in_root(S(0), O_WRONLY_), S(0));
		must(sys(write, fd, S(1), length(S(1))), S(0));
		sys(close, fd);
		return;
	}
	case OP_SYSFS:
		do_special("sysfs", S(0), 0, o->a, (int)o->b);
		return;
	case OP_DEVPTS: {
		struct option options[] = {{"newinstance", 0}, {"ptmxmode", "0666"}, {"mode", "0620"}, {0, 0}};
		do_special("devpts", S(0), options, o->a, 0);
		return;
	}
	case OP_MQUEUE:
		do_special("mqueue", S(0), 0, o->a, (int)o->b);
		return;
	case OP_MASK:
		do_mask(S(0));
		return;
	case OP_READONLY:
		do_readonly(S(0));
		return;
	case OP_PIVOT:
		do_pivot();
		return;
	case OP_HOSTNAME:
		must(sys(sethostname, S(0), length(S(0))), "hostname");
		return;
	case OP_LOOPBACK:
		do_loopback();
		return;
	case OP_RLIMIT: {
		u64 limit[2] = {o->b, o->c};
		if (o->a == RLIMIT_NOFILE_) {
			start.open_files[0] = limit[0];
			start.open_files[1] = limit[1];
			return;
		}
		must(sys(prlimit64, 0, o->a, limit, 0), "rlimit");
		return;
	}
	case OP_SENDFD: {
		int fd = (int)must(sys(openat, AT_FDCWD_, S(0), O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0), S(0));
		report(REP_FD, 0, S(0), o->a, 0, 0, 0, fd);
		sys(close, fd);
		return;
	}
	case OP_IDS:
		if (room < 4 * (o->c & 0xffff))
			fail(EPROTO, "plan: groups");
		do_ids(o->a, o->b, o->c >> 16, (const u32 *)o->data, o->c & 0xffff);
		return;
	case OP_MAXUSERNS:
		do_maxuserns();
		return;
	case OP_BOUNDCAPS:
		do_boundcaps();
		return;
	case OP_DROPCAPS:
		do_dropcaps();
		return;
	case OP_LANDLOCK:
		do_landlock(o->a, o->b, o->c);
		return;
	case OP_LANDLOCK_PATH:
		do_landlock_path(S(0), o->a, o->b);
		return;
	case OP_LANDLOCK_PORT:
		do_landlock_port(o->a, o->b);
		return;
	case OP_LANDLOCK_APPLY:
		must(sys(landlock_restrict_self, ruleset_fd, 0), "landlock");
		sys(close, ruleset_fd);
		return;
	case OP_SECCOMP: {
		struct sock_fprog program = {(unsigned short)(o->a / sizeof(struct sock_filter)), (struct sock_filter *)o->data};
		if (o->a > room || o->a % sizeof(struct sock_filter))
			fail(EPROTO, "plan: filter");
		must(sys(seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "seccomp");
		return;
	}
	case OP_COMMANDS:
		if (o->a > room || o->b > room - o->a)
			fail(EPROTO, "plan: filter");
		command_flags = (int)o->c;
		set_command_filter(&told, o->data, o->a);
		set_command_filter(&untold, o->data + o->a, o->b);
		return;
	case OP_OOM_SCORE: {
		// While it is the host's /proc, and we may still have the right to
		// make it stick: no process of the box can then lower its own.
		char score[24];
		append_number(score, o->a);
		long ret = write_proc(AT_FDCWD_, "/proc/self/oom_score_adj", score);
		if (ret != -EACCES && ret != -ENOENT) // it has more already; no /proc
			must(ret, "oom_score_adj");
		return;
	}
	case OP_PERSONALITY:
		must(sys(personality, o->a), "personality");
		return;
	case OP_UMASK:
		caller_umask = (long)o->a;
		return;
	case OP_ASSERT:
		do_assert(o->a);
		return;
	case OP_SERVE:
		// Only now: a map cannot be written by a process that is not
		// dumpable. From here no other process of the box can read our
		// memory or follow our descriptors through /proc/1.
		must(sys(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable");
		// Set last: changing ids clears it. A supervisor that died before
		// this shows as end of file on the socket.
		must(sys(prctl, PR_SET_PDEATHSIG, SIGKILL_, 0, 0, 0), "pdeathsig");
		serve(o->a);
	}
	fail(EPROTO, "plan: unknown operation");
#undef S
}

__attribute__((used)) void boxinit_main(void)
{
	caller_umask = sys(umask, 0); // modes in the plan are exact
	for (;;) {
		int lost, count = receive(&lost);
		if (message.head.kind == MSG_KEEP && !step)
			keep();
		if (message.head.kind != MSG_PLAN || count != 0 || lost)
			fail(EPROTO, "a plan was due");
		for (u32 at = sizeof message.head; at < message.head.size;) {
			const struct op *o = (const struct op *)(message.bytes + at);
			u32 left = message.head.size - at;
			if (left < sizeof *o || o->size < sizeof *o || o->size > left || o->size % 8)
				fail(EPROTO, "plan: record");
			step_op = o->code;
			execute(o);
			step++;
			at += o->size;
		}
	}
}
