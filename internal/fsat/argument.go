package fsat

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Form says which paths an argument may be.
type Form uint8

// The forms. None of them takes an empty path or a NUL.
const (
	Any      Form = iota // the user's own choice of a place: may be relative, may go up
	Relative             // absolute, or relative without a way up
	Absolute             // absolute, without a way up
	Home                 // absolute or in the home ("~/"), without a way up
	Beneath              // relative, without a way up
)

// argumentMax is the longest path that a system call takes (PATH_MAX, less its
// NUL).
const argumentMax = 4095

// CheckArgument says whether a path that was given can be what is asked for, by
// its text alone; symlinks are for whoever opens it. Every path argument of
// flags, documents, Go and tool calls goes through it.
func CheckArgument(path string, form Form) error {
	switch {
	case path == "":
		return errors.New("the path is empty")
	case strings.IndexByte(path, 0) >= 0:
		return fmt.Errorf("%q holds a NUL", path)
	case len(path) > argumentMax:
		return fmt.Errorf("%.40q… is longer than %d bytes", path, argumentMax)
	case form == Absolute && !strings.HasPrefix(path, "/"):
		return fmt.Errorf("%q is not absolute", path)
	case form == Home && !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "~/"):
		return fmt.Errorf("%q is neither absolute nor begins with ~/", path)
	case form == Beneath && strings.HasPrefix(path, "/"):
		return fmt.Errorf("%q is absolute; give a path in the workspace", path)
	case form != Any && slices.Contains(strings.Split(path, "/"), ".."):
		return fmt.Errorf("%q holds ..; name the directory that is meant", path)
	}
	return nil
}

// Within reports whether a path is dir or lies below it. Both are clean, and both
// absolute or both relative to one directory; links are not looked at.
func Within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir) && (dir == "/" || path[len(dir)] == '/')
}
