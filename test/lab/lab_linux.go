package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BinEnv names the hutch binary under test; without it one is built.
const BinEnv = "HUTCH_BIN"

// inner marks the process that Main started in a mount namespace of its own.
const inner = "HUTCH_LAB_INNER"

// Main runs the tests of a package. As root without reflink directories it
// makes them first, in a mount namespace of its own.
func Main(m *testing.M) {
	os.Exit(Run(m))
}

// Run is Main for a package that has something to clear away itself.
func Run(m *testing.M) int {
	// A umask other than the usual one would show in every mode.
	syscall.Umask(0o022)
	if os.Geteuid() == 0 && os.Getenv(ReflinkEnv) == "" {
		if os.Getenv(inner) == "" {
			return Again("lab", inner, 0)
		}
		dir, err := os.MkdirTemp("", "hutch-lab-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
			return 1
		}
		// Root's boxes run as the owner of their workspace.
		os.Chmod(dir, 0o755)
		dirs, err := MakeReflink(dir)
		defer func() {
			for _, d := range dirs {
				syscall.Unmount(d, 0)
			}
			os.RemoveAll(dir)
		}()
		if err != nil {
			fmt.Fprintln(os.Stderr, "lab: no reflink file systems:", err)
			return 1
		}
		os.Setenv(ReflinkEnv, strings.Join(dirs, ":"))
	}
	if err := BecomeReaper(); err != nil {
		fmt.Fprintln(os.Stderr, "lab: subreaper:", err)
		return 1
	}
	defer func() {
		if builtDir != "" {
			os.RemoveAll(builtDir)
		}
		for _, f := range atEnd {
			f()
		}
	}()
	return m.Run()
}

var atEnd []func()

// AtEnd has f called when all tests of the package have run.
func AtEnd(f func()) { atEnd = append(atEnd, f) }

var (
	buildOnce sync.Once
	builtDir  string
	buildErr  error
)

// Hutch returns the path of the binary under test.
func Hutch(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv(BinEnv); bin != "" {
		return bin
	}
	buildOnce.Do(func() {
		if builtDir, buildErr = os.MkdirTemp("", "hutch-bin-"); buildErr != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", builtDir, "hutch/cmd/hutch", "hutch/cmd/hutchd")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			buildErr = fmt.Errorf("%w: %s", err, out)
		}
	})
	if buildErr != nil {
		t.Fatalf("building hutch: %v", buildErr)
	}
	return filepath.Join(builtDir, "hutch")
}

// Proof reports whether the long versions of tests are wanted (make proof).
func Proof() bool { return os.Getenv("HUTCH_PROOF") != "" }

// Strategy is one way to make a branch, and where its worlds must lie.
type Strategy struct {
	Name string // overlay, reflink or copy: the value of --strategy
	Test string // names the subtest: reflink runs once on each file system
	Base string // directory in which worlds are made; "" is the temporary directory
}

// Strategies lists the strategies that this machine can show.
func Strategies(t testing.TB) []Strategy {
	t.Helper()
	list := []Strategy{{Name: "overlay", Test: "overlay"}, {Name: "copy", Test: "copy"}}
	for _, dir := range reflinkDirs(t) {
		test := "reflink-" + filepath.Base(dir)
		if name := filepath.Base(filepath.Dir(dir)); name == "btrfs" || name == "xfs" {
			test = "reflink-" + name
		}
		list = append(list, Strategy{Name: "reflink", Test: test, Base: dir})
	}
	return list
}

// Each runs f once with a world of each strategy; where there are more than two,
// in the short version with overlay and one other, drawn anew for each test.
func Each(t *testing.T, f func(t *testing.T, w *World)) {
	t.Helper()
	list := Strategies(t)
	if !Proof() && len(list) > 2 {
		list = []Strategy{list[0], list[1+rand.IntN(len(list)-1)]}
	}
	for _, s := range list {
		t.Run(s.Test, func(t *testing.T) { f(t, NewWith(t, s)) })
	}
}

