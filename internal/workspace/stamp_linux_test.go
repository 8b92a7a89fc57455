package workspace

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// TestStampDivides is the kernel's promise that conflicts rest on: what is
// changed before T has an earlier ctime, what is changed after it T or later.
func TestStampDivides(t *testing.T) {
	for _, p := range places() {
		root := tempDir(t, p.dir)
		write(t, root+"/before", "x", 0o644)
		write(t, root+"/after", "x", 0o644)
		ws := open(t, root)
		for range 300 {
			must(t, os.WriteFile(root+"/before", []byte("y"), 0))
			s, err := TakeStamp(ws)
			must(t, err)
			must(t, os.WriteFile(root+"/after", []byte("y"), 0))
			if !s.Valid || s.Reason != "" {
				t.Fatalf("%+v", s)
			}
			before, err := fsat.LstatName(ws.FD, "before")
			must(t, err)
			after, err := fsat.LstatName(ws.FD, "after")
			must(t, err)
			if after.Ctime.Before(s.T) {
				t.Fatalf("%s: an edit after the stamp is missed: %v < %v", p, after.Ctime, s.T)
			}
			if multigrain() && !before.Ctime.Before(s.T) {
				t.Fatalf("%s: an edit before the stamp counts: %v >= %v", p, before.Ctime, s.T)
			}
		}
	}
}

func TestStamp(t *testing.T) {
	root := tempDir(t, "")
	ws := open(t, root)
	old := ws.Stat
	s, err := TakeStamp(ws)
	must(t, err)
	st, err := fsat.Fstat(ws.FD)
	must(t, err)
	if st.Mtime != old.Mtime || st.Ctime != old.Ctime {
		t.Error("the directory's times changed")
	}
	empty(t, root)
	if wall := time.Unix(s.Realtime.Sec, s.Realtime.Nsec); time.Since(wall).Abs() > time.Minute {
		t.Errorf("Realtime %v", wall)
	}
	if len(s.BootID) != 36 || s.Boottime.Sec == 0 {
		t.Errorf("%+v", s)
	}
}

func TestStampRefused(t *testing.T) {
	root := tempDir(t, "")
	if os.Getuid() != 0 {
		must(t, os.Chmod(root, 0o555))
	} else {
		must(t, unix.Mount(root, root, "", unix.MS_BIND, ""))
		defer unix.Unmount(root, unix.MNT_DETACH)
		must(t, unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	ws, err := Open(root, false)
	must(t, err)
	defer ws.Close()
	s, err := TakeStamp(ws)
	if err != nil || s.Valid || !strings.Contains(s.Reason, "workspace is") || s.BootID == "" {
		t.Errorf("%+v %v", s, err)
	}
	// /proc has no unnamed files.
	fd, err := unix.Open("/proc/self/task", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	ws = &Workspace{Path: "/proc/self/task", FD: fd}
	defer ws.Close()
	if s, err := TakeStamp(ws); err != nil || s.Valid || s.Reason == "" {
		t.Errorf("%+v %v", s, err)
	}
}

// TestKernelsOwn: not even with force; a branch would show what a box masks.
func TestKernelsOwn(t *testing.T) {
	for _, path := range []string{"/proc", "/proc/self/task", "/sys", "/dev"} {
		if ws, err := Open(path, true); err == nil {
			ws.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), "the kernel") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestWaitTick(t *testing.T) {
	for range 20 {
		at, err := now(unix.CLOCK_REALTIME_COARSE)
		must(t, err)
		waitTick(at)
		if after, err := now(unix.CLOCK_REALTIME_COARSE); err != nil || !at.Before(after) {
			t.Fatalf("%v is not after %v", after, at)
		}
	}
	start := time.Now()
	waitTick(fsat.Time{Sec: 1 << 40}) // a clock that was set back
	if d := time.Since(start); d > time.Second {
		t.Errorf("waited %v", d)
	}
}

func BenchmarkStamp(b *testing.B) {
	ws := open(b, tempDir(b, ""))
	for b.Loop() {
		if _, err := TakeStamp(ws); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	root := tempDir(b, "")
	for b.Loop() {
		ws, err := Open(root, false)
		if err != nil {
			b.Fatal(err)
		}
		ws.Close()
	}
}
