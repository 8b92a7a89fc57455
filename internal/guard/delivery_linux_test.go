package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repo is a world whose layer is a full copy of a git repository.
func repo(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.overlay = ""
	git(t, w.workspace, "init", "-q", "-b", "main")
	w.host("main.c", "int main;").host("sub/x", "x")
	git(t, w.workspace, "add", "-A")
	git(t, w.workspace, "commit", "-qm", "first")
	must(t, os.Remove(w.layer))
	if out, err := exec.Command("cp", "-a", w.workspace, w.layer).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v %s", err, out)
	}
	return w
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME="+dir,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestDelivery: the file is in git, and not in the tree.
func TestDelivery(t *testing.T) {
	const task = ".vscode/tasks.json"
	plant := func(t *testing.T, dir string) {
		put(t, dir, task, "{}")
		git(t, dir, "add", "-f", task)
	}
	for _, x := range []struct {
		name, at, delivers string // at: how the path begins
		do                 func(t *testing.T, dir string)
	}{
		{"branch", ".git/refs/heads/x", task, func(t *testing.T, dir string) {
			git(t, dir, "checkout", "-qb", "x")
			plant(t, dir)
			git(t, dir, "commit", "-qm", "x")
			git(t, dir, "checkout", "-q", "main")
		}},
		{"current branch, tree restored", ".git/refs/heads/main", task, func(t *testing.T, dir string) {
			plant(t, dir)
			git(t, dir, "commit", "-qm", "x")
			must(t, os.RemoveAll(filepath.Join(dir, ".vscode")))
		}},
		{"packed", ".git/packed-refs", task, func(t *testing.T, dir string) {
			git(t, dir, "checkout", "-qb", "x")
			plant(t, dir)
			git(t, dir, "commit", "-qm", "x")
			git(t, dir, "checkout", "-q", "main")
			git(t, dir, "pack-refs", "--all")
			git(t, dir, "-c", "gc.writeCommitGraph=false", "repack", "-qad")
		}},
		{"tag", ".git/refs/tags/v1", task, func(t *testing.T, dir string) {
			git(t, dir, "checkout", "-q", "--detach")
			plant(t, dir)
			git(t, dir, "commit", "-qm", "x")
			git(t, dir, "tag", "-am", "x", "v1")
			git(t, dir, "checkout", "-q", "main")
		}},
		{"stash", ".git/", task, func(t *testing.T, dir string) {
			plant(t, dir)
			git(t, dir, "stash", "-q")
		}},
		{"stash of untracked", ".git/", task, func(t *testing.T, dir string) {
			put(t, dir, task, "{}")
			git(t, dir, "stash", "-qu")
		}},
		{"index", ".git/index", task, func(t *testing.T, dir string) {
			plant(t, dir)
			must(t, os.RemoveAll(filepath.Join(dir, ".vscode")))
		}},
		{"replace", ".git/refs/replace/", "", func(t *testing.T, dir string) {
			plant(t, dir)
			git(t, dir, "commit", "-qm", "x")
			new := git(t, dir, "rev-parse", "HEAD")
			git(t, dir, "reset", "-q", "--hard", "HEAD^")
			git(t, dir, "replace", "HEAD", new)
		}},
		{"link", ".git/refs/heads/x", "l", func(t *testing.T, dir string) {
			git(t, dir, "checkout", "-qb", "x")
			put(t, dir, "l", "-> /etc/passwd")
			git(t, dir, "add", "l")
			git(t, dir, "commit", "-qm", "x")
			git(t, dir, "checkout", "-q", "main")
		}},
		{"forged", ".git/objects/", "", func(t *testing.T, dir string) {
			put(t, dir, "y", "y")
			git(t, dir, "add", "y")
			id := git(t, dir, "rev-parse", ":y")
			blob := filepath.Join(dir, ".git/objects", id[:2], id[2:])
			other := git(t, dir, "rev-parse", "HEAD:main.c")
			text, err := os.ReadFile(filepath.Join(dir, ".git/objects", other[:2], other[2:]))
			must(t, err)
			must(t, os.Remove(blob))
			must(t, os.WriteFile(blob, text, 0o444))
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := repo(t)
			x.do(t, w.layer)
			findings := w.judge()
			found := false
			for _, f := range findings {
				found = found || f.Tier == Hold && f.Delivers == x.delivers && strings.HasPrefix(f.Path, x.at)
				if f.Delivers != "" && !strings.Contains(f.Line(), f.Path+" → "+f.Delivers+": ") {
					t.Error(f.Line())
				}
			}
			if !found {
				t.Errorf("%+v", findings)
			}
			// Allowed by the name of what is delivered, or of the ref.
			if x.delivers != "" {
				w.allow = []string{x.delivers}
				for _, f := range w.judge() {
					if f.Tier == Hold {
						t.Errorf("allowed, and yet %+v", f)
					}
				}
				w.allow = []string{".git/"}
				for _, f := range w.judge() {
					if f.Tier == Hold && f.Delivers != "" {
						t.Errorf("allowed, and yet %+v", f)
					}
				}
			}
		})
	}
}

