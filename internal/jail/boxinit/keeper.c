// The keeper: boxinit in another role, outside every box. It mounts what a box
// shall see at a path from now on, since nothing in a box may mount, and makes
// sockets in a box's network.
//
// Only a process with one thread may join a user namespace, and only one whose
// user owns it, in the namespace above: so the supervisor, which has many, asks
// for it here. Every request is served by a child that joins the box it is about
// and is gone when it has answered, on a socket that came with the request. The
// child has all rights over that box and no more than its user's over the host,
// and runs nothing that a box or a user wrote.
//
// Nothing changes before all that can fail has been done: the new mount is made
// while the old one is still there, and where it cannot be put into its place, the
// old one is put back.

#include "boxinit.h"
#include "report.h"
#include <linux/mount.h>
#include <linux/openat2.h>

enum { LAYERS_MAX = 32, PATH_MAX_ = 4096, UMOUNT_NOFOLLOW_ = 8, AT_REMOVEDIR_ = 0x200, SIG_IGN_ = 1 };

#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000
#endif

// ---- the request ----

enum { REPLACES = 1, BINDS = 2 };

struct layer {
	u64 device, inode; // as stat(2) has them; both 0: whatever is there
	const char *path;
};

static struct {
	u32 flags, layers;
	u64 attr, was;
	struct layer layer[LAYERS_MAX]; // the topmost first; the tree, where one is bound
	const char *target, *options, *upper, *work;
} request;

static void take(void *to, size_t size, char **at, char *end)
{
	if ((size_t)(end - *at) < size)
		fail(EPROTO, "request");
	memcpy(to, *at, size);
	*at += size;
}

static void read_request(void)
{
	char *at = message.bytes + sizeof message.head, *end = message.bytes + message.head.size;
	take(&request, offsetof(typeof(request), layer), &at, end);
	if (request.layers == 0 || request.layers > LAYERS_MAX)
		fail(E2BIG, "layers");
	for (u32 i = 0; i < request.layers; i++)
		take(&request.layer[i], offsetof(struct layer, path), &at, end);
	request.target = next_string(&at, end);
	request.options = next_string(&at, end);
	request.upper = next_string(&at, end);
	request.work = next_string(&at, end);
	for (u32 i = 0; i < request.layers; i++)
		request.layer[i].path = next_string(&at, end);
}

// ---- the new mount ----

// Opens a directory of the host in the mount namespace we are in now: an overlay
// takes no layer from another.
static int open_layer(const char *path)
{
	return (int)must(sys(openat, AT_FDCWD_, path, O_PATH_ | O_DIRECTORY_ | O_NOFOLLOW_ | O_CLOEXEC_, 0), path);
}

static int open_expected(const struct layer *l)
{
	struct statx st;
	int fd = open_layer(l->path);
	must(sys(statx, fd, "", AT_EMPTY_PATH_, STATX_INO, &st), l->path);
	u64 major = st.stx_dev_major, minor = st.stx_dev_minor;
	u64 device = (minor & 0xff) | major << 8 | (minor & ~0xffULL) << 12;
	if ((l->device || l->inode) && (device != l->device || st.stx_ino != l->inode))
		fail(ESTALE, l->path);
	return fd;
}

// The value of a mount option has 255 characters: the layers are given as the
// numbers of their descriptors, and the working directory is where those are
// names. No path needs escaping so, and the box's mount table shows none.
static int work_fd = -1;

static int make_overlay(void)
{
	char lower[LAYERS_MAX * 12], upper[12], work[12], *at = lower;
	struct option list[OPTIONS_MAX] = {{"lowerdir", lower}};
	int n = 1;
	for (u32 i = 0; i < request.layers; i++)
		at = append_number(i ? append(at, ":") : at, (u64)open_expected(&request.layer[i]));
	if (*request.upper) {
		append_number(upper, (u64)open_layer(request.upper));
		work_fd = open_layer(request.work);
		append_number(work, (u64)work_fd);
		list[n++] = (struct option){"upperdir", upper};
		list[n++] = (struct option){"workdir", work};
	}
	for (const struct option *extra = split_options(request.options); extra->key; extra++) {
		if (n == OPTIONS_MAX - 1)
			fail(E2BIG, request.options);
		list[n++] = *extra;
	}
	must(sys(chdir, "/proc/self/fd"), "/proc/self/fd");
	return (int)must(new_mount("overlay", list, request.attr), request.target);
}

// Lets go of a mount that found no place. The kernel marks the work directory of
// one that is volatile, and would refuse it at the next attempt.
static void unmake(int mount)
{
	sys(close, mount); // the file system is gone when that returns
	if (work_fd < 0)
		return;
	sys(unlinkat, work_fd, "work/incompat/volatile/dirty", 0);
	sys(unlinkat, work_fd, "work/incompat/volatile", AT_REMOVEDIR_);
	sys(unlinkat, work_fd, "work/incompat", AT_REMOVEDIR_);
}

static int bind_tree(void)
{
	const char *path = request.layer[0].path;
	int dir = open_expected(&request.layer[0]);
	int fd = (int)must(sys(open_tree, dir, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE_ | AT_EMPTY_PATH_), path);
	// What is mounted below it on the host later is not for the box.
	struct mount_attr ma = {.attr_set = request.attr, .propagation = MS_PRIVATE_};
	must(sys(mount_setattr, fd, "", AT_EMPTY_PATH_ | AT_RECURSIVE_, &ma, sizeof ma), path);
	return fd;
}

