package view

import (
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

// A File is one that a box finds in its home, made for it.
type File struct {
	Path    string
	Mode    uint32
	Content string
}

// configMax bounds a configuration file that is read, and each file that comes
// of it. One that is larger is left out.
const (
	configMax = 256 << 10
	fileMax   = 48 << 10 // a message to boxinit holds it
	valueMax  = 1024
)

// A config is a file of the user's home of which a box gets what is harmless:
// the rest of it may be a secret, and a command would break without it.
type config struct {
	path   string // in the home, unless a variable moves it
	parent string // names the directory that base lies in
	base   string
	clean  func(s *sight, text string) string
}

var configs = []config{
	{".gitconfig", "", "", (*sight).cleanGit},
	{".config/git/config", "XDG_CONFIG_HOME", "git/config", (*sight).cleanGit},
	{".config/git/ignore", "XDG_CONFIG_HOME", "git/ignore", cleanLines},
	{".npmrc", "", "", cleanNpmrc},
	{".yarnrc.yml", "", "", cleanYarn},
	{".bunfig.toml", "", "", cleanBun},
	{".config/pip/pip.conf", "XDG_CONFIG_HOME", "pip/pip.conf", cleanPip},
	{".pip/pip.conf", "", "", cleanPip},
	{".config/uv/uv.toml", "XDG_CONFIG_HOME", "uv/uv.toml", cleanUv},
	{".cargo/config.toml", "CARGO_HOME", "config.toml", cleanCargo},
	{".cargo/config", "CARGO_HOME", "config", cleanCargo},
}

// systemConfigs are files that everybody reads and in which somebody may have
// put a password all the same. One in which that shows is masked.
var systemConfigs = row{"with a token in an address", []string{
	"/etc/gitconfig", "/etc/pip.conf", "/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/environment", "/usr/local/etc/gitconfig"}}

// configure makes the files of the home.
func (s *sight) configure() {
	if s.Home == "" {
		return
	}
	for _, c := range configs {
		path := filepath.Join(s.Home, c.path)
		if dir := s.env[c.parent]; filepath.IsAbs(dir) {
			path = filepath.Join(dir, c.base)
		}
		real, ok := s.files.real(path)
		if !ok || !fsat.Within(path, s.Home) || path == s.Home || s.inWorkspace(path) || s.shownAsAsked(real) || s.StateDir != "" && fsat.Within(path, s.StateDir) {
			continue
		}
		// Where the home is the host's, a link on the way is the host's too.
		if parent, ok := s.files.real(filepath.Dir(path)); ok && s.part(parent) != nil {
			path = filepath.Join(parent, filepath.Base(path))
		}
		if slices.ContainsFunc(s.shows, func(x Show) bool { return fsat.Within(path, x.Path) && !s.isPart(x.Path) }) {
			continue // what the user asked to see is seen as it is, less its secrets
		}
		text, ok := s.read(real)
		if !ok {
			continue
		}
		if content := c.clean(s, text); content != "" && len(content) <= fileMax {
			s.configured = append(s.configured, File{Path: path, Mode: 0o644, Content: content})
		}
	}
	for _, path := range systemConfigs.names {
		real, ok := s.files.real(path)
		if !ok || !s.shown(real) {
			continue
		}
		text, ok := s.read(real)
		if !ok || !secretText(text) {
			continue
		}
		s.also = append(s.also, real)
		s.note("%s holds a password or token and is kept from the box", path)
		if strings.HasSuffix(path, "/gitconfig") {
			s.prepend(filepath.Join(s.Home, ".gitconfig"), s.cleanGit(text))
		}
	}
}

// prepend puts text before what the box's file at path says, so that the user's
// own settings overrule those of the system.
func (s *sight) prepend(path, text string) {
	if text == "" || s.inWorkspace(path) {
		return
	}
	for i := range s.configured {
		if f := &s.configured[i]; f.Path == path {
			if len(text)+len(f.Content) <= fileMax {
				f.Content = text + f.Content
			}
			return
		}
	}
	s.configured = append(s.configured, File{Path: path, Mode: 0o644, Content: text})
}

// secretText reports whether a line of a file holds a secret.
func secretText(text string) bool {
	for line := range strings.Lines(text) {
		if secretValue(line) || secretSegment(line) {
			return true
		}
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.ContainsAny(line[:1], "[#;") && secretName(strings.TrimSpace(key)) && len(strings.TrimSpace(value)) >= 8 {
			return true
		}
	}
	return false
}

func cutAny(s, chars string) (before, after string, ok bool) {
	i := strings.IndexAny(s, chars)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// harmless reports whether a value of a configuration may be seen in a box.
func harmless(value string) bool {
	return len(value) <= valueMax && !secretValue(value) && !secretSegment(value) && strings.IndexFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f || r == 0xfffd }) < 0
}

