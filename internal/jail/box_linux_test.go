package jail_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/jail/filter"
	"hutch/internal/plan"
	"hutch/internal/policy"
	"hutch/internal/view"
)

// patience is how long a box may take for anything.
const patience = 30 * time.Second

// resident is a box that serves many commands, and what it has reported.
type resident struct {
	*jail.Box
	t         testing.TB
	workspace string
	dir       string // in which its commands start
	ns        *jail.Namespaces
	reports   []jail.Report
	gone      bool
}

// description is a box as root makes it with all its rights, or as an ordinary
// user does; its workspace is an overlay over base/ws.
func description(t testing.TB, base string) *policy.Box {
	t.Helper()
	for _, d := range []string{"ws", "upper", "work", "home"} {
		if err := os.MkdirAll(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	uid, gid := os.Geteuid(), os.Getegid()
	workspace := filepath.Join(base, "ws")
	box := &policy.Box{
		User: view.User{UID: uint32(uid), GID: uint32(gid)}, UIDMap: fmt.Sprintf("%d %d 1", uid, uid), GIDMap: fmt.Sprintf("%d %d 1", gid, gid),
		Workspace: workspace, Home: filepath.Join(base, "home"), Hostname: "localhost", Filter: filter.Default(),
		Policy: policy.InForce{Subprocess: true, FSRead: true, FSWrite: true, Debug: true},
		Commands: func(renames, debug, subprocess bool) (told, untold []byte) {
			c := filter.Command{Renames: renames, NoDebug: !debug, NoSubprocess: !subprocess}
			return c.Program(), filter.Command{NoDebug: !debug, NoSubprocess: !subprocess, Untold: true}.Program()
		},
		Mount: policy.Mount{Lower: workspace, Upper: filepath.Join(base, "upper"), Work: filepath.Join(base, "work")},
	}
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	if abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version); errno == 0 {
		box.LandlockABI = int(abi)
	}
	if uid == 0 {
		var err error
		box.Privileged, box.Trusted = true, true
		if box.UIDMap, err = policy.IDMap("/proc/self/uid_map"); err != nil {
			t.Fatal(err)
		}
		if box.GIDMap, err = policy.IDMap("/proc/self/gid_map"); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/usr", "/etc"} {
		box.Show = append(box.Show, view.Show{Path: path, Mode: view.ReadOnly})
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		if target, err := os.Readlink("/" + name); err == nil {
			box.Links = append(box.Links, view.Symlink{Path: "/" + name, Target: target})
		} else if _, err := os.Stat("/" + name); err == nil {
			box.Show = append(box.Show, view.Show{Path: "/" + name, Mode: view.ReadOnly})
		}
	}
	return box
}

// temporary is a directory that can be removed although the kernel keeps some of
// mode 0 in an overlay's.
func temporary(t testing.TB) string {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		filepath.WalkDir(base, func(path string, d os.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o700)
			}
			return nil
		})
	})
	return base
}

// serving makes the last step of a plan serve many commands.
func serving(t testing.TB, p *plan.Plan) *plan.Plan {
	t.Helper()
	last := &p.Ops[len(p.Ops)-1]
	if last.Code != plan.Serve {
		t.Fatalf("the plan ends with %v", last.Code)
	}
	last.A = 0
	return p
}

// live starts the box and waits until it serves.
func live(t testing.TB, d *policy.Box) *resident {
	t.Helper()
	rest, err := d.View()
	if err != nil {
		t.Fatal(err)
	}
	b, err := jail.StartResident(d.Base(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &resident{Box: b, t: t, workspace: d.Workspace, dir: d.Workspace}
	t.Cleanup(r.end)
	if r.ns, err = b.Namespaces(); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(serving(t, rest)); err != nil {
		t.Fatal(err)
	}
	r.await("ready", func(r jail.Report) bool { return r.Kind == jail.Ready })
	return r
}

func (r *resident) end() {
	if r.Box != nil {
		r.Kill()
		_, _ = r.Reap()
		r.Box = nil
		if r.ns != nil {
			r.ns.Close()
		}
	}
}

// await returns the first report that is wanted, of those that came and come.
func (r *resident) await(what string, wanted func(jail.Report) bool) jail.Report {
	r.t.Helper()
	seen := 0
	for deadline := time.Now().Add(patience); ; {
		for ; seen < len(r.reports); seen++ {
			if wanted(r.reports[seen]) {
				return r.reports[seen]
			}
		}
		report, ok, err := r.Receive()
		switch {
		case err != nil || time.Now().After(deadline):
			r.gone = err != nil
			r.t.Fatalf("waited for %s: %v; reports: %+v", what, err, r.reports[max(0, len(r.reports)-5):])
		case !ok:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.Control), Events: unix.POLLIN}}, 1000)
			continue
		case report.Kind == jail.Failed:
			r.t.Fatalf("waited for %s: %+v", what, report)
		case report.Kind == jail.FD && report.A != plan.TagTerminal:
			unix.Close(report.FD)
		}
		r.reports = append(r.reports, report)
	}
}

