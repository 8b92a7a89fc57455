package model

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// scriptArg makes the test binary the program that carries out scripts.
const scriptArg = "model-script"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == scriptArg {
		os.Exit(execute())
	}
	lab.Main(m)
}

// owners are whose workspaces whoever runs the tests can have.
func owners() []int {
	if root() {
		return []int{0, 1000}
	}
	return []int{os.Geteuid()}
}

func root() bool { return os.Geteuid() == 0 }

// stage is a world with the script's program in it, at a place that a box sees.
type stage struct {
	*lab.World
	program string
	cases   int
}

func newStage(t *testing.T, s lab.Strategy) *stage {
	t.Helper()
	w := lab.NewWith(t, s)
	bin := filepath.Join(w.Home, "go", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	w.Env = append(w.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	st := &stage{World: w, program: filepath.Join(bin, "model")}
	if err := copyProgram(st.program); err != nil {
		t.Fatal(err)
	}
	return st
}

func copyProgram(to string) error {
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// place is where one case is played: a workspace and its control.
type place struct {
	*stage
	ws, control string
	owner       int
}

func (s *stage) place(owner int) *place {
	s.T.Helper()
	s.cases++
	dir := filepath.Join(s.Base, fmt.Sprintf("case%d", s.cases))
	p := &place{stage: s, ws: filepath.Join(dir, "ws"), control: filepath.Join(dir, "control"), owner: owner}
	for _, d := range []string{dir, p.ws, p.control} {
		if err := os.Mkdir(d, 0o755); err != nil {
			s.T.Fatal(err)
		}
		if root() {
			if err := os.Chown(d, owner, owner); err != nil {
				s.T.Fatal(err)
			}
		}
	}
	return p
}

func (p *place) remove() {
	// A case that failed may leave its box.
	left, _ := filepath.Glob(filepath.Join(p.StateDir(), "boxes", "*", "box.json"))
	for _, record := range left {
		p.RunWith(lab.Options{Dir: p.Base}, "discard", filepath.Base(filepath.Dir(record)))
	}
	dir := filepath.Dir(p.ws)
	if err := removeForced(unix.AT_FDCWD, dir); err != nil {
		p.T.Errorf("removing %s: %v", dir, err)
	}
}

// removeForced is removeTree for modes that forbid it.
func removeForced(dir int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlinkat(dir, name, 0)
	}
	unix.Fchmodat(dir, name, 0o700, 0)
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	names, err := readNames(fd)
	for _, n := range names {
		if e := removeForced(fd, n); err == nil {
			err = e
		}
	}
	unix.Close(fd)
	if err != nil {
		return err
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

func encode(s Script) []byte {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(s); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// plain carries out a script on a plain directory, with the rights that the
// box's command has.
func (p *place) plain(dir string, s Script) (*Report, error) {
	s.Unpriv = true
	cmd := exec.Command(p.program, scriptArg)
	cmd.Dir, cmd.Env = dir, []string{"HOME=/", "PATH=/usr/bin:/bin"}
	cmd.Stdin = bytes.NewReader(encode(s))
	if root() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(p.owner), Gid: uint32(p.owner)}}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("plain script: %w: %s", err, stderr.String())
	}
	return parseReport(string(out))
}

// stdin puts a script where hutch can read it.
func (p *place) stdin(s Script) *os.File {
	p.T.Helper()
	f, err := os.CreateTemp(filepath.Dir(p.ws), "script")
	if err != nil {
		p.T.Fatal(err)
	}
	os.Remove(f.Name())
	if _, err := f.Write(encode(s)); err != nil {
		p.T.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		p.T.Fatal(err)
	}
	return f
}

func (p *place) args(mode Mode) []string {
	// What the guard would hold is for its own tests.
	args := []string{"run", "--strategy", p.Strategy.Name, "--json", "--allow-path", "**"}
	switch mode {
	case Commit, Undone, Fail, Memory, Timeout, TooDeep:
		args = append(args, "--commit")
	case KeepTimes:
		args = append(args, "--commit", "--mtime=keep")
	case Kept:
		args = append(args, "--preserve")
	}
	switch mode {
	case Timeout:
		args = append(args, "--timeout", "700ms")
	case Memory:
		args = append(args, "--memory", "96M")
	}
	return append(args, "--", "model", scriptArg)
}

// play plays a case and returns what went otherwise than it should.
func (p *place) play(c Case) []string {
	p.T.Helper()
	w := *p.World
	w.Dir = p.ws
	first := append(slices.Clone(c.First), Op{Kind: "age", A: ".", N: longAgo})
	for _, dir := range []string{p.ws, p.control} {
		r, err := p.plain(dir, Script{Ops: first})
		if err != nil {
			return []string{err.Error()}
		}
		if last := r.Replies[len(first)-1]; last.Errno != 0 {
			return []string{fmt.Sprintf("first tree: %v came to %v", first[len(first)-1], last)}
		}
	}
	soft := snapshot(p.ws, true)
	if diff := compare("first tree", soft, snapshot(p.control, true)); diff != nil {
		return diff
	}
	for i, b := range c.Boxes {
		problems, goOn := p.box(&w, b)
		for k := range problems {
			problems[k] = fmt.Sprintf("box %d (%s): %s", i+1, b.Mode, problems[k])
		}
		if problems != nil {
			return problems
		}
		if !goOn {
			break
		}
	}
	return nil
}

// box plays one box. It says whether the control is still like the workspace.
func (p *place) box(w *lab.World, b Box) (problems []string, goOn bool) {
	fail := func(format string, args ...any) ([]string, bool) {
		return []string{fmt.Sprintf(format, args...)}, false
	}
	before, closed := snapshot(p.ws, true), snapshot(p.ws, false)
	script := Script{Ops: b.Ops, View: true, Hang: b.Mode == Timeout || b.Mode == Memory}
	if b.Mode == Fail {
		script.Exit = 3
	}
	if b.Mode == Memory {
		script.Eat = 400 << 20
	}
	in := p.stdin(script)
	defer in.Close()
	start := time.Now().Add(-20 * time.Millisecond).UnixNano()
	r := w.RunWith(lab.Options{Stdin: in}, p.args(b.Mode)...)
	out := lab.ParseOutcome(w.T, r)
	if want := map[Mode]int{Fail: 3, Timeout: 124, Memory: 137, TooDeep: 125}[b.Mode]; r.Code != want {
		return fail("exit %d, want %d, held %v: %v", r.Code, want, out.Held, r)
	}
	report, err := parseReport(out.Stdout)
	if err != nil {
		return fail("%v\n%v", err, r)
	}
	if b.Mode == TooDeep {
		// Not a file of the change may get lost in silence.
		if !out.Kept || !strings.Contains(out.Error, "8 KiB") {
			return fail("%v", r)
		}
		now := snapshot(p.ws, false)
		problems := untouched(closed.without(".hutch"), now.without(".hutch"))
		if d := w.RunWith(lab.Options{}, "discard", out.ID); d.Code != 0 {
			return fail("%v", d)
		}
		return problems, true
	}
	if out.Error != "" || len(out.Conflicts) > 0 {
		return fail("%v", r)
	}
	if b.Mode == Kept && out.Kept {
		// Not to be opened up now: the promotion would see that.
		problems = append(problems, untouched(closed, snapshot(p.ws, false))...)
		if c := w.RunWith(lab.Options{}, "commit", "--allow-path", "**", out.ID); c.Code != 0 {
			return fail("%v", c)
		}
	}
	if b.Mode == Undone {
		u := w.RunWith(lab.Options{}, "undo")
		if strings.Contains(strings.Join(out.Notes, "\n"), "undo will not be possible") { // a sparse file is as large as it says
			if u.Code != 125 || !strings.Contains(u.Stderr, "cannot be undone") {
				return fail("%v", u)
			}
			return problems, true
		}
		if out.Committed && u.Code != 0 {
			return fail("%v", u)
		}
		now := snapshot(p.ws, true)
		if _, was := before[".hutch"]; !was { // it is made in the workspace
			b, n := before["."], now["."]
			b.Nlink, n.Nlink = 0, 0
			before["."], now["."] = b, n
		}
		return append(problems, untouched(before.without(".hutch"), now.without(".hutch"))...), true
	}
	if !b.Mode.promotes() {
		// What the box did is the same whatever becomes of it.
		return append(problems, untouched(before, snapshot(p.ws, true))...), true
	}

	plain, err := p.plain(p.control, script)
	if err != nil {
		return fail("%v", err)
	}
	for i, op := range b.Ops {
		if box, host := report.Replies[i], plain.Replies[i]; !op.alike(box, host) {
			return fail("operation %d, %v came to %v in the box, %v on a plain directory", i, op, box, host)
		}
	}
	if diff := compare("the box's view", report.View.without(".hutch"), plain.View); diff != nil {
		return diff, false
	}
	if p.Strategy.Name != "overlay" { // which shows other numbers of inodes
		all := func(string) bool { return true }
		if diff := compareLinks("the box's view", report.View.groups(all), plain.View.groups(all)); diff != nil {
			return diff, false
		}
	}
	control, after := snapshot(p.control, true), snapshot(p.ws, true)
	want, lossy := expected(before, control, out)
	problems = append(problems, compare("promoted", after.without(".hutch"), want)...)
	problems = append(problems, compareGroups(before, control, after, want)...)
	everything := func(path string) bool { return !strings.HasPrefix(path, ".hutch") }
	lossy = lossy || len(compareLinks("", after.groups(everything), control.groups(everything))) > 0
	problems = append(problems, compareLists(out, before.without(".hutch"), want)...)
	problems = append(problems, compareTimes(b.Mode, before, control, after, want, start)...)
	if problems != nil || lossy {
		return problems, false
	}
	if err := adoptTimes(p.control, after); err != nil {
		return fail("%v", err)
	}
	return nil, true
}

// alike reports whether two replies are as equal as README.md promises.
func (op Op) alike(box, host Reply) bool {
	if box == host {
		return true
	}
	// An id that the box's user namespace has no number for is refused by the
	// filter, which does not look for the path.
	return op.Kind == "chown" && box.Errno == unix.EPERM && host.Errno != 0
}

// expected is what a promotion must make of the workspace: the control, less
// what is never promoted and must be in the outcome's list. It says whether
// the control differs from it.
func expected(before, control Tree, out lab.Outcome) (want Tree, lossy bool) {
	listed := map[string]bool{}
	for _, s := range out.Skipped {
		listed[s.Path] = true
	}
	skipped := map[string]bool{}
	for path, n := range control {
		// Those that were there already stay as they are.
		b := before[path]
		if n.special() && (b.kind() != n.kind() || b.differs(n) != "") && listed[asJSON(path)] {
			skipped[path] = true
		}
	}
	want = Tree{}
	for path, n := range control {
		if !beneath(path, skipped) {
			want[path] = n
		}
	}
	for path, n := range before.without(".hutch") {
		if beneath(path, skipped) {
			want[path] = n
		}
	}
	top, was := want["."], before["."]
	lossy = len(skipped) > 0 || top.Mode != was.Mode || top.Xattrs != was.Xattrs
	top.Mode, top.Xattrs = was.Mode, was.Xattrs
	want["."] = top
	return want, lossy
}

// compareGroups checks hard links after a promotion: paths whose content was
// promoted are one file if they are in the box, and what kept its content is
// one file with what it was before.
func compareGroups(before, control, after, want Tree) []string {
	promoted := func(path string) bool {
		b, had := before[path]
		w, has := want[path]
		return has && !w.special() && (!had || b.kind() != w.kind() || b.Content != w.Content || b.Target != w.Target)
	}
	kept := func(path string) bool {
		b, had := before[path]
		w, has := want[path]
		return had && has && b.differs(w) == "" && !strings.HasPrefix(path, ".hutch")
	}
	return append(
		compareLinks("promoted", after.groups(promoted), control.groups(promoted)),
		compareLinks("kept", after.groups(kept), before.groups(kept))...)
}

// asJSON is a path as JSON shows it: each byte that is not UTF-8 is replaced.
func asJSON(path string) string { return string([]rune(path)) }

// compareLists holds the outcome's lists against what a look at both trees
// finds.
func compareLists(out lab.Outcome, before, after Tree) []string {
	var created, modified, deleted []string
	display := func(path string, n Node) string {
		path = asJSON(path)
		if n.isDir() {
			path += "/"
		}
		return path
	}
	for path, a := range after {
		b, ok := before[path]
		switch {
		case path == ".":
		case !ok:
			created = append(created, display(path, a))
		case a.differs(b) != "":
			modified = append(modified, display(path, a))
		}
	}
	for path, b := range before {
		if _, ok := after[path]; !ok {
			deleted = append(deleted, display(path, b))
		}
	}
	var problems []string
	for _, l := range []struct {
		name      string
		got, want []string
	}{{"created", out.Diff.FilesCreated, created}, {"modified", out.Diff.FilesModified, modified}, {"deleted", out.Diff.FilesDeleted, deleted}} {
		got := slices.Clone(l.got)
		slices.Sort(got)
		slices.Sort(l.want)
		for _, path := range got {
			if !slices.Contains(l.want, path) {
				problems = append(problems, fmt.Sprintf("listed as %s, but is not: %s", l.name, short(path)))
			}
		}
		for _, path := range l.want {
			if !slices.Contains(got, path) {
				problems = append(problems, fmt.Sprintf("not listed as %s: %s", l.name, short(path)))
			}
		}
	}
	return problems
}

// compareTimes checks the modification times after a promotion: what was not
// touched keeps its own; what was promoted has one of the commit, in the order
// of the box, or with --mtime=keep the box's own.
func compareTimes(mode Mode, before, control, after, want Tree, start int64) []string {
	var problems []string
	type promoted struct {
		path      string
		box, host int64
	}
	var order []promoted
	changedIn := map[string]bool{}
	for _, pair := range [2][2]Tree{{before, want}, {want, before}} {
		for path, x := range pair[0] {
			if y, ok := pair[1][path]; !ok || x.differs(y) != "" {
				changedIn[filepath.Dir(path)] = true
			}
		}
	}
	for path, w := range want {
		if path == "." { // .hutch was made in it
			continue
		}
		b, had := before[path]
		a := after[path]
		c := control[path]
		switch {
		case had && w.isDir() && b.isDir() && changedIn[path]:
			// Its entries were exchanged.
		case had && c.Mtime == b.Mtime && c.differs(b) == "":
			if a.Mtime != b.Mtime {
				problems = append(problems, fmt.Sprintf("%s was not touched, and its time went from %d to %d", short(path), b.Mtime, a.Mtime))
			}
		case had && (w.isDir() && b.isDir() || w.kind() == b.kind() && w.Content == b.Content && w.Target == b.Target):
			// Changed in place, or only its time was.
		case mode == KeepTimes && c.Mtime < start:
			if a.Mtime != c.Mtime {
				problems = append(problems, fmt.Sprintf("%s has time %d, the box gave it %d", short(path), a.Mtime, c.Mtime))
			}
		default:
			if a.Mtime < start {
				problems = append(problems, fmt.Sprintf("%s was promoted and has a time before the commit: %d", short(path), a.Mtime))
			}
			if !w.isDir() {
				order = append(order, promoted{path, c.Mtime, a.Mtime})
			}
		}
	}
	slices.SortFunc(order, func(x, y promoted) int { return int(min(max(x.box-y.box, -1), 1)) })
	for i := 1; i < len(order); i++ {
		x, y := order[i-1], order[i]
		if x.box < y.box && (x.host > y.host || x.host == y.host && x.box < start) {
			problems = append(problems, fmt.Sprintf("%s was older than %s and is not any more: %d and %d became %d and %d", short(x.path), short(y.path), x.box, y.box, x.host, y.host))
		}
	}
	return problems
}

// adoptTimes gives a tree the times of another.
func adoptTimes(dir string, like Tree) error {
	var walk func(fd int, path string) error
	walk = func(fd int, path string) error {
		names, err := readNames(fd)
		if err != nil {
			return err
		}
		for _, name := range names {
			child := strings.TrimPrefix(path+"/"+name, "./")
			var st unix.Stat_t
			if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				unix.Fchmodat(fd, name, st.Mode&0o7777|0o700, 0)
				sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				if err == nil {
					err = walk(sub, child)
					unix.Close(sub)
				}
				unix.Fchmodat(fd, name, st.Mode&0o7777, 0)
				if err != nil {
					return err
				}
			}
			ts := unix.NsecToTimespec(like[child].Mtime)
			if err := unix.UtimesNanoAt(fd, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fmt.Errorf("times of %q: %w", child, err)
			}
		}
		return nil
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return walk(fd, ".")
}

// shrink looks for a smaller case that still fails, as long as the time lasts.
func shrink(c Case, fails func(Case) bool, limit time.Duration) Case {
	end := time.Now().Add(limit)
	try := func(smaller Case) bool {
		if time.Now().After(end) || !fails(smaller) {
			return false
		}
		c = smaller
		return true
	}
	ops := func(get func(*Case) *[]Op) {
		for size := max(len(*get(&c))/2, 1); size >= 1; size /= 2 {
			for at := 0; at < len(*get(&c)); {
				smaller := c.clone()
				list := get(&smaller)
				*list = slices.Delete(*list, at, min(at+size, len(*list)))
				if !try(smaller) {
					at += size
				}
			}
		}
	}
	for before := -1; before != c.size() && time.Now().Before(end); {
		before = c.size()
		for i := 0; i < len(c.Boxes); {
			smaller := c.clone()
			smaller.Boxes = slices.Delete(smaller.Boxes, i, i+1)
			if !try(smaller) {
				i++
			}
		}
		for i := range c.Boxes {
			ops(func(c *Case) *[]Op { return &c.Boxes[i].Ops })
		}
		ops(func(c *Case) *[]Op { return &c.First })
	}
	return c
}

var detail = regexp.MustCompile(`box \d+ |operation \d+|"[^"]*"|\{[^}]*\}|[0-9]+`)

// kindOf tells apart what may have gone wrong: a case must not shrink to
// another fault.
func kindOf(problems []string) string { return detail.ReplaceAllString(problems[0], "") }

func (c Case) size() int {
	n := len(c.First)
	for _, b := range c.Boxes {
		n += 1 + len(b.Ops)
	}
	return n
}

func (c Case) clone() Case {
	c.First = slices.Clone(c.First)
	c.Boxes = slices.Clone(c.Boxes)
	for i := range c.Boxes {
		c.Boxes[i].Ops = slices.Clone(c.Boxes[i].Ops)
	}
	return c
}

// firstSeed is where the seeds begin; HUTCH_MODEL_SEED names another, which
// is then the only one.
func firstSeed(t *testing.T) (seed uint64, only bool) {
	t.Helper()
	if s := os.Getenv("HUTCH_MODEL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n, true
	}
	return 1, false
}

// duration is how long the cases of one strategy may take.
func duration() time.Duration {
	if lab.Proof() {
		return 5 * time.Minute
	}
	return 8 * time.Second
}

func TestPromotionIsThePlainTree(t *testing.T) {
	for _, strategy := range lab.Strategies(t) {
		t.Run(strategy.Test, func(t *testing.T) {
			s := newStage(t, strategy)
			gentle := strategy.Name != "overlay"
			seed, only := firstSeed(t)
			steps, boxes := 0, 0
			for end := time.Now().Add(duration()); time.Now().Before(end); seed++ {
				c := someCase(rand.New(rand.NewPCG(seed, 0)), owners(), gentle)
				if problems := s.try(c); problems != nil {
					kind := kindOf(problems)
					small := shrink(c, func(c Case) bool { p := s.try(c); return p != nil && kindOf(p) == kind }, time.Minute)
					t.Fatalf("seed %d: %s\nshrunk:\n%v%s", seed, strings.Join(problems, "\n"), small, strings.Join(s.try(small), "\n"))
				}
				steps += c.size()
				boxes += len(c.Boxes)
				if only {
					break
				}
			}
			t.Logf("%d operations in %d boxes", steps, boxes)
		})
	}
}

// try plays a case in a place of its own.
func (s *stage) try(c Case) []string {
	p := s.place(c.Owner)
	defer p.remove()
	return p.play(c)
}
