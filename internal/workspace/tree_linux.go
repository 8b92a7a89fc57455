package workspace

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

const (
	treeName     = "tree"
	manifestName = "manifest"
	ownDir       = ".hutch" // promotions are staged there; it is never part of a branch
)

// makeTree copies the whole workspace, sharing blocks for Reflink.
func makeTree(ctx context.Context, req Request) (_ *Branch, err error) {
	defer func() {
		if err != nil {
			fsat.RemoveAll(req.BoxFD, treeName)
			unix.Unlinkat(req.BoxFD, manifestName, 0)
			err = fmt.Errorf("make a %s branch of %q in %q: %w", req.Strategy, req.Workspace.Path, req.BoxPath, err)
		}
	}()
	proven := false
	if req.Strategy == Reflink {
		if proven, err = probeReflink(req.Workspace.FD, req.BoxFD); err != nil {
			return nil, err
		}
	}
	c, err := newCopier(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unix.Close(c.dst)
	c.proven = proven
	if err := c.run(); err != nil {
		return nil, err
	}
	// A later write must get a later ctime than the manifest holds.
	if t, coarse, err := touch(req.BoxFD); err == nil && coarse {
		waitTick(t)
	} else if err != nil {
		if t, err = now(unix.CLOCK_REALTIME_COARSE); err == nil {
			waitTick(t)
		}
	}
	if err := writeManifest(req.BoxFD, c.sortedRecords()); err != nil {
		return nil, err
	}
	return &Branch{
		Strategy:    req.Strategy,
		Form:        changeset.Tree,
		Layer:       treeName,
		Manifest:    manifestName,
		FilesCloned: c.files.Load(),
		Notes:       c.notes(),
	}, nil
}
