package workspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

func TestOpen(t *testing.T) {
	root := tempDir(t, "")
	must(t, os.MkdirAll(root+"/real/dir", 0o755))
	must(t, os.Symlink("real", root+"/link"))
	ws := open(t, root+"/link/../link/dir/")
	if ws.Path != root+"/real/dir" {
		t.Errorf("Path %q", ws.Path)
	}
	var st unix.Stat_t
	must(t, unix.Fstat(ws.FD, &st))
	if st.Ino != ws.Stat.Ino || ws.Stat.Type != fsat.Directory {
		t.Errorf("Stat %+v", ws.Stat)
	}
	if flags, err := unix.FcntlInt(uintptr(ws.FD), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("the descriptor would leak into commands")
	}
	t.Chdir(root + "/real")
	if ws := open(t, "dir"); ws.Path != root+"/real/dir" {
		t.Errorf("relative: Path %q", ws.Path)
	}
	if err := ws.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	root := tempDir(t, "")
	home := root + "/homes/me"
	state := root + "/var/state"
	must(t, os.MkdirAll(home+"/project", 0o755))
	must(t, os.MkdirAll(state, 0o755))
	must(t, os.Symlink(home, root+"/home-link"))
	must(t, os.Symlink("loop", root+"/loop"))
	write(t, root+"/file", "", 0o644)
	t.Setenv("HOME", root+"/home-link")
	t.Setenv("XDG_STATE_HOME", state)
	for _, c := range []struct {
		path, says string
		forced     bool // --force helps
	}{
		{root + "/none", "does not exist; create it", false},
		{root + "/none/below", "does not exist", false},
		{root + "/file", "is not a directory", false},
		{root + "/file/below", "is not a directory", false},
		{root + "/loop", "cannot be opened", false},
		{"/", "root of the file system", true},
		{home, "home directory", true},
		{root + "/home-link", "home directory", true},
		{root + "/homes", "above home directory", true},
		{root + "/var", "own state", true},
		{state, "own state", true},
		{state + "/hutch", "does not exist", false},
	} {
		ws, err := Open(c.path, false)
		if err == nil {
			ws.Close()
			t.Errorf("%s was opened", c.path)
			continue
		}
		if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.path, err)
		}
		if c.forced != strings.Contains(err.Error(), "--force") {
			t.Errorf("%s: --force is named wrongly: %v", c.path, err)
		}
		ws, err = Open(c.path, true)
		if c.forced != (err == nil) {
			t.Errorf("%s with force: %v", c.path, err)
		}
		if err == nil {
			ws.Close()
		}
	}
	open(t, home+"/project")
	if os.Getuid() != 0 {
		for _, mode := range []os.FileMode{0, 0o100, 0o400} {
			dir := root + "/closed"
			must(t, os.MkdirAll(dir, 0o700))
			must(t, os.Chmod(dir, mode))
			if _, err := Open(dir, false); err == nil || !strings.Contains(err.Error(), "cannot be read and searched") {
				t.Errorf("mode %o: %v", mode, err)
			}
			must(t, os.Chmod(dir, 0o700))
		}
	}
}

// TestPasswdHome: $HOME can be set to anything.
func TestPasswdHome(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root's home is known to exist")
	}
	t.Setenv("HOME", "/nowhere")
	if _, err := Open("/root", false); err == nil || !strings.Contains(err.Error(), "home directory") {
		t.Error(err)
	}
}

func TestStateDir(t *testing.T) {
	t.Setenv("HOME", "/h")
	t.Setenv("XDG_STATE_HOME", "/s")
	if dir, err := StateDir(); dir != "/s/hutch" || err != nil {
		t.Error(dir, err)
	}
	t.Setenv("XDG_STATE_HOME", "relative")
	want := "/h/.local/state/hutch"
	if os.Geteuid() == 0 {
		want = "/var/lib/hutch"
	}
	if dir, err := StateDir(); dir != want || err != nil {
		t.Error(dir, err)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("/usr/../nowhere/x")
	f.Fuzz(func(t *testing.T, path string) {
		if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
			return
		}
		if got := resolve(path); !filepath.IsAbs(got) {
			t.Errorf("resolve(%q) = %q", path, got)
		}
	})
}
