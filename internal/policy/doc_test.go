package policy

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestDocIsCurrent(t *testing.T) {
	const path = "../../docs/policy.md"
	doc, err := os.ReadFile(path)
	if os.IsNotExist(err) && os.Getuid() != 0 {
		t.Skip("the test binary was copied away from the sources")
	}
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := bytes.Cut(doc, []byte("-update -->\n"))
	_, tail, ok2 := bytes.Cut(rest, []byte("<!-- end -->"))
	if !ok || !ok2 {
		t.Fatal("the marks of the table are gone")
	}
	current(t, path, []byte(string(head)+"-update -->\n"+documentation()+"<!-- end -->"+string(tail)))
}

func documentation() string {
	var out strings.Builder
	out.WriteString("\n| profile | |\n|---|---|\n")
	for _, name := range Profiles() {
		first, _, _ := strings.Cut(profileText(name), "\n")
		fmt.Fprintf(&out, "| `%s` | %s |\n", name, strings.TrimPrefix(first, "# "))
	}
	out.WriteString("\n## Keys\n\nEach is an environment variable too: `limits.memory` is `HUTCH_LIMITS_MEMORY`.\n\n| key | flag | default | | allows more |\n|---|---|---|---|---|\n")
	for i := range keys {
		k := &keys[i]
		flag := ""
		switch {
		case k.Says != "":
			flag = "`--" + k.Flag + "`"
		case k.Flag != "":
			flag = "`--" + k.Flag + " " + strings.ToUpper(k.Type()) + "`"
		case k.section() == "env":
			flag = "`--env`"
		}
		value := ""
		if k.Default != "" {
			v, err := k.Parse(k.Default)
			if err != nil {
				panic(err)
			}
			value = "`" + format(v) + "`"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", k.Name, flag, value, k.Help, k.order)
	}
	out.WriteString("\nA size is a text such as `\"512M\"` or a number of bytes, a duration one such as `\"90s\"` or a number of seconds.\n")
	return out.String()
}

// TestKeysAreComplete: a key that a user cannot read about is none.
func TestKeysAreComplete(t *testing.T) {
	flags := map[string]bool{}
	for i := range keys {
		k := &keys[i]
		if k.Name == "" || k.Help == "" || strings.ContainsAny(k.Help, "|\n") || k.field == nil || k.force == nil {
			t.Errorf("%+v is not complete", k)
		}
		if keyNamed(k.Name) != k || keyOfVariable(k.Environment()) != k {
			t.Errorf("%s is there twice", k.Name)
		}
		if k.Flag != "" && flags[k.Flag] {
			t.Errorf("--%s is there twice", k.Flag)
		}
		flags[k.Flag] = true
		if k.Default != "" {
			if _, err := k.Parse(k.Default); err != nil {
				t.Errorf("%s: its default: %v", k.Name, err)
			}
		}
	}
	for _, name := range Profiles() {
		if _, err := ParseTOML(name, []byte(profileText(name))); err != nil {
			t.Error(err)
		}
		doc, err := profileDocument(name)
		if err != nil || doc.Profile != nil {
			t.Errorf("profile %s: %v, names %v as its ground", name, err, doc.Profile)
		}
		// One reason a line.
		for text := range strings.Lines(profileText(name)) {
			if strings.Contains(text, " = ") && !strings.Contains(text, "#") && !strings.HasSuffix(text, "[\n") {
				t.Errorf("profile %s: no reason for %q", name, text)
			}
		}
	}
}
