package guard

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEmptyChange(t *testing.T) {
	w := newWorld(t)
	if n := testing.AllocsPerRun(100, func() { Judge(Request{Changes: w.changes()}) }); n > 1000 {
		t.Error(n)
	}
	r := w.request()
	r.Layer, r.Workspace = -1, -1 // not even looked at
	if findings, err := Judge(r); findings != nil || err != nil {
		t.Error(findings, err)
	}
}

func TestAllowAndProtect(t *testing.T) {
	load := func(text string) *Rules {
		r := &Rules{}
		must(t, r.add("config.toml", []byte(text), false))
		return r
	}
	for _, c := range []struct {
		allow, protect []string
		rules          *Rules
		want           Tier
	}{
		{want: Hold},
		{allow: []string{".vscode/"}},
		{allow: []string{"/.vscode/tasks.json"}},
		{allow: []string{"*.json", "!tasks.json"}, want: Hold},
		{rules: load("[guard]\nallow = ['.vscode/tasks.json']\n")},
		{rules: load("[guard]\nallow = ['.vscode/tasks.json']\nprotect = ['.vscode/']\n"), want: Hold},
		{rules: load("[guard]\nallow = ['*']\n"), protect: []string{"*.json"}, want: Hold},
		{rules: load("[guard]\nprotect = ['.vscode/']\n"), allow: []string{".vscode/"}},
	} {
		w := newWorld(t).change(".vscode/tasks.json", "{}").change("a.c", "x")
		w.allow, w.protect, w.rules = c.allow, c.protect, c.rules
		findings := w.judge()
		if tier, _ := tierAt(findings, ".vscode/tasks.json"); tier != c.want {
			t.Errorf("%+v: %+v", c, findings)
		}
		if tier, _ := tierAt(findings, "a.c"); tier != "" {
			t.Errorf("%+v", findings)
		}
	}
	w := newWorld(t).host("a.c", "x").remove("a.c")
	w.protect = []string{"a.c"}
	if tier, rule := tierAt(w.judge(), "a.c"); tier != Hold || rule != "protected" {
		t.Error("deleting a protected path passes")
	}
	w.protect = []string{"[a"}
	if _, err := Judge(w.request()); err == nil || !strings.Contains(err.Error(), "--protect") {
		t.Error(err)
	}
}

func TestLoad(t *testing.T) {
	const rule = "[[guard.rule]]\nid = 'mine'\npaths = ['deploy/**']\ntier = '%s'\nwho = 'the deployer'\nwhen = 'at night'\nwhy = 'it is root'\n"
	for _, c := range []struct {
		user, workspace string
		err             string // in the error; "" for none
		tier            Tier   // of deploy/x; "" for none
	}{
		{},
		{user: fmt.Sprintf(rule, "flag"), tier: Flag},
		{user: "[other]\nx = 1\n" + fmt.Sprintf(rule, "open") + "[later]\ny = 2\n", tier: Open},
		{workspace: fmt.Sprintf(rule, "hold"), tier: Hold},
		{workspace: "[guard]\nprotect = ['deploy/']\n", user: "[guard]\nallow = ['deploy/']\n", tier: Hold},
		{workspace: fmt.Sprintf(rule, "hold"), user: "[guard]\nallow = ['deploy/']\n"},
		{workspace: "[guard]\nallow = ['x']\n", err: ".hutch.toml: [guard] has allow"},
		{workspace: fmt.Sprintf(rule, "flag"), err: "only have tier hold"},
		{user: fmt.Sprintf(rule, "pass"), err: `tier "pass"`},
		{user: "[[guard.rule]]\nid = 'x'\n", err: "must all be given"},
		{user: strings.ReplaceAll(fmt.Sprintf(rule, "hold"), "mine", "git-hooks"), err: "choose another"},
		{user: "# a comment\n\n[guard]\nalow = ['x']\n", err: "config.toml:4: unknown key guard.alow"},
		{user: "[[guard.rule]]\nident = 'x'\n", err: "config.toml:2: unknown key guard.rule.ident"},
		{user: "[guard]\nallow = ['[x']\n", err: "allow: pattern"},
		{user: "[guard]\nallow = 'x'\n", err: "config.toml:2: "},
		{user: "[guard\n", err: "config.toml:1: "},
		{user: "#" + strings.Repeat("x", maxRules), err: "larger than 1 MiB"},
		{workspace: "-> /etc/hostname", err: "read the guard's rules"},
		{workspace: "dir", err: "is no file"},
	} {
		w := newWorld(t).change("deploy/x", "x")
		user := filepath.Join(w.home, "config.toml")
		if c.user != "" {
			put(t, w.home, "config.toml", c.user)
		}
		if c.workspace != "" {
			w.host(".hutch.toml", c.workspace)
		}
		r := w.request()
		var err error
		r.Rules, err = Load(user, r.Workspace)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		must(t, err)
		findings, err := Judge(r)
		must(t, err)
		if tier, _ := tierAt(findings, "deploy/x"); tier != c.tier {
			t.Errorf("%+v: %+v", c, findings)
		}
	}
}