// allowed reports whether a list of patterns names a key, without regard to
// case. A * stands for one name between the points of a pattern that has some:
// a table below it may hold anything.
func allowed(list []string, key string) bool {
	key = strings.ToLower(key)
	return key != "" && slices.ContainsFunc(list, func(p string) bool {
		points := strings.Count(p, ".")
		return matches(p, key) && (points == 0 || points == strings.Count(key, "."))
	})
}

// cleanLines keeps the lines in which no secret shows.
func cleanLines(_ *sight, text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); harmless(line) {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// ---- git ----

// gitKeys are the settings that say how git works, and not whom it asks, what
// it runs, or where it looks. An alias may run anything, and a signature needs
// a key that is not there.
var gitKeys = []string{
	"user.name", "user.email", "user.useconfigonly", "init.defaultbranch",
	"core.autocrlf", "core.eol", "core.safecrlf", "core.quotepath", "core.filemode", "core.ignorecase", "core.precomposeunicode", "core.abbrev",
	"core.whitespace", "core.symlinks", "core.longpaths", "core.commentchar", "core.untrackedcache", "core.preloadindex",
	"color.*", "column.*", "advice.*", "pull.rebase", "pull.ff", "push.default", "push.autosetupremote", "push.followtags",
	"merge.conflictstyle", "merge.ff", "merge.renames", "merge.stat", "rebase.autostash", "rebase.autosquash", "rebase.updaterefs", "rebase.stat",
	"diff.algorithm", "diff.renames", "diff.renamelimit", "diff.colormoved", "diff.mnemonicprefix", "diff.noprefix", "diff.context", "diff.submodule",
	"fetch.prune", "fetch.prunetags", "fetch.parallel", "commit.verbose", "commit.cleanup", "commit.status", "tag.sort", "branch.sort",
	"branch.autosetuprebase", "branch.autosetupmerge", "log.date", "log.decorate", "log.abbrevcommit", "log.follow", "status.short", "status.branch",
	"status.showuntrackedfiles", "rerere.enabled", "rerere.autoupdate", "grep.linenumber", "grep.patterntype", "help.autocorrect", "apply.whitespace", "blame.date",
	"feature.*", "index.version", "index.threads", "protocol.version", "safe.directory", "submodule.recurse", "stash.showpatch", "versionsort.suffix", "gc.auto",
	"maintenance.auto", "checkout.defaultremote", "checkout.guess", "switch.guess", "pack.threads", "i18n.*",
}

// gitEntry is one setting: where says its section, with its subsection.
type gitEntry struct{ section, sub, key, value string }

// cleanGit keeps what gitKeys names, from the files that are included too.
func (s *sight) cleanGit(text string) string {
	var out strings.Builder
	section := ""
	for _, e := range s.gitEntries(text, 4) {
		if e.sub != "" || !allowed(gitKeys, e.section+"."+e.key) || !harmless(e.value) {
			continue
		}
		if e.section != section {
			section = e.section
			out.WriteString("[" + section + "]\n")
		}
		value := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(e.value)
		out.WriteString("\t" + e.key + ` = "` + value + "\"\n")
	}
	return out.String()
}

// gitEntries reads a file of settings. depth bounds how files include others.
func (s *sight) gitEntries(text string, depth int) []gitEntry {
	var all []gitEntry
	for _, e := range parseGit(text) {
		all = append(all, e)
		if e.key != "path" || depth == 0 || len(all) > 4096 {
			continue
		}
		if e.section == "include" && e.sub == "" || e.section == "includeif" && s.includes(e.sub) {
			path := e.value
			if rest, ok := strings.CutPrefix(path, "~/"); ok {
				path = filepath.Join(s.Home, rest)
			} else if !filepath.IsAbs(path) {
				path = filepath.Join(s.Home, path)
			}
			if real, ok := s.files.real(filepath.Clean(path)); ok {
				if more, ok := s.read(real); ok {
					all = append(all, s.gitEntries(more, depth-1)...)
				}
			}
		}
	}
	return all
}

// includes judges the commonest condition of git: a directory that the
// workspace lies in.
func (s *sight) includes(condition string) bool {
	dir, ok := strings.CutPrefix(condition, "gitdir:")
	if !ok {
		dir, ok = strings.CutPrefix(condition, "gitdir/i:")
	}
	if rest, home := strings.CutPrefix(dir, "~/"); home {
		dir = s.Home + "/" + rest
	}
	return ok && s.Workspace != "" && filepath.IsAbs(dir) && strings.HasSuffix(dir, "/") && strings.HasPrefix(s.Workspace+"/.git/", dir)
}

// parseGit reads git's configuration as git-config(1) describes it; what it
// does not understand it leaves out.
func parseGit(text string) []gitEntry {
	var entries []gitEntry
	section, sub := "", ""
	for text != "" {
		var line string
		line, text = gitLine(text)
		if strings.HasPrefix(line, "[") {
			head, rest, ok := cutSection(line)
			if !ok {
				section = ""
				continue
			}
			section, sub = gitSection(head)
			line = strings.TrimLeft(rest, " \t")
		}
		if line == "" || line[0] == '#' || line[0] == ';' || section == "" {
			continue
		}
		key, value, has := strings.Cut(line, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if key == "" || strings.IndexFunc(key, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }) >= 0 {
			continue
		}
		if !has {
			value = "true"
		} else if value, has = gitValue(value); !has {
			continue
		}
		entries = append(entries, gitEntry{section, sub, key, value})
	}
	return entries
}

// gitLine takes a line, with those that a backslash at the end adds to it.
func gitLine(text string) (line, rest string) {
	for {
		var part string
		part, rest, _ = strings.Cut(text, "\n")
		part = strings.TrimSuffix(part, "\r")
		slashes := len(part) - len(strings.TrimRight(part, `\`))
		if slashes%2 == 0 || rest == "" {
			return strings.TrimLeft(line+part, " \t\ufeff"), rest
		}
		line += part[:len(part)-1]
		text = rest
	}
}

func cutSection(line string) (head, rest string, ok bool) {
	quoted := false
	for i := 1; i < len(line); i++ {
		switch {
		case line[i] == '\\' && quoted:
			i++
		case line[i] == '"':
			quoted = !quoted
		case line[i] == ']' && !quoted:
			return line[1:i], line[i+1:], true
		}
	}
	return "", "", false
}

func gitSection(head string) (section, sub string) {
	name, quoted, has := strings.Cut(head, `"`)
	name = strings.ToLower(strings.TrimSpace(name))
	if has {
		quoted = strings.TrimSuffix(strings.TrimSpace(quoted), `"`)
		return name, strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(quoted)
	}
	name, sub, _ = strings.Cut(name, ".")
	return name, sub
}

func gitValue(text string) (string, bool) {
	var out strings.Builder
	quoted, kept := false, 0
	text = strings.TrimLeft(text, " \t")
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '"':
			quoted = !quoted
			kept = out.Len()
			continue
		case c == '\\':
			i++
			if i == len(text) {
				return "", false
			}
			switch text[i] {
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			case 'b':
				c = '\b'
			case '\\', '"':
				c = text[i]
			default:
				return "", false
			}
		case !quoted && (c == '#' || c == ';'):
			i = len(text)
			continue
		}
		out.WriteByte(c)
		if quoted || c != ' ' && c != '\t' {
			kept = out.Len()
		}
	}
	return out.String()[:kept], !quoted
}

// ---- npm, yarn ----

var npmKeys = []string{
	"registry", "@*:registry", "save-exact", "save-prefix", "engine-strict", "fund", "audit", "audit-level", "legacy-peer-deps", "strict-peer-deps", "strict-peer-dependencies",
	"loglevel", "progress", "package-lock", "prefer-offline", "offline", "fetch-*", "maxsockets", "node-linker", "auto-install-peers", "shamefully-hoist", "ignore-scripts", "strict-ssl",
	"update-notifier", "color", "proxy", "https-proxy", "http-proxy", "noproxy", "install-links", "omit", "include", "workspaces", "lockfile-version", "public-hoist-pattern[]", "hoist", "resolution-mode",
}

func cleanNpmrc(_ *sight, text string) string {
	return cleanPairs(text, "=", npmKeys, func(key, value string) string { return key + "=" + value })
}

var yarnKeys = []string{
	"npmregistryserver", "nodelinker", "enabletelemetry", "enableglobalcache", "enablescripts", "compressionlevel", "enableimmutableinstalls", "defaultsemverrangeprefix", "enableprogressbars",
	"enablecolors", "enablehyperlinks", "enablemessagenames", "httptimeout", "httpretry", "networkconcurrency", "checksumbehavior", "logfilters", "preferinteractive",
}

func cleanYarn(_ *sight, text string) string {
	return cleanPairs(text, ":", yarnKeys, func(key, value string) string { return key + ": " + value })
}

// cleanPairs keeps lines of a key, a sign and a value that stands on that line
// alone; none that is indented, which belongs to another.
func cleanPairs(text, sign string, keys []string, write func(key, value string) string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		if line == "" || strings.ContainsAny(line[:1], " \t#;[") {
			continue
		}
		var key, value string
		var ok bool
		if i := strings.Index(line, sign); i > 0 && !strings.HasPrefix(line, "@") {
			key, value, ok = line[:i], line[i+1:], true
		} else if i := strings.LastIndex(line, "registry"+sign); i > 0 { // a scope has a colon in it
			key, value, ok = line[:i+len("registry")], line[i+len("registry")+1:], true
		} else if i := strings.Index(line, "registry "); i > 0 && sign == "=" {
			key, value, ok = cutAny(line, "=")
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if ok && value != "" && allowed(keys, key) && harmless(value) && harmless(key) && !strings.Contains(value, "${") && !strings.ContainsAny(value[:1], "{[&*!|>") {
			out.WriteString(write(key, value) + "\n")
		}
	}
	return out.String()
}

// ---- pip ----

var pipKeys = []string{
	"index-url", "extra-index-url", "trusted-host", "timeout", "default-timeout", "retries", "disable-pip-version-check", "require-virtualenv", "break-system-packages", "prefer-binary", "only-binary",
	"no-binary", "pre", "progress-bar", "no-input", "user", "no-warn-script-location", "use-pep517", "no-index", "format", "upgrade-strategy", "no-color", "quiet", "verbose",
}

func cleanPip(_ *sight, text string) string {
	var out strings.Builder
	section, key := "", ""
	emit := func(value string) {
		// A key opens its value; what follows on lines of their own is indented.
		if value = strings.TrimSpace(value); value != "" && harmless(value) && !strings.HasPrefix(value, "[") {
			if key != "" {
				out.WriteString(key + " =\n")
				key = ""
			}
			out.WriteString("    " + value + "\n")
		}
	}
	keeping := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "" || strings.ContainsAny(line[:1], "#;"):
		case line[0] == ' ' || line[0] == '\t':
			if t := strings.TrimSpace(line); keeping && t[0] != '#' && t[0] != ';' {
				emit(t)
			}
		case line[0] == '[':
			keeping = false
			name := strings.TrimSuffix(line[1:], "]")
			section = ""
			if !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') }) && name != "" {
				section = name
				out.WriteString("[" + section + "]\n")
			}
		default:
			name, value, ok := cutAny(line, "=:")
			name = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(name), "_", "-"))
			keeping = ok && section != "" && allowed(pipKeys, name)
			if keeping {
				key = name
				emit(value)
			}
		}
	}
	return out.String()
}

