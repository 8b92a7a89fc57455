package box

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hutch/internal/api"
)

// pooled returns boxes with a pool.
func pooled(t *testing.T, most int) *Boxes {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", tempDir(t))
	b, err := OpenBoxes(Options{Pool: most})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
		if left := jailsLeft(t, os.Getenv("XDG_STATE_HOME")); len(left) != 0 {
			t.Errorf("left: %q", left)
		}
	})
	return b
}

// awaitParked waits until so many jails are parked.
func awaitParked(t *testing.T, b *Boxes, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); parkedJails(b) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d jails are parked, not %d", parkedJails(b), n)
		}
	}
}

func counts(t *testing.T, b *Boxes, hits, misses uint64) {
	t.Helper()
	if h, m := b.PoolCounts(); h != hits || m != misses {
		t.Errorf("%d hits and %d misses, want %d and %d", h, m, hits, misses)
	}
}

func TestAJailIsAtHandWhenABoxWasMade(t *testing.T) {
	b := pooled(t, 4)
	ws := testWorkspace(t)
	for i := range 3 {
		box := create(t, b, api.Create{Workspace: ws}).ID
		awaitParked(t, b, 1)
		said(t, inBox(t, b, box, "cat a; echo; echo $HUTCH_BOX; ls /tmp; echo changed >a"), "1\n"+box+"\n"+firstOf(ws))
		counts(t, b, uint64(i+1), 0)
	}
	// Another policy is another kind: nothing of the one serves the other.
	on := true
	c := api.Create{Workspace: ws}
	c.Policy.Capabilities.Network = &on
	box := create(t, b, c).ID
	awaitParked(t, b, 2)
	said(t, inBox(t, b, box, "cat a"), "1")
}

// firstOf is what a box sees in /tmp where the workspace lies there.
func firstOf(ws string) string {
	rel, err := filepath.Rel("/tmp", ws)
	if err != nil || rel[0] == '.' {
		return ""
	}
	for filepath.Dir(rel) != "." {
		rel = filepath.Dir(rel)
	}
	return rel + "\n"
}

func TestAJailThatSeesWhatIsNoMoreIsNotHandedOut(t *testing.T) {
	b := pooled(t, 2)
	ws, home := testWorkspace(t), t.TempDir()
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	config := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, ".gitconfig"), []byte("[user]\n\tname = "+name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config("first")
	c := api.Create{Workspace: ws, Environ: []string{"HOME=" + home, "PATH=/usr/bin:/bin"}}
	box := create(t, b, c).ID
	awaitParked(t, b, 1)
	config("second")
	said(t, inBox(t, b, box, "git config user.name"), "second\n")
	counts(t, b, 0, 1)

	// Nor one that is old, or whose processes are gone.
	for _, spoil := range []func(*parked){func(j *parked) { j.since = time.Now().Add(-2 * parkedAge) }, func(j *parked) { j.live.Kill(); <-j.live.Gone() }} {
		awaitParked(t, b, 1)
		spoiled := map[*resident]bool{}
		b.pool.mu.Lock()
		for _, k := range b.pool.kinds {
			for _, j := range k.parked {
				spoil(j)
				spoiled[j.resident] = true
			}
		}
		b.pool.mu.Unlock()
		box := create(t, b, c).ID
		said(t, inBox(t, b, box, "git config user.name"), "second\n")
		h, err := b.hold(box)
		if err != nil {
			t.Fatal(err)
		}
		if spoiled[h.lives()] {
			t.Error("it was handed out all the same")
		}
		b.letGo(h)
	}
	// The workspace is another directory at the same path.
	awaitParked(t, b, 1)
	if err := os.Rename(ws, ws+".old"); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(ws + ".old")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	other := create(t, b, c).ID
	said(t, inBox(t, b, other, "ls -A"), "")
}

func TestAPoolGrowsWithTheRateAndNotBeyondItsBound(t *testing.T) {
	b := pooled(t, 3)
	ws := testWorkspace(t)
	for range 6 {
		box := create(t, b, api.Create{Workspace: ws}).ID
		said(t, inBox(t, b, box, "cat a"), "1")
		if err := b.Remove(box); err != nil {
			t.Error(err)
		}
	}
	awaitParked(t, b, 3)
	time.Sleep(300 * time.Millisecond)
	if n := parkedJails(b); n != 3 {
		t.Errorf("%d jails are parked", n)
	}
	// What nobody asks for any more goes.
	b.pool.mu.Lock()
	for _, k := range b.pool.kinds {
		k.asked = time.Now().Add(-2 * parkedAge)
	}
	b.pool.mu.Unlock()
	b.pool.hint()
	for deadline := time.Now().Add(10 * time.Second); parkedJails(b) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d jails are parked still", parkedJails(b))
		}
	}
}

func TestWithoutAPoolNothingIsMadeAhead(t *testing.T) {
	b := pooled(t, 0)
	box := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	said(t, inBox(t, b, box, "cat a"), "1")
	time.Sleep(50 * time.Millisecond)
	if n := parkedJails(b); n != 0 {
		t.Errorf("%d jails are parked", n)
	}
}
