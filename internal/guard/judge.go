package guard

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/globs"
)

// maxContent bounds a file whose content decides. A larger one is taken to hold
// everything that it could.
const maxContent = 1 << 20

// Errors of a host's read. They make a content-judged file count as the worst
// it could be, and are no failure of the judgement.
var (
	errTooLarge   = errors.New("it is larger than 1 MiB")
	errNoFile     = errors.New("it is no regular file")
	errUnreadable = errors.New("it cannot be read")
)

// host is what the guard sees of the layer and the workspace. Paths are
// relative and clean; none is followed.
type host interface {
	// read returns the content of a regular file of at most maxContent bytes.
	read(root changeset.Root, path string) ([]byte, error)
	// stat describes a path of the workspace; false where nothing is.
	stat(path string) (fsat.Stat, bool, error)
	// list returns the entries of a directory of the workspace; none where
	// that is not one, or cannot be read.
	list(path string) ([]fsat.Dirent, error)
	// readlink returns the text of a symlink of the workspace.
	readlink(path string) (string, error)
	// layerStat describes a path of the layer, and says whether it carries
	// file capabilities where it may be executed.
	layerStat(path string, executable bool) (st fsat.Stat, capable bool, err error)
	// names counts the names in the whole layer of files that have several.
	names() (map[uint64]uint64, error)
	// outside looks at an absolute path beyond the workspace.
	outside(path string) (place, error)
	// userFile reads a file of the user's own configuration by its absolute
	// path; nil where there is none.
	userFile(path string) []byte
	// leadsHere returns where in the workspace a symlink at an absolute path
	// ends; "" where it does not.
	leadsHere(path string) string
	// delivered judges what git would put into the work tree later.
	delivered(*judge) error
}

// place is what a path beyond the workspace is.
type place struct {
	inside   string // it leads back to this path of the workspace; "." is its top
	path     string // the absolute path that it leads to, links resolved as far as they go
	exists   bool
	writable bool // the user may write to it, or make it
}

// judge goes over one change.
type judge struct {
	Request
	host
	entries  []changeset.Entry // sorted by path
	allow    *globs.Set        // Allow
	index    *index
	findings []Finding
	aliases  []alias
	shapes   map[string]bool // is a directory a git directory after the promotion?
	pathDirs []string        // directories of the workspace that are on the user's PATH
	git      *gitSetup
	links    map[uint64]uint64 // see names
	// homeLinks are names in the home directory that lead into the workspace.
	homeLinks []alias
	failed    error
}

func judgeOn(r Request, h host) ([]Finding, error) {
	if r.Changes.Empty() {
		return nil, nil
	}
	if !strings.HasPrefix(r.WorkspacePath, "/") {
		return nil, fmt.Errorf("guard: the workspace's path %q is not absolute", r.WorkspacePath) // no link could be told from one that leaves
	}
	if r.Rules == nil {
		r.Rules = &Rules{}
	}
	allow, err := globs.Parse(r.Allow)
	if err != nil {
		return nil, fmt.Errorf("--allow-path: %w", err)
	}
	protect, err := globs.Parse(r.Protect)
	if err != nil {
		return nil, fmt.Errorf("--protect: %w", err)
	}
	j := &judge{Request: r, host: h, entries: r.Changes.Entries, allow: allow, index: theIndex(), shapes: map[string]bool{}}
	if !slices.IsSortedFunc(j.entries, func(a, b changeset.Entry) int { return strings.Compare(a.Path, b.Path) }) {
		return nil, errors.New("guard: the changeset is not sorted") // lookups would miss
	}
	j.findPathDirs()
	j.findHomeLinks()
	if err := j.findAliases(); err != nil {
		return nil, err
	}
	protects := append([]*globs.Set{protect}, r.Rules.protect...)
	for i := range j.entries {
		e := &j.entries[i]
		if slices.ContainsFunc(protects, func(s *globs.Set) bool { return s.Match(e.Path, e.IsDir()) }) {
			j.add(Finding{Path: e.Path, Tier: Hold, Rule: protectedRule, Who: "whoever relies on it", When: "from the promotion on", Why: "you protect this path"})
			continue
		}
		j.entry(e)
		if j.failed != nil {
			return nil, j.failed
		}
	}
	if err := h.delivered(j); err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if j.failed != nil {
		return nil, j.failed
	}
	return sorted(j.findings), nil
}

// protectedRule stands in the place of a row's id.
const protectedRule = "protected"

// add notes a finding, unless the user allows its path.
func (j *judge) add(f Finding) {
	e := j.find(f.Path)
	dir := e != nil && e.IsDir()
	if j.allow.Match(f.Path, dir) || f.Rule != protectedRule && j.Rules.allow.Match(f.Path, dir) {
		return
	}
	f.Directory = dir
	j.findings = append(j.findings, f)
}

