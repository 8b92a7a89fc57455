package box

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
)

const churnEnv = "HUTCH_TEST_CHURN"

// churn does everything to a box that moves its layers, until somebody kills it.
// What the box shows is the same all the while.
func churn(id string) error {
	b, err := OpenBoxes(Options{})
	if err != nil {
		return err
	}
	ready := false
	for {
		if err := churnOnce(b, id, rand.IntN(6)); err != nil {
			return err
		}
		if !ready {
			ready = true
			fmt.Println("ready")
		}
	}
}

func churnOnce(b *Boxes, id string, what int) error {
	h, err := b.hold(id)
	if err != nil {
		return err
	}
	// Something to freeze: a file that is there at once and whole.
	err = unix.Link(filepath.Join(b.store.Path, "x"), filepath.Join(h.path, h.record.Layer, "x"))
	layers, points := len(h.record.Layers), h.record.Checkpoints
	b.letGo(h)
	if err != nil && err != unix.EEXIST {
		return err
	}
	switch what {
	case 0:
		_, err = b.Checkpoint(bg, id, "")
		return err
	case 1, 2:
		forks, err := b.Fork(bg, id, 2, nil)
		if err != nil {
			return err
		}
		return b.Remove(forks[0].ID)
	case 3:
		if len(points) == 0 {
			return nil
		}
		return b.Restore(bg, id, points[rand.IntN(len(points))].Name)
	case 4:
		_, err := b.Commit(bg, id, api.Commit{Keep: true, Allow: []string{"*"}, OnConflict: "theirs"})
		return err
	}
	if layers == 0 {
		return nil
	}
	h, err = b.hold(id)
	if err != nil {
		return err
	}
	defer b.letGo(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.squash()
}

// kill -9 at any time leaves every quiet box whole, and nothing that is not
// collected.
func TestKillLeavesEveryBoxWhole(t *testing.T) {
	b := testBoxes(t)
	ws := testWorkspace(t)
	id := create(t, b, api.Create{Workspace: ws}).ID
	want := play(t, b, id, sh("echo same >x", "echo 9 >d/a", "rm f/a"))
	if err := os.WriteFile(filepath.Join(b.store.Path, "x"), []byte("same\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(filepath.Join(b.store.Path, "x"), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	kills := 40
	if testing.Short() {
		kills = 10
	}
	forks := 0
	for range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), churnEnv+"="+id)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Read(make([]byte, 16))
		time.Sleep(time.Duration(rand.IntN(30_000)) * time.Microsecond)
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); stderr.Len() > 0 {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		boxes, err := b.List(false)
		if err != nil {
			t.Fatal(err)
		}
		for _, box := range boxes {
			if box.State == api.Committing {
				if _, err := b.Commit(bg, box.ID, api.Commit{Keep: true, Allow: []string{"*"}, OnConflict: "theirs"}); err != nil {
					t.Fatal(err)
				}
			}
			wantTree(t, "box "+box.ID+" after a kill", withoutLinks(play(t, b, box.ID, session{})), withoutLinks(want))
			if box.ID != id {
				forks++
				if err := b.Remove(box.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(boxes) == 0 {
			t.Fatal("the box is gone")
		}
	}
	if forks == 0 {
		t.Error("no fork was ever seen")
	}
	if err := b.Remove(id); err != nil {
		t.Fatal(err)
	}
	base := b.store.bases()[0]
	entries, _ := os.ReadDir(base)
	for _, e := range entries {
		if err := b.store.clear(filepath.Join(base, e.Name()), func(r *Record) bool { return r == nil }); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
	s, err := b.layersOf(base)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Collect(func(owner, id string) bool { return needs(filepath.Join(base, owner), id) }, 0); err != nil {
		t.Fatal(err)
	}
	leftovers(t, b)
}

// withoutLinks is a tree without which files are one: a box shares its files
// with frozen layers.
func withoutLinks(tree map[string]string) map[string]string {
	plain := map[string]string{}
	for p, what := range tree {
		plain[p], _, _ = cutLast(what, " is ")
	}
	return plain
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := bytes.LastIndex([]byte(s), []byte(sep)); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
