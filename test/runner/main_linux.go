package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hutch/test/lab"
)

// once lists packages that look at the source and not at the machine: who
// runs them makes no difference, so they run as the first identity only.
var once = []string{"hutch/test/house", "hutch/internal/jail/filter/gen"}

// faultFor is the package whose tests leave steps out of plans, and need a hutch
// that can.
const faultFor = "hutch/test/attack"

const (
	inner  = "HUTCH_RUNNER_INNER" // set in the process that has a mount namespace of its own
	userID = 1000                 // the ordinary user, when started by root
)

var (
	only    = flag.String("pkg", "", "run only packages whose path matches this regular `expression`")
	run     = flag.String("run", "", "run only tests that match this `expression` (go test -run)")
	as      = flag.String("as", "", "run only as `root` or only as `user`")
	timeout = flag.Duration("timeout", 15*time.Minute, "limit for the tests of one package")
	verbose = flag.Bool("v", false, "print the verdict on every test")
	keep    = flag.Bool("keep", false, "keep the directory of the run")
	jobs    = flag.Int("jobs", runtime.NumCPU(), "packages tested at the same time")
)

func main() {
	flag.Parse()
	syscall.Umask(0o022)
	if os.Geteuid() == 0 && os.Getenv(inner) == "" {
		os.Exit(lab.Again("runner", inner, 0))
	}
	ok, err := test()
	if err != nil {
		fmt.Fprintln(os.Stderr, "runner:", err)
		ok = false
	}
	if !ok {
		os.Exit(1)
	}
}

// identity is a user that runs the tests.
type identity struct {
	name string
	uid  int // -1 is whoever started the runner
	env  []string
	dir  string
}

// pkg is one package with tests.
type pkg struct{ path, rel, binary string }

