package main

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/guard"
)

func main() {
	n := flag.Int("n", 300, "commits of each repository")
	verbose := flag.Bool("v", false, "print every commit that is held, and why")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./bench/guard [-n 300] [-v] DIR   (DIR holds git clones)")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *n, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "bench/guard:", err)
		os.Exit(1)
	}
}

func run(dir string, n int, verbose bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	fmt.Println("| repository | commits | held | open | flagged | unflagged | rows that hold | median | worst |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	var sum tally
	for _, e := range entries {
		clone := filepath.Join(dir, e.Name())
		for _, inner := range []string{"repo", ".git"} {
			if _, err := os.Stat(filepath.Join(clone, inner, "HEAD")); err == nil {
				clone = filepath.Join(clone, inner)
			}
		}
		if _, err := os.Stat(filepath.Join(clone, "HEAD")); err != nil {
			continue
		}
		t, err := replay(clone, n, verbose)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name(), err)
		}
		t.print(e.Name())
		sum.add(t)
	}
	sum.print("all")
	return nil
}

// tally counts commits by the strictest tier of their findings.
type tally struct {
	commits, held, open, flagged int
	rows                         map[string]int // commits that a row holds
	times                        []time.Duration
}

func (t *tally) add(u tally) {
	t.commits += u.commits
	t.held += u.held
	t.open += u.open
	t.flagged += u.flagged
	t.times = append(t.times, u.times...)
	for row, n := range u.rows {
		if t.rows == nil {
			t.rows = map[string]int{}
		}
		t.rows[row] += n
	}
}

func (t *tally) print(name string) {
	if t.commits == 0 {
		return
	}
	names := slices.SortedFunc(maps.Keys(t.rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(t.rows[b], t.rows[a]), strings.Compare(a, b))
	})
	var rows []string
	for _, row := range names {
		rows = append(rows, fmt.Sprintf("%s %d", row, t.rows[row]))
	}
	part := func(n int) string { return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(t.commits)) }
	slices.Sort(t.times)
	fmt.Printf("| %s | %d | %s | %s | %s | %s | %s | %v | %v |\n", name, t.commits, part(t.held), part(t.open), part(t.flagged),
		part(t.commits-t.held-t.open-t.flagged), strings.Join(rows, ", "), t.times[len(t.times)/2].Round(time.Microsecond), t.times[len(t.times)-1].Round(time.Microsecond))
}

// clone is one repository being replayed.
type clone struct {
	gitDir, workspace, layer, index string
	blobs                           *blobs
	at                              string // the commit that the workspace holds
}

func replay(gitDir string, n int, verbose bool) (tally, error) {
	t := tally{rows: map[string]int{}}
	tmp, err := os.MkdirTemp("", "hutch-bench-guard-")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(tmp)
	if tmp, err = filepath.EvalSymlinks(tmp); err != nil {
		return t, err
	}
	c := &clone{gitDir: gitDir, workspace: tmp + "/workspace", layer: tmp + "/layer", index: tmp + "/index"}
	if err := os.Mkdir(c.workspace, 0o755); err != nil {
		return t, err
	}
	out, err := c.git("log", "--first-parent", "--format=%H %P", "-n", strconv.Itoa(n), "HEAD")
	if err != nil {
		return t, err
	}
	commits := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Reverse(commits)
	if c.blobs, err = openBlobs(gitDir); err != nil {
		return t, err
	}
	defer c.blobs.close()
	for _, line := range commits {
		ids := strings.Fields(line)
		if len(ids) < 2 {
			continue // the root: everything is new
		}
		findings, took, err := c.judge(ids[1], ids[0])
		if err != nil {
			return t, fmt.Errorf("commit %s: %w", ids[0], err)
		}
		t.commits++
		t.times = append(t.times, took)
		if len(findings) == 0 {
			continue
		}
		switch findings[0].Tier {
		case guard.Hold:
			t.held++
		case guard.Open:
			t.open++
		default:
			t.flagged++
		}
		rows := map[string]bool{}
		for _, f := range findings {
			if f.Tier == guard.Hold {
				rows[f.Rule] = true
				if verbose {
					fmt.Fprintf(os.Stderr, "%s %.10s %s: %s\n", gitDir, ids[0], f.Rule, f.Line())
				}
			}
		}
		for row := range rows {
			t.rows[row]++
		}
	}
	return t, nil
}

