package guard

import (
	"crypto/sha256"
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// gitDirNames are the names in a git directory by which a change could make one,
// or reach into one: a path that holds none of them is of no git directory.
const gitDirNames = set("head commondir config config.worktree hooks objects refs info packed-refs modules worktrees rebase-merge rebase-apply sequencer remotes branches")

// gitEntry judges a path in a git directory under whatever name.
func (j *judge) gitEntry(e *changeset.Entry) {
	names := strings.Split(e.Path, "/")
	folded := strings.Split(fold(e.Path), "/")
	for i, name := range folded {
		if !gitDirNames.has(name) || i > 0 && folded[i-1] == ".git" {
			continue
		}
		dir := "."
		if i > 0 {
			dir = strings.Join(names[:i], "/")
		}
		if !j.isGitDir(dir) {
			if inModules(folded[:i]) {
				// A submodule's, which the rest may still arrive for.
				j.named(e, ".git/"+strings.Join(names[i:], "/"), "")
			}
			continue
		}
		j.named(e, ".git/"+strings.Join(names[i:], "/"), "")
		if i == len(names)-1 && e.After != nil && (name == "head" || name == "objects" || name == "refs" || name == "commondir") {
			j.newGitDir(e, dir, folded[:i])
		}
	}
}

// isGitTwin reports whether a path has a component that some file system takes
// for .git, and Linux does not.
func isGitTwin(path string) bool {
	folded := fold(path)
	if folded == path || !strings.Contains(folded, ".git") {
		return false
	}
	names := strings.Split(path, "/")
	for i, name := range strings.Split(folded, "/") {
		if name == ".git" && names[i] != ".git" {
			return true
		}
	}
	return false
}

// inModules reports whether a folded path lies in .git/modules or
// .git/worktrees, and not among the refs, logs or objects of one there, whose
// names may be anything.
func inModules(parts []string) bool {
	at := slices.Index(parts, ".git")
	if at < 0 || at+1 >= len(parts) || parts[at+1] != "modules" && parts[at+1] != "worktrees" {
		return false
	}
	return !slices.ContainsFunc(parts[at+2:], func(name string) bool { return name == "refs" || name == "logs" || name == "objects" })
}

// isGitDir reports whether git takes a directory for a repository after the
// promotion, by its shape: HEAD, and objects and refs or the way to them
// (gitrepository-layout(5)).
func (j *judge) isGitDir(dir string) bool {
	if is, known := j.shapes[dir]; known {
		return is
	}
	has := func(name string) bool { _, found := j.merged(fsat.Join(dir, name)); return found }
	is := has("HEAD") && (has("commondir") || has("objects") && has("refs"))
	j.shapes[dir] = is
	return is
}

// newGitDir holds what makes a git directory of one that was none, unless its
// name says so and nothing was there before that nobody judged.
func (j *judge) newGitDir(e *changeset.Entry, dir string, folded []string) {
	was := func(name string) bool { _, found, err := j.stat(fsat.Join(dir, name)); j.fail(err); return found }
	if was("HEAD") && (was("commondir") || was("objects") && was("refs")) {
		return
	}
	named := len(folded) > 0 && folded[len(folded)-1] == ".git" || inModules(folded)
	if named && !was("config") && !was("hooks") && !was("config.worktree") && !was("objects") {
		return
	}
	j.rule(e.Path, "git-directory", "")
}

// gitSetup is what the host's git is set up to run in this workspace.
type gitSetup struct {
	hooksPath  []string // directories of the workspace that hooks are taken from
	configs    []string // files of the workspace that are included
	drivers    map[string]bool
	hooksThere bool // some hook is installed
}

// setup reads the host's configuration of git, once.
func (j *judge) setup() *gitSetup {
	if j.git != nil {
		return j.git
	}
	g := &gitSetup{drivers: map[string]bool{}}
	j.git = g
	hooks := ".git/hooks"
	top := j.WorkspacePath
	if text, err := j.read(changeset.Workspace, ".git/config"); err == nil {
		j.readSetup(g, text, filepath.Join(top, ".git"), 0)
	} else {
		hooks = j.gitAbove(g)
	}
	if j.Home != "" {
		for _, path := range []string{".gitconfig", ".config/git/config"} {
			if text := j.userFile(filepath.Join(j.Home, path)); text != nil {
				j.readSetup(g, text, filepath.Dir(filepath.Join(j.Home, path)), 0)
			}
		}
	}
	for _, dir := range append(g.hooksPath, hooks, ".husky") {
		if dir == "" {
			continue
		}
		entries, err := j.list(dir)
		j.fail(err)
		for _, hook := range entries {
			g.hooksThere = g.hooksThere || hook.Type != fsat.Directory && !strings.HasSuffix(hook.Name, ".sample") && hook.Name[0] != '.'
		}
	}
	return g
}

// gitAbove reads the configuration of the repository that the workspace is a
// part or a worktree of, and returns nothing of the workspace.
func (j *judge) gitAbove(g *gitSetup) (hooks string) {
	gitDir := ""
	if text, err := j.read(changeset.Workspace, ".git"); err == nil {
		if dir, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: "); ok {
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(j.WorkspacePath, dir)
			}
			gitDir = dir
			if common := j.userFile(filepath.Join(dir, "commondir")); common != nil {
				gitDir = strings.TrimSpace(string(common))
				if !filepath.IsAbs(gitDir) {
					gitDir = filepath.Join(dir, gitDir)
				}
			}
		}
	} else {
		for dir := filepath.Dir(j.WorkspacePath); ; dir = filepath.Dir(dir) {
			if j.userFile(filepath.Join(dir, ".git/config")) != nil {
				gitDir = filepath.Join(dir, ".git")
				break
			}
			if dir == filepath.Dir(dir) {
				return ""
			}
		}
	}
	if gitDir == "" {
		return ""
	}
	if text := j.userFile(filepath.Join(gitDir, "config")); text != nil {
		j.readSetup(g, text, gitDir, 0)
	}
	g.hooksThere = g.hooksThere || j.hookOutside(gitDir)
	return ""
}