// report adds a finding of a row at a path of the change.
func (j *judge) report(path string, row *Row, tier Tier, why string) {
	if why == "" {
		why = row.Why
	}
	j.add(Finding{Path: path, Tier: tier, Rule: row.ID, Who: row.Who, When: row.When, Why: why})
}

// fail notes the first error that leaves the judgement incomplete.
func (j *judge) fail(err error) {
	if j.failed == nil && err != nil {
		j.failed = fmt.Errorf("guard: %w", err)
	}
}

func (j *judge) entry(e *changeset.Entry) {
	if isGitTwin(e.Path) {
		j.rule(e.Path, "git-twin", "")
		return
	}
	j.named(e, e.Path, "")
	for i := range j.aliases {
		a := &j.aliases[i]
		if rest, ok := strings.CutPrefix(e.Path, a.target); ok && (rest == "" || rest[0] == '/') {
			j.named(e, a.link+rest, "the link "+Printable(a.link)+" leads here: ")
		}
	}
	j.gitEntry(e)
	j.hostGit(e)
	j.homeLink(e)
	j.userRows(e)
	if e.After == nil {
		return
	}
	j.rights(e)
	if e.After.Type == fsat.Symlink {
		j.link(e)
	}
	j.onPath(e)
}

// named holds an entry against the rows, as if it stood at path. note says why
// it should.
func (j *judge) named(e *changeset.Entry, path, note string) {
	folded := fold(path)
	var few [16]string
	parts := appendParts(few[:0], folded)
	area := areaOf(parts)
	j.index.rows(parts, func(at int) {
		if row := &rows[at]; area.applies(row) {
			j.row(row, e, parts, note)
		}
	})
	if e.After != nil && e.After.Type == fsat.Symlink {
		j.index.leadsTo(parts, func(at int) {
			if row := &rows[at]; area.applies(row) {
				j.report(e.Path, row, row.Tier, note+"it is a link where that directory is looked for: "+row.Why)
			}
		})
	}
}

func appendParts(parts []string, path string) []string {
	for part := range strings.SplitSeq(path, "/") {
		parts = append(parts, part)
	}
	return parts
}

// area is a kind of place in a workspace, by the names of the directories above
// a path.
type area uint8

const (
	source area = iota
	build       // what builds and copies of other projects leave: nobody opens it as a project
	deps        // installed packages, each with the odds and ends of its own project
)

// areaOf returns the area of a folded path.
func areaOf(parts []string) area {
	found := source
	for _, dir := range parts[:len(parts)-1] {
		switch dir {
		case "node_modules", "site-packages", "dist-packages":
			return deps
		case "target", "vendor", "third_party", ".venv", "venv", ".tox", ".nox":
			found = build
		}
	}
	return found
}

func (a area) applies(row *Row) bool {
	switch a {
	case deps:
		return row.everywhere
	case build:
		return row.everywhere || row.Tier == Hold
	}
	return true
}

// row lets one row decide on an entry whose path it matches.
func (j *judge) row(row *Row, e *changeset.Entry, parts []string, note string) {
	if e.IsDir() {
		return
	}
	if e.After == nil && !row.Restricts {
		return
	}
	if sameContent(e) && (row.Tier != Hold || !newlyExecutable(e)) {
		return
	}
	for i := range row.except {
		if row.except[i].matches(parts) {
			return
		}
	}
	tier, why := row.Tier, ""
	if row.judge != nil {
		tier, why = row.judge(&look{j, e, parts, row})
		if tier == "" {
			return
		}
	}
	if why == "" {
		why = row.Why
		if e.After == nil {
			why = "it is deleted, and what it forbids with it: " + why
		}
	}
	if folded := fold(e.Path); note == "" && folded != e.Path && folded != strings.ToLower(e.Path) {
		note = "a file system may take it for " + Printable(folded) + ": "
	}
	j.report(e.Path, row, tier, note+why)
}

func (j *judge) userRows(e *changeset.Entry) {
	for i := range j.Rules.rows {
		row := &j.Rules.rows[i]
		if row.paths.Match(e.Path, e.IsDir()) && !e.IsDir() && !sameContent(e) {
			j.report(e.Path, &row.Row, row.Tier, "")
		}
	}
}

// look is what a row's judge is given.
type look struct {
	j     *judge
	e     *changeset.Entry
	parts []string // of the folded path that the row matched
	row   *Row
}

// after returns the content that the promotion leaves at the path, nil where it
// deletes it.
func (l *look) after() ([]byte, error) { return l.j.after(l.e) }

