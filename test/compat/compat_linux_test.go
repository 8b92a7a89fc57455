package compat

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

var (
	update = flag.Bool("update", false, "do every job in every way and write docs/compatibility.md")
	seed   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "which of the heavy jobs are done")
	who    = flag.String("way", "", "do the jobs only in this way: `root`, owner or user")
	only   = flag.String("job", "", "do only the job of this `name`")
)

// limit is the deadline of a job, in seconds.
const limit = "170"

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if caches, err = os.MkdirTemp("", "hutch-compat-"); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
	if err := share(caches); err != nil {
		fmt.Fprintln(os.Stderr, "compat:", err)
		os.Exit(1)
	}
	code := lab.Run(m)
	os.RemoveAll(caches)
	os.Exit(code)
}

// share opens a directory to every user, and puts the binary under test there:
// an ordinary user may not be able to reach the checkout.
func share(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	bin := os.Getenv(lab.BinEnv)
	if bin == "" {
		return nil
	}
	copied := filepath.Join(dir, "hutch")
	if out, err := exec.Command("cp", bin, copied).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return os.Setenv(lab.BinEnv, copied)
}

func TestProgramsWorkAsTheyDoBare(t *testing.T) {
	all := jobs(t)
	table := map[string]*row{}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			for _, j := range chosen(t, w, all) {
				t.Run(j.name, func(t *testing.T) {
					r := table[j.name]
					if r == nil {
						r = &row{results: map[string]string{}}
						table[j.name] = r
					}
					r.results[w.name] = "fails"
					missing := j.missing(w)
					if missing != "" {
						r.results[w.name] = notHere
						if j.kind == core {
							t.Fatalf("%s is not here (make deps)", missing)
						}
						t.Logf("not here: %s", missing)
						return
					}
					r.version = version(w, j)
					if j.kind == refused {
						j.isRefused(t, w)
					} else {
						j.agrees(t, w)
					}
					if !t.Failed() {
						r.results[w.name] = map[bool]string{false: "works", true: "refused"}[j.kind == refused]
					}
				})
			}
		})
	}
	if *update {
		write(t, all, table)
	}
}

// chosen are the jobs that this run does: all for the table and the proof;
// else all of the core and a few of the others, and for the second of root's
// ways a few.
func chosen(t *testing.T, w way, all []job) []job {
	if *only != "" {
		return slices.DeleteFunc(slices.Clone(all), func(j job) bool { return j.name != *only })
	}
	if *update || lab.Proof() {
		return all
	}
	t.Logf("seed %d (-seed)", *seed)
	rnd := rand.New(rand.NewPCG(*seed, uint64(w.hutch)))
	left := map[string]int{core: len(all), light: 4, heavy: 1, refused: 1}
	if w.name == "owner" {
		left = map[string]int{core: 2, light: 2}
	}
	var picked []job
	for _, i := range rnd.Perm(len(all)) {
		// A job whose program is not here proves nothing, and takes no place.
		if j := all[i]; left[j.kind] > 0 && (j.kind == core || j.missing(w) == "") {
			left[j.kind]--
			picked = append(picked, j)
		}
	}
	return picked
}

// missing names a command of the job that a way's users do not have.
func (j job) missing(w way) string {
	for _, name := range j.needs {
		if !slices.ContainsFunc(append(filepath.SplitList(w.path()), "/usr/sbin", "/sbin"), func(dir string) bool {
			st, err := os.Stat(filepath.Join(dir, name))
			return err == nil && !st.IsDir() && st.Mode().Perm()&0o111 != 0
		}) {
			return name
		}
	}
	if j.has != "" {
		if _, err := quick(w, j.has); err != nil {
			return j.has
		}
	}
	return ""
}

