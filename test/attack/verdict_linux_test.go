package attack

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// The verdicts on an attack.
const (
	Held          = "HELD"
	Escaped       = "ESCAPED"
	NotApplicable = "NOT-APPLICABLE"
	Error         = "ERROR"     // it did not come to its point: proves nothing
	Shown         = "SHOWN"     // with its guard left out it escapes
	NotShown      = "NOT-SHOWN" // or why not
)

// word is a line that the attack printed.
type word struct{ kind, what, detail string }

// account is all that is known of one attempt.
type account struct {
	st      *stage
	out     lab.Outcome // zero when bare
	result  lab.Result
	text    string // what the attack printed
	words   []word
	damage  []string
	took    time.Duration
	peakRSS int64 // of hutch, in KiB; 0: not looked at
}

func (a *account) parse() {
	for line := range strings.Lines(a.text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3)
		if len(f) == 3 {
			a.words = append(a.words, word{f[0], f[1], f[2]})
		}
	}
}

func (a *account) find(kind string) []word {
	var list []word
	for _, w := range a.words {
		if w.kind == kind {
			list = append(list, w)
		}
	}
	return list
}

func (a *account) first(kind string) string {
	for _, w := range a.find(kind) {
		return w.what + ": " + w.detail
	}
	return ""
}

// judge is the verdict on an attack of the usual kind.
func (a *account) judge() (verdict, why string) {
	if v, why := a.broken(); v != "" {
		return v, why
	}
	return a.reached()
}

// broken tells whether anything got out.
func (a *account) broken() (verdict, why string) {
	switch {
	case len(a.damage) > 0:
		return Escaped, "outside: " + a.damage[0]
	case strings.Contains(a.text, a.st.token):
		return Escaped, "a secret was read"
	case len(a.find("GOT")) > 0:
		return Escaped, a.first("GOT")
	}
	return "", ""
}

// reached tells whether the attack came to its point.
func (a *account) reached() (verdict, why string) {
	tried := a.find("TRIED")
	switch {
	case len(a.find("NA")) > 0:
		return NotApplicable, a.find("NA")[0].what
	case len(a.find("ODD")) > 0:
		return Error, "an answer that is neither: " + a.first("ODD")
	case len(tried) == 0:
		return Error, "nothing was tried: " + a.summary()
	case len(a.find("END")) == 0:
		return Error, "it did not come to its end: " + a.summary()
	}
	last := tried[len(tried)-1]
	return Held, fmt.Sprintf("%d refused, as %s: %s", len(tried), last.what, last.detail)
}

func (a *account) summary() string {
	s := fmt.Sprintf("exit %d %s %s %s", a.result.Code, a.out.Status, a.out.Error, a.result.Stderr)
	return strings.Join(strings.Fields(s), " ")
}

// box makes an attack in a box.
func (st *stage) box(a *attack, flags ...string) *account {
	st.t.Helper()
	args := append([]string{"--json", "--timeout", "120s"}, st.who.args...)
	args = append(args, a.flags...)
	args = append(args, flags...)
	if st.Strategy.Name != "" {
		args = append([]string{"--strategy", st.Strategy.Name}, args...)
	}
	args = append(append([]string{"run"}, args...), "--", st.program, a.program())
	args = append(append(args, st.params...), a.params...)
	start := time.Now()
	running := st.Start(lab.Options{}, args...)
	acc := &account{st: st}
	if a.watchMemory {
		acc.peakRSS = peakRSS(running.Pid(), running)
	}
	acc.result = running.Wait()
	acc.took = time.Since(start)
	acc.read()
	acc.damage = st.damage(a.changes...)
	return acc
}

// read takes in what hutch printed as the outcome of an attack.
func (acc *account) read() {
	if err := json.Unmarshal([]byte(acc.result.Stdout), &acc.out); err != nil {
		acc.result.Stderr += " (no outcome: " + err.Error() + ")"
	}
	acc.text = acc.out.Stdout
	if acc.out.StdoutBase64 != "" {
		if raw, err := base64.StdEncoding.DecodeString(acc.out.StdoutBase64); err == nil {
			acc.text = string(raw)
		}
	}
	acc.text += acc.out.Stderr
	acc.parse()
}

// bare makes an attack without a box, as root in a mount namespace of its own.
func (st *stage) bare(a *attack) *account {
	st.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args := append(append([]string{a.program(), "bare=1"}, st.params...), a.params...)
	// This process itself is a target only from inside a box.
	args = slices.DeleteFunc(args, func(p string) bool { return strings.HasPrefix(p, "hutch=") })
	cmd := exec.CommandContext(ctx, st.program, args...)
	cmd.Dir, cmd.Env = st.Dir, append(st.Environ(), st.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if root() {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		if st.who.uid != 0 {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(st.who.uid), Gid: uint32(st.who.uid)}
		}
	}
	cmd.WaitDelay = time.Second
	text, err := cmd.CombinedOutput()
	acc := &account{st: st, text: string(text)}
	acc.result.Stderr = fmt.Sprint(err)
	acc.parse()
	// What it writes into the workspace is no escape by itself.
	acc.damage = st.damage(append(a.changes, `"ws`)...)
	return acc
}

// Row is a line of the table.
type Row struct {
	Attack, Kind, Who, Strategy, Mode, Verdict, Why string
}

// tableEnv names a directory in which rows are gathered for whoever prints
// them.
const tableEnv = "HUTCH_ATTACK_TABLE"

func record(t *testing.T, r Row) {
	t.Helper()
	r.Why = strings.Map(func(c rune) rune {
		if c < ' ' {
			return ' '
		}
		return c
	}, r.Why)
	dir := os.Getenv(tableEnv)
	if dir == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("rows-%d-%d", os.Getuid(), os.Getpid())), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	must(t, err)
	defer f.Close()
	text, err := json.Marshal(r)
	must(t, err)
	_, err = f.Write(append(text, '\n'))
	must(t, err)
}

// peakRSS watches how much memory hutch itself takes, in KiB, until it ends.
func peakRSS(pid int, r *lab.Running) (peak int64) {
	done := make(chan struct{})
	go func() { r.Done(); close(done) }()
	for {
		peak = max(peak, peakOf(pid))
		select {
		case <-done:
			return peak
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// peakOf is how much memory a process has taken so far, in KiB.
func peakOf(pid int) (kib int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib
		}
	}
	return 0
}
