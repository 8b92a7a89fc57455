// An overlay in a user namespace answers EXDEV to the rename of a directory that
// the layer below has: it may not leave a note of where the directory came from
// (redirect_dir), since whoever writes such a note by hand could read anything
// below. mv(1) copies then; rename(2) in a program fails.
//
// A second seccomp filter makes rename, renameat and renameat2 of the command
// wait for an answer from here (seccomp_unotify(2)). The answer for what is not a
// directory is "go on": the kernel does it as it always would. For a directory,
// a thread makes one that lies in the upper layer only, moves the contents over
// one by one, puts it in the place of the old, and then does the very rename that
// was asked for, with all that the kernel checks and returns.
//
// Why a thread of PID 1. Nothing in a pid namespace can kill its PID 1 or a
// thread of it, so that no move stops halfway by a signal, and no listener is
// ever closed (a closed one makes every rename ENOSYS). It has the rights that
// PID 1 kept, which are the command's: no capability, the same Landlock domain,
// the same filter (less the second one). So whatever a caller makes us read, by
// changing its memory or swapping links under us, we can only do what the caller
// could have done itself. We never say "go on" after we have acted.
//
// One thing can take rights away from a process in the box: a Landlock domain of
// its own. landlock_restrict_self(2) therefore comes by here too, and whoever may
// have descended from a process that called it is told to go on.

#include "boxinit.h"
#include "mover.h"
#include "refusal.h"
#include <linux/ioctl.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/types.h>

enum {
	S_IFMT_ = 0170000, S_IFDIR_ = 0040000, O_RDONLY_ = 0, RENAME_NOREPLACE_ = 1, RENAME_EXCHANGE_ = 2, AT_REMOVEDIR_ = 0x200,
	PATH_MAX_ = 4096, NAME_MAX_ = 255, XATTR_LIST_MAX_ = 65536, XATTR_SIZE_MAX_ = 65536, OVERLAYFS_MAGIC = 0x794c7630,
	OPEN_DIR = O_RDONLY_ | O_DIRECTORY_ | O_NOFOLLOW_ | O_CLOEXEC_,
};

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000
#endif

enum {
	LISTENERS_MAX = MOVER_FDS - 1,
	MOVES_MAX = 16,   // at once; more are told to go on
	LINKS_MAX = 128,  // files with several names, a descriptor each; more become files of their own
	DEPTH_MAX = 400,  // levels; two descriptors and a frame below 2 KB each
	STACK_SIZE = 1 << 20,
};

struct dirent64 {
	u64 ino;
	int64_t off;
	unsigned short reclen;
	unsigned char type;
	char name[];
};

struct call {
	int nr;
	u32 caller; // thread id
	int old_dir, new_dir;
	u64 old_name, new_name; // addresses in the caller
	u32 flags;
};

enum { FREE, RUNNING, DONE, UNCLAIMED };
enum {
	GO_ON = 1, // the kernel does it
	GONE,      // the caller no longer waits; nothing was done
};

// One move. Written by the serving thread until the moving thread is made, by
// the moving thread until state is DONE, then by the serving thread again.
struct move {
	int thread; // not 0 while the moving thread may still use its stack
	int state;
	int listener, restarts;
	u64 first_id, id; // of the notification; a restarted call brings a new one
	struct call call;
	long result; // as of renameat2, or GO_ON, or GONE
	int undoing;
	struct {
		u64 device, inode; // of a file with several names, in the layer below
		int fd;            // where its first name was moved to
	} links[LINKS_MAX];
	int link_count;
	char old_path[PATH_MAX_], new_path[PATH_MAX_];
	char xattr_names[XATTR_LIST_MAX_], xattr_names_there[XATTR_LIST_MAX_], xattr_value[XATTR_SIZE_MAX_];
} __attribute__((aligned(16))); // its stack follows it

static struct move *moves[MOVES_MAX];
static struct {
	int fd, flags, over; // LISTEN_*
} listeners[LISTENERS_MAX];
static int listener_count;
static int done_fd = -1; // eventfd: a move is done
static volatile int cancelled;
static u32 own_uid;

// ---- strings ----

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static int starts_with(const char *s, const char *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return 0;
	return 1;
}

// ---- what the caller named ----

