package run

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hutch/test/lab"
)

func plant(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestPathsOfThePolicy(t *testing.T) {
	w := lab.New(t)
	data := filepath.Join(w.Base, "data")
	plant(t, filepath.Join(data, "set", "x"), "of the host\n")
	plant(t, filepath.Join(w.Home, ".aws", "credentials"), "named\n")
	plant(t, filepath.Join(w.Home, ".config", "gh", "hosts.yml"), marker)
	plant(t, filepath.Join(w.Home, ".config", "tool", "conf"), "tool's\n")
	plant(t, filepath.Join(w.Home, ".config", "git", "config"), "[credential]\nhelper = "+marker+"\n")
	before := lab.Snapshot(t, w.Home)
	hostData := lab.Snapshot(t, data)

	out, r := w.JSON("--read", data, "--", "sh", "-c", "cat "+data+"/set/x; echo y > "+data+"/set/x; echo $?; touch "+data+"/new; echo $?")
	w.Want(r, 0)
	if out.Stdout != "of the host\n2\n1\n" || !strings.Contains(out.Stderr, "Read-only file system") {
		t.Errorf("--read: %q %q", out.Stdout, out.Stderr)
	}
	out, r = w.JSON("--write", data, "--", "sh", "-ec", "echo y >> "+data+"/set/x; cat "+data+"/set/x; mkdir "+data+"/new; rm -r "+data+"/set; ls "+data)
	w.Want(r, 0)
	if out.Stdout != "of the host\ny\nnew\n" || out.FilesystemModified {
		t.Errorf("--write: %q, diff %+v", out.Stdout, out.Diff)
	}
	out, r = w.JSON("--read", "~/.aws", "--", "sh", "-c", "cat ~/.aws/credentials; ls -A ~")
	w.Want(r, 0)
	if out.Stdout != "named\n.aws\n" || !strings.Contains(strings.Join(out.Notes, "\n"), "although it is a secret") {
		t.Errorf("--read of a secret: %q, notes %q", out.Stdout, out.Notes)
	}
	out, r = w.JSON("--read", "~/.config", "--", "sh", "-c", "cat ~/.config/tool/conf; ls -A ~/.config/gh ~/.config/git | grep .; grep -r "+marker+" ~; true")
	w.Want(r, 0)
	if !strings.HasPrefix(out.Stdout, "tool's\n") || strings.Contains(out.Stdout, marker) || !strings.Contains(strings.Join(out.Notes, "\n"), ".config/gh") {
		t.Errorf("--read around a secret: %q, notes %q", out.Stdout, out.Notes)
	}
	out, r = w.JSON("--write", "~/.config", "--hide", "~/.config/tool", "--", "sh", "-c", "echo x > ~/.config/mine && cat ~/.config/mine; cat ~/.config/tool/conf ~/.config/gh/hosts.yml")
	w.Want(r, 1)
	if out.Stdout != "x\n" {
		t.Errorf("--write with --hide: %q", out.Stdout)
	}
	out, r = w.JSON("--read", "/no/such/place", "--", "echo", "ran")
	w.Want(r, 0)
	if out.Stdout != "ran\n" || !strings.Contains(strings.Join(out.Notes, "\n"), "does not exist") {
		t.Errorf("--read of nothing: %q, notes %q", out.Stdout, out.Notes)
	}
	for _, args := range [][]string{{"--read", "~"}, {"--read", "/"}, {"--write", w.StateDir()}, {"--read", "/proc"}, {"--hide", w.Dir}, {"--hide", "a["}} {
		r := w.Box(append(args, "--", "echo", "ran")...)
		if r.Code != 125 || strings.Contains(r.Stdout, "ran") {
			t.Errorf("%q: %v", args, r)
		}
		oneLine(t, r.Stderr)
	}
	for _, d := range append(before.Diff(lab.Snapshot(t, w.Home)), hostData.Diff(lab.Snapshot(t, data))...) {
		t.Errorf("the host changed: %s", d)
	}
}

// TestHiddenPathsOfTheWorkspace: absent with every strategy, and no change of
// them is one.
func TestHiddenPathsOfTheWorkspace(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Write(".env", marker)
		w.Write("conf/.env", marker)
		w.Write("conf/ok", "ok\n")
		w.Write("conf/deep/server.key", marker)
		w.Write("secrets/a/b", marker)
		w.Write("sub/f", "f\n")
		before := w.Snap()
		hide := []string{"--hide", "*.hush", "--hide", ".env", "--hide", "conf/**/*.key", "--hide", "secrets/"}
		out, r := w.JSON(append(hide, "--", "sh", "-c", "find . -name .hutch -prune -o -type f -print | sort; grep -rl "+marker+" . ; ls secrets; git init -q . && git status --porcelain | sort")...)
		w.Want(r, 0)
		if out.Stdout != "./conf/ok\n./sub/f\n?? conf/\n?? sub/\n" {
			t.Errorf("inside: %q", out.Stdout)
		}
		// Where the box has its own in their place, they stay.
		out, r = w.JSON(append(hide, "--commit", "--", "sh", "-ec", "echo own > .env; rm -r conf; mkdir -p secrets; echo own > secrets/x; mv sub sub2; mkdir new; echo own > new/x.hush")...)
		w.Want(r, 0)
		equal(t, "created", out.Diff.FilesCreated, "new/", "new/x.hush", "sub2/", "sub2/f")
		equal(t, "deleted", out.Diff.FilesDeleted, "conf/ok", "sub/", "sub/f")
		equal(t, "modified", out.Diff.FilesModified)
		var skipped []string
		for _, s := range out.Skipped {
			skipped = append(skipped, s.Path)
		}
		slices.Sort(skipped)
		equal(t, "skipped", skipped, ".env", "conf", "conf/deep", "secrets")
		for _, path := range []string{".env", "conf/.env", "conf/deep/server.key", "secrets/a/b"} {
			if w.Read(path) != marker {
				t.Errorf("%s is %q", path, w.Read(path))
			}
		}
		after := w.Snap()
		for _, path := range []string{".env", "conf/.env", "conf/deep/server.key", "secrets/a/b", "secrets", "secrets/a"} {
			if before[path] != after[path] {
				t.Errorf("%s changed: %+v, was %+v", path, after[path], before[path])
			}
		}
		if w.Exists("conf/ok") || w.Read("new/x.hush") != "own\n" {
			t.Error("the rest was not promoted")
		}
		// A directory that holds one cannot become something else.
		out, r = w.JSON(append(hide, "--commit", "--", "sh", "-ec", "rm -rf conf; echo file > conf")...)
		w.Want(r, 0)
		if w.Read("conf/.env") != marker || len(out.Diff.FilesCreated) != 0 {
			t.Errorf("diff %+v", out.Diff)
		}
	})
}

