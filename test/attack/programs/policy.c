// What a policy takes away beyond what no box has.

#include "attack.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

static void no_subprocess(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		execl("/bin/true", "true", (char *)0);
		_exit(errno == EACCES || errno == EPERM || errno == ENOSYS ? 1 : 2);
	}
	if (pid < 0)
		judge("fork", pid, REFUSED " EAGAIN", "");
	else {
		int status;
		waitpid(pid, &status, 0);
		line(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "GOT" : "TRIED", "fork and exec", "status %x", status);
	}
	pid = vfork();
	if (pid == 0)
		_exit(0);
	judge("vfork", pid, REFUSED " EAGAIN", "");
	if (pid > 0)
		waitpid(pid, 0, 0);
	execl("/proc/self/exe", "attack", "policy-execed", (char *)0);
	judge("exec of itself", -1, REFUSED, "");
	int fd = memfd_create("x", 0);
	judge("exec of a memfd", syscall(SYS_execveat, fd, "", (char *[]){"x", 0}, (char *[]){0}, 0x1000), REFUSED, "ENOEXEC");
	execl("/bin/true", "true", (char *)0);
	judge("exec in its own place", -1, REFUSED, "");
	execl("/lib64/ld-linux-x86-64.so.2", "ld.so", "/bin/true", (char *)0);
	judge("exec of the loader", -1, REFUSED " ENOENT", "");
}

static void read_only(void)
{
	judge("create", open("new", O_CREAT | O_WRONLY, 0644), "EROFS EACCES", "");
	judge("write", open("kept", O_WRONLY), "EROFS EACCES", "");
	judge("truncate", truncate("kept", 0), "EROFS EACCES", "");
	judge("unlink", unlink("gone"), "EROFS EACCES", "");
	judge("rename", rename("kept", "moved"), "EROFS EACCES", "");
	judge("mkdir", mkdir("made", 0755), "EROFS EACCES", "");
	judge("link", link("kept", "linked"), "EROFS EACCES", "");
	judge("symlink", symlink("kept", "pointing"), "EROFS EACCES", "");
	judge("chmod", chmod("kept", 0600), "EROFS EACCES EPERM", "");
	judge("setxattr", syscall(SYS_setxattr, "kept", "user.x", "y", 1, 0), "EROFS EACCES EPERM", "");
	judge("remount", mount("none", ".", 0, MS_REMOUNT | MS_BIND, 0), REFUSED, "EINVAL");
	char path[4200];
	snprintf(path, sizeof path, "/proc/self/cwd/kept");
	judge_open(path, O_WRONLY);
	struct stat before, after;
	if (!stat("kept", &before)) {
		utimensat(AT_FDCWD, "kept", 0, 0);
		stat("kept", &after);
		line(before.st_mtime == after.st_mtime && before.st_mtim.tv_nsec == after.st_mtim.tv_nsec ? "TRIED" : "GOT", "utimensat", "times");
	}
}

static void read_nothing(void)
{
	static const char *const names[] = {"kept", "tree/inner/file", "attack", ".hutch/canary"};
	char path[4200];
	for (size_t i = 0; i < 4; i++) {
		snprintf(path, sizeof path, "%s/%s", param("ws"), names[i]);
		judge_open(path, O_RDONLY);
	}
}

static void ports(void)
{
	static const int kinds[] = {SOCK_STREAM, SOCK_STREAM | SOCK_NONBLOCK};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number("port", 0)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	for (int i = 0; i < 2; i++) {
		int fd = socket(AF_INET, kinds[i] | SOCK_CLOEXEC, 0);
		judge("connect to a port that is not named", connect(fd, (struct sockaddr *)&a, sizeof a), REFUSED, "EINPROGRESS");
		close(fd);
	}
	int six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = a.sin_port, .sin6_addr = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}}};
	judge("connect by a mapped address", connect(six, (struct sockaddr *)&mapped, sizeof mapped), REFUSED " EAFNOSUPPORT EBADF", "");
	int mp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 262 /* MPTCP */);
	judge("connect by MPTCP", mp < 0 ? mp : connect(mp, (struct sockaddr *)&a, sizeof a), REFUSED " EPROTONOSUPPORT ENOPROTOOPT", "");
	int fast = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	judge("sendto with MSG_FASTOPEN", sendto(fast, "owned", 5, 0x20000000 | MSG_NOSIGNAL, (struct sockaddr *)&a, sizeof a), REFUSED " EOPNOTSUPP", "");
	struct iovec iov = {"owned", 5};
	struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &iov, .msg_iovlen = 1};
	int again = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	judge("sendmsg with MSG_FASTOPEN", sendmsg(again, &m, 0x20000000 | MSG_NOSIGNAL), REFUSED " EOPNOTSUPP", "");
	struct mmsghdr mm = {.msg_hdr = m};
	int third = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	judge("sendmmsg with MSG_FASTOPEN", sendmmsg(third, &mm, 1, 0x20000000 | MSG_NOSIGNAL), REFUSED " EOPNOTSUPP", "");
	int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	if (!setsockopt(late, 6, 30 /* TCP_FASTOPEN_CONNECT */, &on, sizeof on))
		judge("connect with TCP_FASTOPEN_CONNECT", connect(late, (struct sockaddr *)&a, sizeof a), REFUSED, "");
	int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(0)};
	judge("bind to any port", bind(bound, (struct sockaddr *)&any, sizeof any), REFUSED, "");
	// No port is named by this: the kernel takes a free one, which Landlock does
	// not see.
	line("SAY", "listen without bind", "%s", listen(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), 1) ? errno_name(errno) : "allowed, at a port that the kernel chose");
}

const struct attack policy[] = {{"no-subprocess", no_subprocess}, {"read-only", read_only}, {"read-nothing", read_nothing}, {"ports", ports}, {0, 0}};
