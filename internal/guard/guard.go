package guard

import (
	"cmp"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"

	"hutch/internal/changeset"
)

// Tier says what becomes of a path that was found.
type Tier string

// The tiers, the strictest first.
const (
	// Hold: it runs without the user choosing to run the project's code, or
	// widens what the agent may do next time. It is not promoted.
	Hold Tier = "hold"
	// Open: an editor's language server or extension runs it by itself, but it
	// is also ordinary project code. It is promoted and named first.
	Open Tier = "open"
	// Flag: it runs when the user builds, tests or pushes. It is promoted and
	// named.
	Flag Tier = "flag"
)

// rank orders tiers, the strictest lowest; what is no tier comes last.
func (t Tier) rank() int {
	if at := slices.Index([]Tier{Hold, Open, Flag}, t); at >= 0 {
		return at
	}
	return 3
}

// Finding is one path of a change that somebody else would run.
type Finding struct {
	Path string `json:"path"` // raw bytes, relative to the workspace
	Tier Tier   `json:"tier"`
	Rule string `json:"rule"` // the id of the row of the table
	Who  string `json:"who"`  // runs it: "git"
	When string `json:"when"` // "at the next git command here"
	Why  string `json:"why"`  // one sentence, without its full stop
	// Delivers is the path that a git ref, the stash or the index at Path
	// would put into the work tree, where it is that which was found.
	Delivers string `json:"delivers,omitempty"`
	// Directory says that Path is one: a pattern that allows it would allow
	// what lies beneath it too.
	Directory bool `json:"-"`
}

// Line explains the finding in one line for a terminal: path, who would run
// it, when. What a box put into the path cannot move the cursor.
func (f Finding) Line() string {
	path := Printable(f.Path)
	if f.Delivers != "" {
		path += " → " + Printable(f.Delivers)
	}
	return path + ": " + f.Who + ", " + f.When + ": " + f.Why
}

// Printable returns a path as it can be shown: quoted where it holds bytes or
// characters that a terminal would not show as they are.
func Printable(path string) string {
	if !utf8.ValidString(path) || path == "" {
		return strconv.QuoteToASCII(path)
	}
	for _, r := range path {
		if !unicode.IsPrint(r) || r == '"' || r == '\\' {
			return strconv.QuoteToASCII(path)
		}
	}
	return path
}

// Request is one change to judge.
type Request struct {
	Changes *changeset.Changeset
	// Layer and Workspace are open directories: the layer that the changeset
	// was read from, and the workspace.
	Layer, Workspace int
	Picked           int // as in changeset.Trees
	// Overlay is the prefix of the mount's own attributes ("trusted.overlay."
	// or "user.overlay.") where the layer is the upper of an overlay, and ""
	// where it is a full tree.
	Overlay string
	// Shared says that files of the layer have further names in layers that
	// hutch keeps. A promotion copies such a file, so that none of its names
	// leads to what was promoted.
	Shared bool
	// WorkspacePath is the workspace's absolute path without symlinks; Home
	// the user's home directory, "" for none; SearchPath the user's PATH.
	WorkspacePath string
	Home          string
	SearchPath    []string
	Rules         *Rules // nil: the table alone
	// Allow are gitignore patterns whose paths pass this once (--allow-path),
	// Protect such whose paths are held whenever they are touched (--protect).
	// A protected path passes by Allow, not by the configuration.
	Allow, Protect []string
}

// sorted orders findings by tier, then path, and leaves the strictest of each
// path, and of each path that one delivers.
func sorted(findings []Finding) []Finding {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Delivers, b.Delivers), cmp.Compare(a.Tier.rank(), b.Tier.rank()))
	})
	findings = slices.CompactFunc(findings, func(a, b Finding) bool { return a.Path == b.Path && a.Delivers == b.Delivers })
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Compare(a.Tier.rank(), b.Tier.rank())
	})
	return findings
}
