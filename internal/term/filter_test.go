package term

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

var sets = []Set{Lines, Screen}

// through is what passes of a stream that comes in pieces of n bytes; 0: whole.
func through(set Set, in string, n int) string {
	var out bytes.Buffer
	w := NewWriter(&out, set)
	for n > 0 && len(in) > n {
		fmt.Fprint(w, in[:n])
		in = in[n:]
	}
	fmt.Fprint(w, in)
	w.Close()
	return out.String()
}

// What acts on a terminal, by kind: what is left of each.
func TestWhatPasses(t *testing.T) {
	same := "\x00" // of Screen: as Lines
	for _, c := range []struct{ name, in, lines, screen string }{
		{"text", "plain text\tand more\r\n日本 naïve 👍\n", "plain text\tand more\r\n日本 naïve 👍\n", same},
		{"colours", "\x1b[1;31mred\x1b[0m \x1b[38;5;200mx\x1b[m \x1b[38;2;1;2;3;48:2::4:5:6my\x1b[m", "\x1b[1;31mred\x1b[0m \x1b[38;5;200mx\x1b[m \x1b[38;2;1;2;3;48:2::4:5:6my\x1b[m", same},
		{"a colour that stays", "\x1b[31mred", "\x1b[31mred\x1b[m", same},
		{"a progress bar", "10%\r\x1b[K20%\b\b\b\x1b[2K\x1b[1G30%\x1b[5C.\x1b[1D", "10%\r\x1b[K20%\b\b\b\x1b[2K\x1b[1G30%\x1b[5C.\x1b[1D", same},
		{"lines above", "a\x1b[1Ab\x1b[2;3Hc\x1b[5dd\x1b[Fe", "abcde", "a\x1b[1Ab\x1b[2;3Hc\x1b[5dd\x1b[Fe"},
		{"the screen erased", "\x1b[H\x1b[2Jx\x1b[Jy", "xy", "\x1b[H\x1b[2Jx\x1b[Jy"},
		{"what has scrolled away erased", "\x1b[3J\x1b[?3Jx", "x", same},
		{"the alternate screen", "\x1b[?1049hvi\x1b[?1049l", "vi", "\x1b[?1049hvi\x1b[?1049l"},
		{"left there", "\x1b[?1049h\x1b[?25l\x1b[2;9r\x1b[?1000h\x1b[?2004h\x1b=vi", "vi", "\x1b[?1049h\x1b[?25l\x1b[2;9r\x1b[?1000h\x1b[?2004h\x1b=vi\x1b[?1000l\x1b[?2004l\x1b[?1049l\x1b[?25h\x1b7\x1b[r\x1b8\x1b>"},
		{"line drawing", "\x1b(0lqk\x1b(B\x0eq\x0f", "lqkq", "\x1b(0lqk\x1b(B\x0eq\x0f"},
		{"shifted out and left so", "a\x0eb", "ab", "a\x0eb\x0f"},
		{"other character sets", "\x1b%@a\x1b(Kb\x1b*0c\x1bnd\x1b~e", "abcde", same},
		{"the bell", "a\ab", "ab", "a\ab"},
		{"nothing and deletion", "a\x00b\x7fc", "abc", same},

		{"a title", "a\x1b]0;evil\x07b\x1b]2;evil\x1b\\c", "abc", same},
		{"a title, as screen does it", "a\x1bkevil\x1b\\b", "ab", same},
		{"the clipboard", "a\x1b]52;c;ZXZpbA==\x07b\x1b]52;c;?\x1b\\c", "abc", same},
		{"a link", "a\x1b]8;;file:///etc/passwd\x1b\\here\x1b]8;;\x1b\\b", "ahereb", same},
		{"colours of the terminal", "a\x1b]4;1;?\x07b\x1b]10;?\x07c\x1b]P0ff0000\nd", "abc\nd", same},
		{"a font asked for (CVE-2022-45063)", "a\x1b]50;?\x07b", "ab", same},
		{"a setting asked for (CVE-2022-45872)", "a\x1bP$q\"p\x1b\\b\x1bP+q544e\x1b\\c", "abc", same},
		{"pictures", "a\x1bPq#0;2;0;0;0~~\x1b\\b\x1b_Gf=24;AAAA\x1b\\c\x1b]1337;File=:AAAA\x07d", "abcd", same},
		{"what keys type", "a\x1bP1;1|17/6576696c\x1b\\b\x1b[0;\"evil\";13pc", "abvil\";13pc", same},
		{"private and other strings", "a\x1b^evil\x1b\\b\x1bXevil\x1b\\c", "abc", same},
		{"one sequence within another", "a\x1bPtmux;\x1b\x1b]52;c;ZXZpbA==\x07\x1b\\b", "ab", same},
		{"what nobody ends", "a\x1b]0;evil\nb\x1bPevil\nc", "a\nb\nc", same},
		{"questions", "\x1b[ca\x1b[>cb\x1b[=cc\x1b[6nd\x1b[?6ne\x1bZf\x05g\x1b[>qh\x1b[xi\x1b[?2004$pj\x1b[1;1;1;1;1;1*yk\x1b[?um", "abcdefghijkm", same},
		{"window", "\x1b[21ta\x1b[8;9;9tb\x1b[5tc", "abc", same},
		{"print", "a\x1b[5ib\x1b[?5ic", "abc", same},
		{"the keyboard", "a\x1b[>4;2mb\x1b[>1uc\x1b[2hd\x1b[=1;1ue\x1b[?4m", "abcde", same},
		{"what the mouse and the focus type", "a\x1b[?1003hb\x1b[?1004hc\x1b[?9hd\x1b[?1015he\x1b[?1000;1004hf", "abcdef", same},
		{"mouse buttons", "a\x1b[?1000hb\x1b[?1000l", "ab", "a\x1b[?1000hb\x1b[?1000l"},
		{"reset", "a\x1bcb\x1b[!pc\x1b#8d", "abcd", "ab\x1b[!pcd"},
		{"tab stops and 132 columns", "a\x1b[3gb\x1bHc\x1b[?3hd", "abcd", same},
		{"repeat for minutes", "a\x1b[9999999999bb\x1b[100000C", "ab", same},
		{"too long", "a\x1b[" + strings.Repeat("1;", 100) + "mb", "ab", same},
		{"two intermediates", "a\x1b[1 !pb\x1b[1 2qc", "abc", same},
		{"8 bits, as UTF-8", "a\u009b31mb\u009d0;evil\u009cc\u0090evil\u009cd\u0085\u0084", "a\x1b[31mbcd\x1b[m", "a\x1b[31mbcd\x1bE\x1bD\x1b[m"},
		{"8 bits, raw", "a\x9b31mb\x90c\x9fd", "a31mbcd", same},
		{"text in another encoding", "caf\xe9 \xff\xfe", "caf\xe9 \xff\xfe", same},
		{"an overlong escape", "\xc0\x9b31m \xe0\x80\x9b", "\xc031m \xe0", same},
		{"a character cut short", "\xe2\x80", "\xe2", same},
		{"controls within", "a\x1b[3\n1\x00mb\x1b[\x18mc\x1b[3\x1amd\x1b[m", "a\n\x1b[31mbmcmd\x1b[m", same},
		{"begun anew", "a\x1b\x1b[1\x1b[31mb\x1b[m", "a\x1b[31mb\x1b[m", same},
		{"cut by a character", "a\x1b[3日mb\x1b日", "a日mb日", same},
		{"cut by the end", "a\x1b[31", "a", same},
	} {
		if c.screen == same {
			c.screen = c.lines
		}
		for _, set := range sets {
			want := []string{c.lines, c.screen}[set]
			if got := through(set, c.in, 0); got != want {
				t.Errorf("%s, set %d: %q became %q, want %q", c.name, set, c.in, got, want)
			}
		}
	}
}

