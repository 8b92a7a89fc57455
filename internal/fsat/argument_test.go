package fsat

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func join(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}

func beneath(dir, name string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

func TestCheckArgument(t *testing.T) {
	every := []Form{Any, Relative, Absolute, Home, Beneath}
	for _, c := range []struct {
		path string
		ok   []Form
	}{
		{"", nil}, {"a\x00b", nil}, {"/a\x00", nil}, {"/" + strings.Repeat("a", argumentMax), nil},
		{"a", []Form{Any, Relative, Beneath}}, {"a/b", []Form{Any, Relative, Beneath}}, {"./a", []Form{Any, Relative, Beneath}},
		{"..", []Form{Any}}, {"../a", []Form{Any}}, {"a/../b", []Form{Any}}, {"a/..", []Form{Any}}, {"/a/../b", []Form{Any}}, {"/..", []Form{Any}}, {"~/../a", []Form{Any}},
		{"/", []Form{Any, Relative, Absolute, Home}}, {"/a", []Form{Any, Relative, Absolute, Home}}, {"//a", []Form{Any, Relative, Absolute, Home}},
		{"~/a", []Form{Any, Relative, Home, Beneath}}, {"~", []Form{Any, Relative, Beneath}}, {"~u/a", []Form{Any, Relative, Beneath}},
		{"a..b", []Form{Any, Relative, Beneath}}, {"..a/b..", []Form{Any, Relative, Beneath}}, {"/..a", []Form{Any, Relative, Absolute, Home}},
		{"a\nb\xff", []Form{Any, Relative, Beneath}},
	} {
		for _, form := range every {
			if err := CheckArgument(c.path, form); (err == nil) != slices.Contains(c.ok, form) {
				t.Errorf("%.40q as form %d: %v", c.path, form, err)
			}
		}
	}
}

func FuzzCheckArgument(f *testing.F) {
	for _, path := range []string{"", "..", "/a/../b", "~/x", "a\x00", "//", "a/./b", "..\n"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckArgument(name, Relative) == nil {
			// Wherever it is put, it stays there.
			if full := join("/w/s", name); !strings.HasPrefix(name, "/") && !beneath("/w/s", full) {
				t.Errorf("%q leads to %q", name, full)
			}
		}
		if CheckArgument(name, Beneath) == nil && !beneath("/w/s", join("/w/s", name)) {
			t.Errorf("%q leaves", name)
		}
		if CheckArgument(name, Absolute) == nil && (CheckArgument(name, Home) != nil || CheckArgument(name, Any) != nil) {
			t.Errorf("%q is absolute, but not a path", name)
		}
	})
}
