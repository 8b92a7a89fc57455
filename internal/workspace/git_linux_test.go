package workspace

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func git(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "protocol.file.allow=always", "-c", "user.name=t", "-c", "user.email=t@t"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v %s", args, err, out)
	}
}

func needGit(t testing.TB) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
}

func wantDirs(t testing.TB, ws *Workspace, want ...string) {
	t.Helper()
	got, err := GitDirs(ws)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("GitDirs = %q, %v; want %q", got, err, want)
	}
}

func wantRefused(t testing.TB, ws *Workspace, says string) {
	t.Helper()
	got, err := GitDirs(ws)
	if len(got) > 0 || err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("GitDirs = %q, %v; want an error with %q", got, err, says)
	}
}

func TestGitDirs(t *testing.T) {
	needGit(t)
	root := tempDir(t, "")
	must(t, os.Mkdir(root+"/plain", 0o755))
	wantDirs(t, open(t, root+"/plain"))

	git(t, root, "init", "-q", "main")
	write(t, root+"/main/f", "x", 0o644)
	git(t, root+"/main", "add", "f")
	git(t, root+"/main", "commit", "-qm", "c")
	wantDirs(t, open(t, root+"/main"))

	git(t, root+"/main", "worktree", "add", "-q", root+"/linked")
	wantDirs(t, open(t, root+"/linked"), root+"/main/.git/worktrees/linked", root+"/main/.git")

	// A worktree of a bare repository, with a name that needs care.
	git(t, root, "clone", "-q", "--bare", root+"/main", root+"/bare.git")
	git(t, root+"/bare.git", "worktree", "add", "-q", "--detach", root+"/odd name")
	wantDirs(t, open(t, root+"/odd name"), root+"/bare.git/worktrees/odd-name", root+"/bare.git")

	git(t, root, "init", "-q", "super")
	git(t, root+"/super", "submodule", "--quiet", "add", root+"/main", "sub")
	wantDirs(t, open(t, root+"/super/sub"), root+"/super/.git/modules/sub")
	wantDirs(t, open(t, root+"/super"))

	// A worktree in the workspace's own repository needs nothing outside of
	// it; seen from the worktree, the repository is above.
	git(t, root+"/main", "worktree", "add", "-q", root+"/main/inner")
	wantDirs(t, open(t, root+"/main/inner"), root+"/main/.git/worktrees/inner", root+"/main/.git")

	// Moved by hand: git does not know it any more.
	must(t, os.Rename(root+"/linked", root+"/moved"))
	wantRefused(t, open(t, root+"/moved"), "git worktree repair")
}

func TestOpenGit(t *testing.T) {
	needGit(t)
	root := tempDir(t, "")
	must(t, os.Mkdir(root+"/plain", 0o755))
	if repo, err := OpenGit(open(t, root+"/plain")); repo != nil || err != nil {
		t.Errorf("a directory without git: %v, %v", repo, err)
	}
	git(t, root, "init", "-q", "main")
	write(t, root+"/main/f", "x", 0o644)
	git(t, root+"/main", "add", "f")
	git(t, root+"/main", "commit", "-qm", "c")
	git(t, root+"/main", "worktree", "add", "-q", root+"/linked")
	git(t, root, "init", "-q", "super")
	git(t, root+"/super", "submodule", "--quiet", "add", root+"/main", "sub")
	for _, dir := range []string{"main", "linked", "super/sub"} {
		repo, err := OpenGit(open(t, root+"/"+dir))
		if err != nil {
			t.Fatal(dir, err)
		}
		index, err := repo.Index()
		if err != nil || len(index.Entries) != 1 {
			t.Fatalf("%s: index %v, %v", dir, index, err)
		}
		if content, err := repo.Blob(index.Entries[0].ID, 10); string(content) != "x" || err != nil {
			t.Errorf("%s: %q, %v", dir, content, err)
		}
		repo.Close()
	}
	write(t, root+"/plain/.git", "gitdir: "+root+"/main/.git\n", 0o644)
	if repo, err := OpenGit(open(t, root+"/plain")); repo != nil || err == nil {
		t.Errorf("a .git file that names the repository of another: %v, %v", repo, err)
	}
}

