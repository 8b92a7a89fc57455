package gitdb

import (
	"bytes"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

// Ref is one name of an object.
type Ref struct {
	Name   string // "HEAD", "refs/heads/main", "worktrees/ID/HEAD"
	Target string // the name a symbolic ref gives, else ""
	ID     OID    // what it leads to; "" where that is nothing: an unborn branch, or a file that is no ref
}

// maxSymbolic is how far git follows symbolic refs.
const maxSymbolic = 5

// parseRef reads the file of a ref. ok is false for what git calls broken.
func parseRef(format Format, content []byte) (id OID, target string, ok bool) {
	text := string(bytes.TrimRight(content, " \t\r\n\v\f"))
	if named, symbolic := strings.CutPrefix(text, "ref:"); symbolic {
		target = strings.TrimLeft(named, " \t\r\n\v\f")
		return "", target, fsat.Check(target) == nil
	}
	digits := 2 * int(format)
	if len(text) > digits && !strings.ContainsRune(" \t\r\n\v\f", rune(text[digits])) {
		return "", "", false
	}
	id, err := ParseOID(strings.ToLower(text[:min(len(text), digits)]))
	return id, "", err == nil && len(id) == int(format)
}

// parsePackedRefs reads a packed-refs file. Git finds a name there by bisection,
// so what is not sorted as it claims, or names a ref twice, is an error: two
// readers would see different refs.
func parsePackedRefs(format Format, content []byte) ([]Ref, error) {
	var refs []Ref
	sorted := false
	for line := range bytes.Lines(content) {
		text, ended := strings.CutSuffix(string(line), "\n")
		if !ended {
			return nil, corrupt("packed-refs: cut short")
		}
		if traits, header := strings.CutPrefix(text, "# pack-refs with:"); header && len(refs) == 0 {
			sorted = slices.Contains(strings.Fields(traits), "sorted")
			continue
		}
		if strings.HasPrefix(text, "#") || (strings.HasPrefix(text, "^") && len(refs) > 0) {
			continue // what a tag peels to is in the tag
		}
		digits := 2 * int(format)
		if len(text) < digits+2 || text[digits] != ' ' {
			return nil, corrupt("packed-refs: line %.60q", text)
		}
		id, err := ParseOID(text[:digits])
		if err != nil {
			return nil, err
		}
		name := text[digits+1:]
		if fsat.Check(name) != nil || !strings.HasPrefix(name, "refs/") {
			return nil, corrupt("packed-refs: ref named %.60q", name)
		}
		refs = append(refs, Ref{Name: name, ID: id})
	}
	byName := func(a, b Ref) int { return strings.Compare(a.Name, b.Name) }
	if sorted && !slices.IsSortedFunc(refs, byName) {
		return nil, corrupt("packed-refs: not sorted, as it says it is")
	}
	slices.SortFunc(refs, byName)
	for i := 1; i < len(refs); i++ {
		if refs[i].Name == refs[i-1].Name {
			return nil, corrupt("packed-refs: %.60q is there twice", refs[i].Name)
		}
	}
	return refs, nil
}

// parseReflog returns the new values of a reflog, the newest first.
func parseReflog(format Format, content []byte) ([]OID, error) {
	var ids []OID
	digits := 2 * int(format)
	for line := range bytes.Lines(content) {
		if len(line) < 2*digits+2 || line[digits] != ' ' || line[2*digits+1] != ' ' {
			return nil, corrupt("reflog: line %.60q", line)
		}
		id, err := ParseOID(string(line[digits+1 : 2*digits+1]))
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	slices.Reverse(ids)
	return ids, nil
}