static int is_waiting(int listener, u64 id)
{
	return sys(ioctl, listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0;
}

// Reads a path from the caller's memory. 0 when it cannot: the caller is not
// dumpable, is gone, or gave an address or a path that is none.
static int read_path(u32 pid, u64 address, char *to)
{
	enum { PAGE = 4096 };
	for (size_t have = 0; have < PATH_MAX_;) {
		// Not beyond the page in one go: the next may not be mapped.
		size_t want = PAGE - address % PAGE;
		if (want > PATH_MAX_ - have)
			want = PATH_MAX_ - have;
		struct iovec local = {to + have, want}, remote = {(void *)address, want};
		long n = sys(process_vm_readv, pid, &local, 1, &remote, 1, 0);
		if (n <= 0)
			return 0;
		for (long i = 0; i < n; i++, have++)
			if (!to[have])
				return have > 0;
		address += (u64)n;
	}
	return 0;
}

// The name in /proc of what a path of the caller starts at: its working
// directory or a descriptor. Nothing in a box has another root.
static char *start_of(char *to, u32 pid, int dir, const char *path)
{
	*to = 0;
	if (*path == '/')
		return to;
	to = append(append_number(append(to, "/proc/"), pid), "/");
	if (dir == AT_FDCWD_)
		return append(to, "cwd/");
	return append(append_number(append(to, "fd/"), (u64)(u32)dir), "/");
}

// Whether the caller's path names a directory, not following a link in its last
// component. This only decides who does the rename, never on what.
static int names_directory(u32 pid, int dir, const char *path)
{
	char name[PATH_MAX_ + 64];
	struct statx st;
	append(start_of(name, pid, dir, path), path);
	return sys(statx, AT_FDCWD_, name, AT_SYMLINK_NOFOLLOW_, STATX_TYPE, &st) == 0 && (st.stx_mode & S_IFMT_) == S_IFDIR_;
}

struct place {
	int dir;              // the parent directory
	const char *given;    // the last component as given, with slashes behind it
	char name[NAME_MAX_ + 1];
};

// Opens the parent of what a path of the caller names. path is taken apart in
// place. Fails where the kernel should say what is wrong.
static int find_place(struct place *at, u32 pid, int dir, char *path)
{
	char base_name[64];
	size_t end = length(path), start;
	while (end > 0 && path[end - 1] == '/')
		end--;
	for (start = end; start > 0 && path[start - 1] != '/'; start--)
		;
	size_t n = end - start;
	if (n == 0 || n > NAME_MAX_)
		return 0;
	memcpy(at->name, path + start, n);
	at->name[n] = 0;
	if (same(at->name, ".") || same(at->name, ".."))
		return 0;
	at->given = path + start;
	int base = AT_FDCWD_;
	if (*path != '/') {
		start_of(base_name, pid, dir, path);
		base = (int)sys(openat, AT_FDCWD_, base_name, O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, 0);
		if (base < 0)
			return 0;
	}
	// A link in /proc would mean another thing to the caller than to us.
	struct open_how how = {.flags = O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, .resolve = RESOLVE_NO_MAGICLINKS};
	char first = path[start];
	path[start] = 0;
	at->dir = (int)sys(openat2, base, start ? path : ".", &how, sizeof how);
	path[start] = first;
	if (base >= 0)
		sys(close, base);
	return at->dir >= 0;
}

// ---- moving ----

struct attributes {
	u32 mode, uid, gid;
	struct kernel_timespec times[2];
};

static long attributes_of(int dir, const char *name, struct attributes *a)
{
	struct statx st;
	long ret = sys(statx, dir, name, AT_SYMLINK_NOFOLLOW_, STATX_BASIC_STATS, &st);
	if (ret < 0)
		return ret;
	a->mode = st.stx_mode;
	a->uid = st.stx_uid;
	a->gid = st.stx_gid;
	a->times[0] = (struct kernel_timespec){st.stx_atime.tv_sec, st.stx_atime.tv_nsec};
	a->times[1] = (struct kernel_timespec){st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec};
	return 0;
}

static void set_attributes(int fd, const struct attributes *a)
{
	sys(fchmod, fd, a->mode & 07777);
	sys(utimensat, fd, 0, a->times, 0);
}

// Opens a directory to move things out of it, whatever its mode.
static long open_source(int dir, const char *name, const struct attributes *a)
{
	if ((a->mode & 0700) != 0700) {
		long ret = sys(fchmodat, dir, name, (a->mode & 07777) | 0700);
		if (ret < 0)
			return ret;
	}
	return sys(openat, dir, name, OPEN_DIR, 0);
}

static int is_listed(const char *list, long size, const char *name)
{
	for (const char *at = list; at < list + size; at += length(at) + 1)
		if (same(at, name))
			return 1;
	return 0;
}

// Gives to the group and the extended attributes of from; to is new, and may
// have inherited both from its parent.
static long copy_extras(struct move *m, int from, int to, const struct attributes *a)
{
	struct attributes now;
	long ret = attributes_of(to, ".", &now);
	if (ret == 0 && now.gid != a->gid)
		ret = sys(fchown, to, -1, a->gid);
	if (ret < 0)
		return ret;
	long size = sys(flistxattr, from, m->xattr_names, XATTR_LIST_MAX_);
	long size_there = sys(flistxattr, to, m->xattr_names_there, XATTR_LIST_MAX_);
	for (const char *name = m->xattr_names_there; name < m->xattr_names_there + size_there; name += length(name) + 1)
		if (!is_listed(m->xattr_names, size, name) && !starts_with(name, "security."))
			if ((ret = sys(fremovexattr, to, name)) < 0)
				return ret;
	for (const char *name = m->xattr_names; name < m->xattr_names + size; name += length(name) + 1) {
		long n = sys(fgetxattr, from, name, m->xattr_value, XATTR_SIZE_MAX_);
		if (n >= 0)
			n = sys(fsetxattr, to, name, m->xattr_value, n, 0);
		if (n < 0 && !starts_with(name, "security.")) // the system's own labels are for it to give
			return n;
	}
	return 0;
}

static long move_directory(struct move *m, int from, int to, const char *name, int depth);

// Moves a name. A file of the layer below loses its other names when the kernel
// moves one (each is copied up by itself), so those are made anew.
static long move_name(struct move *m, int from, int to, const char *name)
{
	struct statx st;
	if (m->undoing || sys(statx, from, name, AT_SYMLINK_NOFOLLOW_, STATX_BASIC_STATS, &st) < 0 ||
		(st.stx_mode & S_IFMT_) == S_IFDIR_ || st.stx_nlink < 2)
		return sys(renameat2, from, name, to, name, RENAME_NOREPLACE_);
	u64 device = (u64)st.stx_dev_major << 32 | st.stx_dev_minor;
	for (int i = 0; i < m->link_count; i++) {
		char first[32];
		if (m->links[i].inode != st.stx_ino || m->links[i].device != device)
			continue;
		append_number(append(first, "/proc/self/fd/"), (u64)m->links[i].fd);
		if (sys(linkat, AT_FDCWD_, first, to, name, 0x400 /* AT_SYMLINK_FOLLOW */) == 0)
			return sys(unlinkat, from, name, 0);
	}
	long ret = sys(renameat2, from, name, to, name, RENAME_NOREPLACE_);
	if (ret == 0 && m->link_count < LINKS_MAX) {
		long fd = sys(openat, to, name, O_PATH_ | O_NOFOLLOW_ | O_CLOEXEC_, 0);
		struct statx now;
		// One of the upper layer keeps its inode, and its other names.
		if (fd >= 0 && (sys(statx, fd, "", AT_EMPTY_PATH_, STATX_INO, &now) < 0 || now.stx_ino == st.stx_ino))
			sys(close, fd);
		else if (fd >= 0) {
			m->links[m->link_count].device = device;
			m->links[m->link_count].inode = st.stx_ino;
			m->links[m->link_count++].fd = (int)fd;
		}
	}
	return ret;
}

// Moves all that is in one directory into another.
static long move_contents(struct move *m, int from, int to, int depth)
{
	char entries[1024] __attribute__((aligned(8)));
	if (depth > DEPTH_MAX)
		return -ELOOP;
	for (;;) {
		long n = sys(getdents64, from, entries, sizeof entries);
		if (n <= 0)
			return n;
		for (long at = 0; at < n;) {
			const struct dirent64 *e = (const struct dirent64 *)(entries + at);
			at += e->reclen;
			if (same(e->name, ".") || same(e->name, ".."))
				continue;
			if (cancelled && !m->undoing)
				return -ECANCELED;
			long ret = move_name(m, from, to, e->name);
			// EACCES: a directory that may not be written is not moved
			// to another, either.
			if (ret == -EXDEV || ret == -EEXIST || ret == -EACCES) {
				long err = move_directory(m, from, to, e->name, depth);
				if (err != -ENOTDIR)
					ret = err;
			}
			if (ret < 0 && ret != -ENOENT) // another process took it
				return ret;
		}
	}
}

// Makes in `to` what the directory is in `from`, and moves its contents there.
// What is left in `from` is a directory that is empty, or holds such.
static long move_directory(struct move *m, int from, int to, const char *name, int depth)
{
	struct attributes a;
	long ret = attributes_of(from, name, &a);
	if (ret < 0)
		return ret;
	if ((a.mode & S_IFMT_) != S_IFDIR_)
		return -ENOTDIR;
	if (a.uid != own_uid)
		return -EPERM; // the new one would be ours
	// Before the mode of the old is changed: undoing takes it from the new.
	ret = sys(mkdirat, to, name, 0700);
	int made = ret >= 0;
	if (ret < 0 && ret != -EEXIST)
		return ret;
	long target = sys(openat, to, name, OPEN_DIR, 0);
	if (target < 0)
		return target;
	long source = open_source(from, name, &a);
	ret = source;
	if (ret >= 0 && made)
		ret = copy_extras(m, (int)source, (int)target, &a);
	if (ret >= 0)
		ret = move_contents(m, (int)source, (int)target, depth + 1);
	// Also when it failed: see above.
	if (made || m->undoing)
		set_attributes((int)target, &a);
	if (source >= 0)
		sys(close, source);
	sys(close, target);
	return ret;
}

// Removes the directories that were left, which hold nothing else.
static long remove_directories(int dir, int depth)
{
	char entries[1024] __attribute__((aligned(8)));
	if (depth > DEPTH_MAX)
		return -ELOOP;
	for (;;) {
		long n = sys(getdents64, dir, entries, sizeof entries);
		if (n <= 0)
			return n;
		for (long at = 0; at < n;) {
			const struct dirent64 *e = (const struct dirent64 *)(entries + at);
			at += e->reclen;
			if (same(e->name, ".") || same(e->name, ".."))
				continue;
			long ret = sys(unlinkat, dir, e->name, AT_REMOVEDIR_);
			if (ret == -ENOTEMPTY) {
				long fd = sys(openat, dir, e->name, OPEN_DIR, 0);
				if (fd < 0)
					return fd;
				ret = remove_directories((int)fd, depth + 1);
				sys(close, fd);
				if (ret == 0)
					ret = sys(unlinkat, dir, e->name, AT_REMOVEDIR_);
			}
			if (ret < 0 && ret != -ENOENT)
				return ret == -ENOTDIR ? -ENOTEMPTY : ret;
		}
	}
}

static void rewind_directory(int fd)
{
	sys(lseek, fd, 0, 0);
}

static long empty_and_replace(struct move *m, int parent, const char *name, const char *made, int source, int target, const struct attributes *a)
{
	long ret = move_contents(m, source, target, 0);
	// Where others wrote into the directory meanwhile, what they wrote follows.
	for (int round = 0; ret == 0 && round < 4; round++) {
		rewind_directory(source);
		ret = remove_directories(source, 0);
		if (ret == 0) {
			set_attributes(target, a);
			ret = sys(renameat2, parent, made, parent, name, 0);
			if (ret == 0)
				return 0;
		}
		if (ret == -ENOTEMPTY) {
			rewind_directory(source);
			ret = move_contents(m, source, target, 0);
		}
	}
	return ret < 0 ? ret : -EBUSY;
}

// Puts in the place of a directory one with the same contents that only the
// upper layer has, and that the kernel therefore renames. On failure all is as
// it was, as far as the disk allows.
static long make_movable(struct move *m, int parent, const char *name)
{
	char made[64];
	struct attributes a;
	long ret = attributes_of(parent, name, &a), source, target;
	if (ret < 0)
		return ret;
	if (a.uid != own_uid)
		return -EPERM;
	u64 number = m->first_id;
	do {
		append_number(append(made, ".hutch-move-"), number++);
		ret = sys(mkdirat, parent, made, 0700);
	} while (ret == -EEXIST);
	if (ret < 0)
		return ret;
	target = sys(openat, parent, made, OPEN_DIR, 0);
	source = open_source(parent, name, &a);
	ret = target < 0 ? target : source;
	if (ret >= 0)
		ret = copy_extras(m, (int)source, (int)target, &a);
	if (ret >= 0)
		ret = empty_and_replace(m, parent, name, made, (int)source, (int)target, &a);
	if (ret < 0) {
		m->undoing = 1;
		if (source >= 0 && target >= 0) {
			rewind_directory((int)target);
			if (move_contents(m, (int)target, (int)source, 0) == 0) {
				rewind_directory((int)target);
				remove_directories((int)target, 0);
			}
		}
		sys(unlinkat, parent, made, AT_REMOVEDIR_);
		if (source >= 0)
			set_attributes((int)source, &a);
		m->undoing = 0;
	}
	while (m->link_count > 0)
		sys(close, m->links[--m->link_count].fd);
	if (source >= 0)
		sys(close, source);
	if (target >= 0)
		sys(close, target);
	return ret;
}

static int on_one_overlay(int a, int b)
{
	struct statx sa, sb;
	u64 fs[32]; // struct statfs, whose first word is the type
	if (sys(statx, a, "", AT_EMPTY_PATH_, STATX_MNT_ID, &sa) < 0 || sys(statx, b, "", AT_EMPTY_PATH_, STATX_MNT_ID, &sb) < 0)
		return 0;
	return sa.stx_mnt_id == sb.stx_mnt_id && sys(fstatfs, a, fs) == 0 && fs[0] == OVERLAYFS_MAGIC;
}

static int is_directory_at(const struct place *at)
{
	struct attributes a;
	return attributes_of(at->dir, at->name, &a) == 0 && (a.mode & S_IFMT_) == S_IFDIR_;
}

static int is_empty_or_no_directory(const struct place *at)
{
	char entries[1024] __attribute__((aligned(8)));
	long n, fd = sys(openat, at->dir, at->name, OPEN_DIR, 0);
	int empty = 1;
	if (fd < 0)
		return 1; // whatever it is, the kernel will say
	while (empty && (n = sys(getdents64, fd, entries, sizeof entries)) > 0)
		for (long i = 0; i < n; i += ((const struct dirent64 *)(entries + i))->reclen) {
			const char *name = ((const struct dirent64 *)(entries + i))->name;
			if (!same(name, ".") && !same(name, ".."))
				empty = 0;
		}
	sys(close, fd);
	return empty;
}

static long rename_between(struct move *m, const struct place *old, const struct place *new)
{
	// The kernel first: it checks rights, flags, loops and mounts before the
	// overlay says EXDEV.
	long ret = sys(renameat2, old->dir, old->given, new->dir, new->given, m->call.flags);
	if (ret != -EXDEV || !on_one_overlay(old->dir, new->dir))
		return ret;
	int exchange = m->call.flags & RENAME_EXCHANGE_;
	if (!exchange && !is_empty_or_no_directory(new))
		return -ENOTEMPTY;
	ret = is_directory_at(old) ? make_movable(m, old->dir, old->name) : 0;
	if (ret == 0 && exchange && is_directory_at(new))
		ret = make_movable(m, new->dir, new->name);
	if (ret == 0)
		ret = sys(renameat2, old->dir, old->given, new->dir, new->given, m->call.flags);
	switch (-ret) {
	case EPERM: case EACCES: case EOVERFLOW: case ELOOP: case EMFILE: case ENFILE: case EEXIST: case ECANCELED:
		// A rename would not have had to touch what stood in our way. The
		// kernel's own answer, which sends a program to copying.
		return -EXDEV;
	}
	return ret;
}

static long rename_for(struct move *m)
{
	struct place old, new;
	long ret = GO_ON;
	if (!find_place(&old, m->call.caller, m->call.old_dir, m->old_path))
		return GO_ON;
	if (find_place(&new, m->call.caller, m->call.new_dir, m->new_path)) {
		// What was opened by the caller's number is the caller's only if it
		// still waits: numbers are given again.
		ret = is_waiting(m->listener, m->first_id) ? rename_between(m, &old, &new) : GONE;
		sys(close, new.dir);
	}
	sys(close, old.dir);
	return ret;
}

static void moving_thread(void *arg)
{
	struct move *m = arg;
	u64 one = 1;
	m->result = rename_for(m);
	__atomic_store_n(&m->state, DONE, __ATOMIC_RELEASE);
	sys(write, done_fd, &one, sizeof one);
	for (;;)
		sys(exit, 0);
}

// ---- who has less than our rights ----

enum { CONFINED_MAX = 256, PR_SET_CHILD_SUBREAPER_ = 36 };

static u32 confined[CONFINED_MAX]; // processes that made a Landlock domain
static int confined_count;
static int descent_unknown; // a process may have another parent than the one that made it

static u32 number_after(const char *text, const char *key)
{
	for (; *text; text++)
		if (starts_with(text, key)) {
			u32 n = 0;
			for (text += length(key); *text >= '0' && *text <= '9'; text++)
				n = n * 10 + (u32)(*text - '0');
			return n;
		}
	return 0;
}

// The process that a thread belongs to, and its parent; 0 when nobody knows.
static u32 process_of(u32 thread, u32 *parent)
{
	char name[48], text[1024];
	long n = -1, fd;
	append(append_number(append(name, "/proc/"), thread), "/status");
	fd = sys(openat, AT_FDCWD_, name, O_RDONLY_ | O_CLOEXEC_, 0);
	if (fd >= 0) {
		n = sys(read, fd, text, sizeof text - 1);
		sys(close, fd);
	}
	text[n < 0 ? 0 : n] = 0;
	*parent = number_after(text, "\nPPid:\t");
	return number_after(text, "\nTgid:\t");
}

// The command that a thread belongs to: by its session, which what a shell leaves
// to PID 1 still has, or by descent. 0: what an earlier command left running, and
// what made itself independent.
static u32 exec_of(u32 thread)
{
	char name[48], text[512];
	u32 exec = 0, parent, session = 0;
	append(append_number(append(name, "/proc/"), thread), "/stat");
	long n = -1, fd = sys(openat, AT_FDCWD_, name, O_RDONLY_ | O_CLOEXEC_, 0);
	if (fd >= 0) {
		n = sys(read, fd, text, sizeof text - 1);
		sys(close, fd);
	}
	text[n < 0 ? 0 : n] = 0;
	const char *at = text;
	for (const char *c = text; *c; c++)
		if (*c == ')')
			at = c; // of the name, which may hold anything
	// Then the state, the parent, the process group and the session.
	for (int field = 0; *at && field < 4; at++)
		field += *at == ' ';
	for (; *at >= '0' && *at <= '9'; at++)
		session = session * 10 + (u32)(*at - '0');
	if (is_command(session, &exec))
		return exec;
	for (u32 process = process_of(thread, &parent); process && !is_command(process, &exec); process = process_of(parent, &parent))
		;
	return exec;
}

static int is_confined(u32 process)
{
	for (int i = 0; i < confined_count; i++)
		if (confined[i] == process)
			return 1;
	return 0;
}

static void note_confined(u32 thread)
{
	u32 parent, process = process_of(thread, &parent);
	if (is_confined(process))
		return;
	// What descends from one that is gone has come to PID 1, and is told there
	// from a command.
	for (int i = 0; confined_count == CONFINED_MAX && i < confined_count; i++)
		while (i < confined_count && sys(kill, confined[i], 0) == -ESRCH)
			confined[i] = confined[--confined_count];
	if (process && confined_count < CONFINED_MAX)
		confined[confined_count++] = process;
	else
		descent_unknown = confined_count = 1;
}

// Whether the caller may be in a Landlock domain below ours: it or one of those
// it descends from made one, or nobody can tell from whom it descends.
static int may_be_confined(u32 thread)
{
	u32 parent, process;
	if (!confined_count)
		return 0;
	if (descent_unknown)
		return 1;
	for (process = process_of(thread, &parent); process && !is_confined(process); process = process_of(parent, &parent))
		if (parent == 1) { // orphans are PID 1's too
			u32 exec;
			return !is_command(process, &exec);
		}
	return 1;
}

// ---- serving ----

static long answer(int listener, u64 id, long result)
{
	struct seccomp_notif_resp response = {.id = id};
	if (result == GO_ON)
		response.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
	else
		response.error = (int)result;
	return sys(ioctl, listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static int state_of(struct move *m)
{
	return __atomic_load_n(&m->state, __ATOMIC_ACQUIRE);
}

static struct move *free_move(void)
{
	struct move *forgotten = 0;
	for (int i = 0; i < MOVES_MAX; i++) {
		if (!moves[i]) {
			long at = sys(mmap, 0, sizeof **moves + STACK_SIZE, PROT_READ_ | PROT_WRITE_, MAP_PRIVATE_ | MAP_ANONYMOUS_, -1, 0);
			if (at < 0 && at > -4096)
				break;
			moves[i] = (struct move *)at;
		}
		if (__atomic_load_n(&moves[i]->thread, __ATOMIC_ACQUIRE))
			continue;
		if (state_of(moves[i]) == FREE)
			return moves[i];
		if (state_of(moves[i]) == UNCLAIMED)
			forgotten = moves[i];
	}
	return forgotten;
}

static int same_call(const struct call *a, const struct call *b)
{
	return a->nr == b->nr && a->caller == b->caller && a->old_dir == b->old_dir && a->new_dir == b->new_dir &&
		a->old_name == b->old_name && a->new_name == b->new_name && a->flags == b->flags;
}

// give answers a call with what became of its move, and keeps that for a restart
// of the call: the wait may be broken off already, and where a signal has just
// woken the caller the kernel takes the answer and forgets it.
static void give(struct move *m, u64 id)
{
	long lost = answer(m->listener, id, m->result);
	if (m->restarts && m->result != GO_ON && (lost == -ENOENT || m->result == 0))
		m->state = UNCLAIMED;
}

// Before Linux 5.19 (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV) any signal breaks
// off the caller's wait, and the call is made once more after its handler. The
// move goes on meanwhile, and is the answer to the second call as well.
static int is_restart(u64 id, const struct call *call)
{
	static char path[PATH_MAX_];
	for (int i = 0; i < MOVES_MAX && moves[i]; i++) {
		struct move *m = moves[i];
		int state = state_of(m);
		if (state == FREE || m->call.caller != call->caller)
			continue;
		if (state != UNCLAIMED) {
			if (!same_call(&m->call, call) || is_waiting(m->listener, m->id))
				continue;
			m->id = id;
			return 1;
		}
		m->state = FREE;
		// A move that succeeded has left nothing where it came from: else
		// this is another call, which only looks the same.
		if (!same_call(&m->call, call) || !read_path(call->caller, call->old_name, path) ||
			(m->result == 0 && names_directory(call->caller, call->old_dir, path)))
			continue;
		give(m, id);
		return 1;
	}
	return 0;
}

static int begin_move(int listener, int restarts, u64 id, const struct call *call)
{
	struct move *m = free_move();
	if (!m || !read_path(call->caller, call->old_name, m->old_path) || !read_path(call->caller, call->new_name, m->new_path))
		return 0;
	m->listener = listener;
	m->restarts = restarts;
	m->id = m->first_id = id;
	m->call = *call;
	m->undoing = m->link_count = 0;
	m->state = RUNNING;
	m->thread = 1;
	unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_CHILD_CLEARTID;
	if (clone_on_stack(flags, (char *)(m + 1) + STACK_SIZE, moving_thread, m, &m->thread) > 0)
		return 1;
	m->thread = 0;
	m->state = FREE;
	return 0;
}

// Calls that wait until a move has ended.
enum { QUEUE_MAX = 64 };
static struct queued {
	int listener, restarts;
	u64 id;
	struct call call;
} queue[QUEUE_MAX];
static int queue_length;

static void move_or_queue(int listener, int restarts, u64 id, const struct call *call)
{
	if (begin_move(listener, restarts, id, call))
		return;
	if (mover_busy() && queue_length < QUEUE_MAX)
		queue[queue_length++] = (struct queued){listener, restarts, id, *call};
	else
		answer(listener, id, GO_ON);
}

static int moves_directory(const struct call *call)
{
	static char path[PATH_MAX_];
	if (!read_path(call->caller, call->old_name, path))
		return 0;
	if (names_directory(call->caller, call->old_dir, path))
		return 1;
	return call->flags & RENAME_EXCHANGE_ && read_path(call->caller, call->new_name, path) &&
		names_directory(call->caller, call->new_dir, path);
}

enum { NEW_NAMESPACE = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP };

// Whether the kernel may be told to go on with a call. The same filter also tells
// of calls that are refused, and "go on" overrides every filter: what is not
// known here to be ours is refused.
static int may_go_on(int flags, const struct seccomp_data *call)
{
	if (!(flags & LISTEN_RENAMES))
		return 0;
	switch (call->nr) {
#ifdef __NR_rename
	case __NR_rename:
#endif
	case __NR_renameat2:
	case __NR_renameat:
	case __NR_landlock_restrict_self:
		return 1;
	case __NR_prctl:
		return (u32)call->args[0] == PR_SET_CHILD_SUBREAPER_;
	case __NR_clone:
		return !(call->args[0] & NEW_NAMESPACE) && (!(flags & LISTEN_NO_SUBPROCESS) || call->args[0] & CLONE_THREAD);
	}
	return 0;
}

static void serve_call(int listener, int flags, const struct seccomp_notif *n)
{
	const __u64 *a = n->data.args;
	int restarts = flags & LISTEN_RESTARTS;
	if (!may_go_on(flags, &n->data)) {
		refuse(listener, exec_of(n->pid), n);
		return;
	}
	struct call call = {.nr = n->data.nr, .caller = n->pid, .old_dir = AT_FDCWD_, .new_dir = AT_FDCWD_};
	switch (n->data.nr) {
#ifdef __NR_rename
	case __NR_rename:
		call.old_name = a[0];
		call.new_name = a[1];
		break;
#endif
	case __NR_renameat2:
		call.flags = (u32)a[4];
		// fall through
	case __NR_renameat:
		call.old_dir = (int)a[0];
		call.old_name = a[1];
		call.new_dir = (int)a[2];
		call.new_name = a[3];
		break;
	case __NR_landlock_restrict_self:
		note_confined(n->pid);
		answer(listener, n->id, GO_ON);
		return;
	default: // prctl with PR_SET_CHILD_SUBREAPER, clone with CLONE_PARENT
		descent_unknown = 1;
		answer(listener, n->id, GO_ON);
		return;
	}
	if (restarts && is_restart(n->id, &call))
		return;
	if (!moves_directory(&call) || may_be_confined(n->pid))
		answer(listener, n->id, GO_ON);
	else
		move_or_queue(listener, restarts, n->id, &call);
}

// Answers for the moves that are done, and begins those that waited.
static void finish_moves(void)
{
	u64 count;
	sys(read, done_fd, &count, sizeof count);
	for (int i = 0; i < MOVES_MAX && moves[i]; i++) {
		struct move *m = moves[i];
		if (state_of(m) != DONE)
			continue;
		while (__atomic_load_n(&m->thread, __ATOMIC_ACQUIRE))
			sys(sched_yield); // it has nothing left to do but to end
		m->state = FREE;
		if (m->result == GONE) {
			struct call call = m->call;
			if (is_waiting(m->listener, m->id)) // again: it was restarted
				move_or_queue(m->listener, m->restarts, m->id, &call);
		} else {
			give(m, m->id);
		}
	}
	for (int n = queue_length; n > 0; n--) {
		struct queued q = queue[0];
		queue_length--;
		for (int i = 0; i < queue_length; i++)
			queue[i] = queue[i + 1];
		if (is_waiting(q.listener, q.id))
			move_or_queue(q.listener, q.restarts, q.id, &q.call);
	}
}

int mover_ready(int flags)
{
	if (listener_count == LISTENERS_MAX)
		return -ENFILE;
	if (flags & LISTEN_RENAMES && done_fd < 0) {
		done_fd = (int)sys(eventfd2, 0, O_CLOEXEC_ | 04000 /* EFD_NONBLOCK */);
		own_uid = (u32)sys(geteuid);
		return done_fd < 0 ? done_fd : 0;
	}
	return 0;
}

void mover_listen(int listener, int flags)
{
	// We answer on the processor that the caller just left. Since Linux 6.6.
	sys(ioctl, listener, _IOW('!', 4, u64), 1UL);
	listeners[listener_count].fd = listener;
	listeners[listener_count].flags = flags;
	listeners[listener_count++].over = 0;
}

int mover_poll(struct kernel_pollfd polled[MOVER_FDS])
{
	for (int i = 0; i < listener_count; i++)
		polled[i] = (struct kernel_pollfd){.fd = listeners[i].fd, .events = POLLIN_};
	polled[listener_count] = (struct kernel_pollfd){.fd = done_fd, .events = POLLIN_};
	return listener_count + 1;
}

static void forget(int i)
{
	for (int j = 0; j < MOVES_MAX && moves[j]; j++)
		if (moves[j]->listener == listeners[i].fd)
			moves[j]->state = FREE;
	sys(close, listeners[i].fd);
	listeners[i] = listeners[--listener_count];
}

void mover_serve(const struct kernel_pollfd polled[MOVER_FDS])
{
	for (int i = 0; i < listener_count; i++) {
		struct seccomp_notif n = {0};
		if (polled[i].revents & POLLIN_) {
			// ENOENT: the caller was killed in between.
			if (sys(ioctl, listeners[i].fd, SECCOMP_IOCTL_NOTIF_RECV, &n) == 0)
				serve_call(listeners[i].fd, listeners[i].flags, &n);
		} else if (polled[i].revents) {
			listeners[i].over = 1; // nobody is left who could call
		}
	}
	if (polled[listener_count].revents)
		finish_moves();
	for (int i = 0; i < listener_count; i++)
		if (listeners[i].over && !mover_busy())
			forget(i--);
}

int mover_busy(void)
{
	for (int i = 0; i < MOVES_MAX && moves[i]; i++)
		if (state_of(moves[i]) == RUNNING || state_of(moves[i]) == DONE)
			return 1;
	return 0;
}

void mover_finish(void)
{
	struct kernel_timespec patience[] = {{2, 0}, {20, 0}};
	for (int i = 0; i < 2; i++) {
		while (mover_busy()) {
			struct kernel_pollfd done = {.fd = done_fd, .events = POLLIN_};
			if (sys(ppoll, &done, 1, &patience[i], 0, 8) == 0) // the kernel counts it down
				break;
			finish_moves();
		}
		cancelled = 1;
	}
}