// ---- TOML: cargo, uv, bun ----

var cargoKeys = []string{
	"build.jobs", "build.rustflags", "build.rustdocflags", "build.target", "build.incremental", "build.pipelining", "target.*.rustflags", "target.*.linker", "net.retry", "net.offline", "net.git-fetch-with-cli",
	"http.timeout", "http.multiplexing", "http.check-revoke", "registries.*.index", "registries.*.protocol", "registry.default", "source.*.registry", "source.*.replace-with",
	"profile.*.opt-level", "profile.*.debug", "profile.*.lto", "profile.*.codegen-units", "profile.*.panic", "profile.*.incremental", "profile.*.strip", "profile.*.split-debuginfo", "term.color", "term.verbose", "term.quiet",
	"unstable.*", "resolver.*", "cache.*", "future-incompat-report.*",
}

func cleanCargo(_ *sight, text string) string { return cleanTOML(text, cargoKeys) }

var uvKeys = []string{
	"index-url", "extra-index-url", "default-index", "index.name", "index.url", "index.default", "index.explicit", "index-strategy", "pip.index-url", "pip.extra-index-url", "python-preference", "python-downloads", "link-mode",
	"resolution", "prerelease", "offline", "native-tls", "compile-bytecode", "no-build", "no-binary", "concurrent-*", "allow-insecure-host", "required-version", "exclude-newer", "no-index",
}

