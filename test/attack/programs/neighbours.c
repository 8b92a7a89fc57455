// Neighbours and the host.

#include "attack.h"
#include <arpa/inet.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/un.h>

static void say_hello(int fd)
{
	if (fd >= 0 && send(fd, "owned", 5, MSG_NOSIGNAL) == 5)
		line("GOT", "send", "5 bytes");
}

static void connect_unix(const char *path, int type)
{
	char what[300];
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t n = strlen(path);
	if (!n || n >= sizeof a.sun_path)
		return;
	memcpy(a.sun_path, path, n);
	socklen_t size = offsetof(struct sockaddr_un, sun_path) + n + 1;
	if (path[0] == '@') {
		a.sun_path[0] = 0;
		size--;
	}
	snprintf(what, sizeof what, "connect(%s, %s)", path, type == SOCK_STREAM ? "stream" : "datagram");
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	// ECONNREFUSED: there is nobody; EPROTOTYPE: somebody, who listens otherwise.
	int got = judge(what, connect(fd, (struct sockaddr *)&a, size), "ECONNREFUSED " ABSENT, "EPROTOTYPE");
	if (got == GRANTED)
		say_hello(fd);
	if (type == SOCK_DGRAM)
		sendto(fd, "owned", 5, MSG_NOSIGNAL, (struct sockaddr *)&a, size);
	close(fd);
}

static void unix_abstract(void)
{
	connect_unix(param("abstract"), SOCK_STREAM);
	connect_unix(param("abstract"), SOCK_DGRAM);
	connect_unix("@/tmp/.X11-unix/X0", SOCK_STREAM);
	connect_unix("@/tmp/dbus-session", SOCK_STREAM);
	char *names = slurp("/proc/net/unix"), *found = names ? strstr(names, param("abstract")) : 0;
	line(found ? (number("net", 0) ? "SAY" : "GOT") : "TRIED", "/proc/net/unix", "%s", found ? param("abstract") : "not there");
}

static void unix_path(void)
{
	static const char *const known[] = {"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/dev/log", "/run/snapd.socket"};
	for (size_t i = 0; i < sizeof known / sizeof *known && !bare(); i++)
		connect_unix(known[i], SOCK_STREAM);
	for (int i = 0; i < 8; i++) {
		char name[16];
		snprintf(name, sizeof name, "socket%d", i);
		connect_unix(param(name), SOCK_STREAM);
	}
}

static void ipc_names(void)
{
	// What another made.
	key_t key = (key_t)number("ipckey", 0x68757463);
	judge("shmget", shmget(key, 0, 0), "ENOENT EACCES ENOSYS EPERM", "");
	judge("msgget", msgget(key, 0), "ENOENT EACCES ENOSYS EPERM", "");
	judge("semget", semget(key, 0, 0), "ENOENT EACCES ENOSYS EPERM", "");
	judge("mq_open", mq_open(param("mq"), O_RDONLY), "ENOENT EACCES ENOSYS EPERM", "");
	judge("shm_open", shm_open(param("shm"), O_RDONLY, 0), "ENOENT EACCES", "");
	static const char *const tables[] = {"/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"};
	for (int i = 0; i < 3; i++) {
		char *text = slurp(tables[i]), *second = text ? strchr(text, '\n') : 0;
		line(second && second[1] ? "GOT" : "TRIED", tables[i], "%s", second ? second + 1 : "absent");
	}
	// What we make, with a name that must not be seen outside.
	if (!bare()) {
		shmget(key + 1, 4096, IPC_CREAT | 0666);
		msgget(key + 1, IPC_CREAT | 0666);
		semget(key + 1, 1, IPC_CREAT | 0666);
		mq_open("/hutch-attack", O_CREAT | O_RDWR, 0666, 0);
		shm_open("/hutch-attack", O_CREAT | O_RDWR, 0666);
	}
}

static void kill_host(void)
{
	char what[64];
	int pids[] = {(int)number("pid", 0), (int)number("hutch", 0)};
	for (int i = 0; i < 2; i++)
		if (pids[i]) {
			snprintf(what, sizeof what, "kill(%d)", pids[i]);
			judge(what, kill(pids[i], SIGTERM), "ESRCH EPERM", "");
			int fd = (int)syscall(434, pids[i], 0);
			snprintf(what, sizeof what, "pidfd_open(%d)", pids[i]);
			judge(what, fd, "ESRCH EPERM ENOSYS EINVAL", "");
			snprintf(what, sizeof what, "setpriority(%d)", pids[i]);
			judge(what, syscall(SYS_setpriority, 0, pids[i], 5), "ESRCH EPERM EACCES", "");
		}
	int others = 0;
	DIR *d = opendir("/proc");
	for (struct dirent *e; d && (e = readdir(d));)
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && atoi(e->d_name) != 1 && atoi(e->d_name) != getpid() && atoi(e->d_name) != getppid())
			others++;
	line("SAY", "/proc", "%d other processes", others);
	if (bare())
		return;
	line(others > 1 ? "GOT" : "TRIED", "processes of others", "%d", others);
	signal(SIGTERM, SIG_IGN);
	long ret = kill(-1, SIGTERM);
	line("TRIED", "kill(-1, SIGTERM)", "%s", ret < 0 ? errno_name(errno) : "sent to the box");
	ret = kill(1, SIGKILL);
	line("TRIED", "kill(1, SIGKILL)", "%s", ret < 0 ? errno_name(errno) : "sent, and init ignores it");
}

