package run

import (
	"path/filepath"
	"strings"
	"testing"

	"hutch/test/lab"
)

const gitUser = "git config --global user.name t; git config --global user.email t@t; git config --global init.defaultBranch main; git config --global protocol.file.allow always\n"

// repository makes a git repository with history in the workspace, with a
// submodule in it and a linked worktree beside it, and returns the worktree.
func repository(w *lab.World) (worktree string) {
	w.T.Helper()
	worktree = filepath.Join(w.Base, "worktree")
	w.Host("sh", "-ec", gitUser+`
		mkdir ../sub; cd ../sub; git init -q; echo s > s.txt; git add .; git commit -qm sub; cd ../ws
		git init -q
		for i in 1 2 3; do echo "line $i" >> f.txt; git add f.txt; git commit -qm "commit $i"; done
		git submodule --quiet add ../sub sub; git commit -qm submodule
		git worktree add -q -b other `+worktree+`
		git gc -q`)
	return worktree
}

func TestGitInARepository(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		worktree := repository(w)
		before := w.Snap()
		for _, dir := range []string{w.Dir, worktree, filepath.Join(w.Dir, "sub")} {
			r := w.RunWith(lab.Options{Dir: dir}, "run", "--strategy", w.Strategy.Name, "--", "sh", "-ec",
				"git status --porcelain; git log --oneline | cat; git diff --stat; git rev-parse --show-toplevel")
			w.Want(r, 0)
			if !strings.HasSuffix(r.Stdout, dir+"\n") || strings.Contains(r.Stdout, "??") {
				t.Errorf("git in %s\n%v", dir, r)
			}
			want := "commit 3"
			if filepath.Base(dir) == "sub" {
				want = "sub"
			}
			if !strings.Contains(r.Stdout, want) {
				t.Errorf("git log in %s lacks %q\n%v", dir, want, r)
			}
			if r.Stderr != "" {
				t.Errorf("git in %s complains: %s", dir, r.Stderr)
			}
		}
		w.Untouched(before)
	})
}

func TestGitNoiseStaysOutOfTheChangeset(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		repository(w)
		before := w.Snap()
		out, r := w.JSON("--commit", "--", "sh", "-ec", "touch f.txt; git status >/dev/null; : > .DS_Store")
		w.Want(r, 0)
		if out.FilesystemModified {
			t.Errorf("changeset %+v", out.Diff)
		}
		for _, d := range before.Without(".git").Diff(w.Snap().Without(".git")) {
			t.Errorf("promoted noise: %s", d)
		}
	})
}

func TestCommitMadeInTheBoxFollowsWithGitInclude(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		repository(w)
		out, r := w.JSON("--commit", "--", "sh", "-ec", `
			echo box >> f.txt; git add f.txt
			git -c user.name=b -c user.email=b@b commit -qm 'made in the box'`)
		w.Want(r, 0)
		if !out.GitChanged || !out.Kept || !out.Committed {
			t.Fatalf("git_changed %v kept %v committed %v, want all\n%v", out.GitChanged, out.Kept, out.Committed, r)
		}
		if got := w.Read("f.txt"); !strings.HasSuffix(got, "box\n") {
			t.Errorf("f.txt was not promoted: %q", got)
		}
		if log := w.Host("git", "log", "--oneline"); strings.Contains(log, "made in the box") {
			t.Error("the commit is on the host before --git include")
		}
		w.Want(w.Run("commit", out.ID, "--git", "include"), 0)
		if log := w.Host("git", "log", "--oneline"); !strings.Contains(log, "made in the box") {
			t.Errorf("the commit did not follow:\n%s", log)
		}
		w.Host("git", "fsck", "--strict")
		if status := w.Host("git", "status", "--porcelain"); status != "" {
			t.Errorf("git status on the host: %q", status)
		}
	})
}

func TestCommitWithGitIncludeAtOnce(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		repository(w)
		out, r := w.JSON("--commit", "--git", "include", "--", "sh", "-ec", `
			git checkout -q -b feature; echo box > new.txt; git add new.txt
			git -c user.name=b -c user.email=b@b commit -qm 'made in the box'`)
		w.Want(r, 0)
		if !out.Committed || out.Kept {
			t.Errorf("committed %v kept %v", out.Committed, out.Kept)
		}
		w.Host("git", "fsck", "--strict")
		if got := w.Host("git", "log", "--oneline", "feature"); !strings.Contains(got, "made in the box") {
			t.Errorf("log:\n%s", got)
		}
		if status := w.Host("git", "status", "--porcelain"); status != "" {
			t.Errorf("git status on the host: %q", status)
		}
	})
}

