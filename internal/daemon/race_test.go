package daemon

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"hutch/internal/api"
)

func (r *rig) race(body string) api.RaceResult {
	r.t.Helper()
	var result api.RaceResult
	r.do("POST", "/v1/races", body, 200, &result)
	return result
}

func (r *rig) states() map[api.State]int {
	list, _ := r.boxes.List(true)
	counts := map[api.State]int{}
	for _, b := range list {
		counts[b.State]++
	}
	return counts
}

func TestTheFirstSuccessWins(t *testing.T) {
	r := start(t, Options{})
	id := r.box()
	result := r.race(fmt.Sprintf(`{"box":%q,"runs":[{"argv":["false"]},{"argv":["sleep","60"]},{"argv":["sleep","0.05"]}]}`, id))
	if result.Winner == "" || result.Error != "" || len(result.Racers) != 3 || len(result.Delivery) == 0 {
		t.Fatalf("%+v", result)
	}
	for i, want := range []struct {
		status, fate string
		won          bool
	}{{"failed", "discarded", false}, {"killed", "discarded", false}, {"success", "committed", true}} {
		x := result.Racers[i]
		if x.Outcome == nil || string(x.Outcome.Status) != want.status || x.Fate != want.fate || x.Won != want.won {
			t.Errorf("racer %d: %+v", i, x)
		}
	}
	if s := r.states(); s[api.Committed] != 1 || s[api.Discarded] != 2 || s[api.Created] != 1 {
		t.Errorf("%v", s)
	}
}

func TestTheBestScoreWins(t *testing.T) {
	r := start(t, Options{})
	result := r.race(`{"create":{"workspace":"/w"},"runs":[{"argv":["put","n","3"]},{"argv":["put","n","20.5"]},{"argv":["put","n","x"]},{"argv":["false"]}],"score":{"argv":["get","n"]}}`)
	if len(result.Racers) != 4 || !result.Racers[1].Won || *result.Racers[1].Score != 20.5 || result.Racers[1].Fate != "committed" {
		t.Fatalf("%+v", result)
	}
	if !strings.Contains(result.Racers[2].Error, "number") || result.Racers[3].Score != nil {
		t.Errorf("%+v", result.Racers)
	}
	if s := r.states(); s[api.Committed] != 1 || s[api.Discarded] != 4 || len(s) != 2 {
		t.Errorf("%v", s)
	}
}

func TestNobodyWins(t *testing.T) {
	r := start(t, Options{})
	id := r.box()
	result := r.race(fmt.Sprintf(`{"box":%q,"count":2,"run":{"argv":["false"]}}`, id))
	if result.Winner != "" || result.Racers[0].Fate != "discarded" {
		t.Errorf("%+v", result)
	}
	// Boxes that were there before stay.
	result = r.race(fmt.Sprintf(`{"boxes":[%q],"run":{"argv":["false"]}}`, id))
	if result.Winner != "" || result.Racers[0].Fate != "kept" {
		t.Errorf("%+v", result)
	}
}

func TestAWinnerThatIsHeldIsKept(t *testing.T) {
	r := start(t, Options{})
	result := r.race(fmt.Sprintf(`{"box":%q,"count":2,"run":{"argv":["put","held","1"]}}`, r.box()))
	if result.Winner == "" || result.Error == "" || len(result.Delivery) == 0 {
		t.Fatalf("%+v", result)
	}
	for _, x := range result.Racers {
		if x.Won && x.Fate != "kept" || !x.Won && x.Fate != "discarded" {
			t.Errorf("%+v", x)
		}
	}
}

func TestARaceThatIsLeft(t *testing.T) {
	r := start(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	r.boxes.started = func(string, api.Run) { cancel() }
	req, _ := http.NewRequestWithContext(ctx, "POST", "http://x/v1/races", strings.NewReader(fmt.Sprintf(`{"box":%q,"count":3,"run":{"argv":["sleep","60"]}}`, r.box())))
	if res, err := r.client.Do(req); err == nil {
		res.Body.Close()
	}
	eventually(t, "all is discarded", func() bool { return r.states()[api.Discarded] == 3 })
	if s := r.states(); s[api.Created] != 1 {
		t.Errorf("%v", s)
	}
}

func TestRacesThatMakeNoSense(t *testing.T) {
	r := start(t, Options{})
	id := r.box()
	for _, body := range []string{
		`{"box":"x","boxes":["y"],"run":{"argv":["true"]}}`,
		`{"box":"x","run":{"argv":["true"]}}`,
		`{"box":"x","count":300,"run":{"argv":["true"]}}`,
		`{"box":"x","count":3,"runs":[{"argv":["true"]}]}`,
		`{"box":"x","count":2,"run":{"argv":["true"],"tty":{"rows":1,"cols":1}}}`,
		fmt.Sprintf(`{"boxes":[%q,%q],"run":{"argv":["true"]}}`, id, id),
	} {
		r.refused("POST", "/v1/races", body, 422, api.Invalid)
	}
	r.refused("POST", "/v1/races", `{"box":"none","count":2,"run":{"argv":["true"]}}`, 404, api.NotFound)
	r.refused("POST", "/v1/races", `{"create":{"workspace":"/w","policy":{"nonsense":1}},"count":2,"run":{"argv":["true"]}}`, 422, api.Invalid, "nonsense")
	if s := r.states(); len(s) != 1 || s[api.Created] != 1 {
		t.Errorf("%v", s)
	}
}
