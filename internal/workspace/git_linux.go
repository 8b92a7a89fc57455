package workspace

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/gitdb"
)

// GitDirs returns the git directories outside the workspace that it refers to,
// for the box to see: where .git is a file (a linked worktree, a submodule),
// the real git directory and the common one. They are absolute and have no
// symlink in them.
//
// The file may be the work of an agent whose change was promoted, and would
// then name whatever the agent wants shown. So a directory counts only when it
// has git's shape and itself, in a place the box could not write, points back
// at this workspace. Where that fails there are none, and the error says why:
// a note for the user, no reason to stop.
func GitDirs(ws *Workspace) ([]string, error) {
	text, err := readSmall(ws.FD, ".git")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, errNotFile) {
		return nil, nil // no git, or an ordinary repository, which is in the workspace
	}
	if err != nil {
		return nil, fmt.Errorf("the .git file is not followed: %w", err)
	}
	dirs, err := gitDirs(ws, text)
	if err != nil {
		return nil, fmt.Errorf("the .git file is not followed, so git does not work in the box: %w", err)
	}
	return dirs, nil
}

func gitDirs(ws *Workspace, text string) ([]string, error) {
	named, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok {
		return nil, errors.New(`it does not begin with "gitdir: "`)
	}
	path, err := resolveFrom(ws.Path, named)
	if err != nil {
		return nil, err
	}
	git, err := openReal(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(git)
	if err := checkHead(git); err != nil {
		return nil, fmt.Errorf("%q is not a git directory: %w", path, err)
	}

	common := path
	named, err = readSmall(git, "commondir")
	switch {
	case err == nil:
		if common, err = resolveFrom(path, named); err != nil {
			return nil, err
		}
		// Git keeps linked worktrees there and nowhere else. Without this
		// rule a git directory forged in one place could name the
		// repository of another.
		if filepath.Dir(path) != filepath.Join(common, "worktrees") {
			return nil, fmt.Errorf("%q is not one of the worktrees of %q", path, common)
		}
		err = pointsBack(ws, git, path)
	case errors.Is(err, unix.ENOENT):
		err = worktreeOf(ws, git, path)
	}
	if err != nil {
		return nil, err
	}
	if err := checkCommon(common); err != nil {
		return nil, err
	}

	var dirs []string
	for _, dir := range []string{path, common} {
		if fsat.Within(ws.Path, dir) {
			return nil, fmt.Errorf("the git directory %q holds the workspace and all beside it", dir)
		}
		if !fsat.Within(dir, ws.Path) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// pointsBack checks that a linked worktree's git directory names this
// workspace's .git.
func pointsBack(ws *Workspace, git int, path string) error {
	back, err := readSmall(git, "gitdir")
	if err != nil {
		return fmt.Errorf("%q does not say whose worktree it is: %w", path, err)
	}
	if !filepath.IsAbs(back) { // worktree.useRelativePaths
		back = filepath.Join(path, back)
	}
	if filepath.Base(back) == ".git" {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(back)); err == nil && dir == ws.Path {
			return nil
		}
	}
	return fmt.Errorf("%q is the worktree of %q, not of this workspace; git worktree repair mends it when the workspace was moved", path, back)
}

// worktreeOf checks that a submodule's git directory names this workspace as
// its working tree.
func worktreeOf(ws *Workspace, git int, path string) error {
	// With extensions.worktreeConfig the setting moves to a file of its own.
	for _, name := range []string{"config.worktree", "config"} {
		config, err := readSmall(git, name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%q: %s: %w", path, name, err)
		}
		tree := coreWorktree(config)
		if tree == "" {
			continue
		}
		if dir, err := resolveFrom(path, tree); err != nil || dir != ws.Path {
			return fmt.Errorf("%q belongs to the working tree %q, not to this workspace", path, tree)
		}
		return nil
	}
	return fmt.Errorf("%q does not say that it belongs to this workspace; git --git-dir=%s config core.worktree %s makes it say so", path, path, ws.Path)
}

// coreWorktree returns the last core.worktree of a git config, read as git
// reads simple values: what is more involved does not match a real path and
// is refused by that.
func coreWorktree(config string) string {
	section, found := "", ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.ToLower(line)
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if section != "[core]" || !ok || !strings.EqualFold(strings.TrimSpace(key), "worktree") {
			continue
		}
		value = strings.TrimSpace(value)
		if quoted, ok := strings.CutPrefix(value, `"`); ok {
			value = strings.NewReplacer(`\\`, `\`, `\"`, `"`).Replace(strings.TrimSuffix(quoted, `"`))
		}
		found = value
	}
	return found
}

// checkHead wants HEAD to be what git wants it to be.
func checkHead(git int) error {
	head, err := readSmall(git, "HEAD")
	if err != nil {
		return fmt.Errorf("HEAD: %w", err)
	}
	if strings.HasPrefix(head, "ref: refs/") {
		return nil
	}
	if (len(head) == 40 || len(head) == 64) && strings.Trim(head, "0123456789abcdef") == "" {
		return nil
	}
	return errors.New("HEAD is neither a ref nor a commit")
}

// checkCommon wants the directory that is shared by all worktrees to hold what
// makes it a repository, as directories of its own: a symlink would show what
// it leads to.
func checkCommon(path string) error {
	fd, err := openReal(path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := checkHead(fd); err != nil {
		return fmt.Errorf("%q is not a git directory: %w", path, err)
	}
	for _, name := range []string{"objects", "refs"} {
		if st, err := fsat.LstatName(fd, name); err != nil || st.Type != fsat.Directory {
			return fmt.Errorf("%q is not a git directory: it has no directory %q", path, name)
		}
	}
	return nil
}

// resolveFrom resolves a path as git reads it from a file in dir.
func resolveFrom(dir, path string) (string, error) {
	if path == "" || strings.ContainsAny(path, "\x00\n") {
		return "", fmt.Errorf("%q is not a path", path)
	}
	if !filepath.IsAbs(path) {
		path = dir + "/" + path // uncleaned: "link/.." is not "."
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("%q cannot be found", path)
	}
	return real, nil
}

func openReal(path string) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open %q: %w", path, err)
	}
	return fd, nil
}

var errNotFile = errors.New("not a regular file")

// readSmall reads a small file, without the newline at its end. The cap is far
// above what git writes and far below what hurts.
func readSmall(dirfd int, name string) (string, error) {
	const limit = 64 << 10
	fd, err := openSource(dirfd, name, 0)
	switch {
	case errors.Is(err, errGone):
		return "", unix.ENOENT
	case errors.Is(err, errChanged): // a symlink or socket
		return "", errNotFile
	case err != nil:
		return "", err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return "", err
	}
	if st.Type != fsat.Regular {
		return "", errNotFile
	}
	buf := make([]byte, min(max(st.Size, 0), limit)+1)
	n := 0
	for n < len(buf) {
		m, err := unix.Read(fd, buf[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if m == 0 {
			return strings.TrimRight(string(buf[:n]), "\r\n"), nil
		}
		n += m
	}
	return "", fmt.Errorf("%q is too large, or grows", name)
}

// OpenGit opens the workspace's repository for reading: its .git directory, or
// what [GitDirs] follows a .git file to. Without one it is nil. The caller closes
// it.
func OpenGit(ws *Workspace) (*gitdb.Repo, error) {
	if fd, err := fsat.OpenDir(ws.FD, ".git"); err == nil {
		defer unix.Close(fd)
		return gitdb.Open(gitdb.Dir{FD: fd})
	}
	paths, err := GitDirs(ws)
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	var dirs []gitdb.Dir
	for _, path := range paths { // the worktree's own, then the common one
		fd, err := openReal(path)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		dirs = append(dirs, gitdb.Dir{FD: fd})
	}
	return gitdb.Open(dirs...)
}