func cleanUv(_ *sight, text string) string { return cleanTOML(text, uvKeys) }

var bunKeys = []string{
	"install.registry", "install.exact", "install.optional", "install.dev", "install.peer", "install.production", "install.auto", "install.frozenlockfile", "install.savetextlockfile", "install.linker", "install.scopes.*", "install.scopes.*.url", "telemetry", "loglevel", "smol", "test.*", "run.shell", "run.silent",
}

func cleanBun(_ *sight, text string) string { return cleanTOML(text, bunKeys) }

// cleanTOML keeps the settings that keys name whose values are plain: strings
// without escapes, numbers, truth values, and lists of those.
func cleanTOML(text string, keys []string) string {
	var out strings.Builder
	table, header := "", ""
	seen := make(map[string]bool)
	for text != "" {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			name, list, ok := tomlHeader(line)
			table, header = name, ""
			switch {
			case !ok:
				table = "\x00" // which no pattern matches
			case list:
				header = "[[" + name + "]]\n"
				clear(seen) // of the table before
			case name != "" && !seen["["+name]:
				header = "[" + name + "]\n"
				seen["["+name] = true
			default:
				table = "\x00" // a table may stand once
			}
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		for range 64 { // a list may go on
			if !strings.HasPrefix(value, "[") || tomlPlain(value) || text == "" {
				break
			}
			var more string
			more, text, _ = strings.Cut(text, "\n")
			if more, _, _ = strings.Cut(more, "#"); strings.TrimSpace(more) != "" {
				value += " " + strings.TrimSpace(more)
			}
		}
		if !tomlPlain(value) {
			if value, _, ok = strings.Cut(value, " #"); !ok || !tomlPlain(strings.TrimSpace(value)) {
				continue
			}
			value = strings.TrimSpace(value)
		}
		name := tomlName(key)
		full := strings.TrimPrefix(table+"."+name, ".")
		if name == "" || strings.Contains(key, ".") || secretName(name) || seen[full] || !allowed(keys, full) || !harmless(value) || !harmless(full) || strings.HasSuffix(full, ".linker") && strings.Contains(value, "/") {
			continue
		}
		seen[full] = true
		out.WriteString(header + key + " = " + value + "\n")
		header = ""
	}
	return out.String()
}

