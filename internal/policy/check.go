package policy

import "fmt"

// A Call is something that a command, or a tool of an agent, wants to do.
type Call struct {
	Argv     []string
	Terminal bool // it wants a terminal
}

// Denial says that the policy refuses a call, and what to do about it.
type Denial struct {
	What string // a capability or a key of the policy
	Why  string // with the source of the line that refuses it
	Do   string // what to type to have it
}

// Refuse returns what of a call the policy refuses; nothing where it may be
// tried.
func (f *InForce) Refuse(c Call) []Denial {
	var list []Denial
	if c.Terminal && !f.TTY {
		list = append(list, Denial{
			What: "tty", Why: fmt.Sprintf("a terminal was asked for, and capabilities.tty is off (%s)", f.Origin("capabilities.tty")),
			Do: "leave --tty away, or set HUTCH_CAPABILITIES_TTY=true",
		})
	}
	return list
}
