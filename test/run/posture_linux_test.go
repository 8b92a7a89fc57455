package run

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"hutch/test/lab"
)

// TestTheJailFromInside reads what the kernel says of a box: what a report of
// such tools as amicontained would.
func TestTheJailFromInside(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		r := w.Box("--", "sh", "-c", `
cat /proc/self/status
echo "--- mounts"; cat /proc/self/mountinfo
echo "--- links"; cat /proc/net/dev
echo "--- init"; for f in environ mem maps cwd/ root/ fd/ exe stack syscall; do head -c 1 /proc/1/$f >/dev/null 2>&1 && echo "open $f"; done
echo "--- masked"; for f in /proc/kcore /proc/keys /proc/timer_list /proc/acpi /proc/scsi /sys/firmware; do [ -e $f ] && stat -c "%n %F %t:%T %s" $f; done
echo "--- written"; for f in /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger /proc/irq/default_smp_affinity /sys/kernel/mm/transparent_hugepage/enabled; do (echo 1 > $f) 2>/dev/null && echo "wrote $f"; done
echo "--- fds"; set -- /proc/$$/fd/*; echo $#
echo "--- keys"; cat /proc/keys 2>/dev/null | wc -c`)
		w.Want(r, 0)
		part := map[string]string{}
		status, rest, _ := strings.Cut(r.Stdout, "--- ")
		for section := range strings.SplitSeq(rest, "--- ") {
			name, text, _ := strings.Cut(section, "\n")
			part[name] = text
		}
		// The box's, the one that PID 1 listens to, and where one id is mapped
		// alone the one that answers for owners.
		filters := 2
		if os.Geteuid() != 0 {
			filters = 3
		}
		for _, want := range []string{
			"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
			"NoNewPrivs:\t1", "Seccomp:\t2", fmt.Sprintf("Seccomp_filters:\t%d", filters),
		} {
			if !strings.Contains(status, want+"\n") {
				t.Errorf("/proc/self/status has no %q:\n%s", want, status)
			}
		}
		device := regexp.MustCompile(` /(full|null|random|tty|urandom|zero) /[^ ]* ro,| - devpts `) // one node, read-only
		mounts := 0
		for line := range strings.Lines(part["mounts"]) {
			mounts++
			options := "," + strings.Fields(line)[5] + ","
			if !strings.Contains(options, ",nosuid,") {
				t.Errorf("a mount with setuid: %s", line)
			}
			if !strings.Contains(options, ",nodev,") && !device.MatchString(line) {
				t.Errorf("a mount with devices: %s", line)
			}
			if strings.Contains(line, " shared:") || strings.Contains(line, " master:") {
				t.Errorf("a mount that propagates: %s", line)
			}
		}
		if mounts < 10 {
			t.Errorf("%d mounts:\n%s", mounts, part["mounts"])
		}
		if links := strings.Count(part["links"], ":"); links != 1 || !strings.Contains(part["links"], "lo:") {
			t.Errorf("network links:\n%s", part["links"])
		}
		if part["init"] != "" {
			t.Errorf("of PID 1 can be read:\n%s", part["init"])
		}
		if part["written"] != "" {
			t.Errorf("could be written:\n%s", part["written"])
		}
		masked := 0
		for line := range strings.Lines(part["masked"]) {
			masked++
			if !strings.Contains(line, "character special file 1:3 0") && !strings.Contains(line, " directory ") {
				t.Errorf("not masked by the null device or an empty directory: %s", line)
			}
		}
		if masked < 3 {
			t.Errorf("masked:\n%s", part["masked"])
		}
		if got := strings.TrimSpace(part["keys"]); got != "0" {
			t.Errorf("/proc/keys shows %s bytes", got)
		}
		if got := strings.TrimSpace(part["fds"]); got != "4" { // the directory itself is open meanwhile
			t.Errorf("%s descriptors, want 0, 1, 2 and that of their list", got)
		}
	})
}

// TestNobodyTracesPID1: the debug capability is for what the box started itself.
func TestNobodyTracesPID1(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--", "python3", "-c", `
import ctypes, os, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    r = getattr(libc, name)(*args)
    print(name, "worked" if r >= 0 else errno.errorcode[ctypes.get_errno()])
buf = ctypes.create_string_buffer(8)
class iovec(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
local, remote = iovec(ctypes.addressof(buf), 8), iovec(0x400000, 8)
call("ptrace", 16, 1, 0, 0)
call("ptrace", 0x4206, 1, 0, 0)
call("process_vm_readv", 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
call("process_vm_writev", 1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
call("process_vm_readv", os.getpid(), ctypes.byref(local), 1, ctypes.byref(iovec(ctypes.addressof(buf), 8)), 1, 0)
`)
	if want := "ptrace EPERM\nptrace EPERM\nprocess_vm_readv EPERM\nprocess_vm_writev EPERM\nprocess_vm_readv worked\n"; r.Stdout != want {
		t.Errorf("output %q, want %q\n%v", r.Stdout, want, r)
	}
}

// under starts hutch where the kernel gives no second listener.
const under = `
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class filter(ctypes.Structure): _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]
class program(ctypes.Structure): _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(filter))]
allow = filter(6, 0, 0, 0x7fff0000)
libc.prctl(38, 1, 0, 0, 0)
nr = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
fd = libc.syscall(nr, 1, 8, ctypes.byref(program(1, ctypes.pointer(allow))))
assert fd >= 0, ctypes.get_errno()
os.set_inheritable(fd, True)
os.execv(sys.argv[1], sys.argv[1:])
`

// TestRefusalsWithoutAListener: hutch under a filter with a listener can have
// none of its own. The calls are refused as ever, nothing is counted, and that is
// said.
func TestRefusalsWithoutAListener(t *testing.T) {
	w := lab.New(t)
	for _, c := range []struct {
		args   []string
		stdout string
	}{
		{[]string{"--", "sh", "-c", "mkdir m; LC_ALL=C unshare -U true 2>&1; ls"}, "unshare: unshare failed: Operation not permitted\nm\n"},
		{[]string{"--no-subprocess", "--no-debug", "--", "sh", "-c", "exec /bin/ls"}, ""},
		{[]string{"--no-debug", "--", "sh", "-c", "strace -o /dev/null true || echo refused"}, "refused\n"},
	} {
		cmd := exec.Command("/usr/bin/python3", append([]string{"-c", under, lab.Hutch(t), "run", "--json"}, c.args...)...)
		cmd.Env, cmd.Dir = w.Environ(), w.Dir
		out, err := cmd.Output()
		o := lab.ParseOutcome(t, lab.Result{Args: cmd.Args, Stdout: string(out), Code: cmd.ProcessState.ExitCode()})
		if o.Stdout != c.stdout || len(o.Violations) != 0 {
			t.Errorf("%q: output %q, want %q; violations %+v; %v", c.args, o.Stdout, c.stdout, o.Violations, err)
		}
		if notes := strings.Join(o.Notes, "\n"); !strings.Contains(notes, "were not counted") {
			t.Errorf("notes: %q", notes)
		}
	}
}
