package box

import (
	"regexp"

	"hutch/internal/api"
)

// Options say how a process uses its boxes. The zero value is right for a
// command that is over soon.
type Options struct {
	// Pool is how many jails may be made ahead of boxes that will need one; 0 is
	// none. Fewer are, where little memory is available.
	Pool int
}

var (
	nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	idForm   = regexp.MustCompile(`^[0-9abcdefghjkmnpqrstvwxyz]{12}$`)
)

// checkName refuses names of boxes and checkpoints that could be taken for
// something else.
func checkName(what, name string) error {
	if !nameForm.MatchString(name) {
		return &api.Error{Code: api.Invalid, Text: what + " may have letters, digits, - and _, begins with a letter or digit, and has at most 64 of them"}
	}
	if idForm.MatchString(name) {
		return &api.Error{Code: api.Invalid, Text: "a name that looks like the id of a box would be taken for one; choose another"}
	}
	return nil
}