func test() (ok bool, err error) {
	if err := lab.BecomeReaper(); err != nil {
		return false, err
	}
	base, err := os.MkdirTemp("", "hutch-test-")
	if err != nil {
		return false, err
	}
	if base, err = filepath.EvalSymlinks(base); err != nil {
		return false, err
	}
	before := lab.TakeCensus(base)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		interrupted.Store(true)
		endGroups()
	}()
	var mounts []string
	if !*keep {
		defer func() {
			for _, m := range mounts {
				if e := syscall.Unmount(m, 0); e != nil {
					ok, err = false, errors.Join(err, fmt.Errorf("unmount %s: %w", m, e))
				}
			}
			if e := removeAll(base); e != nil {
				ok, err = false, errors.Join(err, e)
			}
		}()
	}
	if err := os.Chmod(base, 0o755); err != nil {
		return false, err
	}

	packages, err := packages(base)
	if err != nil {
		return false, err
	}
	if len(packages) == 0 {
		return false, errors.New("no package with tests matches")
	}
	root := os.Geteuid() == 0
	if root {
		if mounts, err = lab.MakeReflink(base); err != nil {
			return false, fmt.Errorf("root can make reflink file systems, so their tests must run: %w", err)
		}
	}
	identities, err := identities(base, mounts)
	if err != nil {
		return false, err
	}

	var total counts
	for i, id := range identities {
		start := time.Now()
		sum := runAll(id, packages, i > 0)
		fmt.Printf("as %-5s %v in %v\n", id.name+":", sum, time.Since(start).Round(time.Second))
		total.add(sum)
	}

	// The file systems of the runner itself are no leftovers.
	for what := range lab.TakeCensus(mounts...) {
		if slices.ContainsFunc(mounts, func(m string) bool { return strings.HasSuffix(what, " at "+m) }) || strings.Contains(what, base+"/btrfs.img") || strings.Contains(what, base+"/xfs.img") {
			before[what] = true
		}
	}
	left := lab.Leftovers(before, 20*time.Second, base)
	for _, id := range identities {
		for _, dir := range append([]string{filepath.Join(id.dir, "tmp")}, reflink(mounts, id)...) {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				left = append(left, "file "+filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, l := range left {
		fmt.Println("left behind:", l)
	}
	if !root {
		fmt.Println("not run: the half of the tests that needs root (run make test as root for both)")
	}
	elsewhere := total.settle()
	for _, name := range elsewhere {
		if *verbose {
			fmt.Println("ran as only one of the users:", name)
		}
	}
	fmt.Println(len(elsewhere), "tests ran as only one of the users, for they need that one")
	for _, name := range total.skipped {
		fmt.Println("skipped:", name)
	}
	// Last, where a log that is cut to its end still shows it.
	for _, f := range total.failures {
		fmt.Print(f)
	}
	fmt.Println(total)
	switch {
	case len(left) > 0:
		return false, fmt.Errorf("%d things were left behind", len(left))
	case total.failed > 0:
		return false, nil
	case total.passed == 0:
		return false, errors.New("no test ran")
	case root && len(total.skipped) > 0:
		return false, fmt.Errorf("%d tests ran as no user; as root nothing may be skipped", len(total.skipped))
	}
	return true, nil
}

// packages stages the source where every user can read it, builds the test
// binaries beside it, and returns them.
func packages(base string) ([]pkg, error) {
	if err := stage(filepath.Join(base, "src")); err != nil {
		return nil, err
	}
	for _, name := range []string{"hutch", "hutchd"} {
		if err := copyFile("bin/"+name, filepath.Join(base, "bin", name), 0o755); err != nil {
			return nil, fmt.Errorf("%w (run make build first)", err)
		}
	}
	if match, err := regexp.MatchString(*only, faultFor); err != nil || match {
		if err != nil {
			return nil, err
		}
		// Built here: an ordinary user may not be able to reach the modules.
		if _, err := output("go", "build", "-tags", "hutchfault", "-o", filepath.Join(base, "bin", "hutch-fault"), "hutch/cmd/hutch"); err != nil {
			return nil, err
		}
	}
	out, err := output("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}", "./...")
	if err != nil {
		return nil, err
	}
	top, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return nil, err
	}
	var list []pkg
	for line := range strings.Lines(out) {
		path, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || !match.MatchString(path) {
			continue
		}
		rel, err := filepath.Rel(top, dir)
		if err != nil {
			return nil, err
		}
		p := pkg{path: path, rel: rel, binary: filepath.Join(base, "bin", strings.ReplaceAll(rel, "/", "-")+".test")}
		if _, err := output("go", "test", "-c", "-o", p.binary, path); err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func output(argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(argv, " "), err, out, stderr.String())
	}
	return string(out), nil
}

// stage copies the source, less what git ignores: an ordinary user may not be
// able to reach the checkout, and tests read their own package's files.
func stage(dst string) error {
	files, err := output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	list := strings.Split(strings.TrimRight(files, "\x00"), "\x00")
	list = append(list, "internal/jail/boxinit/boxinit")
	for _, f := range list {
		st, err := os.Lstat(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted but not yet committed
		}
		if err != nil {
			return err
		}
		to := filepath.Join(dst, f)
		if st.Mode()&os.ModeSymlink != 0 {
			target, err := os.Readlink(f)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.Symlink(target, to); err != nil {
				return err
			}
			continue
		}
		if err := copyFile(f, to, 0o644|st.Mode().Perm()&0o111); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// identities prepares who runs the tests: for each a home, state, temporary
// and reflink directories of its own.
func identities(base string, mounts []string) ([]identity, error) {
	list := []identity{{name: "user", uid: -1}}
	if os.Geteuid() == 0 {
		list = []identity{{name: "root", uid: -1}, {name: "user", uid: userID}}
	}
	if *as != "" {
		list = slices.DeleteFunc(list, func(id identity) bool { return id.name != *as })
		if len(list) == 0 {
			return nil, fmt.Errorf("cannot run as %q here", *as)
		}
	}
	for i := range list {
		id := &list[i]
		id.dir = filepath.Join(base, id.name)
		dirs := append([]string{id.dir}, reflink(mounts, *id)...)
		for _, d := range []string{"home", "state", "cache", "config", "data", "run", "tmp"} {
			dirs = append(dirs, filepath.Join(id.dir, d))
		}
		for _, d := range dirs {
			if err := os.Mkdir(d, 0o755); err != nil {
				return nil, err
			}
			if id.uid >= 0 {
				if err := os.Chown(d, id.uid, id.uid); err != nil {
					return nil, err
				}
			}
		}
		if err := os.Chmod(filepath.Join(id.dir, "run"), 0o700); err != nil {
			return nil, err
		}
		id.env = append(id.env,
			"HOME="+filepath.Join(id.dir, "home"),
			"XDG_STATE_HOME="+filepath.Join(id.dir, "state"),
			"XDG_CACHE_HOME="+filepath.Join(id.dir, "cache"),
			"XDG_CONFIG_HOME="+filepath.Join(id.dir, "config"),
			"XDG_DATA_HOME="+filepath.Join(id.dir, "data"),
			"XDG_RUNTIME_DIR="+filepath.Join(id.dir, "run"),
			"TMPDIR="+filepath.Join(id.dir, "tmp"),
			"GOFLAGS=-buildvcs=false", "GOPROXY=off", "GOTOOLCHAIN=local", "LANG=C.UTF-8",
			lab.BinEnv+"="+filepath.Join(base, "bin", "hutch"),
			"HUTCH_FAULT_BIN="+filepath.Join(base, "bin", "hutch-fault"),
			lab.ReflinkEnv+"="+strings.Join(reflink(mounts, *id), ":"),
			"PATH="+pathFor(id.uid),
		)
		for _, name := range []string{"HUTCH_PROOF", "HUTCH_TEST_KEEP", "HUTCH_ATTACK_TABLE", "HUTCH_ATTACK_SEED"} {
			if v := os.Getenv(name); v != "" {
				id.env = append(id.env, name+"="+v)
			}
		}
		if id.uid < 0 {
			// The checks of the source list packages: let them find
			// the modules although HOME is another.
			for _, name := range []string{"GOMODCACHE", "GOCACHE"} {
				v, err := output("go", "env", name)
				if err != nil {
					return nil, err
				}
				id.env = append(id.env, name+"="+strings.TrimSpace(v))
			}
		}
	}
	return list, nil
}

func reflink(mounts []string, id identity) []string {
	var dirs []string
	for _, m := range mounts {
		dirs = append(dirs, filepath.Join(m, id.name))
	}
	return dirs
}

// pathFor is PATH less the directories that the user cannot search: root's
// own toolchains, for one.
func pathFor(uid int) string {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	if uid >= 0 {
		dirs = slices.DeleteFunc(dirs, func(d string) bool {
			for ; d != "/" && d != "."; d = filepath.Dir(d) {
				st, err := os.Stat(d)
				if err != nil || st.Mode().Perm()&0o001 == 0 {
					return true
				}
			}
			return false
		})
	}
	return strings.Join(dirs, ":")
}

// counts tells how top-level tests ended. Of subtests only skips count, so
// that none can hide.
type counts struct {
	passed, failed int
	skipped        []string // package and test
	ran            []string // the same, of what passed or failed, subtests too
	failures       []string // who, package, test and the end of what it said
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, len(c.skipped))
}

func (c *counts) add(o counts) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped = append(c.skipped, o.skipped...)
	c.ran = append(c.ran, o.ran...)
	c.failures = append(c.failures, o.failures...)
}

// count takes a verdict in.
func (c *counts) count(pkg, verdict, test string) {
	name := pkg + "." + test
	if verdict == "SKIP" {
		c.skipped = append(c.skipped, name)
		return
	}
	c.ran = append(c.ran, name)
	switch {
	case strings.Contains(test, "/"):
	case verdict == "PASS":
		c.passed++
	case verdict == "FAIL":
		c.failed++
	}
}

// settle drops from the skipped tests those that ran as the other user: what
// needs root cannot run as anyone else, and the reverse. It returns them.
func (c *counts) settle() []string {
	var elsewhere, nowhere []string
	for _, name := range c.skipped {
		if slices.Contains(c.ran, name) {
			elsewhere = append(elsewhere, name)
		} else if !slices.Contains(nowhere, name) {
			nowhere = append(nowhere, name)
		}
	}
	c.skipped = nowhere
	return elsewhere
}

// runAll runs the packages as one identity; again leaves out those that need
// run but once.
func runAll(id identity, list []pkg, again bool) counts {
	var sum counts
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(*jobs, 1))
	for _, p := range list {
		if again && slices.Contains(once, p.path) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			c := runOne(id, p, &mu)
			mu.Lock()
			sum.add(c)
			mu.Unlock()
		})
	}
	wg.Wait()
	return sum
}

