//go:build !linux

package policy

import (
	"errors"
	"io/fs"
	"os"
)

func userDocument(path string) (*document, []string, error) {
	if path == "" {
		return nil, nil, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return parseTOML(short(path), text, true)
}

func workspaceFile(dir int) (*workspaceDocument, []string, error) {
	if dir < 0 {
		return nil, nil, nil
	}
	return nil, nil, errors.New("a workspace's policy is read on Linux only, as yet")
}

func hostMemory() (int64, error) { return 0, errors.New("not known on this system") }