// started waits until the box has said whether a command has started.
func (r *resident) started(id uint32) jail.Report {
	r.t.Helper()
	return r.await(fmt.Sprintf("the start of %d", id), func(r jail.Report) bool {
		return r.Exec == id && (r.Kind == jail.Started || r.Kind == jail.NotStarted)
	})
}

func (r *resident) exited(id uint32) syscall.WaitStatus {
	r.t.Helper()
	return syscall.WaitStatus(r.await(fmt.Sprintf("the end of %d", id), func(r jail.Report) bool { return r.Exec == id && r.Kind == jail.Exited }).A)
}

// exec starts a command whose output goes to a file, or nowhere.
func (r *resident) exec(id uint32, out *os.File, argv ...string) {
	r.t.Helper()
	c := &jail.Command{ID: id, Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, Dir: r.dir, Search: "/usr/bin:/bin", Stdin: -1}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer null.Close()
	c.Stdout, c.Stderr = int(null.Fd()), int(null.Fd())
	if out != nil {
		c.Stdout, c.Stderr = int(out.Fd()), int(out.Fd())
	}
	if err := r.Exec(c); err != nil {
		r.t.Fatal(err)
	}
}

// output runs a command to its end and returns what it said.
func (r *resident) output(id uint32, argv ...string) (string, syscall.WaitStatus) {
	r.t.Helper()
	out, err := os.CreateTemp(r.t.TempDir(), "out")
	if err != nil {
		r.t.Fatal(err)
	}
	defer out.Close()
	r.exec(id, out, argv...)
	if s := r.started(id); s.Kind != jail.Started {
		r.t.Fatalf("%q: %v", argv, s.Err)
	}
	status := r.exited(id)
	text, err := os.ReadFile(out.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text), status
}

// says fails unless a command ends with 0 and says what is wanted.
func (r *resident) says(id uint32, want string, argv ...string) {
	r.t.Helper()
	if got, status := r.output(id, argv...); got != want || status != 0 {
		r.t.Fatalf("%q says %q, want %q; status %#x", argv, got, want, int(status))
	}
}

func TestCommandsOfABoxEndEachInItsWay(t *testing.T) {
	r := live(t, description(t, temporary(t)))
	r.exec(7, nil, "sh", "-c", "exit 3")
	r.exec(8, nil, "sleep", "300")
	r.exec(9, nil, "sleep", "300")
	r.exec(10, nil, "sh", "-c", "kill -SEGV $$")
	for id := uint32(7); id <= 10; id++ {
		if s := r.started(id); s.Kind != jail.Started {
			t.Fatalf("%d: %+v", id, s)
		}
	}
	if s := r.exited(7); s.ExitStatus() != 3 {
		t.Errorf("exit 3 is %#x", int(s))
	}
	if s := r.exited(10); s.Signal() != syscall.SIGSEGV {
		t.Errorf("SIGSEGV is %#x", int(s))
	}
	r.Signal(9, syscall.SIGUSR1)
	r.Signal(7, syscall.SIGKILL) // has ended: nobody is meant
	if s := r.exited(9); s.Signal() != syscall.SIGUSR1 {
		t.Errorf("SIGUSR1 is %#x", int(s))
	}
	for _, report := range r.reports {
		if report.Exec == 8 && report.Kind == jail.Exited {
			t.Error("another command ended as well")
		}
	}
	r.Signal(8, syscall.SIGTERM)
	if s := r.exited(8); s.Signal() != syscall.SIGTERM {
		t.Errorf("SIGTERM is %#x", int(s))
	}
	r.says(11, "still here\n", "echo", "still here")
	r.Box.End()
	for deadline := time.Now().Add(patience); ; {
		_, ok, err := r.Receive()
		if errors.Is(err, jail.ErrGone) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the box did not end when it was told to")
		}
		if !ok {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.Control), Events: unix.POLLIN}}, 1000)
		}
	}
}

func TestMoreCommandsThanABoxHolds(t *testing.T) {
	const many, most = 300, 256
	r := live(t, description(t, temporary(t)))
	for id := uint32(1); id <= many; id++ {
		r.exec(id, nil, "sleep", "300")
	}
	var started []uint32
	for id := uint32(1); id <= many; id++ {
		switch s := r.started(id); {
		case s.Kind == jail.Started:
			started = append(started, id)
		case s.Err != unix.EAGAIN:
			t.Errorf("%d: %v, want EAGAIN", id, s.Err)
		}
	}
	if len(started) != most {
		t.Fatalf("%d of %d started, want %d", len(started), many, most)
	}
	for _, id := range started {
		r.Signal(id, syscall.SIGTERM)
	}
	for _, id := range started {
		if s := r.exited(id); s.Signal() != syscall.SIGTERM {
			t.Fatalf("%d: %#x", id, int(s))
		}
	}
	r.says(many+1, "there is room\n", "echo", "there is room")
}