// TestHiddenThroughLinks: a path that is written with a link in it, the
// workspace's own or one around it, hides what it leads to; and one in a
// directory that hutch cannot look into is not seen by opening that.
func TestHiddenThroughLinks(t *testing.T) {
	for _, s := range lab.Strategies(t)[:2] {
		t.Run(s.Test, func(t *testing.T) {
			w := lab.NewWith(t, s)
			around := filepath.Join(w.Base, "around")
			if err := os.Symlink(w.Dir, around); err != nil {
				t.Fatal(err)
			}
			w.Write("env", marker)
			w.Write("conf.d/key", marker)
			w.Write("conf.d/ok", "ok\n")
			w.Write("closed/in/key", marker)
			for link, to := range map[string]string{"conf": "conf.d", "one": "conf.d/key"} {
				if err := os.Symlink(to, filepath.Join(w.Dir, link)); err != nil {
					t.Fatal(err)
				}
			}
			closed := filepath.Join(w.Dir, "closed")
			if err := os.Chmod(closed, 0); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(closed, 0o755)
			for _, hide := range [][]string{
				{around + "/env", around + "/conf/key", around + "/closed/in/key"},
				{w.Dir + "/env", w.Dir + "/one", w.Dir + "/closed/in/key"},
				{"env", "conf/key", "./closed/in/key"},
			} {
				var args []string
				for _, path := range hide {
					args = append(args, "--hide", path)
				}
				r := w.Box(append(args, "--", "sh", "-c", "chmod 700 closed; cat env conf/key conf.d/key one closed/in/key; cat conf/ok; grep -r "+marker+" .")...)
				if r.Stdout != "ok\n" {
					t.Errorf("%q: %v", hide, r)
				}
			}
		})
	}
}

// TestOwnStateInTheWorkspace: where a home is the workspace, the box neither sees
// hutch's state nor can have anything promoted into it or into the user's policy.
func TestOwnStateInTheWorkspace(t *testing.T) {
	for _, s := range lab.Strategies(t)[:2] {
		t.Run(s.Test, func(t *testing.T) {
			w := lab.NewWith(t, s)
			w.Home, w.State = w.Dir, filepath.Join(w.Dir, ".local", "state")
			w.Write("first", "x\n")
			w.Want(w.Box("--force", "--commit", "--", "sh", "-c", "echo y > first"), 0) // which makes the key
			key := w.Read(".local/state/hutch/key")
			if len(key) != 32 {
				t.Fatalf("the key is %q", key)
			}
			const forge = "; mkdir -p .local/state/hutch/trust .config/hutch; echo forged > .local/state/hutch/trust/x.json; echo forged > .local/state/hutch/key; echo forged > .local/state/hutch/receipts.jsonl; echo profile = '\"build\"' > .config/hutch/config.toml; echo z > first; exit 0"
			out, _ := w.JSON("--force", "--commit", "--", "sh", "-c", "find .local/state"+forge)
			if out.Stdout != ".local/state\n" {
				t.Errorf("seen: %q", out.Stdout)
			}
			if len(out.Held) != 1 || out.Held[0].Path != ".config/hutch/config.toml" {
				t.Errorf("held: %+v", out.Held)
			}
			w.Want(w.Run("commit", out.ID, "--hold"), 125) // something stays
			w.Want(w.Run("discard", out.ID), 0)
			w.Want(w.Box("--force", "--commit", "--", "sh", "-c", "mv .local moved; echo forged > .local; exit 0"), 0)
			if w.Exists(".local/state/hutch/trust/x.json") || w.Exists(".config/hutch/config.toml") || w.Read(".local/state/hutch/key") != key || strings.HasPrefix(w.Read(".local/state/hutch/receipts.jsonl"), "forged") || w.Read("first") != "z\n" {
				t.Errorf("%v", w.Snap())
			}
		})
	}
}

