//go:build !linux

package workspace

import (
	"context"
	"fmt"
	"runtime"
)

func unsupported(what string) error {
	return fmt.Errorf("%s: not supported on this system yet (%s); use Linux, or a Linux virtual machine", what, runtime.GOOS)
}

// Open opens path as a workspace.
func Open(path string, force bool) (*Workspace, error) {
	return nil, unsupported("open a workspace")
}

// Reopen opens the workspace of a box that was made earlier.
func Reopen(path string) (*Workspace, error) { return Open(path, true) }

// Close releases the workspace's descriptor.
func (ws *Workspace) Close() error { return nil }

// TakeStamp takes T, on the clock of the workspace's file system.
func TakeStamp(ws *Workspace) (Stamp, error) {
	return Stamp{}, unsupported("stamp a workspace")
}

// Make makes a branch of the workspace in the box's directory.
func Make(ctx context.Context, req Request) (*Branch, error) {
	return nil, unsupported("make a branch")
}

// GitDirs returns the git directories outside the workspace that it refers to.
func GitDirs(ws *Workspace) ([]string, error) {
	return nil, unsupported("find git directories")
}
