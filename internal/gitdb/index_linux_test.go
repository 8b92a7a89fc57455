package gitdb

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sameIndexAsGit compares with git ls-files --debug, and the stat data with the
// files themselves.
func sameIndexAsGit(t *testing.T, git testRepo) []IndexEntry {
	t.Helper()
	index, err := git.open().Index()
	if err != nil {
		t.Fatal(err)
	}
	var ours strings.Builder
	for _, e := range index.Entries {
		tag := "H"
		switch {
		case e.Stage != 0:
			tag = "M"
		case e.SkipWorktree && e.AssumeValid:
			tag = "s"
		case e.SkipWorktree:
			tag = "S"
		case e.AssumeValid:
			tag = "h"
		}
		path := e.Path
		if e.Mode == ModeTree {
			path += "/"
		}
		fmt.Fprintf(&ours, "%s %06o %v %d\t%s\x00  ctime: %d:%d\n  mtime: %d:%d\n  dev: %d\tino: %d\n  size: %d\n",
			tag, e.Mode, e.ID, e.Stage, path, e.Ctime.Sec, e.Ctime.Nsec, e.Mtime.Sec, e.Mtime.Nsec, e.Dev, e.Ino, e.Size)
	}
	var want strings.Builder
	for line := range strings.Lines(git.git("ls-files", "-z", "-v", "-s", "--debug", "--sparse")) {
		if i := strings.Index(line, "\tflags: "); i >= 0 { // uid and gid lines, and flags, go
			line = line[:i] + "\n"
		}
		if !strings.HasPrefix(line, "  uid: ") {
			want.WriteString(line)
		}
	}
	if got := strings.TrimSuffix(ours.String(), "\n"); got != strings.TrimSuffix(want.String(), "\n") {
		t.Fatalf("index:\n%q\n%q", got, want.String())
	}
	return index.Entries
}

func TestIndex(t *testing.T) {
	for _, version := range []string{"2", "3", "4"} {
		t.Run("version "+version, func(t *testing.T) {
			git := newTestRepo(t)
			if _, err := git.open().Index(); !errors.Is(err, unix.ENOENT) {
				t.Errorf("no index: %v", err)
			}
			git.git("config", "index.version", version)
			history(git, 7, 6)
			git.write("here", "x")
			git.write("last", "x")
			git.git("add", "-A")
			git.git("update-index", "--index-version", version)
			git.git("update-index", "--add", "--cacheinfo", "100644,"+git.git("hash-object", "here")+","+strings.Repeat("long/", 1000)+"name")
			entries := sameIndexAsGit(t, git)
			index, _ := git.open().Index()
			e, ok := index.Find("here")
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(git.path, "here"), &st); err != nil {
				t.Fatal(err)
			}
			if !ok || e.Ino != uint32(st.Ino) || e.Mtime.Sec != st.Mtim.Sec || e.Mtime.Nsec != st.Mtim.Nsec || e.Ctime.Nsec != st.Ctim.Nsec || e.Size != 1 {
				t.Errorf("%+v of %+v", e, st)
			}
			if len(entries) < 3 {
				t.Error("nothing to see")
			}
			git.git("update-index", "--assume-unchanged", "here")
			git.git("update-index", "--skip-worktree", "last")
			git.write("new", "x")
			git.git("add", "-N", "new")
			sameIndexAsGit(t, git)
			index, _ = git.open().Index()
			if e, _ := index.Find("new"); !e.IntentToAdd {
				t.Errorf("intent to add: %+v", e)
			}
		})
	}
}

func TestIndexOfMergeThreadsSparseAndSplit(t *testing.T) {
	git := newTestRepo(t)
	git.write("f", "1\n")
	base := git.commit("base")
	git.write("f", "2\n")
	git.commit("ours")
	git.git("checkout", "-q", "-b", "other", base)
	git.write("f", "3\n")
	git.commit("theirs")
	git.gitInput("", "-c", "alias.m=!git merge -q main || true", "m")
	entries := sameIndexAsGit(t, git)
	if len(entries) != 3 || entries[2].Stage != 3 {
		t.Fatalf("stages: %+v", entries)
	}
	index, _ := git.open().Index()
	if _, ok := index.Find("f"); ok {
		t.Error("a path in a merge was found")
	}

	for _, version := range []string{"2", "4"} {
		git = newTestRepo(t)
		for i := range 300 {
			git.write(fmt.Sprintf("in/dir%d/file%d", i%7, i), "x")
			git.write(fmt.Sprintf("out/dir%d/file%d", i%7, i), "x")
		}
		git.git("config", "index.threads", "3")
		git.git("config", "index.version", version)
		git.commit("many")
		git.git("update-index", "--index-version", version, "--force-write-index")
		sameIndexAsGit(t, git)
		forgedOffsets(t, git)
		git.git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
		entries = sameIndexAsGit(t, git)
		sparse := false
		for _, e := range entries {
			sparse = sparse || e.Mode == ModeTree
		}
		if !sparse {
			t.Error("the index is not sparse: the test shows nothing")
		}
	}

	git.git("sparse-checkout", "disable")
	git.git("update-index", "--split-index")
	if _, err := git.open().Index(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a split index: %v", err)
	}
}

// forgedOffsets makes the table by which git's threads read an index differ from
// the index.
func forgedOffsets(t *testing.T, git testRepo) {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(git.path, ".git/index"))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"IEOT", "EOIE"} {
		at := bytes.Index(index, []byte(table))
		if at < 0 {
			t.Fatalf("the index has no %s: the test shows nothing", table)
		}
		forged := bytes.Clone(index)
		forged[at+len(table)+4+7] ^= 8 // IEOT: of the first offset; EOIE: of the hash, which is not looked at
		if table == "EOIE" {
			forged[at+len(table)+4+3] ^= 8
		}
		if _, err := ParseIndex(SHA1, forged); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s forged: %v", table, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	for _, version := range []string{"2", "3", "4"} {
		git := newTestRepo(f)
		history(git, 9, 3)
		git.git("update-index", "--index-version", version)
		content, err := os.ReadFile(filepath.Join(git.path, ".git/index"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := ParseIndex(SHA1, content)
		if err != nil {
			return
		}
		for i := 1; i < len(entries); i++ {
			a, b := &entries[i-1], &entries[i]
			if a.Path > b.Path+"/" || (a.Path == b.Path && a.Stage >= b.Stage && a.Mode != ModeTree && b.Mode != ModeTree) {
				t.Errorf("%+v before %+v", a, b)
			}
		}
	})
}