func TestPythonProjectWithPytest(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		python := pythonWith(t, "pytest")
		w.Write("pkg/__init__.py", "")
		w.Write("pkg/core.py", "def add(a, b):\n    return a + b\n")
		w.Write("tests/test_core.py", "from pkg.core import add\n\ndef test_add(tmp_path):\n    (tmp_path / 'f').write_text('x')\n    assert add(1, 2) == 3\n")
		before := w.Snap()
		out, r := w.JSON("--", python, "-m", "pytest", "-q")
		w.Want(r, 0)
		if !strings.Contains(out.Stdout, "1 passed") {
			t.Errorf("pytest: %v", r)
		}
		created := strings.Join(out.Diff.FilesCreated, "\n")
		for _, want := range []string{".pytest_cache/", "pkg/__pycache__/", "tests/__pycache__/"} {
			if !strings.Contains(created, want+"\n") {
				t.Errorf("the changeset lacks %s: %q", want, created)
			}
		}
		w.Untouched(before)

		w.Want(w.Box("--commit", "--", python, "-m", "pytest", "-q"), 0)
		if !w.Exists(".pytest_cache/v/cache/nodeids") {
			t.Error("pytest's cache was not promoted")
		}
		// Over its own promoted caches, and with a test that fails.
		w.Write("tests/test_bad.py", "def test_bad():\n    assert False\n")
		before = w.Snap()
		w.Want(w.Box("--commit", "--", python, "-m", "pytest", "-q"), 1)
		w.Untouched(before)
	})
}

func TestNodeProjectWithLinkedBins(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Write("package.json", `{"name":"app","version":"1.0.0","scripts":{"build":"tool src out"}}`+"\n")
		w.Write("src/index.js", "module.exports = 42\n")
		for _, p := range []string{"tool", "dep"} {
			w.Write("node_modules/"+p+"/package.json", `{"name":"`+p+`","version":"1.0.0","main":"index.js"}`+"\n")
		}
		w.Write("node_modules/dep/index.js", "exports.double = n => 2 * n\n")
		w.Write("node_modules/tool/cli.js", `#!/usr/bin/env node
const fs = require('fs'), path = require('path'), { double } = require('dep')
const n = require(path.resolve(process.argv[2], 'index.js'))
fs.mkdirSync(process.argv[3], { recursive: true })
fs.writeFileSync(path.join(process.argv[3], 'n.json'), JSON.stringify(double(n)))
`)
		w.Host("sh", "-ec", "chmod 755 node_modules/tool/cli.js; mkdir node_modules/.bin; ln -s ../tool/cli.js node_modules/.bin/tool")
		before := w.Snap()
		w.Want(w.Box("--", "node_modules/.bin/tool", "src", "out"), 0)
		w.Untouched(before)
		r := w.Box("--commit", "--", "node_modules/.bin/tool", "src", "out")
		w.Want(r, 0)
		if got := w.Read("out/n.json"); got != "84" {
			t.Errorf("out/n.json holds %q", got)
		}
		for _, d := range before.Without(".").Diff(w.Snap().Without(".", "out", ".hutch")) {
			t.Errorf("something else changed: %s", d)
		}
	})
}

func TestGoModuleWithAWarmCache(t *testing.T) {
	// No import: what is compiled is the runtime, once for all worlds.
	warm, shared := "", t.TempDir()
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Write("go.mod", "module example\n\ngo 1.24\n")
		w.Write("main.go", "package main\n\nimport \"example/lib\"\n\nfunc main() { println(lib.N) }\n")
		w.Write("lib/lib.go", "package lib\n\nconst N = 42\n")
		w.Env = append(w.Env, "GOFLAGS=-mod=mod", "GOPROXY=off", "GOTOOLCHAIN=local", "GOTELEMETRY=off")
		cache := filepath.Join(w.Home, ".cache", "go-build")
		w.Host("mkdir", "-p", filepath.Dir(cache))
		if warm == "" {
			warm = filepath.Join(shared, "go-build")
			w.Host("env", "GOCACHE="+warm, "go", "build", "-o", "/dev/null", ".")
		}
		w.Host("cp", "-a", warm, cache)
		w.Host("go", "build", "-o", "/dev/null", ".") // packages of the module itself
		before, cached := w.Snap(), lab.Snapshot(t, cache)
		const env = "export GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local; "
		r := w.Box("--", "sh", "-ec", env+"go build -x -o app . 2>log; ./app 2>&1; grep -c /compile log || true")
		w.Want(r, 0)
		if r.Stdout != "42\n0\n" {
			t.Errorf("output and number of compilations: %q, want 42 and 0: the cache is not warm", r.Stdout)
		}
		// A change is compiled, into a cache that nothing leaks from.
		r = w.Box("--commit", "--", "sh", "-ec", env+"echo 'package lib\n\nconst N = 43' > lib/lib.go; go build -o app .; ./app 2>&1")
		w.Want(r, 0)
		if r.Stdout != "43\n" {
			t.Errorf("stdout %q", r.Stdout)
		}
		for _, d := range cached.Diff(lab.Snapshot(t, cache)) {
			t.Errorf("the host's build cache changed: %s", d)
		}
		if got := strings.TrimSpace(w.Host("./app")); got != "43" {
			t.Errorf("the promoted program prints %q", got)
		}
		for _, d := range before.Without(".", "lib").Diff(w.Snap().Without(".", "lib", "app", ".hutch")) {
			t.Errorf("something else changed: %s", d)
		}
	})
}
