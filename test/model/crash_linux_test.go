package model

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// crashes is how many times hutch is killed, for each strategy.
func crashes() int {
	if lab.Proof() {
		return 400
	}
	return 12
}

// TestKilledAtAnyMoment kills hutch while it runs a box and promotes its
// change: after hutch recover the workspace is all old or all new.
func TestKilledAtAnyMoment(t *testing.T) {
	for _, strategy := range lab.Strategies(t) {
		t.Run(strategy.Test, func(t *testing.T) {
			s := newStage(t, strategy)
			seed, only := firstSeed(t)
			outcomes := map[string]int{}
			oneSided := func() bool { return outcomes["old"] == 0 || outcomes["new"] == 0 }
			for n := 0; n < crashes() || oneSided() && n < 5*crashes(); n, seed = n+1, seed+1 {
				r := rand.New(rand.NewPCG(seed, 1))
				c := someCase(r, owners(), strategy.Name != "overlay")
				what, problems := s.crash(c, r)
				if problems != nil {
					t.Fatalf("seed %d: %s\n%v", seed, strings.Join(problems, "\n"), c)
				}
				outcomes[what]++
				if only {
					break
				}
			}
			t.Logf("%v", outcomes)
			if !only && oneSided() {
				t.Errorf("the kills always came at the same stage: %v", outcomes)
			}
		})
	}
}

func (s *stage) crash(c Case, r *rand.Rand) (what string, problems []string) {
	p := s.place(c.Owner)
	defer p.remove()
	w := *p.World
	w.Dir = p.ws
	fail := func(format string, args ...any) (string, []string) { return "", []string{fmt.Sprintf(format, args...)} }
	first := append(slices.Clone(c.First), Op{Kind: "age", A: ".", N: longAgo})
	for _, dir := range []string{p.ws, p.control} {
		if _, err := p.plain(dir, Script{Ops: first}); err != nil {
			return fail("%v", err)
		}
	}
	script := Script{Ops: slices.DeleteFunc(c.Boxes[0].Ops, func(op Op) bool { return op.Kind == "deep" })}

	// Once without promotion: how long it takes.
	in := p.stdin(script)
	dry := w.RunWith(lab.Options{Stdin: in}, p.args(Discard)...)
	in.Close()
	out := lab.ParseOutcome(s.T, dry)
	if _, err := parseReport(out.Stdout); err != nil || dry.Code != 0 {
		return fail("%v held %v\n%v", err, out.Held, dry)
	}
	before := snapshot(p.ws, true)
	if _, err := p.plain(p.control, script); err != nil {
		return fail("%v", err)
	}
	want, _ := expected(before, snapshot(p.control, true), out)

	in = p.stdin(script)
	running := w.Start(lab.Options{Stdin: in}, p.args(Commit)...)
	time.Sleep(time.Duration(float64(dry.Duration) * (0.2 + 1.3*r.Float64())))
	running.Signal(syscall.SIGKILL)
	killed := running.Wait()
	in.Close()
	if killed.Code != 128+9 && killed.Code != 0 {
		return fail("held %v: %v", lab.ParseOutcome(s.T, killed).Held, killed)
	}
	for range 2 { // the second finds nothing to do
		if rec := w.Run("recover"); rec.Code != 0 {
			return fail("%v", rec)
		}
	}
	// The box of a killed hutch is cleared like any other.
	w.Age()
	if gc := w.Run("gc"); gc.Code != 0 {
		return fail("%v", gc)
	}
	if left, _ := filepath.Glob(filepath.Join(p.StateDir(), "boxes", "*")); len(left) > 0 {
		return fail("left after gc: %q", left)
	}
	after := snapshot(p.ws, true)
	isNew := compare("new", after.without(".hutch"), want)
	if isNew == nil {
		return "new", nil
	}
	// hutch's own directory was made in it.
	b, a := before["."], after["."]
	b.Mtime, a.Mtime, b.Nlink, a.Nlink = 0, 0, 0, 0
	before["."], after["."] = b, a
	if isOld := untouched(before.without(".hutch"), after.without(".hutch")); isOld != nil {
		return fail("neither old nor new after a kill (%d)\n%s\n%s", killed.Code, strings.Join(isOld, "\n"), strings.Join(isNew, "\n"))
	}
	if killed.Code == 0 {
		return fail("committed, but the workspace is the old one")
	}
	return "old", nil
}