// interrupted is set when the runner was told to stop: what has not started
// then fails at once, and the clean-up still happens.
var interrupted atomic.Bool

var groups sync.Map // pids of running test binaries, each the leader of a process group

func endGroups() {
	groups.Range(func(pid, _ any) bool {
		syscall.Kill(-pid.(int), syscall.SIGKILL)
		return true
	})
}

// A line that begins with the byte 0x16 is the testing package's own
// (-test.v=test2json): a verdict, of a subtest where the name holds a slash,
// or word of what runs.
var (
	result   = regexp.MustCompile(`^\x16--- (PASS|FAIL|SKIP): (\S+)`)
	progress = regexp.MustCompile(`^\x16=== `)
)

// runOne runs one test binary from the directory of its package, prints the
// output of what fails as it fails, and counts top-level tests.
func runOne(id identity, p pkg, mu *sync.Mutex) counts {
	if interrupted.Load() {
		return counts{failed: 1}
	}
	src := filepath.Join(filepath.Dir(filepath.Dir(p.binary)), "src", p.rel)
	args := []string{"-test.v=test2json", "-test.timeout=" + timeout.String()}
	if *run != "" {
		args = append(args, "-test.run="+*run)
	}
	cmd := exec.Command(p.binary, args...)
	cmd.Dir, cmd.Env = src, id.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if id.uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(id.uid), Gid: uint32(id.uid)}
	}
	pipe, write, err := os.Pipe()
	if err != nil {
		return broken(id, p, err.Error(), nil)
	}
	cmd.Stdout, cmd.Stderr = write, write
	start := time.Now()
	if err := cmd.Start(); err != nil {
		write.Close()
		pipe.Close()
		return broken(id, p, err.Error(), nil)
	}
	write.Close()
	groups.Store(cmd.Process.Pid, true)
	defer groups.Delete(cmd.Process.Pid)
	limit := time.AfterFunc(*timeout+30*time.Second, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer limit.Stop()

	var c counts
	var pending []string // output since the last verdict
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		in := bufio.NewReader(pipe)
		for {
			line, err := in.ReadString('\n')
			if err != nil && line == "" {
				return
			}
			m := result.FindStringSubmatch(line)
			if m == nil {
				if len(pending) > 2000 {
					pending = pending[1000:]
				}
				if !progress.MatchString(line) {
					pending = append(pending, line)
				}
				continue
			}
			if m[1] == "FAIL" {
				c.failures = append(c.failures, failure(id, p, m[2], pending))
			}
			if m[1] == "FAIL" || m[1] == "SKIP" && *verbose {
				mu.Lock()
				fmt.Printf("as %s: %s: %s%s", id.name, p.path, line[1:], strings.Join(pending, ""))
				mu.Unlock()
			} else if *verbose && !strings.Contains(m[2], "/") {
				fmt.Printf("as %s: %s: %s", id.name, p.path, line[1:])
			}
			pending = nil
			c.count(p.path, m[1], m[2])
		}
	}()
	err = cmd.Wait()
	select {
	case <-lines:
	case <-time.After(10 * time.Second):
		// Something that outlived the tests holds the pipe; the check
		// of leftovers will name it.
		pipe.Close()
		<-lines
	}
	pipe.Close()
	var exit *exec.ExitError
	if err != nil && (c.failed == 0 || !errors.As(err, &exit) || exit.ExitCode() != 1) {
		// 1 is a test that failed; anything else is not a verdict.
		mu.Lock()
		defer mu.Unlock()
		b := broken(id, p, err.Error(), pending)
		b.add(c)
		return b
	}
	mu.Lock()
	fmt.Printf("as %-5s %-32s %v  %v\n", id.name+":", p.path, c, time.Since(start).Round(100*time.Millisecond))
	mu.Unlock()
	return c
}

// broken reports a test binary that ended without a verdict: a panic, a time
// limit, a start that failed.
func broken(id identity, p pkg, why string, tail []string) counts {
	fmt.Printf("as %s: %s did not finish: %s\n%s", id.name, p.path, why, strings.Join(tail, ""))
	return counts{failed: 1, failures: []string{failure(id, p, why, tail)}}
}

// failure is a few lines about a test that failed.
func failure(id identity, p pkg, what string, said []string) string {
	const most = 600 // bytes
	text := strings.Join(said, "")
	if len(text) > most {
		text = "…" + text[len(text)-most:]
	}
	return fmt.Sprintf("failed as %s: %s: %s\n%s", id.name, p.path, what, text)
}

// removeAll removes a tree in which tests may have left any mode.
func removeAll(base string) error {
	filepath.WalkDir(base, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(base); err != nil {
		return os.RemoveAll(base)
	}
	return nil
}
