package policy

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"hutch/internal/fsat"
)

// short writes a path in the home as the user would.
func short(path string) string {
	if home := os.Getenv("HOME"); filepath.IsAbs(home) && home != "/" {
		if rest, ok := strings.CutPrefix(path, filepath.Clean(home)+"/"); ok {
			return "~/" + rest
		}
	}
	return path
}

// givenDocument reads what --policy names: a file, or a pipe.
func givenDocument(path string) (*document, error) {
	if err := fsat.CheckArgument(path, fsat.Any); err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	name := short(path)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("--policy: %w", err)
	}
	if strings.HasSuffix(path, ".json") || bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return parseJSON(name, text)
	}
	doc, _, err := parseTOML(name, text, false)
	return doc, err
}
