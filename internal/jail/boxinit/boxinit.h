// What the roles of boxinit share: messages, failures and mounts.
#ifndef BOXINIT_H
#define BOXINIT_H

#include "kernel.h"

// ---- the protocol (internal/plan/plan.go, internal/jail) ----

enum { CONTROL_FD = 3, MESSAGE_MAX = 64 << 10 };

enum message { MSG_PLAN = 1, MSG_START, MSG_SIGNAL, MSG_END, MSG_KEEP, MSG_REMOUNT, MSG_SOCKET };

struct message_head {
	u32 kind, size;
	u64 a;
};

extern union received {
	struct message_head head;
	char bytes[MESSAGE_MAX];
} message;

extern int received_fds[4];

// Receives one message into message; ends the process at end of file: the
// supervisor is gone. Returns the number of descriptors that came along, and sets
// *lost when there were more than we may have.
int receive(int *lost);

// The string at *at, which it moves behind it; a failure where none ends before end.
char *next_string(char **at, char *end);

// ---- failures end the process, and are reported to whom report_fd leads ----

extern int report_fd;

void report(u32 kind, int err, const char *text, u64 a, u64 b, u64 c, u64 d, int fd);
void leave(int status) __attribute__((noreturn));
void fail(long err, const char *text) __attribute__((noreturn));
long must(long ret, const char *text);

// ---- mounts ----

struct option {
	const char *key, *value; // value 0: a flag
};

enum { OPTIONS_MAX = 16 }; // with the last, whose key is 0

// Splits "key=value,flag,..." into options that hold until the next call.
const struct option *split_options(const char *text);

// A detached mount of a new file system, or a negative errno.
long new_mount(const char *type, const struct option *options, u64 attr);

// ---- commands ----

// Whether a process is what a command was started as, and of which.
int is_command(u32 process, u32 *exec);

// ---- roles ----

// Mounts into boxes on request, until the supervisor is gone.
void keep(void) __attribute__((noreturn));

#endif
