package limits

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

func TestDiskLimit(t *testing.T) {
	each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Write("large", strings.Repeat("x", 12<<20)) // what a copy copies is not what the box adds
		before := w.Snap()
		for _, c := range []struct {
			name    string
			command string
			over    bool

			everywhere bool // with each strategy
		}{
			{"one file", "./act file f 64 60", true, true},
			{"more than one", "./act file f 5 0; ./act file g 5 0; ./act file h 5 60", true, false},
			{"many files", "./act many d 3000 60", true, false},
			{"a file without a name", "./act nameless f 64 60", true, true},
			{"in a closed directory", "./act closed d 64 60", true, false},
			{"and it ended at once", "exec ./act file f 24 0", true, false},
			{"holes", "./act sparse f 40", false, true},
			{"within the limit", "./act file f 4 0; ./act many d 100 0", false, false},
			{"removed again", "for i in 1 2 3 4 5; do ./act file f 3 0; rm f; done", false, false},
		} {
			if w.Strategy.Name != "overlay" && !c.everywhere {
				continue // the walk is the same
			}
			out, r := w.JSON("--commit", "--disk", "10M", "--files", "1000", "--timeout", "100s", "--", "sh", "-c", c.command+"; true")
			if c.over {
				if out.Status != "disk_exceeded" || r.Code != 137 {
					t.Errorf("%s: status %q\n%v", c.name, out.Status, r)
				}
			} else if out.Status != "success" {
				t.Errorf("%s: status %q\n%v", c.name, out.Status, r)
			}
			if c.over {
				w.Untouched(before)
			} else {
				for _, name := range []string{"f", "d"} {
					os.RemoveAll(filepath.Join(w.Dir, name))
				}
				before = w.Snap()
			}
		}
	})
}

func TestDiskLimitOfALayerInRAM(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	out, r := w.JSON("--layer", "ram", "--disk", "8M", "--", "./act", "file", "f", "64", "0")
	ended(t, w, out, r, "success", 0)
	if !strings.Contains(out.Stderr, "no space left") {
		t.Errorf("64 MB fit into a layer of 8\n%v", r)
	}
	out, r = w.JSON("--layer", "ram", "--files", "100", "--", "./act", "many", "d", "300", "0")
	ended(t, w, out, r, "failed", 9)
	if !strings.Contains(out.Stderr, "no space left") {
		t.Errorf("300 files fit into a layer of 100\n%v", r)
	}
}

// What an overlay needs, and what hides files, is not the box's.
func TestFilesLimitIsExact(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	for i := range 40 {
		w.Write("d"+strconv.Itoa(i)+"/.env", "x")
	}
	fill := []string{"--", "sh", "-c", `for i in $(seq $0); do : > f$i || exit 9; done`}
	for _, layer := range []string{"disk", "ram"} {
		flags := append([]string{"--layer", layer, "--hide", "**/.env", "--files", "30"}, fill...)
		out, r := w.JSON(append(flags, "30")...)
		ended(t, w, out, r, "success", 0)
		out, r = w.JSON(append(flags, "31")...)
		if out.Status == "success" {
			t.Errorf("%s: 31 files in a layer of 30\n%v", layer, r)
		}
	}
}

func TestCoreDumps(t *testing.T) {
	w := newWorld(t, lab.Strategy{})
	crash := []string{"--", "sh", "-c", "ulimit -c; sh -c 'kill -SEGV $$'; true"}
	out, r := w.JSON(crash...)
	ended(t, w, out, r, "success", 0)
	if out.FilesystemModified || strings.TrimSpace(out.Stdout) != "0" {
		t.Errorf("a core dump that nobody asked for: %q, limit %q", out.Diff.FilesCreated, out.Stdout)
	}
	out, r = w.JSON(append([]string{"--core", "16M"}, crash...)...)
	ended(t, w, out, r, "success", 0)
	pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
	if strings.ContainsAny(string(pattern), "|/@") {
		t.Logf("core_pattern %q leads elsewhere", pattern)
	} else if len(out.Diff.FilesCreated) != 1 || !strings.HasPrefix(out.Diff.FilesCreated[0], "core") {
		t.Errorf("no core dump in the layer: %q", out.Diff.FilesCreated)
	}
}

// Hutch itself meets a full disk with one line, and nothing is promoted.
func TestFullStateDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a file system that is full")
	}
	w := newWorld(t, lab.Strategy{})
	if err := unix.Mount("none", w.State, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(w.State, 0)
	before := w.Snap()
	r := w.Box("--commit", "--", "sh", "-c", "./act file f 64 0; exit 1")
	w.Want(r, 1)
	w.Untouched(before)
	w.Want(w.Run("receipts", "verify"), 0)
	// No room for anything more.
	fill := filepath.Join(w.State, "full")
	file, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	file.Close()
	r = w.Box("--commit", "--", "sh", "-c", "echo much; echo x > new || exit 7")
	if r.Code != 7 && r.Code != 2 && r.Code != 125 {
		t.Errorf("exit %d\n%v", r.Code, r)
	}
	for line := range strings.Lines(r.Stderr) {
		if !strings.HasPrefix(line, "hutch: ") || !strings.Contains(line, "no space left") {
			t.Errorf("this says not what is wrong: %q", line)
		}
	}
	w.Untouched(before)
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	w.Want(w.Run("receipts", "verify"), 0)
}
