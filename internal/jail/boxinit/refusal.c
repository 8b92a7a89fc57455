// A command's own filter makes the calls that a box refuses wait for PID 1,
// which answers them with an errno and counts them: so the user can tell "my
// test failed" from "the box refused". (The kernel's own log of seccomp needs
// rights over the host.) The filter that PID 1 carries too refuses the same
// calls, also where nobody listens: the kernel then answers ENOSYS.
//
// The box decides how often and with what it is refused. So the table has a fixed
// size, what an entry is about is one of a few values, each entry is reported
// once in ten times as often as before, and the loop that answers here takes one
// call at a time beside everything else it serves. An entry is a command's, and
// goes when no process that carries the command's filter is left.

#include "refusal.h"
#include "report.h"
#include <linux/ioctl.h>
#include <linux/types.h>

enum { ENTRIES = 255, ENTRIES_EACH = 63, AF_UNIX_ = 1, AF_INET6_ = 10, AF_NETLINK_ = 16, AF_MAX_ = 64, OTHERS = -1 };

static struct entry {
	int nr; // OTHERS: what found no place, of any command
	u32 exec;
	u32 about; // of the first argument, or 0 where calls are not told apart by it
	int err;
	u64 first, third; // arguments of the first call
	u64 count, reported;
	char process[16];
} entries[ENTRIES], others;
static int entry_count;

// The errno that the kernel itself would give, without the family or protocol;
// internal/jail/filter/gen has the same, and a test holds both together.
static int errno_of(const struct seccomp_data *call)
{
	u32 family = (u32)call->args[0];
	switch (call->nr) {
	case __NR_socket:
		return family == AF_INET_ || family == AF_INET6_ || family == AF_NETLINK_ ? EPROTONOSUPPORT : EAFNOSUPPORT;
	case __NR_socketpair:
		return EOPNOTSUPP;
	}
	return EPERM;
}

static u32 about(const struct seccomp_data *call)
{
	u32 first = (u32)call->args[0];
	switch (call->nr) {
	case __NR_socket:
		return first < AF_MAX_ ? first : AF_MAX_;
	case __NR_ioctl:
		return (u32)call->args[1]; // the filter passes on three
	}
	return 0;
}

// The name of the process, which it chose itself.
static void name_process(char *to, int listener, const struct seccomp_notif *n)
{
	char path[48], name[16];
	append(append_number(append(path, "/proc/"), n->pid), "/comm");
	long fd = sys(openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
	if (fd < 0)
		return;
	long size = sys(read, fd, name, sizeof name);
	sys(close, fd);
	u64 id = n->id;
	if (sys(ioctl, listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) < 0)
		return; // the number may be another's by now
	for (long i = 0; i < size && i < 15 && name[i] != '\n'; i++)
		*to++ = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
}

static struct entry *entry_of(u32 exec, const struct seccomp_notif *n)
{
	u32 what = about(&n->data);
	int own = 0;
	for (int i = 0; i < entry_count; i++) {
		if (entries[i].exec != exec)
			continue;
		if (entries[i].nr == n->data.nr && entries[i].about == what)
			return &entries[i];
		own++;
	}
	struct entry *e = own < ENTRIES_EACH && entry_count < ENTRIES ? &entries[entry_count++] : &others;
	if (e == &others && e->count)
		return e;
	*e = (struct entry){.nr = n->data.nr, .exec = exec, .about = what, .err = errno_of(&n->data)};
	if (e == &others) {
		e->nr = OTHERS;
		e->exec = 0;
	}
	e->first = n->data.nr == __NR_ioctl ? n->data.args[1] : n->data.args[0];
	e->third = n->data.args[2];
	return e;
}

static void report_entry(struct entry *e, int how)
{
	if (send_report(REP_DENIED, e->exec, e->err, e->process, (u64)e->nr, e->first, e->count, e->third, -1, how) >= 0)
		e->reported = e->count;
}

void refuse(int listener, u32 exec, const struct seccomp_notif *n)
{
	struct entry *e = entry_of(exec, n);
	if (!e->count++)
		name_process(e->process, listener, n);
	struct seccomp_notif_resp response = {.id = n->id, .error = -errno_of(&n->data)};
	sys(ioctl, listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
	if (e->count / 10 >= e->reported) // the caller no longer waits for this
		report_entry(e, REPORT_MAY_FAIL);
}

void report_refusals(u32 exec)
{
	for (int i = 0; i < entry_count; i++)
		if (entries[i].count > entries[i].reported && (exec == ALL_REFUSALS || entries[i].exec == exec))
			report_entry(&entries[i], REPORT_WAITS);
	if (exec == ALL_REFUSALS && others.count > others.reported)
		report_entry(&others, REPORT_WAITS);
}

void end_refusals(u32 exec)
{
	report_refusals(exec);
	for (int i = 0; i < entry_count; i++)
		if (entries[i].exec == exec)
			entries[i--] = entries[--entry_count];
}

// ---- packets ----

static long read_all(const char *path, char *to, size_t size)
{
	long n = 0, have = 0, fd = sys(openat, AT_FDCWD_, path, O_CLOEXEC_, 0);
	if (fd < 0)
		return 0;
	while (have < (long)size - 1 && (n = sys(read, fd, to + have, size - 1 - (size_t)have)) > 0)
		have += n;
	sys(close, fd);
	to[have] = 0;
	return have;
}

static const char *skip(const char *at, const char *word)
{
	while (*word && *at == *word)
		at++, word++;
	return *word ? 0 : at;
}

static u64 number_at(const char *at)
{
	u64 n = 0;
	while (*at == ' ' || *at == '\t')
		at++;
	for (; *at >= '0' && *at <= '9'; at++)
		n = n * 10 + (u64)(*at - '0');
	return n;
}

static const char *next_line(const char *at)
{
	while (*at && *at != '\n')
		at++;
	return *at ? at + 1 : at;
}

// A number of /proc/net/snmp: two lines begin with group, one with the names and
// one with the numbers.
static u64 counter(const char *text, const char *group, const char *name)
{
	for (; *text; text = next_line(text)) {
		const char *names = skip(text, group), *numbers;
		if (!names)
			continue;
		text = next_line(text);
		if (!(numbers = skip(text, group)))
			return 0;
		while (*names == ' ') {
			const char *end = skip(++names, name);
			if (end && (*end == ' ' || *end == '\n'))
				return number_at(numbers);
			while (*names && *names != ' ' && *names != '\n')
				names++;
			for (numbers++; *numbers && *numbers != ' ' && *numbers != '\n'; numbers++)
				;
		}
		return 0;
	}
	return 0;
}

// A number of /proc/net/snmp6: a name and a number each line.
static u64 counter6(const char *text, const char *name)
{
	for (; *text; text = next_line(text)) {
		const char *end = skip(text, name);
		if (end && (*end == ' ' || *end == '\t'))
			return number_at(end);
	}
	return 0;
}

void report_traffic(void)
{
	static char text[16384];
	u64 no_route = 0, no_port = 0;
	if (read_all("/proc/net/snmp", text, sizeof text)) {
		no_route = counter(text, "Ip:", "OutNoRoutes");
		no_port = counter(text, "Udp:", "NoPorts");
	}
	if (read_all("/proc/net/snmp6", text, sizeof text)) {
		no_route += counter6(text, "Ip6OutNoRoutes");
		no_port += counter6(text, "Udp6NoPorts");
	}
	if (no_route || no_port)
		send_report(REP_TRAFFIC, 0, 0, 0, no_route, no_port, 0, 0, -1, REPORT_WAITS);
}
