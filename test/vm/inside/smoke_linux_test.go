//go:build vm

package inside

import (
	"os"
	"strings"
	"testing"

	"hutch/test/lab"
)

const change = "echo x > new.txt; echo more >> a.txt; rm README.md; mv run.sh dir/"

func changed(t *testing.T, w *lab.World) {
	t.Helper()
	if w.Read("new.txt") != "x\n" || w.Exists("README.md") || !strings.HasSuffix(w.Read("a.txt"), "more\n") || !w.Exists("dir/run.sh") {
		t.Error("the change did not arrive")
	}
}

// TestSmoke is the main job, with what hutch picks by itself and with each
// strategy that it can be told.
func TestSmoke(t *testing.T) {
	picks := lab.Strategy{Test: "auto"}
	for _, s := range append([]lab.Strategy{picks}, lab.Strategies(t)...) {
		if s.Name == "overlay" && overlay(t) {
			continue // what it picks
		}
		t.Run(s.Test, func(t *testing.T) {
			w := lab.NewWith(t, s)
			w.Sample()
			before := w.Snap()
			if s.Name == "overlay" {
				r := w.Box("--", "true")
				w.Want(r, 125)
				if !strings.Contains(r.Stderr, "overlay") || strings.Count(r.Stderr, "\n") != 1 {
					t.Errorf("not one line about the overlay: %q", r.Stderr)
				}
				return
			}
			out, r := w.JSON("--", "sh", "-c", change+"; cat a.txt; exit 3")
			w.Want(r, 3)
			w.Untouched(before)
			wantMissing(t, out, false)
			want := s.Name
			if want == "" {
				if want = "copy"; overlay(t) {
					want = "overlay"
				}
			}
			if out.Strategy != want {
				t.Errorf("strategy %q, want %q", out.Strategy, want)
			}
			out, r = w.JSON("--commit", "--", "sh", "-c", change)
			w.Want(r, 0)
			if !out.Committed {
				t.Error("not committed")
			}
			changed(t, w)
			w.Want(w.Run("undo"), 0)
			for _, d := range before.Diff(w.Snap()) {
				if !strings.Contains(d, "ime") && !strings.Contains(d, ".hutch") { // times of directories, and the undo data
					t.Errorf("after the undo: %s", d)
				}
			}
		})
	}
}

func TestRam(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	if !overlay(t) {
		w.Want(w.Box("--layer", "ram", "--", "true"), 125)
		return
	}
	out, r := w.JSON("--layer", "ram", "--", "sh", "-c", change)
	w.Want(r, 0)
	if out.Layer != "ram" {
		t.Errorf("layer %q", out.Layer)
	}
	w.Untouched(before)
	w.Want(w.Box("--layer", "ram", "--commit", "--", "sh", "-c", change), 0)
	changed(t, w)
}

// TestRenames moves directories, which the overlay of an ordinary user refuses:
// the mover does it.
func TestRenames(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	out, r := w.JSON("--commit", "--", "python3", "-c", `
import os
os.rename("dir", "moved")
os.rename("moved/deep", "deep")
os.mkdir("made"); os.rename("made", "moved/made")
os.mkdir("dir"); open("dir/new", "w").close()
assert sorted(os.listdir("moved")) == ["made", "other.txt"], os.listdir("moved")
`)
	w.Want(r, 0)
	if !out.Committed || w.Read("moved/other.txt") != "other\n" || w.Read("deep/file.txt") != "deep\n" || !w.Exists("dir/new") || w.Exists("dir/other.txt") || !w.Exists("moved/made") {
		t.Errorf("the moves did not arrive: %v", r)
	}
}

// TestTooOld: before Linux 5.12 (mount_setattr) nothing runs, whatever the
// strategy, and one line says which kernel is needed.
func TestTooOld(t *testing.T) {
	if since(t, 5, 12) {
		t.Fatal("this kernel is young enough")
	}
	for _, s := range append([]lab.Strategy{{Test: "auto"}}, lab.Strategies(t)...) {
		t.Run(s.Test, func(t *testing.T) {
			w := lab.NewWith(t, s)
			w.Sample()
			before := w.Snap()
			r := w.Box("--commit", "--memory", "200M", "--", "sh", "-c", "echo ran; echo x > new.txt")
			w.Want(r, 125)
			w.Untouched(before)
			if strings.Contains(r.Stdout, "ran") || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "needs Linux 5.12") {
				t.Errorf("not one line that names the kernel it needs: %q", r.Stderr)
			}
		})
	}
}

// TestRefused: where the kernel was told to refuse namespaces nothing runs, and
// one line names the cause and the way out.
func TestRefused(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	r := w.Box("--commit", "--", "sh", "-c", "echo ran; echo x > new.txt")
	w.Want(r, 125)
	if strings.Contains(r.Stdout, "ran") {
		t.Error("the command ran")
	}
	w.Untouched(before)
	name, _, _ := strings.Cut(os.Getenv("HUTCH_VM_REFUSED"), "=")
	if strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, name) {
		t.Errorf("not one line that names %s: %q", name, r.Stderr)
	}
	t.Logf("%s", r.Stderr)
}
