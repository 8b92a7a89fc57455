package run

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hutch/test/lab"
)

func TestBadInput(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before, home := w.Snap(), lab.Snapshot(t, w.Home)
	for _, c := range []struct {
		name string
		dir  string
		args []string
		says string // what the line must name
	}{
		{"no command", "", []string{"run"}, "command"},
		{"no command after the dashes", "", []string{"run", "--"}, "command"},
		{"empty command", "", []string{"run", "--", ""}, "command"},
		{"empty --cmd", "", []string{"run", "--cmd", ""}, "command"},
		{"--cmd and a command", "", []string{"run", "--cmd", "true", "--", "true"}, "--cmd"},
		{"workspace that does not exist", "", []string{"run", "--workspace", "/no/such/dir", "--", "true"}, "/no/such/dir"},
		{"workspace that is a file", "", []string{"run", "--workspace", "a.txt", "--", "true"}, "a.txt"},
		{"/ as workspace", "/", []string{"run", "--", "true"}, "/"},
		{"/ named", "", []string{"run", "--workspace", "/", "--", "true"}, "/"},
		{"HOME as workspace", w.Home, []string{"run", "--", "true"}, "home directory"},
		{"HOME named", "", []string{"run", "--workspace", w.Home, "--", "true"}, "home directory"},
		{"unknown strategy", "", []string{"run", "--strategy", "nope", "--", "true"}, "nope"},
		{"unknown layer", "", []string{"run", "--layer", "nope", "--", "true"}, "nope"},
		{"unknown rung", "", []string{"run", "--rung", "nope", "--", "true"}, "nope"},
		{"unknown flag", "", []string{"run", "--nope", "--", "true"}, "--nope"},
		{"unknown git mode", "", []string{"run", "--git", "nope", "--", "true"}, "nope"},
		{"negative timeout", "", []string{"run", "--timeout", "-5s", "--", "true"}, "-5s"},
		{"timeout that is none", "", []string{"run", "--timeout", "soon", "--", "true"}, "soon"},
		{"negative --timeout-ms", "", []string{"run", "--timeout-ms", "-5", "--", "true"}, "-5"},
		{"overflowing --timeout-ms", "", []string{"run", "--timeout-ms", "99999999999999999999", "--", "true"}, "99999999999999999999"},
		{"large --timeout-ms", "", []string{"run", "--timeout-ms", "9223372036854775807", "--", "true"}, "9223372036854775807"},
		{"both timeouts", "", []string{"run", "--timeout-ms", "5", "--timeout", "5s", "--", "true"}, "--timeout"},
		{"negative memory", "", []string{"run", "--memory", "-1", "--", "true"}, "-1"},
		{"overflowing memory", "", []string{"run", "--memory", "99999999999999999G", "--", "true"}, "99999999999999999G"},
		{"memory that is no size", "", []string{"run", "--memory", "lots", "--", "true"}, "lots"},
		{"memory of less than a byte", "", []string{"run", "--memory", "0.5", "--", "true"}, "0.5"},
		{"a timeout that rounds to none", "", []string{"run", "--timeout", "0.0000000001s", "--", "true"}, "0.0000000001s"},
		{"negative pids", "", []string{"run", "--pids", "-3", "--", "true"}, "-3"},
		{"pids that start nothing", "", []string{"run", "--pids", "1", "--", "true"}, "give 2 to 4194304"},
		{"--timeout-ms that is no number", "", []string{"run", "--timeout-ms", "5x", "--", "true"}, "give a whole number"},
		{"overflowing pids", "", []string{"run", "--pids", "99999999999999999999", "--", "true"}, "99999999999999999999"},
		{"negative cpus", "", []string{"run", "--cpus", "-1", "--", "true"}, "-1"},
		{"cpus not a number", "", []string{"run", "--cpus", "NaN", "--", "true"}, "NaN"},
		{"infinite cpus", "", []string{"run", "--cpus", "Inf", "--", "true"}, "Inf"},
		{"negative output limit", "", []string{"run", "--output-limit", "-1", "--", "true"}, "-1"},
		{"overflowing output limit", "", []string{"run", "--output-limit", "99999999999G", "--", "true"}, "99999999999G"},
		{"unknown verb", "", []string{"frobnicate"}, "frobnicate"},
		{"a box without its name", "", []string{"commit"}, ""},
		{"a receipt without its name", "", []string{"receipts", "show"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := w.RunWith(lab.Options{Dir: c.dir}, c.args...)
			w.Want(r, 125)
			oneLine(t, r.Stderr)
			if !strings.Contains(r.Stderr, c.says) {
				t.Errorf("the line does not name %q: %q", c.says, r.Stderr)
			}
			if r.Stdout != "" {
				t.Errorf("stdout %q", r.Stdout)
			}
		})
	}
	w.Untouched(before)
	for _, d := range home.Diff(lab.Snapshot(t, w.Home)) {
		t.Errorf("HOME changed: %s", d)
	}
}

