package guard

import "fmt"

// Tier says what becomes of a finding.
type Tier string

// The tiers.
const (
	Hold Tier = "hold" // not promoted until it is allowed by path
	Open Tier = "open" // promoted, and named first: an editor runs it by itself
	Flag Tier = "flag" // promoted, and named: runs on a deliberate build, test or push
)

// Finding is one path of a change that someone else would run.
type Finding struct {
	Path string `json:"path"` // of an entry of the changeset
	Tier Tier   `json:"tier"`
	Rule string `json:"rule"` // the row of the table
	Who  string `json:"who"`  // who would run it
	When string `json:"when"`
	Why  string `json:"why"`
}

// Line explains the finding in one line.
func (f Finding) Line() string {
	return fmt.Sprintf("%q: %s would run it %s: %s", f.Path, f.Who, f.When, f.Why)
}
