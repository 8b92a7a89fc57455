package run

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"hutch/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func root() bool { return os.Geteuid() == 0 }

// equal fails the test unless two lists of paths are the same.
func equal(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// pythonWith returns a python3 that has a module: PATH's own, else the
// system's.
func pythonWith(t *testing.T, module string) string {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import "+module).Run() == nil {
			return python
		}
	}
	t.Fatalf("no python3 has %s (make deps)", module)
	return ""
}

// withoutTimes drops from a tree what differs between two equal trees.
func withoutTimes(tree lab.Tree) lab.Tree {
	out := lab.Tree{}
	for path, n := range tree {
		n.Mtime, n.Ctime = 0, 0
		if n.Mode&0o170000 == 0o040000 {
			n.Size, n.Nlink = 0, 0 // both are the file system's own business
		}
		out[path] = n
	}
	return out
}

// oneLine fails the test unless text is exactly one line.
func oneLine(t *testing.T, text string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") || strings.TrimSpace(text) == "" {
		t.Errorf("not exactly one line: %q", text)
	}
}
