package run

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hutch/test/lab"
)

// censusOf notes what is known of every file in directories of the host without
// reading it, and the mount table, less what other tests have mounted.
func censusOf(t *testing.T, dirs ...string) map[string]string {
	t.Helper()
	census := map[string]string{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // not ours to read
			}
			var st syscall.Stat_t
			if err := syscall.Lstat(path, &st); err == nil {
				census[path] = fmt.Sprint(st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); !strings.HasPrefix(f[4], "/dev/shm/") && !strings.HasPrefix(f[4], "/tmp/") {
			census["mount "+f[0]+" at "+f[4]] = line
		}
	}
	return census
}

func sameCensus(t *testing.T, before, after map[string]string) {
	t.Helper()
	for path, was := range before {
		if is, ok := after[path]; !ok {
			t.Errorf("gone from the host: %s", path)
		} else if is != was {
			t.Errorf("changed on the host: %s: %s, was %s", path, is, was)
		}
	}
	for path := range after {
		if _, ok := before[path]; !ok {
			t.Errorf("new on the host: %s", path)
		}
	}
}

func TestWholeRootLooksWritable(t *testing.T) {
	w := lab.New(t)
	plant(t, filepath.Join(w.Home, "Documents/letter"), "dear\n")
	plant(t, filepath.Join(w.Home, ".ssh/id_ed25519"), marker)
	plant(t, filepath.Join(w.Base, "beside"), marker)
	before := censusOf(t, "/etc", "/usr/local", "/opt", w.Home)
	out, r := w.JSON("--profile", "whole-root", "--", "sh", "-c", `
		say() { if "$@" 2>/dev/null; then :; else echo "refused: $*"; fi; }
		echo 127.9.9.9 probe >> /etc/hosts && tail -n 1 /etc/hosts
		echo probe:x:4242:4242::/nowhere:/bin/false >> /etc/passwd && id -u probe
		say sed -i s/probe/other/ /etc/passwd
		say rm /etc/hostname
		say touch /etc/new /usr/bin/hutch-probe /usr/local/bin/hutch-probe /var/lib/hutch-probe /opt/hutch-probe
		say mkdir -p /opt/hutch-dir/x /srv/hutch-dir
		say mv /usr/bin/hutch-probe /usr/bin/hutch-probe2
		echo yours >> ~/Documents/letter; cat ~/Documents/letter
		say mkdir ~/.ssh; say touch ~/.ssh/mine; ls ~/.ssh
		say touch /tmp/x /var/tmp/x; ls -A /var/tmp
		ls "$1" 2>/dev/null
		say touch in-the-workspace
		touch /hutch-probe 2>/dev/null || echo not in /`, "sh", filepath.Join(w.Base, "beside"))
	w.Want(r, 0)
	want := "127.9.9.9 probe\n4242\ndear\nyours\nmine\nx\nnot in /\n"
	if out.Stdout != want {
		t.Errorf("inside: %q, want %q\n%s", out.Stdout, want, out.Stderr)
	}
	equal(t, "created", out.Diff.FilesCreated, "in-the-workspace")
	if notes := strings.Join(out.Notes, "\n"); !strings.Contains(notes, "cannot be written to in this box: /: ") {
		t.Errorf("it does not say what cannot be written: %q", notes)
	}
	sameCensus(t, before, censusOf(t, "/etc", "/usr/local", "/opt", w.Home))

	r = w.Run("policy", "show", "--profile", "whole-root")
	w.Want(r, 0)
	if !strings.Contains(r.Stderr, "cannot be written to in this box: /: ") {
		t.Errorf("policy show does not say what cannot be written: %v", r)
	}
}

// TestWholeRootOfTheHostsRoot: the host's own root removes what it runs on, and
// nothing of that arrives.
func TestWholeRootOfTheHostsRoot(t *testing.T) {
	if !root() {
		t.Skip("only root can remove the system's files; TestWholeRootLooksWritable is the ordinary user's half")
	}
	w := lab.New(t)
	remove := []string{"/usr/bin", "/usr/sbin", "/usr/include", "/etc", "/opt"}
	look := remove
	if lab.Proof() {
		remove, look = []string{"/usr", "/etc", "/opt", "/boot", "/srv"}, []string{"/usr", "/etc", "/opt", "/boot", "/srv"}
	}
	before := censusOf(t, look...)
	// What belongs to others stays, and what it lies in: a box has no
	// capability. A shell needs no file any more.
	r := w.Box(append([]string{"--user", "root", "--profile", "whole-root", "--timeout", "170s", "--", "sh", "-c", `
		rm -rf --no-preserve-root "$@" 2>/dev/null
		for f in /usr/bin/env /usr/bin/rm /usr/include/stdio.h /etc/passwd /etc/hosts; do [ -e "$f" ] && echo "still there: $f"; done
		echo done`, "sh"}, remove...)...)
	if r.Stdout != "done\n" {
		t.Errorf("%v", r)
	}
	sameCensus(t, before, censusOf(t, look...))
}

// TestWholeRootOpensNoDoor: a socket of the host is a file of it, and is not
// reached through an overlay.
func TestWholeRootOpensNoDoor(t *testing.T) {
	w := lab.New(t)
	path := filepath.Join(w.Home, "door")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	os.Chmod(path, 0o777)
	reached := make(chan bool, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- true
			c.Close()
		}
	}()
	script := `
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    print("reached")
except OSError as e:
    print("refused")
`
	if got := w.Host("python3", "-c", script, path); got != "reached\n" {
		t.Fatalf("without a box: %q", got)
	}
	<-reached
	r := w.Box("--profile", "whole-root", "--", "python3", "-c", script, path)
	if r.Stdout != "refused\n" || len(reached) > 0 {
		t.Errorf("%v", r)
	}
}
