package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

func TestTheLinesTakeTurns(t *testing.T) {
	q := newQueue(1, 100)
	if err := q.enter(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	join := func(client string, n int) {
		_, waiting := q.counts()
		all.Go(func() {
			if err := q.enter(t.Context(), client); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, fmt.Sprint(client, n))
			mu.Unlock()
			q.leave()
		})
		eventually(t, "it waits", func() bool { _, w := q.counts(); return w == waiting+1 })
	}
	for i := range 5 {
		join("greedy", i)
	}
	join("modest", 0)
	join("modest", 1)
	q.leave()
	all.Wait()
	want := []string{"greedy0", "modest0", "greedy1", "modest1", "greedy2", "greedy3", "greedy4"}
	if !slices.Equal(order, want) {
		t.Errorf("%q", order)
	}
	if running, waiting := q.counts(); running != 0 || waiting != 0 || len(q.lines) != 0 || len(q.turns) != 0 {
		t.Errorf("%d %d %v %v", running, waiting, q.lines, q.turns)
	}
}

func TestAFullLine(t *testing.T) {
	q := newQueue(1, 2)
	_ = q.enter(t.Context(), "a")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if err := q.enter(ctx, "a"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	eventually(t, "two wait", func() bool { _, w := q.counts(); return w == 2 })
	var e *api.Error
	if err := q.enter(ctx, "a"); !errors.As(err, &e) || e.Code != api.Full {
		t.Errorf("%v", err)
	}
	all.Go(func() { _ = q.enter(ctx, "b") }) // another's line is not full
	eventually(t, "three wait", func() bool { _, w := q.counts(); return w == 3 })
	cancel()
	all.Wait()
	if running, waiting := q.counts(); running != 1 || waiting != 0 || len(q.lines) != 0 || len(q.turns) != 0 {
		t.Errorf("%d %d %v %v", running, waiting, q.lines, q.turns)
	}
}

// TestTheQueueUnderStress enters, gives up and leaves at random moments.
func TestTheQueueUnderStress(t *testing.T) {
	q := newQueue(3, 1000)
	var all sync.WaitGroup
	var inside, most, mu = 0, 0, sync.Mutex{}
	for c := range 16 {
		all.Go(func() {
			for i := range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((c*7+i*13)%500)*time.Microsecond)
				if q.enter(ctx, fmt.Sprint(c%5)) == nil {
					mu.Lock()
					inside++
					most = max(most, inside)
					mu.Unlock()
					runtime.Gosched()
					mu.Lock()
					inside--
					mu.Unlock()
					q.leave()
				}
				cancel()
			}
		})
	}
	all.Wait()
	if running, waiting := q.counts(); running != 0 || waiting != 0 || len(q.lines) != 0 || len(q.turns) != 0 || most > 3 {
		t.Errorf("%d run, %d wait, %d lines, %d turns, at most %d at once", running, waiting, len(q.lines), len(q.turns), most)
	}
}

func TestTooManyAreTold(t *testing.T) {
	r := start(t, Options{MaxRunning: 1, Queue: 1})
	at := "/v1/boxes/" + r.box() + "/execs"
	r.do("POST", at+"?detach=true", `{"argv":["sleep","60"]}`, 201, nil)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://x"+at, strings.NewReader(`{"argv":["true"]}`))
		if res, err := r.client.Do(req); err == nil {
			res.Body.Close()
		}
	}()
	eventually(t, "one waits", func() bool { _, w := r.s.queue.counts(); return w == 1 })
	res := r.ask("POST", at, `{"argv":["true"]}`)
	if res.StatusCode != 429 || res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	r.refused("POST", at, `{"argv":["true"]}`, 429, api.Full, "--queue")
}