// World is a user's machine in small: a workspace, a home and a state
// directory of its own. When its test ends it checks that nothing was left.
type World struct {
	T        testing.TB
	Base     string // holds everything below
	Dir      string // the workspace
	Home     string
	State    string // XDG_STATE_HOME
	Tmp      string
	Strategy Strategy
	Env      []string // added to the environment of every run
	// Credential is whom hutch runs as, where that is not the tests' own user.
	Credential *syscall.Credential

	keepsBoxes bool
	before     Census
}

// New makes a world for the strategy that hutch picks by itself.
func New(t *testing.T) *World {
	t.Helper()
	return NewWith(t, Strategy{})
}

// NewWith makes a world for one strategy.
func NewWith(t *testing.T, s Strategy) *World {
	t.Helper()
	base, err := os.MkdirTemp(s.Base, "world-")
	if err != nil {
		t.Fatal(err)
	}
	if base, err = filepath.EvalSymlinks(base); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &World{
		T: t, Base: base, Strategy: s,
		Dir: filepath.Join(base, "ws"), Home: filepath.Join(base, "home"),
		State: filepath.Join(base, "state"), Tmp: filepath.Join(base, "tmp"),
		before: TakeCensus(base),
	}
	for _, d := range []string{w.Dir, w.Home, w.State, w.Tmp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(w.close)
	return w
}

// close is the shared check that ends every black-box test.
func (w *World) close() {
	for _, left := range Leftovers(w.before, 10*time.Second, w.Base) {
		w.T.Errorf("left behind: %s", left)
	}
	for _, left := range w.StateLeftovers() {
		w.T.Errorf("left behind in the state directory: %s", left)
	}
	if entries, _ := os.ReadDir(w.Tmp); len(entries) > 0 {
		w.T.Errorf("left behind in the temporary directory: %v", entries)
	}
	if w.T.Failed() && os.Getenv("HUTCH_TEST_KEEP") != "" {
		w.T.Logf("kept: %s", w.Base)
		return
	}
	// Directories of any mode: chmod on the way down, as rm cannot.
	filepath.WalkDir(w.Base, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(w.Base); err != nil {
		// An unreadable directory is listed before it is opened up; once
		// more now that it is.
		if err := os.RemoveAll(w.Base); err != nil {
			w.T.Errorf("removing the world: %v", err)
		}
	}
}

// KeepsBoxes says that the test ends with boxes kept on purpose.
func (w *World) KeepsBoxes() { w.keepsBoxes = true }

// StateDir is hutch's own directory in this world.
func (w *World) StateDir() string { return filepath.Join(w.State, "hutch") }

// StateLeftovers lists what the state directory holds beyond the receipts and
// the small files beside them: any directory below it that is not empty is a
// box that was not cleared.
func (w *World) StateLeftovers() []string {
	if w.keepsBoxes {
		return nil
	}
	var left []string
	entries, err := os.ReadDir(w.StateDir())
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "trust" || e.Name() == "ended" { // what the user trusts stays, and that boxes were
			continue
		}
		inside, err := os.ReadDir(filepath.Join(w.StateDir(), e.Name()))
		if err != nil {
			left = append(left, e.Name()+": "+err.Error())
		}
		for _, in := range inside {
			left = append(left, e.Name()+"/"+in.Name())
		}
	}
	return left
}

// Age makes what lies in the state directory's sub-directories look an hour
// old: hutch leaves alone what may only just have been made.
func (w *World) Age() {
	w.T.Helper()
	then := time.Now().Add(-time.Hour)
	found, _ := filepath.Glob(filepath.Join(w.StateDir(), "*", "*"))
	for _, path := range found {
		if err := os.Chtimes(path, then, then); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Result is what came of one run of hutch.
type Result struct {
	Args     []string
	Stdout   string
	Stderr   string
	Code     int // 128+n when a signal ended hutch itself
	Duration time.Duration
}

func (r Result) String() string {
	clip := func(s string) string {
		if len(s) > 4000 {
			return s[:4000] + "…"
		}
		return s
	}
	return fmt.Sprintf("hutch %q: exit %d after %v\nstdout: %s\nstderr: %s", r.Args, r.Code, r.Duration.Round(time.Millisecond), clip(r.Stdout), clip(r.Stderr))
}

// HardLimit bounds every run: a hutch that hangs fails its test.
const HardLimit = 3 * time.Minute

// Options change how hutch is run; the zero value is the usual way.
type Options struct {
	Dir    string   // "" is the workspace
	Stdin  *os.File // nil is /dev/null
	Stdout *os.File // nil is collected in the result
	Env    []string // appended after the world's own
}

// Environ is the environment of a run: nothing is inherited but PATH.
func (w *World) Environ(extra ...string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.Home, "XDG_STATE_HOME=" + w.State,
		"TMPDIR=" + w.Tmp, "LANG=C.UTF-8", "USER=tester", "TERM=dumb",
	}
	return append(append(env, w.Env...), extra...)
}

// Run runs hutch in the workspace.
func (w *World) Run(args ...string) Result {
	w.T.Helper()
	return w.RunWith(Options{}, args...)
}

// RunWith runs hutch with options.
func (w *World) RunWith(o Options, args ...string) Result {
	w.T.Helper()
	return w.Start(o, args...).Wait()
}

// Running is a hutch that was started and not yet waited for.
type Running struct {
	w              *World
	cmd            *exec.Cmd
	args           []string
	stdout, stderr buffer
	cancel         context.CancelFunc
	ctx            context.Context
	start          time.Time
	expected       func()
	ended          chan struct{} // closed when hutch has been waited for
	err            error         // of that wait
}

// buffer is a bytes.Buffer that may be read while it fills.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Start starts hutch; Wait must follow.
func (w *World) Start(o Options, args ...string) *Running {
	w.T.Helper()
	r := &Running{w: w, args: args}
	r.ctx, r.cancel = context.WithTimeout(context.Background(), HardLimit)
	r.cmd = exec.CommandContext(r.ctx, Hutch(w.T), args...)
	r.cmd.Dir, r.cmd.Env = w.Dir, w.Environ(o.Env...)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: w.Credential}
	if o.Dir != "" {
		r.cmd.Dir = o.Dir
	}
	if o.Stdin != nil {
		r.cmd.Stdin = o.Stdin
	}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if o.Stdout != nil {
		r.cmd.Stdout = o.Stdout
	}
	// If hutch has ended and its output is still held open, something of the
	// box outlived it.
	r.cmd.WaitDelay = 5 * time.Second
	r.start = time.Now()
	if err := r.cmd.Start(); err != nil {
		w.T.Fatalf("starting hutch: %v", err)
	}
	r.expected = Expect(r.cmd.Process.Pid)
	r.ended = make(chan struct{})
	go func() {
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	return r
}

// Pid is hutch's own pid.
func (r *Running) Pid() int { return r.cmd.Process.Pid }

// Stdout is what hutch has written so far.
func (r *Running) Stdout() string { return r.stdout.String() }

// Signal sends hutch a signal.
func (r *Running) Signal(s syscall.Signal) { r.cmd.Process.Signal(s) }

// WaitFor waits until the output of the box holds text.
func (r *Running) WaitFor(text string) {
	r.w.T.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(r.stdout.String(), text) {
		select {
		case <-time.After(5 * time.Millisecond):
			continue
		case <-r.ended:
			if strings.Contains(r.stdout.String(), text) {
				return
			}
		case <-deadline:
			r.Signal(syscall.SIGKILL)
		}
		r.w.T.Fatalf("the box never said %q\n%v", text, r.Wait())
	}
}

// Done returns when hutch has ended; Wait must still follow.
func (r *Running) Done() { <-r.ended }

// Wait waits for hutch to end.
func (r *Running) Wait() Result {
	r.w.T.Helper()
	<-r.ended
	hung := r.ctx.Err() != nil
	r.cancel()
	r.expected()
	res := Result{Args: r.args, Stdout: r.stdout.String(), Stderr: r.stderr.String(), Code: r.cmd.ProcessState.ExitCode(), Duration: time.Since(r.start)}
	if ws := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		res.Code = 128 + int(ws.Signal())
	}
	if hung {
		r.w.T.Fatalf("hutch was still running after %v\n%v", HardLimit, res)
	}
	if errors.Is(r.err, exec.ErrWaitDelay) {
		r.w.T.Errorf("hutch ended, but its output was still held open\n%v", res)
	}
	return res
}

// Box runs `hutch run` with the world's strategy and the given arguments.
func (w *World) Box(args ...string) Result {
	w.T.Helper()
	return w.Run(w.boxArgs(args)...)
}

func (w *World) boxArgs(args []string) []string {
	out := []string{"run"}
	if w.Strategy.Name != "" {
		out = append(out, "--strategy", w.Strategy.Name)
	}
	return append(out, args...)
}

// JSON runs `hutch run --json` with the world's strategy and returns the
// outcome. It fails the test unless the exit code and exit_code agree.
func (w *World) JSON(args ...string) (Outcome, Result) {
	w.T.Helper()
	return w.JSONWith(Options{}, args...)
}

// JSONWith is JSON with options.
func (w *World) JSONWith(o Options, args ...string) (Outcome, Result) {
	w.T.Helper()
	r := w.RunWith(o, w.boxArgs(append([]string{"--json"}, args...))...)
	out := ParseOutcome(w.T, r)
	if out.ExitCode != r.Code {
		w.T.Errorf("exit_code %d, but hutch exited %d\n%v", out.ExitCode, r.Code, r)
	}
	if w.Strategy.Name != "" && out.Strategy != w.Strategy.Name {
		w.T.Errorf("strategy %q ran, asked for %q", out.Strategy, w.Strategy.Name)
	}
	return out, r
}

// Finding is what the handoff guard says of a path.
type Finding struct{ Path, Tier, Rule, Who, When, Why string }

// Denial is what the policy refused before the start.
type Denial struct{ What, Why, Do string }

// Violation is what the kernel refused while the command ran.
type Violation struct {
	Kind, What, Errno, Process string
	Count                      int64
}

// Outcome is the JSON of a run, written down from the specification and not
// taken from the product.
type Outcome struct {
	Schema              string   `json:"schema"`
	ID                  string   `json:"id"`
	Status              string   `json:"status"`
	ExitCode            int      `json:"exit_code"`
	CommandExitCode     *int     `json:"command_exit_code"`
	Signal              any      `json:"signal"`
	TimedOut            bool     `json:"timed_out"`
	DurationMS          float64  `json:"duration_ms"`
	CloneDurationMicros int64    `json:"clone_duration_micros"`
	Strategy            string   `json:"strategy"`
	Layer               string   `json:"layer"`
	Rung                string   `json:"rung"`
	Missing             []string `json:"missing"`
	Committed           bool     `json:"committed"`
	RollbackPerformed   bool     `json:"rollback_performed"`
	FilesystemModified  bool     `json:"filesystem_modified"`
	FilesCloned         *int64   `json:"files_cloned"`
	PeakMemoryMB        *float64 `json:"peak_memory_mb"`
	PeakMemorySource    string   `json:"peak_memory_source"`
	CPUMS               float64  `json:"cpu_ms"`
	CPUSource           string   `json:"cpu_source"`
	Stdout              string   `json:"stdout"`
	Stderr              string   `json:"stderr"`
	StdoutBase64        string   `json:"stdout_base64"`
	StderrBase64        string   `json:"stderr_base64"`
	StdoutTruncated     bool     `json:"stdout_truncated"`
	StdoutBytes         int64    `json:"stdout_bytes"`
	StdoutPath          string   `json:"stdout_path"`
	Diff                struct {
		FilesCreated  []string `json:"files_created"`
		FilesModified []string `json:"files_modified"`
		FilesDeleted  []string `json:"files_deleted"`
		ElapsedMicros int64    `json:"elapsed_micros"`
		Digest        string   `json:"digest"`
	} `json:"diff"`
	Patch   string `json:"patch"`
	Skipped []struct {
		Path   string `json:"path"`
		Reason string `json:"reason"`
	} `json:"skipped"`
	GitChanged bool      `json:"git_changed"`
	Held       []Finding `json:"held"`
	Flagged    []Finding `json:"flagged"`
	Conflicts  []struct {
		Path string `json:"path"`
	} `json:"conflicts"`
	Kept       bool        `json:"kept"`
	Denied     []Denial    `json:"denied"`
	Violations []Violation `json:"violations"`
	Notes      []string    `json:"notes"`
	Error      string      `json:"error"`
	Receipt    string      `json:"receipt"`
}

// ParseOutcome reads the one JSON object that stdout must hold, and nothing
// else.
func ParseOutcome(t testing.TB, r Result) Outcome {
	t.Helper()
	var out Outcome
	dec := json.NewDecoder(strings.NewReader(r.Stdout))
	if err := dec.Decode(&out); err != nil {
		t.Fatalf("stdout is not an outcome: %v\n%v", err, r)
	}
	if rest := strings.TrimSpace(r.Stdout[dec.InputOffset():]); rest != "" {
		t.Errorf("stdout holds more than the outcome: %q", rest)
	}
	return out
}

// Host runs a command on the host, in the workspace with the world's
// environment, and fails the test when it fails.
func (w *World) Host(argv ...string) string {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), HardLimit)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = w.Dir, w.Environ()
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		w.T.Fatal(err)
	}
	defer Expect(cmd.Process.Pid)()
	if err := cmd.Wait(); err != nil {
		w.T.Fatalf("%q: %v\n%s", argv, err, out.String())
	}
	return out.String()
}