// TestOrdinaryGit: work with git that delivers nothing new passes unflagged.
func TestOrdinaryGit(t *testing.T) {
	for name, do := range map[string]func(dir string){
		"commit": func(dir string) {
			put(t, dir, "new.c", "x")
			git(t, dir, "add", "-A")
			git(t, dir, "commit", "-qm", "second")
		},
		"branches and tags": func(dir string) {
			git(t, dir, "checkout", "-qb", "feature")
			put(t, dir, "new.c", "x")
			git(t, dir, "add", "-A")
			git(t, dir, "commit", "-qm", "second")
			git(t, dir, "tag", "v1")
			git(t, dir, "checkout", "-q", "main")
			git(t, dir, "merge", "-q", "--no-ff", "-m", "merge", "feature")
			git(t, dir, "branch", "-qd", "feature")
		},
		"stash and pop": func(dir string) {
			must(t, os.WriteFile(dir+"/main.c", []byte("other"), 0o644))
			git(t, dir, "stash", "-q")
			git(t, dir, "stash", "pop", "-q")
		},
		"stash": func(dir string) {
			must(t, os.WriteFile(dir+"/main.c", []byte("other"), 0o644))
			git(t, dir, "stash", "-q")
		},
		"status": func(dir string) { git(t, dir, "status") },
		"add":    func(dir string) { put(t, dir, "new.c", "x"); git(t, dir, "add", "-A") },
		"rebase": func(dir string) {
			put(t, dir, "new.c", "x")
			git(t, dir, "add", "-A")
			git(t, dir, "commit", "-qm", "second")
			git(t, dir, "rebase", "-q", "--root")
		},
		"repack":   func(dir string) { git(t, dir, "repack", "-qad"); git(t, dir, "pack-refs", "--all") },
		"worktree": func(dir string) { git(t, dir, "worktree", "add", "-q", ".worktrees/a") },
		"init of another": func(dir string) {
			git(t, dir, "init", "-q", "other")
			put(t, dir, "other/a", "a")
			git(t, dir+"/other", "add", "-A")
			git(t, dir+"/other", "commit", "-qm", "x")
		},
		"clone": func(dir string) { git(t, dir, "clone", "-q", "--no-hardlinks", ".", "copy") },
		"config": func(dir string) {
			git(t, dir, "config", "user.name", "me")
			git(t, dir, "remote", "add", "origin", "https://example.com/x.git")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := repo(t)
			do(w.layer)
			c := w.changes()
			if c.Empty() {
				t.Fatal("nothing changed")
			}
			if name == "worktree" {
				// git writes absolute paths, and the layer's is not the workspace's.
				text, err := os.ReadFile(w.layer + "/.worktrees/a/.git")
				must(t, err)
				must(t, os.WriteFile(w.layer+"/.worktrees/a/.git", []byte(strings.ReplaceAll(string(text), w.layer, w.workspace)), 0o644))
			}
			for _, f := range w.judge() {
				t.Errorf("%+v", f)
			}
		})
	}
}
