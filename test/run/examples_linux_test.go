package run

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

func TestFailedRunReachesNothing(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		w.Want(w.Box("--", "sh", "-c", "echo x > new.txt; rm README.md; exit 1"), 1)
		w.Untouched(before)
	})
}

func TestFailedCommitReachesNothing(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, _ := w.JSON("--commit", "--", "sh", "-c", "echo x > new.txt; rm README.md; rm -r dir; chmod 600 a.txt; exit 3")
		if out.Status != "failed" || out.ExitCode != 3 || out.Committed || !out.RollbackPerformed || !out.FilesystemModified {
			t.Errorf("status %q exit %d committed %v rolled back %v modified %v", out.Status, out.ExitCode, out.Committed, out.RollbackPerformed, out.FilesystemModified)
		}
		w.Untouched(before)
	})
}

func TestSuccessWithoutCommitReachesNothing(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, _ := w.JSON("--", "sh", "-c", "echo x > new.txt; rm README.md; echo y >> a.txt")
		equal(t, "created", out.Diff.FilesCreated, "new.txt")
		equal(t, "modified", out.Diff.FilesModified, "a.txt")
		equal(t, "deleted", out.Diff.FilesDeleted, "README.md")
		if out.Status != "success" || out.Committed || !out.RollbackPerformed {
			t.Errorf("status %q committed %v rolled back %v", out.Status, out.Committed, out.RollbackPerformed)
		}
		w.Untouched(before)
	})
}

func TestCommitPromotesOnSuccess(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		w.Want(w.Box("--commit", "--", "python3", "-m", "py_compile", "module.py"), 0)
		made, _ := filepath.Glob(filepath.Join(w.Dir, "__pycache__", "module.*.pyc"))
		if len(made) != 1 {
			t.Errorf("compiled files in the workspace: %q, want one", made)
		}
		for _, d := range before.Without(".").Diff(w.Snap().Without(".", "__pycache__", ".hutch")) {
			t.Errorf("something else changed: %s", d)
		}
	})
}

func TestCommitWithNothingChanged(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, _ := w.JSON("--commit", "--", "true")
		if out.Status != "success" || out.FilesystemModified || out.RollbackPerformed {
			t.Errorf("status %q modified %v rolled back %v", out.Status, out.FilesystemModified, out.RollbackPerformed)
		}
		w.Untouched(before)
	})
}

func TestDiffIsUnified(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		r := w.Box("--diff", "--", "sed", "-i", "s/foo/bar/", "a.txt")
		w.Want(r, 0)
		for _, line := range []string{"--- a/a.txt", "+++ b/a.txt", "-foo one", "-foo two", "+bar one", "+bar two"} {
			if !strings.Contains(r.Stdout, line+"\n") && !strings.Contains(r.Stdout, line+"\t") {
				t.Errorf("the diff lacks %q\n%v", line, r)
			}
		}
		w.Untouched(before)
		out, _ := w.JSON("--diff", "--", "sed", "-i", "s/foo/bar/", "a.txt")
		if !strings.Contains(out.Patch, "+bar one\n") {
			t.Errorf("patch in the outcome: %q", out.Patch)
		}
	})
}

func TestDiffAppliesWithPatch(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	w.Write("crlf.txt", "one\r\ntwo\r\n")
	w.Write("noeol.txt", "no end of line")
	out, _ := w.JSON("--diff", "--", "sh", "-c", `
		sed -i 's/foo/bar/' a.txt; printf 'more' >> noeol.txt; printf 'three\r\n' >> crlf.txt
		rm dir/other.txt; mkdir -p new/sub; echo made > new/sub/file.txt; printf 'x' > new/noeol`)
	patch := filepath.Join(w.Base, "p")
	w.Host("sh", "-c", "cat > "+patch+" <<'EOF_OF_PATCH'\n"+out.Patch+"EOF_OF_PATCH\n")
	w.Host("git", "apply", "--whitespace=nowarn", patch)
	for rel, want := range map[string]string{
		"a.txt": "bar one\nbar two\n", "noeol.txt": "no end of linemore", "crlf.txt": "one\r\ntwo\r\nthree\r\n",
		"new/sub/file.txt": "made\n", "new/noeol": "x",
	} {
		if got := w.Read(rel); got != want {
			t.Errorf("%s after git apply: %q, want %q", rel, got, want)
		}
	}
	if w.Exists("dir/other.txt") {
		t.Error("dir/other.txt is still there after git apply")
	}
}

func TestTimeoutExample(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		r := w.Box("--commit", "--timeout-ms", "2000", "--", "python3", "-c", "open('new','w').close()\nwhile True: pass")
		w.Want(r, 124)
		if r.Duration < 2*time.Second || r.Duration > 30*time.Second {
			t.Errorf("ended after %v, limit 2s", r.Duration)
		}
		w.Untouched(before)
	})
}

func TestAllowNetForms(t *testing.T) {
	w := lab.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	connect := "import socket; socket.create_connection(('127.0.0.1', " + port + "), 10)"
	for _, c := range []struct {
		flags   []string
		allowed bool
	}{
		{nil, false},
		{[]string{"--allow-net", "false"}, false},
		{[]string{"--allow-net=false"}, false},
		{[]string{"--allow-net"}, true},
		{[]string{"--allow-net", "true"}, true},
		{[]string{"--allow-net=true"}, true},
	} {
		t.Run(strings.Join(c.flags, "_"), func(t *testing.T) {
			r := w.Box(append(c.flags, "--", "python3", "-c", connect)...)
			if got := r.Code == 0; got != c.allowed {
				t.Errorf("%q reached the host's loopback: %v, want %v\n%v", c.flags, got, c.allowed, r)
			}
		})
	}
}

func TestCurlHasNoNetwork(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--allow-net", "false", "--", "curl", "-sS", "-I", "--max-time", "20", "https://example.com")
	// 6: the name does not resolve; 7: no route.
	if r.Code != 6 && r.Code != 7 {
		t.Errorf("curl without network: %v", r)
	}
}

func TestCmdIsGivenToTheShell(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--cmd", "python3 -c 'print(1)'; echo $((1+1)) | cat")
	w.Want(r, 0)
	if r.Stdout != "1\n2\n" {
		t.Errorf("stdout %q", r.Stdout)
	}
}

func TestHabitualFlagsTogether(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	r := w.RunWith(lab.Options{Dir: "/"}, "run", "--cwd", w.Dir, "--allow-net", "false", "--timeout-ms", "20000", "--cmd", "cat a.txt; pwd")
	w.Want(r, 0)
	if want := "foo one\nfoo two\n" + w.Dir + "\n"; r.Stdout != want {
		t.Errorf("stdout %q, want %q", r.Stdout, want)
	}
}

func TestRungFullIsWhatRan(t *testing.T) {
	w := lab.New(t)
	out, _ := w.JSON("--rung", "full", "--", "true")
	if out.Rung != "full" {
		t.Errorf("rung %q", out.Rung)
	}
	if out.Strategy != "overlay" {
		t.Errorf("--strategy auto took %q, want overlay on this machine", out.Strategy)
	}
}
