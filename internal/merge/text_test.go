package merge

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

func long() bool { return os.Getenv("HUTCH_PROOF") != "" }

// gitMerge is git merge-file -p in a clean environment.
func gitMerge(t testing.TB, dir string, base, ours, theirs []byte, args ...string) (merged []byte, conflicts int) {
	t.Helper()
	for name, text := range map[string][]byte{"base": base, "ours": ours, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("git", append(append([]string{"merge-file", "-p", "-q"}, args...), "ours", "base", "theirs")...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES=/"}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() < 128 {
		return out, exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, 0
}

// editor makes random texts and random edits of them.
type editor struct {
	rnd   *rand.Rand
	words int // how many different lines there are; few make many ties. 0: lines of Go
}

//go:embed *.go
var source embed.FS

// code is this package's own source.
var code = sync.OnceValue(func() (lines []string) {
	entries, _ := source.ReadDir(".")
	for _, e := range entries {
		text, _ := source.ReadFile(e.Name())
		lines = append(lines, slices.Collect(strings.Lines(string(text)))...)
	}
	return lines
})

func (e *editor) line() string {
	if e.words == 0 {
		return code()[e.rnd.IntN(len(code()))]
	}
	switch n := e.rnd.IntN(e.words); {
	case n%7 == 0:
		return "\n"
	case n%7 == 1:
		return "}\n"
	default:
		return fmt.Sprintf("line %d\n", n)
	}
}

func (e *editor) text(n int) []string {
	if e.words == 0 && n < len(code()) {
		at := e.rnd.IntN(len(code()) - n)
		return slices.Clone(code()[at : at+n])
	}
	lines := make([]string, n)
	for i := range lines {
		lines[i] = e.line()
	}
	return lines
}

// edit returns a text with some pieces replaced, moved or copied.
func (e *editor) edit(lines []string, edits int) []string {
	out := append([]string(nil), lines...)
	for range edits {
		at := e.rnd.IntN(len(out) + 1)
		gone := min(e.rnd.IntN(4), len(out)-at)
		piece := e.text(e.rnd.IntN(4))
		switch e.rnd.IntN(8) {
		case 0: // a copy of some lines
			from := e.rnd.IntN(len(out) + 1)
			piece = append([]string(nil), out[from:min(len(out), from+1+e.rnd.IntN(5))]...)
			gone = 0
		case 1: // a block moves
			block := append([]string(nil), out[at:min(len(out), at+1+e.rnd.IntN(6))]...)
			out = append(out[:at:at], out[at+len(block):]...)
			at, gone, piece = e.rnd.IntN(len(out)+1), 0, block
		}
		out = append(out[:at:at], append(piece, out[at+gone:]...)...)
	}
	return out
}

func (e *editor) bytes(lines []string) []byte {
	text := strings.Join(lines, "")
	if e.rnd.IntN(10) == 0 {
		text = strings.TrimSuffix(text, "\n")
	}
	return []byte(text)
}

// TestAgainstGit merges random edits as git does: never what git would not merge,
// never to another result, and seldom less.
func TestAgainstGit(t *testing.T) {
	for _, c := range []struct {
		name        string
		words, size int
		edits       int
		rounds      int
		seldom      float64 // the share of git's clean merges that may conflict here
	}{
		{name: "Go", words: 0, size: 400, edits: 3, rounds: 800, seldom: 0.05},
		{name: "many edits of Go", words: 0, size: 800, edits: 12, rounds: 400, seldom: 0.2},
		{name: "ordinary text", words: 100000, size: 200, edits: 3, rounds: 800, seldom: 0.06},
		{name: "code, with empty lines and braces", words: 60, size: 150, edits: 3, rounds: 800, seldom: 0.25},
		{name: "few different lines", words: 4, size: 15, edits: 2, rounds: 1500, seldom: 1},
		{name: "short texts", words: 8, size: 5, edits: 1, rounds: 1000, seldom: 1},
		{name: "many edits", words: 100000, size: 6000, edits: 25, rounds: 120, seldom: 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			rounds := c.rounds / 4
			if long() {
				rounds = c.rounds * 10
			}
			clean, shy, both := 0, 0, 0
			for seed := range rounds {
				e := &editor{rand.New(rand.NewPCG(uint64(seed), uint64(c.words))), c.words}
				lines := e.text(e.rnd.IntN(c.size) + 1)
				base := e.bytes(lines)
				ours := e.bytes(e.edit(lines, 1+e.rnd.IntN(c.edits)))
				theirs := e.bytes(e.edit(lines, 1+e.rnd.IntN(c.edits)))
				got, conflicts, err := Text(base, ours, theirs, Labels{})
				if err != nil {
					t.Fatal(err)
				}
				want, theirConflicts := gitMerge(t, dir, base, ours, theirs)
				switch {
				case conflicts == 0 && theirConflicts > 0:
					t.Errorf("seed %d: merged, where git has %d conflicts\nbase %q\nours %q\ntheirs %q", seed, theirConflicts, base, ours, theirs)
				case conflicts == 0 && !bytes.Equal(got, want):
					t.Errorf("seed %d: not what git makes\nbase   %q\nours   %q\ntheirs %q\n got   %q\nwant   %q", seed, base, ours, theirs, got, want)
				case theirConflicts == 0 && conflicts > 0:
					shy++
				case conflicts > 0:
					both++
				}
				if theirConflicts == 0 {
					clean++
				}
			}
			t.Logf("%d merges: git merges %d, of which %d (%.1f%%) conflict here; %d conflict for both", rounds, clean, shy, 100*float64(shy)/float64(clean), both)
			if float64(shy) > c.seldom*float64(clean) {
				t.Errorf("%d of %d clean merges conflict", shy, clean)
			}
			if clean == shy || both == 0 && rounds > 100 {
				t.Error("nothing was compared")
			}
		})
	}
}

// TestLaws holds for any three texts.
func TestLaws(t *testing.T) {
	rounds := 2000
	if long() {
		rounds = 100_000
	}
	for seed := range rounds {
		e := &editor{rand.New(rand.NewPCG(uint64(seed), 1)), []int{0, 4, 100000}[seed%3]}
		lines := e.text(e.rnd.IntN(30))
		laws(t, e.bytes(lines), e.bytes(e.edit(lines, 1+e.rnd.IntN(3))), e.bytes(e.edit(lines, 1+e.rnd.IntN(3))))
	}
}

func laws(t *testing.T, base, x, y []byte) {
	t.Helper()
	for _, c := range [][4][]byte{{base, base, x, x}, {base, x, base, x}, {base, x, x, x}} {
		got, conflicts, err := Text(c[0], c[1], c[2], Labels{})
		if err != nil || conflicts != 0 || !bytes.Equal(got, c[3]) {
			t.Fatalf("base %q\nours %q\ntheirs %q\n got %q, %d conflicts, %v\nwant %q", c[0], c[1], c[2], got, conflicts, err, c[3])
		}
	}
	one, n, err := Text(base, x, y, Labels{})
	two, m, _ := Text(base, y, x, Labels{})
	if n != m || !bytes.Equal(one, two) || err != nil {
		t.Fatalf("not symmetrical: base %q\nx %q\ny %q\n%q, %d\n%q, %d", base, x, y, one, n, two, m)
	}
	marked, n, _ := Text(base, x, y, Labels{"ours", "theirs"})
	if n == 0 && !bytes.Equal(marked, one) || n > 0 && one != nil {
		t.Fatalf("labels change a clean merge, or a conflict is merged: %q, %q", one, marked)
	}
	for _, marker := range []string{"<<<<<<< ours", "=======", ">>>>>>> theirs"} {
		if got := bytes.Count(marked, []byte(marker)); got < n {
			t.Fatalf("%d conflicts, %d of %q in %q", n, got, marker, marked)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("a\nb\nc\n"), []byte("a\nx\nc"), []byte("a\r\nb\nc\nd\n"))
	f.Fuzz(func(t *testing.T, base, x, y []byte) {
		if !bytes.ContainsRune(slices.Concat(base, x, y), 0) {
			laws(t, base, x, y)
		}
	})
}

func TestCases(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ what, base, ours, theirs, want string }{
		{"changes apart", "a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", "A\nb\nC\n"},
		{"changes that touch", "a\nb\nc\n", "A\nb\nc\n", "a\nB\nc\n", ""},
		{"insertions at one place", "a\nb\n", "a\nx\nb\n", "a\ny\nb\n", ""},
		{"the same insertion", "a\nb\n", "a\nx\nb\n", "a\nx\nb\n", "a\nx\nb\n"},
		{"the same change and another", "a\nb\nc\nd\n", "A\nb\nc\nd\n", "A\nb\nc\nD\n", "A\nb\nc\nD\n"},
		{"deletion and change of a line", "a\nb\nc\n", "a\nc\n", "a\nB\nc\n", ""},
		{"CRLF kept", "a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", "A\r\nb\r\nC\r\n"},
		{"line ends against a change", "a\nb\nc\n", "a\r\nb\r\nc\r\n", "a\nB\nc\n", ""},
		{"no newline at the end", "a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC"},
		{"a newline at the end against a change", "a\nb\nc", "a\nb\nc\n", "A\nb\nc", "A\nb\nc\n"},
		{"a newline at the end against an addition", "a\nb\nc", "a\nb\nc\n", "a\nb\nc\nd\n", ""},
		{"nothing before", "", "a\n", "b\n", ""},
		{"all deleted by one", "a\nb\nc\n", "", "a\nb\nC\n", ""},
		{"not UTF-8", "\xff\nb\n\xfe\n", "\xfd\nb\n\xfe\n", "\xff\nb\n\xfc\n", "\xfd\nb\n\xfc\n"},
	} {
		got, conflicts, err := Text([]byte(c.base), []byte(c.ours), []byte(c.theirs), Labels{})
		if err != nil || string(got) != c.want || (conflicts > 0) != (c.want == "") {
			t.Errorf("%s: %q, %d conflicts, %v, want %q", c.what, got, conflicts, err, c.want)
		}
		// All of these, their markers too, are as git has them.
		got, _, _ = Text([]byte(c.base), []byte(c.ours), []byte(c.theirs), Labels{"workspace", "box x"})
		want, _ := gitMerge(t, dir, []byte(c.base), []byte(c.ours), []byte(c.theirs), "-L", "workspace", "-L", "base", "-L", "box x")
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%q\ngit makes\n%q", c.what, got, want)
		}
	}
	if _, _, err := Text([]byte("a"), []byte("a\x00"), []byte("b"), Labels{}); !errors.Is(err, ErrBinary) {
		t.Errorf("binary: %v", err)
	}
	if _, _, err := Text(nil, make([]byte, maxText+1), nil, Labels{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestLargeTexts has what a table of all lines would not hold.
func TestLargeTexts(t *testing.T) {
	var base, ours, theirs, want, same strings.Builder
	for i := range 100_000 {
		line := fmt.Sprintf("line %d\n", i)
		base.WriteString(line)
		if i%1000 == 10 {
			ours.WriteString("ours\n")
		}
		if i%1000 == 500 {
			theirs.WriteString("theirs\n")
			want.WriteString("theirs\n")
		} else {
			theirs.WriteString(line)
		}
		ours.WriteString(line)
		if i%1000 == 10 {
			want.WriteString("ours\n")
		}
		if i%1000 != 500 {
			want.WriteString(line)
		}
		same.WriteString("same\n")
	}
	got, conflicts, err := Text([]byte(base.String()), []byte(ours.String()), []byte(theirs.String()), Labels{})
	if err != nil || conflicts != 0 || string(got) != want.String() {
		t.Errorf("%d conflicts, %v", conflicts, err)
	}
	// Nothing to hold on to: a conflict, soon.
	x, y := same.String()+same.String(), same.String()+"y\n"
	if _, conflicts, _ = Text([]byte(same.String()), []byte(x), []byte(y), Labels{}); conflicts == 0 {
		t.Error("merged what could be drawn in many ways")
	}
}