// ---- its place ----

// Opens the directory that holds the target, in the box whose mount namespace we
// have joined. Its processes may rename what lies above the mount point, and put
// links there; a mount point itself they cannot rename.
static long open_parent(const char **name)
{
	static char path[PATH_MAX_];
	size_t n = length(request.target), slash = 0;
	if (n == 0 || n >= sizeof path || request.target[0] != '/')
		return -EINVAL;
	memcpy(path, request.target, n + 1);
	for (size_t i = 0; i < n; i++)
		if (path[i] == '/')
			slash = i;
	*name = request.target + slash + 1;
	path[slash] = 0;
	struct open_how how = {.flags = O_PATH_ | O_DIRECTORY_ | O_CLOEXEC_, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
	return sys(openat2, AT_FDCWD_, slash ? path : "/", &how, sizeof how);
}

static long put(int mount, int parent, const char *name)
{
	return sys(move_mount, mount, "", parent, name, MOVE_MOUNT_F_EMPTY_PATH);
}

// Takes away what is mounted at the target, unless a process uses it, and returns
// a copy of that mount.
static long take_away(int parent, const char *name)
{
	struct statx st;
	long ret = sys(statx, parent, name, AT_SYMLINK_NOFOLLOW_, STATX_MNT_ID, &st);
	if (ret >= 0 && request.was && st.stx_mnt_id != request.was)
		ret = -ESTALE;
	if (ret < 0)
		return ret;
	long copy = sys(open_tree, parent, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW_);
	if (copy < 0)
		return copy;
	ret = sys(fchdir, parent); // umount2 takes no descriptor
	if (ret >= 0)
		ret = sys(umount2, name, UMOUNT_NOFOLLOW_);
	return ret < 0 ? ret : copy;
}

// Puts the mount into its place. Returns what kind of report a failure is.
static u32 place(int mount, long *err)
{
	const char *name;
	long parent = *err = open_parent(&name), old = -1;
	if (parent >= 0 && request.flags & REPLACES) {
		old = *err = take_away((int)parent, name);
		if (old < 0)
			return old == -EBUSY ? REP_BUSY : REP_ERROR;
	}
	if (parent >= 0)
		*err = put(mount, (int)parent, name);
	return *err < 0 && old >= 0 && put((int)old, (int)parent, name) < 0 ? REP_LOST : REP_ERROR;
}

// Hands a descriptor over. Whoever has two answers knows that ours is closed: a
// mount that we held would be busy for the next request.
static void answer(int fd)
{
	report(REP_FD, 0, request.target, 0, 0, 0, 0, fd);
	sys(close, fd);
	report(REP_READY, 0, 0, 0, 0, 0, 0, -1);
}

static void remount(int mnt, int user)
{
	read_request();
	if (user >= 0) {
		must(sys(setns, user, CLONE_NEWUSER), "join the user namespace");
		// A copy of the host's mounts, in which we have the right to mount.
		must(sys(unshare, CLONE_NEWNS), "mount namespace");
	}
	int mount = request.flags & BINDS ? bind_tree() : make_overlay();
	must(sys(setns, mnt, CLONE_NEWNS), "join the mount namespace"); // our root is the box's now
	long err;
	u32 kind = place(mount, &err);
	if (err < 0) {
		unmake(mount);
		report(kind, (int)-err, request.target, 0, 0, 0, 0, -1);
		leave(1);
	}
	// What the old mount still costs (a grace period of the machine, and where it
	// is not volatile, writing out) is paid after the answer, when we end.
	answer(mount);
}

static void make_socket(int net, int user)
{
	int kind[2];
	char *at = message.bytes + sizeof message.head;
	take(kind, sizeof kind, &at, message.bytes + message.head.size);
	if (user >= 0)
		must(sys(setns, user, CLONE_NEWUSER), "join the user namespace");
	if (net >= 0)
		must(sys(setns, net, CLONE_NEWNET), "join the network namespace");
	answer((int)must(sys(socket, kind[0], kind[1] | O_CLOEXEC_, 0), "socket"));
}

void keep(void)
{
	struct {
		unsigned long handler, flags, restorer, mask;
	} ignore = {.handler = SIG_IGN_};
	must(sys(rt_sigaction, SIGCHLD_, &ignore, 0, 8), "sigaction"); // nobody waits for the children
	for (;;) {
		int lost, count = receive(&lost);
		if (count < 1)
			continue; // whoever asked sees the end of its socket
		// The namespace, then the user namespace where the box's is not ours.
		int space = count > 1 ? received_fds[1] : -1, user = count > 2 ? received_fds[2] : -1;
		long pid = lost ? -EMFILE : sys(clone, SIGCHLD_, 0, 0, 0, 0);
		if (pid <= 0)
			report_fd = received_fds[0];
		if (pid == 0) {
			sys(close, CONTROL_FD);
			if (message.head.kind == MSG_REMOUNT)
				remount(space, user);
			else if (message.head.kind == MSG_SOCKET)
				make_socket(space, user);
			else
				fail(EPROTO, "request");
			leave(0);
		}
		if (pid < 0)
			report(REP_ERROR, (int)-pid, "fork", 0, 0, 0, 0, -1);
		report_fd = CONTROL_FD;
		for (int i = 0; i < count; i++)
			sys(close, received_fds[i]);
	}
}
