package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

func (s *Server) raceRoute() {
	op := operation("POST", "/v1/races", "race", "Run commands side by side, each in a box of its own, and keep the change of the one that wins", ofLive)
	register(s, op, func(ctx context.Context, in *struct {
		RawBody []byte
		Body    api.Race
	}) (*reply[*api.RaceResult], error) {
		if in.Body.Create != nil {
			var raw struct {
				Create json.RawMessage `json:"create"`
			}
			if err := json.Unmarshal(in.RawBody, &raw); err != nil {
				return nil, refuse(api.Invalid, err.Error())
			}
			if err := strictCreate(raw.Create, in.Body.Create); err != nil {
				return nil, err
			}
		}
		result, err := s.race(ctx, in.Body)
		return &reply[*api.RaceResult]{result}, err
	})
}

// mostRacers is how many may race.
const mostRacers = 256

// race runs commands side by side. When ctx ends, all of them are ended and
// what the race made is discarded.
func (s *Server) race(ctx context.Context, q api.Race) (*api.RaceResult, error) {
	runs, err := racersOf(&q)
	if err != nil {
		return nil, err
	}
	c := &course{s: s, q: q, made: len(q.Boxes) == 0}
	if err := c.line(ctx, runs); err != nil {
		c.clear()
		return nil, err
	}
	c.run(ctx)
	return c.finish(ctx)
}

// racersOf checks what is asked for, and returns one run a racer.
func racersOf(q *api.Race) ([]api.Run, error) {
	given := 0
	for _, set := range []bool{len(q.Boxes) > 0, q.Box != "", q.Create != nil} {
		if set {
			given++
		}
	}
	if given != 1 {
		return nil, refuse(api.Invalid, "boxes, box and create: give one of them")
	}
	if (q.Run != nil) == (len(q.Runs) > 0) {
		return nil, refuse(api.Invalid, "run and runs: give one of them")
	}
	n := q.Count
	for _, of := range []int{len(q.Boxes), len(q.Runs)} {
		if n == 0 {
			n = of
		}
		if of > 0 && of != n {
			return nil, refuse(api.Invalid, fmt.Sprintf("%d racers, but %d boxes and %d runs: give as many", n, len(q.Boxes), len(q.Runs)))
		}
	}
	if n < 1 || n > mostRacers {
		return nil, refuse(api.Invalid, fmt.Sprintf("count is %d: give 1 to %d", n, mostRacers))
	}
	runs := q.Runs
	if q.Run != nil {
		runs = make([]api.Run, n)
		for i := range runs {
			runs[i] = *q.Run
		}
	}
	for i, r := range runs {
		if len(r.Argv) == 0 {
			return nil, refuse(api.Invalid, fmt.Sprintf("the run of racer %d has no argv", i+1))
		}
		if r.TTY != nil {
			return nil, refuse(api.Invalid, "a racer has no terminal: leave tty out")
		}
	}
	return runs, nil
}

// course is a race while it runs.
type course struct {
	s      *Server
	q      api.Race
	made   bool   // the boxes of the racers were made for it
	base   string // the box they were forked from, where that was made for it
	racers []api.Racer
	runs   []api.Run

	mu     sync.Mutex
	winner int // -1: none yet
}

// line makes the boxes.
func (c *course) line(ctx context.Context, runs []api.Run) error {
	c.runs, c.winner = runs, -1
	boxes := c.q.Boxes
	if c.made {
		from := c.q.Box
		start := time.Now()
		if c.q.Create != nil {
			b, err := c.s.boxes.Create(ctx, *c.q.Create)
			if err != nil {
				return err
			}
			c.base, from = b.ID, b.ID
		}
		forks, err := c.s.boxes.Fork(ctx, from, len(runs), nil)
		if err != nil {
			return err
		}
		c.s.metrics.took(phaseBranch, time.Since(start))
		for _, b := range forks {
			boxes = append(boxes, b.ID)
		}
	}
	seen := map[string]bool{}
	for i, ref := range boxes {
		b, err := c.s.boxes.Show(ref)
		if err != nil {
			return err
		}
		if seen[b.ID] {
			return refuse(api.Invalid, fmt.Sprintf("box %s races twice: fork it", b.ID))
		}
		seen[b.ID] = true
		c.racers = append(c.racers, api.Racer{Box: b.ID, Argv: runs[i].Argv, Fate: "kept"})
	}
	return nil
}