func TestAStartThatFailsIsNotTheEnd(t *testing.T) {
	d := description(t, temporary(t))
	if err := os.WriteFile(filepath.Join(d.Workspace, "text"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := live(t, d)
	r.exec(1, nil, "sleep", "300")
	var before unix.Rlimit
	if err := unix.Prlimit(r.Pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	id := uint32(2)
	for _, c := range []struct {
		name string
		argv []string
		want syscall.Errno
	}{
		{"no such program", []string{"no-such-program"}, unix.ENOENT},
		{"no program", []string{"./text"}, unix.EACCES},
		{"an argument too long", []string{"echo", strings.Repeat("x", 1<<20)}, unix.E2BIG},
	} {
		r.exec(id, nil, c.argv...)
		if s := r.started(id); s.Kind != jail.NotStarted || s.Err != c.want {
			t.Errorf("%s: %+v, want %v", c.name, s, c.want)
		}
		id++
	}
	// PID 1 runs out of descriptors at one step of a start after the other.
	refused := map[string]int{}
	for files := uint64(4); files < 20; files++ {
		if err := unix.Prlimit(r.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
		r.exec(id, nil, "true")
		switch s := r.started(id); {
		case s.Kind == jail.Started:
			r.exited(id)
		case s.Err == unix.EMFILE:
			refused[s.Text]++
		default:
			t.Errorf("%d descriptors: %+v", files, s)
		}
		id++
	}
	if refused[""] == 0 || refused["true"] == 0 {
		t.Errorf("refused for want of descriptors: %v", refused)
	}
	if err := unix.Prlimit(r.Pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
		t.Fatal(err)
	}
	r.says(id, "serves\n", "echo", "serves")
	for _, report := range r.reports {
		if report.Exec == 1 && report.Kind == jail.Exited {
			t.Error("a start that failed ended another command")
		}
	}
}

// TestNoProcessToBeHad fills the box's process numbers, where it has its own.
func TestNoProcessToBeHad(t *testing.T) {
	var name unix.Utsname
	var major, minor int
	_ = unix.Uname(&name)
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	d := description(t, temporary(t))
	if d.PidMax = 350; major < 6 || major == 6 && minor < 14 {
		t.Skip("needs process numbers of the box's own: Linux 6.14")
	}
	r := live(t, d)
	r.exec(1, nil, "python3", "-c", `
import os, time
while True:
    try:
        if os.fork() == 0: time.sleep(300)
    except OSError: time.sleep(.01)`)
	id := uint32(2)
	for deadline := time.Now().Add(patience); ; id++ {
		r.exec(id, nil, "true")
		s := r.started(id)
		if s.Kind == jail.NotStarted && s.Err == unix.EAGAIN {
			break
		}
		if s.Kind != jail.Started || time.Now().After(deadline) {
			t.Fatalf("%+v, want EAGAIN at last", s)
		}
		r.exited(id)
	}
	r.Signal(1, syscall.SIGKILL)
	r.exited(1)
	r.says(id+1, "again\n", "echo", "again")
}

// TestBackgroundProcessesKeepWhatTheirCommandGaveThem: a process that outlives
// its command is answered as before, and what is refused to it is the box's.
func TestBackgroundProcessesKeepWhatTheirCommandGaveThem(t *testing.T) {
	d := description(t, temporary(t))
	for _, dir := range []string{"a", "b"} {
		if err := os.MkdirAll(filepath.Join(d.Workspace, dir, "deep"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := live(t, d)
	const background = `
import ctypes, errno, os, time
if os.fork(): os._exit(0)
os.setsid()
while not os.path.exists("go"): time.sleep(.01)
os.rename("a", "c") # only the mover can, where the box is an ordinary user's
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mount(b"a", b"b", b"tmpfs", 0, 0) == -1 and ctypes.get_errno() == errno.EPERM
open("done", "w").close()
time.sleep(300)`
	r.exec(1, nil, "python3", "-c", background)
	if s := r.exited(1); s != 0 {
		t.Fatalf("%#x", int(s))
	}
	// Many that come and go take none of its place.
	for id := uint32(2); id < 40; id++ {
		r.exec(id, nil, "true")
		r.exited(id)
	}
	r.says(40, "", "touch", "go")
	r.says(41, "c/deep\n", "sh", "-c", "while ! [ -e done ]; do sleep .01; done; ls -d c/*")
	report := r.await("what was refused", func(r jail.Report) bool { return r.Kind == jail.Denied })
	if report.Exec != 0 || report.A != unix.SYS_MOUNT || report.C != 1 {
		t.Errorf("%+v", report)
	}
	r.says(42, "1\n", "sh", "-c", "ps -e 2>/dev/null | grep -c python3 || cat /proc/[0-9]*/comm | grep -c python3")
}

func TestEachCommandHasItsTerminal(t *testing.T) {
	r := live(t, description(t, temporary(t)))
	master := func(id uint32) int {
		return r.await("a terminal", func(r jail.Report) bool { return r.Exec == id && r.Kind == jail.FD }).FD
	}
	for id, argv := range map[uint32][]string{1: {"sh", "-c", "tty; stty size"}, 2: {"cat"}} {
		c := &jail.Command{ID: id, Argv: argv, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Search: "/usr/bin:/bin", Terminal: true, Size: [4]uint16{11, 22}}
		if err := r.Exec(c); err != nil {
			t.Fatal(err)
		}
	}
	first, second := os.NewFile(uintptr(master(1)), "first"), os.NewFile(uintptr(master(2)), "second")
	defer first.Close()
	defer second.Close()
	text, err := io.ReadAll(first)
	if !errors.Is(err, unix.EIO) || !bytes.Contains(text, []byte("/dev/pts/")) || !bytes.Contains(text, []byte("11 22\r\n")) {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := second.WriteString("ping\n"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	for got := ""; !strings.Contains(got, "ping\r\nping\r\n"); {
		n, err := second.Read(buf)
		if err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		got += string(buf[:n])
	}
	r.Signal(2, syscall.SIGTERM)
	if s := r.exited(2); s.Signal() != syscall.SIGTERM {
		t.Errorf("%#x", int(s))
	}
	if _, err := io.ReadAll(second); !errors.Is(err, unix.EIO) {
		t.Errorf("the terminal of a command that ended: %v, want EIO", err)
	}
}

// asked is set in the process that TestBoxesDieWithTheirProcess starts and kills.
const asked = "HUTCH_TEST_SUPERVISOR"

func TestBoxesDieWithTheirProcess(t *testing.T) {
	if base := os.Getenv(asked); base != "" {
		r := live(t, description(t, base))
		r.exec(1, nil, "sh", "-c", "setsid sleep 300 & exec sleep 300")
		r.started(1)
		fmt.Printf("pid %d\n", r.Pid)
		time.Sleep(time.Hour)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	supervisor, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], "-test.run=^TestBoxesDieWithTheirProcess$"}, &os.ProcAttr{
		Env: slices.Concat(os.Environ(), []string{asked + "=" + temporary(t)}), Files: []*os.File{nil, writer, os.Stderr},
	})
	writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscanf(reader, "pid %d\n", &pid)
	var pidfd int
	if err == nil {
		pidfd, err = unix.PidfdOpen(pid, 0)
	}
	_ = supervisor.Kill()
	_, _ = supervisor.Wait()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	if n != 1 {
		t.Errorf("the box lives on without its supervisor: %v", err)
	}
}

// TestBoxWithoutSubprocesses: each command has a nonce of its own for its one
// execve, beside others that run.
func TestBoxWithoutSubprocesses(t *testing.T) {
	d := description(t, temporary(t))
	d.Policy.Subprocess = false
	r := live(t, d)
	r.exec(1, nil, "sleep", "300")
	r.started(1)
	for id := uint32(2); id < 6; id++ {
		r.says(id, "BlockingIOError False\n", "python3", "-c", `
import os, threading
try: os.fork(); print("forked")
except OSError as e: print(type(e).__name__ if e.errno == 11 else "BlockingIOError", end=" ")
try: os.execv("/bin/true", ["true"])
except OSError: pass
t = threading.Thread(target=lambda: print(threading.active_count() == 1)); t.start(); t.join()`)
		if report := r.await("what was refused", func(r jail.Report) bool { return r.Kind == jail.Denied && r.Exec == id }); report.C == 0 {
			t.Errorf("%+v", report)
		}
	}
	r.Signal(1, syscall.SIGKILL)
	r.exited(1)
}

// TestNobodyInABoxHoldsUpAStart: a command can be stopped by another process of
// the box before it has become its program, while what made it waits for that.
func TestNobodyInABoxHoldsUpAStart(t *testing.T) {
	r := live(t, description(t, temporary(t)))
	r.exec(1, nil, "python3", "-c", `
import os, signal
while True:
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) not in (1, os.getpid()):
            try: os.kill(int(pid), signal.SIGSTOP)
            except OSError: pass`)
	r.started(1)
	for id := uint32(2); id < 60; id++ {
		r.exec(id, nil, "sleep", "300")
		if s := r.started(id); s.Kind != jail.Started {
			t.Fatalf("%+v", s)
		}
	}
	r.Signal(1, syscall.SIGKILL)
	r.exited(1)
}
