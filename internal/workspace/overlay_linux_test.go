package workspace

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

func TestOverlay(t *testing.T) {
	for _, mode := range []uint32{0o755, 0o700, 0o1777, 0o2750, 0o555} {
		root, box := tempDir(t, ""), tempDir(t, "")
		write(t, root+"/f", "x", 0o644)
		xattrs := true
		if err := unix.Setxattr(root, "user.note", []byte("v"), 0); err != nil {
			must(t, ignore(err, unix.ENOTSUP))
			xattrs = false
		} else {
			// Would hide the whole workspace, were it taken along.
			must(t, unix.Setxattr(root, "user.overlay.opaque", []byte("y"), 0))
		}
		if os.Getuid() == 0 {
			must(t, os.Chown(root, 1234, 4321))
		}
		must(t, unix.Chmod(root, mode))
		ts := []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: 3, Nsec: 4}}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, root, ts, 0))
		ws := open(t, root)
		fd := openFD(t, box)
		b, err := Make(t.Context(), Request{Workspace: ws, Strategy: Overlay, BoxFD: fd, BoxPath: box})
		must(t, err)
		if b.Strategy != Overlay || b.Form != changeset.Overlay || b.FilesCloned != -1 || b.Manifest != "" || len(b.Notes) > 0 {
			t.Errorf("%+v", b)
		}
		st, err := fsat.LstatName(fd, b.Layer)
		must(t, err)
		if st.Mode != mode || st.Mtime != (fsat.Time{Sec: 3, Nsec: 4}) || st.UID != ws.Stat.UID || st.GID != ws.Stat.GID {
			t.Errorf("mode %o: upper is %+v, workspace %+v", mode, st, ws.Stat)
		}
		work, err := fsat.LstatName(fd, b.Work)
		must(t, err)
		if work.Mode != 0o700 {
			t.Errorf("work has mode %o", work.Mode)
		}
		if xattrs {
			upper := openFD(t, box+"/"+b.Layer)
			names, err := fsat.Xattrs(upper)
			must(t, err)
			if got := strings.Join(names, " "); got != "user.note" {
				t.Errorf("upper has xattrs %q", got)
			}
		}
		if _, err := Make(t.Context(), Request{Workspace: ws, Strategy: Overlay, BoxFD: fd, BoxPath: box}); err == nil {
			t.Error("a second branch in one box")
		}
	}
}

func TestOverlayCleansUp(t *testing.T) {
	box := tempDir(t, "")
	write(t, box+"/work", "in the way", 0o600)
	_, err := Make(t.Context(), Request{Workspace: open(t, tempDir(t, "")), Strategy: Overlay, BoxFD: openFD(t, box), BoxPath: box})
	if err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Lstat(box + "/upper"); err == nil {
		t.Error("upper was left behind")
	}
	if _, err := os.Lstat(box + "/work"); err != nil {
		t.Error("what was there before is gone")
	}
}

func TestUnknownStrategy(t *testing.T) {
	box := tempDir(t, "")
	_, err := Make(t.Context(), Request{Workspace: open(t, tempDir(t, "")), Strategy: Auto, BoxFD: openFD(t, box), BoxPath: box})
	if err == nil || !strings.Contains(err.Error(), "not a strategy") {
		t.Error(err)
	}
}

func BenchmarkOverlay(b *testing.B) {
	ws := open(b, tempDir(b, ""))
	box := tempDir(b, "")
	fd := openFD(b, box)
	for b.Loop() {
		if _, err := Make(b.Context(), Request{Workspace: ws, Strategy: Overlay, BoxFD: fd, BoxPath: box}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		fsat.RemoveAll(fd, "upper")
		fsat.RemoveAll(fd, "work")
		b.StartTimer()
	}
}
