package changeset

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadWhileTheUserSaves reads changes of files that are renamed over,
// deleted and replaced on the host meanwhile. What that means is for the
// promotion to say: reading must go on, and name the paths.
func TestReadWhileTheUserSaves(t *testing.T) {
	h := newHandmade(t)
	for _, name := range []string{"saved", "gone", "kind", "dir/in"} {
		write(t, h.host+"/"+name, "before")
		write(t, h.layer+"/"+name, "after")
	}
	must(t, os.Mkdir(h.host+"/aside", 0o755))
	src := h.source()

	stop := make(chan struct{})
	var user sync.WaitGroup
	user.Go(func() {
		at := func(name string) string { return filepath.Join(h.host, name) }
		for {
			select {
			case <-stop:
				return
			default:
			}
			write(t, at("aside/new"), "saved by the user")
			must(t, os.Rename(at("aside/new"), at("saved")))
			must(t, os.Rename(at("gone"), at("aside/gone")))
			must(t, os.Rename(at("aside/gone"), at("gone")))
			must(t, os.Symlink("saved", at("aside/link")))
			must(t, unix.Renameat2(unix.AT_FDCWD, at("aside/link"), unix.AT_FDCWD, at("kind"), unix.RENAME_EXCHANGE))
			must(t, unix.Renameat2(unix.AT_FDCWD, at("aside/link"), unix.AT_FDCWD, at("kind"), unix.RENAME_EXCHANGE))
			must(t, os.Remove(at("aside/link")))
			must(t, os.Rename(at("dir"), at("aside/dir")))
			must(t, os.Rename(at("aside/dir"), at("dir")))
		}
	})
	defer user.Wait()
	defer close(stop)
	for range 1000 {
		c, err := Read(src)
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		for _, e := range c.Entries {
			named[e.Path] = true
		}
		for _, name := range []string{"saved", "gone", "kind", "dir/in"} {
			if !named[name] {
				t.Fatalf("%s is not named: %v", name, c.Entries)
			}
		}
	}
}
