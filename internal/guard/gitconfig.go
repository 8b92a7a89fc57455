package guard

import (
	"errors"
	"fmt"
	"strings"
)

// gitKey is one variable of a git configuration. Section and Name are in lower
// case; a subsection keeps its own.
type gitKey struct{ Section, Sub, Name string }

func (k gitKey) String() string {
	if k.Sub == "" {
		return k.Section + "." + k.Name
	}
	return k.Section + "." + k.Sub + "." + k.Name
}

// gitConfig holds the values of each variable, in order. A name without "=" has
// the value "true".
type gitConfig map[gitKey][]string

// parseGitConfig reads the syntax of git-config(1). What git would refuse is an
// error.
func parseGitConfig(text []byte) (gitConfig, error) {
	p := configParser{text: strings.ReplaceAll(strings.TrimPrefix(string(text), "\ufeff"), "\r\n", "\n"), config: gitConfig{}}
	if strings.IndexByte(p.text, 0) >= 0 {
		return nil, errors.New("holds a NUL")
	}
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f':
			p.at++
		case c == '#' || c == ';':
			p.skipLine()
		case c == '[':
			if err := p.section(); err != nil {
				return nil, err
			}
		case isLetter(c):
			if err := p.variable(); err != nil {
				return nil, err
			}
		default:
			return nil, p.fail("is neither a section nor a name")
		}
		if p.count > maxKeys {
			return nil, errKeys
		}
	}
	return p.config, nil
}

type configParser struct {
	text   string
	at     int
	key    gitKey
	config gitConfig
	count  int
}

func (p *configParser) fail(what string) error {
	return fmt.Errorf("line %d %s", 1+strings.Count(p.text[:min(p.at, len(p.text))], "\n"), what)
}

func (p *configParser) skipLine() {
	if end := strings.IndexByte(p.text[p.at:], '\n'); end >= 0 {
		p.at += end
	} else {
		p.at = len(p.text)
	}
}

func isLetter(c byte) bool   { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isNameByte(c byte) bool { return isLetter(c) || '0' <= c && c <= '9' || c == '-' }

// section reads [name], [name "subsection"], or the old [name.subsection].
func (p *configParser) section() error {
	from := p.at + 1
	for p.at = from; p.at < len(p.text) && (isNameByte(p.text[p.at]) || p.text[p.at] == '.'); p.at++ {
	}
	name := strings.ToLower(p.text[from:p.at])
	section, sub, _ := strings.Cut(name, ".")
	p.key = gitKey{Section: section, Sub: sub}
	if name == "" || p.at == len(p.text) {
		return p.fail("has a section without its end")
	}
	if c := p.text[p.at]; c == ' ' || c == '\t' {
		for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
			p.at++
		}
		if p.at == len(p.text) || p.text[p.at] != '"' {
			return p.fail("has a subsection without its quotes")
		}
		var text strings.Builder
		for p.at++; p.at < len(p.text) && p.text[p.at] != '"'; p.at++ {
			if p.text[p.at] == '\\' {
				p.at++
			}
			if p.at == len(p.text) || p.text[p.at] == '\n' {
				return p.fail("has a subsection without its end")
			}
			text.WriteByte(p.text[p.at])
		}
		p.at++
		if p.key.Sub != "" {
			p.key.Sub += "."
		}
		p.key.Sub += text.String()
	}
	if p.at >= len(p.text) || p.text[p.at] != ']' {
		return p.fail("has a section without its end")
	}
	p.at++
	return nil
}

func (p *configParser) variable() error {
	if p.key.Section == "" {
		return p.fail("has a name before any section")
	}
	from := p.at
	for p.at < len(p.text) && isNameByte(p.text[p.at]) {
		p.at++
	}
	key := p.key
	key.Name = strings.ToLower(p.text[from:p.at])
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
		p.at++
	}
	value := "true"
	switch {
	case p.at == len(p.text) || p.text[p.at] == '\n':
	case p.text[p.at] == '=':
		p.at++
		var err error
		if value, err = p.value(); err != nil {
			return err
		}
	default:
		return p.fail("has a name without a value")
	}
	p.config[key] = append(p.config[key], value)
	p.count++
	return nil
}

