package jail_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/plan"
)

// restarting is a caller whose wait for the mover is broken off by a signal
// every millisecond, once with calls that the kernel restarts and once with
// calls that return EINTR and are made again.
const restarting = `
import ctypes, errno, os, signal
libc = ctypes.CDLL(None, use_errno=True)
hits = 0
def hit(*a):
    global hits
    hits += 1
signal.signal(signal.SIGALRM, hit)
signal.setitimer(signal.ITIMER_REAL, .001, .001)
for restart in (True, False):
    signal.siginterrupt(signal.SIGALRM, not restart)
    for i in range(4):
        d = b"d%d" % (i + 4 * restart)
        while True:
            ctypes.set_errno(0)
            if libc.rename(d, d + b"x") == 0: break
            if ctypes.get_errno() != errno.EINTR: raise SystemExit("%s: %s" % (d, errno.errorcode[ctypes.get_errno()]))
        assert len(os.listdir(d + b"x")) == 40
signal.setitimer(signal.ITIMER_REAL, 0)
print("moved", hits > 8)
`

// TestMoveSurvivesBrokenWaits runs a box as before Linux 5.19, where any signal
// breaks off a wait for the listener: a second call must not find that the
// first, which nobody waited for, has moved the directory already.
func TestMoveSurvivesBrokenWaits(t *testing.T) {
	runtime.LockOSThread() // the box dies with the thread that made it
	defer runtime.UnlockOSThread()
	base := temporary(t)
	box := description(t, base)
	// As an ordinary user makes it, whoever runs the test: with a mover.
	uid, gid := os.Geteuid(), os.Getegid()
	box.Privileged, box.Trusted = false, false
	box.UIDMap, box.GIDMap = fmt.Sprintf("%d %d 1", uid, uid), fmt.Sprintf("%d %d 1", gid, gid)
	workspace := box.Workspace
	for d := range 8 {
		dir := filepath.Join(workspace, fmt.Sprint("d", d))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range 40 {
			if err := os.WriteFile(fmt.Sprintf("%s/f%d", dir, f), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	view, err := box.View()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i := range view.Ops {
		if view.Ops[i].Code == plan.Commands && view.Ops[i].C&plan.CommandsRename != 0 {
			view.Ops[i].C, found = view.Ops[i].C|plan.CommandsRestart, true
		}
	}
	if !found {
		t.Fatal("the plan has no mover")
	}
	b, err := jail.Start(box.Base(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Reap()
	defer b.Kill()
	if err := b.Send(view); err != nil {
		t.Fatal(err)
	}
	out, err := os.CreateTemp(base, "out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := b.Exec(&jail.Command{
		Argv: []string{"python3", "-c", restarting}, Env: []string{"PATH=/usr/bin"}, Dir: workspace, Search: "/usr/bin",
		Stdin: int(null.Fd()), Stdout: int(out.Fd()), Stderr: int(out.Fd()),
	}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		r, ok, err := b.Receive()
		switch {
		case err != nil || time.Now().After(deadline):
			t.Fatalf("the box did not end its command: %v", err)
		case !ok:
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(b.Control), Events: unix.POLLIN}}, 1000)
			continue
		case r.FD >= 0 && r.Kind != jail.Born:
			unix.Close(r.FD)
		case r.Kind == jail.Failed || r.Kind == jail.NotStarted:
			t.Fatalf("%+v", r)
		}
		if r.Kind == jail.Exited {
			text, err := os.ReadFile(out.Name())
			if err != nil || r.A != 0 || !bytes.Equal(text, []byte("moved True\n")) {
				t.Errorf("status %#x, output %q, %v", r.A, text, err)
			}
			return
		}
	}
}
