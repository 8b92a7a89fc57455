package supervise_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/jail/filter"
	"hutch/internal/plan"
	"hutch/internal/policy"
	"hutch/internal/supervise"
	"hutch/internal/view"
)

// patience is how long anything may take on a machine that is busy.
const patience = 30 * time.Second

// liveBox is a resident box over an empty workspace.
type liveBox struct {
	*supervise.Live
	t         testing.TB
	workspace string
	pid1      int
}

// newBox makes one, as root does with all its rights or as an ordinary user does.
func newBox(t testing.TB, group *jail.Cgroup, o supervise.FollowOptions) *liveBox {
	t.Helper()
	base := temporary(t)
	for _, d := range []string{"ws", "upper", "work", "home"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	uid, gid := os.Geteuid(), os.Getegid()
	workspace := filepath.Join(base, "ws")
	d := &policy.Box{
		User: view.User{UID: uint32(uid), GID: uint32(gid)}, UIDMap: fmt.Sprintf("%d %d 1", uid, uid), GIDMap: fmt.Sprintf("%d %d 1", gid, gid),
		Workspace: workspace, Home: filepath.Join(base, "home"), Hostname: "localhost", Filter: filter.Default(),
		Policy: policy.InForce{Subprocess: true, FSRead: true, FSWrite: true, Debug: true},
		Commands: func(renames, debug, subprocess bool) (told, untold []byte) {
			c := filter.Command{Renames: renames, NoDebug: !debug, NoSubprocess: !subprocess}
			return c.Program(), filter.Command{NoDebug: !debug, NoSubprocess: !subprocess, Untold: true}.Program()
		},
		Processes: 400,
		Mount:     policy.Mount{Lower: workspace, Upper: filepath.Join(base, "upper"), Work: filepath.Join(base, "work")},
	}
	if uid == 0 {
		var err error
		d.Privileged, d.Trusted = true, true
		if d.UIDMap, err = policy.IDMap("/proc/self/uid_map"); err == nil {
			d.GIDMap, err = policy.IDMap("/proc/self/gid_map")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range group.Procs() {
		d.CgroupFDs = append(d.CgroupFDs, jail.CgroupFD(i))
	}
	for _, path := range []string{"/usr", "/etc"} {
		d.Show = append(d.Show, view.Show{Path: path, Mode: view.ReadOnly})
	}
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		if target, err := os.Readlink("/" + name); err == nil {
			d.Links = append(d.Links, view.Symlink{Path: "/" + name, Target: target})
		} else if _, err := os.Stat("/" + name); err == nil {
			d.Show = append(d.Show, view.Show{Path: "/" + name, Mode: view.ReadOnly})
		}
	}
	rest, err := d.View()
	if err != nil {
		t.Fatal(err)
	}
	last := &rest.Ops[len(rest.Ops)-1]
	if last.Code != plan.Serve {
		t.Fatalf("the plan ends with %v", last.Code)
	}
	last.A = 0
	b, err := jail.StartResident(d.Base(), group.Procs())
	if err != nil {
		t.Fatal(err)
	}
	l, err := supervise.Follow(b, group, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Kill(); l.Reap() })
	if err := b.Send(rest); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return &liveBox{l, t, workspace, b.Pid}
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

// exec is one command of a test.
type exec struct {
	*supervise.Running
	box      *liveBox
	out, err *supervise.Capture
}

func (b *liveBox) start(argv ...string) *exec {
	b.t.Helper()
	return b.startWith(supervise.LiveCommand{}, argv...)
}

func (b *liveBox) sh(script string) *exec {
	b.t.Helper()
	return b.start("/bin/sh", "-c", script)
}

func (b *liveBox) startWith(c supervise.LiveCommand, argv ...string) *exec {
	b.t.Helper()
	file := func() (*os.File, error) { return os.CreateTemp(b.t.TempDir(), "output") }
	e := &exec{box: b}
	if c.Stdout == nil {
		c.Stdout = supervise.NewSmallCapture(16<<10, file, nil)
	}
	c.Stderr = supervise.NewSmallCapture(16<<10, file, nil)
	e.out, e.err = c.Stdout, c.Stderr
	c.Exec.Argv, c.Exec.Dir = argv, b.workspace
	c.Exec.Env, c.Exec.Search = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "TERM=xterm"}, "/usr/bin:/bin"
	var err error
	if e.Running, err = b.Start(c); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { e.out.Close(); e.err.Close() })
	return e
}