var (
	linesForms  = regexp.MustCompile(`\x1b\[[0-9;:]{0,96}m|\x1b\[0*[012]?K|\x1b\[[0-9]{0,96}[CDG]`)
	screenForms = regexp.MustCompile(`\x1b\[[0-9;:]{0,96}m|\x1b\[[0-9]{0,96}[@A-GILMPSTXZ` + "`" + `abdesu]|\x1b\[[0-9]{0,96};?[0-9]{0,96}[Hfr]|\x1b\[\??0*[012]?[JK]|\x1b\[0*4[hl]|\x1b\[[0-9]{0,96} q|\x1b\[!p|\x1b\[\?[0-9;]+[hl]|\x1b[78DEM=>]|\x1b[()][0B]`)
	switchedOn  = regexp.MustCompile(`\x1b\[\?([0-9;]+)h`)
)

// safe checks by other means than the filter's that a text is of allowed forms:
// Lines' are these, and Screen's have none of the finals that ask.
func safe(set Set, out string) error {
	sequences, controls := linesForms, "\n\t\r\b"
	if set == Screen {
		sequences, controls = screenForms, controls+"\a\v\f\x0e\x0f"
		for _, m := range switchedOn.FindAllStringSubmatch(out, -1) {
			for number := range strings.SplitSeq(m[1], ";") {
				switch strings.TrimLeft(number, "0") {
				case "1", "5", "6", "7", "12", "25", "47", "1000", "1002", "1006", "1047", "1048", "1049", "2004", "2026":
				default:
					return fmt.Errorf("mode %s is switched on", number)
				}
			}
		}
	}
	rest := sequences.ReplaceAllString(out, "")
	for i, r := range rest {
		switch {
		case r == utf8.RuneError:
			if c := rest[i]; c >= 0x80 && c < 0xa0 {
				return fmt.Errorf("byte %x", c)
			}
		case r < ' ' && !strings.ContainsRune(controls, r), r >= 0x7f && r < 0xa0:
			return fmt.Errorf("control %U in %q", r, rest)
		}
	}
	return nil
}

