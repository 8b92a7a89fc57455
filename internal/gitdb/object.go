package gitdb

import (
	"bytes"
	"strconv"
	"strings"
)

// TreeEntry is one entry of a tree.
type TreeEntry struct {
	Name string // one component: not empty, "." or "..", no slash or NUL
	Mode uint32 // type and permission bits as in lstat(2); ModeGitlink for a submodule
	ID   OID
}

// The types in a mode (mode & ModeType).
const (
	ModeType    = 0o170000
	ModeTree    = 0o040000
	ModeFile    = 0o100000
	ModeSymlink = 0o120000
	ModeGitlink = 0o160000
)

func (e *TreeEntry) isTree() bool { return e.Mode&ModeType == ModeTree }

// parseTree reads a tree. It is stricter than git: names that could lead
// elsewhere, and an order that would let two readers see different trees, are
// errors.
func parseTree(format Format, content []byte) ([]TreeEntry, error) {
	var entries []TreeEntry
	for len(content) > 0 {
		space := bytes.IndexByte(content, ' ')
		if space < 1 || space > 6 {
			return nil, corrupt("tree: no mode")
		}
		mode, err := strconv.ParseUint(string(content[:space]), 8, 32)
		if err != nil || content[0] == '0' || !validMode(uint32(mode)) {
			return nil, corrupt("tree: mode %q", content[:space])
		}
		content = content[space+1:]
		end := bytes.IndexByte(content, 0)
		if end < 0 || len(content) < end+1+int(format) {
			return nil, corrupt("tree: cut short")
		}
		e := TreeEntry{
			Name: string(content[:end]),
			Mode: uint32(mode),
			ID:   OID(content[end+1 : end+1+int(format)]),
		}
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.Contains(e.Name, "/") {
			return nil, corrupt("tree: entry named %q", e.Name)
		}
		if n := len(entries); n > 0 && compareEntries(&entries[n-1], &e) >= 0 {
			return nil, corrupt("tree: %q is out of order", e.Name)
		}
		entries = append(entries, e)
		content = content[end+1+int(format):]
	}
	// A file and a directory of one name are not neighbours in git's order.
	seen := make(map[string]bool, len(entries))
	for i := range entries {
		if seen[entries[i].Name] {
			return nil, corrupt("tree: two entries are named %q", entries[i].Name)
		}
		seen[entries[i].Name] = true
	}
	return entries, nil
}

func validMode(mode uint32) bool {
	switch mode & ModeType {
	case ModeTree, ModeGitlink, ModeSymlink:
		return mode&^ModeType == 0
	case ModeFile:
		return mode&^ModeType <= 0o777
	}
	return false
}

// compareEntries is git's order: by bytes, a tree as if its name ended in "/".
func compareEntries(a, b *TreeEntry) int {
	n := min(len(a.Name), len(b.Name))
	if c := strings.Compare(a.Name[:n], b.Name[:n]); c != 0 {
		return c
	}
	next := func(e *TreeEntry) int {
		switch {
		case len(e.Name) > n:
			return int(e.Name[n])
		case e.isTree():
			return '/'
		}
		return 0
	}
	if c := next(a) - next(b); c != 0 {
		return c
	}
	return len(a.Name) - len(b.Name)
}

// CommitInfo is what a commit points to.
type CommitInfo struct {
	Tree    OID
	Parents []OID
	Time    int64 // of the committer, in seconds since 1970; 0 where it says none
}

// parseCommit reads the headers of a commit that come first and in this order.
func parseCommit(format Format, content []byte) (CommitInfo, error) {
	tree, rest, ok := headerOID(format, string(content), "tree ")
	if !ok {
		return CommitInfo{}, corrupt("commit: no tree")
	}
	c := CommitInfo{Tree: tree}
	for {
		parent, more, ok := headerOID(format, rest, "parent ")
		if !ok {
			break
		}
		c.Parents = append(c.Parents, parent)
		rest = more
	}
	if !strings.HasPrefix(rest, "author ") && !strings.HasPrefix(rest, "committer ") {
		return CommitInfo{}, corrupt("commit: neither parent nor author: %.40q", rest)
	}
	c.Time = committed(rest)
	return c, nil
}

// committed returns the time in the header "committer NAME <MAIL> TIME ZONE".
func committed(headers string) int64 {
	for line := range strings.Lines(headers) {
		if line == "\n" {
			break // what follows is the message
		}
		if !strings.HasPrefix(line, "committer ") {
			continue
		}
		fields := strings.Fields(line[strings.LastIndexByte(line, '>')+1:])
		if len(fields) == 0 {
			break
		}
		t, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || t < 0 {
			break
		}
		return t
	}
	return 0
}

// parseTag returns what a tag object points to.
func parseTag(format Format, content []byte) (OID, Kind, error) {
	id, rest, ok := headerOID(format, string(content), "object ")
	line, _, _ := strings.Cut(rest, "\n")
	name, found := strings.CutPrefix(line, "type ")
	kind, known := parseKind(name)
	if !ok || !found || !known {
		return "", 0, corrupt("tag without object and type")
	}
	return id, kind, nil
}

func headerOID(format Format, text, key string) (id OID, rest string, ok bool) {
	value, ok := strings.CutPrefix(text, key)
	digits := 2 * int(format)
	if !ok || len(value) <= digits || value[digits] != '\n' {
		return "", text, false
	}
	id, err := ParseOID(value[:digits])
	return id, value[digits+1:], err == nil
}

// parseLooseHeader reads "kind size" of a loose object.
func parseLooseHeader(header string) (Kind, int64, error) {
	name, digits, _ := strings.Cut(header, " ")
	kind, ok := parseKind(name)
	size, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || strconv.FormatInt(size, 10) != digits {
		return 0, 0, corrupt("header %.40q of a loose object", header)
	}
	return kind, size, nil
}
