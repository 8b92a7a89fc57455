package box

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hutch/internal/fsat"
	"hutch/internal/policy"
	"hutch/internal/workspace"
)

// Trust lets the policy file of a workspace loosen, as long as its content stays
// what it is. It returns what of it allows more than holds otherwise.
func Trust(dir string) (path string, loose []policy.Origin, err error) {
	state, err := workspace.StateDir()
	if err != nil {
		return "", nil, err
	}
	ws, err := workspace.Open(cmp.Or(dir, "."), true)
	if err != nil {
		return "", nil, err
	}
	defer ws.Close()
	text, err := policy.ReadWorkspace(ws.FD)
	if err != nil {
		return "", nil, err
	}
	if text == nil {
		return "", nil, fmt.Errorf("there is no %s in %s; nothing to trust", policy.WorkspaceFile, ws.Path)
	}
	// Not the environment: it may be another one at the next run.
	force, err := policy.Resolve(policy.Sources{UserFile: configFile(), Path: ws.Path, Workspace: text, Home: caller(os.Environ()).home})
	if err != nil {
		return "", nil, err
	}
	again, err := policy.ReadWorkspace(ws.FD)
	if err != nil {
		return "", nil, err
	}
	if !bytes.Equal(text, again) {
		return "", nil, fmt.Errorf("%s changed while it was read; look at it again", policy.WorkspaceFile)
	}
	return ws.Path, force.Untrusted, policy.Trust{Workspace: ws.Path, Digest: policy.Digest(text), Time: time.Now().UTC()}.Record(state)
}

// Distrust forgets what was trusted of a workspace, which need not exist any
// more, and reports whether something was.
func Distrust(dir string) (path string, was bool, err error) {
	state, err := workspace.StateDir()
	if err != nil {
		return "", false, err
	}
	if err := fsat.CheckArgument(dir, fsat.Any); err != nil {
		return "", false, err
	}
	if path, err = filepath.Abs(dir); err != nil {
		return "", false, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	was, err = policy.Revoke(state, path)
	return path, was, err
}

// Trusts lists the workspaces whose policy may loosen.
func Trusts() ([]policy.Trust, error) {
	state, err := workspace.StateDir()
	if err != nil {
		return nil, err
	}
	return policy.Trusts(state)
}
