package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// parsers are all that read what a box wrote.
var parsers = map[string]keyed{
	"json": jsonKeys, "toml": tomlKeys, "env": envKeys, "ini": iniKeys, "yaml": yamlKeys, "front matter": frontMatter, "go.mod": goModKeys,
	"go generate": goGenerate, "todo": todoKeys, "gitmodules": gitmodulesKeys, "attributes": attributeKeys, "tool versions": toolVersionKeys, "rust toolchain": rustToolchainKeys,
}

func FuzzParsers(f *testing.F) {
	for _, text := range []string{"", "{}", "[a]\nb = c\n", "---\na: b\n---\n", "export A=b", "{\"a\":[1,{\"b\":2,},],// c\n}", "[a \"b\"]\n\tc = \"d\\n\" ; e\n", "* filter=lfs", "\ufeffa=b", "a: &x b\n<<: *x\n", ":"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for name, parse := range parsers {
			first, err := parse(text)
			if err != nil {
				continue
			}
			again, err := parse(text)
			if err != nil || len(again) != len(first) {
				t.Errorf("%s: reads the same text differently", name)
			}
			for key, value := range first {
				if again[key] != value {
					t.Errorf("%s: %q is %q and %q", name, key, value, again[key])
				}
			}
		}
	})
}

// TestParsersAreBounded: no file of the size that is read makes a parser slow,
// or deep.
func TestParsersAreBounded(t *testing.T) {
	// The thread's own time: that of the clock says how busy the machine is.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const n = maxContent
	for _, text := range []string{
		strings.Repeat("a=\n", n/3), strings.Repeat("a: b\n", n/5), strings.Repeat("[", n), strings.Repeat("{\"a\":", n/5), "a" + strings.Repeat(".a", n/2-10) + "=1",
		"a=" + strings.Repeat("{a=", n/3), "a=" + strings.Repeat("[", n-2), "[" + strings.Repeat("a.", n/2-10) + "a]\n", strings.Repeat("[[a]]\n", n/6), strings.Repeat("[a]\n", n/4), "---\n" + strings.Repeat("- x\n", n/4) + "---\n", "a:\n" + strings.Repeat(" x\n", n/3),
		strings.Repeat("* filter=a\n", n/11), strings.Repeat("* "+strings.Repeat("diff=x ", 100)+"\n", n/703), "* " + strings.Repeat("diff=x", n/10) + strings.Repeat(" merge=y", n/20), "[a]\n" + strings.Repeat("b=c\\\n", n/6), "[a \"" + strings.Repeat("x", n-10) + "\"]", strings.Repeat("/*", n/2), strings.Repeat("\"", n), strings.Repeat("\\", n),
		strings.Repeat("a\n", n/2), strings.Repeat("//go:generate x\n", n/16), "require (\n" + strings.Repeat("a b\n", n/4), strings.Repeat("a.b=1\n", n/6), strings.Repeat(",", n), "a = \"\"\"" + strings.Repeat("\"\"", n/3), strings.Repeat("\r", n), strings.Repeat(" ", n), strings.Repeat("\u200d", n/3),
	} {
		for name, parse := range parsers {
			start := spent()
			parse([]byte(text))
			if d := spent() - start; d > 5*time.Second {
				t.Errorf("%s takes %v for %.20q…", name, d, text)
			}
		}
	}
}

func FuzzFold(f *testing.F) {
	f.Add(".git/config")
	f.Add(".G\u200cIT./HOOKS:x")
	f.Add("\xff/\u212a")
	f.Fuzz(func(t *testing.T, path string) {
		folded := fold(path)
		if strings.Count(folded, "/") != strings.Count(path, "/") {
			t.Errorf("%q and %q have different depths", path, folded)
		}
		if upper := strings.ToUpper(path); isASCII(path) && fold(upper) != folded {
			t.Errorf("%q folds to %q, in capitals to %q", path, folded, fold(upper))
		}
	})
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0
}

// TestGitConfigAgainstGit: what git reads of a configuration is what the guard
// reads.
func TestGitConfigAgainstGit(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{
		"[core]\n\tbare = false\n\tfileMode\n",
		"[a \"b.C\"] x = 1 ; comment\n y = \"q ; # r\" # c\n[A.B]z=2",
		"[a]\n\tx = one \\\n  two\n\ty = \"a\\\"b\\\\c\\n\\t\"\n",
		"[a]x=1\n[a]x=2\n[a \"\"]x=3\n",
		"\ufeff[a]\r\nx = y \r\nz = \"  w  \"\r\n",
		"[a]\nx =\n  \n; c\n# d\ny = 'q'\n",
		"[include]\n path = /nonexistent\n[alias]\n st = !echo \\\"$1\\\"\n",
		"[a \"b]c\"]x=1\n[a \"d\\\"e\\f\"]y=2\n",
		"[a]x = a\"b c\"d   e f  \n",
		// What git refuses.
		"[a\nx=1\n", "[a \"b]\nx=1\n", "[a]\n1x = 2\n", "[a]\nx = \"b\n", "[a]\nx = \\q\n", "[]\nx=1\n", "[a]\nx y\n", "[a b]\nx=1\n",
	} {
		path := filepath.Join(dir, "config")
		must(t, os.WriteFile(path, []byte(text), 0o644))
		cmd := exec.Command("git", "config", "--file", path, "--no-includes", "--list", "-z")
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir)
		out, gitErr := cmd.Output()
		config, err := parseGitConfig([]byte(text))
		if (err != nil) != (gitErr != nil) {
			t.Errorf("%q: %v; git: %v", text, err, gitErr)
			continue
		}
		if err != nil {
			continue
		}
		var want, got []string
		for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if entry == "" {
				continue
			}
			name, value, ok := strings.Cut(entry, "\n")
			if !ok {
				value = "true"
			}
			want = append(want, name+"="+value)
		}
		for key, values := range config {
			name := key.String()
			if key.Sub == "" && strings.Contains(text, "[a \"\"]") && len(values) == 1 {
				name = key.Section + ".." + key.Name
			}
			for _, value := range values {
				got = append(got, name+"="+value)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) && !strings.Contains(text, "[a \"\"]") {
			t.Errorf("%q:\n got %q\nwant %q", text, got, want)
		}
	}
}