func TestRestricting(t *testing.T) {
	for _, c := range []struct {
		path, before, after string // after: "" deletes
		want                Tier
	}{
		{".claude/settings.json", `{"permissions":{"deny":["Bash"]}}`, "", Hold},
		{".claude/settings.json", `{"permissions":{"deny":["Bash"]}}`, " ", Hold},
		{".git/hooks/pre-push", "#!/bin/sh", "", Hold},
		{".husky/pre-commit", "x", "", Hold},
		{".hutch.toml", "[guard]", "", Hold},
		{".npmrc", "ignore-scripts=true", "", Hold},
		{"pnpm-workspace.yaml", "onlyBuiltDependencies: []\n", "packages: []\n", Hold},
		{"pnpm-workspace.yaml", "packages: [a]\n", "", ""},
		{".git/config", "[core]\n\tprotectNTFS = true\n", "[core]\n", Hold},
		{".git/config", "[core]\n\tfilemode = true\n", "[core]\n", ""},
		{".github/workflows/check.yml", "x", "", Flag},
		{".envrc", "x", "", ""},
		{"Makefile", "x", "", ""},
		{".gitignore", "x", "", ""},
		{"AGENTS.md", "x", "", ""},
	} {
		w := newWorld(t).host(c.path, c.before)
		if c.after == "" {
			w.remove(c.path)
		} else {
			w.change(c.path, c.after)
		}
		findings := w.judge()
		if tier, _ := tierAt(findings, c.path); tier != c.want {
			t.Errorf("%+v: %+v", c, findings)
		}
	}
}

// TestTwins: names that some file system takes for a protected one.
func TestTwins(t *testing.T) {
	for _, path := range []string{".VSCode/Tasks.JSON", ".vscode/tas\u212as.json", ".vscode/ta\u017fks.json", ".vs\u200dcode/tasks.json", ".vscode/tasks.json.", ".vscode /tasks.json",
		".vscode/tasks.json::$DATA", ".claude/\ufeffsettings.json", ".CLAUDE/settings.json", ".envr\u00adc", ".\u2064envrc", ".npmrc ", ".husky./x", ".zed\u180e/x", "\ufb01x/.envrc"} {
		w := newWorld(t).change(path, "{}")
		if findings := w.judge(); len(findings) != 1 || findings[0].Tier != Hold {
			t.Errorf("%q: %+v", path, findings)
		}
	}
	for _, path := range []string{"vscode/tasks.json", "tasks.json", ".vscode/tasks.json.md", "a:b", ".git.", "...", "caf\u00e9/x", "ﬁle.txt"} {
		w := newWorld(t).change(path, "x")
		if tier, rule := tierAt(w.judge(), path); tier != "" && rule != "git-twin" {
			t.Errorf("%q: %s", path, rule)
		}
	}
}

