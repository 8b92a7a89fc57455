package box

import (
	"strings"

	"hutch/internal/api"
)

// Options say how a process uses its boxes. The zero value is right for a
// command that is over soon.
type Options struct {
	// Pool is how many jails may be made ahead of boxes that will need one; 0 is
	// none. Fewer are, where little memory is available.
	Pool int
}

// The form of a box's id: 60 random bits.
const (
	idAlphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	idLength   = 12
)

// Hand-written, for a regular expression would be compiled at each start of the
// command line.

// isName reports whether s can name a box or a checkpoint.
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// isID reports whether s has the form of a box's id.
func isID(s string) bool {
	for i := range len(s) {
		if strings.IndexByte(idAlphabet, s[i]) < 0 {
			return false
		}
	}
	return len(s) == idLength
}

// checkName refuses names of boxes and checkpoints that could be taken for
// something else.
func checkName(what, name string) error {
	if !isName(name) {
		return &api.Error{Code: api.Invalid, Text: what + " may have letters, digits, - and _, begins with a letter or digit, and has at most 64 of them"}
	}
	if isID(name) {
		return &api.Error{Code: api.Invalid, Text: "a name that looks like the id of a box would be taken for one; choose another"}
	}
	return nil
}
