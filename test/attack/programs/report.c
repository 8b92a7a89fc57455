// What a box looks like from inside, in lines that mean the same on every host.

#include "attack.h"
#include <net/if.h>
#include <ifaddrs.h>
#include <sys/resource.h>
#include <sys/utsname.h>

static void status_line(const char *name)
{
	char *text = slurp("/proc/self/status"), key[64];
	snprintf(key, sizeof key, "\n%s:", name);
	char *at = text ? strstr(text, key) : 0;
	if (!at) {
		line("SAY", name, "unknown");
		return;
	}
	at += strlen(key);
	while (*at == '\t' || *at == ' ')
		at++;
	char *end = strchr(at, '\n');
	if (end)
		*end = 0;
	for (char *c = at; *c; c++)
		if (*c == '\t')
			*c = ' ';
	line("SAY", name, "%s", at);
}

static void file_line(const char *name, const char *path)
{
	char *text = slurp(path);
	if (!text) {
		line("SAY", name, "%s", errno_name(errno));
		return;
	}
	char out[4096];
	size_t n = 0;
	for (char *c = text; *c && n < sizeof out - 1; c++) {
		char ch = *c == '\n' || *c == '\t' ? ' ' : *c;
		if (ch == ' ' && (n == 0 || out[n - 1] == ' '))
			continue;
		out[n++] = ch;
	}
	while (n && out[n - 1] == ' ')
		n--;
	out[n] = 0;
	line("SAY", name, "%s", out);
}

static void answers(void)
{
	// With arguments that do nothing if they pass.
	static const struct { const char *name; long nr, a; } calls[] = {
		{"mount", SYS_mount, -1}, {"umount2", SYS_umount2, -1}, {"pivot_root", SYS_pivot_root, -1}, {"unshare", SYS_unshare, CLONE_NEWUSER}, {"setns", SYS_setns, -1}, {"chroot", SYS_chroot, -1}, {"bpf", SYS_bpf, -1},
		{"perf_event_open", SYS_perf_event_open, 0}, {"userfaultfd", SYS_userfaultfd, 1}, {"io_uring_setup", 425, 1}, {"keyctl", SYS_keyctl, 0}, {"add_key", SYS_add_key, 0}, {"request_key", SYS_request_key, 0}, {"kexec_load", SYS_kexec_load, -1},
		{"init_module", SYS_init_module, 0}, {"finit_module", SYS_finit_module, -1}, {"delete_module", SYS_delete_module, 0}, {"reboot", SYS_reboot, 1}, {"swapon", SYS_swapon, 0}, {"acct", SYS_acct, -1}, {"quotactl", SYS_quotactl, -1},
		{"fanotify_init", SYS_fanotify_init, 0x200}, {"open_by_handle_at", SYS_open_by_handle_at, -1}, {"name_to_handle_at", SYS_name_to_handle_at, -1}, {"kcmp", SYS_kcmp, 1}, {"pidfd_getfd", 438, -1}, {"settimeofday", SYS_settimeofday, -1},
		{"clock_adjtime", SYS_clock_adjtime, 0}, {"sethostname", SYS_sethostname, -1}, {"syslog", SYS_syslog, 10}, {"fsopen", 430, 0}, {"fsmount", 432, -1}, {"fsconfig", 431, -1}, {"open_tree", 428, -1}, {"move_mount", 429, -1}, {"mount_setattr", 442, -1}, {"clone3", 435, 0},
	};
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		long ret = syscall(calls[i].nr, calls[i].a, 0, 0, 0, 0, 0);
		char name[64];
		snprintf(name, sizeof name, "call %s", calls[i].name);
		line("SAY", name, "%s", ret < 0 ? errno_name(errno) : "ok");
	}
}

void report(void)
{
	static const char *const fields[] = {"Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		status_line(fields[i]);
	static const char *const spaces[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"};
	for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
		char path[64], to[128], name[64];
		snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
		ssize_t n = readlink(path, to, sizeof to - 1);
		to[n < 0 ? 0 : n] = 0;
		snprintf(name, sizeof name, "namespace %s", spaces[i]);
		line("SAY", name, "%s", to);
	}
	file_line("uid_map", "/proc/self/uid_map");
	file_line("gid_map", "/proc/self/gid_map");
	file_line("setgroups", "/proc/self/setgroups");
	file_line("max_user_namespaces", "/proc/sys/user/max_user_namespaces");
	struct utsname u;
	uname(&u);
	line("SAY", "hostname", "%s", u.nodename);
	line("SAY", "dumpable", "%d", prctl(PR_GET_DUMPABLE));
	line("SAY", "securebits", "%d", prctl(PR_GET_SECUREBITS));
	line("SAY", "pid", "%s", getppid() == 1 ? "a child of 1" : "not a child of 1");
	line("SAY", "session", "%s", getsid(0) == getpid() ? "its own" : "not its own");
	char *pid1 = slurp("/proc/1/comm");
	line("SAY", "init", "%s", pid1 ? pid1 : errno_name(errno));
	line("SAY", "landlock", "%ld", syscall(444, 0, 0, 1));
	struct rlimit core;
	getrlimit(RLIMIT_CORE, &core);
	line("SAY", "core", "%ld", (long)core.rlim_max);
	DIR *d = opendir("/dev");
	char names[64][64];
	int count = 0;
	for (struct dirent *e; d && (e = readdir(d)) && count < 64;)
		if (e->d_name[0] != '.')
			snprintf(names[count++], 64, "%s", e->d_name);
	if (d)
		closedir(d);
	qsort(names, (size_t)count, 64, (int (*)(const void *, const void *))strcmp);
	char all[4096] = "";
	for (int i = 0; i < count; i++)
		snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? " " : "", names[i]);
	line("SAY", "devices", "%s", all);
	all[0] = 0;
	struct ifaddrs *list = 0;
	struct if_nameindex *ifs = if_nameindex();
	for (struct if_nameindex *i = ifs; i && i->if_name; i++)
		snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i == ifs ? "" : " ", i->if_name);
	(void)list;
	line("SAY", "interfaces", "%s", all);
	answers();
	FILE *f = fopen("/proc/self/mountinfo", "r");
	char text[8192];
	while (f && fgets(text, sizeof text, f)) {
		char root[2048], at[2048], options[512];
		if (sscanf(text, "%*d %*d %*s %2047s %2047s %511s", root, at, options) == 3) {
			char *dash = strstr(text, " - "), type[64] = "";
			if (dash)
				sscanf(dash, " - %63s", type);
			char *shared = strstr(text, " shared:"), *master = strstr(text, " master:");
			line("MOUNT", at, "%s\t%s\t%s", type, options, (shared && shared < dash) || (master && master < dash) ? "propagates" : "private");
		}
	}
	if (f)
		fclose(f);
}