// TestGitDirsHostile: the .git file and all in the workspace are an agent's.
func TestGitDirsHostile(t *testing.T) {
	needGit(t)
	root := tempDir(t, "")
	victim, ws := root+"/victim", root+"/ws"
	git(t, root, "init", "-q", "victim")
	write(t, victim+"/f", "x", 0o644)
	git(t, victim, "add", "f")
	git(t, victim, "commit", "-qm", "c")
	git(t, victim, "worktree", "add", "-q", root+"/theirs")
	write(t, root+"/secrets/id_rsa", "key", 0o600)
	must(t, os.Mkdir(ws, 0o755))
	w := open(t, ws)
	point := func(text string) {
		os.RemoveAll(ws + "/.git")
		write(t, ws+"/.git", text, 0o644)
	}
	point("gitdir: " + root + "/secrets\n")
	wantRefused(t, w, "not a git directory")
	point("gitdir: ../secrets\n")
	wantRefused(t, w, "not a git directory")
	point("gitdir: " + victim + "/.git\n")
	wantRefused(t, w, "does not say that it belongs")
	point("gitdir: ../victim/.git/worktrees/theirs\n")
	wantRefused(t, w, "not of this workspace")
	point("gitdir: /nowhere\n")
	wantRefused(t, w, "cannot be found")
	for _, text := range []string{"", "\n", "gitdir:", "gitdir: ", "gitdir: a\nb", "gitdir: \x00", "x", "gitdir: /", "gitdir: .", "gitdir: ..", "gitdir: /proc/self/root"} {
		point(text)
		wantRefused(t, w, "not followed")
	}
	point("gitdir: " + strings.Repeat("x", 100<<10))
	wantRefused(t, w, "too large")

	// A forged git directory in the workspace that names the victim's as its
	// common one.
	fake := ws + "/fake"
	write(t, fake+"/HEAD", "ref: refs/heads/main\n", 0o644)
	write(t, fake+"/gitdir", ws+"/.git\n", 0o644)
	write(t, fake+"/commondir", victim+"/.git\n", 0o644)
	point("gitdir: fake\n")
	wantRefused(t, w, "not one of the worktrees")
	// The same by way of symlinks.
	must(t, os.MkdirAll(ws+"/repo", 0o755))
	must(t, os.Symlink(victim+"/.git/worktrees", ws+"/repo/worktrees"))
	point("gitdir: repo/worktrees/theirs\n")
	wantRefused(t, w, "not of this workspace")
	// Its parts as symlinks to what is wanted.
	repo := ws + "/repo2"
	write(t, repo+"/HEAD", "ref: refs/heads/main\n", 0o644)
	write(t, repo+"/config", "[core]\n\tworktree = "+ws+"\n", 0o644)
	must(t, os.Mkdir(repo+"/refs", 0o755))
	must(t, os.Symlink(root+"/secrets", repo+"/objects"))
	point("gitdir: repo2\n")
	wantRefused(t, w, `no directory "objects"`)
	os.Remove(repo + "/objects")
	must(t, os.Mkdir(repo+"/objects", 0o755))
	wantDirs(t, w) // sound, and in the workspace anyway

	// What is no file is not followed, and does not block.
	os.RemoveAll(ws + "/.git")
	must(t, os.Symlink(victim+"/.git", ws+"/.git"))
	wantDirs(t, w)
	os.Remove(ws + "/.git")
	must(t, exec.Command("mkfifo", ws+"/.git").Run())
	wantDirs(t, w)

	// The common directory above the workspace would show all beside it.
	git(t, root, "init", "-q", "--bare", "proj")
	git(t, victim, "push", "-q", root+"/proj", "HEAD:refs/heads/main")
	git(t, root+"/proj", "worktree", "add", "-q", "tree", "main")
	wantRefused(t, open(t, root+"/proj/tree"), "holds the workspace")
}

func FuzzGitFile(f *testing.F) {
	f.Add("gitdir: ../x\n", "[core]\n worktree = \"a\\\\b\"\n")
	f.Add("gitdir: \xff", "[core]worktree=x")
	dir, err := os.MkdirTemp("", "hutch-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(dir) })
	ws, err := Open(dir, true)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text, config string) {
		coreWorktree(config)
		dirs, _ := gitDirs(ws, strings.TrimRight(text, "\r\n"))
		for _, d := range dirs {
			t.Errorf("%q leads to %q", text, d)
		}
	})
}
