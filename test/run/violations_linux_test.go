package run

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"hutch/test/lab"
)

// TestTheBoxSaysWhatItRefused: whoever reads the end of a failed run can tell
// whether the command failed or the box refused.
func TestTheBoxSaysWhatItRefused(t *testing.T) {
	for _, c := range []struct {
		name, script string
		line         string // on standard error, after "hutch: "; "" is none
		kind, what   string
		errno        string
	}{
		{"nothing", "true", "", "", "", ""},
		{"mount", "mkdir m; mount -t tmpfs none m", `the box refused mount to "mount" (EPERM)`, "syscall", "mount", "EPERM"},
		{"user namespace", "unshare -U true", `the box refused unshare CLONE_NEWUSER to "unshare" (EPERM)`, "syscall", "unshare CLONE_NEWUSER", "EPERM"},
		{"socket family", `python3 -c 'import socket; socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)'`,
			`the box refused socket AF_VSOCK to "python3" (EAFNOSUPPORT)`, "syscall", "socket AF_VSOCK", "EAFNOSUPPORT"},
		{"web", "curl -sS http://192.0.2.1/", "packets had nowhere to go (1): this box has no network; --allow-net shares the host's", "network", "packets had nowhere to go", ""},
		{"web, IPv6", "curl -sS 'http://[2001:db8::1]/'", "packets had nowhere to go (1): this box has no network; --allow-net shares the host's", "network", "packets had nowhere to go", ""},
		{"resolver", `python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b"x", ("127.0.0.53", 53))'`,
			"datagrams found closed ports of the box's own loopback (1): this box has no network; --allow-net shares the host's", "network", "datagrams found closed ports of the box's own loopback", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := lab.New(t)
			said := ""
			for line := range strings.Lines(w.Box("--", "sh", "-c", c.script).Stderr) {
				if rest, ok := strings.CutPrefix(line, "hutch: "); ok {
					said += strings.TrimSuffix(rest, "\n")
				}
			}
			if said != c.line {
				t.Errorf("standard error says %q, want %q", said, c.line)
			}
			o, _ := w.JSON("--", "sh", "-c", c.script)
			if c.kind == "" {
				if len(o.Violations) != 0 {
					t.Errorf("violations %+v, want none", o.Violations)
				}
				return
			}
			if len(o.Violations) != 1 || o.Violations[0].Kind != c.kind || o.Violations[0].What != c.what || o.Violations[0].Errno != c.errno || o.Violations[0].Count != 1 {
				t.Errorf("violations %+v, want one of %q %q %q", o.Violations, c.kind, c.what, c.errno)
			}
		})
	}
}

// hammering makes every call that is refused by its number a hundred times, from
// eight threads at once, and says what it was answered.
const hammering = `
import ctypes, errno, os, threading
libc = ctypes.CDLL(None, use_errno=True)
calls = dict(line.split()[::-1] for line in open("calls"))
wrong = []
def hammer(names):
    for _ in range(100 // 8 + 1):
        for name in names:
            ctypes.set_errno(0)
            libc.syscall(ctypes.c_long(int(calls[name])), ctypes.c_long(FIRST.get(name, -1)), ctypes.c_long(SECOND.get(name, -1)), -1, -1, -1, -1)
            if ctypes.get_errno() != WANT.get(name, errno.EPERM):
                wrong.append((name, errno.errorcode.get(ctypes.get_errno())))
FIRST = {"clone": 0x10000000, "socket": 40, "socketpair": 40, "personality": 0x400000}
SECOND = {"ioctl": 0x5412}
WANT = {"socket": errno.EAFNOSUPPORT, "socketpair": errno.EOPNOTSUPP}
allowed = {"ptrace", "process_vm_readv", "process_vm_writev", "fork", "vfork", "execve", "execveat"}
names = sorted(set(calls) - allowed)
threads = [threading.Thread(target=hammer, args=(names,)) for _ in range(8)]
for t in threads: t.start()
for i in range(20):
    os.rename("dir", "dir2")
    os.rename("dir2", "dir")
for t in threads: t.join()
print(len(names), "calls", sorted(set(wrong)), sorted(os.listdir("dir")), os.path.exists("/proc/1/status"))
`

