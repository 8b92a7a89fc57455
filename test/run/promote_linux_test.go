package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch/test/lab"
)

// edits are scripts that change the tree of World.Sample. What they do in a
// box and is then promoted must equal what they do on a plain copy.
var edits = []struct {
	name     string
	script   string
	created  []string
	modified []string
	deleted  []string
}{
	{"create, append, delete", "echo x > new.txt; echo y >> a.txt; rm README.md",
		[]string{"new.txt"}, []string{"a.txt"}, []string{"README.md"}},
	{"touched but identical", "touch a.txt; cat README.md > t; cat t > README.md; rm t; chmod 644 a.txt", nil, nil, nil},
	{"made and removed again", "echo x > new.txt; rm new.txt; mkdir d; rmdir d", nil, nil, nil},
	{"mode only", "chmod 600 a.txt; chmod 755 README.md; chmod 700 dir",
		nil, []string{"README.md", "a.txt", "dir/"}, nil},
	{"symlinks", "ln -s nowhere dangling; rm link; ln -s module.py link; ln -s dir dirlink",
		[]string{"dangling", "dirlink"}, []string{"link"}, nil},
	{"empty file and empty directory", ": > empty; mkdir -p e/mpty",
		[]string{"e/", "e/mpty/", "empty"}, nil, nil},
	{"directory removed and made anew", "rm -r dir; mkdir dir; echo n > dir/n",
		[]string{"dir/n"}, nil, []string{"dir/deep/", "dir/deep/file.txt", "dir/other.txt"}},
	{"whole directory deleted", "rm -r dir",
		nil, nil, []string{"dir/", "dir/deep/", "dir/deep/file.txt", "dir/other.txt"}},
	{"file becomes directory", "rm a.txt; mkdir a.txt; echo in > a.txt/in",
		[]string{"a.txt/in"}, []string{"a.txt/"}, nil},
	{"directory becomes file", "rm -r dir; echo now a file > dir",
		nil, []string{"dir"}, []string{"dir/deep/", "dir/deep/file.txt", "dir/other.txt"}},
	{"file becomes symlink", "rm README.md; ln -s a.txt README.md",
		nil, []string{"README.md"}, nil},
	{"symlink becomes file", "rm link; echo file > link",
		nil, []string{"link"}, nil},
	{"file moved", "mv a.txt dir/moved.txt",
		[]string{"dir/moved.txt"}, nil, []string{"a.txt"}},
	{"file replaced by rename", "echo other > t; mv t a.txt",
		nil, []string{"a.txt"}, nil},
	{"edited in place by sed", "sed -i s/foo/bar/ a.txt",
		nil, []string{"a.txt"}, nil},
	{"directory moved by mv", "mv dir moved",
		[]string{"moved/", "moved/deep/", "moved/deep/file.txt", "moved/other.txt"}, nil,
		[]string{"dir/", "dir/deep/", "dir/deep/file.txt", "dir/other.txt"}},
	{"directory moved and changed", "mv dir moved; echo z >> moved/deep/file.txt; rm moved/other.txt; mkdir dir; echo q > dir/q",
		[]string{"dir/q", "moved/", "moved/deep/", "moved/deep/file.txt"}, nil,
		[]string{"dir/deep/", "dir/deep/file.txt", "dir/other.txt"}},
	{"same size and restored time", "printf 'FOO one\\nfoo two\\n' > t; touch -r a.txt t; cat t > a.txt; touch -r t a.txt; rm t",
		nil, []string{"a.txt"}, nil},
	{"truncated to nothing", ": > a.txt",
		nil, []string{"a.txt"}, nil},
	{"hard links made", "ln a.txt second; ln second third",
		[]string{"second", "third"}, nil, nil},
	{"large file", "head -c 20000000 /dev/urandom > big; cp big big2",
		[]string{"big", "big2"}, nil, nil},
	{"deep tree", "d=.; for i in $(seq 60); do d=$d/directory$i; done; mkdir -p $d; echo deep > $d/f; rm -r directory1",
		nil, nil, nil},
	{"execute bit of a new file", "printf '#!/bin/sh\\n' > tool; chmod 755 tool; mkdir bin; cp tool bin/tool",
		[]string{"bin/", "bin/tool", "tool"}, nil, nil},
	{"odd modes", "echo x > m0; chmod 000 m0; mkdir d5; echo y > d5/y; chmod 555 d5; chmod 400 a.txt",
		[]string{"d5/", "d5/y", "m0"}, []string{"a.txt"}, nil},
}

