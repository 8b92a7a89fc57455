package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is what the figures were measured on.
type machine struct {
	Kernel string  `json:"kernel"`
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	Memory int     `json:"memory_mib"`
	Load   float64 `json:"load_at_start"`
	Go     string  `json:"go"`
	Date   string  `json:"date"`
}

func describe() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly)}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = strings.Fields(unix.ByteSliceToString(u.Release[:]) + " ")[0]
	}
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(cpu)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			m.CPU = strings.Trim(name, "\t :\n")
			break
		}
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = int(uint64(info.Totalram) * uint64(info.Unit) >> 20)
		m.Load = float64(info.Loads[0]) / 65536
	}
	return m
}

func (m machine) String() string {
	return fmt.Sprintf("%s, kernel %s, %s, %d cores, %d MiB, load %.1f at the start, %s", m.Date, m.Kernel, m.CPU, m.Cores, m.Memory, m.Load, m.Go)
}

func (rep *report) row(fs string, changes int) *row {
	for _, r := range rep.Rows {
		if r.FS == fs && r.Changes == changes {
			return r
		}
	}
	return nil
}

func (rep *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, `# What a promotion costs

%s.

Written by `+"`go run ./bench/promote -full`"+`; the raw times are in data.json. Small files of 1 kB, all of them
replaced, 500 to a directory, layer and workspace on the same file system. Both ways leave everything durable and are
timed in turn in one run; the layer is written but not flushed when a promotion starts, as after a box that has just
ended. Times are milliseconds. The images lie on the disk that holds the temporary directory; what
`+"`tmpfs`"+` shows is the cost without any disk.

- **bare**: write, fsync and rename each file, then fsync each directory: what a careful program does. It is not atomic.
- **promotion**: internal/promote, from the conflict check to the last barrier. All or nothing.
- **hutch commit**: the whole process, with the receipt and the removal of the box.

![cost against number of changes](scale.svg)

| file system | changes | runs | bare p50 | p99 | promotion p50 | p99 | ratio | hutch commit p50 | p99 |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
`, rep.Machine)
	for _, r := range rep.Rows {
		cells := []string{r.FS, strconv.Itoa(r.Changes), strconv.Itoa(len(r.Promote)), r.Bare.cell(50), r.Bare.cell(99), r.Promote.cell(50), r.Promote.cell(99), r.ratio(), r.Whole.cell(50), r.Whole.cell(99)}
		for _, cell := range cells {
			b.WriteString("| " + strings.TrimSpace(cell) + " ")
		}
		b.WriteString("|\n")
	}
	fmt.Fprintf(&b, "\n## The goals\n\n| goal | file system | ratio | |\n|---|---|---:|---|\n")
	for _, goal := range []struct {
		changes int
		most    float64
	}{{10, 1.2}, {10_000, 0.3}} {
		for _, fs := range []string{"ext4", "xfs", "btrfs"} {
			if r := rep.row(fs, goal.changes); r != nil && len(r.Bare) > 0 {
				met := "met"
				if r.Promote.at(50) > goal.most*r.Bare.at(50) {
					met = "**not met**"
				}
				fmt.Fprintf(&b, "| %d small files, at most %.1f × bare | %s | %s | %s |\n", goal.changes, goal.most, fs, strings.TrimSpace(r.ratio()), met)
			}
		}
	}
	if rep.Machine.Load > 1 {
		fmt.Fprintf(&b, "\nThe machine was busy with other work (load %.1f on %d cores): the ratios count, since both ways were timed in turn; the\nmilliseconds do not.\n", rep.Machine.Load, rep.Machine.Cores)
	}
	fmt.Fprintf(&b, "\np99 of fewer than 100 runs is the slowest of them. What was tried to make this faster is in ../NOTES.md.\n")
	return b.String()
}
