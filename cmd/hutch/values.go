package main

import (
	"fmt"
	"slices"
	"strings"
)

// choice is one of some words.
type choice struct {
	value string
	of    []string
}

func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fmt.Errorf("%q is not known; use %s", text, strings.Join(c.of, " or "))
	}
	c.value = text
	return nil
}

func (c *choice) String() string { return c.value }

func (c *choice) Type() string { return "word" }
