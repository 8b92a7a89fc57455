package attack

import (
	"hash/fnv"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hutch/test/lab"
)

// seedEnv gives the seed of the sample.
const seedEnv = "HUTCH_ATTACK_SEED"

// TestAttacks makes every attack in a box, in one that lives, and once with its
// guard left out. By default each runs as one user with one strategy, drawn by a
// seed; in proof all of the matrix.
func TestAttacks(t *testing.T) {
	seed := time.Now().UnixNano()
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		seed, err = strconv.ParseInt(text, 10, 64)
		must(t, err)
	}
	t.Logf("%s=%d", seedEnv, seed)
	for i := range attacks {
		a := &attacks[i]
		hash := fnv.New64()
		hash.Write([]byte(a.name))
		draw := rand.New(rand.NewSource(seed ^ int64(hash.Sum64())))
		t.Run(a.name, func(t *testing.T) {
			users := slices.DeleteFunc(whos(), func(u who) bool { return u.name == a.notAs })
			strategies := lab.Strategies(t)
			if !a.strategies {
				strategies = strategies[:1]
			}
			if a.onlyLive {
				strategies = nil
			}
			guardOff, live := true, a.inLive()
			if !lab.Proof() {
				if a.seldom && draw.Intn(4) > 0 {
					t.Log("not drawn")
					return
				}
				users = []who{users[draw.Intn(len(users))]}
				if len(strategies) > 0 {
					strategies = []lab.Strategy{strategies[draw.Intn(len(strategies))]}
				}
				guardOff = draw.Intn(3) == 0
				live = live && (a.onlyLive || draw.Intn(3) == 0)
			}
			for _, u := range users {
				for _, s := range strategies {
					t.Run(u.name+"/"+s.Test, func(t *testing.T) { a.try(t, u, s) })
				}
				if live {
					t.Run(u.name+"/live", func(t *testing.T) { a.tryLive(t, u) })
				}
				if guardOff {
					t.Run(u.name+"/guard-off", func(t *testing.T) { a.show(t, u) })
				}
			}
		})
	}
}

// try makes the attack in a box; it must be held.
func (a *attack) try(t *testing.T, u who, s lab.Strategy) {
	st := newStage(t, s, u)
	if a.keeps || a.kind == aboutPromotion { // what is held is kept
		st.KeepsBoxes()
	}
	if a.setup != nil {
		a.setup(st)
	}
	if lab.Proof() && a.name == "deep-and-many" && s.Name == "overlay" {
		st.param("depth=100000")
		st.param("links=300000")
	}
	if lab.Proof() && a.name == "output-flood" {
		st.param("megabytes=1000")
	}
	st.remember()
	acc := st.box(a, st.moreFlags...)
	a.told(t, acc, Row{Who: u.name, Strategy: s.Test, Mode: "one-shot"})
}

// told judges an attack that must be held, and puts it into the table.
func (a *attack) told(t *testing.T, acc *account, row Row) {
	t.Helper()
	judge := a.verdict
	if judge == nil {
		judge = (*account).judge
	}
	verdict, why := judge(acc)
	row.Attack, row.Kind, row.Verdict, row.Why = a.name, a.kind, verdict, why
	record(t, row)
	switch verdict {
	case Held:
		t.Logf("HELD: %s", why)
	case NotApplicable:
		t.Logf("NOT-APPLICABLE: %s", why)
	default:
		t.Errorf("%s: %s\n%.6000s\n%v\n%v", verdict, why, acc.text, strings.Join(acc.damage, "\n"), acc.summary())
	}
}

// show makes the attack with its guard left out; it must escape.
func (a *attack) show(t *testing.T, u who) {
	row := Row{Attack: a.name, Kind: a.kind, Who: u.name, Strategy: "overlay", Mode: "guard off"}
	finish := func(verdict, why string) {
		row.Verdict, row.Why = verdict, why
		record(t, row)
		t.Logf("%s: %s", verdict, why)
	}
	g := a.guard
	if g.none != "" {
		finish(NotShown, g.none)
		return
	}
	if g.root != "" && u.uid != 0 {
		finish(NotShown, g.root)
		return
	}
	st := newStage(t, lab.Strategies(t)[0], u)
	st.KeepsBoxes()
	st.unboxed = g.bare
	if a.setup != nil {
		a.setup(st)
	}
	st.remember()
	var acc *account
	if g.bare {
		acc = st.bare(a)
		if a.asked != nil {
			a.asked(acc, "")
		}
	} else {
		st.leaveOut(g.without)
		acc = st.box(a, append(st.moreFlags, g.flags...)...)
	}
	judge := a.verdict
	if g.verdict != nil {
		judge = g.verdict
	}
	if judge == nil {
		judge = (*account).judge
	}
	switch verdict, why := judge(acc); verdict {
	case Escaped:
		how := "without " + g.without
		if g.bare {
			how = "without a box"
		}
		finish(Shown, how+": "+why)
	case NotApplicable:
		finish(NotShown, why)
	default:
		finish(verdict, why)
		t.Errorf("with its guard left out it must escape, or it proves nothing: %s: %s\n%.6000s\n%s", verdict, why, acc.text, acc.summary())
	}
}

// leaveOut makes the next box without steps of its plan.
func (st *stage) leaveOut(steps string) {
	st.t.Setenv(lab.BinEnv, fault(st.t))
	st.Env = append(st.Env, "HUTCH_LEAVE_OUT="+steps)
}
