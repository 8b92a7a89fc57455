package workspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// reflinkDirs are writable directories on file systems with reflinks. Root
// makes its own, on loop devices; others are told by HUTCH_TEST_REFLINK_DIRS.
var reflinkDirs []string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	unix.Umask(0o027) // modes must be right in spite of it
	for dir := range strings.SplitSeq(os.Getenv("HUTCH_TEST_REFLINK_DIRS"), ":") {
		if dir != "" {
			reflinkDirs = append(reflinkDirs, dir)
		}
	}
	if os.Getuid() == 0 && len(reflinkDirs) == 0 {
		base, err := os.MkdirTemp("", "hutch-images-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(base)
		for _, mkfs := range [][]string{
			{"mkfs.btrfs", "-q"},
			{"mkfs.xfs", "-q", "-m", "reflink=1"},
		} {
			dir := filepath.Join(base, mkfs[0])
			if err := mountImage(dir, mkfs); err != nil {
				// Not everyone has the tools or loop devices.
				fmt.Fprintf(os.Stderr, "no image of %s: %v\n", mkfs[0], err)
				continue
			}
			defer func() {
				if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
					fmt.Fprintf(os.Stderr, "umount %s: %v %s\n", dir, err, out)
				}
			}()
			reflinkDirs = append(reflinkDirs, dir)
		}
	}
	return m.Run()
}

func mountImage(dir string, mkfs []string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	image := dir + ".img"
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(1 << 30); err != nil {
		return err
	}
	for _, args := range [][]string{append(mkfs, image), {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w %s", args[0], err, out)
		}
	}
	return nil
}

// tempDir is t.TempDir beneath a given directory, "" for the usual one, that
// also goes when directories in it deny their owner entry.
func tempDir(t testing.TB, in string) string {
	t.Helper()
	dir, err := os.MkdirTemp(in, "hutch-test-")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(path, 0o700)
			}
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func open(t testing.TB, path string) *Workspace {
	t.Helper()
	ws, err := Open(path, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	return ws
}

func openFD(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o600))
	must(t, unix.Chmod(path, uint32(mode)))
}
