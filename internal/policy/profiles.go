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
	if strings.ContainsAny(name, "/\\") {
		return ""
	}
	text, err := profileFiles.ReadFile("profiles/" + name + ".toml")
	if err != nil {
		return ""
	}
	return string(text)
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
