package attack

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// inLive tells whether an attack is made in a box that lives as well: what is
// about promotion needs no command that runs.
func (a *attack) inLive() bool {
	return a.kind != aboutPromotion && !slices.Contains(a.flags, "--layer") && a.notLive == ""
}

// tryLive makes the attack as one command of several in a box that lives; it must
// be held, and the box must go on.
func (a *attack) tryLive(t *testing.T, u who) {
	st := newStage(t, lab.Strategies(t)[0], u)
	st.live(filepath.Join(st.State, "s"))
	if a.setup != nil {
		a.setup(st)
	}
	st.remember()
	id := st.create(a, st.moreFlags...)
	if a.program() != "kill-host" && !slices.Contains(a.flags, "--no-subprocess") { // it would end them, or they would not start
		// Others of the same box, before and beside it: a server of its own session,
		// and a command whose input and output are the daemon's pipes.
		st.want(st.Run("box", "exec", id, "--", "sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 &"))
		beside := st.Start(lab.Options{}, "box", "exec", id, "--", "sh", "-c", "echo ready; exec sleep 1000")
		beside.WaitFor("ready")
		defer beside.Wait()
	}
	acc := st.exec(a, id)
	if a.asked != nil {
		a.asked(acc, id)
	}
	if a.watchMemory {
		acc.peakRSS = peakOf(st.daemon())
	}
	if a.kind != aboutDenial {
		if r := st.Run("box", "exec", id, "--", "sh", "-c", "echo goes on"); r.Code != 0 || r.Stdout != "goes on\n" {
			t.Errorf("the box does not go on: %v", r)
		}
	}
	st.want(st.Run("box", "rm", id))
	acc.damage = st.damage(a.changes...)
	a.told(t, acc, Row{Who: u.name, Strategy: "overlay", Mode: "live"})
}

// live gives the stage a daemon of its own at a socket, which is started when it is
// wanted.
func (st *stage) live(socket string) {
	st.Env = append(st.Env, "HUTCH_SOCKET="+socket)
	st.t.Cleanup(func() {
		if r := st.Run("daemon", "stop"); r.Code != 0 && !strings.Contains(r.Stderr, "no daemon") {
			st.t.Errorf("the daemon did not stop: %v", r)
		}
	})
}

// daemon is the number of its process.
func (st *stage) daemon() int {
	st.t.Helper()
	r := st.Run("daemon", "status", "--json")
	st.want(r)
	var status struct{ PID int }
	must(st.t, json.Unmarshal([]byte(r.Stdout), &status))
	return status.PID
}

func (st *stage) want(r lab.Result) {
	st.t.Helper()
	if r.Code != 0 {
		st.t.Fatalf("%v", r)
	}
}

// create makes a box for an attack, and returns its id.
func (st *stage) create(a *attack, more ...string) string {
	st.t.Helper()
	args := append([]string{"box", "create", "--timeout", "120s"}, st.who.args...)
	for _, flag := range slices.Concat(a.flags, more) {
		if flag != "--tty" { // of the command
			args = append(args, flag)
		}
	}
	r := st.Run(args...)
	st.want(r)
	return strings.TrimSpace(r.Stdout)
}

// exec makes an attack as a command of a box that lives. What is damaged, the
// caller looks for.
func (st *stage) exec(a *attack, id string) *account {
	st.t.Helper()
	args := []string{"box", "exec", id, "--json"}
	if slices.Contains(a.flags, "--tty") {
		args = append(args, "--tty")
	}
	args = append(append(args, "--", st.program, a.program()), st.params...)
	start := time.Now()
	acc := &account{st: st}
	acc.result = st.Run(append(args, a.params...)...)
	acc.took = time.Since(start)
	acc.read()
	return acc
}