func TestBadInputWithJSONIsAnOutcome(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	for _, args := range [][]string{
		{"--workspace", "/no/such/dir"},
		{"--memory", "/no/such/dir"}, // does not parse
		{"--policy", "/no/such/dir"},
	} {
		out, r := w.JSON(append(args, "--", "true")...)
		w.Want(r, 125)
		if out.Status != "error" || !strings.Contains(out.Error, "/no/such/dir") || out.CommandExitCode != nil {
			t.Errorf("%q: status %q error %q", args, out.Status, out.Error)
		}
	}
	r := w.RunWith(lab.Options{}, "run", "--memory", "x", "--json", "--", "true")
	w.Want(r, 125)
	if !strings.Contains(r.Stdout, `"status":"error"`) || !strings.Contains(r.Stdout, `"denied":[]`) {
		t.Errorf("no outcome where --json is behind what does not parse: %q", r.Stdout)
	}
	w.Untouched(before)
}

// stateFaults are state directories that cannot be used.
func stateFaults(t *testing.T, w *lab.World) map[string]string {
	faults := map[string]string{}
	file := filepath.Join(w.Base, "a-file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	faults["a file"] = file
	faults["below a file"] = file + "/state"
	faults["in proc"] = "/proc/1/no-state"
	if !root() {
		shut := filepath.Join(w.Base, "shut")
		if err := os.Mkdir(shut, 0o555); err != nil {
			t.Fatal(err)
		}
		faults["read-only"] = shut
		return faults
	}
	// Modes do not stop root; a read-only and a full file system do.
	for name, options := range map[string]string{"read-only": "size=1m", "full": "size=64k"} {
		dir := filepath.Join(w.Base, strings.ReplaceAll(name, " ", "-"))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("none", dir, "tmpfs", 0, options); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		if name == "full" {
			f, err := os.Create(filepath.Join(dir, "filler"))
			if err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := f.Write(make([]byte, 4096)); err != nil {
					break
				}
			}
			f.Close()
		} else if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, options); err != nil {
			t.Fatal(err)
		}
		faults[name] = dir
	}
	return faults
}

func TestStateDirectoryThatCannotBeUsed(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	before := w.Snap()
	for name, dir := range stateFaults(t, w) {
		t.Run(name, func(t *testing.T) {
			r := w.RunWith(lab.Options{Env: []string{"XDG_STATE_HOME=" + dir}}, "run", "--commit", "--", "sh", "-c", change)
			w.Want(r, 125)
			oneLine(t, r.Stderr)
			w.Untouched(before)
		})
	}
}

func TestStateDirectoryIsPrivate(t *testing.T) {
	w := lab.New(t)
	w.Want(w.Box("--", "true"), 0)
	st, err := os.Stat(w.StateDir())
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		t.Errorf("the state directory has mode %o", st.Mode().Perm())
	}
}

func TestReadOnlyWorkspaceRunsButIsNotPromoted(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	if root() { // modes do not stop root
		if err := syscall.Mount(w.Dir, w.Dir, "", syscall.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		defer syscall.Unmount(w.Dir, 0)
		if err := syscall.Mount("", w.Dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	} else {
		w.Host("chmod", "555", w.Dir)
		defer os.Chmod(w.Dir, 0o755)
	}
	before := w.Snap()
	r := w.Box("--", "cat", "a.txt")
	w.Want(r, 0)
	if r.Stdout != "foo one\nfoo two\n" {
		t.Errorf("stdout %q", r.Stdout)
	}
	r = w.Box("--commit", "--", "sh", "-c", "echo x >> a.txt")
	w.Want(r, 125)
	w.Untouched(before)
	w.KeepsBoxes() // refused, so its work is not thrown away
}