// hookNames are the hooks by which the tools that manage hooks install
// themselves.
var hookNames = []string{"pre-commit", "pre-push", "commit-msg", "prepare-commit-msg", "post-checkout", "post-merge", "post-commit", "pre-rebase"}

func (j *judge) hookOutside(gitDir string) bool {
	return slices.ContainsFunc(hookNames, func(name string) bool { return j.userFile(filepath.Join(gitDir, "hooks", name)) != nil })
}

// readSetup notes what a configuration sets up. dir is where it lies. An
// includeIf counts whatever its condition.
func (j *judge) readSetup(g *gitSetup, text []byte, dir string, depth int) {
	config, err := parseGitConfig(text)
	if err != nil || depth > 8 {
		return
	}
	for key, values := range config {
		value := values[len(values)-1]
		switch {
		case key.Section == "core" && key.Name == "hookspath":
			// Relative to where the hook runs: the top of the work tree.
			if dir := j.inWorkspace(value, j.WorkspacePath); dir != "" {
				g.hooksPath = append(g.hooksPath, dir)
			}
		case (key.Section == "include" || key.Section == "includeif") && key.Name == "path":
			for _, value := range values {
				path := j.expand(value, dir)
				if inside := j.inWorkspace(value, dir); inside != "" {
					g.configs = append(g.configs, inside)
					if text, err := j.read(changeset.Workspace, inside); err == nil {
						j.readSetup(g, text, filepath.Dir(path), depth+1)
					}
				} else if text := j.userFile(path); text != nil {
					j.readSetup(g, text, filepath.Dir(path), depth+1)
				}
			}
		case key.Sub != "" && (key.Section == "filter" || key.Section == "diff" || key.Section == "merge"):
			g.drivers[key.Section+"="+key.Sub] = true
		}
	}
}

// expand makes a path of a configuration that lies in dir absolute.
func (j *judge) expand(path, dir string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && j.Home != "" {
		return filepath.Join(j.Home, rest)
	}
	if !filepath.IsAbs(path) {
		return filepath.Join(dir, path)
	}
	return filepath.Clean(path)
}

// inWorkspace returns the path in the workspace that a path of a configuration
// leads to, "" for none.
func (j *judge) inWorkspace(path, dir string) string {
	rest, ok := strings.CutPrefix(j.expand(path, dir), strings.TrimSuffix(j.WorkspacePath, "/")+"/")
	if !ok {
		return ""
	}
	if inside, out := j.resolve("x", rest); out == "" {
		return inside
	}
	return rest
}