func (c *clone) git(args ...string) ([]byte, error) {
	cmd := exec.Command("git", append([]string{"--git-dir=" + c.gitDir, "--work-tree=" + c.workspace, "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+c.index, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	cmd.Dir = c.workspace
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w: %s", args[0], err, &stderr)
	}
	return out, nil
}

// judge puts the parent into the workspace and the commit's files into the
// layer, and asks the guard.
func (c *clone) judge(parent, commit string) ([]guard.Finding, time.Duration, error) {
	if err := c.checkOut(parent); err != nil {
		return nil, 0, err
	}
	if err := os.RemoveAll(c.layer); err != nil {
		return nil, 0, err
	}
	if err := os.Mkdir(c.layer, 0o755); err != nil {
		return nil, 0, err
	}
	out, err := c.git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", parent, commit)
	if err != nil {
		return nil, 0, err
	}
	changes := &changeset.Changeset{}
	fields := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		// :100644 100644 OID OID M
		meta, path := strings.Fields(strings.TrimPrefix(fields[i], ":")), fields[i+1]
		e := changeset.Entry{Path: path, Op: changeset.Modified, Source: changeset.Layer, SourcePath: path}
		if e.Before, err = c.state(meta[0], meta[2]); err != nil {
			return nil, 0, err
		}
		if e.After, err = c.state(meta[1], meta[3]); err != nil {
			return nil, 0, err
		}
		switch {
		case e.Before == nil && e.After == nil:
			continue // a submodule
		case e.Before == nil:
			e.Op = changeset.Created
		case e.After == nil:
			e.Op = changeset.Deleted
		}
		if err := c.write(path, e.After, meta[3]); err != nil {
			return nil, 0, err
		}
		changes.Entries = append(changes.Entries, e)
	}
	slices.SortFunc(changes.Entries, func(a, b changeset.Entry) int { return strings.Compare(a.Path, b.Path) })
	layer, err := unix.Open(c.layer, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(layer)
	workspace, err := unix.Open(c.workspace, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	defer unix.Close(workspace)
	home, _ := os.UserHomeDir()
	start := time.Now()
	findings, err := guard.Judge(guard.Request{Changes: changes, Layer: layer, Workspace: workspace, Picked: -1, WorkspacePath: c.workspace, Home: home,
		SearchPath: filepath.SplitList(os.Getenv("PATH"))})
	took := time.Since(start)
	if err != nil {
		return nil, 0, err
	}
	c.at = commit
	return findings, took, c.apply(changes)
}

// checkOut puts a commit's tree into the workspace, unless it is there. Files
// that the clone lacks are left out.
func (c *clone) checkOut(commit string) error {
	if c.at == commit {
		return nil
	}
	if err := os.RemoveAll(c.workspace); err != nil {
		return err
	}
	if err := os.Mkdir(c.workspace, 0o755); err != nil {
		return err
	}
	if _, err := c.git("read-tree", "--reset", commit); err != nil {
		return err
	}
	if _, err := c.git("checkout-index", "-q", "-f", "-a"); err != nil && !strings.Contains(err.Error(), "unable to read") {
		return err
	}
	return nil
}

// apply moves the commit's files from the layer into the workspace, the
// deletions first.
func (c *clone) apply(changes *changeset.Changeset) error {
	for _, e := range changes.Entries {
		if err := os.RemoveAll(filepath.Join(c.workspace, e.Path)); err != nil {
			return err
		}
	}
	for _, e := range changes.Entries {
		if e.After == nil {
			continue
		}
		to := filepath.Join(c.workspace, e.Path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(c.layer, e.Path), to); err != nil {
			return err
		}
	}
	return nil
}

func (c *clone) state(mode, id string) (*changeset.State, error) {
	switch mode {
	case "100644", "100664":
		return &changeset.State{Type: fsat.Regular, Mode: 0o644, Digest: "git:" + id}, nil
	case "100755":
		return &changeset.State{Type: fsat.Regular, Mode: 0o755, Digest: "git:" + id}, nil
	case "120000":
		target, err := c.blobs.read(id)
		return &changeset.State{Type: fsat.Symlink, Mode: 0o777, Target: string(target)}, err
	}
	return nil, nil
}

func (c *clone) write(path string, after *changeset.State, id string) error {
	if after == nil {
		return nil
	}
	to := filepath.Join(c.layer, path)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if after.Type == fsat.Symlink {
		return os.Symlink(after.Target, to)
	}
	content, err := c.blobs.read(id)
	if err != nil {
		return err
	}
	after.Size = int64(len(content))
	return os.WriteFile(to, content, os.FileMode(after.Mode))
}

// blobs is a git that hands out objects.
type blobs struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func openBlobs(gitDir string) (*blobs, error) {
	b := &blobs{cmd: exec.Command("git", "--git-dir="+gitDir, "cat-file", "--batch")}
	var err error
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.out = bufio.NewReader(out)
	return b, b.cmd.Start()
}

func (b *blobs) close() {
	b.in.Close()
	_ = b.cmd.Wait()
}

// read returns a blob; nothing for one that the clone lacks, as snapshots lack
// their largest files.
func (b *blobs) read(id string) ([]byte, error) {
	if _, err := io.WriteString(b.in, id+"\n"); err != nil {
		return nil, err
	}
	head, err := b.out.ReadString('\n')
	if err != nil {
		return nil, err
	}
	words := strings.Fields(head)
	if len(words) == 2 && words[1] == "missing" {
		return nil, nil
	}
	if len(words) != 3 {
		return nil, fmt.Errorf("git cat-file says %q", head)
	}
	size, err := strconv.Atoi(words[2])
	if err != nil {
		return nil, err
	}
	content := make([]byte, size+1)
	if _, err := io.ReadFull(b.out, content); err != nil {
		return nil, err
	}
	return content[:size], nil
}
