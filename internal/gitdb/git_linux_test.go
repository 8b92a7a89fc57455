package gitdb

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testRepo is a repository that real git makes, in a clean environment.
type testRepo struct {
	t    testing.TB
	path string // of the working tree
}

func newTestRepo(t testing.TB, options ...string) testRepo {
	r := testRepo{t, t.TempDir()}
	r.git(append([]string{"init", "-q", "-b", "main"}, options...)...)
	return r
}

func (r testRepo) git(args ...string) string { r.t.Helper(); return r.gitInput("", args...) }

func (r testRepo) gitInput(input string, args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.path
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.path, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b", "LC_ALL=C",
	}
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := err.(*exec.ExitError); ok {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		r.t.Fatalf("git %v: %v", args, err)
	}
	return strings.TrimSuffix(string(out), "\n")
}

func (r testRepo) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.path, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r testRepo) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", message)
	return r.git("rev-parse", "HEAD")
}

func (r testRepo) open() *Repo { r.t.Helper(); return openDirs(r.t, filepath.Join(r.path, ".git")) }

func openDir(t testing.TB, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(path, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// openDirs opens the repository that whole directories make.
func openDirs(t testing.TB, paths ...string) *Repo {
	t.Helper()
	var dirs []Dir
	for _, path := range paths {
		dirs = append(dirs, Dir{FD: openDir(t, path)})
	}
	r, err := Open(dirs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func oid(t testing.TB, text string) OID {
	t.Helper()
	id, err := ParseOID(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