// TestRefusedCallsAreAnsweredAlike: with and without a mover, as root and as an
// ordinary user, whatever else goes on. What was counted is right to the call.
func TestRefusedCallsAreAnsweredAlike(t *testing.T) {
	calls, err := os.ReadFile("../../internal/jail/filter/refused_" + runtime.GOARCH + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, strategy := range []string{"overlay", "copy"} { // an ordinary user's overlay has a mover, a copy none
		t.Run(strategy, func(t *testing.T) {
			w := lab.New(t)
			w.Write("calls", string(calls))
			w.Write("dir/a", "a")
			w.Write("dir/b", "b")
			w.Write("hammer.py", hammering)
			o, r := w.JSON("--strategy", strategy, "--", "python3", "hammer.py")
			n := strings.Count(string(calls), "\n") - allowedHere(string(calls))
			if want := fmt.Sprintf("%d calls [] ['a', 'b'] True\n", n); o.Stdout != want {
				t.Fatalf("the program says %q, want %q\n%v", o.Stdout, want, r)
			}
			// The table holds 64 kinds, and the last takes the rest.
			total, kinds := int64(0), len(o.Violations)
			for _, v := range o.Violations {
				total += v.Count
				if v.Process != "python3" {
					t.Errorf("%s: process %q", v.What, v.Process)
				}
			}
			if want := int64(n * 8 * (100/8 + 1)); total != want || kinds != min(n, 64) {
				t.Errorf("%d calls of %d kinds were counted, want %d of %d", total, kinds, want, min(n, 64))
			}
		})
	}
}

func allowedHere(calls string) int {
	n := 0
	for line := range strings.Lines(calls) {
		switch strings.Fields(line)[1] {
		case "ptrace", "process_vm_readv", "process_vm_writev", "fork", "vfork", "execve", "execveat":
			n++
		}
	}
	return n
}

// TestARefusalFloodIsBounded: a command that does nothing but what is refused, in
// as many ways as it can, makes neither the report nor the lines long, and the
// deadline still ends it.
func TestARefusalFloodIsBounded(t *testing.T) {
	w := lab.New(t)
	w.Write("flood.py", `
import ctypes, os, sys
libc = ctypes.CDLL(None)
n, end = 0, int(sys.argv[1])
if not end:
    for _ in range(4): os.fork()
while n != end or not end:
    libc.syscall(41, ctypes.c_long(n % 70), 5, n)
    libc.prctl(15, b"\x1b[31m\n%d" % n)
    libc.syscall(272, ctypes.c_long(n))
    n += 1
`)
	o, r := w.JSON("--timeout", "3s", "--", "python3", "flood.py", "0")
	if o.Status != "timeout" || r.Duration.Seconds() > 60 {
		t.Errorf("status %q after %v", o.Status, r.Duration)
	}
	if len(o.Violations) < 2 || len(o.Violations) > 64 {
		t.Errorf("%d violations", len(o.Violations))
	}
	for _, v := range o.Violations {
		if strings.ContainsFunc(v.Process, func(r rune) bool { return r < ' ' || r > '~' }) || len(v.Process) > 15 {
			t.Errorf("the name %q was taken as it is", v.Process)
		}
	}
	plain := w.Run("run", "--", "python3", "flood.py", "2000")
	if n := strings.Count(plain.Stderr, "the box refused"); n < 2 || n > 5 {
		t.Errorf("%d lines about refusals:\n%s", n, plain.Stderr)
	}
}

// TestCapabilitiesOfProcesses: what the policy does not grant is refused, says
// so, and leaves the rest as it is.
func TestCapabilitiesOfProcesses(t *testing.T) {
	const noSubprocess, noDebug = "; its policy does not grant subprocess", "; its policy does not grant debug"
	python := "/usr/bin/python3" // a launcher would have to execute another program
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		line   string // a part of what hutch says; "": nothing
	}{
		{"script", []string{"--no-subprocess", "--", "./script"}, 0, "script\n", ""},
		{"interpreter with an argument", []string{"--no-subprocess", "--", "./python"}, 0, "python\n", ""},
		{"script without an interpreter", []string{"--no-subprocess", "--", "./bare"}, 0, "bare\n", ""},
		{"program on the path", []string{"--no-subprocess", "--", "echo", "x"}, 0, "x\n", ""},
		{"threads", []string{"--no-subprocess", "--", python, "-c", "import threading as t\nx = [t.Thread(target=print, args=(i,)) for i in range(3)]\nfor y in x: y.start(); y.join()"}, 0, "0\n1\n2\n", ""},
		{"directories", []string{"--no-subprocess", "--", python, "-c", "import os\nos.rename('dir', 'dir2'); print(os.listdir('dir2'))"}, 0, "['f']\n", ""},
		{"fork", []string{"--no-subprocess", "--", "sh", "-c", "echo a; ls; echo b"}, 2, "a\n", `fork to "sh" (EPERM)` + noSubprocess},
		{"exec", []string{"--no-subprocess", "--", "sh", "-c", "exec /bin/ls"}, 126, "", `the box refused execve to "sh" (EPERM)` + noSubprocess},
		{"clone", []string{"--no-subprocess", "--", python, "-c", "import os\ntry: os.fork()\nexcept PermissionError as e: print(e)"}, 0,
			"[Errno 1] Operation not permitted\n", `the box refused clone to "python3" (EPERM)` + noSubprocess},
		{"exec by descriptor", []string{"--no-subprocess", "--", python, "-c", "import os\ntry: os.execve(os.open('/bin/true', os.O_RDONLY), ['true'], {})\nexcept PermissionError as e: print(e.strerror)"}, 0,
			"Operation not permitted\n", `execveat to "python3" (EPERM)` + noSubprocess},
		{"exec with guessed registers", []string{"--no-subprocess", "--", python, "guess.py"}, 0, "refused\n", "2000 times in all" + noSubprocess},
		{"debugger", []string{"--no-debug", "--", "strace", "-o", "/dev/null", "true"}, 1, "", "the box refused ptrace to \"strace\" (EPERM)"},
		{"memory of itself", []string{"--no-debug", "--", python, "-c", "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nprint(l.process_vm_readv(1, 0, 0, 0, 0, 0), ctypes.get_errno())"}, 0, "-1 1\n", "process_vm_readv to \"python3\" (EPERM)" + noDebug},
		{"subprocesses of a box without debug", []string{"--no-debug", "--", "sh", "-c", "ls script"}, 0, "script\n", ""},
		{"threads of a box with neither", []string{"--no-debug", "--no-subprocess", "--", python, "-c", "import threading as t\nx = t.Thread(target=print, args=(1,)); x.start(); x.join()"}, 0, "1\n", ""},
		{"debugger that is granted", []string{"--", "strace", "-f", "-e", "trace=none", "-o", "/dev/null", "sh", "-c", "true; echo traced"}, 0, "traced\n", ""},
		{"gdb", []string{"--", "gdb", "-q", "-batch", "-ex", "break exit", "-ex", "run", "-ex", "kill", "/bin/true"}, 0, "*", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := lab.New(t)
			w.Write("script", "#!/bin/sh\necho script\n")
			w.Write("python", "#!"+python+" -I\nprint('python')\n")
			w.Write("bare", "echo bare\n")
			w.Write("dir/f", "f")
			// The registers hold what boxinit left there, if anything, and
			// words that are near it.
			w.Write("guess.py", `
import ctypes, os, platform, random
libc = ctypes.CDLL(None, use_errno=True)
nr = {"x86_64": 59, "aarch64": 221}[platform.machine()]
marks = (0x6e6f6e6365206f66, 0x20626f78696e6974, 0, 2**64 - 1)
args = (ctypes.c_char_p * 2)(b"true", None)
for _ in range(2000):
    a, b = random.choice(marks + (random.getrandbits(64),)), random.choice(marks + (random.getrandbits(64),))
    libc.syscall(ctypes.c_long(nr), b"/bin/true", args, None, ctypes.c_ulong(a), ctypes.c_ulong(b), 0)
    assert ctypes.get_errno() == 1
print("refused")
`)
			for _, name := range []string{"script", "python", "bare"} {
				w.Host("chmod", "+x", name)
			}
			r := w.Box(c.args...)
			if r.Code != c.code || (c.stdout != "*" && r.Stdout != c.stdout) {
				t.Errorf("exit %d, want %d, output %q, want %q\n%v", r.Code, c.code, r.Stdout, c.stdout, r)
			}
			if c.line == "" && strings.Contains(r.Stderr, "hutch:") || !strings.Contains(r.Stderr, c.line) {
				t.Errorf("standard error, want %q in it:\n%s", c.line, r.Stderr)
			}
		})
	}
}

// TestTheOtherInterfaceIsDenied: a call of the 32-bit interface ends the command,
// and the outcome says that it was not the command's own doing.
func TestTheOtherInterfaceIsDenied(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 has the instruction")
	}
	w := lab.New(t)
	// getpid by int 0x80, from a 64-bit process.
	script := `import ctypes, mmap
m = mmap.mmap(-1, 4096, prot=7)
m.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
print("before", flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()
print("after")`
	o, _ := w.JSON("--", "/usr/bin/python3", "-c", script)
	if o.Status != "denied" || o.ExitCode != 128+31 || o.Stdout != "before\n" || o.Signal != "SIGSYS" {
		t.Errorf("status %q, exit code %d, signal %v, output %q", o.Status, o.ExitCode, o.Signal, o.Stdout)
	}
	if len(o.Violations) != 1 || o.Violations[0].Kind != "syscall" || !strings.Contains(o.Violations[0].What, "32-bit") {
		t.Errorf("violations %+v", o.Violations)
	}
	if r := w.Run("run", "--", "/usr/bin/python3", "-c", script); !strings.Contains(r.Stderr, "hutch: denied: the command used the 32-bit interface") || r.Code != 128+31 {
		t.Errorf("%v", r)
	}
}
