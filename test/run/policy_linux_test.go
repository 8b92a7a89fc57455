package run

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hutch"
	"hutch/test/lab"
)

// config writes the user's own configuration.
func config(w *lab.World, text string) {
	w.T.Helper()
	dir := filepath.Join(w.Home, ".config", "hutch")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(text), 0o644); err != nil {
		w.T.Fatal(err)
	}
}

// explained returns the line of `policy show --explain` that has a key of its
// section, which must be unique there.
func explained(w *lab.World, key string, args ...string) string {
	w.T.Helper()
	r := w.Run(append([]string{"policy", "show", "--explain"}, args...)...)
	w.Want(r, 0)
	section, field, ok := strings.Cut(key, ".")
	if !ok {
		section, field = "", key
	}
	at := ""
	for line := range strings.Lines(r.Stdout) {
		if strings.HasPrefix(line, "[") {
			at = strings.Trim(line, "[]\n")
		} else if at == section && strings.HasPrefix(line, field+" = ") {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	w.T.Errorf("no line of %s\n%v", key, r)
	return ""
}

// TestPolicyComesFromTheStrongestSource walks one key up through all sources,
// and sees the limit itself hold, not only its name.
func TestPolicyComesFromTheStrongestSource(t *testing.T) {
	w := lab.New(t)
	file := filepath.Join(w.Base, "given.toml")
	if err := os.WriteFile(file, []byte("# mine\n[limits]\nopen_files = 55\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		prepare func()
		args    []string
		want    string
	}{
		{func() {}, nil, "open_files = 0 # profile default"},
		{func() {}, []string{"--profile", "strict"}, "open_files = 1024 # profile strict"},
		{func() { config(w, "[limits]\nopen_files = 99\n") }, []string{"--profile", "strict"}, "open_files = 99 # ~/.config/hutch/config.toml:2"},
		{func() { w.Write(".hutch.toml", "[limits]\n\nopen_files = 88\n") }, nil, "open_files = 88 # .hutch.toml:3"},
		{func() { w.Env = append(w.Env, "HUTCH_LIMITS_OPEN_FILES=77") }, nil, "open_files = 77 # environment HUTCH_LIMITS_OPEN_FILES"},
		{func() {}, []string{"--policy", file}, "open_files = 55 # " + file + ":3"},
		{func() {}, []string{"--policy", file, "--open-files", "66"}, "open_files = 66 # flag --open-files"},
	} {
		c.prepare()
		if got := explained(w, "limits.open_files", c.args...); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestWorkspaceCannotLoosen: an agent writes the policy of the next run.
func TestWorkspaceCannotLoosen(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Write("a.txt", "a\n")
		const interfaces = "cat /proc/net/dev | wc -l"
		alone := w.Box("--", "sh", "-c", interfaces)
		w.Want(alone, 0)
		// The guard holds the file; the user lets it through without a look.
		out, r := w.JSON("--commit", "--allow-path", ".hutch.toml", "--", "sh", "-c",
			`printf '[capabilities]\nnetwork = true\n[env]\npass = ["SECRET_WORD"]\n[limits]\ntimeout = 0\nopen_files = 40\n' > .hutch.toml`)
		w.Want(r, 0)
		if !out.Committed {
			t.Fatalf("not committed: %v", r)
		}
		w.Env = []string{"SECRET_WORD=xyzzy"}
		out, r = w.JSON("--", "sh", "-c", interfaces+"; env | grep -c xyzzy; ulimit -n")
		w.Want(r, 0)
		for i, key := range []string{"network = true", `pass = ["SECRET_WORD"]`, "timeout = 0"} {
			if !slices.ContainsFunc(out.Notes, func(note string) bool {
				return strings.HasPrefix(note, ".hutch.toml:"+[]string{"2", "4", "6"}[i]+":") && strings.Contains(note, key) && strings.Contains(note, "hutch trust")
			}) {
				t.Errorf("nothing is said of %q: %q", key, out.Notes)
			}
		}
		got := strings.Fields(out.Stdout)
		if len(got) != 3 || got[0] != strings.TrimSpace(alone.Stdout) || got[1] != "0" {
			t.Errorf("the box has more than before: %q, before %q", out.Stdout, alone.Stdout)
		}

		r = w.Run("trust")
		w.Want(r, 0)
		for _, key := range []string{"capabilities.network = true", "env.pass", "limits.timeout = 0"} {
			if !strings.Contains(r.Stdout, "loosens: "+key) {
				t.Errorf("%q is not named: %v", key, r)
			}
		}
		if strings.Contains(r.Stdout, "open_files") {
			t.Errorf("what tightens is named: %v", r)
		}
		if list := w.Run("trust", "--list"); !strings.Contains(list.Stdout, w.Dir+"\n") {
			t.Errorf("not listed: %v", list)
		}
		out, _ = w.JSON("--", "sh", "-c", interfaces)
		if len(out.Notes) != 0 || strings.TrimSpace(out.Stdout) == strings.TrimSpace(alone.Stdout) && strings.Count(w.Host("cat", "/proc/net/dev"), "\n") != 3 {
			t.Errorf("trusted, and yet: %q, %q", out.Stdout, out.Notes)
		}
		if line := explained(w, "capabilities.network"); line != "network = true # .hutch.toml:2" {
			t.Errorf("%q", line)
		}

		w.Write(".hutch.toml", w.Read(".hutch.toml")+"\n")
		if line := explained(w, "capabilities.network"); line != "network = false # profile default" {
			t.Errorf("one byte more, and %q", line)
		}
		w.Want(w.Run("trust"), 0)
		w.Want(w.Run("trust", "--revoke"), 0)
		if line := explained(w, "capabilities.network"); line != "network = false # profile default" {
			t.Errorf("revoked, and %q", line)
		}
		if r := w.Run("trust", "--revoke"); r.Code != 125 || !strings.Contains(r.Stderr, "nothing of "+w.Dir+" is trusted") {
			t.Errorf("%v", r)
		}
	})
}

// TestPolicyFileOfTheBoxIsNotRead: a file that stays in the box says nothing,
// and a symlink never does.
func TestPolicyFileOfTheBoxIsNotRead(t *testing.T) {
	w := lab.New(t)
	w.Want(w.Box("--", "sh", "-c", "echo broken > .hutch.toml"), 0)
	w.Want(w.Box("--", "true"), 0)
	if err := os.Symlink("elsewhere.toml", filepath.Join(w.Dir, ".hutch.toml")); err != nil {
		t.Fatal(err)
	}
	w.Write("elsewhere.toml", "")
	out, r := w.JSON("--", "true")
	if r.Code != 125 || out.Status != "error" || !strings.Contains(r.Stderr, ".hutch.toml: is a symlink") {
		t.Errorf("%v", r)
	}
	os.Remove(filepath.Join(w.Dir, ".hutch.toml"))
	w.Host("mkfifo", ".hutch.toml")
	if r := w.Box("--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, ".hutch.toml: is not a file") {
		t.Errorf("%v", r)
	}
}

// TestBadPolicyRunsNothing: each source is read to its end, or nothing is run.
func TestBadPolicyRunsNothing(t *testing.T) {
	w := lab.New(t)
	given := filepath.Join(w.Base, "given")
	for _, c := range []struct {
		source, text string
		want         []string
	}{
		{"own", "[limits\nmemory = 1", []string{".hutch.toml:1:"}},
		{"own", "[limits]\nmemry = \"1G\"\n", []string{".hutch.toml:2:", "unknown key limits.memry", "memory, swap"}},
		{"own", "[limits]\n\nmemory = \"lots\"\n", []string{".hutch.toml:3:", "limits.memory", "lots", "K, M, G or T"}},
		{"own", "[capabilities]\nnetwork = \"no\"\n", []string{".hutch.toml:2:", "true or false"}},
		{"own", "profile = \"lax\"\n", []string{".hutch.toml:1:", "no profile \"lax\"", "strict"}},
		{"own", "limits = 5\n", []string{".hutch.toml:1:", "limits is a table"}},
		{"own", strings.Repeat("#", 1<<20+1), []string{".hutch.toml", "1 MiB"}},
		{"user", "[paths]\nread = [\"../x\"]\n", []string{"~/.config/hutch/config.toml:2:", "../x"}},
		{"user", "[network]\nconnect = [70000]\n", []string{"~/.config/hutch/config.toml:2:", "1 to 65535"}},
		{"given", "{\n \"limits\": {\n  \"pids\": \"x\"}}", []string{given + ":3:", "limits.pids", "number"}},
		{"given", "[guard]\nallow = []\n", []string{given + ":1:", "unknown key guard"}},
		{"env", "HUTCH_LIMITS_PIDS=many", []string{"HUTCH_LIMITS_PIDS", "many"}},
		{"env", "HUTCH_LIMITS_PIDDS=5", []string{"HUTCH_LIMITS_PIDDS", "pids"}},
		{"env", "HUTCH_CAPABILITIES_NETWORK=maybe", []string{"HUTCH_CAPABILITIES_NETWORK", "maybe"}},
	} {
		args := []string{"--", "sh", "-c", "echo ran"}
		w.Env = nil
		switch c.source {
		case "own":
			w.Write(".hutch.toml", c.text)
		case "user":
			config(w, c.text)
		case "given":
			if err := os.WriteFile(given, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			args = append([]string{"--policy", given}, args...)
		case "env":
			w.Env = []string{c.text}
		}
		r := w.Box(args...)
		if r.Code != 125 || strings.Contains(r.Stdout, "ran") || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%.60q: %v", c.text, r)
		}
		for _, want := range c.want {
			if !strings.Contains(r.Stderr, want) {
				t.Errorf("%.60q: %q is not said: %s", c.text, want, r.Stderr)
			}
		}
		os.Remove(filepath.Join(w.Dir, ".hutch.toml"))
		os.RemoveAll(filepath.Join(w.Home, ".config"))
	}
	w.Env = nil
	if r := w.Box("--policy", "/nowhere.toml", "--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, "/nowhere.toml") {
		t.Errorf("%v", r)
	}
	// What belongs to others is theirs; what nobody reads is named.
	config(w, "[guard]\nallow = []\n[limitz]\nmemory = 1\n")
	if r := w.Box("--", "true"); r.Code != 0 || !strings.Contains(r.Stderr, "config.toml:3: nothing reads limitz") || strings.Contains(r.Stderr, "guard") {
		t.Errorf("%v", r)
	}
}

// TestConfigurationInTheWorkspaceIsRefused: what a box can write does not speak
// for the user.
func TestConfigurationInTheWorkspaceIsRefused(t *testing.T) {
	w := lab.New(t)
	w.Write("dot/hutch/config.toml", "[capabilities]\nnetwork = true\n")
	w.Env = []string{"XDG_CONFIG_HOME=" + filepath.Join(w.Dir, "dot")}
	if r := w.Box("--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, "lies in the workspace") {
		t.Errorf("%v", r)
	}
}

func TestDeniedBeforeTheStart(t *testing.T) {
	w := lab.New(t)
	w.Write("x.sh", "#!/bin/sh\n")
	os.Chmod(filepath.Join(w.Dir, "x.sh"), 0o755)
	before := w.Snap()
	for _, c := range []struct {
		what, why string
		args      []string
	}{
		{"tty", "profile strict", []string{"--profile", "strict", "--tty", "--", "true"}},
		{"paths.hide", "flag --hide", []string{"--hide", w.Base, "--", "true"}},
		{"paths.hide", "flag --hide", []string{"--hide", "*.sh", "--", "./x.sh"}},
		{"fs_read", "flag --no-read", []string{"--no-read", "--", "./x.sh"}},
	} {
		out, r := w.JSON(c.args...)
		if r.Code != 125 || out.Status != "denied" || out.CommandExitCode != nil || len(out.Denied) != 1 {
			t.Errorf("%q: %v", c.args, r)
			continue
		}
		if d := out.Denied[0]; d.What != c.what || !strings.Contains(d.Why, c.why) || d.Do == "" {
			t.Errorf("%q: %+v", c.args, d)
		}
	}
	r := w.Box("--hide", w.Base, "--", "true")
	if r.Code != 125 || !strings.Contains(r.Stderr, "denied: ") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("%v", r)
	}
	w.Untouched(before)
}

// TestReadOnlyWorkspace: EROFS inside, nothing to promote, and hutch says so.
func TestReadOnlyWorkspace(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Write("a.txt", "a\n")
		w.Write("d/b.txt", "b\n")
		before := w.Snap()
		const attempts = `cat a.txt d/b.txt
for c in 'echo x > a.txt' 'echo x > new' 'mkdir e' 'rm a.txt' 'mv d e' 'chmod 600 a.txt' 'ln -s a l' 'touch .'; do
	sh -c "$c" 2>/dev/null && echo "could $c"
done
cd /tmp && echo elsewhere > x && cat x`
		for _, args := range [][]string{{"--read-only"}, {"--read-only", "--commit"}, {"--read-only", "--preserve", "--diff"}} {
			out, r := w.JSON(append(args, "--", "sh", "-c", attempts)...)
			w.Want(r, 0)
			if out.Stdout != "a\nb\nelsewhere\n" {
				t.Errorf("%q: %q %q", args, out.Stdout, out.Stderr)
			}
			if out.FilesystemModified || out.Committed || out.Kept || out.Diff.FilesCreated == nil || out.Diff.Digest == "" {
				t.Errorf("%q: %v", args, r)
			}
			if said := slices.ContainsFunc(out.Notes, func(n string) bool {
				return strings.Contains(n, "capabilities.fs_write is off (flag --read-only)")
			}); said != (len(args) > 1) {
				t.Errorf("%q: %q", args, out.Notes)
			}
		}
		out, r := w.JSON("--no-read", "--", "sh", "-c", `ls -A . | wc -l; echo x > y || cat "$OLDPWD/a.txt" || echo nothing`)
		w.Want(r, 0)
		if strings.Join(strings.Fields(out.Stdout), " ") != "0 nothing" {
			t.Errorf("%v", r)
		}
		w.Untouched(before)
	})
}