// Write writes a file below the workspace, with its directories.
func (w *World) Write(rel, content string) {
	w.T.Helper()
	path := filepath.Join(w.Dir, rel)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		w.T.Fatal(err)
	}
}

// Read returns a file of the workspace.
func (w *World) Read(rel string) string {
	w.T.Helper()
	b, err := os.ReadFile(filepath.Join(w.Dir, rel))
	if err != nil {
		w.T.Fatal(err)
	}
	return string(b)
}

// Exists reports whether the workspace has a path.
func (w *World) Exists(rel string) bool {
	_, err := os.Lstat(filepath.Join(w.Dir, rel))
	return err == nil
}

// Snap takes a snapshot of the workspace.
func (w *World) Snap() Tree {
	w.T.Helper()
	return Snapshot(w.T, w.Dir)
}

// Untouched fails the test unless the workspace is byte for byte, mode for
// mode and time for time what it was.
func (w *World) Untouched(before Tree) {
	w.T.Helper()
	for _, d := range before.Diff(w.Snap()) {
		w.T.Errorf("the workspace changed: %s", d)
	}
}

// Want fails the test unless hutch exited with code.
func (w *World) Want(r Result, code int) {
	w.T.Helper()
	if r.Code != code {
		w.T.Fatalf("exit %d, want %d\n%v", r.Code, code, r)
	}
}

// Sample fills the workspace with a small tree of everyday things.
func (w *World) Sample() {
	w.T.Helper()
	w.Write("README.md", "# sample\n")
	w.Write("a.txt", "foo one\nfoo two\n")
	w.Write("module.py", "def add(a, b):\n    return a + b\n")
	w.Write("dir/deep/file.txt", "deep\n")
	w.Write("dir/other.txt", "other\n")
	w.Write("run.sh", "#!/bin/sh\necho run\n")
	if err := os.Chmod(filepath.Join(w.Dir, "run.sh"), 0o755); err != nil {
		w.T.Fatal(err)
	}
	if err := os.Symlink("a.txt", filepath.Join(w.Dir, "link")); err != nil {
		w.T.Fatal(err)
	}
}
