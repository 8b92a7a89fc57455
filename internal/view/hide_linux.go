package view

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/globs"
)

// maxWalk bounds the names that are looked at for patterns.
const maxWalk = 5_000_000

// Hidden returns the paths of the workspace, open as ws, that the policy keeps
// from the box: relative, sorted, and none beneath another. hutch's own state is
// among them where the workspace holds it: what vouches for promotions, and says
// which policies are trusted. A pattern without a
// slash can match anywhere, so it costs a listing of every directory (0.1 s for
// 100,000 files); one with a slash only of those that it could match in; a plain
// path one lstat. Without patterns nothing is read.
//
// What cannot be read is hidden too, since nobody knows what is in it, and its
// owner could open it in a box.
func Hidden(ws int, h Host) ([]string, error) {
	s := &sight{Host: h, files: newResolver(h.root, h.Workspace)}
	var hidden, patterns []string
	if h.StateDir != "" {
		hidden = s.named(ws, h.StateDir)
	}
	if len(h.Hide) == 0 {
		return hidden, nil
	}
	git := false // only a pattern that names it reaches into .git
	for _, asked := range h.Hide {
		path, isPath := s.absolute(asked)
		switch {
		case isPath:
			hidden = append(hidden, s.named(ws, path)...)
		default:
			if rel := strings.Trim(strings.TrimPrefix(asked, "./"), "/"); h.Workspace != "" && strings.Contains(rel, "/") && !strings.ContainsAny(rel, `*?[\`) {
				hidden = append(hidden, s.named(ws, filepath.Join(h.Workspace, rel))...)
			}
			if rest, ok := strings.CutPrefix(asked, "./"); ok {
				asked = "/" + rest
			}
			git = git || strings.HasPrefix(strings.TrimPrefix(asked, "/"), ".git/")
			patterns = append(patterns, asked)
		}
	}
	set, err := globs.Parse(patterns)
	if err != nil {
		return nil, fmt.Errorf("hide: %w", err)
	}
	if !set.Empty() {
		found, err := walk(ws, set, git)
		if err != nil {
			return nil, fmt.Errorf("hide: look for what the patterns match: %w", err)
		}
		hidden = append(hidden, found...)
	}
	slices.SortFunc(hidden, comparePaths)
	var top []string
	for _, path := range hidden {
		if n := len(top); n == 0 || !fsat.Within(path, top[n-1]) {
			top = append(top, path)
		}
	}
	return top, nil
}

// named returns what a path names in the workspace: itself, and where links on
// the way and at its end lead. A path that a closed directory hides from hutch
// could be seen in the box, whose owner can open it; so that is hidden whole.
func (s *sight) named(ws int, path string) []string {
	if s.Workspace == "" {
		return nil
	}
	parent := filepath.Join(s.deepest(filepath.Dir(path)), filepath.Base(path))
	var found []string
	for _, path := range []string{path, parent, s.deepest(path)} {
		if !fsat.Within(path, s.Workspace) || path == s.Workspace {
			continue
		}
		rel := path[len(s.Workspace)+1:]
		_, err := fsat.Lstat(ws, rel)
		for errors.Is(err, unix.EACCES) && strings.Contains(rel, "/") {
			rel = filepath.Dir(rel)
			_, err = fsat.Lstat(ws, rel)
		}
		if err == nil && !slices.Contains(found, rel) {
			found = append(found, rel)
		}
	}
	return found
}

// deepest follows the links of a path as far as it can be looked at.
func (s *sight) deepest(path string) string {
	for known, rest := path, ""; ; known, rest = filepath.Dir(known), filepath.Join(filepath.Base(known), rest) {
		if real, ok := s.files.follow(known); ok {
			return filepath.Join(real, rest)
		}
		if known == "/" {
			return path
		}
	}
}

func walk(ws int, set *globs.Set, git bool) ([]string, error) {
	var found []string
	names := 0
	pending := []string{"."}
	for len(pending) > 0 {
		dir := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		fd, err := fsat.OpenDir(ws, dir)
		if errors.Is(err, unix.EACCES) && dir != "." {
			found = append(found, dir)
			continue
		}
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // it changed just now
		}
		if err != nil {
			return nil, err
		}
		entries, err := fsat.ReadDir(fd)
		if err == nil {
			for i := range entries {
				if e := &entries[i]; e.Type == fsat.Unknown {
					if st, err := fsat.LstatName(fd, e.Name); err == nil {
						e.Type = st.Type
					}
				}
			}
		}
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		if names += len(entries); names > maxWalk {
			return nil, fmt.Errorf("more than %d names; give patterns with a slash, which are looked for in fewer directories", maxWalk)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name)
			isDir := e.Type == fsat.Directory
			switch {
			case path == ".hutch" || path == ".git" && !git:
			case set.Match(path, isDir):
				found = append(found, path)
			case isDir && set.Below(path):
				pending = append(pending, path)
			}
		}
	}
	return found, nil
}

// LayerDirs returns the directories that paths of a directory, open as root, lie
// in, parents first, as they are there.
func LayerDirs(root int, paths []string) ([]Dir, error) {
	seen := make(map[string]bool)
	var dirs []Dir
	for _, path := range paths {
		for i := 0; i < len(path); i++ {
			rel := path[:i]
			if path[i] != '/' || seen[rel] {
				continue
			}
			seen[rel] = true
			st, err := fsat.Lstat(root, rel)
			if err != nil {
				return nil, err
			}
			dirs = append(dirs, Dir{rel, st.Mode & 0o7777, st.UID, st.GID})
		}
	}
	slices.SortFunc(dirs, func(a, b Dir) int { return comparePaths(a.Rel, b.Rel) })
	return dirs, nil
}
