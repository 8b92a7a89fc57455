package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// example shows a row at work: what is found, in a workspace that has nothing
// at the path and in one that has before there, and the ordinary work beside it
// that passes.
type example struct {
	row          string
	setup        func(w *world) // of the surroundings
	path, text   string
	before       string // "" for a comment, which every syntax takes
	tier         Tier   // "" for the row's own
	ordinary     string // a path that passes
	ordinaryText string
	ordinaryWas  string // what the host has there; "" for nothing
	after        func(w *world)
}

const gitHead = "ref: refs/heads/main\n"

func venv(w *world) {
	w.host(".venv/pyvenv.cfg", "home = /usr/bin\n").host(".venv/bin/pip", "#!/bin/sh")
}

func freshVenv(w *world) { w.change(".venv/pyvenv.cfg", "home = /usr/bin\n") }

var examples = []example{
	{row: "git-hooks", path: ".git/hooks/pre-commit", text: "#!/bin/sh", ordinary: ".git/hooks/pre-commit.sample", ordinaryText: "#!/bin/sh"},
	{row: "git-hooks", path: ".git/modules/a/hooks/post-checkout", text: "#!/bin/sh", ordinary: ".git/logs/hooks/x", ordinaryText: "x"},
	{row: "git-hooks", setup: func(w *world) { w.host(".git/config", "[core]\n\thooksPath = .githooks\n") },
		path: ".githooks/pre-push", text: "#!/bin/sh", ordinary: "githooks.md", ordinaryText: "x"},
	{row: "git-hooks", setup: func(w *world) { put(w.t, w.home, ".gitconfig", "[core]\n\thooksPath = tools/hooks\n") },
		path: "tools/hooks/pre-push", text: "#!/bin/sh", ordinary: "tools/hook.sh", ordinaryText: "#!/bin/sh"},
	{row: "husky", path: ".husky/pre-commit", text: "npm test", ordinary: "docs/.husky.md", ordinaryText: "x"},
	{row: "hook-managers", setup: func(w *world) { w.host(".git/config", "").host(".git/hooks/pre-commit", "#!/bin/sh") },
		path: ".pre-commit-config.yaml", text: "repos: []", ordinary: ".editorconfig", ordinaryText: "root = true"},
	{row: "hook-managers", tier: Flag, setup: func(w *world) { w.host(".git/config", "").host(".git/hooks/pre-commit.sample", "#!/bin/sh") },
		path: "lefthook.yml", text: "pre-commit: {}", ordinary: "a.yml", ordinaryText: "a: b"},
	{row: "git-config", path: ".git/config", text: "[core]\n\tfsmonitor = ./x\n", before: "[core]\n\tbare = false\n",
		ordinary: "sub/.git/config", ordinaryText: "[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote \"origin\"]\n\turl = https://example.com/a.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n"},
	{row: "git-config", path: ".git/modules/m/config", text: "[diff \"x\"]\n\ttextconv = ./x\n", before: "[core]\n",
		ordinary: ".git/modules/m/description", ordinaryText: "x"},
	{row: "git-config", setup: func(w *world) { w.host(".git/config", "[include]\n\tpath = ../.gitconfig\n") },
		path: ".gitconfig", text: "[alias]\n\tst = !x\n", before: "[user]\n\tname = a\n", ordinary: "other.gitconfig", ordinaryText: "x"},
	{row: "git-config-worktree", path: ".git/config.worktree", text: "[core]\n\tsshCommand = x\n", before: "[core]\n",
		ordinary: ".git/worktrees/w/config.worktree", ordinaryText: "[core]\n\tsparseCheckout = true\n"},
	{row: "git-rebase", path: ".git/rebase-merge/git-rebase-todo", text: "pick 1234 x\nexec ./x\n", before: "pick 1234 x\n",
		ordinary: ".git/rebase-apply/next", ordinaryText: "1"},
	{row: "git-rebase", path: ".git/rebase-merge/strategy", text: "../../x\n", before: "ort\n", ordinary: ".git/sequencer/todo", ordinaryText: "pick 1234 x\n"},
	{row: "git-objects", path: ".git/objects/info/alternates", text: "/tmp/x\n", ordinary: ".git/objects/ab/cdef", ordinaryText: "x"},
	{row: "git-commondir", path: ".git/commondir", text: "../x", ordinary: ".git/worktrees/w/commondir", ordinaryText: "../..\n"},
	{row: "git-link", path: "lib/.git", text: "gitdir: ../../elsewhere\n", before: "gitdir: ../.git/modules/lib\n", ordinary: "w/.git", ordinaryText: "gitdir: ../.git/worktrees/w\n"},
	{row: "git-link", path: "lib/.git", text: "-> ../x", before: "gitdir: ../.git/modules/lib\n", ordinary: "lib/.gitignore", ordinaryText: "x"},
	{row: "git-directory", setup: func(w *world) {
		w.host("meta/objects/x", "").host("meta/config", "[core]\n\tfsmonitor = x\n").change("meta/refs/x", "")
	},
		path: "meta/HEAD", text: gitHead, before: "-> nowhere-yet-and-not-a-head", ordinary: "objects/HEAD", ordinaryText: gitHead},
	{row: "git-directory", setup: func(w *world) { w.host("w/commondir.txt", "").change("w/commondir", "../.git") },
		path: "w/HEAD", text: gitHead, ordinary: "x/HEAD", ordinaryText: gitHead},
	{row: "git-twin", path: ".GIT/hooks/pre-commit", text: "x", ordinary: ".github/x.md", ordinaryText: "x"},
	{row: "git-twin", path: ".g\u200cit/config", text: "x", ordinary: "g\u200cit/config", ordinaryText: "x"},
	{row: "git-twin", path: "git~1/config", text: "x", ordinary: "git~2/config", ordinaryText: "x"},
	{row: "git-modules", path: ".gitmodules", text: "[submodule \"a\"]\n\turl = https://x\n", before: "[submodule \"a\"]\n\turl = https://y\n",
		ordinary: "sub/.gitmodules", ordinaryWas: "[submodule \"a\"]\n\turl = https://y\n", ordinaryText: "[submodule \"a\"]\n\turl = https://y\n\tbranch = x\n"},
	{row: "git-attributes", setup: func(w *world) { w.host(".git/config", "[filter \"lfs\"]\n\tclean = git-lfs\n") },
		path: ".gitattributes", text: "*.bin filter=lfs\n", before: "*.txt text\n", ordinary: "sub/.gitattributes", ordinaryText: "*.sh text eol=lf filter=other diff=python\n"},
	{row: "hutch", path: ".hutch.toml", text: "[guard]\n", ordinary: "hutch.toml", ordinaryText: "x"},
	{row: "harness-settings", path: ".claude/settings.local.json", text: "{}", ordinary: ".claude/todo.txt", ordinaryText: "x"},
	{row: "harness-settings", path: "a/.mcp.json", text: "{}", ordinary: "mcp-server.json", ordinaryText: "{}"},
	{row: "harness-settings", path: ".codex/hooks/x.sh", text: "x", ordinary: "codex/x.sh", ordinaryText: "x"},
	{row: "harness-settings", path: ".cursor/hooks.json", text: "{}", ordinary: ".aiderignore", ordinaryText: "x"},
	{row: "harness-instructions", path: "AGENTS.md", text: "# hi\n", before: "# ho\n", ordinary: "docs/agents-list.md", ordinaryText: "x"},
	{row: "harness-instructions", tier: Hold, path: ".claude/skills/x/SKILL.md", text: "---\nname: x\nhooks:\n  PreToolUse: []\n---\n", before: "---\nname: x\n---\n", ordinary: "README.md", ordinaryText: "---\nhooks: x\n---\n"},
	{row: "harness-instructions", tier: Hold, path: ".claude/agents/x.md", text: "---\n{hooks: {}}\n---\n", ordinary: ".claude/README.md", ordinaryText: "x"},
	{row: "editor-config", path: ".vscode/tasks.json", text: "{}", ordinary: ".vscode/README.md", ordinaryText: "x"},
	{row: "editor-config", path: "x.code-workspace", text: "{}", ordinary: ".editorconfig", ordinaryText: "root = true"},
	{row: "editor-config", path: ".idea/runConfigurations/a.xml", text: "<x/>", ordinary: ".idea/vcs.xml", ordinaryText: "<x/>"},
	{row: "editor-config", path: ".ZED/settings.json", text: "{}", ordinary: "zed/settings.json", ordinaryText: "{}"},
	{row: "rust-analyzer", path: "rust-analyzer.toml", text: "[check]\noverrideCommand = [\"x\"]\n", before: "[check]\ncommand = \"clippy\"\n",
		ordinary: "sub/rust-analyzer.toml", ordinaryText: "[check]\ncommand = \"clippy\"\n"},
	{row: "editor-project-code", path: "eslint.config.mjs", text: "export default []", ordinary: "src/config.mjs", ordinaryText: "x"},
	{row: "editor-project-code", path: "tests/conftest.py", text: "x = 1", ordinary: "node_modules/x/eslint.config.js", ordinaryText: "x"},
	{row: "editor-project-code", path: "build.rs", text: "fn main() {}", ordinary: "target/debug/build/x/build.rs", ordinaryText: "x"},
	{row: "tsconfig-plugins", path: "tsconfig.json", text: "{\"compilerOptions\":{\"plugins\":[{\"name\":\"./x\"}],},}", before: "{}",
		ordinary: "sub/tsconfig.json", ordinaryText: "{ // a comment\n \"compilerOptions\":{\"strict\":true,},}"},
	{row: "cargo-build", path: "Cargo.toml", text: "[lib]\nproc-macro = true\n", before: "[lib]\n", ordinary: "sub/Cargo.toml", ordinaryText: "[package]\nname = \"x\"\n[dependencies]\na = \"1\"\n"},
	{row: "go-toolchain", path: "go.mod", text: "module x\ntoolchain go9\n", before: "module x\ntoolchain go1.22.0\n", ordinary: "sub/go.mod", ordinaryText: "module x\nrequire a v1\n"},
	{row: "go-work", path: "go.work", text: "go 1.22\nuse ./x\n", before: "go 1.22\n", ordinary: "sub/go.sum", ordinaryText: "x"},
	{row: "stdlib-shadow", path: "random.py", text: "x", before: "-", ordinary: "lib/random.py", ordinaryText: "x"},
	{row: "venv-interpreter", setup: venv, path: ".venv/bin/python3", text: "#!/bin/sh\nevil", before: "-> /usr/bin/python3", ordinary: ".venv/bin/black", ordinaryText: "#!/bin/sh"},
	{row: "venv-interpreter", setup: venv, path: ".venv/bin/python", text: "-> ../../evil", before: "-> /usr/bin/python3", ordinary: "bin/python", ordinaryText: "#!/bin/sh"},
	{row: "venv-config", setup: func(w *world) { w.host("env/bin/x", "") }, path: "env/pyvenv.cfg", text: "home = /usr/bin\n", before: "home = /usr/local/bin\n",
		ordinary: "fresh/pyvenv.cfg", ordinaryText: "home = /usr/bin\nversion = 3.11.2\n"},
	{row: "python-startup", setup: venv, path: ".venv/lib/python3.11/site-packages/x.pth", text: "import x\n", ordinary: ".venv/lib/python3.11/site-packages/y.pth", ordinaryText: "../../../../src\n"},
	{row: "python-startup", path: "sitecustomize.py", text: "x", ordinary: "model.pth", ordinaryText: "\x00weights"},
	{row: "python-startup", tier: Open, setup: freshVenv, path: ".venv/lib/python3.11/site-packages/distutils-precedence.pth", text: startupLines[1], before: "-",
		ordinary: ".venv/lib/python3.11/site-packages/_distutils_hack/__init__.py", ordinaryText: "x"},
	{row: "path-program", setup: func(w *world) { w.searchPath = []string{"/usr/bin", w.workspace + "/bin", "./scripts"} },
		path: "bin/ls", text: "#!/bin/sh", ordinary: "bin/README", ordinaryText: "x"},
	{row: "path-program", setup: func(w *world) { w.searchPath = []string{"scripts"} }, path: "scripts/x", text: "#!/bin/sh", ordinary: "scripts/sub/x", ordinaryText: "#!/bin/sh"},
	{row: "direnv", path: ".envrc", text: "use flake", ordinary: ".envrc.example", ordinaryText: "x"},
	{row: "nix-shell", setup: func(w *world) { w.host(".envrc", "use flake") }, path: "flake.nix", text: "{}", ordinary: "pkgs/a.nix", ordinaryText: "{}"},
	{row: "nix-shell", tier: Flag, path: "shell.nix", text: "{}", ordinary: "b.nix", ordinaryText: "{}"},
	{row: "mise", path: "mise.toml", text: "[env]\nA = \"b\"\n", before: "[tools]\nnode = \"20\"\n", ordinary: "sub/mise.toml", ordinaryText: "[tools]\nnode = \"20\"\n"},
	{row: "tool-versions", path: ".tool-versions", text: "node path:./x\n", before: "node 20\n", ordinary: "sub/.tool-versions", ordinaryText: "node 20.1\n"},
	{row: "dotenv", path: ".env", text: "A=b\nexport LD_PRELOAD=./x.so\n", before: "A=b\n", ordinary: "sub/.env", ordinaryText: "DATABASE_URL=x\nPORT=3\nVITE_API_BASE_URL=x\n"},
	{row: "dotenv", path: "svc/.env.local", text: "ANTHROPIC_BASE_URL=http://x\n", before: "A=b\n", ordinary: ".env.example", ordinaryText: "PATH=x\n"},
	{row: "home", setup: func(w *world) { w.home = w.workspace + "/me" }, path: "me/.bashrc", text: "x", ordinary: "other/.bashrc", ordinaryText: "x"},
	{row: "home", setup: func(w *world) { w.home = w.workspace + "/me" }, path: "me/.config/hutch/config.toml", text: "x", ordinary: "me/.config/other/config.toml", ordinaryText: "x"},
	{row: "home", setup: func(w *world) { must(w.t, os.Symlink(w.workspace+"/zsh/rc", w.home+"/.zshrc")) }, path: "zsh/rc", text: "x", ordinary: "zsh/rc2", ordinaryText: "x"},
	{row: "link-outside", path: "l", text: "-> ../home/x", before: "-> a", ordinary: "m", ordinaryText: "-> /usr/bin/env"},
	{row: "link-outside", path: "l", text: "-> /etc/passwd", before: "-> a", ordinary: "d/m", ordinaryText: "-> ../a/b"},
	{row: "link-onto", path: "l", text: "-> .git/hooks", before: "-> a", ordinary: "m", ordinaryText: "-> docs"},
	{row: "link-onto", path: "d/l", text: "-> ../.vscode/tasks.json", before: "-> a", ordinary: "node_modules/.bin/x", ordinaryText: "-> ../x/cli.js"},
	{row: "link-for-directory", setup: func(w *world) { w.host("d/x", "x").remove("d/x") }, path: "d", text: "-> e", before: "dir", ordinary: "f", ordinaryText: "-> e"},
	{row: "hard-link", after: func(w *world) { must(w.t, os.Link(w.layer+"/a.txt", w.home+"/b.txt")) }, path: "a.txt", text: "x", ordinary: "c.txt", ordinaryText: "x"},
	{row: "setuid", after: func(w *world) { must(w.t, os.Chmod(w.layer+"/s", 0o755|os.ModeSetuid)) }, path: "s", text: "#!x", ordinary: "t", ordinaryText: "#!x"},
	{row: "world-writable", after: func(w *world) { must(w.t, os.Chmod(w.layer+"/s", 0o666)) }, path: "s", text: "x", ordinary: "t", ordinaryText: "x"},
	{row: "executable", path: "s.sh", text: "#!x", before: "x", ordinary: "t.sh", ordinaryText: "#!x"},
	{row: "package-config", path: ".npmrc", text: "x=y", ordinary: "package-lock.json", ordinaryText: "{}"},
	{row: "package-config", path: ".yarn/releases/yarn.cjs", text: "x", ordinary: ".yarn/install-state.gz", ordinaryText: "x"},
	{row: "package-config", path: ".cargo/config.toml", text: "x=1", ordinary: "Cargo.lock", ordinaryText: "x"},
	{row: "package-json-config", path: "package.json", text: `{"packageManager":"yarn@https://x/y.js"}`, before: "{}", ordinary: "sub/package.json", ordinaryText: `{"packageManager":"pnpm@9.1.0","scripts":{"test":"x"},"dependencies":{"a":"1"}}`},
	{row: "package-json-config", setup: func(w *world) { w.host(".husky/pre-commit", "npx lint-staged") },
		path: "package.json", text: `{"lint-staged":{"*.js":"x"}}`, before: "{}", ordinary: "x.json", ordinaryText: "{}"},
	{row: "wrapper-properties", path: "gradle/wrapper/gradle-wrapper.properties", text: "distributionUrl=https\\://example.com/gradle.zip\n", before: "distributionUrl=https\\://services.gradle.org/distributions/gradle-8-bin.zip\n",
		ordinary: "gradle/libs.versions.toml", ordinaryText: "x"},
	{row: "wrapper-properties", tier: Flag, path: "gradle/wrapper/gradle-wrapper.properties", text: "distributionUrl=https\\://services.gradle.org/distributions/gradle-9-bin.zip\n", before: "distributionUrl=https\\://services.gradle.org/distributions/gradle-8-bin.zip\n",
		ordinary: "gradle/libs.versions.toml", ordinaryText: "x"},
	{row: "gradle-properties", path: "gradle.properties", text: "org.gradle.jvmargs=-javaagent:x.jar\n", before: "version=1\n", ordinary: "sub/gradle.properties", ordinaryText: "version=2\norg.gradle.jvmargs=-Xmx2g -Dfile.encoding=UTF-8\n"},
	{row: "pnpm-workspace", path: "pnpm-workspace.yaml", text: "packages:\n  - a\nconfigDependencies:\n  x: 1\n", before: "packages:\n  - a\n", ordinary: "sub/pnpm-workspace.yaml", ordinaryText: "packages:\n- a\ncatalog:\n  x: 1\n"},
	{row: "bunfig", path: "bunfig.toml", text: "preload = [\"./x\"]\n", before: "[test]\ncoverage = true\n", ordinary: "sub/bunfig.toml", ordinaryText: "[test]\ncoverage = true\n"},
	{row: "rust-toolchain", path: "rust-toolchain.toml", text: "[toolchain]\npath = \"x\"\n", before: "[toolchain]\nchannel = \"1.80\"\n", ordinary: "rust-toolchain", ordinaryText: "nightly\n"},
	{row: "pylint", path: ".pylintrc", text: "[MAIN]\ninit-hook='x'\n", before: "[MAIN]\n", ordinary: "setup.cfg", ordinaryText: "[metadata]\nname = x\n"},
	{row: "pylint", path: ".pylintrc.toml", text: "[main]\n\"init-hook\" = 'x'\n", before: "[main]\n", ordinary: "sub/.pylintrc", ordinaryText: "[MAIN]\njobs=1\n"},
	{row: "pyproject-tools", path: "pyproject.toml", text: "[tool.pylint.main]\ninit-hook = 'x'\n", before: "[project]\n", ordinary: "sub/pyproject.toml", ordinaryText: "[project]\nname = 'x'\ndependencies = ['a']\n"},
	{row: "package-scripts", path: "package.json", text: `{"scripts":{"postinstall":"x"}}`, before: `{"scripts":{"postinstall":"y"}}`, ordinary: "node_modules/x/package.json", ordinaryText: `{"scripts":{"postinstall":"x"}}`},
	{row: "python-build", path: "pyproject.toml", text: "[build-system]\nbuild-backend = 'x'\n", before: "[build-system]\nbuild-backend = 'y'\n", ordinary: "sub/pyproject.toml", ordinaryText: "[project]\nversion = '2'\n"},
	{row: "project-builds", path: "Makefile", text: "x:\n", ordinary: "docs/make.md", ordinaryText: "x"},
	{row: "go-generate", path: "a.go", text: "package a\n//go:generate x\n", before: "package a\n", ordinary: "b.go", ordinaryText: "package a\n"},
	{row: "ci", path: ".github/workflows/x.yml", text: "on: push", ordinary: ".github/FUNDING.yml", ordinaryText: "x"},
	{row: "containers", path: "Dockerfile", text: "FROM x", ordinary: ".dockerignore", ordinaryText: "x"},
	{row: "desktop", path: "a.desktop", text: "[Desktop Entry]", ordinary: "desktop.md", ordinaryText: "x"},
}

