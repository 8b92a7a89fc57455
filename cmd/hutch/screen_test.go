package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"plain\ttext":               "plain\ttext",
		"\x1b[2J\x07\r":             "^[[2J^G^M",
		"\u009b31m":                 "<U+009B>31m",
		"\xff\x9b":                  "<FF><9B>",
		"/*\u202e } \u2066if\u2069": "/*<U+202E> } <U+2066>if<U+2069>",
		"zero\u200bwidth\ufeff":     "zero<U+200B>width<U+FEFF>",
		"\U000e0041 tag":            "<U+E0041> tag",
		"naïve 日本 👍 e\u0301":        "naïve 日本 👍 e\u0301",
		"\x7f":                      "^?",
	} {
		if got := visible(text); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}

// Nothing that a box writes reaches the terminal but printable characters, and
// our own colours.
func FuzzPaint(f *testing.F) {
	f.Add("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@ \x1b]0;title\x07\n-\x1b[31m\n+\u202e\xff\n\\ No newline at end of file\n", true)
	f.Add("diff --git a/x b/x\nGIT binary patch\nliteral 2\nNc${Kj1Oxy8|Nj6300IC2\n\n", true)
	f.Fuzz(func(t *testing.T, patch string, colour bool) {
		var buf bytes.Buffer
		w := bufio.NewWriter(&buf)
		if err := paint(w, patch, colour); err != nil {
			t.Fatal(err)
		}
		_ = w.Flush()
		got := buf.String()
		if colour {
			for _, c := range []string{bold, cyan, red, green, normal} {
				got = strings.ReplaceAll(got, c, "")
			}
		}
		if !utf8.ValidString(got) {
			t.Fatalf("%q is not UTF-8", got)
		}
		for _, r := range got {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
				t.Fatalf("%q holds %U", got, r)
			}
		}
		if strings.Count(got, "\n") != strings.Count(patch, "\n") {
			t.Fatalf("%q has other lines than %q", got, patch)
		}
	})
}

func TestPaintColours(t *testing.T) {
	var buf bytes.Buffer
	w := bufio.NewWriter(&buf)
	patch := "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ f\n same\n--- gone\n+new\ndiff --git a/y b/y\n"
	if err := paint(w, patch, true); err != nil {
		t.Fatal(err)
	}
	_ = w.Flush()
	want := "\x1b[1mdiff --git a/x b/x\x1b[m\n\x1b[1mindex 1..2 100644\x1b[m\n\x1b[1m--- a/x\x1b[m\n\x1b[1m+++ b/x\x1b[m\n\x1b[36m@@ -1,2 +1,2 @@ f\x1b[m\n same\n\x1b[31m--- gone\x1b[m\n\x1b[32m+new\x1b[m\n\x1b[1mdiff --git a/y b/y\x1b[m\n"
	if buf.String() != want {
		t.Errorf("%q", buf.String())
	}
}

// Messages quote what a box named.
func TestMessagesHoldNoControls(t *testing.T) {
	message := oneLine("a\x1b]0;t\x07b\nc\u009b2J\u202e\r\x7f\xff\n")
	if want := "a^[]0;t^Gb; c<U+009B>2J<U+202E>^M^?<FF>"; message != want {
		t.Errorf("%q, want %q", message, want)
	}
}

// JSON says the same with and without.
func FuzzEscapeControls(f *testing.F) {
	f.Add("a\x7fb\u009b31m\u00a0\u0080")
	f.Add("\xc2")
	f.Fuzz(func(t *testing.T, text string) {
		document, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		escaped := escapeControls(document)
		for _, r := range string(escaped) {
			if unicode.IsControl(r) {
				t.Fatalf("%q holds %U", escaped, r)
			}
		}
		var before, after string
		if err := errors.Join(json.Unmarshal(document, &before), json.Unmarshal(escaped, &after)); err != nil || before != after {
			t.Fatalf("%q became %q: %v", before, after, err)
		}
	})
}