// end waits for the command's end.
func (e *exec) end() supervise.Result {
	e.box.t.Helper()
	select {
	case <-e.Done():
	case <-time.After(patience):
		all := e.box.names()
		e.box.t.Fatalf("command %d did not end; %d processes: %q", e.ID(), len(all), all[:min(len(all), 10)])
	}
	return e.Result()
}

func text(c *supervise.Capture) string {
	head, err := c.Head(1 << 30)
	if err != nil {
		return err.Error()
	}
	return string(head)
}

// exits expects the command to exit by itself, and returns what it said.
func (e *exec) exits(code int) string {
	e.box.t.Helper()
	r := e.end()
	if r.End != supervise.ByItself || !r.Known || !r.Wait.Exited() || r.Wait.ExitStatus() != code {
		e.box.t.Fatalf("exit %d was due: %+v; %q %q", code, r, text(e.out), text(e.err))
	}
	return text(e.out)
}

// says waits until the command has written something.
func (e *exec) says(what string) {
	e.box.t.Helper()
	within(e.box.t, fmt.Sprintf("%q from command %d", what, e.ID()), func() bool { return strings.Contains(text(e.out), what) })
}

func within(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// names lists the processes of the box, one word each.
func (b *liveBox) names() []string {
	var names []string
	for _, p := range b.Processes() {
		names = append(names, p.Name)
	}
	return names
}

func TestManyCommandsAtOnce(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	var all []*exec
	for i := range 20 {
		all = append(all, b.sh(fmt.Sprintf("echo out %d; echo err %d >&2; sleep 0.1; exit %d", i, i, i)))
	}
	for i, e := range all {
		if out := e.exits(i); out != fmt.Sprintf("out %d\n", i) || text(e.err) != fmt.Sprintf("err %d\n", i) {
			t.Errorf("command %d: %q, %q", i, out, text(e.err))
		}
		if r := e.Result(); r.Duration < 100*time.Millisecond || r.Duration > patience || r.CPUSource == "none" {
			t.Errorf("%+v", r)
		}
	}
	if !b.Quiet() {
		t.Errorf("not quiet: %+v", b.Processes())
	}
	if out := b.sh("kill -TERM $$").end(); !out.Wait.Signaled() || out.Wait.Signal() != unix.SIGTERM {
		t.Errorf("%+v", out)
	}
}

func TestWhatCannotStartEndsNothing(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	other := b.sh("read x")
	r := b.start("no-such-program").end()
	if r.End != supervise.NeverStarted || r.StartError != unix.ENOENT || r.StartWhat != "no-such-program" {
		t.Errorf("%+v", r)
	}
	other.exits(1)
	b.start("true").exits(0)
}

func TestArgumentsOfAnySizeArrive(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	long := strings.Repeat("x", 100_000)
	many := append([]string{"/bin/sh", "-c", "echo $#", "sh"}, slices.Repeat([]string{"y"}, 5000)...)
	for range 2 {
		if out := b.start("/bin/sh", "-c", "echo ${#1}", "sh", long).exits(0); out != "100000\n" {
			t.Errorf("%q", out)
		}
		if out := b.start(many...).exits(0); out != "5000\n" {
			t.Errorf("%q", out)
		}
		if out := b.start("/bin/sh", "-c", "echo $# \"$1\"", "sh", "", "z").exits(0); out != "2 \n" {
			t.Errorf("%q", out)
		}
	}
}

func TestInputArrives(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	for _, size := range []int{0, 5, 4096, 4097, 3 << 20} {
		text := strings.Repeat("x", size)
		c := supervise.LiveCommand{Stdin: &supervise.Input{Reader: strings.NewReader(text)}}
		if out := b.startWith(c, "wc", "-c").exits(0); strings.TrimSpace(out) != fmt.Sprint(size) {
			t.Errorf("%d bytes: %q", size, out)
		}
	}
	r, w := io.Pipe()
	defer w.Close()
	e := b.startWith(supervise.LiveCommand{Stdin: &supervise.Input{Reader: r}}, "head", "-n1")
	fmt.Fprintln(w, "line")
	if out := e.exits(0); out != "line\n" {
		t.Errorf("%q", out)
	}
	// Nobody reads, and the writer is held up: the end must come all the same.
	endless := supervise.LiveCommand{Stdin: &supervise.Input{Reader: zeros{}}}
	b.startWith(endless, "sleep", "0.2").exits(0)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

type stuck struct{ release chan struct{} }

func (s stuck) Write(p []byte) (int, error) { <-s.release; return len(p), nil }

// A reader that does not read stops neither the command nor its deadline, and a
// large output is whole in its file.
func TestOutputOfAnySizeIsKept(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	reader := stuck{make(chan struct{})}
	defer close(reader.release)
	files := 0
	out := supervise.NewSmallCapture(16<<10, func() (*os.File, error) { files++; return os.CreateTemp(t.TempDir(), "out") }, reader)
	e := b.startWith(supervise.LiveCommand{Stdout: out}, "head", "-c", "20000000", "/dev/zero")
	e.exits(0)
	if out.Size() != 20000000 || files != 1 || out.Lost() != nil {
		t.Errorf("%d bytes in %d files, %v", out.Size(), files, out.Lost())
	}
	none := supervise.NewSmallCapture(16<<10, func() (*os.File, error) { t.Error("a file for 5 bytes"); return nil, os.ErrInvalid }, nil)
	if got := b.startWith(supervise.LiveCommand{Stdout: none}, "echo", "12 4").exits(0); got != "12 4\n" {
		t.Errorf("%q", got)
	}
	held := supervise.NewSmallCapture(16<<10, func() (*os.File, error) { return os.CreateTemp(t.TempDir(), "out") }, reader)
	e = b.startWith(supervise.LiveCommand{Stdout: held, Limits: supervise.Limits{Timeout: 200 * time.Millisecond}}, "yes")
	if r := e.end(); r.End != supervise.AtDeadline || r.Duration < 190*time.Millisecond {
		t.Errorf("%+v", r)
	}
	e = b.startWith(supervise.LiveCommand{Limits: supervise.Limits{Output: 100_000}}, "yes")
	if r := e.end(); r.End != supervise.TooMuchOutput || e.out.Size() != 100_000 {
		t.Errorf("%+v, %d bytes", r, e.out.Size())
	}
	within(t, "a quiet box", b.Quiet)
}

func TestOutputCanBeFollowed(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	e := b.sh("for i in 1 2 3; do echo $i; sleep 0.05; done")
	all, err := io.ReadAll(e.out.Reader(2, true))
	if string(all) != "2\n3\n" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	e.exits(0)
}

// Killing a command takes all it started with it, whatever that did to get away;
// what an earlier command left running stays, and so does what runs beside it.
func TestAForkBombDiesAtItsDeadline(t *testing.T) {
	// RLIMIT_NPROC does not bind root.
	var group *jail.Cgroup
	if os.Geteuid() == 0 {
		group, _ = jail.NewCgroup(fmt.Sprintf("livetest-%d", os.Getpid()), jail.Limits{Pids: 400})
		t.Cleanup(group.Remove)
	}
	b := newBox(t, group, supervise.FollowOptions{}) // and what does bind others, newBox sets
	b.sh("setsid sleep 3001 & sleep 3002 >/dev/null 2>&1 &").exits(0)
	bombs := map[string]string{
		"pipes":    `bomb() { bomb | bomb & }; bomb; sleep 60`,
		"sessions": `export B='setsid sh -c "$B" & setsid sh -c "$B" & sleep 60'; sh -c "$B"`,
		"orphans":  `for i in 1 2 3 4 5 6 7 8 9; do (setsid setsid sleep 60 &); (nohup sleep 60 >/dev/null 2>&1 &) ; done; trap '' TERM INT HUP; while :; do :; done`,
		"chain": `cat >c.py <<'X'
import os, time
end = time.time() + 60
while time.time() < end:
    if os.fork(): os._exit(0)
    os.setsid()
X
python3 c.py; sleep 60`,
		"stopped": `sleep 60 & kill -STOP $!; (sleep 60 & kill -STOP $!); kill -STOP $$`,
	}
	for name, script := range bombs {
		t.Run(name, func(t *testing.T) {
			e := b.startWith(supervise.LiveCommand{Limits: supervise.Limits{Timeout: 300 * time.Millisecond, Tasks: 400}}, "/bin/sh", "-c", script)
			if r := e.end(); r.End != supervise.AtDeadline {
				t.Errorf("%+v, %q", r, text(e.err))
			}
			time.Sleep(20 * time.Millisecond)
			if names := b.names(); !slices.Equal(names, []string{"sleep", "sleep"}) {
				t.Errorf("left: %q", names)
			}
		})
	}
	b.start("true").exits(0)
}

func TestWhatRunsBesideStays(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	beside := b.sh("sleep 2000 & sh -c 'sleep 2001; :' & echo ready; read x </dev/null; wait")
	beside.says("ready")
	other := b.sh("for i in 1 2 3 4 5; do sleep 1000 & done; sh -c 'sleep 1001; :' & echo ready; wait")
	other.says("ready")
	within(t, "all processes", func() bool { return len(b.Processes()) == 4+8 })
	owners := map[uint32]int{}
	for _, p := range b.Processes() {
		owners[p.Exec]++
		if p.PID <= 1 || p.Host <= 1 || p.State == 0 || p.RSS < 0 || time.Since(p.Started) > patience || time.Since(p.Started) < -time.Second {
			t.Errorf("%+v", p)
		}
		if p.Name == "sleep" && (len(p.Argv) != 2 || p.Argv[0] != "sleep") {
			t.Errorf("%+v", p)
		}
	}
	if owners[beside.ID()] != 4 || owners[other.ID()] != 8 {
		t.Errorf("%v: %+v", owners, b.Processes())
	}
	other.Kill(supervise.Interrupted)
	if r := other.end(); r.End != supervise.Interrupted || !r.Wait.Signaled() {
		t.Errorf("%+v", r)
	}
	if all := b.Processes(); len(all) != 4 || all[0].Exec != beside.ID() {
		t.Errorf("left: %+v", all)
	}
	b.KillAll()
	if r := beside.end(); r.End != supervise.Interrupted {
		t.Errorf("%+v", r)
	}
	within(t, "a quiet box", b.Quiet)
	b.start("true").exits(0)
}

// A server that a command left running neither holds up its end nor dies of its
// own messages.
func TestAServerOutlivesItsCommand(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	e := b.sh("(while :; do echo noise; sleep 0.01; done) & echo started")
	if out := e.exits(0); !strings.Contains(out, "started\n") || e.Result().Duration > 5*time.Second {
		t.Errorf("%q, %v", out, e.Result().Duration)
	}
	flood := b.sh("yes & sleep 0.1")
	flood.exits(0)
	size := flood.out.Size()
	time.Sleep(200 * time.Millisecond)
	if flood.out.Size() != size {
		t.Error("an outcome grew after the end")
	}
	if b.Quiet() {
		t.Error("quiet, with servers")
	}
	all := b.Processes()
	yes := slices.IndexFunc(all, func(p supervise.Process) bool { return p.Name == "yes" })
	if yes < 0 || slices.ContainsFunc(all, func(p supervise.Process) bool { return p.Exec != 0 }) {
		t.Fatalf("%+v", all)
	}
	if err := b.SignalProcess(all[yes].PID, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	within(t, "the end of yes", func() bool { return !slices.Contains(b.names(), "yes") })
	if err := b.SignalProcess(all[yes].PID, unix.SIGKILL); !errors.Is(err, supervise.ErrNoProcess) {
		t.Error(err)
	}
	b.KillAll()
	if !b.Quiet() {
		t.Errorf("left: %+v", b.Processes())
	}
}

func TestSignalsReachOneCommand(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	script := `trap 'echo got; exit 7' USR1; echo ready; while :; do sleep 0.01; done`
	one, two := b.sh(script), b.sh(script)
	one.says("ready")
	two.says("ready")
	one.Signal(unix.SIGUSR1)
	if out := one.exits(7); !strings.Contains(out, "got") {
		t.Errorf("%q", out)
	}
	two.Interrupt(unix.SIGUSR1)
	if r := two.end(); r.End != supervise.Interrupted || r.Signal != unix.SIGUSR1 || r.Wait.ExitStatus() != 7 {
		t.Errorf("%+v", r)
	}
	deaf := b.sh(`trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	deaf.says("ready")
	deaf.Interrupt(unix.SIGTERM)
	if r := deaf.end(); r.End != supervise.Interrupted || !r.Wait.Signaled() || r.Duration < 1900*time.Millisecond {
		t.Errorf("%+v", r)
	}
}

func TestATerminalThatResizes(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	r, w := io.Pipe()
	defer w.Close()
	terminal := supervise.NewTerminalOf(33, 77)
	e := b.startWith(supervise.LiveCommand{Terminal: terminal, Stdin: &supervise.Input{Reader: r}}, "/bin/sh", "-c", "stty size; read x; stty size; seq 5000; test -t 1; exit $?")
	e.says("33 77")
	e.Resize(12, 34)
	fmt.Fprintln(w, "on")
	out := e.exits(0)
	if !strings.Contains(out, "12 34") || !strings.Contains(out, "5000\r\n") {
		t.Errorf("%q", out[max(0, len(out)-200):])
	}
}

func TestViolationsAreTheCommands(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	refused := `import ctypes
for i in range(5): ctypes.CDLL(None).unshare(0x10000000)`
	quiet := b.sh("sleep 0.5")
	guilty := b.start("python3", "-c", refused)
	guilty.exits(0)
	quiet.exits(0)
	again := b.start("python3", "-c", refused)
	again.exits(0)
	for _, e := range []*exec{guilty, again} {
		if v := e.Result().Violations; len(v) != 1 || v[0].Count != 5 || v[0].Call != unix.SYS_UNSHARE {
			t.Errorf("%+v", v)
		}
	}
	if v := quiet.Result().Violations; len(v) != 0 {
		t.Errorf("%+v", v)
	}
}

// A box that dies ends what runs in it, and nothing of it counts as success.
func TestADeadBoxIsNoSuccess(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	running := []*exec{b.sh("sleep 60"), b.sh("echo said; sleep 60")}
	running[1].says("said")
	if err := unix.Kill(b.pid1, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, e := range running {
		if r := e.end(); r.End != supervise.BoxFailed || r.Known || r.Failure == nil {
			t.Errorf("%+v", r)
		}
	}
	if text(running[1].out) != "said\n" {
		t.Errorf("%q", text(running[1].out))
	}
	<-b.Gone()
	if err := b.Reap(); err != nil {
		t.Error(err)
	}
	if _, err := b.Start(supervise.LiveCommand{Exec: jail.Command{Argv: []string{"true"}}}); !errors.Is(err, jail.ErrGone) {
		t.Error(err)
	}
	if b.Processes() != nil || !b.Quiet() {
		t.Error("something runs in a box that is gone")
	}
}

func TestAFrozenBoxStandsStill(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{})
	e := b.sh(`sleep 3000 & p=$!; until grep -q sleep /proc/$p/comm; do :; done; kill -STOP $p; until grep -q '^State:.T' /proc/$p/status; do :; done; echo ready
	(while :; do echo x; done) >>grows & (while :; do echo x; done) >>grows &
	python3 -c "
import threading, os
def spin():
    while True: os.write(1, b'y')
for i in range(3): threading.Thread(target=spin).start()" >>grows & wait`)
	e.says("ready")
	upper := filepath.Join(filepath.Dir(b.workspace), "upper", "grows")
	size := func() int64 {
		st, err := os.Stat(upper)
		if err != nil {
			return 0
		}
		return st.Size()
	}
	within(t, "writers", func() bool { return size() > 0 && len(b.Processes()) >= 5 })
	for range 5 {
		thaw, err := b.Freeze()
		if err != nil {
			t.Fatal(err)
		}
		before := size()
		time.Sleep(50 * time.Millisecond)
		if after := size(); after != before {
			t.Errorf("a frozen box wrote: %d, %d", before, after)
		}
		blocked := make(chan *exec)
		go func() { blocked <- b.start("true") }()
		select {
		case <-blocked:
			t.Error("a command was started in a frozen box")
		case <-time.After(20 * time.Millisecond):
		}
		thaw()
		(<-blocked).exits(0)
		within(t, "writers that go on", func() bool { return size() > before })
	}
	stopped := 0
	for _, p := range b.Processes() {
		if p.State == 'T' {
			stopped++
			if p.Name != "sleep" {
				t.Errorf("still stopped: %+v", p)
			}
		}
	}
	if stopped != 1 {
		t.Errorf("%d stopped, and one was before", stopped)
	}
	// A deadline passes in a frozen box as in any other.
	limited := b.startWith(supervise.LiveCommand{Limits: supervise.Limits{Timeout: 100 * time.Millisecond}}, "sleep", "60")
	thaw, err := b.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	if r := limited.end(); r.End != supervise.AtDeadline {
		t.Errorf("%+v", r)
	}
	thaw()
	e.Kill(supervise.Interrupted)
	e.end()
}

// Who waits in vfork(2) cannot be stopped: programs start others so, from any of
// their threads. It is told from a wait for the disk at once, not after a while.
func TestFreezeAmidVfork(t *testing.T) {
	defer supervise.NeverGuess()()
	const spawn = "os.posix_spawn('/usr/bin/true', ['true'], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, 'gate', os.O_RDONLY, 0)])"
	for name, script := range map[string]string{
		"its only thread": spawn + "; os.wait()",
		"another thread":  "t = threading.Thread(target=lambda: " + spawn + "); t.start(); t.join(); os.wait()",
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, nil, supervise.FollowOptions{})
			e := b.start("python3", "-c", "import os, threading; os.mkfifo('gate'); "+script)
			within(t, "a child that is no program of its own yet", func() bool { return len(b.Processes()) == 2 })
			for range 2 {
				thaw, err := b.Freeze()
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range b.Processes() {
					if p.State != 'T' && p.State != 'D' {
						t.Errorf("it runs: %+v", p)
					}
				}
				thaw()
			}
			b.sh(": > gate").exits(0)
			e.exits(0)
		})
	}
}

const eat = `
a = []
while True: a.append(bytearray(b"x" * (1 << 20)))`

// Where no cgroup holds a limit the box is watched; PID 1 stays, and so does what
// runs in the background as long as it is not that which takes too much.
func TestLimitsThatNoCgroupHolds(t *testing.T) {
	b := newBox(t, nil, supervise.FollowOptions{Limits: supervise.Limits{Memory: 100 << 20, Tasks: 30}})
	b.sh("sleep 3000 & ").exits(0)
	e := b.start("python3", "-c", eat)
	beside := b.sh("sleep 60")
	if r := e.end(); r.End != supervise.OutOfMemory || r.PeakMemory < 50<<20 || r.PeakSource != "polled" {
		t.Errorf("%+v", r)
	}
	if r := beside.end(); r.End != supervise.OutOfMemory {
		t.Errorf("%+v", r)
	}
	if names := b.names(); !slices.Equal(names, []string{"sleep"}) {
		t.Errorf("left: %q", names)
	}
	if r := b.sh("for i in $(seq 60); do sleep 60 & done; wait").end(); r.End != supervise.TooManyTasks {
		t.Errorf("%+v", r)
	}
	b.start("true").exits(0)
	// What is left running is watched too.
	b.startWith(supervise.LiveCommand{}, "/bin/sh", "-c", "(sleep 0.1; exec python3 -c '"+strings.ReplaceAll(eat, "'", `"`)+"') >/dev/null 2>&1 &").exits(0)
	within(t, "a quiet box", b.Quiet)
	b.start("true").exits(0)
	if r := b.startWith(supervise.LiveCommand{Limits: supervise.Limits{CPU: 200 * time.Millisecond}}, "/bin/sh", "-c", "while :; do :; done").end(); r.End != supervise.OutOfTime {
		t.Errorf("%+v", r)
	}
}

func TestMemoryThatACgroupHolds(t *testing.T) {
	group, missing := jail.NewCgroup(fmt.Sprintf("livetest-%d", os.Getpid()), jail.Limits{Memory: 64 << 20})
	defer group.Remove()
	if len(missing) > 0 {
		t.Skipf("this host gives no control group: %q", missing)
	}
	b := newBox(t, group, supervise.FollowOptions{Limits: supervise.Limits{Memory: 64 << 20}})
	beside := b.sh("sleep 60")
	e := b.start("python3", "-c", eat)
	if r := e.end(); r.End != supervise.OutOfMemory {
		t.Errorf("%+v", r)
	}
	if r := beside.end(); r.End != supervise.OutOfMemory {
		t.Errorf("%+v", r)
	}
	b.start("true").exits(0)
	b.sh("exit 3").exits(3) // and not for the memory that ran out before
	b.Kill()
	b.Reap()
}

func threads(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// An idle box costs a goroutine, and no thread.
func TestIdleBoxesAreCheap(t *testing.T) {
	const boxes = 40
	var all []*liveBox
	warm := newBox(t, nil, supervise.FollowOptions{})
	warm.start("true").exits(0)
	runtime.GC()
	before, kernel := runtime.NumGoroutine(), threads(t)
	for range boxes {
		b := newBox(t, nil, supervise.FollowOptions{})
		b.sh("echo x; sleep 3000 &").exits(0)
		all = append(all, b)
	}
	within(t, "a goroutine a box, and no more", func() bool { return runtime.NumGoroutine()-before <= boxes })
	if n := threads(t) - kernel; n > 8 {
		t.Errorf("%d threads for %d boxes", n, boxes)
	}
	var wait sync.WaitGroup
	for _, b := range all {
		wait.Go(func() { b.Kill(); b.Reap() })
	}
	wait.Wait()
	within(t, "goroutines that ended", func() bool { return runtime.NumGoroutine() <= before })
}

// Nothing of a box is left in this process: no descriptor, no child.
func TestABoxLeavesNothingBehind(t *testing.T) {
	fds := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	use := func() {
		b := newBox(t, nil, supervise.FollowOptions{})
		b.sh("sleep 100 & echo x").exits(0)
		b.startWith(supervise.LiveCommand{Terminal: supervise.NewTerminalOf(10, 10), Stdin: &supervise.Input{Reader: bytes.NewReader(nil)}}, "true").exits(0)
		b.startWith(supervise.LiveCommand{Stdin: &supervise.Input{Reader: zeros{}}}, "true").exits(0)
		b.Kill()
		if err := b.Reap(); err != nil {
			t.Error(err)
		}
	}
	use()
	before := fds()
	for range 5 {
		use()
	}
	within(t, fmt.Sprintf("%d descriptors", before), func() bool { return fds() <= before })
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid > 0 {
		t.Errorf("a child was left: %d, %v", pid, err)
	}
}
