// What the attacks share. An attack tells what it tried in lines of
// tab-separated fields:
//
//	TRIED  what  result     the attempt was made and refused: the errno it got
//	GOT    what  detail     the attempt succeeded
//	ODD    what  result     an answer that is neither: the attack proves nothing
//	NA     reason           this host has nothing to attack
//	SAY    text             for the report
//	END                     the attack came to its end
//
// Whoever reads them believes a refusal only where TRIED and END are there.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void line(const char *kind, const char *what, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *errno_name(int e);

// The value that was given as NAME=VALUE, or "".
const char *param(const char *name);
long number(const char *name, long otherwise);
int bare(void); // not in a box: leave out what would hurt the machine

// Most calls return -1 and errno.
enum { DENIED = 0, GRANTED = 1 };

// Judges a call by errno: a success is GOT, an error that is in refused is
// TRIED, one that is in passed was given by code behind the guard and is GOT
// too, anything else is ODD. Both are names between blanks.
int judge(const char *what, long ret, const char *refused, const char *passed);

// Judges an open for what may be hidden or closed; closes it again.
int judge_open(const char *path, int flags);

// Reads a file whole as text, at most 64 KiB; 0 when it cannot be opened.
char *slurp(const char *path);

// Judges the reading of a secret: prints what was read.
void judge_read(const char *path);

#define REFUSED "EPERM EACCES ENOSYS"
#define ABSENT "ENOENT ENOTDIR EACCES EPERM"

struct attack {
	const char *name;
	void (*run)(void);
};

extern const struct attack files[], kernel[], neighbours[], denial[], promotion[], policy[];

void report(void); // what a box looks like from inside
