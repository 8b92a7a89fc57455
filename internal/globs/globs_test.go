package globs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		patterns string // separated by a newline
		path     string // a directory ends in /
		want     bool
	}{
		{"*.o", "a.o", true},
		{"*.o", "d/a.o", true},
		{"*.o", "a.c", false},
		{"/a", "a", true},
		{"/a", "d/a", false},
		{"a/", "a", false},
		{"a/", "a/", true},
		{"a/", "a/b/c", true},
		{"a/b", "a/b", true},
		{"a/b", "d/a/b", false},
		{"**/a/b", "d/e/a/b", true},
		{"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true},
		{"a/**/b", "a/xb", false},
		{"a/**", "a/x/y", true},
		{"a/**", "a/", false},
		{"a/*", "a/x/y", true}, // a/x is matched, so what it holds is
		{"a/*/z", "a/x/y/z", false},
		{"a?c", "a/c", false},
		{"[a-c]x", "bx", true},
		{"[!a-c]x", "bx", false},
		{"[[:digit:]]", "7", true},
		{"[]a]", "]", true},
		{`\!a`, "!a", true},
		{`\#a`, "#a", true},
		{`a\ `, "a ", true},
		{"a  ", "a", true},
		{"*.o\n!keep.o", "keep.o", false},
		{"!keep.o\n*.o", "keep.o", true},
		{"d\n!d/keep", "d/keep", true}, // nothing is taken back from beneath a matched directory
		{"*", ".", false},
		{"a\xff*", "a\xffb", true},
		{"caf\u00e9", "cafe\u0301", false},
		{"*", "a\nb", true},
	} {
		s, err := Parse(strings.Split(c.patterns, "\n"))
		if err != nil {
			t.Fatalf("%q: %v", c.patterns, err)
		}
		path, dir := strings.CutSuffix(c.path, "/")
		if got := s.Match(path, dir); got != c.want {
			t.Errorf("%q on %q: %v", c.patterns, c.path, got)
		}
	}
	var none *Set
	if none.Match("a", false) || !none.Empty() {
		t.Error("a nil set matches something")
	}
}

