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
// from the box: relative, sorted, and none beneath another. A pattern without a
// slash can match anywhere, so it costs a listing of every directory (0.1 s for
// 100,000 files); one with a slash only of those that it could match in; a plain
// path one lstat. Without patterns nothing is read.
//
// What cannot be read is hidden too, since nobody knows what is in it, and its
// owner could open it in a box.
func Hidden(ws int, h Host) ([]string, error) {
	if len(h.Hide) == 0 {
		return nil, nil
	}
	s := &sight{Host: h}
	var hidden, patterns []string
	git := false // only a pattern that names it reaches into .git
	for _, asked := range h.Hide {
		path, isPath := s.absolute(asked)
		switch {
		case isPath && h.Workspace != "" && inside(path, h.Workspace) && path != h.Workspace:
			rel := path[len(h.Workspace)+1:]
			if _, err := fsat.Lstat(ws, rel); err == nil {
				hidden = append(hidden, rel)
			}
		case isPath:
		default:
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
		if n := len(top); n == 0 || !inside(path, top[n-1]) {
			top = append(top, path)
		}
	}
	return top, nil
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