func (j *judge) after(e *changeset.Entry) ([]byte, error) {
	switch {
	case e.After == nil:
		return nil, nil
	case e.After.Type != fsat.Regular:
		return nil, errNoFile
	case e.After.Size > maxContent:
		return nil, errTooLarge
	}
	return j.read(e.Source, e.SourcePath)
}

// before returns the content that the host has at the path, nil for none.
func (l *look) before() ([]byte, error) {
	if l.e.Before == nil || l.e.Before.Type != fsat.Regular {
		return nil, nil
	}
	return l.j.read(changeset.Workspace, l.e.Path)
}

// keys reads the file before and after and returns the keys that were added or
// changed, and where the row restricts also those that were removed. An error
// is why the content after cannot be read so.
func (l *look) keys(parse keyed) (map[string]string, error) {
	text, err := l.after()
	if err != nil {
		return nil, err
	}
	after, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read as what it should be: %w", err)
	}
	var before map[string]string
	if text, err := l.before(); err == nil {
		if bytes.IndexByte(text, 0) < 0 {
			before, _ = parse(text) // what was unreadable makes everything new
		}
	}
	changed := map[string]string{}
	for key, value := range after {
		if was, had := before[key]; !had || was != value {
			changed[key] = value
		}
	}
	if l.row.Restricts {
		for key, value := range before {
			if _, has := after[key]; !has {
				changed[key] = value
			}
		}
	}
	return changed, nil
}

// onKeys is a judge for which the keys that changed decide: the first, in
// order, that hit takes is named.
func onKeys(parse keyed, hit func(key, value string) bool) func(*look) (Tier, string) {
	return func(l *look) (Tier, string) {
		changed, err := l.keys(parse)
		if err != nil {
			return l.row.Tier, l.unread(err)
		}
		first := ""
		for key, value := range changed {
			if hit(key, value) && (first == "" || key < first) {
				first = key
			}
		}
		if first == "" {
			return "", ""
		}
		return l.row.Tier, "it changes " + Printable(short(first)) + ": " + l.row.Why
	}
}

// unread says why a file counts as the worst it could be.
func (l *look) unread(err error) string {
	return err.Error() + ", so it counts as if it did: " + l.row.Why
}

// short bounds what is shown of a text that a box wrote.
func short(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

// keyMatches returns whether a dotted key matches one of the patterns, in which
// a component "*" stands for any component and "**" for any number of them.
func keyMatches(patterns ...string) func(key, value string) bool {
	split := make([][]string, len(patterns))
	for i, p := range patterns {
		split[i] = strings.Split(p, sep)
	}
	return func(key, _ string) bool {
		parts := strings.Split(key, sep)
		return slices.ContainsFunc(split, func(pattern []string) bool { return matchParts(pattern, parts) })
	}
}

func matchParts(pattern, parts []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for from := range len(parts) + 1 {
				if matchParts(pattern[1:], parts[from:]) {
					return true
				}
			}
			return false
		}
		if len(parts) == 0 || !matchName(pattern[0], parts[0]) {
			return false
		}
		pattern, parts = pattern[1:], parts[1:]
	}
	return len(parts) == 0
}

// find returns the entry at a path.
func (j *judge) find(path string) *changeset.Entry {
	at, found := slices.BinarySearchFunc(j.entries, path, func(e changeset.Entry, path string) int {
		return strings.Compare(e.Path, path)
	})
	if !found {
		return nil
	}
	return &j.entries[at]
}

// merged returns the type of what stands at a path after the promotion.
func (j *judge) merged(path string) (fsat.Type, bool) {
	if path == "." || path == "" {
		return fsat.Directory, true
	}
	if e := j.find(path); e != nil {
		if e.After == nil {
			return fsat.Unknown, false
		}
		return e.After.Type, true
	}
	st, found, err := j.stat(path)
	j.fail(err)
	return st.Type, found
}

// mergedText reads what stands at a path after the promotion.
func (j *judge) mergedText(path string) ([]byte, error) {
	if e := j.find(path); e != nil {
		return j.after(e)
	}
	return j.read(changeset.Workspace, path)
}

// beside returns the path of name in the directory of an entry.
func beside(e *changeset.Entry, name string) string {
	dir, _ := fsat.Split(e.Path)
	return fsat.Join(dir, name)
}

// sameContent reports whether what a program would read is as it was.
func sameContent(e *changeset.Entry) bool {
	return e.Before != nil && e.After != nil && e.Before.Type == e.After.Type &&
		e.Before.Digest == e.After.Digest && e.Before.Target == e.After.Target &&
		(e.After.Type != fsat.Regular || e.After.Digest != "")
}

func newlyExecutable(e *changeset.Entry) bool {
	return e.After != nil && e.After.Type == fsat.Regular && e.After.Mode&0o111 != 0 &&
		(e.Before == nil || e.Before.Type != fsat.Regular || e.Before.Mode&0o111 == 0)
}
