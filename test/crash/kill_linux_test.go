package crash

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"hutch/test/lab"
)

// traced runs hutch under a tracer.
func (p *place) traced(at func(n int, name string) act, args ...string) (tr *tracer, out string) {
	p.t.Helper()
	file, err := os.CreateTemp(p.base, "out-")
	check(p.t, err)
	defer os.Remove(file.Name())
	defer file.Close()
	cmd := p.command(args...)
	cmd.Stdout, cmd.Stderr = file, file
	tr = &tracer{at: at}
	check(p.t, tr.trace(cmd))
	text, err := os.ReadFile(file.Name())
	check(p.t, err)
	return tr, string(text)
}

// on returns an act at the n-th call only.
func on(n int, a act) func(int, string) act {
	return func(i int, _ string) act {
		if i == n {
			return a
		}
		return act{}
	}
}

// next are the ways in which a user may come back after a crash.
var next = [][]string{{"recover"}, {"run", "--", "true"}}

// stride thins out the points of a walk in the short version.
func stride(short int) int {
	if lab.Proof() {
		return 1
	}
	return short
}

// tally counts points and what was found there.
type tally struct {
	points int
	seen   map[string]int
	at     map[string]int
}

func (c *tally) add(is, name string) {
	if c.seen == nil {
		c.seen, c.at = map[string]int{}, map[string]int{}
	}
	c.points++
	c.seen[is]++
	c.at[name]++
}

// report fails a walk that met too little to mean anything. A walk of few
// points may in its short version meet one end only.
func (c *tally) report(t *testing.T, few bool) {
	t.Helper()
	t.Logf("%d points: %v; by call: %v", c.points, c.seen, c.at)
	if few && !lab.Proof() {
		if c.points < 4 {
			t.Error("too few points")
		}
		return
	}
	if c.points < 5 || c.seen["old"] == 0 || c.seen["new"] == 0 {
		t.Errorf("both ends should have been met: %v", c.seen)
	}
}

// commitWalk disturbs a commit of a kept box at each of its calls, at every
// step-th in the short version.
func commitWalk(t *testing.T, base string, step int, disturb act, judge func(p *place, e ends, id string, n int, tr *tracer, out string) (string, error)) {
	t.Helper()
	make := func() *place { return newPlace(t, base+"/p") }
	e := learn(t, base+"/learn", func(base string) *place { return newPlace(t, base) })
	p := make()
	calm, out := p.traced(func(int, string) act { return act{} }, "commit", "--mtime=keep", p.keepBox())
	if !calm.status.Exited() || calm.status.ExitStatus() != 0 || calm.calls < 100 {
		t.Fatalf("undisturbed: %v after %d calls: %s", calm.status, calm.calls, out)
	}
	purge(p.base)
	var sum tally
	for n := 1; n <= calm.calls; n += step {
		if disturb.tear && calm.names[n-1] != "write" {
			continue
		}
		p := make()
		id := p.keepBox()
		tr, out := p.traced(on(n, disturb), "commit", "--mtime=keep", id)
		if tr.calls >= n { // a sync more or less depends on what else is dirty
			is, err := judge(p, e, id, n, tr, out)
			if err != nil {
				t.Fatalf("call %d of commit (%s) %+v: %v\noutput: %s", n, tr.names[n-1], disturb, err, out)
			}
			sum.add(is, tr.names[n-1])
		}
		purge(p.base)
	}
	sum.report(t, disturb.tear || disturb.fail != 0)
}

// TestKilledCommit kills a commit before each call that changes the disk, and in
// the middle of each write, and lets the user come back in each way.
func TestKilledCommit(t *testing.T) {
	for _, back := range next {
		t.Run(back[0], func(t *testing.T) {
			step := stride(11)
			commitWalk(t, scratch(t), step, act{kill: true}, func(p *place, e ends, id string, n int, tr *tracer, out string) (string, error) {
				if !tr.status.Signaled() || tr.status.Signal() != syscall.SIGKILL {
					return "", fmt.Errorf("hutch was not killed: %v", tr.status)
				}
				return p.settled(e, id, back...)
			})
		})
	}
}

// TestTornCommit lets a commit die in the middle of each of its writes.
func TestTornCommit(t *testing.T) {
	commitWalk(t, scratch(t), 1, act{tear: true}, func(p *place, e ends, id string, n int, tr *tracer, out string) (string, error) {
		if !tr.status.Signaled() {
			return "", fmt.Errorf("hutch was not killed: %v", tr.status)
		}
		return p.settled(e, id, "recover")
	})
}