// tomlHeader reads "[a.b]" or "[[a]]" whose names need no escapes.
func tomlHeader(line string) (name string, list, ok bool) {
	line, rest, _ := strings.Cut(line, "#")
	if strings.ContainsAny(rest, `"'`) { // the sign was in a name
		return "", false, false
	}
	line = strings.TrimSpace(line)
	inner, isList := strings.CutPrefix(line, "[[")
	if isList {
		inner, ok = strings.CutSuffix(inner, "]]")
	} else {
		inner, ok = strings.CutSuffix(line[1:], "]")
	}
	inner = strings.TrimSpace(inner)
	if !ok || inner == "" || strings.ContainsAny(inner, "[]\\= \t\x00") || strings.Count(inner, `"`)%2 != 0 || strings.Count(inner, `'`)%2 != 0 {
		return "", false, false
	}
	return inner, isList, true
}

// tomlName returns a key that stands alone, without its quotes; "" for others.
func tomlName(key string) string {
	for _, quote := range []string{`"`, `'`} {
		if len(key) > 2 && strings.HasPrefix(key, quote) && strings.HasSuffix(key, quote) {
			key = key[1 : len(key)-1]
			break
		}
	}
	if strings.ContainsFunc(key, func(r rune) bool {
		return r != '-' && r != '_' && r != '@' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}) {
		return ""
	}
	return key
}

// tomlPlain reports whether a text is one value, whole, of the plain kinds.
func tomlPlain(text string) bool {
	rest, ok := tomlValue(text, true)
	return ok && strings.TrimSpace(rest) == ""
}

func tomlValue(text string, lists bool) (rest string, ok bool) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", false
	}
	switch c := text[0]; {
	case c == '"' || c == '\'':
		body, rest, ok := strings.Cut(text[1:], string(c))
		return rest, ok && !strings.ContainsAny(body, "\\\n") && !strings.HasPrefix(rest, string(c))
	case c == '[' && lists:
		text = strings.TrimSpace(text[1:])
		for !strings.HasPrefix(text, "]") {
			if text, ok = tomlValue(text, false); !ok {
				return "", false
			}
			text = strings.TrimSpace(text)
			if next, more := strings.CutPrefix(text, ","); more {
				text = strings.TrimSpace(next)
			} else if !strings.HasPrefix(text, "]") {
				return "", false
			}
		}
		return text[1:], true
	}
	end := strings.IndexFunc(text, func(r rune) bool {
		return r != '+' && r != '-' && r != '.' && r != '_' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
	if end < 0 {
		end = len(text)
	}
	word := text[:end]
	_, isNumber := number(word)
	return text[end:], word == "true" || word == "false" || isNumber
}

func number(word string) (string, bool) {
	digits := strings.TrimLeft(strings.ReplaceAll(word, "_", ""), "+-")
	return word, digits != "" && digits[0] >= '0' && digits[0] <= '9' && !strings.ContainsFunc(digits, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }) && strings.Count(digits, ".") <= 1 && !strings.HasSuffix(digits, ".") && (len(digits) == 1 || digits[0] != '0' || digits[1] == '.')
}