// version asks a program for it, on the host.
func version(w way, j job) string {
	out, err := quick(w, j.version)
	if err != nil {
		return "?"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return line
}

func quick(w way, script string) (string, error) {
	cmd := exec.Command("bash", "-c", script)
	cmd.Env = []string{"PATH=" + w.path(), "HOME=/nonexistent", "LANG=C.UTF-8", "PYENV_ROOT=" + os.Getenv("PYENV_ROOT"), "GOTOOLCHAIN=local"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(w.owner)}
	out, err := cmd.Output()
	return string(out), err
}

// done is what came of a job.
type done struct {
	code           int
	stdout, stderr string
	tree           lab.Tree
	took           time.Duration
}

// agrees does a job bare and in a box, at the same path, and compares.
func (j job) agrees(t *testing.T, w way) {
	world := w.world(t)
	if j.before {
		if d := bare(t, world, w, j.command("before")); d.code != 0 {
			t.Fatalf("before: exit %d\n%s%s", d.code, d.stdout, d.stderr)
		}
	}
	pristine, used := filepath.Join(world.Base, "pristine"), filepath.Join(world.Base, "used")
	if out, err := exec.Command("cp", "-a", world.Dir, pristine).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := bare(t, world, w, j.command("job"))
	if want.code != j.exit {
		t.Fatalf("bare: exit %d, want %d\n%s%s", want.code, j.exit, want.stdout, want.stderr)
	}
	want.tree = tree(t, world)
	// What a bare program leaves there is its own affair.
	if err := os.RemoveAll(world.Tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(world.Tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range j.makes {
		if n, ok := want.tree[path]; !ok || n.Mode&syscall.S_IFMT == syscall.S_IFREG && n.Size == 0 {
			t.Errorf("bare: %s was not made", path)
		}
	}
	if err := os.Rename(world.Dir, used); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(pristine, world.Dir); err != nil {
		t.Fatal(err)
	}

	flags := []string{"--timeout", limit + "s", "--git", "include", "--allow-path", "*"}
	if j.exit == 0 {
		flags = append(flags, "--commit")
	} else {
		flags = append(flags, "--preserve")
		world.KeepsBoxes()
	}
	start := time.Now()
	out, r := world.JSON(append(append(flags, "--"), j.command("job")...)...)
	if out.CommandExitCode == nil || *out.CommandExitCode != want.code || r.Code != want.code {
		t.Fatalf("exit %d, bare %d: %s %s\nstdout: %s\nstderr: %s\nbare stdout: %s\nbare stderr: %s", r.Code, want.code, out.Status, out.Error, out.Stdout, out.Stderr, want.stdout, want.stderr)
	}
	if out.Stdout != want.stdout {
		t.Errorf("stdout differs\n%s\nbare:\n%s\nstderr: %s\nbare stderr: %s", out.Stdout, want.stdout, out.Stderr, want.stderr)
	}
	t.Logf("bare %v, box %v", want.took.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	if j.exit != 0 {
		if r := world.Run("commit", out.ID, "--git", "include", "--allow-path", "*"); r.Code != 0 {
			t.Fatalf("commit of the kept box\n%v", r)
		}
	} else if !out.Committed {
		t.Fatalf("not promoted: %v", r)
	}
	for _, d := range j.differences(want.tree, tree(t, world)) {
		t.Errorf("the tree differs from the bare run's: %s", d)
	}
}

// isRefused: the program says why it does not work, and the box goes on.
func (j job) isRefused(t *testing.T, w way) {
	world := w.world(t)
	out, r := world.JSON(append([]string{"--timeout", limit + "s", "--"}, j.command("job")...)...)
	if out.CommandExitCode == nil || *out.CommandExitCode == 0 {
		t.Fatalf("not refused\n%v", r)
	}
	if !j.refusal.MatchString(out.Stdout + out.Stderr) {
		t.Errorf("the refusal does not say %q\n%s\n%s", j.refusal, out.Stdout, out.Stderr)
	}
}

// bare runs a command on the host as the way's command would run.
func bare(t *testing.T, world *lab.World, w way, argv []string) done {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // cold caches
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = world.Dir, world.Environ("PWD="+world.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(w.owner), Setpgid: true}
	var readers sync.WaitGroup
	for _, stream := range []struct {
		file *io.Writer
		text *bytes.Buffer
	}{{&cmd.Stdout, &stdout}, {&cmd.Stderr, &stderr}} {
		r, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer out.Close()
		// A user's own, as in his shell: else /dev/stdout is closed to him.
		if err := out.Chown(w.owner, w.owner); err != nil {
			t.Fatal(err)
		}
		*stream.file = out
		readers.Go(func() { io.Copy(stream.text, r) })
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd.Stdout.(*os.File).Close()
	cmd.Stderr.(*os.File).Close()
	expected := lab.Expect(cmd.Process.Pid)
	err := cmd.Wait()
	expected()
	readers.Wait() // until the last of its processes has ended
	if ctx.Err() != nil || cmd.ProcessState == nil {
		t.Fatalf("bare: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	return done{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String(), took: time.Since(start)}
}

// tree is the workspace as a user would compare it.
func tree(t *testing.T, world *lab.World) lab.Tree {
	t.Helper()
	out := lab.Tree{}
	for path, n := range world.Snap().Without(".hutch") {
		n.Mtime, n.Ctime = 0, 0
		switch n.Mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			n.Size, n.Nlink = 0, 0 // both are the file system's own business
		case syscall.S_IFSOCK, syscall.S_IFIFO:
			continue // not promoted, and useless without the program
		}
		out[path] = n
	}
	return out
}

// differences compares two trees, less what the job says differs each time.
func (j job) differences(bare, box lab.Tree) []string {
	for path := range bare {
		if j.varies != nil && j.varies.MatchString(path) {
			delete(bare, path)
		}
	}
	for path, n := range box {
		if j.varies != nil && j.varies.MatchString(path) {
			delete(box, path)
			continue
		}
		if other, ok := bare[path]; ok && j.differs != nil && j.differs.MatchString(path) {
			n.Content, n.Size = other.Content, other.Size
			box[path] = n
		}
	}
	return bare.Diff(box)
}