// TestFailedCommit makes each call of a commit fail once, as full, broken and
// forbidden disks do. Hutch must say so and leave the workspace old, the box
// kept and whole; or carry on, and have it new.
func TestFailedCommit(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EACCES} {
		t.Run(fmt.Sprint(int(errno)), func(t *testing.T) {
			commitWalk(t, scratch(t), stride(41), act{fail: errno}, func(p *place, e ends, id string, n int, tr *tracer, out string) (string, error) {
				if !tr.status.Exited() {
					return "", fmt.Errorf("hutch ended by %v", tr.status.Signal())
				}
				code := tr.status.ExitStatus()
				is := e.is(p.snap())
				switch {
				case is == "old" && code == 0:
					return is, fmt.Errorf("hutch exited 0, but the workspace is old")
				case is != "old" && is != "new":
					return is, fmt.Errorf("exit %d, the workspace is %s", code, is)
				case code != 0 && strings.Count(out, "\n")-strings.Count(out, "hutch: note: ") != 1:
					return is, fmt.Errorf("exit %d without one line that says why", code)
				case is == "new" && code != 0 && !strings.Contains(out, "was promoted") && !strings.Contains(out, "has arrived"):
					return is, fmt.Errorf("the workspace is new, but hutch exited %d and did not say so", code)
				}
				if code, out := p.hutch("recover"); code != 0 {
					return is, fmt.Errorf("recover: exit %d: %s", code, out)
				}
				if now := e.is(p.snap()); now != is {
					return is, fmt.Errorf("exit %d left the workspace %s; recovery made it %s", code, is, now)
				}
				return is, p.consistent(e, id, is)
			})
		})
	}
}

// TestKilledRecovery kills a commit, and then the recovery before each of its
// calls, again and again until one comes to its end.
func TestKilledRecovery(t *testing.T) {
	base := scratch(t)
	make := func(base string) *place { return newPlace(t, base) }
	e := learn(t, base+"/learn", make)
	var sum tally
	for n, step := 1, stride(60); ; n += step {
		p := make(base + "/p")
		id := p.keepBox()
		tr, out := p.traced(on(n, act{kill: true}), "commit", "--mtime=keep", id)
		if tr.calls < n {
			purge(p.base)
			break
		}
		for m := 1; ; m += 1 + (n+m)%stride(5) {
			rec, out := p.traced(on(m, act{kill: true}), "recover")
			if rec.calls < m {
				if rec.status.ExitStatus() != 0 {
					t.Fatalf("call %d of commit, recover: %v: %s", n, rec.status, out)
				}
				break
			}
			sum.add("killed again", rec.names[m-1])
		}
		is, err := p.settled(e, id, "recover")
		if err != nil {
			t.Fatalf("call %d of commit (%s): %v\n%s", n, tr.names[n-1], err, out)
		}
		sum.add(is, tr.names[n-1])
		purge(p.base)
	}
	sum.report(t, false)
}

// TestKilledRun kills `hutch run --commit` before each call of hutch itself. The
// box goes with it; what it changed has arrived, or nothing has.
func TestKilledRun(t *testing.T) {
	base := scratch(t)
	e := learn(t, base+"/learn", func(base string) *place { return newPlace(t, base) })
	var sum tally
	for n := 1; ; n += stride(17) {
		p := newPlace(t, base+"/p")
		tr, out := p.traced(on(n, act{kill: true}), "run", "--commit", "--mtime=keep", "--", "sh", "-ec", edit)
		if tr.calls < n {
			if tr.status.ExitStatus() != 0 {
				t.Fatalf("undisturbed: %v: %s", tr.status, out)
			}
			purge(p.base)
			break
		}
		name := tr.names[n-1]
		is, err := p.arrived(e)
		if err != nil {
			t.Fatalf("call %d of run --commit (%s): %v\noutput: %s", n, name, err, out)
		}
		sum.add(is, name)
		purge(p.base)
	}
	sum.report(t, false)
}

// arrived recovers after a run that was killed, and checks what it left.
func (p *place) arrived(e ends) (is string, err error) {
	if code, out := p.hutch("recover"); code != 0 {
		return "", fmt.Errorf("recover: exit %d: %s", code, out)
	}
	if is = e.is(p.snap()); is != "old" && is != "new" {
		return is, fmt.Errorf("the workspace is %s", is)
	}
	if code, out := p.hutch("receipts", "verify"); code != 0 {
		return is, fmt.Errorf("receipts: exit %d: %s", code, out)
	}
	if is == "new" {
		return is, p.recorded("")
	}
	// The workspace is as good as new: the same run arrives.
	p.must("run", "--commit", "--mtime=keep", "--", "sh", "-ec", edit)
	if now := e.is(p.snap()); now != "new" {
		return is, fmt.Errorf("the run once more made the workspace %s", now)
	}
	return is, nil
}