func TestBadPatterns(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "names nothing",
		"   ":                      "names nothing",
		"/":                        "names nothing",
		"!":                        "names nothing",
		"# a":                      `write \#`,
		"a\x00":                    "NUL",
		"a\nb":                     "line break",
		`a\`:                       "backslash",
		"[a":                       `"["`,
		"[":                        `"["`,
		"[[:alpha:]":               `"["`,
		"[[:what:]]":               "[:what:]",
		"a//b":                     "component",
		"//a":                      "component",
		"a//":                      "component",
		"./a":                      "component",
		"../a":                     "component",
		strings.Repeat("a", 10000): "longer",
	} {
		_, err := Parse([]string{"fine", text})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// TestAgainstGit compares with git check-ignore on random patterns over a
// random tree.
func TestAgainstGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Fatal("git is needed: make deps")
	}
	rounds := 60
	if os.Getenv("HUTCH_PROOF") == "1" {
		rounds = 3000
	}
	seed := uint64(1)
	if os.Getenv("HUTCH_PROOF") == "1" {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	git := func(stdin string, args ...string) []byte {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "HOME="+dir)
		cmd.Stdin = strings.NewReader(stdin)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil && stderr.Len() > 0 {
			t.Fatalf("git %q: %v %s", args, err, &stderr)
		}
		return out
	}
	git("", "init", "-q")

	names := []string{"a", "b", "ab", "a.o", "b.o", "-", "]", "a b", "!a", "#a", "[a]", `a\b`, "é", "a*", "aab"}
	paths := map[string]bool{} // to whether it is a directory
	for range 150 {
		path := ""
		for range 1 + rng.IntN(4) {
			path = filepath.Join(path, names[rng.IntN(len(names))])
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			continue // a file stands there
		}
		if err := os.WriteFile(filepath.Join(dir, path), nil, 0o644); err != nil {
			continue
		}
		paths[path] = false
		for up := filepath.Dir(path); up != "."; up = filepath.Dir(up) {
			paths[up] = true
		}
	}
	var stdin strings.Builder
	for path := range paths {
		stdin.WriteString(path + "\x00")
	}
	pieces := []string{"a", "b", "ab", ".o", "*", "**", "/", "/", "?", "[a-b]", "[!a]", "[^b]", "[]a]", "[[:alpha:]]", "[a-]", "[b-a]", `[\]]`, "[[:]", `\a`, `\*`, `\ `, " ", "-", "!", "#", "**/", "/**", "é", `\\`, "[é]"}
	hits := 0
	for range rounds {
		var lines []string
		for range 1 + rng.IntN(4) {
			line := ""
			if rng.IntN(4) == 0 {
				line = "!"
			}
			for range 1 + rng.IntN(5) {
				line += pieces[rng.IntN(len(pieces))]
			}
			if _, err := Parse([]string{line}); err == nil {
				lines = append(lines, line)
			}
		}
		if len(lines) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, ".git/info/exclude"), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for path := range strings.SplitSeq(string(git(stdin.String(), "check-ignore", "--no-index", "--stdin", "-z")), "\x00") {
			want[path] = true
		}
		s, err := Parse(lines)
		if err != nil {
			t.Fatal(err)
		}
		for path, isDir := range paths {
			got := s.Match(path, isDir)
			if got != want[path] {
				t.Errorf("%q on %q (directory: %v): %v, git says %v", lines, path, isDir, got, want[path])
			}
			if got {
				hits++
			}
		}
	}
	if hits == 0 {
		t.Error("no pattern matched anything")
	}
}

// TestNoPatternIsSlow: a backtracking matcher would not come back.
func TestNoPatternIsSlow(t *testing.T) {
	s, err := Parse([]string{strings.Repeat("*a", 500) + "*b", strings.Repeat("**/", 500) + "x"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if s.Match(strings.Repeat("a/", 1000)+strings.Repeat("a", 2000), false) {
		t.Error("matched")
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("*.o", "a/b.o", false)
	f.Add("a/**/[b-c]", "a/x/b", true)
	f.Add(`[[:alpha:]-\]]`, "a", false)
	f.Fuzz(func(t *testing.T, text, path string, dir bool) {
		s, err := Parse([]string{text})
		if err != nil {
			return
		}
		got := s.Match(path, dir)
		// What is matched stays matched for all that lies beneath.
		if got && dir && !strings.HasSuffix(path, "/") && !s.Match(path+"/x", false) {
			t.Errorf("%q matches %q, and not what it holds", text, path)
		}
		// The opposite pattern after it takes everything back at this path.
		if !strings.HasPrefix(text, "!") && !strings.ContainsRune(path, '/') {
			both, err := Parse([]string{text, "!" + text})
			if err != nil {
				t.Fatal(err)
			}
			if both.Match(path, dir) {
				t.Errorf("%q then !%q still match %q", text, text, path)
			}
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	s, err := Parse([]string{"*.o", "/target/", "docs/**/*.md", "!keep.o"})
	if err != nil {
		b.Fatal(err)
	}
	path := fmt.Sprintf("a/%s/c.go", "some-directory")
	for b.Loop() {
		s.Match(path, false)
	}
}

// TestBelow: where Below says no, nothing beneath is matched.
func TestBelow(t *testing.T) {
	names := []string{"a", "b", "ab", "c.x"}
	patterns := []string{"a", "a/", "/a", "a/b", "a/*", "a*/b", "**/b", "a/**", "a/**/b", "*/c.x", "a/b/c.x", "!a/b", "[ab]/b", "a/?b", "*.x", `"/a/b"`, "ab/[!a]*/b"}
	var paths []string
	var grow func(prefix string, depth int)
	grow = func(prefix string, depth int) {
		for _, n := range names {
			paths = append(paths, prefix+n)
			if depth > 1 {
				grow(prefix+n+"/", depth-1)
			}
		}
	}
	grow("", 4)
	skipped := 0
	for _, one := range patterns {
		for _, two := range patterns {
			s, err := Parse([]string{one, two})
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range paths {
				for i := range path {
					if path[i] != '/' {
						continue
					}
					dir := path[:i]
					if s.Below(dir) || s.Match(dir, true) {
						continue
					}
					skipped++
					if s.Match(path, false) || s.Match(path, true) {
						t.Fatalf("%q %q: nothing is beneath %s, but %s matches", one, two, dir, path)
					}
				}
			}
		}
	}
	if skipped < 1000 {
		t.Errorf("Below says yes to nearly all: %d", skipped)
	}
}