// TestAliases: a link of the host or of the change in a place that is looked at.
func TestAliases(t *testing.T) {
	for name, c := range map[string]struct {
		setup func(w *world)
		path  string
		want  Tier
	}{
		"host's directory":       {func(w *world) { w.host(".vscode", "-> conf/editor").change("conf/editor/tasks.json", "{}") }, "conf/editor/tasks.json", Hold},
		"host's file":            {func(w *world) { w.host(".envrc", "-> scripts/env").change("scripts/env", "x") }, "scripts/env", Hold},
		"host's hooks":           {func(w *world) { w.host(".git/hooks", "-> ../hooks").change("hooks/pre-commit", "#!x") }, "hooks/pre-commit", Hold},
		"chain":                  {func(w *world) { w.host(".vscode", "-> a").host("a", "-> b").change("b/tasks.json", "{}") }, "b/tasks.json", Hold},
		"the change's directory": {func(w *world) { w.change(".vscode", "-> conf").change("conf/tasks.json", "{}") }, "conf/tasks.json", Hold},
		"the link itself":        {func(w *world) { w.change(".vscode", "-> conf").change("conf/x", "{}") }, ".vscode", Hold},
		"a deep link":            {func(w *world) { w.change("p/.claude", "-> ../x").change("x/settings.json", "{}") }, "x/settings.json", Hold},
		"another directory":      {func(w *world) { w.host("docs", "-> conf").change("conf/tasks.json", "{}") }, "conf/tasks.json", ""},
		"a link that is removed": {func(w *world) { w.host(".vscode", "-> conf").remove(".vscode").change("conf/tasks.json", "{}") }, "conf/tasks.json", ""},
		"a loop":                 {func(w *world) { w.host(".vscode", "-> .idea").host(".idea", "-> .vscode").change("x", "{}") }, "x", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.setup(w)
			findings := w.judge()
			if tier, _ := tierAt(findings, c.path); tier != c.want {
				t.Errorf("%+v", findings)
			}
		})
	}
}

func TestLinks(t *testing.T) {
	for _, c := range []struct {
		path, target string
		setup        func(w *world)
		want         Tier
	}{
		{path: "a/b/l", target: "../../../workspace/x"},         // out and in again
		{path: "l", target: "WORKSPACE/docs"},                   // absolute, and inside
		{path: "l", target: "WORKSPACE/.git/hooks", want: Hold}, // onto a row
		{path: "l", target: "../../..", want: ""},               // replaced below
		{path: "l", target: "HOME/new", want: Hold},
		{path: "l", target: "HOME/.pyenv/versions/3.11/bin/python"},
		{path: "l", target: "/usr/bin/python3"},
		{path: "l", target: "/nix/store/x-y/bin/z"},
		{path: "l", target: "/usr/../etc/passwd", want: Hold},
		{path: "l", target: "/nonexistent-x/../etc/passwd", want: Hold},
		{path: "l", target: "/etc", want: Hold},
		{path: "l", target: "/dev/null"},
		{path: "l", target: "/tmp/hutch-nothing", want: Hold},
		{path: "l", target: "m/x", setup: func(w *world) { w.host("m", "-> ../home") }, want: Hold},                 // by a link of the host
		{path: "l", target: "m/x", setup: func(w *world) { w.change("m", "-> ../home") }, want: Hold},               // by one of the change
		{path: "l", target: "m/../x", setup: func(w *world) { w.host("m", "-> d/e").host("d/e/f", "") }},            // ".." after a link
		{path: "l", target: "m/../../x", setup: func(w *world) { w.host("m", "-> d").host("d/f", "") }, want: Hold}, // leaves by ".."
		{path: "l", target: "HOME/m", setup: func(w *world) { put(w.t, w.home, "m", "-> "+w.workspace+"/src") }},    // back in
		{path: "l", target: "HOME/m", setup: func(w *world) { put(w.t, w.home, "m", "-> /usr/bin/env") }, want: ""}, // on, to the system
		{path: "l", target: "HOME/m", setup: func(w *world) { put(w.t, w.home, "m", "-> nothing/x") }, want: Hold},  // dangling
		{path: "l", target: "HOME/m", setup: func(w *world) { put(w.t, w.home, "m", "-> m") }, want: Hold},          // a loop outside
		{path: "l", target: "l"}, // a loop
		{path: "node_modules/p", target: "../packages/p", setup: func(w *world) { w.host("node_modules/p/x", "").remove("node_modules/p") }},
		{path: "p", target: "packages/p", setup: func(w *world) { w.host("p/x", "").remove("p") }, want: Hold},
		{path: "bazel-bin", target: "HOME/.cache/bazel/x", want: Hold},
	} {
		w := newWorld(t)
		if c.target == "../../.." {
			continue // the test's own place decides
		}
		if c.setup != nil {
			c.setup(w)
		}
		target := strings.ReplaceAll(strings.ReplaceAll(c.target, "WORKSPACE", w.workspace), "HOME", w.home)
		w.change(c.path, "-> "+target)
		findings := w.judge()
		if tier, _ := tierAt(findings, c.path); tier != c.want {
			t.Errorf("%s -> %s: %+v", c.path, c.target, findings)
		}
	}
}

