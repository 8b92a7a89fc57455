package guard

import (
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// systemPlaces hold what a distribution or the user installed, and links into
// them are what every virtual environment and nix result has.
var systemPlaces = []string{"/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store", "/run/current-system",
	"/home/linuxbrew/.linuxbrew", "/Library/Frameworks"}

// toolPlaces are where tools install interpreters, beneath the home directory.
var toolPlaces = []string{".pyenv/versions", ".local/share/uv/python", ".nvm/versions", ".local/share/fnm/node-versions", ".fnm/node-versions",
	".volta/tools/image", ".asdf/installs", ".local/share/mise/installs", ".local/share/rtx/installs", ".rbenv/versions", ".rvm/rubies",
	".rustup/toolchains", ".sdkman/candidates", "go/sdk", "miniconda3", "anaconda3", "miniforge3", "mambaforge", ".conda/envs", ".local/share/pnpm/nodejs"}

// maxLinks is how many symlinks the kernel follows for one path (path_resolution(7)).
const maxLinks = 40

// link judges a symlink that a change makes or turns.
func (j *judge) link(e *changeset.Entry) {
	if e.Before != nil && e.Before.Type == fsat.Symlink && e.Before.Target == e.After.Target {
		return
	}
	replaced := e.Before != nil && e.Before.Type == fsat.Directory
	inside, out := j.resolve(e.Path, e.After.Target)
	if out == "" {
		switch {
		case replaced && areaOf(strings.Split(fold(e.Path), "/")) != deps:
			j.rule(e.Path, "link-for-directory", "")
		case inside == ".":
		default:
			if row := j.leadsOntoHeld(inside); row != nil {
				j.rule(e.Path, "link-onto", "it leads to "+Printable(inside)+", which the row "+row.ID+" holds")
			}
		}
		return
	}
	p, err := j.outside(out)
	if err != nil {
		p = place{path: out, writable: true}
	}
	switch {
	case p.inside == "." && !replaced:
	case p.inside != "" && !replaced:
		if row := j.leadsOntoHeld(p.inside); row != nil {
			j.rule(e.Path, "link-onto", "it leads to "+Printable(p.inside)+", which the row "+row.ID+" holds")
		}
	case p.path == "/dev/null" && !replaced:
	case beneath(p.path, "/etc"):
		j.rule(e.Path, "link-outside", "it leads to "+Printable(p.path))
	case j.installed(p.path):
		if replaced {
			j.rule(e.Path, "link-for-directory", "")
		}
	case p.writable || replaced:
		j.rule(e.Path, "link-outside", "it leads to "+Printable(p.path)+", where you may write")
	case p.inside == "":
		if row := j.leadsOntoHeld(strings.TrimPrefix(p.path, "/")); row != nil {
			j.rule(e.Path, "link-onto", "it leads to "+Printable(p.path)+", which the row "+row.ID+" holds")
		}
	}
}

// installed reports whether an absolute path lies in an installation.
func (j *judge) installed(path string) bool {
	for _, dir := range systemPlaces {
		if beneath(path, dir) {
			return true
		}
	}
	if j.Home != "" {
		for _, dir := range toolPlaces {
			if beneath(path, filepath.Join(j.Home, dir)) {
				return true
			}
		}
	}
	return j.onUserPath(path)
}

// onUserPath reports whether an absolute path is one of the programs that the
// user's shell finds, or such a directory of programs, outside the workspace.
func (j *judge) onUserPath(path string) bool {
	for _, dir := range j.SearchPath {
		if !filepath.IsAbs(dir) {
			continue
		}
		real, err := j.outside(dir)
		if err != nil || !real.exists || real.inside != "" {
			continue
		}
		if real.path == path || filepath.Dir(path) == real.path {
			return true
		}
		program, err := j.outside(filepath.Join(dir, filepath.Base(path)))
		if err == nil && program.exists && program.inside == "" && program.path == path {
			return true
		}
	}
	return false
}

// beneath reports whether path is dir, or lies beneath it.
func beneath(path, dir string) bool {
	rest, ok := strings.CutPrefix(path, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}

// resolve follows the text of a symlink at path over the state after the
// promotion. It returns where that ends in the workspace, or the absolute path
// by which it leaves. What is not there is resolved as if it were.
func (j *judge) resolve(path, target string) (inside, out string) {
	dir, _ := fsat.Split(path)
	rest, out := j.enter(&dir, target)
	for links := 0; out == ""; {
		part, more, _ := strings.Cut(rest, "/")
		rest = strings.TrimLeft(more, "/")
		switch part {
		case "", ".":
		case "..":
			if dir == "." {
				return "", j.WorkspacePath + "/../" + rest
			}
			dir, _ = fsat.Split(dir)
		default:
			at := fsat.Join(dir, part)
			if typ, found := j.merged(at); !found || typ != fsat.Symlink {
				dir = at
				break
			}
			next, err := j.mergedLink(at)
			j.fail(err)
			if links++; links > maxLinks || err != nil {
				return at, "" // nobody can follow it
			}
			rest, out = j.enter(&dir, next+"/"+rest)
		}
		if out == "" && rest == "" {
			return dir, ""
		}
	}
	return "", out
}

// enter begins with the text of a link in the directory dir, of the workspace.
// It returns what is to be walked from there, or the absolute path by which the
// text leaves: one that is absolute may come back by the workspace's own.
func (j *judge) enter(dir *string, text string) (rest, out string) {
	if !strings.HasPrefix(text, "/") {
		return text, ""
	}
	if strings.Contains(text+"/", "/../") || !beneath(filepath.Clean(text), j.WorkspacePath) {
		return "", text
	}
	*dir = "."
	return strings.TrimPrefix(strings.TrimPrefix(filepath.Clean(text), j.WorkspacePath), "/"), ""
}

func (j *judge) mergedLink(path string) (string, error) {
	if e := j.find(path); e != nil {
		return e.After.Target, nil
	}
	return j.readlink(path)
}

// leadsOntoHeld returns the row that holds a path as such, or what lies right
// beneath it; nil for none. Content does not count: it may change later.
func (j *judge) leadsOntoHeld(path string) *Row {
	parts := strings.Split(fold(path), "/")
	area := areaOf(parts)
	var found *Row
	note := func(at int) {
		if row := &rows[at]; found == nil && row.Tier == Hold && row.judge == nil && area.applies(row) {
			found = row
		}
	}
	j.index.rows(parts, note)
	j.index.rows(append(parts, "*"), note) // a directory everything beneath which is held
	if found == nil && parts[len(parts)-1] == ".git" {
		found = ruleOf("git-config")
	}
	return found
}

// alias is a symlink of the workspace in a place that the table knows, and
// where it leads to: what is written there is read by the link's name.
type alias struct{ link, target string }

// findAliases looks for symlinks, after the promotion, in the top of the
// workspace, in each directory above something that changes, and in those there
// that the table knows. A link in a directory beside all of these is not found:
// to look for it would be to walk the whole workspace.
func (j *judge) findAliases() error {
	seen := map[string]bool{}
	if err := j.aliasesIn(".", seen); err != nil {
		return err
	}
	for i := range j.entries {
		for dir, _ := fsat.Split(j.entries[i].Path); dir != "." && !seen[dir]; dir, _ = fsat.Split(dir) {
			if err := j.aliasesIn(dir, seen); err != nil {
				return err
			}
		}
	}
	for i := range j.entries {
		e := &j.entries[i]
		if e.After == nil || e.After.Type != fsat.Symlink {
			continue
		}
		parts := strings.Split(fold(e.Path), "/")
		if j.known(parts...) || len(j.index.leads[parts[len(parts)-1]]) > 0 || len(j.index.leads[parts[0]]) > 0 {
			j.addAlias(e.Path)
		}
	}
	return nil
}

// aliasesIn looks in one directory.
func (j *judge) aliasesIn(dir string, seen map[string]bool) error {
	seen[dir] = true
	above := strings.Split(fold(dir), "/")
	if dir == "." {
		above = nil
	}
	if areaOf(append(above, "x")) == deps || slices.Contains(above, ".git") {
		return nil
	}
	list, err := j.list(dir)
	if err != nil {
		return err
	}
	for _, d := range list {
		name := fold(d.Name)
		leads := len(j.index.leads[name]) > 0
		if d.Type == fsat.Symlink && (leads || j.known(append(above, name)...)) {
			j.addAlias(fsat.Join(dir, d.Name))
		}
		if d.Type == fsat.Directory && leads {
			inner, err := j.list(fsat.Join(dir, d.Name))
			if err != nil {
				return err
			}
			for _, d2 := range inner {
				if d2.Type == fsat.Symlink {
					j.addAlias(fsat.Join(dir, d.Name) + "/" + d2.Name)
				}
			}
		}
	}
	return nil
}

// known reports whether some row may speak of a folded path.
func (j *judge) known(parts ...string) bool {
	found := false
	j.index.rows(parts, func(int) { found = true })
	return found
}

// addAlias notes where a link leads, and where those lead that are in the
// directory it leads to.
func (j *judge) addAlias(link string) {
	inside, ok := j.alias(link, link)
	if !ok || inside == "." {
		return
	}
	inner, err := j.list(inside)
	j.fail(err)
	for _, d := range inner {
		if d.Type == fsat.Symlink {
			j.alias(fsat.Join(inside, d.Name), fsat.Join(link, d.Name))
		}
	}
}

// alias notes where a link leads that is looked for at the path as.
func (j *judge) alias(link, as string) (inside string, ok bool) {
	if typ, found := j.merged(link); !found || typ != fsat.Symlink {
		return "", false
	}
	text, err := j.mergedLink(link)
	if err != nil {
		j.fail(err)
		return "", false
	}
	inside, out := j.resolve(link, text)
	if out != "" || inside == "." || inside == link {
		return "", false
	}
	for i := range j.aliases {
		if j.aliases[i].link == as {
			return "", false
		}
	}
	j.aliases = append(j.aliases, alias{as, inside})
	return inside, true
}
