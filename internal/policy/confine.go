package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"hutch/internal/globs"
)

// checkPath says whether a document's path is one: absolute or in the home, and
// without a way up.
func checkPath(text string) error {
	switch {
	case text == "":
		return errors.New("the path is empty")
	case strings.IndexByte(text, 0) >= 0:
		return fmt.Errorf("%q holds a NUL", text)
	case !strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "~/"):
		return fmt.Errorf("%q is neither absolute nor begins with ~/", text)
	case slices.Contains(strings.Split(text, "/"), ".."):
		return fmt.Errorf("%q holds ..; name the directory that is meant", text)
	}
	return nil
}

// checkPattern says whether something can be hidden by text.
func checkPattern(text string) error {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "~/") {
		return checkPath(text)
	}
	switch {
	case strings.HasPrefix(text, "!"):
		return fmt.Errorf("%q would show what another line hides; what is hidden stays so", text)
	case strings.IndexByte(text, 0) >= 0:
		return fmt.Errorf("%q holds a NUL", text)
	case slices.Contains(strings.Split(text, "/"), ".."):
		return fmt.Errorf("%q holds ..; a pattern is about the workspace", text)
	}
	set, err := globs.Parse([]string{text})
	if err != nil {
		return err
	}
	if set.Empty() {
		return fmt.Errorf("%q names nothing", text)
	}
	return nil
}