func TestEveryRow(t *testing.T) {
	covered := map[string]bool{}
	for _, x := range examples {
		covered[x.row] = true
		row := ruleOf(x.row)
		want := x.tier
		if want == "" {
			want = row.Tier
		}
		for _, existed := range []bool{false, true} {
			name := x.row + " " + x.path
			if existed {
				name += " existed"
			}
			if !existed && x.row == "executable" || existed && x.before == "-" || !existed && x.before == "dir" {
				continue // what the row is about
			}
			t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
				w := newWorld(t)
				if x.setup != nil {
					x.setup(w)
				}
				if existed && x.before != "dir" {
					before := x.before
					if before == "" {
						before = "# as it was\n"
					}
					w.host(x.path, before)
				}
				w.change(x.path, x.text)
				if x.ordinaryWas != "" {
					w.host(x.ordinary, x.ordinaryWas)
				}
				w.change(x.ordinary, x.ordinaryText)
				if x.after != nil {
					x.after(w)
				}
				findings := w.judge()
				found := false
				for _, f := range findings {
					found = found || f.Path == x.path && f.Rule == x.row && f.Tier == want
				}
				if !found {
					t.Errorf("%s is not found: %+v", x.path, findings)
				}
				if tier, rule := tierAt(findings, x.ordinary); tier != "" {
					t.Errorf("%s does not pass: %s %s", x.ordinary, tier, rule)
				}
			})
		}
	}
	// Only root can set them; and what git would deliver takes a repository.
	covered["capabilities"], covered["git-delivery"], covered["git-replace"], covered["git-forged"] = true, true, true, true
	for _, row := range Table() {
		if !covered[row.ID] {
			t.Errorf("no example of %s", row.ID)
		}
	}
}

