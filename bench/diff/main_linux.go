package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

var (
	n     = flag.Int("n", 60, "runs of each")
	hutch = flag.String("hutch", "bin/hutch", "the binary")
)

// edit makes ten changes: six files changed, two made, two deleted.
const edit = `
for i in 1 2 3 4 5 6; do echo changed > d0/f$i; done
echo new > d0/new1; echo new > d0/new2
rm d0/f7 d0/f8`

const changes = 10

func main() {
	flag.Parse()
	if err := bench(); err != nil {
		fmt.Fprintln(os.Stderr, "diff:", err)
		os.Exit(1)
	}
}

func bench() error {
	bin, err := filepath.Abs(*hutch)
	if err != nil {
		return err
	}
	base, err := os.MkdirTemp("", "hutch-bench-diff-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	sizes := []int{100, 100_000}
	times := map[int][]float64{}
	for _, size := range sizes {
		if err := plant(filepath.Join(base, fmt.Sprint(size)), size); err != nil {
			return err
		}
	}
	for i := range *n {
		for _, size := range sizes {
			cmd := exec.Command(bin, "run", "--json", "--", "sh", "-ec", edit)
			cmd.Dir = filepath.Join(base, fmt.Sprint(size))
			cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(base, "state"))
			out, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("hutch run: %w: %s", err, out)
			}
			var o struct {
				Diff struct {
					Created  []string `json:"files_created"`
					Modified []string `json:"files_modified"`
					Deleted  []string `json:"files_deleted"`
					Micros   float64  `json:"elapsed_micros"`
				}
			}
			if err := json.Unmarshal(out, &o); err != nil {
				return err
			}
			if got := len(o.Diff.Created) + len(o.Diff.Modified) + len(o.Diff.Deleted); got != changes {
				return fmt.Errorf("%d changes seen, %d made", got, changes)
			}
			if i > 2 {
				times[size] = append(times[size], o.Diff.Micros/1000)
			}
		}
	}
	fmt.Printf("\nuid %d, diff of %d changes, %d runs of each, interleaved; ms; the goal is 2\n\n%-12s %8s %8s\n", os.Getuid(), changes, *n-3, "files", "p50", "p99")
	for _, size := range sizes {
		s := slices.Sorted(slices.Values(times[size]))
		fmt.Printf("%-12d %8.2f %8.2f\n", size, s[len(s)/2], s[min(len(s)*99/100, len(s)-1)])
	}
	return nil
}

// plant makes a workspace of size files, 500 to a directory.
func plant(dir string, size int) error {
	for i := range size {
		at := filepath.Join(dir, fmt.Sprintf("d%d", i/500), fmt.Sprintf("f%d", i%500))
		if i%500 == 0 {
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(at, []byte("old\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
