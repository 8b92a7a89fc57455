package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// result is what a guest said.
type result struct {
	turns          []turn
	turn           string // that runs now
	passed, failed int
	skipped        []string
	seen           map[string][]string // turn -> top-level tests that ended
	deep           map[string]int      // turn -> tests two levels down, or deeper, that ended
	missed         []string            // turns or tests that did not end
	output         []string            // of the turn that runs
	tail           []string            // the last lines of the console
	shown          strings.Builder     // output of what failed
	done           bool                // the guest came to its end
	timedOut       atomic.Bool
	broken, qemu   string
	cpu            time.Duration // that the machine took
}

func newResult(turns []turn) *result {
	return &result{turns: turns, seen: map[string][]string{}, deep: map[string]int{}}
}

// The testing package marks its own lines (-test.v=test2json).
var verdict = regexp.MustCompile(`^\x16--- (PASS|FAIL|SKIP): (\S+)`)

// read takes the console in until the guest ends.
func (r *result) read(console io.Reader) {
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		r.line(strings.TrimRight(lines.Text(), "\r"))
	}
	// More than a line may hold: let the guest go on, all the same.
	_, _ = io.Copy(io.Discard, console)
	for _, t := range r.turns {
		ended := r.seen[t.Name]
		if ended == nil {
			r.missed = append(r.missed, t.Name)
			continue
		}
		if r.deep[t.Name] < t.Least {
			r.missed = append(r.missed, fmt.Sprintf("%s: %d of %d", t.Name, t.Least-r.deep[t.Name], t.Least))
		}
		for _, name := range t.Tests {
			if !slices.Contains(ended, name) {
				r.missed = append(r.missed, t.Name+": "+name)
			}
		}
	}
}

func (r *result) line(line string) {
	if *verbose {
		fmt.Println(line)
	}
	if r.tail = append(r.tail, line); len(r.tail) > 40 {
		r.tail = r.tail[1:]
	}
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "TURN":
		r.turn, r.output = rest, nil
		return
	case "ENDED": // CODE NAME
		code, name, _ := strings.Cut(rest, " ")
		if r.seen[name] == nil {
			r.seen[name] = []string{}
		}
		if code != "0" {
			if len(r.seen[name]) == 0 || !slices.ContainsFunc(r.output, func(s string) bool { return strings.Contains(s, "--- FAIL") }) {
				r.failed++ // by no test's verdict
			}
			fmt.Fprintf(&r.shown, "---- %s (%s)\n%s\n", name, code, strings.Join(r.output, "\n"))
		}
		r.turn = ""
		return
	case "DONE":
		r.done = true
		return
	}
	if m := verdict.FindStringSubmatch(line); m != nil {
		top := !strings.Contains(m[2], "/")
		switch {
		case m[1] == "SKIP":
			r.skipped = append(r.skipped, r.turn+": "+m[2])
		case m[1] == "PASS" && top:
			r.passed++
		case m[1] == "FAIL" && top:
			r.failed++
		}
		if strings.Count(m[2], "/") > 1 && m[1] != "SKIP" {
			r.deep[r.turn]++
		}
		if top {
			r.seen[r.turn] = append(r.seen[r.turn], m[2])
		}
	}
	line = strings.TrimPrefix(line, "\x16")
	if r.turn != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "--- PASS") {
		r.output = append(r.output, line)
	}
}

func (r *result) ok() bool {
	return r.done && r.failed == 0 && len(r.missed) == 0 && r.passed > 0 && r.broken == ""
}

// text is the summary, below what explains it.
func (r *result) text(name, version string, took time.Duration) string {
	var b strings.Builder
	if r.broken != "" {
		return fmt.Sprintf("%s: failed: %s\n", name, r.broken)
	}
	b.WriteString(r.shown.String())
	if !r.done {
		why := "the guest ended before its tests did"
		if r.timedOut.Load() {
			why = fmt.Sprintf("the guest had not ended after %v", *limit)
		}
		fmt.Fprintf(&b, "---- %s: %s; the end of its console:\n%s\n%s", name, why, strings.Join(r.tail, "\n"), r.qemu)
	}
	for _, m := range r.missed {
		fmt.Fprintf(&b, "%s: did not run: %s\n", name, m)
	}
	for _, s := range r.skipped {
		fmt.Fprintf(&b, "%s: not applicable: %s\n", name, s)
	}
	fmt.Fprintf(&b, "%s: %d passed, %d failed, %d not applicable, %d did not run (%s, %v, %v of a processor)\n",
		name, r.passed, r.failed, len(r.skipped), len(r.missed), version, took.Round(time.Second), r.cpu.Round(time.Second))
	return b.String()
}
