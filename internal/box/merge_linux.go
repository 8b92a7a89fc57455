package box

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/gitdb"
	"hutch/internal/guard"
	"hutch/internal/merge"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// merger returns what merges the files that both sides changed, and what lets
// go of it. What both began with is the base that the branch kept, or what git
// has; a merge without either says why there is none.
func (d *delivery) merger() (promote.MergeFunc, func()) {
	branch, labels := d.branch(), merge.Labels{Ours: "workspace", Theirs: "box " + d.dir.id}
	known, release := d.gitMerger(branch, labels)
	base := d.records(baseName + "/manifest")
	if base == nil || branch.Record == nil {
		return known, release
	}
	return func(path string, e *changeset.Entry, host, box []byte) ([]byte, bool, string) {
		was, is := base[path], branch.Record(path)
		// Both copies are of the same state of the file, or neither is known to
		// be what the box began with.
		if was == nil || is == nil || was.HostIno != is.HostIno || was.Copy.Size != is.Copy.Size || was.Copy.Mtime != is.Copy.Mtime {
			return known(path, e, host, box)
		}
		text, err := d.dir.readFile(baseName + "/tree/" + path)
		if err != nil {
			return known(path, e, host, box)
		}
		return merge.Sides(text, host, box, labels)
	}, release
}

// judged lets no merge pass that the guard would hold: two sides that say
// nothing by themselves may say something together, as a line of the one beneath
// a heading of the other.
func (d *delivery) judged(merge promote.MergeFunc) promote.MergeFunc {
	return func(path string, e *changeset.Entry, host, box []byte) ([]byte, bool, string) {
		merged, clean, why := merge(path, e, host, box)
		if merged == nil || bytes.Equal(merged, host) || bytes.Equal(merged, box) {
			return merged, clean, why
		}
		held, err := d.heldMerge(e, merged)
		if err != nil {
			return nil, false, fmt.Sprintf("what both sides make together cannot be judged: %v", err)
		}
		if held != "" {
			return nil, false, "both sides together make what the handoff guard holds (" + held + "): choose ours or theirs, or allow it"
		}
		return merged, clean, why
	}
}

// heldMerge says why the guard holds a merged file; "" where it does not.
func (d *delivery) heldMerge(e *changeset.Entry, merged []byte) (string, error) {
	const name = "merged"
	remove := func() error { return fsat.RemoveAll(d.dir.fd, name) }
	if err := remove(); err != nil { // of a process that died
		return "", stateError(err)
	}
	if err := unix.Mkdirat(d.dir.fd, name, 0o700); err != nil {
		return "", stateError(err)
	}
	defer func() { _ = remove() }()
	if err := d.dir.save(name+"/"+name, merged); err != nil {
		return "", err
	}
	fd, err := fsat.OpenDir(d.dir.fd, name)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	entry, after := *e, *e.After
	after.Size, after.Digest = int64(len(merged)), "" // what it is cannot be the same
	entry.After, entry.Source, entry.SourcePath = &after, changeset.Picked, name
	findings, err := d.judgeOf(&changeset.Changeset{Entries: []changeset.Entry{entry}}, fd)
	if err != nil {
		return "", err
	}
	for _, f := range findings {
		if f.Tier == guard.Hold {
			return f.Line(), nil
		}
	}
	return "", nil
}

const baseName = "base"

// keepBase makes a second copy of the workspace for a change that shall be
// merged: the command writes into the first. An overlay has no need and no way.
func (r *run) keepBase(ctx context.Context) error {
	if r.OnConflict != promote.Merge || r.branch.Form != changeset.Tree {
		return nil
	}
	if err := unix.Mkdirat(r.dir.fd, baseName, 0o700); err != nil {
		return stateError(err)
	}
	fd, err := fsat.OpenDir(r.dir.fd, baseName)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = workspace.Make(ctx, workspace.Request{Workspace: r.ws, Strategy: r.branch.Strategy, BoxFD: fd, BoxPath: r.dir.path + "/" + baseName})
	return err
}

func (d *delivery) gitMerger(branch merge.Branch, labels merge.Labels) (promote.MergeFunc, func()) {
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
			if finder, err = merge.NewFinder(d.ws.FD, repo, branch); err == nil {
				return promote.MergeFunc(finder.Merge(labels)), release
			}
		}
	}
	why := fmt.Sprintf("what both began with is unknown: %v", err)
	return func(string, *changeset.Entry, []byte, []byte) ([]byte, bool, string) { return nil, false, why }, release
}

// branch is what is known of the workspace as the box saw it.
func (d *delivery) branch() merge.Branch {
	b := merge.Branch{Stamp: d.stamp.T, Seen: func(e *changeset.Entry) bool { return e.BaseCtime != nil && e.BaseCtime.Before(d.stamp.T) }}
	if records := d.records("manifest"); records != nil { // an overlay has none
		b.Record = func(path string) *changeset.Record { return records[path] }
	}
	return b
}

// records reads a manifest in the box's directory; nil where there is none.
func (d *delivery) records(name string) map[string]*changeset.Record {
	text, err := d.dir.readFile(name)
	if err != nil {
		return nil
	}
	records, err := changeset.ReadManifest(bytes.NewReader(text))
	if err != nil {
		return nil
	}
	byPath := make(map[string]*changeset.Record, len(records))
	for i := range records {
		byPath[records[i].Path] = &records[i]
	}
	return byPath
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