// TestFreshVenv: what python3 -m venv makes passes; what it has of setuptools is
// flagged.
func TestFreshVenv(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Fatal("python3 is needed: make deps")
	}
	for _, pip := range []bool{false, true} {
		if pip && os.Getenv("HUTCH_PROOF") != "1" {
			continue // takes long
		}
		w := newWorld(t)
		// The interpreter behind whatever wrapper is called python3 here.
		base, err := exec.Command("python3", "-c", "import os, sys; print(os.path.dirname(sys._base_executable))").Output()
		must(t, err)
		w.searchPath = []string{strings.TrimSpace(string(base))}
		args := []string{"-m", "venv", w.layer + "/.venv"}
		if !pip {
			args = []string{"-m", "venv", "--without-pip", w.layer + "/.venv"}
		}
		if out, err := exec.Command("python3", args...).CombinedOutput(); err != nil {
			if pip {
				t.Logf("no venv with pip here: %s", out)
				continue
			}
			t.Fatalf("%v %s", err, out)
		}
		if !pip {
			w.change(".venv/lib/python3/site-packages/distutils-precedence.pth", startupLines[1]+"\n")
			w.change(".venv/lib/python3/site-packages/_distutils_hack/__init__.py", "x")
		}
		for _, f := range w.judge() {
			if f.Tier != Open || !strings.HasSuffix(f.Path, "/distutils-precedence.pth") {
				t.Errorf("%+v", f)
			}
		}
		// Retargeted afterwards, it is held.
		link := w.layer + "/.venv/bin/python3"
		must(t, os.Remove(link))
		must(t, os.Symlink("../../evil", link))
		if tier, _ := tierAt(w.judge(), ".venv/bin/python3"); tier != Hold {
			t.Errorf("an interpreter of the change's own passes: %s", tier)
		}
	}
}

// TestHostile: what a box may write to stop or mislead the guard.
func TestHostile(t *testing.T) {
	w := newWorld(t)
	w.host(".git/config", "[core]\n")
	must(t, os.MkdirAll(w.layer+"/.git", 0o755))
	huge, err := os.Create(w.layer + "/.git/config")
	must(t, err)
	must(t, huge.Truncate(1<<30))
	huge.Close()
	w.change(".env", strings.Repeat("A=b\n", 300_000))
	w.change("package.json", strings.Repeat("[", 900_000))
	w.change("pyproject.toml", "a = "+strings.Repeat("[", 500_000))
	w.change("AGENTS.md", "---\n"+strings.Repeat(" ", 900_000)+"\n---\n")
	w.change("a\n\x1b[2J/.envrc", "x")
	w.change("\xff/.envrc", "x")
	findings := w.judge()
	for path, want := range map[string]Tier{".git/config": Hold, ".env": Hold, "package.json": Hold, "pyproject.toml": Hold, "a\n\x1b[2J/.envrc": Hold, "\xff/.envrc": Hold} {
		if tier, _ := tierAt(findings, path); tier != want {
			t.Errorf("%q: %q", path, tier)
		}
	}
	for _, f := range findings {
		if line := f.Line(); strings.ContainsAny(line, "\n\x1b") {
			t.Errorf("%q", line)
		}
	}
	// A FIFO in the place of a file that is read must not be waited for.
	w = newWorld(t).change(".env", "A=b")
	r := w.request()
	must(t, os.Remove(w.layer+"/.env"))
	must(t, unix.Mkfifo(w.layer+"/.env", 0o644))
	if findings, err := Judge(r); err != nil || len(findings) != 1 || findings[0].Tier != Hold {
		t.Error(findings, err)
	}
}

func TestLine(t *testing.T) {
	f := Finding{Path: ".envrc", Who: "the shell", When: "at the next cd", Why: "it is a script"}
	if got := f.Line(); got != ".envrc: the shell, at the next cd: it is a script" {
		t.Error(got)
	}
	f = Finding{Path: ".git/refs/heads/x", Delivers: "a\u202eb", Who: "w", When: "n", Why: "y"}
	if got := f.Line(); got != ".git/refs/heads/x → \"a\\u202eb\": w, n: y" {
		t.Error(got)
	}
}

func BenchmarkJudge(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(b)
			w.host(".git/config", "[core]\n").host("README.md", "x")
			for i := range n {
				w.change(fmt.Sprintf("src/pkg%d/file%d.c", i/50, i), "int x;")
			}
			r := w.request()
			b.ReportAllocs()
			for b.Loop() {
				if findings, err := Judge(r); err != nil || len(findings) != 0 {
					b.Fatal(findings, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/file")
		})
	}
}