// TestProfiles: each does what it says.
func TestProfiles(t *testing.T) {
	w := lab.New(t)
	w.Write("a.txt", "a\n")
	r := w.Run("policy", "profiles")
	w.Want(r, 0)
	for _, name := range []string{"default", "strict", "build", "whole-root", "offline-agent"} {
		if !strings.Contains(r.Stdout, name+" ") {
			t.Errorf("%s is not listed: %v", name, r)
		}
		// What a profile prints is a policy that says the same.
		shown := w.Run("policy", "show", "--profile", name)
		w.Want(shown, 0)
		file := filepath.Join(w.Base, name+".toml")
		if err := os.WriteFile(file, []byte(shown.Stdout), 0o644); err != nil {
			t.Fatal(err)
		}
		if again := w.Run("policy", "show", "--policy", file); again.Stdout != shown.Stdout {
			t.Errorf("%s: printed and given again:\n%s\n%s", name, shown.Stdout, again.Stdout)
		}
		var doc map[string]any
		asJSON := w.Run("policy", "show", "--json", "--profile", name)
		if err := json.Unmarshal([]byte(asJSON.Stdout), &doc); err != nil || doc["profile"] != name {
			t.Errorf("%v: %v", err, asJSON)
		}
	}
	if line := explained(w, "capabilities.network", "--profile", "offline-agent"); line != "network = false # profile offline-agent" {
		t.Errorf("%q", line)
	}
	out, r := w.JSON("--profile", "strict", "--commit", "--", "cat", "a.txt")
	w.Want(r, 0)
	if out.Stdout != "a\n" || out.Committed {
		t.Errorf("%v", r)
	}
	out, r = w.JSON("--profile", "strict", "--", "touch", "new")
	if r.Code == 0 || !strings.Contains(out.Stderr, "Read-only file system") {
		t.Errorf("strict wrote: %v", r)
	}
	out, r = w.JSON("--profile", "strict", "--", "sh", "-c", "/bin/true; echo ran")
	if r.Code == 0 || strings.Contains(out.Stdout, "ran") || len(out.Violations) == 0 {
		t.Errorf("strict let another program start: %v", r)
	}
	w.Write(".env", "secret\n")
	w.Write("sub/key.pem", "secret\n")
	out, r = w.JSON("--profile", "offline-agent", "--", "sh", "-c", "cat a.txt .env sub/key.pem")
	if r.Code == 0 || out.Stdout != "a\n" {
		t.Errorf("offline-agent saw a secret: %v", r)
	}
	w.Want(w.Box("--profile", "whole-root", "--", "sh", "-c", "echo x >> /etc/hosts"), 0)
	if r := w.Box("--", "sh", "-c", "echo x >> /etc/hosts"); r.Code == 0 {
		t.Errorf("the default writes to /etc: %v", r)
	}
	if r := w.Run("policy", "profiles", "lax"); r.Code != 125 || !strings.Contains(r.Stderr, "offline-agent") {
		t.Errorf("%v", r)
	}
}

