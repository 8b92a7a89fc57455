package policy

import (
	"fmt"
	"strings"

	"hutch/internal/fsat"
	"hutch/internal/globs"
)

// checkPattern says whether something can be hidden by text.
func checkPattern(text string) error {
	if strings.HasPrefix(text, "/") || strings.HasPrefix(text, "~/") {
		return fsat.CheckArgument(text, fsat.Home)
	}
	if strings.HasPrefix(text, "!") {
		return fmt.Errorf("%q would show what another line hides; what is hidden stays so", text)
	}
	if err := fsat.CheckArgument(text, fsat.Beneath); err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(text, "./"); ok {
		text = "/" + rest
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
