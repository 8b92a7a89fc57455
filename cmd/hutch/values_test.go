package main

import (
	"slices"
	"strings"
	"testing"
)

func TestJoinBooleans(t *testing.T) {
	for _, c := range [][2]string{
		{"run --allow-net false -- curl", "run --allow-net=false -- curl"},
		{"run --allow-net true curl", "run --allow-net=true curl"},
		{"run --allow-net curl false", "run --allow-net curl false"},
		{"run -- x --allow-net false", "run -- x --allow-net false"},
	} {
		if got := joinBooleans(strings.Fields(c[0])); !slices.Equal(got, strings.Fields(c[1])) {
			t.Errorf("%s: %q", c[0], got)
		}
	}
}