// hostile draws what is made of the pieces that terminals look for.
func hostile(t *rapid.T) string {
	piece := rapid.OneOf(
		rapid.SampledFrom([]string{"\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b\\", "\a", "\n", "?", ">", ";", ":", "\"", " ", "!", "$", "1", "31", "1049", "2004", "h", "l", "m", "n", "c", "q", "K", "r", "J", "p", "\u009b", "\u009d", "\u009c", "\x9b", "\xc2", "\xe2\x80", "\x18", "\x0e", "(0", "日"}),
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }),
	)
	return strings.Join(rapid.SliceOfN(piece, 0, 40).Draw(t, "pieces"), "")
}

func check(t interface{ Fatalf(string, ...any) }, set Set, in string, cut int) {
	out := through(set, in, 0)
	if err := safe(set, out); err != nil {
		t.Fatalf("%q became %q: %v", in, out, err)
	}
	if pieces := through(set, in, cut); pieces != out {
		t.Fatalf("%q in pieces of %d became %q, whole %q", in, cut, pieces, out)
	}
	if again := through(set, out, 0); again != out {
		t.Fatalf("%q became %q, and that %q", in, out, again)
	}
}

func TestAnyStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.SampledFrom(sets).Draw(t, "set"), hostile(t), rapid.IntRange(1, 7).Draw(t, "cut"))
	})
}

// Text passes as it is: any in UTF-8 without controls, and any in another
// encoding without the bytes that are controls there.
func TestAnyText(t *testing.T) {
	char := rapid.Rune().Filter(func(r rune) bool { return r >= ' ' && r < 0x7f || r >= 0xa0 || r == '\n' || r == '\t' })
	other := rapid.ByteRange(0xa0, 0xff)
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.StringOf(char).Draw(t, "text")
		if rapid.Bool().Draw(t, "other encoding") {
			in = string(rapid.SliceOf(other).Draw(t, "bytes"))
		}
		for _, set := range sets {
			if got := through(set, in, rapid.IntRange(1, 5).Draw(t, "cut")); got != in {
				t.Fatalf("%q became %q", in, got)
			}
		}
	})
}

func FuzzFilter(f *testing.F) {
	f.Add("a\x1b[31mb\x1b]0;t\x07c\u009b2Jd\xe2\x80", byte(3))
	f.Add("\x1b[?1049h\x1b[2;9r\x1b(0\x0e\x1b[?25l\x1b[5 q", byte(1))
	f.Fuzz(func(t *testing.T, in string, cut byte) {
		for _, set := range sets {
			check(t, set, in, int(cut)%9+1)
		}
	})
}

// What nobody ends is held nowhere, and a stream costs no memory by the byte.
func TestNothingIsHeld(t *testing.T) {
	for _, begin := range []string{"\x1b]0;", "\x1bP", "\x1b[", "\x1b(", "text", "日"} {
		f := Filter{Set: Screen}
		out := f.Append(make([]byte, 0, 64<<10), []byte(begin))
		piece := bytes.Repeat([]byte("1;"), 16<<10)
		if n := testing.AllocsPerRun(100, func() { out = f.Append(out[:0], piece) }); n != 0 {
			t.Errorf("%q: %v allocations a piece", begin, n)
		}
		if len(out) > len(piece) {
			t.Errorf("%q: %d bytes of %d", begin, len(out), len(piece))
		}
	}
}

func BenchmarkFilter(b *testing.B) {
	for name, line := range map[string]string{
		"text":    "a line of a log as there are many, with nothing special in it at all\n",
		"colours": "\x1b[32m   Compiling\x1b[0m something v1.2.3 (\x1b[1m/src\x1b[0m)\n",
		"UTF-8":   "日本語の行がたくさんあるところ、特別なものは何もない\n",
	} {
		b.Run(name, func(b *testing.B) {
			in := bytes.Repeat([]byte(line), 1000)
			f := Filter{}
			out := make([]byte, 0, len(in))
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				out = f.Append(out[:0], in)
			}
		})
	}
}