// TestLayerDirectoryOfOthers: whoever can write a layer decides what is
// promoted.
func TestLayerDirectoryOfOthers(t *testing.T) {
	w := lab.New(t)
	w.KeepsBoxes()
	layers, elsewhere := filepath.Join(w.Base, "layers"), filepath.Join(w.Base, "elsewhere")
	for _, dir := range []string{layers, elsewhere} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := filepath.Join(layers, fmt.Sprintf("hutch-%d", os.Geteuid()))
	refused := func(what string) {
		t.Helper()
		r := w.Box("--layer-dir", layers, "--", "echo", "ran")
		if r.Code != 125 || !strings.Contains(r.Stderr, "nobody else can write") || strings.Contains(r.Stdout, "ran") {
			t.Errorf("%s: %v", what, r)
		}
	}
	if err := os.Symlink(elsewhere, own); err != nil {
		t.Fatal(err)
	}
	refused("a symlink")
	if entries, _ := os.ReadDir(elsewhere); len(entries) > 0 {
		t.Errorf("followed: %v", entries)
	}
	os.Remove(own)
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	os.Chmod(own, 0o777)
	refused("a directory that all can write")
	os.Chmod(own, 0o700)
	w.Want(w.Box("--layer-dir", layers, "--", "true"), 0)
	if os.Geteuid() == 0 {
		if err := os.Chown(own, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		refused("another user's directory")
	}
}

func TestPathArgumentsAreChecked(t *testing.T) {
	w := lab.New(t)
	for _, flag := range []string{"--layer-dir", "--workspace", "--policy", "--read", "--write", "--hide"} {
		if r := w.Box(flag, "", "--", "echo", "ran"); r.Code != 125 || !strings.Contains(r.Stderr, flag) || !strings.Contains(r.Stderr, "empty") {
			t.Errorf("an empty %s: %v", flag, r)
		}
	}
	for _, c := range [][2]string{{"--read", "etc"}, {"--read", "/etc/../root"}, {"--write", "../x"}, {"--hide", "../x"}, {"--hide", "!x"}, {"--hide", "/a/../b"}} {
		if r := w.Box(c[0], c[1], "--", "echo", "ran"); r.Code != 125 || !strings.Contains(r.Stderr, c[0]) || !strings.Contains(r.Stderr, c[1]) {
			t.Errorf("%q: %v", c, r)
		}
	}
}

// TestPolicyFromGo: a program says what flags say, and is as strong.
func TestPolicyFromGo(t *testing.T) {
	w := lab.New(t)
	w.Write("a.txt", "a\n")
	for _, e := range w.Environ("HUTCH_LIMITS_OPEN_FILES=70", "HUTCH_CAPABILITIES_FS_WRITE=true") {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	off, files := false, int64(50)
	opts := hutch.Defaults("sh", "-c", "cat a.txt; ulimit -n; echo $WORD; echo x > new")
	opts.Workspace, opts.Commit = w.Dir, true
	opts.Policy = hutch.Policy{
		Capabilities: hutch.Capabilities{FSWrite: &off},
		Limits:       hutch.Limits{OpenFiles: &files},
		Env:          hutch.Env{Set: map[string]string{"WORD": "said"}},
	}
	out, err := hutch.Run(t.Context(), opts)
	if err != nil || out.Stdout != "a\n50\nsaid\n" || !strings.Contains(out.Stderr, "Read-only file system") {
		t.Errorf("%v: %+v", err, out)
	}
	if !slices.ContainsFunc(out.Notes, func(n string) bool { return strings.Contains(n, "(request capabilities.fs_write)") }) {
		t.Errorf("%q", out.Notes)
	}
	many := int64(-1)
	opts.Policy.Limits.Pids = &many
	if out, err := hutch.Run(t.Context(), opts); err == nil || out.Status != "error" || !strings.Contains(err.Error(), "request limits.pids") {
		t.Errorf("%v: %+v", err, out)
	}
}
