package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"hutch/test/lab"
)

var (
	full   = flag.Bool("full", false, "up to 100,000 changes, and write the report")
	dir    = flag.String("dir", "bench/promote", "where -full writes")
	hutch  = flag.String("hutch", "bin/hutch", "the binary for the whole-process column")
	limit  = flag.Int("most", 100_000, "largest number of changes")
	hand   = flag.Int("bare", 100_000, "largest number of changes that is also done by hand; on a busy disk 100,000 take half an hour")
	only   = flag.String("fs", "ext4,xfs,btrfs,tmpfs", "file systems")
	budget = flag.Duration("budget", 6*time.Second, "time for the repetitions of one row")
)

// inner marks the process that has a mount namespace of its own.
const inner = "HUTCH_BENCH_INNER"

func main() {
	flag.Parse()
	syscall.Umask(0o022)
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "promote: only root can mount the images it measures on; run: sudo make bench")
		os.Exit(1)
	}
	if os.Getenv(inner) == "" {
		os.Exit(lab.Again("promote", inner, syscall.SIGKILL))
	}
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, "promote:", err)
		os.Exit(1)
	}
}

// series is the times of one way of doing it, in milliseconds.
type series []float64

func (s series) at(percent int) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

// row is what was measured of one number of changes on one file system.
type row struct {
	FS      string `json:"fs"`
	Changes int    `json:"changes"`
	Bare    series `json:"bare_ms"`
	Promote series `json:"promote_ms"`
	Whole   series `json:"hutch_commit_ms"`
}

// cell is at for a table; a dash where nothing was measured.
func (s series) cell(percent int) string {
	if len(s) == 0 {
		return "       –"
	}
	return fmt.Sprintf("%8.2f", s.at(percent))
}

func (r *row) ratio() string {
	if len(r.Bare) == 0 {
		return "      –"
	}
	return fmt.Sprintf("%7.2f", r.Promote.at(50)/r.Bare.at(50))
}

// report is what data.json holds.
type report struct {
	Machine machine `json:"machine"`
	Rows    []*row  `json:"rows"`
}

func bench() error {
	bin, err := filepath.Abs(*hutch)
	if err != nil {
		return err
	}
	base, err := os.MkdirTemp("", "hutch-bench-promote-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	counts := []int{1, 10, 100, 1000}
	if *full {
		counts = append(counts, 10_000, 100_000)
	}
	counts = slices.DeleteFunc(counts, func(n int) bool { return n > *limit })
	rep := report{Machine: describe()}
	fmt.Printf("%s\n\n%s\n", rep.Machine, header)
	for _, fs := range strings.Split(*only, ",") {
		at := filepath.Join(base, fs)
		if err := mount(fs, at); err != nil {
			return err
		}
		for _, n := range counts {
			r := &row{FS: fs, Changes: n}
			if err := r.measure(at, bin); err != nil {
				return fmt.Errorf("%s, %d changes: %w", fs, n, err)
			}
			rep.Rows = append(rep.Rows, r)
			fmt.Println(r.line())
		}
		if err := syscall.Unmount(at, 0); err != nil {
			return err
		}
		os.Remove(at + ".img")
	}
	if !*full {
		return nil
	}
	return rep.write(*dir)
}

// measure repeats one row until its budget is spent.
func (r *row) measure(at, bin string) error {
	start := time.Now()
	most, least := 200, 3
	if r.Changes >= 10_000 {
		least = 1 // a minute each, by hand
	}
	for i := 0; i < most && (i < least || time.Since(start) < *budget); i++ {
		s, err := newScene(filepath.Join(at, "s"), r.Changes)
		if err != nil {
			return err
		}
		// The order turns, so that none always finds what the other left.
		ways := []func() error{
			func() error { return timed(&r.Bare, s.dirty, s.bare) },
			func() error { return timed(&r.Promote, s.dirty, s.promote) },
		}
		if r.Changes > *hand {
			ways = ways[1:]
		}
		if i%2 == 1 {
			slices.Reverse(ways)
		}
		for _, way := range ways {
			if err := way(); err != nil {
				return err
			}
		}
		if r.Changes <= 10_000 && i < 40 {
			took, err := s.whole(bin)
			if err != nil {
				return err
			}
			r.Whole = append(r.Whole, took)
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	return nil
}

// timed appends what f takes to a series; prepare comes before the clock.
func timed(to *series, prepare, f func() error) error {
	if err := prepare(); err != nil {
		return err
	}
	start := time.Now()
	if err := f(); err != nil {
		return err
	}
	*to = append(*to, float64(time.Since(start).Microseconds())/1000)
	return nil
}

const header = "                     bare: write, fsync, rename | promotion (internal/promote) |  hutch commit, whole\nfs      changes    n      p50      p99 |      p50      p99   ratio |      p50      p99"

func (r *row) line() string {
	return fmt.Sprintf("%-6s %8d %4d %s %s | %s %s %s | %s %s",
		r.FS, r.Changes, len(r.Promote), r.Bare.cell(50), r.Bare.cell(99), r.Promote.cell(50), r.Promote.cell(99), r.ratio(), r.Whole.cell(50), r.Whole.cell(99))
}

// mount makes a fresh file system. An image lies in the temporary directory,
// so that a flush of it reaches what that is on.
func mount(fs, at string) error {
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if fs == "tmpfs" {
		return syscall.Mount("hutch-bench", at, "tmpfs", 0, "mode=755")
	}
	img := at + ".img"
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(img, 6<<30); err != nil {
		return err
	}
	mkfs := []string{"mkfs." + fs, "-q", img}
	if fs == "ext4" {
		mkfs = []string{"mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-N", "800000", img}
	}
	for _, argv := range [][]string{mkfs, {"mount", "-o", "loop", img, at}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
		}
	}
	return nil
}

// write writes the committed output.
func (rep *report) write(dir string) error {
	data, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return err
	}
	svg := filepath.Join(dir, "scale.svg")
	for name, content := range map[string][]byte{"data.json": append(data, '\n'), "REPORT.md": []byte(rep.markdown()), "scale.svg": []byte(plot(rep.Rows))} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	if convert, err := exec.LookPath("rsvg-convert"); err == nil {
		return exec.Command(convert, "--zoom", "2", "-o", filepath.Join(dir, "scale.png"), svg).Run()
	}
	fmt.Println("scale.png is not renewed: rsvg-convert (package librsvg2-bin) is not installed")
	return nil
}
