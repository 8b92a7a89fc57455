package fsat

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Searcher()
	if look.allowed && !look.start() { // now, as other tests count descriptors
		panic("no searcher")
	}
	os.Exit(m.Run())
}

// TestSearcher holds that an owner looks into what he closed to himself, leaves
// no trace in it, and gets no right to write.
func TestSearcher(t *testing.T) {
	dir, path := tempDir(t)
	at := func(rel string) string { return filepath.Join(path, rel) }
	must(t, os.MkdirAll(at("none/enter"), 0o755))
	write(t, at("none/enter/file"), "content")
	must(t, os.Symlink("target", at("none/link")))
	must(t, unix.Setxattr(at("none/enter"), "user.a", []byte("value"), 0))
	must(t, os.Chmod(at("none/enter/file"), 0))
	must(t, os.Chmod(at("none/enter"), 0o311))
	must(t, os.Chmod(at("none"), 0))
	before, err := Lstat(dir, "none")
	must(t, err)

	for range 3 {
		st, err := Lstat(dir, "none/enter")
		if err != nil || st.Mode != 0o311 {
			t.Errorf("lstat: %+v, %v", st, err)
		}
		if target, err := Readlink(dir, "none/link"); err != nil || target != "target" {
			t.Errorf("readlink: %q, %v", target, err)
		}
		if _, err := Readlink(dir, "none/enter"); !errors.Is(err, unix.EINVAL) {
			t.Errorf("readlink of a directory: %v", err)
		}
		if _, err := Lstat(dir, "none/missing"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("lstat of nothing: %v", err)
		}
		if _, err := OpenDir(dir, "none/link"); !errors.Is(err, unix.ELOOP) && !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("a symlink was followed: %v", err)
		}
		sub, err := OpenDir(dir, "none/enter")
		must(t, err)
		entries, err := ReadDir(sub)
		if err != nil || len(entries) != 1 || entries[0].Name != "file" {
			t.Errorf("readdir: %v, %v", entries, err)
		}
		if value, ok, err := Xattr(sub, "user.a"); err != nil || !ok || string(value) != "value" {
			t.Errorf("xattr: %q, %v, %v", value, ok, err)
		}
		if _, ok, err := Xattr(sub, "user.b"); err != nil || ok {
			t.Errorf("xattr that is not there: %v, %v", ok, err)
		}
		if _, err := Open(sub, "..", unix.O_PATH, 0); !errors.Is(err, ErrEscape) {
			t.Errorf("escape: %v", err)
		}
		fd, err := Open(sub, "file", unix.O_RDONLY|unix.O_NOFOLLOW, 0)
		must(t, err)
		buf := make([]byte, 100)
		if n, err := unix.Read(fd, buf); err != nil || string(buf[:n]) != "content" {
			t.Errorf("read: %q, %v", buf[:max(n, 0)], err)
		}
		unix.Close(fd)
		if os.Geteuid() != 0 {
			for _, flags := range []int{unix.O_WRONLY, unix.O_RDWR, unix.O_RDONLY | unix.O_TRUNC, unix.O_RDONLY | unix.O_CREAT} {
				if fd, err := Open(sub, "file", flags, 0o600); !errors.Is(err, unix.EACCES) {
					t.Errorf("opened with %#o: %d, %v", flags, fd, err)
				}
			}
			if fd, err := Open(dir, "none", unix.O_RDWR|unix.O_TMPFILE, 0o600); !errors.Is(err, unix.EACCES) {
				t.Errorf("made a file: %d, %v", fd, err)
			}
			must(t, unix.Shutdown(look.socket, unix.SHUT_RDWR)) // as if it had been killed
		}
		unix.Close(sub)
	}
	must(t, SetTimes(mustOpen(t, dir, "none"), "enter", Time{Sec: 1}, Time{Sec: 2}))
	if st, err := Lstat(dir, "none/enter"); err != nil || st.Mtime != (Time{Sec: 2}) {
		t.Errorf("times: %+v, %v", st, err)
	}
	if after, err := Lstat(dir, "none"); err != nil || after.Mode != before.Mode || after.Ctime != before.Ctime {
		t.Errorf("a trace is left: %+v, was %+v, %v", after, before, err)
	}
}

func mustOpen(t *testing.T, dir int, rel string) int {
	t.Helper()
	fd, err := OpenPath(dir, rel)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
