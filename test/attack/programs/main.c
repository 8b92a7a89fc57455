// attack NAME [KEY=VALUE...] makes one attack and tells what it got; report
// tells what the box looks like.

#include "attack.h"

static char **params;
static int params_count;

const char *param(const char *name)
{
	size_t n = strlen(name);
	for (int i = 0; i < params_count; i++)
		if (!strncmp(params[i], name, n) && params[i][n] == '=')
			return params[i] + n + 1;
	return "";
}

long number(const char *name, long otherwise)
{
	const char *text = param(name);
	return *text ? strtol(text, 0, 0) : otherwise;
}

int bare(void) { return *param("bare") != 0; }

void line(const char *kind, const char *what, const char *format, ...)
{
	char text[70000];
	int n = snprintf(text, sizeof text, "%s\t%s\t", kind, what);
	va_list args;
	va_start(args, format);
	n += vsnprintf(text + n, sizeof text - n - 1, format, args);
	va_end(args);
	if (n > (int)sizeof text - 2)
		n = sizeof text - 2;
	for (int i = 0; i < n; i++)
		if (text[i] == '\n' || text[i] == 0)
			text[i] = ' ';
	text[n++] = '\n';
	for (int at = 0; at < n;) {
		ssize_t w = write(1, text + at, n - at);
		if (w <= 0)
			_exit(9);
		at += w;
	}
}

const char *errno_name(int e)
{
	const char *name = strerrorname_np(e);
	return name ? name : "E?";
}

static int among(const char *name, const char *list)
{
	size_t n = strlen(name);
	for (const char *at = list; (at = strstr(at, name)); at += n)
		if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' '))
			return 1;
	return 0;
}

int judge(const char *what, long ret, const char *refused, const char *passed)
{
	int e = errno;
	if (ret >= 0) {
		line("GOT", what, "%ld", ret);
		return GRANTED;
	}
	const char *name = errno_name(e);
	if (among(name, refused)) {
		line("TRIED", what, "%s", name);
		return DENIED;
	}
	if (among(name, passed)) {
		line("GOT", what, "%s, from behind the guard", name);
		return GRANTED;
	}
	line("ODD", what, "%s", name);
	return DENIED;
}

int judge_open(const char *path, int flags)
{
	char what[4200];
	snprintf(what, sizeof what, "open(%s, %s)", path, (flags & O_ACCMODE) == O_RDONLY ? "read" : "write");
	int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (fd >= 0 && !fstat(fd, &st) && S_ISCHR(st.st_mode) && st.st_rdev == (1 << 8 | 3) && strcmp(path, "/dev/null")) {
		line("TRIED", what, "the null device");
		close(fd);
		return DENIED;
	}
	int got = judge(what, fd, ABSENT " EROFS ENXIO ENODEV EISDIR ESRCH ELOOP", "ETXTBSY EBUSY");
	if (fd >= 0)
		close(fd);
	return got;
}

char *slurp(const char *path)
{
	static char text[65536];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return 0;
	ssize_t n, all = 0;
	while (all < (ssize_t)sizeof text - 1 && (n = read(fd, text + all, sizeof text - 1 - all)) > 0)
		all += n;
	int e = errno;
	close(fd);
	errno = e;
	text[all] = 0;
	for (ssize_t i = 0; i < all; i++)
		if (!text[i])
			text[i] = ' ';
	return text;
}

void judge_read(const char *path)
{
	char what[4200];
	snprintf(what, sizeof what, "read(%s)", path);
	char *text = slurp(path);
	if (!text)
		judge(what, -1, ABSENT " ELOOP ESRCH", "");
	else if (!*text)
		line("TRIED", what, "empty");
	else
		line("GOT", what, "%s", text);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	params = argv + 2;
	params_count = argc - 2;
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(argv[1], "report")) {
		report();
		line("END", "", "");
		return 0;
	}
	if (!strcmp(argv[1], "idle")) { // a neighbour: does nothing, and hears signals
		for (;;)
			pause();
	}
	if (!strcmp(argv[1], "policy-execed")) { // another program than the first
		line("GOT", "exec", "of itself, as another program");
		return 0;
	}
	if (!strcmp(argv[1], "keep-key")) {
		long id = *param("remove") ? syscall(SYS_keyctl, 10 /* search */, -4, "user", param("key"), 0) : syscall(SYS_add_key, "user", param("key"), "x", 1, -4);
		if (id >= 0 && *param("remove"))
			id = syscall(SYS_keyctl, 9 /* unlink */, id, -4, 0, 0);
		return id < 0;
	}
	if (!strcmp(argv[1], "whoami")) { // what a program with rights of its own gets
		printf("%d %s", (int)geteuid(), "");
		char *status = slurp("/proc/self/status"), *caps = status ? strstr(status, "CapEff:") : 0;
		printf("%.23s\n", caps ? caps : "");
		return 0;
	}
	const struct attack *lists[] = {files, kernel, neighbours, denial, promotion, policy};
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
		for (const struct attack *a = lists[i]; a->name; a++)
			if (!strcmp(a->name, argv[1])) {
				a->run();
				line("END", "", "");
				return 0;
			}
	fprintf(stderr, "attack: no attack is called %s\n", argv[1]);
	return 2;
}