func TestHiddenPathsInRAM(t *testing.T) {
	w := lab.New(t)
	w.Write("conf/.env", marker)
	w.Write("conf/ok", "ok\n")
	out, r := w.JSON("--layer", "ram", "--hide", ".env", "--commit", "--", "sh", "-ec", "find . -type f; cat conf/.env 2>/dev/null || true; echo own > conf/.env; echo new > conf/new")
	w.Want(r, 0)
	if out.Stdout != "./conf/ok\n" || w.Read("conf/.env") != marker || w.Read("conf/new") != "new\n" {
		t.Errorf("%q, %+v", out.Stdout, out.Diff)
	}
}

// TestToolchainsOfTheHome: those of ~/.local work, and can be written to where
// the policy says so.
func TestToolchainsOfTheHome(t *testing.T) {
	w := lab.New(t)
	tool := filepath.Join(w.Home, ".local/share/uv/tools/greet/bin/greet")
	plant(t, tool, "#!/bin/sh\necho hello from a tool\n")
	plant(t, filepath.Join(w.Home, ".local/share/uv/credentials/x"), marker)
	plant(t, filepath.Join(w.Home, ".pyenv/versions/3/lib/x"), "x\n")
	plant(t, filepath.Join(w.Home, ".pyenv/shims/thing"), "#!/bin/sh\necho thing\n")
	if err := os.MkdirAll(filepath.Join(w.Home, ".local/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tool, filepath.Join(w.Home, ".local/bin/greet")); err != nil {
		t.Fatal(err)
	}
	w.Env = []string{"PATH=" + w.Home + "/.local/bin:" + w.Home + "/.pyenv/shims:/usr/local/bin:/usr/bin:/bin"}
	before := lab.Snapshot(t, w.Home)
	script := "greet; thing; cat ~/.local/share/uv/credentials/x 2>/dev/null; echo installed > ~/.pyenv/versions/3/lib/new && cat ~/.pyenv/versions/3/lib/new; rm -f ~/.local/bin/greet 2>/dev/null; greet 2>/dev/null; true"
	r := w.Box("--", "sh", "-c", script)
	if r.Stdout != "hello from a tool\nthing\nhello from a tool\n" {
		t.Errorf("default: %v", r)
	}
	r = w.Box("--profile", "build", "--", "sh", "-c", script)
	if r.Stdout != "hello from a tool\nthing\ninstalled\n" {
		t.Errorf("build: %v", r)
	}
	if root() {
		r = w.Box("--user", "root", "--profile", "build", "--", "sh", "-c", "echo x > /usr/local/bin/hutch-probe && cat /usr/local/bin/hutch-probe")
		if r.Stdout != "x\n" {
			t.Errorf("/usr/local: %v", r)
		}
		if _, err := os.Lstat("/usr/local/bin/hutch-probe"); err == nil {
			os.Remove("/usr/local/bin/hutch-probe")
			t.Error("what was written to /usr/local is on the host")
		}
	}
	for _, d := range before.Diff(lab.Snapshot(t, w.Home)) {
		t.Errorf("HOME on the host changed: %s", d)
	}
}

// TestPlantedLinksShowNothing: links in a workspace do not widen what the next
// box sees.
func TestPlantedLinksShowNothing(t *testing.T) {
	w := lab.New(t)
	plant(t, filepath.Join(w.Base, "other/.pyenv/versions/3/bin/python"), "#!/bin/sh\necho "+marker+"\n")
	plant(t, filepath.Join(w.Home, "Documents/.pyenv/versions/3/bin/python"), "#!/bin/sh\necho "+marker+"\n")
	plant(t, filepath.Join(w.Home, ".pyenv/versions/3/bin/python"), "#!/bin/sh\necho own\n")
	for target, want := range map[string]string{
		filepath.Join(w.Base, "other"): "", filepath.Join(w.Home, "Documents"): "", w.Home: "own\n",
	} {
		link := filepath.Join(w.Dir, ".venv/bin/python")
		os.RemoveAll(filepath.Join(w.Dir, ".venv"))
		plant(t, filepath.Join(w.Dir, ".venv/pyvenv.cfg"), "")
		os.MkdirAll(filepath.Dir(link), 0o755)
		if err := os.Symlink(filepath.Join(target, ".pyenv/versions/3/bin/python"), link); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/usr/bin:/bin", w.Dir + "/.venv/bin:/usr/bin:/bin"} {
			w.Env = []string{"PATH=" + path}
			r := w.Box("--", "sh", "-c", ".venv/bin/python 2>/dev/null; true")
			if r.Stdout != want {
				t.Errorf("%s: %q, want %q", target, r.Stdout, want)
			}
		}
	}
}
