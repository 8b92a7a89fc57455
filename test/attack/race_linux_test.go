package attack

import (
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// TestSwappedParents swaps a directory on the way to what is promoted for a link
// to a directory of canaries, over and over while promotions run.
func TestSwappedParents(t *testing.T) {
	rounds := 12
	if lab.Proof() {
		rounds = 2000
	}
	if text := os.Getenv("HUTCH_ATTACK_ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		must(t, err)
	}
	strategies := lab.Strategies(t)
	if !lab.Proof() {
		strategies = strategies[:2]
	}
	for i, s := range strategies {
		t.Run(s.Test, func(t *testing.T) {
			w := lab.NewWith(t, s)
			w.KeepsBoxes()
			w.Write("dir/inner/file", "host\n")
			canary := filepath.Join(w.Base, "canary")
			must(t, os.MkdirAll(filepath.Join(canary, "inner"), 0o755))
			must(t, os.WriteFile(filepath.Join(canary, "inner", "file"), []byte("canary\n"), 0o644))
			before := lab.Snapshot(t, canary)
			dir, link := filepath.Join(w.Dir, "dir"), filepath.Join(w.Base, "link")
			must(t, os.Symlink(canary, link))

			var stop atomic.Bool
			var swaps atomic.Int64
			done := make(chan struct{})
			go func() {
				defer close(done)
				for !stop.Load() {
					if unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
						swaps.Add(1)
					}
				}
				// The directory ends where it was.
				if st, err := os.Lstat(dir); err == nil && st.Mode()&os.ModeSymlink != 0 {
					unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
				}
			}()
			n := rounds
			if i > 0 {
				n = max(rounds/4, 3)
			}
			arrived, refused := 0, 0
			for round := range n {
				r := w.Box("--commit", "--", "sh", "-c", "echo box "+strconv.Itoa(round)+" > dir/inner/file; mkdir -p dir/inner/made; echo x > dir/inner/made/new; rm -f dir/inner/gone")
				if r.Code == 0 {
					arrived++
				} else {
					refused++
				}
			}
			stop.Store(true)
			<-done
			t.Logf("%d rounds, %d swaps: %d arrived, %d refused", n, swaps.Load(), arrived, refused)
			if swaps.Load() < int64(n) {
				t.Errorf("only %d swaps in %d rounds", swaps.Load(), n)
			}
			// The directory itself took part in the swaps of names: its ctime is
			// not the canary's.
			for _, d := range before.Diff(lab.Snapshot(t, canary)) {
				t.Errorf("a promotion led out: %s", d)
			}
			w.Run("recover")
		})
	}
}
