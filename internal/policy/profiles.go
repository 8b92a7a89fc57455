package policy

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed profiles/*.toml
var profileFiles embed.FS

// Profiles lists the names of the profiles.
func Profiles() []string {
	return []string{"default", "strict", "build", "whole-root", "offline-agent"}
}

// profileText returns the document of a profile; "" where there is none.
func profileText(name string) string {
	if name == "default" {
		return defaults()
	}
	if strings.ContainsAny(name, "/\\") {
		return ""
	}
	text, err := profileFiles.ReadFile("profiles/" + name + ".toml")
	if err != nil {
		return ""
	}
	return string(text)
}

// defaults writes the defaults of the table of keys as a document.
func defaults() string {
	var b strings.Builder
	b.WriteString("# What holds where nobody says otherwise.\n")
	section := ""
	for i := range keys {
		k := &keys[i]
		if k.Default == "" || k.order == ground {
			continue
		}
		if s := k.section(); s != section {
			section = s
			fmt.Fprintf(&b, "\n[%s]\n", section)
		}
		v, _ := k.Parse(k.Default)
		fmt.Fprintf(&b, "%-24s # %s\n", k.Name[strings.IndexByte(k.Name, '.')+1:]+" = "+format(v), k.Help)
	}
	return b.String()
}

// ProfileText returns the document of a profile, with the reason of each line.
func ProfileText(name string) (string, error) {
	text := profileText(name)
	if text == "" {
		return "", fmt.Errorf("there is no profile %q: use %s", name, strings.Join(Profiles(), ", "))
	}
	return text, nil
}

// profileDocument returns what a profile says beside the defaults of the table
// of keys, which are the profile default.
func profileDocument(name string) (*document, error) {
	where := func(*Key) string { return "profile " + name }
	if name == "default" {
		return &document{where: where}, nil
	}
	doc, _, err := parseTOML("profile "+name, []byte(profileText(name)), false)
	if err != nil {
		return nil, fmt.Errorf("this hutch is broken: %w", err)
	}
	doc.where = where
	return doc, nil
}
