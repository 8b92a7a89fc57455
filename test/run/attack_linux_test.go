package run

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// TestForgedTransactionIsNotPromoted: every directory can be a workspace, so a
// journal that a box wrote must not leave it at any depth.
func TestForgedTransactionIsNotPromoted(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		out, r := w.JSON("--commit", "--", "sh", "-ec", "mkdir -p sub/.hutch/txn-aaa .hutch; echo forged > sub/.hutch/txn-aaa/journal; echo fine > sub/f; echo forged > .hutch/x")
		w.Want(r, 0)
		if w.Exists("sub/.hutch") || w.Exists(".hutch/x") {
			t.Error("a forged transaction was promoted")
		}
		if !w.Exists("sub/f") {
			t.Error("what lay beside it was not promoted")
		}
		named := map[string]bool{}
		for _, s := range out.Skipped {
			named[s.Path] = true
		}
		if !named["sub/.hutch"] || !named[".hutch"] {
			t.Errorf("skipped %v", out.Skipped)
		}
	})
}

// TestHostNodesKeepTheirModes: a box that runs as the owner of a device node or
// of an entry of /proc must not change the mode of the host's.
func TestHostNodesKeepTheirModes(t *testing.T) {
	w := lab.New(t)
	paths := []string{"/dev/null", "/dev/full", "/dev/zero", "/dev/tty", "/proc/sys", "/proc/pressure", "/proc/tty"}
	modes := func() string {
		var b strings.Builder
		for _, p := range paths {
			if st, err := os.Stat(p); err == nil {
				b.WriteString(p + " " + st.Mode().String() + "\n")
			}
		}
		return b.String()
	}
	before := modes()
	r := w.Run("run", "--", "sh", "-c", "for p in "+strings.Join(paths, " ")+"; do chmod 604 $p && echo changed $p; done; python3 -c 'import os; os.fchmod(0, 0o604)'; echo x > /dev/null && echo written; head -c 1 /dev/zero | wc -c")
	if after := modes(); after != before {
		t.Errorf("the host's modes changed:\n%s\nwere\n%s", after, before)
	}
	if strings.Contains(r.Stdout, "changed") || !strings.Contains(r.Stdout, "written") || !strings.Contains(r.Stdout, "1") {
		t.Errorf("%v", r)
	}
}

// TestLengthOfAFileCostsNothing: a hole costs a box nothing, and must cost hutch
// no more.
func TestLengthOfAFileCostsNothing(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		out, r := w.JSON("--commit", "--timeout", "60s", "--", "truncate", "-s", "8T", "big")
		w.Want(r, 0)
		if st, err := os.Stat(filepath.Join(w.Dir, "big")); err != nil || st.Size() != 8<<40 {
			t.Errorf("promoted: %v, %v", st, err)
		} else if blocks := st.Sys().(*syscall.Stat_t).Blocks; blocks > 1024 {
			t.Errorf("the holes were filled: %d blocks", blocks)
		}
		if len(out.Diff.FilesCreated) != 1 {
			t.Errorf("diff %+v", out.Diff)
		}
	})
}

// TestStoppedReaderDoesNotKeepHutch: a reader that never reads holds up neither
// the box's end nor a signal to hutch.
func TestStoppedReaderDoesNotKeepHutch(t *testing.T) {
	w := lab.New(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd := w.Start(lab.Options{Stdout: writer}, "run", "--commit", "--timeout", "60s", "--", "sh", "-c", "echo x > new; head -c 3000000 /dev/zero")
	writer.Close()
	for deadline := time.Now().Add(time.Minute); !w.Exists("new"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the change was not promoted while nobody read")
		}
	}
	cmd.Signal(syscall.SIGTERM)
	cmd.Wait() // bounded by the lab
}

// TestTraceMeIsNoExit: a command that makes PID 1 its tracer and stops goes on.
func TestTraceMeIsNoExit(t *testing.T) {
	w := lab.New(t)
	r := w.Run("run", "--timeout", "60s", "--", "python3", "-c", "import ctypes, os, signal\nsignal.signal(10, lambda *a: None)\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nos.kill(os.getpid(), 10)\nos._exit(5)")
	w.Want(r, 5)
}

// TestRootOfTheLayerWithoutRights: what a box does to its own root must not keep
// its change from us.
func TestRootOfTheLayerWithoutRights(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Want(w.Box("--commit", "--", "sh", "-c", "echo x > new; chmod 000 ."), 0)
		if !w.Exists("new") {
			t.Error("not promoted")
		}
	})
}

// TestWorkspaceNameThatIsNotUTF8: a kept box of such a workspace can be committed.
func TestWorkspaceNameThatIsNotUTF8(t *testing.T) {
	w := lab.New(t)
	dir := filepath.Join(w.Dir, "inv\xff\xfe")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out, r := w.JSONWith(lab.Options{Dir: dir}, "--preserve", "--", "sh", "-c", "echo x > new")
	w.Want(r, 0)
	w.Want(w.Run("commit", out.ID), 0)
	if _, err := os.Stat(filepath.Join(dir, "new")); err != nil {
		t.Error(err)
	}
}
