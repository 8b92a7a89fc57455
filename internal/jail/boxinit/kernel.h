// What a freestanding program needs of the kernel: system calls, and the numbers
// and structures that the kernel's own headers do not give without a libc.
#ifndef KERNEL_H
#define KERNEL_H

#include <asm/unistd.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/sched.h>
#include <linux/stat.h>
#include <linux/uio.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;

#if defined(__x86_64__)
static inline long syscall6(long n, long a, long b, long c, long d, long e, long f)
{
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return ret;
}
// The child of a clone that shares our memory runs fn(arg) on a stack of its own
// and never returns from it. The kernel clears *tid when the child is gone
// (CLONE_CHILD_CLEARTID).
static inline long clone_on_stack(unsigned long flags, void *stack_top, void (*fn)(void *), void *arg, int *tid)
{
	long ret;
	register int *r10 __asm__("r10") = tid;
	register long r8 __asm__("r8") = 0;
	register void (*r9)(void *) __asm__("r9") = fn;
	register void *r12 __asm__("r12") = arg;
	__asm__ volatile(
		"syscall\n\t"
		"test %%rax, %%rax\n\t"
		"jnz 1f\n\t"
		"xor %%ebp, %%ebp\n\t"
		"mov %%r12, %%rdi\n\t"
		"call *%%r9\n\t"
		"hlt\n\t"
		"1:"
		: "=a"(ret) : "a"(__NR_clone), "D"(flags), "S"(stack_top), "d"(0L), "r"(r10), "r"(r8), "r"(r9), "r"(r12) : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
static inline long syscall6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
static inline long clone_on_stack(unsigned long flags, void *stack_top, void (*fn)(void *), void *arg, int *tid)
{
	register long x8 __asm__("x8") = __NR_clone;
	register long x0 __asm__("x0") = (long)flags;
	register void *x1 __asm__("x1") = stack_top;
	register long x2 __asm__("x2") = 0;
	register long x3 __asm__("x3") = 0;
	register int *x4 __asm__("x4") = tid;
	register void *x5 __asm__("x5") = arg;
	register void (*x9)(void *) __asm__("x9") = fn;
	__asm__ volatile(
		"svc #0\n\t"
		"cbnz x0, 1f\n\t"
		"mov x29, xzr\n\t"
		"mov x0, x5\n\t"
		"blr x9\n\t"
		"brk #0\n\t"
		"1:"
		: "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x9) : "memory", "x30");
	return x0;
}
#else
#error "boxinit knows x86_64 and aarch64"
#endif

#define SYS6(n, a, b, c, d, e, f, ...) syscall6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define sys(n, ...) SYS6(__NR_##n, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)

// What the compiler may call, and the headers do not name; in boxinit.c.
void *memcpy(void *restrict to, const void *restrict from, size_t n);
void *memset(void *to, int c, size_t n);

static inline size_t length(const char *s)
{
	size_t n = 0;
	while (s[n])
		n++;
	return n;
}

static inline char *append(char *to, const char *s)
{
	while (*s)
		*to++ = *s++;
	*to = 0;
	return to;
}

static inline char *append_number(char *to, u64 n)
{
	char digits[24];
	int i = sizeof digits;
	digits[--i] = 0;
	do
		digits[--i] = (char)('0' + n % 10);
	while (n /= 10);
	return append(to, digits + i);
}

enum { SIGKILL_ = 9, SIGTERM_ = 15, SIGCHLD_ = 17, SIGCONT_ = 18, SIG_BLOCK_ = 0, SIG_SETMASK_ = 2, POLLIN_ = 1, WNOHANG_ = 1, MSG_CMSG_CLOEXEC_ = 0x40000000,
	MSG_CTRUNC_ = 8, MSG_TRUNC_ = 0x20, SCM_RIGHTS_ = 1, SOL_SOCKET_ = 1, AF_INET_ = 2, SOCK_DGRAM_ = 2, CLOCK_MONOTONIC_ = 1, AT_FDCWD_ = -100,
	AT_EMPTY_PATH_ = 0x1000, AT_RECURSIVE_ = 0x8000, AT_SYMLINK_NOFOLLOW_ = 0x100, MNT_DETACH_ = 2, MS_REC_ = 16384, PROT_READ_ = 1,
	PROT_WRITE_ = 2, MAP_PRIVATE_ = 2, MAP_ANONYMOUS_ = 0x20, PROC_SUPER_MAGIC_ = 0x9fa0, RLIMIT_NOFILE_ = 7, O_CLOEXEC_ = 02000000, O_PATH_ = 010000000 };
#if defined(__aarch64__)
enum { O_DIRECTORY_ = 040000, O_NOFOLLOW_ = 0100000 };
#else
enum { O_DIRECTORY_ = 0200000, O_NOFOLLOW_ = 0400000 };
#endif
enum { O_WRONLY_ = 1, O_RDWR_ = 2, O_CREAT_ = 0100, O_EXCL_ = 0200, O_NOCTTY_ = 0400, MS_PRIVATE_ = 1 << 18 };

struct kernel_msghdr {
	void *name;
	int namelen;
	struct iovec *iov;
	size_t iovlen;
	void *control;
	size_t controllen;
	unsigned flags;
};

struct kernel_cmsghdr {
	size_t len;
	int level, type;
	int fds[4];
};

struct kernel_timespec {
	int64_t sec;
	long long nsec;
};

struct kernel_rusage {
	long utime_sec, utime_usec, stime_sec, stime_usec;
	long rest[14];
};

struct kernel_pollfd {
	int fd;
	short events, revents;
};

#endif
