package view

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

// absolute returns a path that a policy names, clean.
func (s *sight) absolute(path string) (string, bool) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok || path == "~" {
		if s.Home == "" {
			return "", false
		}
		return filepath.Join(s.Home, strings.TrimPrefix(rest, "~")), true
	}
	return filepath.Clean(path), filepath.IsAbs(path)
}

// hide notes the paths outside the workspace that the user keeps from the box.
// What is inside it, and patterns, are Hidden's.
func (s *sight) hide() {
	for _, asked := range s.Hide {
		path, ok := s.absolute(asked)
		if !ok {
			continue
		}
		real, exists := s.files.real(path)
		switch {
		case s.Workspace != "" && (fsat.Within(s.Workspace, path) || exists && fsat.Within(s.Workspace, real)):
			s.fail("hide %s: the workspace lies there; name what in it is to be hidden", asked)
		case s.inWorkspace(path):
		default:
			// Whether it exists or not: it may come to be while a box is alive.
			s.hidden = append(s.hidden, path)
			if exists && real != path {
				s.hidden = append(s.hidden, real)
			}
		}
	}
}

// covered reports whether the user hides a path.
func (s *sight) covered(path string) bool {
	return slices.ContainsFunc(s.hidden, func(h string) bool { return fsat.Within(path, h) })
}

func (s *sight) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// showAsked shows the paths that the user names. He may show what is secret,
// by naming it and not a directory around it; nobody may show hutch's state,
// a whole home, or a door to something that runs on the host.
func (s *sight) showAsked() {
	for _, path := range s.Read {
		s.show("read", path, ReadOnly)
	}
	for _, path := range s.Write {
		s.show("write", path, CopyOnWrite)
	}
}

func (s *sight) show(what, asked string, mode ShowMode) {
	path, ok := s.absolute(asked)
	if !ok {
		s.fail("%s %s: is not an absolute path; begin it with / or ~/", what, asked)
		return
	}
	if s.inWorkspace(path) {
		s.note("%s %s: lies in the workspace, which the box sees anyway", what, asked)
		return
	}
	real, ok := s.files.real(path)
	if !ok {
		s.note("%s %s: does not exist on the host; not shown", what, asked)
		return
	}
	kind := s.files.lookup(real).mode
	switch {
	case s.covered(real) || s.covered(path):
		s.note("%s %s: is hidden too; not shown", what, asked)
	case s.inWorkspace(real):
		s.note("%s %s: leads into the workspace, which the box sees anyway", what, asked)
	case s.StateDir != "" && (fsat.Within(real, s.StateDir) || mode == CopyOnWrite && fsat.Within(s.StateDir, real)):
		s.fail("%s %s: hutch's own state is there, which no box sees; name something else", what, asked)
	case kind&os.ModeSocket != 0:
		s.fail("%s %s: is a socket; a box that reaches it commands what listens there, so no box sees one", what, asked)
	case !kind.IsDir() && !kind.IsRegular():
		s.fail("%s %s: is neither a directory nor a file; name one of these", what, asked)
	case real == "/" || s.overHome(real) || s.isHome(real) || slices.Contains(homeParents, real):
		s.fail("%s %s: is a home, or around one; name what in it is wanted, or use --profile whole-root", what, asked)
	case slices.ContainsFunc(notFiles.names, func(dir string) bool { return fsat.Within(real, dir) }) && !(kind.IsRegular() && fsat.Within(real, "/run")):
		s.fail("%s %s: the kernel's files and the sockets of services are there; no box sees the host's", what, asked)
	case real != path && s.isSecret(real) && !s.isSecret(path):
		s.fail("%s %s: leads to %s, which is secret; name that if it is meant", what, asked, real)
	case mode == CopyOnWrite && !kind.IsDir() && !(fsat.Within(real, s.Home) && s.Home != ""):
		s.fail("%s %s: is a file, of which the kernel makes no copy-on-write view; name its directory", what, asked)
	default:
		if s.isSecret(real) {
			s.note("%s %s: is shown although it is a secret, since it was named", what, asked)
		} else if inner := s.secretsIn(real); len(inner) > 0 {
			s.note("%s %s: is shown without the secrets in it: %s", what, asked, strings.Join(inner, ", "))
		}
		s.asked = append(s.asked, real)
		if !(mode == ReadOnly && s.shown(real)) || s.isSecret(real) {
			s.shows = append(s.shows, Show{real, mode})
		}
		if path != real && !s.shown(path) {
			s.links = append(s.links, Symlink{path, real})
		}
	}
}

// homeParents are directories of homes.
var homeParents = []string{"/home", "/Users", "/var/home"}

func (s *sight) isHome(path string) bool { return homeOf(path) == path }

// isSecret is secret for the tables of the system too.
func (s *sight) isSecret(path string) bool {
	if s.secret(path) {
		return true
	}
	for _, r := range systemSecrets {
		if slices.ContainsFunc(r.names, func(name string) bool { return fsat.Within(path, name) }) {
			return true
		}
	}
	return false
}

// shownAsAsked reports whether a path is one that the user named to be shown,
// or lies in a secret that he named.
func (s *sight) shownAsAsked(path string) bool {
	return slices.ContainsFunc(s.asked, func(a string) bool { return path == a || fsat.Within(path, a) && s.isSecret(a) })
}

// secretsIn lists the secrets that exist in a directory, by their paths.
func (s *sight) secretsIn(dir string) []string {
	var found []string
	add := func(path string) {
		if fsat.Within(path, dir) && s.files.exists(path) {
			found = append(found, path)
		}
	}
	for _, home := range s.homesAbove(dir) {
		for name := range secretsOfHome {
			add(home + "/" + name)
		}
	}
	for _, r := range systemSecrets {
		for _, name := range r.names {
			add(name)
		}
	}
	slices.Sort(found)
	return found
}