// hostGit judges paths that the host's configuration of git makes special.
func (j *judge) hostGit(e *changeset.Entry) {
	if e.IsDir() {
		return
	}
	g := j.setup()
	for _, dir := range g.hooksPath {
		if rest, ok := strings.CutPrefix(e.Path, dir+"/"); ok {
			j.named(e, ".git/hooks/"+rest, "core.hooksPath names this directory: ")
		}
	}
	if slices.Contains(g.configs, e.Path) {
		j.named(e, ".git/config", "your configuration of git includes this file: ")
	}
}

// Judges of the rows about git.

// judgeGitConfig lets only variables pass that are known to be harmless.
func judgeGitConfig(l *look) (Tier, string) {
	text, err := l.after()
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	after, err := parseGitConfig(text)
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	before := gitConfig{}
	if text, err := l.before(); err == nil {
		if parsed, err := parseGitConfig(text); err == nil {
			before = parsed
		}
	}
	first := ""
	note := func(key gitKey, verb string) {
		if text := verb + Printable(short(key.String())); first == "" || text < first {
			first = text
		}
	}
	for key, values := range after {
		was, had := before[key]
		if had && slices.Equal(was, values) {
			continue
		}
		if !key.harmless(values, !had) {
			note(key, "it sets ")
		}
	}
	for key, values := range before {
		if _, has := after[key]; !has && !key.harmless(values, true) {
			note(key, "it takes away ")
		}
	}
	if first == "" {
		return "", ""
	}
	return l.row.Tier, first + ": " + l.row.Why
}

// judgeGitLink lets a .git pass that leads to a worktree's or submodule's place
// in the workspace's own git directory.
func judgeGitLink(l *look) (Tier, string) {
	target := l.e.After.Target
	if l.e.After.Type == fsat.Regular {
		text, err := l.after()
		if err != nil {
			return l.row.Tier, l.unread(err)
		}
		dir, ok := strings.CutPrefix(string(text), "gitdir: ")
		if !ok {
			return l.row.Tier, ""
		}
		target = strings.TrimRight(dir, "\r\n")
	}
	inside, out := l.j.resolve(l.e.Path, target)
	if out == "" && (strings.HasPrefix(inside, ".git/worktrees/") || strings.HasPrefix(inside, ".git/modules/")) {
		return "", ""
	}
	return l.row.Tier, "it leads to " + Printable(short(target)) + ": " + l.row.Why
}

// judgeCommonDir lets the way from a worktree back to its repository pass.
func judgeCommonDir(l *look) (Tier, string) {
	text, err := l.after()
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	if strings.TrimSpace(string(text)) == "../.." && strings.HasPrefix(l.e.Path, ".git/worktrees/") {
		return "", ""
	}
	return l.row.Tier, ""
}

// judgeAttributes flags lines that hand files to a program that is configured.
func judgeAttributes(l *look) (Tier, string) {
	changed, err := l.keys(attributeKeys)
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	drivers := l.j.setup().drivers
	first := ""
	for key := range changed {
		driver := key[sha256.Size:]
		if (drivers[driver] || l.j.newDriver(driver)) && (first == "" || driver < first) {
			first = driver
		}
	}
	if first == "" {
		return "", ""
	}
	return l.row.Tier, "it uses " + Printable(short(first)) + ", which is configured: " + l.row.Why
}

// newDriver reports whether the change itself configures a driver.
func (j *judge) newDriver(driver string) bool {
	e := j.find(".git/config")
	if e == nil || e.After == nil {
		return false
	}
	text, err := j.after(e)
	if err != nil {
		return true
	}
	config, err := parseGitConfig(text)
	if err != nil {
		return true
	}
	section, sub, _ := strings.Cut(driver, "=")
	for key := range config {
		if key.Section == section && key.Sub == sub {
			return true
		}
	}
	return false
}

// attributeKeys reads a gitattributes(5) file: a key for each pattern
// and each driver that it names.
func attributeKeys(text []byte) (map[string]string, error) {
	keys := map[string]string{}
	for _, line := range lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		// A key for each driver would repeat a pattern that a box made long.
		pattern := sha256.Sum256([]byte(strings.Fields(line)[0]))
		for word := range strings.FieldsSeq(line) {
			if name, _, ok := strings.Cut(word, "="); ok && (name == "filter" || name == "diff" || name == "merge") {
				keys[string(pattern[:])+word] = ""
				if len(keys) > maxKeys {
					return nil, errKeys
				}
			}
		}
	}
	return keys, nil
}