// TestCapabilities: only root can give them; the other user sees that a file
// without passes.
func TestCapabilities(t *testing.T) {
	w := newWorld(t).change("a", "#!x").change("b", "#!x")
	want := Tier("")
	if os.Getuid() == 0 {
		// cap_net_raw, effective, as setcap(8) writes it (revision 2).
		value := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		must(t, unix.Setxattr(filepath.Join(w.layer, "a"), "security.capability", value, 0))
		want = Hold
	}
	findings := w.judge()
	if tier, rule := tierAt(findings, "a"); tier != want || want != "" && rule != "capabilities" {
		t.Errorf("%s %s", tier, rule)
	}
	if tier, _ := tierAt(findings, "b"); tier != "" {
		t.Error(findings)
	}
}

// TestEveryPattern: each pattern of each row finds a path that it spells.
func TestEveryPattern(t *testing.T) {
	for i, row := range Table() {
		for _, text := range row.Paths {
			path := strings.TrimPrefix(text, "/")
			if path, ok := strings.CutSuffix(path, "/**"); ok {
				checkIndexed(t, i, path+"/some/file")
			}
			path = strings.ReplaceAll(strings.TrimSuffix(path, "/**"), "*", "x")
			if !strings.HasSuffix(text, "/**") {
				checkIndexed(t, i, path)
				if !strings.HasPrefix(text, "/") {
					checkIndexed(t, i, "some/project/"+path)
				}
			}
			if folded := fold(text); folded != text {
				t.Errorf("%s: the pattern %q is not folded", row.ID, text)
			}
		}
	}
}

func checkIndexed(t *testing.T, row int, path string) {
	t.Helper()
	found := false
	theIndex().rows(strings.Split(path, "/"), func(at int) { found = found || at == row })
	if !found {
		t.Errorf("row %s does not find %q", rows[row].ID, path)
	}
}
