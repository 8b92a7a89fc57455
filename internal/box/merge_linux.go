package box

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/gitdb"
	"hutch/internal/merge"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// merger returns what merges the files that both sides changed, and what lets
// go of it. Without a repository of the workspace every merge says why there is
// none.
func (d *delivery) merger() (promote.MergeFunc, func()) {
	dirs, release, err := gitDirs(d.ws)
	if err == nil && len(dirs) == 0 {
		err = errors.New("there is no git repository at the top of the workspace")
	}
	if err == nil {
		var repo *gitdb.Repo
		if repo, err = gitdb.Open(dirs...); err == nil {
			closeDirs := release
			release = func() { repo.Close(); closeDirs() }
			var finder *merge.Finder
			if finder, err = merge.NewFinder(d.ws.FD, repo, d.branch()); err == nil {
				return promote.MergeFunc(finder.Merge(merge.Labels{Ours: "workspace", Theirs: "box " + d.dir.id})), release
			}
		}
	}
	why := fmt.Sprintf("what both began with is unknown: %v", err)
	return func(string, *changeset.Entry, []byte, []byte) ([]byte, bool, string) { return nil, false, why }, release
}

// branch is what is known of the workspace as the box saw it.
func (d *delivery) branch() merge.Branch {
	b := merge.Branch{Stamp: d.stamp.T, Seen: func(e *changeset.Entry) bool { return e.BaseCtime != nil && e.BaseCtime.Before(d.stamp.T) }}
	text, err := d.dir.readFile("manifest")
	if err != nil {
		return b // an overlay has none
	}
	records, err := changeset.ReadManifest(bytes.NewReader(text))
	if err != nil {
		return b
	}
	byPath := make(map[string]*changeset.Record, len(records))
	for i := range records {
		byPath[records[i].Path] = &records[i]
	}
	b.Record = func(path string) *changeset.Record { return byPath[path] }
	return b
}

// gitDirs opens the git directories of the workspace: its own, or, of a linked
// worktree or submodule, the real one and the common one.
func gitDirs(ws *workspace.Workspace) ([]gitdb.Dir, func(), error) {
	var dirs []gitdb.Dir
	release := func() {
		for _, d := range dirs {
			unix.Close(d.FD)
		}
	}
	fd, err := fsat.OpenDir(ws.FD, ".git")
	if err == nil {
		dirs = append(dirs, gitdb.Dir{FD: fd})
		return dirs, release, nil
	}
	paths, err := workspace.GitDirs(ws)
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return dirs, release, err
		}
		dirs = append(dirs, gitdb.Dir{FD: fd})
	}
	return dirs, release, err
}

// markSeen notes which files of the workspace still are what the branch saw, so
// that their digests are known to be those of the base, however they change
// from now on.
func markSeen(c *changeset.Changeset, workspaceFD int, stamp workspace.Stamp) {
	if !stamp.Valid {
		return
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if e.Before == nil || e.Before.Type != fsat.Regular || e.BaseCtime != nil {
			continue
		}
		st, err := fsat.Lstat(workspaceFD, e.Path)
		if err == nil && st.Type == fsat.Regular && st.Ctime.Before(stamp.T) && (e.BaseIno == 0 || e.BaseIno == st.Ino) {
			e.BaseCtime = &st.Ctime
		}
	}
}