func TestALimitOfLiveBoxes(t *testing.T) {
	r := start(t, Options{MaxBoxes: 2})
	boxes := []string{r.box(), r.box(), r.box(), r.box()}
	run := func(i int, argv string, status int) {
		t.Helper()
		r.do("POST", "/v1/boxes/"+boxes[i]+"/execs", `{"argv":`+argv+`}`, status, nil)
	}
	live := func(i int) bool { b, _ := r.boxes.Show(boxes[i]); return b.Live }
	run(0, `["true"]`, 200)
	run(1, `["true"]`, 200)
	run(0, `["true"]`, 200)
	run(2, `["true"]`, 200) // 1 was used least recently
	if !live(0) || live(1) || !live(2) {
		t.Errorf("live: %v %v %v", live(0), live(1), live(2))
	}
	run(0, `["daemonise"]`, 200)
	run(1, `["true"]`, 200) // something runs in 0, so 2 goes, although 0 is older
	if !live(0) || !live(1) || live(2) {
		t.Errorf("live: %v %v %v", live(0), live(1), live(2))
	}
	run(1, `["daemonise"]`, 200)
	run(3, `["true"]`, 429)
	r.do("POST", "/v1/boxes/"+boxes[0]+"/release", "", 204, nil)
	run(3, `["true"]`, 200)
	// What ended without a request is found out.
	_ = r.boxes.Remove(boxes[3])
	r.s.lives.mu.Lock()
	r.s.lives.live[boxes[3]].used = time.Now().Add(-time.Hour)
	r.s.lives.mu.Unlock()
	if err := r.s.lives.renew(); err != nil {
		t.Fatal(err)
	}
	if n, _ := r.s.lives.counts(); n != 1 {
		t.Errorf("%d live", n)
	}
}

func TestALimitOfMemory(t *testing.T) {
	r := start(t, Options{MaxMemory: 300 << 20, BoxMemory: 100 << 20})
	var big api.Box
	r.do("POST", "/v1/boxes", `{"workspace":"/w","policy":{"limits":{"memory":"250M"}}}`, 201, &big)
	r.do("POST", "/v1/boxes/"+big.ID+"/execs", `{"argv":["daemonise"]}`, 200, nil)
	small := r.box()
	r.refused("POST", "/v1/boxes/"+small+"/execs", `{"argv":["true"]}`, 429, api.Full, "--max-memory")
	r.do("POST", "/v1/boxes/"+big.ID+"/kill", `{"all":true}`, 204, nil)
	r.do("POST", "/v1/boxes/"+small+"/execs", `{"argv":["true"]}`, 200, nil)
	if n, memory := r.s.lives.counts(); n != 1 || memory != 100<<20 {
		t.Errorf("%d live, %d promised", n, memory)
	}
}

// TestSixtyFourClients asks at once: no error, and nobody is much later than
// the others.
func TestSixtyFourClients(t *testing.T) {
	r := start(t, Options{MaxRunning: 4})
	const clients, each = 64, 20
	boxes := make([]string, 8)
	for i := range boxes {
		boxes[i] = r.box()
	}
	done := make([]time.Duration, clients)
	var all sync.WaitGroup
	var begin time.Time
	gun := make(chan struct{})
	for c := range clients {
		all.Go(func() {
			// This process would be one client, so the lines are told apart as
			// those of processes would be.
			<-gun
			for range each {
				ctx := context.WithValue(t.Context(), peerKey{}, peer{client: fmt.Sprint("client ", c), unix: true})
				run, err := r.s.start(ctx, boxes[c%len(boxes)], api.Run{Argv: []string{"sleep", "0.002"}}, Streams{})
				if err != nil {
					t.Error(err)
					return
				}
				if out, err := run.wait(ctx); err != nil || out.Status != outcome.Success {
					t.Error(out, err)
				}
			}
			done[c] = time.Since(begin)
		})
	}
	begin = time.Now()
	close(gun)
	all.Wait()
	slices.Sort(done)
	if first, last := done[0], done[clients-1]; first < last/2 {
		t.Errorf("the first client was done after %v, the last after %v", first, last)
	}
	if n, w := r.s.queue.counts(); n != 0 || w != 0 {
		t.Errorf("%d run, %d wait", n, w)
	}
	// And over connections of their own.
	var over sync.WaitGroup
	for c := range clients {
		over.Go(func() {
			for range 5 {
				var out outcome.Outcome
				r.do("POST", "/v1/boxes/"+boxes[c%len(boxes)]+"/execs", `{"argv":["echo","x"]}`, 200, &out)
				if out.Stdout != "x\n" {
					t.Errorf("%+v", out)
				}
			}
		})
	}
	over.Wait()
}