static void connect_inet(const char *host, int port, int type)
{
	char what[128];
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_pton(AF_INET, host, &a.sin_addr);
	snprintf(what, sizeof what, "connect(%s:%d, %s)", host, port, type == SOCK_STREAM ? "tcp" : "udp");
	int fd = socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	long ret = connect(fd, (struct sockaddr *)&a, sizeof a);
	if (ret < 0 && errno == EINPROGRESS) {
		usleep(50000);
		int e = 0;
		socklen_t n = sizeof e;
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n);
		struct sockaddr_in peer;
		socklen_t pn = sizeof peer;
		ret = e ? (errno = e, -1) : getpeername(fd, (struct sockaddr *)&peer, &pn) < 0 ? (errno = ETIMEDOUT, -1) : 0;
	}
	// With UDP nothing but a route is needed, and on one's own loopback there is one.
	if (type == SOCK_DGRAM && ret == 0 && !strncmp(host, "127.", 4)) {
		line("SAY", what, "its own loopback");
		send(fd, "owned", 5, MSG_NOSIGNAL);
	} else if (judge(what, ret, "ENETUNREACH ECONNREFUSED EACCES EPERM EHOSTUNREACH", "ETIMEDOUT") == GRANTED)
		say_hello(fd);
	close(fd);
}

static void net_default(void)
{
	int port = (int)number("port", 0), udp = (int)number("udp", 0);
	connect_inet("127.0.0.1", port, SOCK_STREAM);
	connect_inet("127.0.0.2", port, SOCK_STREAM);
	connect_inet("0.0.0.0", port, SOCK_STREAM);
	if (udp)
		connect_inet("127.0.0.1", udp, SOCK_DGRAM);
	int fd6 = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	judge("connect(::1)", connect(fd6, (struct sockaddr *)&six, sizeof six), "ENETUNREACH ECONNREFUSED EACCES EPERM EAFNOSUPPORT EADDRNOTAVAIL EBADF", "");
	if (*param("address"))
		connect_inet(param("address"), port, SOCK_STREAM);
	if (!bare()) {
		static const struct { const char *host; int port, type; } far[] = {{"169.254.169.254", 80, SOCK_STREAM}, {"10.0.0.1", 80, SOCK_STREAM}, {"192.168.1.1", 80, SOCK_STREAM}, {"172.17.0.1", 2375, SOCK_STREAM}, {"1.1.1.1", 53, SOCK_DGRAM}, {"8.8.8.8", 53, SOCK_STREAM}, {"224.0.0.251", 5353, SOCK_DGRAM}, {"255.255.255.255", 67, SOCK_DGRAM}};
		for (size_t i = 0; i < sizeof far / sizeof *far; i++)
			connect_inet(far[i].host, far[i].port, far[i].type);
	}
	judge("socket(raw icmp)", socket(AF_INET, SOCK_RAW, 1), REFUSED, "");
	char *text = slurp("/proc/net/dev");
	int interfaces = 0;
	for (char *at = text; at && (at = strchr(at, ':')); at++)
		interfaces++;
	line(interfaces > 1 ? "GOT" : "TRIED", "interfaces", "%d", interfaces);
	text = slurp("/proc/net/route");
	char *second = text ? strchr(text, '\n') : 0;
	line(second && second[1] ? "GOT" : "TRIED", "routes", "%s", second ? second + 1 : "none");
}

extern char **environ;

static void env_leak(void)
{
	for (char **e = environ; *e; e++)
		line("SAY", "environment", "%s", *e);
	static const char *const paths[] = {"/proc/1/environ", "/proc/1/cmdline", "/proc/1/auxv", "/proc/self/environ", "/proc/self/auxv", "/proc/self/cmdline", "/proc/1/comm", "/proc/sys/kernel/hostname", "/proc/cmdline", "/proc/1/status", "/proc/self/mountinfo"};
	for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
		char *text = slurp(paths[i]);
		line("SAY", paths[i], "%s", text ? text : errno_name(errno));
	}
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/environ", getppid());
	char *text = slurp(path);
	line("SAY", path, "%s", text ? text : errno_name(errno));
	line("TRIED", "environment", "printed");
}