func TestPromotionEqualsAPlainCopy(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		for i, e := range edits {
			t.Run(e.name, func(t *testing.T) {
				// A workspace and its control for each edit.
				dir, control := filepath.Join(w.Base, fmt.Sprintf("ws%d", i)), filepath.Join(w.Base, fmt.Sprintf("control%d", i))
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				w := *w
				w.T, w.Dir = t, dir
				w.Sample()
				w.Host("cp", "-a", dir, control)
				before := w.Snap()

				// Discarded, nothing has happened.
				out, r := w.JSON("--", "sh", "-ec", e.script)
				w.Want(r, 0)
				w.Untouched(before)
				if e.name != "large file" {
					again, _ := w.JSON("--", "sh", "-ec", e.script)
					if again.Diff.Digest != out.Diff.Digest {
						t.Errorf("the same change twice: digests %s and %s", out.Diff.Digest, again.Diff.Digest)
					}
				}
				equal(t, "created", out.Diff.FilesCreated, e.created...)
				equal(t, "modified", out.Diff.FilesModified, e.modified...)
				equal(t, "deleted", out.Diff.FilesDeleted, e.deleted...)
				if changed := len(e.created)+len(e.modified)+len(e.deleted) > 0; out.FilesystemModified != changed {
					t.Errorf("filesystem_modified %v, want %v", out.FilesystemModified, changed)
				}

				// Committed, it is the control.
				script := e.script
				if e.name == "large file" { // random: take what was promoted
					script = strings.Replace(script, "/dev/urandom", "/dev/zero", 1)
				}
				out, r = w.JSON("--commit", "--", "sh", "-ec", script)
				w.Want(r, 0)
				w.Host("sh", "-ec", "cd "+control+"; "+script)
				got := withoutTimes(w.Snap().Without(".hutch"))
				want := withoutTimes(lab.Snapshot(t, control))
				for path, n := range got {
					n.Nlink = 0 // hard links come out as files of their own
					got[path] = n
				}
				for path, n := range want {
					n.Nlink = 0
					want[path] = n
				}
				for _, d := range want.Diff(got) {
					t.Errorf("promoted, against a plain copy: %s", d)
				}
				if out.FilesystemModified && !out.Committed {
					t.Errorf("exit 0 and changed, but committed is false\n%v", r)
				}
			})
		}
	})
}

func TestPromotedFilesLookNewToMake(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		start := time.Now().Add(-time.Second)
		w.Want(w.Box("--commit", "--", "sh", "-c", "echo 1 > one; touch -d '2001-01-01' one; echo 2 >> a.txt; touch -d '2002-02-02' a.txt"), 0)
		for _, rel := range []string{"one", "a.txt"} {
			st, err := os.Stat(filepath.Join(w.Dir, rel))
			if err != nil {
				t.Fatal(err)
			}
			if st.ModTime().Before(start) {
				t.Errorf("%s has mtime %v, want one of the commit", rel, st.ModTime())
			}
		}
		w.Want(w.Box("--commit", "--mtime=keep", "--", "sh", "-c", "echo 3 > three; touch -d '2003-03-03 03:03:03' three"), 0)
		st, err := os.Stat(filepath.Join(w.Dir, "three"))
		if err != nil {
			t.Fatal(err)
		}
		if st.ModTime().Year() != 2003 {
			t.Errorf("with --mtime=keep three has mtime %v", st.ModTime())
		}
	})
}

func TestHostHardLinksAreNotShared(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		if err := os.Link(filepath.Join(w.Dir, "a.txt"), filepath.Join(w.Base, "outside")); err != nil {
			t.Fatal(err)
		}
		before, outside := w.Snap(), lab.Snapshot(t, filepath.Join(w.Base, "outside"))
		w.Want(w.Box("--", "sh", "-c", "echo more >> a.txt; chmod 600 a.txt"), 0)
		w.Untouched(before)
		for _, d := range outside.Diff(lab.Snapshot(t, filepath.Join(w.Base, "outside"))) {
			t.Errorf("the other name changed: %s", d)
		}
	})
}

func TestConcurrentRunsAllArrive(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		const runs = 8
		var wg sync.WaitGroup
		results := make([]lab.Result, runs)
		started := make([]*lab.Running, runs)
		for i := range runs {
			started[i] = w.Start(lab.Options{}, "run", "--strategy", w.Strategy.Name, "--commit", "--", "sh", "-c", fmt.Sprintf("echo %d > file%d", i, i))
		}
		for i := range runs {
			wg.Go(func() { results[i] = started[i].Wait() })
		}
		wg.Wait()
		for i, r := range results {
			w.Want(r, 0)
			if got := w.Read(fmt.Sprintf("file%d", i)); got != fmt.Sprintf("%d\n", i) {
				t.Errorf("file%d holds %q", i, got)
			}
		}
		w.Want(w.Run("receipts", "verify"), 0)
	})
}

func TestRecoverWithNothingToDo(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	w.Want(w.Run("recover"), 0)
	w.Untouched(before)
}
