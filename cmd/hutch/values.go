package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What limits may be at most: beyond it a number is a mistake.
const (
	maxDuration = 10 * 365 * 24 * time.Hour
)

// size is a number of bytes: 1048576, 1024K, 1M, 1MiB.
type size int64

func (s *size) Set(text string) error {
	upper := strings.ToUpper(strings.TrimSpace(text))
	upper = strings.TrimSuffix(strings.TrimSuffix(upper, "B"), "I")
	shift := 0
	if i := strings.IndexAny(upper, "KMGT"); i >= 0 && i == len(upper)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGT", upper[i]))
		upper = upper[:i]
	}
	n, err := strconv.ParseFloat(upper, 64)
	bytes := n * float64(int64(1)<<shift)
	switch {
	case err != nil || math.IsNaN(n):
		return fmt.Errorf("%q is not a size; give a number of bytes, or one with K, M, G or T", text)
	case n < 0:
		return fmt.Errorf("%q is negative; give a positive size", text)
	case bytes >= 1<<62:
		return fmt.Errorf("%q is too large", text)
	}
	*s = size(bytes)
	return nil
}

func (s *size) String() string {
	n := int64(*s)
	for _, unit := range []struct {
		shift int
		name  string
	}{{40, "T"}, {30, "G"}, {20, "M"}, {10, "K"}} {
		if n != 0 && n%(1<<unit.shift) == 0 {
			return strconv.FormatInt(n>>unit.shift, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

func (s *size) Type() string { return "size" }

// duration is a time span: 30s, 1m30s, or a plain number of seconds.
type duration time.Duration

func (d *duration) Set(text string) error {
	text = strings.TrimSpace(text)
	span, err := time.ParseDuration(text)
	if err != nil {
		span, err = time.ParseDuration(text + "s")
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a time; give 30s, 2m or a number of seconds", text)
	case span < 0:
		return fmt.Errorf("%q is negative; give a positive time, or 0 for none", text)
	case span > maxDuration:
		return fmt.Errorf("%q is too long; give 0 for no deadline", text)
	}
	*d = duration(span)
	return nil
}

func (d *duration) String() string { return time.Duration(*d).String() }

func (d *duration) Type() string { return "duration" }

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