// value reads to the end of the line, with quotes, escapes, comments and lines
// that go on.
func (p *configParser) value() (string, error) {
	var value strings.Builder
	trimmed := 0 // how much of value stays when trailing space goes
	quoted := false
	for ; p.at < len(p.text); p.at++ {
		c := p.text[p.at]
		switch {
		case c == '\n':
			if quoted {
				return "", p.fail("has a quote that does not end")
			}
			return value.String()[:trimmed], nil
		case !quoted && (c == '#' || c == ';'):
			p.skipLine()
			return value.String()[:trimmed], nil
		case !quoted && (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'):
			if trimmed > 0 || value.Len() > 0 {
				value.WriteByte(c)
			}
			continue
		case c == '"':
			quoted = !quoted
			trimmed = value.Len()
			continue
		case c == '\\':
			p.at++
			if p.at == len(p.text) {
				return "", p.fail("ends in a backslash")
			}
			switch p.text[p.at] {
			case '\n':
				continue
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case '\\', '"':
				c = p.text[p.at]
			default:
				return "", p.fail("has an unknown escape")
			}
		}
		value.WriteByte(c)
		trimmed = value.Len()
	}
	if quoted {
		return "", p.fail("has a quote that does not end")
	}
	return value.String()[:trimmed], nil
}

// harmless says whether git runs nothing because a variable is set, and looks
// for nothing elsewhere. It is a list of what is known to be so: the variables
// that name a program are many, and grow. fresh says that the variable was not
// set before.
func (k gitKey) harmless(values []string, fresh bool) bool {
	names, known := harmlessKeys[k.Section]
	if !known || !names.has(k.Name) && !names.has("*") {
		return false
	}
	bySub := subsections[k.Section]
	if (k.Sub != "") != bySub && k.Section != "color" && k.Section != "lfs" {
		return false
	}
	for _, value := range values {
		switch {
		case k.Name == "url":
			// Where an existing name leads is where the next push goes.
			if !fresh || !plainURL(value) {
				return false
			}
		case k.Section == "branch" && k.Name == "remote":
			if strings.ContainsAny(value, ":/\\") || strings.HasPrefix(value, "-") {
				return false
			}
		}
	}
	return true
}

// plainURL reports whether git fetches from a URL by itself: neither a helper
// program ("ext::") nor an option.
func plainURL(url string) bool {
	if strings.HasPrefix(url, "-") || strings.Contains(url, "::") {
		return false
	}
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok { // a path, or user@host:path
		return !strings.Contains(url, " ")
	}
	return urlSchemes.has(strings.ToLower(scheme)) && !strings.HasPrefix(rest, "-")
}

const urlSchemes = set("https http ssh git file")

// subsections are the sections whose variables in harmlessKeys have one.
var subsections = map[string]bool{"branch": true, "remote": true, "submodule": true}

var harmlessKeys = map[string]set{
	"core": set("repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol safecrlf " +
		"abbrev quotepath untrackedcache sparsecheckout sparsecheckoutcone commentchar longpaths preloadindex splitindex whitespace " +
		"compression loosecompression bigfilethreshold checkstat trustctime sharedrepository hidedotfiles"),
	"user":        "name email useconfigonly",
	"author":      "name email",
	"init":        "defaultbranch",
	"branch":      "remote merge rebase description autosetuprebase vscode-merge-base gh-merge-base",
	"remote":      "url fetch tagopt prune prunetags promisor partialclonefilter gh-resolved",
	"submodule":   "url active branch ignore fetchrecursesubmodules",
	"extensions":  "objectformat worktreeconfig partialclone noop preciousobjects",
	"pull":        "rebase ff",
	"push":        "default autosetupremote followtags",
	"fetch":       "prune prunetags parallel writecommitgraph",
	"merge":       "ff conflictstyle renames renamelimit directoryrenames stat log",
	"rebase":      "autosquash autostash updaterefs stat",
	"diff":        "algorithm renames renamelimit colormoved context mnemonicprefix noprefix submodule",
	"rerere":      "enabled autoupdate",
	"color":       "*",
	"advice":      "*",
	"gc":          "auto autopacklimit autodetach pruneexpire reflogexpire reflogexpireunreachable worktreepruneexpire",
	"maintenance": "auto strategy",
	"index":       "version threads sparse",
	"pack":        "threads window depth windowmemory",
	"feature":     "manyfiles experimental",
	"log":         "date decorate follow",
	"status":      "short branch showuntrackedfiles relativepaths submodulesummary",
	"checkout":    "defaultremote guess",
	"lfs":         "repositoryformatversion access locksverify",
}

// set is words with spaces between them. It is searched as it is: every command
// of hutch starts with these tables, and few look anything up in them.
type set string

func (s set) has(word string) bool {
	for w := range strings.FieldsSeq(string(s)) {
		if w == word {
			return true
		}
	}
	return false
}