// run lets them run, until all have ended or, without a score, one succeeded.
func (c *course) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	for i := range c.racers {
		all.Go(func() {
			r := &c.racers[i]
			out, err := c.one(ctx, r.Box, c.runs[i])
			if r.Outcome = out; err != nil {
				r.Error = err.Error()
				return
			}
			if out.Status != outcome.Success {
				return
			}
			if c.q.Score != nil {
				score, err := c.score(ctx, r.Box)
				if err != nil {
					r.Error = err.Error()
					return
				}
				r.Score = &score
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.winner < 0 || (c.q.Score != nil && *r.Score > *c.racers[c.winner].Score) {
				c.winner = i
			}
			if c.q.Score == nil {
				stop()
			}
		})
	}
	all.Wait()
}

// one runs a command to its end. Where another has won, it is ended.
func (c *course) one(ctx context.Context, box string, run api.Run) (*outcome.Outcome, error) {
	r, err := c.s.start(ctx, box, run, Streams{})
	if err != nil {
		return nil, err
	}
	out, err := r.wait(ctx)
	if out != nil || ctx.Err() == nil {
		return out, err
	}
	// A loser has no farewell: its box is dropped, or was not asked to be tidy.
	_ = c.s.boxes.Kill(r.exec.Box, api.Kill{Exec: r.exec.ID})
	return r.wait(context.Background())
}

// score runs the command that tells how good a racer is.
func (c *course) score(ctx context.Context, box string) (float64, error) {
	out, err := c.one(ctx, box, *c.q.Score)
	if err != nil {
		return 0, fmt.Errorf("score: %w", err)
	}
	if out.Status != outcome.Success {
		return 0, fmt.Errorf("score: %s, exit code %d", out.Status, out.ExitCode)
	}
	lines := strings.Split(strings.TrimSpace(out.Stdout), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	score, err := strconv.ParseFloat(last, 64)
	if err != nil || math.IsNaN(score) || math.IsInf(score, 0) {
		return 0, fmt.Errorf("score: the last line of the output is %.40q: print a number", last)
	}
	return score, nil
}

// finish commits the winner and drops the others.
func (c *course) finish(ctx context.Context) (*api.RaceResult, error) {
	if ctx.Err() != nil {
		c.clear()
		return nil, c.s.deserted()
	}
	result := &api.RaceResult{}
	if c.winner >= 0 {
		w := &c.racers[c.winner]
		w.Won, result.Winner = true, w.Box
		if !c.q.Keep {
			result.Error = c.commit(ctx, w, result)
		}
	}
	c.drop()
	result.Racers = c.racers
	c.s.log.Info("race", "racers", len(c.racers), "winner", result.Winner, "error", result.Error, "client", peerIn(ctx).client)
	return result, nil
}

// commit promotes the winner's change, and returns why that failed.
func (c *course) commit(ctx context.Context, w *api.Racer, result *api.RaceResult) string {
	// What it left running would only keep the box from being quiet.
	if err := c.s.boxes.Kill(w.Box, api.Kill{All: true}); err != nil {
		c.s.log.Warn("race", "box", w.Box, "error", err)
	}
	d, err := c.s.commit(ctx, w.Box, c.q.Commit)
	if err != nil {
		result.Delivery = problemOf(err).Delivery
		return err.Error()
	}
	if result.Delivery, err = json.Marshal(d); err != nil {
		return err.Error()
	}
	if !d.Kept && !c.q.Commit.Keep {
		w.Fate = "committed"
	}
	return ""
}

// drop discards the boxes that are not needed any more.
func (c *course) drop() {
	if !c.q.Keep && !c.q.NoDiscard {
		for i := range c.racers {
			// Without a winner, boxes that were there before the race stay.
			if r := &c.racers[i]; (c.made || c.winner >= 0) && !r.Won && c.discard(r.Box) {
				r.Fate = "discarded"
			}
		}
	}
	if c.base != "" {
		c.discard(c.base)
	}
}

// clear discards all that was made for the race.
func (c *course) clear() {
	if c.made {
		for i := range c.racers {
			c.discard(c.racers[i].Box)
		}
	}
	if c.base != "" {
		c.discard(c.base)
	}
}

func (c *course) discard(id string) bool {
	if err := c.s.boxes.Discard(context.Background(), id, true); err != nil {
		c.s.log.Warn("a box of a race could not be discarded", "box", id, "error", err)
		return false
	}
	c.s.lives.forget(id)
	return true
}
