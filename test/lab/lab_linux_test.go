package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// The shared check must see what it is there for.

func TestLeftoversSeesAProcess(t *testing.T) {
	before := TakeCensus()
	// An orphan: its parent, the shell, is gone.
	out, err := exec.Command("sh", "-c", "setsid sleep 171 >/dev/null 2>&1 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	// The shell's child has another name until it has become sleep.
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(strings.Join(Leftovers(before, 0), " "), "sleep 171"); {
		if time.Now().After(deadline) {
			t.Fatalf("the orphan %s was never seen", out)
		}
		time.Sleep(time.Millisecond)
	}
	left := Leftovers(before, 100*time.Millisecond)
	if len(left) != 1 || !strings.Contains(left[0], "sleep 171") {
		t.Errorf("leftovers %q, want the orphan %s", left, out)
	}
	for _, p := range descendants() {
		syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if left := Leftovers(before, 5*time.Second); len(left) > 0 {
		t.Errorf("after killing it: %q", left)
	}
}

func TestLeftoversLeavesExpectedProcessesOut(t *testing.T) {
	before := TakeCensus()
	cmd := exec.Command("sh", "-c", "sleep 171; true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := Expect(cmd.Process.Pid)
	if left := Leftovers(before, 0); len(left) > 0 {
		t.Errorf("an expected child was reported: %q", left)
	}
	done()
	if left := Leftovers(before, 0); len(left) == 0 {
		t.Error("the child was not reported once it was no longer expected")
	}
	for _, p := range descendants() {
		syscall.Kill(p.pid, syscall.SIGKILL)
	}
	cmd.Wait()
}

func TestLeftoversSeesAMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make one")
	}
	dir := t.TempDir()
	before := TakeCensus(dir)
	if err := syscall.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	left := Leftovers(before, 0, dir)
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || !strings.Contains(left[0], dir) {
		t.Errorf("leftovers %q, want the mount", left)
	}
}

func TestLeftoversForgivesWhatGoesAway(t *testing.T) {
	before := TakeCensus()
	cmd := exec.Command("sleep", "0.3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	if left := Leftovers(before, 10*time.Second); len(left) > 0 {
		t.Errorf("leftovers %q", left)
	}
}

func TestSnapshotSeesEveryChange(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"content with time restored", "touch -r f ref; printf X > f; touch -r ref f; rm ref", "content"},
		{"content", "echo more >> f", "size"},
		{"mode", "chmod 600 f", "mode"},
		{"time", "touch -d 2001-01-01 f", "mtime"},
		{"target", "ln -sfn elsewhere l", "target"},
		{"gone", "rm f", "gone"},
		{"new", "echo > 'new\nname'", "new"},
		{"type", "rm f; mkdir f", "mode"},
		{"xattr", "python3 -c 'import os; os.setxattr(\"f\", \"user.x\", b\"y\")'", "xattrs"},
		{"hard link", "ln f g", "nlink"},
		{"data in a hole", "printf x | dd of=sparse bs=1 seek=50000 conv=notrunc 2>/dev/null", "content"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			sh := func(script string) {
				t.Helper()
				cmd := exec.Command("sh", "-ec", script)
				cmd.Dir = dir
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			sh("printf x > f; ln -s f l; truncate -s 100000 sparse; sleep 0.01")
			before := Snapshot(t, dir)
			if d := before.Diff(Snapshot(t, dir)); len(d) > 0 {
				t.Fatalf("looking changed something: %q", d)
			}
			sh(c.script)
			if d := strings.Join(before.Diff(Snapshot(t, dir)), "\n"); !strings.Contains(d, c.want) {
				t.Errorf("diff %q does not tell of %s", d, c.want)
			}
		})
	}
}

func TestStateLeftovers(t *testing.T) {
	w := New(t)
	if left := w.StateLeftovers(); len(left) > 0 {
		t.Errorf("before any run: %q", left)
	}
	box := filepath.Join(w.StateDir(), "boxes", "b1")
	if err := os.MkdirAll(box, 0o755); err != nil {
		t.Fatal(err)
	}
	if left := w.StateLeftovers(); len(left) != 1 || left[0] != "boxes/b1" {
		t.Errorf("with a box: %q", left)
	}
	if err := os.Remove(box); err != nil {
		t.Fatal(err)
	}
}