static void residue_leave(void)
{
	static const char *const files_[] = {"/tmp/hutch-residue", "/dev/shm/hutch-residue", "/var/tmp/hutch-residue", "/run/hutch-residue"};
	for (size_t i = 0; i < 4; i++)
		close(open(files_[i], O_CREAT | O_RDWR, 0666));
	char path[4200];
	snprintf(path, sizeof path, "%s/.hutch-residue", param("home"));
	close(open(path, O_CREAT | O_RDWR, 0666));
	snprintf(path, sizeof path, "%s/.cache/go-build/hutch-residue", param("home"));
	close(open(path, O_CREAT | O_RDWR, 0666));
	shmget(0x68757499, 4096, IPC_CREAT | 0666);
	mq_open("/hutch-residue", O_CREAT | O_RDWR, 0666, 0);
	syscall(SYS_add_key, "user", "hutch-residue", "x", 1, -4);
	uint64_t limit[2] = {7, 7};
	if (!bare() && fork() == 0) { // a daemon that listens
		signal(SIGHUP, SIG_IGN);
		setsid();
		struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "\0hutch-residue"};
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		bind(fd, (struct sockaddr *)&a, offsetof(struct sockaddr_un, sun_path) + 14);
		listen(fd, 5);
		close(0), close(1), close(2);
		sleep(60);
		_exit(0);
	}
	if (!bare())
		syscall(SYS_prlimit64, getppid(), 7, limit, 0);
	line("TRIED", "leave", "files, names and a process");
}

static void residue_find(void)
{
	static const char *const files_[] = {"/tmp/hutch-residue", "/dev/shm/hutch-residue", "/var/tmp/hutch-residue", "/run/hutch-residue"};
	for (size_t i = 0; i < 4; i++)
		judge_open(files_[i], O_RDONLY);
	char path[4200];
	snprintf(path, sizeof path, "%s/.hutch-residue", param("home"));
	judge_open(path, O_RDONLY);
	snprintf(path, sizeof path, "%s/.cache/go-build/hutch-residue", param("home"));
	judge_open(path, O_RDONLY);
	judge("shmget", shmget(0x68757499, 0, 0), "ENOENT EACCES", "");
	judge("mq_open", mq_open("/hutch-residue", O_RDONLY), "ENOENT EACCES", "");
	judge("request_key", syscall(SYS_request_key, "user", "hutch-residue", 0, -4), REFUSED " ENOKEY", "");
	connect_unix("@hutch-residue", SOCK_STREAM);
	uint64_t limit[2];
	syscall(SYS_prlimit64, 0, 7, 0, limit);
	line(limit[0] < 64 ? "GOT" : "TRIED", "open files", "%llu", (unsigned long long)limit[0]);
}

// The daemon of the very box, whose socket it is shown: it would do all that the
// user may.
static void daemon_socket(void)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	snprintf(at.sun_path, sizeof at.sun_path, "%s", param("daemon"));
	for (int i = 0; i < 20; i++) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
			judge("connect to hutchd", -1, ABSENT, "");
			close(fd);
			continue;
		}
		static const char ask[] = "GET /v1/status HTTP/1.1\r\nHost: hutchd\r\nConnection: close\r\n\r\n";
		char answer[2000];
		// Asked by one that is gone when the daemon looks who it was.
		int gone = i % 2 && !bare();
		if (gone && fork() > 0) {
			close(fd);
			usleep(1000);
			continue;
		}
		ssize_t n = write(fd, ask, sizeof ask - 1);
		if (n > 0)
			n = read(fd, answer, sizeof answer - 1);
		if (n > 0) {
			answer[n] = 0;
			line("GOT", "hutchd", "it answered: %.60s", answer);
		} else
			line("TRIED", "hutchd", "connected, and cut off: %s", n ? errno_name(errno) : "end of file");
		if (gone)
			_exit(0);
		close(fd);
	}
}

// What the daemon reaches for whoever asks it for files: links to what is closed to
// the box, and a directory that is a link every other moment. It goes on when this
// process has ended.
static void files_asked_for(void)
{
	char path[4200], to[4200];
	mkdir("links", 0755);
	static const char *const names[] = {"secret", "neighbour"};
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "links/%s", names[i]);
		symlink(param(names[i]), path);
	}
	snprintf(path, sizeof path, "links/up");
	snprintf(to, sizeof to, "../../../../../../../../../..%s", param("secret"));
	symlink(to, path);
	symlink("/proc/1/root", "links/root");
	symlink("/proc/self/fd", "links/fd");
	mkdir("links/real", 0755);
	int fd = open("links/real/secret", O_CREAT | O_WRONLY, 0644);
	write(fd, "own\n", 4);
	close(fd);
	symlink(param("canarydir"), "links/swap");
	line("TRIED", "links", "made");
	if (bare() || fork())
		return;
	setsid();
	close(0), close(1), close(2);
	for (;;)
		syscall(SYS_renameat2, AT_FDCWD, "links/real", AT_FDCWD, "links/swap", 2 /* RENAME_EXCHANGE */);
}

const struct attack neighbours[] = {
	{"daemon-socket", daemon_socket}, {"files-asked-for", files_asked_for},
	{"unix-abstract", unix_abstract}, {"unix-path", unix_path}, {"ipc-names", ipc_names}, {"kill-host", kill_host}, {"net-default", net_default}, {"env-leak", env_leak},
	{"residue-leave", residue_leave}, {"residue-find", residue_find}, {0, 0},
};
