"""Tries whatever a terminal can be misused for, at every one it can find."""
import ctypes, errno, fcntl, os, signal, stat, struct, sys, termios

libc = ctypes.CDLL(None, use_errno=True)
libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]
libc.syscall.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
IOCTL = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
HIGH = 1 << 32
TIOCSTI, TIOCLINUX, TIOCSETD, TIOCSCTTY, TIOCSPGRP, TIOCSWINSZ, TIOCEXCL, TIOCCONS, TIOCVHANGUP, TIOCNOTTY = (
    0x5412, 0x541C, 0x5423, 0x540E, 0x5410, 0x5414, 0x540C, 0x541D, 0x5437, 0x5422)

for s in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGHUP, signal.SIGTSTP):
    signal.signal(s, signal.SIG_IGN)
report = []  # the terminal may be set so that it shows nothing
out = os.dup(1)


def attempt(what, call):
    try:
        call()
        answer = "done"
    except OSError as e:
        answer = errno.errorcode.get(e.errno, str(e.errno))
    report.append(what + ": " + answer)


def ioctl(fd, request, data):
    buf = ctypes.create_string_buffer(data, max(len(data), 64))
    if libc.syscall(IOCTL, fd, request, ctypes.addressof(buf)) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")


def type_in(fd, request):
    for c in b"typed\n":
        ioctl(fd, request, bytes([c]))


def spoil(fd):
    mode = termios.tcgetattr(fd)
    mode[0], mode[1], mode[3] = 0, 0, 0
    mode[6][termios.VINTR] = b"x"
    termios.tcsetattr(fd, termios.TCSANOW, mode)


def attack(fd, name):
    report.append("terminal %s: %s" % (name, os.isatty(fd)))
    attempt("input dropped " + name, lambda: termios.tcflush(fd, termios.TCIFLUSH))
    for high in (0, HIGH, 0xFFFFFFFF << 32):
        attempt("TIOCSTI %x %s" % (high, name), lambda: type_in(fd, high | TIOCSTI))
        attempt("TIOCLINUX %x %s" % (high, name), lambda: ioctl(fd, high | TIOCLINUX, b"\x03"))
        attempt("TIOCSETD %x %s" % (high, name), lambda: ioctl(fd, high | TIOCSETD, struct.pack("i", 2)))
    attempt("settings " + name, lambda: spoil(fd))
    attempt("size " + name, lambda: ioctl(fd, TIOCSWINSZ, struct.pack("HHHH", 1, 2, 3, 4)))
    attempt("group " + name, lambda: ioctl(fd, TIOCSPGRP, struct.pack("i", os.getpgrp())))
    attempt("mode " + name, lambda: os.fchmod(fd, 0o666))
    attempt("owner " + name, lambda: os.fchown(fd, 1, 1))
    attempt("console " + name, lambda: ioctl(fd, TIOCCONS, b""))


for fd in range(3):
    if os.isatty(fd):
        attack(fd, str(fd))

host = sys.argv[1]
paths = ["/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ptmx", host]
paths += ["/proc/self/fd/%d" % fd for fd in range(3)] + ["/proc/%d/fd/%d" % (pid, fd) for pid in (1, os.getppid()) for fd in range(3)]
mine = [(os.fstat(fd).st_dev, os.fstat(fd).st_rdev) for fd in range(3) if os.isatty(fd)]
for path in paths:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as e:
        report.append("open %s: %s" % (path, errno.errorcode[e.errno]))
        continue
    if not os.isatty(fd):
        report.append("no tty %s: yes" % path)
    elif path == "/dev/ptmx":
        report.append("its own %s: yes" % path)
    elif (os.fstat(fd).st_dev, os.fstat(fd).st_rdev) in mine or path == "/dev/tty" and mine:
        if path == "/dev/tty":
            attack(fd, path)
    else:
        report.append("opened %s: yes" % path)
        attack(fd, path)

gently = len(sys.argv) > 2  # outside of a box the test itself would be hit

# From a new session another terminal could become the controlling one.
pid = os.fork()
if pid == 0:
    os.setsid()
    for path in () if gently else [host] + ["/proc/self/fd/%d" % fd for fd in range(3)]:
        try:
            fd = os.open(path, os.O_RDWR)
            ioctl(fd, TIOCSCTTY, b"\x01")
            type_in(os.open("/dev/tty", os.O_RDWR), TIOCSTI)
        except OSError:
            pass
    os._exit(0)
os.waitpid(pid, 0)
if not gently:
    for s in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGCONT):
        for target in (os.getppid(), 0):
            attempt("signal %d %d" % (s, target), lambda: os.kill(target, s))
    attempt("vhangup", lambda: libc.vhangup() == 0 or (_ for _ in ()).throw(OSError(ctypes.get_errno(), "vhangup")))
for fd in range(3):
    attempt("exclusive %d" % fd, lambda: ioctl(fd, TIOCEXCL, b""))

report.append("attacked")
os.write(out, ("\r\n".join(report) + "\r\n").encode())