// undoWalk disturbs an undo of a commit at each of its calls.
func undoWalk(t *testing.T, base string, step int, disturb act, judge func(p *place, e ends, tr *tracer, out string) (string, error)) {
	t.Helper()
	e := learn(t, base+"/learn", func(base string) *place { return newPlace(t, base) })
	make := func() *place {
		p := newPlace(t, base+"/p")
		p.must("commit", "--mtime=keep", p.keepBox())
		return p
	}
	p := make()
	calm, out := p.traced(func(int, string) act { return act{} }, "undo")
	if !calm.status.Exited() || calm.status.ExitStatus() != 0 || calm.calls < 40 || e.is(p.snap()) != "old" {
		t.Fatalf("undisturbed: %v after %d calls: %s\nthe workspace is %s", calm.status, calm.calls, out, e.is(p.snap()))
	}
	purge(p.base)
	var sum tally
	for n := 1; n <= calm.calls; n += step {
		p := make()
		tr, out := p.traced(on(n, disturb), "undo")
		if tr.calls >= n {
			is, err := judge(p, e, tr, out)
			if err == nil {
				err = p.undone(e, is)
			}
			if err != nil {
				t.Fatalf("call %d of undo (%s) %+v: %v\noutput: %s", n, tr.names[n-1], disturb, err, out)
			}
			sum.add(is, tr.names[n-1])
		}
		purge(p.base)
	}
	sum.report(t, disturb.fail != 0)
}

// undone checks that a workspace in which an undo was disturbed is as good as
// any: what still stands can be undone, and the receipts say what was.
func (p *place) undone(e ends, is string) error {
	if is == "new" {
		if code, out := p.hutch("undo"); code != 0 {
			return fmt.Errorf("the promotion stands, but undo: exit %d: %s", code, out)
		}
	}
	if now := e.is(p.snap()); now != "old" {
		return fmt.Errorf("the workspace was %s; undone it is %s", is, now)
	}
	if code, out := p.hutch("receipts", "verify"); code != 0 {
		return fmt.Errorf("receipts: exit %d: %s", code, out)
	}
	_, out := p.hutch("receipts", "list")
	if n := strings.Count(out, `"undid":`); n != 1 {
		return fmt.Errorf("the undo has %d receipts:\n%s", n, out)
	}
	return nil
}

// TestKilledUndo kills an undo before each call that changes the disk.
func TestKilledUndo(t *testing.T) {
	undoWalk(t, scratch(t), stride(5), act{kill: true}, func(p *place, e ends, tr *tracer, out string) (string, error) {
		if !tr.status.Signaled() {
			return "", fmt.Errorf("hutch was not killed: %v", tr.status)
		}
		if code, out := p.hutch("recover"); code != 0 {
			return "", fmt.Errorf("recover: exit %d: %s", code, out)
		}
		is := e.is(p.snap())
		if is != "old" && is != "new" {
			return is, fmt.Errorf("the workspace is %s", is)
		}
		return is, nil
	})
}

// TestFailedUndo makes each call of an undo fail once.
func TestFailedUndo(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EACCES} {
		t.Run(fmt.Sprint(int(errno)), func(t *testing.T) {
			undoWalk(t, scratch(t), stride(7), act{fail: errno}, func(p *place, e ends, tr *tracer, out string) (string, error) {
				if !tr.status.Exited() {
					return "", fmt.Errorf("hutch ended by %v", tr.status.Signal())
				}
				is := e.is(p.snap())
				switch code := tr.status.ExitStatus(); {
				case is != "old" && is != "new":
					return is, fmt.Errorf("exit %d, the workspace is %s", code, is)
				case is == "new" && code == 0:
					return is, fmt.Errorf("hutch exited 0, but nothing is undone")
				case is == "old" && code != 0 && !strings.Contains(out, "undone"):
					return is, fmt.Errorf("the workspace is old, but hutch exited %d and did not say so", code)
				}
				if code, out := p.hutch("recover"); code != 0 {
					return is, fmt.Errorf("recover: exit %d: %s", code, out)
				}
				if now := e.is(p.snap()); now != is {
					return is, fmt.Errorf("left %s, recovery made it %s", is, now)
				}
				return is, nil
			})
		})
	}
}
