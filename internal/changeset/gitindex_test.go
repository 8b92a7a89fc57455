package changeset

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestSameIndex(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	index := func() []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, ".git/index"))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	git("init", "-q")
	write("a", "one")
	write("longer name", "two")
	git("add", ".")
	before := index()
	if !sameIndex(before, before) {
		t.Fatal("an index is not the same as itself")
	}

	// The same content with other times: git rewrites what it remembers.
	past := time.Now().Add(-time.Hour)
	for _, name := range []string{"a", "longer name"} {
		if err := os.Chtimes(filepath.Join(dir, name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	git("update-index", "--refresh")
	refreshed := index()
	if string(refreshed) == string(before) {
		t.Fatal("git did not rewrite its index: the test shows nothing")
	}
	if !sameIndex(before, refreshed) {
		t.Error("a refreshed index is not the same")
	}

	for _, c := range []struct {
		what   string
		change func()
	}{
		{"content", func() { write("a", "three"); git("add", "a") }},
		{"mode", func() { git("update-index", "--chmod=+x", "a") }},
		{"a name", func() { write("b", ""); git("add", "b") }},
		{"more flags", func() { write("n", "x"); git("add", "-N", "n") }},
		{"a removal", func() { git("rm", "-q", "--cached", "longer name") }},
		{"a flag", func() { git("update-index", "--assume-unchanged", "a") }},
		{"a flag of version 3", func() { git("update-index", "--skip-worktree", "a") }},
	} {
		previous := index()
		c.change()
		if sameIndex(previous, index()) {
			t.Errorf("%s changed and the index is called the same", c.what)
		}
		if !sameIndex(index(), index()) {
			t.Errorf("after %s an index is not the same as itself", c.what)
		}
	}
	previous := index()
	git("update-index", "--index-version", "4")
	if !sameIndex(previous, index()) {
		t.Error("the same in another version is not the same")
	}
	git("update-index", "--split-index") // of which this file is only a part
	if sameIndex(index(), index()) {
		t.Error("half an index is called the same")
	}
	if sameIndex([]byte("DIRC"), []byte("DIRC")) || sameIndex(nil, nil) || sameIndex(before[:40], before[:40]) {
		t.Error("what is no index is called the same")
	}
}
