package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Trust is what a user decided about one workspace: this content of its policy
// may loosen.
type Trust struct {
	Workspace string `json:"workspace"`
	// Raw is Workspace where that is not UTF-8, which JSON would change.
	Raw    []byte    `json:"raw_workspace,omitempty"`
	Digest string    `json:"digest"`
	Time   time.Time `json:"time"`
}

// trustDir is where they lie in the state directory, a file a workspace.
func trustDir(state string) string { return filepath.Join(state, "trust") }

func trustFile(state, workspace string) string {
	name := strings.TrimPrefix(Digest([]byte(workspace)), "blake3:")
	return filepath.Join(trustDir(state), name[:32]+".json")
}

// Trusted reports whether a content of a workspace's policy is trusted.
func Trusted(state, workspace, digest string) (bool, error) {
	t, err := readTrust(trustFile(state, workspace))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && t.Workspace == workspace && t.Digest == digest, err
}

func readTrust(path string) (*Trust, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read what is trusted: %w", err)
	}
	var t Trust
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; remove it and run `hutch trust` again", path, err)
	}
	if t.Raw != nil {
		t.Workspace = string(t.Raw)
	}
	return &t, nil
}

// Record trusts a content, in place of what was trusted of the workspace.
func (t Trust) Record(state string) error {
	dir := trustDir(state)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("record the trust: %w", err)
	}
	if !utf8.ValidString(t.Workspace) {
		t.Raw = []byte(t.Workspace)
	}
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return fmt.Errorf("record the trust: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), trustFile(state, t.Workspace))
	}
	if err != nil {
		return fmt.Errorf("record the trust: %w", err)
	}
	return nil
}

// Revoke forgets what was trusted of a workspace, and reports whether
// something was.
func Revoke(state, workspace string) (bool, error) {
	err := os.Remove(trustFile(state, workspace))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Trusts lists what is trusted, by workspace.
func Trusts(state string) ([]Trust, error) {
	entries, err := os.ReadDir(trustDir(state))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Trust
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		t, err := readTrust(filepath.Join(trustDir(state), e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, *t)
	}
	slices.SortFunc(list, func(a, b Trust) int { return strings.Compare(a.Workspace, b.Workspace) })
	return list, nil
}
