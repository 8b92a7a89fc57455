//go:build linux

package promote

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	check(t, unix.Lstat(path, &st))
	return st.Ino
}

// TestHardLinksArriveAsSuch holds that names of one file in the box are names of
// one file in the workspace, wherever they stand, and that undo takes them back.
func TestHardLinksArriveAsSuch(t *testing.T) {
	fileSystems(t, func(t *testing.T, base string) {
		before := mapTree{"b": file("old"), "d": dir(), "d/keep": file("keep"), "same": file("one")}
		after := mapTree{"a": file("one"), "b": file("one"), "d": dir(), "d/keep": file("keep"), "n": dir(), "n/c": file("one"), "other": file("two"), "same": file("one")}
		s := newScene(t, filepath.Join(base, "s"), before, after, "")
		defer s.remove(t)
		mtime := s.entry(t, "a").After.Mtime
		for _, path := range []string{"b", "n/c", "other"} { // the last is none, whatever is said
			s.entry(t, path).Link = "a"
			s.entry(t, path).After.Mtime = mtime
			at := filepath.Join(s.dir, "layer", path)
			if path == "other" {
				when := time.Unix(mtime.Sec, mtime.Nsec)
				check(t, os.Chtimes(at, when, when))
				continue
			}
			check(t, os.Remove(at))
			check(t, os.Link(filepath.Join(s.dir, "layer", "a"), at))
		}
		_, err := Apply(context.Background(), s.req)
		check(t, err)
		s.want(t, "after")
		if a := inode(t, s.ws("a")); inode(t, s.ws("b")) != a || inode(t, s.ws("n/c")) != a {
			t.Error("a, b and n/c are not one file")
		} else if inode(t, s.ws("other")) == a || inode(t, s.ws("same")) == a {
			t.Error("other or same was taken in")
		}
		_, err = undoLast(s)
		check(t, err)
		s.want(t, "before")
	})
}

// TestLinkBeneathAVanishingDirectory: what a promotion does to one name of a
// file moves the ctime that all of its names show. That is no change by the
// host.
func TestLinkBeneathAVanishingDirectory(t *testing.T) {
	before := mapTree{"D": dir(), "D/b": file("linked"), "e": dir(), "e/a": file("linked")}
	after := mapTree{"D": dir(), "D/b": file("anew")}
	s := newScene(t, filepath.Join(tempDir(t), "s"), before, after, "")
	defer s.close()
	check(t, os.Remove(s.ws("D/b")))
	check(t, os.Link(s.ws("e/a"), s.ws("D/b")))
	s.entry(t, "D/b").BaseIno = inode(t, s.ws("D/b"))
	s.req.Stamp = stamp(t, filepath.Join(s.dir, "ws"))
	_, err := Apply(context.Background(), s.req)
	check(t, err)
	s.want(t, "after")
}
