package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

// FuzzRequest sends anything: the daemon neither panics nor fails, and what it
// refuses is a problem.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][3]string{
		{"POST", "/v1/boxes", `{"workspace":"/w","name":"x","policy":{"limits":{"memory":"1G"}},"environ":["A=b"]}`},
		{"POST", "/v1/boxes/b00001/execs", `{"argv":["echo","x"],"tty":{"rows":1,"cols":2},"timeout_seconds":0.5,"stdin_base64":"YQ=="}`},
		{"POST", "/v1/boxes/b00001/execs?detach=true&on_disconnect=keep", `{"argv":["true"]}`},
		{"GET", "/v1/boxes/b00001/execs/1/output?stream=stderr&offset=1&follow=true", ""},
		{"PUT", "/v1/boxes/b00001/files?path=/a&mode=0755", "content"},
		{"HEAD", "/v1/boxes/b00001/files?path=%2f..%2f%00", ""},
		{"POST", "/v1/boxes/b00001/kill", `{"exec":"1","signal":"TERM"}`},
		{"POST", "/v1/boxes/b00001/fork", `{"count":2,"names":["a"]}`},
		{"POST", "/v1/boxes/b00001/commit", `{"only":["*"],"on_conflict":"merge"}`},
		{"POST", "/v1/races", `{"box":"b00001","runs":[{"argv":["true"]},{"argv":["false"]}],"score":{"argv":["echo","1"]}}`},
		{"GET", "/v1/boxes/b00001/diff?format=patch&git=true", ""},
		{"GET", "/v1/boxes/b00001/ports/80/proxy/%2e%2e/x?y", ""},
		{"GET", "/v1/boxes/b00001/ports/80/tunnel", ""},
		{"GET", "/v1/boxes/../../openapi.json", ""},
		{"POST", "/v1/shutdown", "{}"},
	} {
		f.Add(seed[0], seed[1], "", "application/json", seed[2])
		f.Add(seed[0], seed[1], ndjson, "application/json", seed[2])
	}
	s := New(newMemory(), Options{})
	f.Fuzz(func(t *testing.T, method, target, accept, kind, body string) {
		req, err := http.NewRequest(method, "http://x", strings.NewReader(body))
		if err != nil {
			t.Skip()
		}
		u, err := req.URL.Parse(target)
		if err != nil || u.Host != "x" || !strings.HasPrefix(u.Path, "/") || strings.Contains(u.Path, "pprof") {
			t.Skip() // a profile takes as long as it is told to
		}
		if strings.Contains(body, "sleep") || strings.Contains(body, "stubborn") || strings.Contains(body, "yes") {
			t.Skip() // those take their time
		}
		req.URL, req.RequestURI, req.RemoteAddr = u, u.RequestURI(), "@"
		req.Header.Set("Accept", accept)
		req.Header.Set("Content-Type", kind)
		m := newMemory()
		m.create("").State = api.Created
		s.boxes, s.lives = m, newLives(m, 0, 0, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		req = req.WithContext(withPeer(ctx, peer{client: "fuzz", unix: true}))
		w := httptest.NewRecorder()
		s.ServeHTTP(w, req)
		if ctx.Err() != nil {
			t.Errorf("%s %s %q does not end", method, target, body)
		}
		if w.Code == http.StatusInternalServerError {
			t.Errorf("%s %s %q: %s", method, target, body, w.Body)
		}
		if w.Code >= 400 && method != http.MethodHead {
			var p api.Problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != w.Code || p.Code == "" || p.Detail == "" {
				t.Errorf("%s %s: %d is no problem: %v %q", method, target, w.Code, err, w.Body)
			}
		}
		if _, lines := s.queue.counts(); lines != 0 {
			t.Errorf("%d wait", lines)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
		eventually(t, "nothing runs", func() bool { return s.work.Load() == 0 })
	})
}

// FuzzFrame sends any first frame of a WebSocket.
func FuzzFrame(f *testing.F) {
	for _, seed := range []string{`{"argv":["a"]}`, `{"argv":["a"],"tty":{"rows":1,"cols":99999}}`, `{"resize":{"rows":-1}}`, `{"signal":"INT"} {}`, `null`, `[1]`, `{"argv":7}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var run api.Run
		var in api.Input
		for _, into := range []any{&run, &in} {
			if err := strict([]byte(text), into); err != nil && problemOf(err).Code != api.Invalid {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}

// FuzzPieces cuts a text into pieces: the events hold all of it, and no
// character is in two.
func FuzzPieces(f *testing.F) {
	f.Add([]byte("aä€😀\xff\xc3"), uint8(1))
	f.Add([]byte("\xf0\x9f\x98\x80\xe2\x82"), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		w := httptest.NewRecorder()
		e := &events{w: w, text: map[string]*[]byte{"stdout": new([]byte)}}
		if len(text) > 4096 {
			t.Skip()
		}
		step := int(size%7) + 1
		for rest := text; len(rest) > 0; rest = rest[min(step, len(rest)):] {
			e.output("stdout", rest[:min(step, len(rest))], false)
		}
		e.output("stdout", nil, true)
		_ = e.flush()
		var all []byte
		d := json.NewDecoder(w.Body)
		for d.More() {
			var v api.Event
			if err := d.Decode(&v); err != nil {
				t.Fatal(err)
			}
			all = append(append(all, v.Data...), v.Base64...)
		}
		if string(all) != string(text) {
			t.Errorf("%q became %q", text, all)
		}
	})
}

// BenchmarkExec is what the daemon adds to a command that takes no time, over a
// unix socket, the client included.
func BenchmarkExec(b *testing.B) {
	r := start(b, Options{})
	m := &instant{memory: r.boxes}
	r.s.boxes, r.s.lives.boxes = m, m
	url := "http://x/v1/boxes/" + r.box() + "/execs"
	b.ReportAllocs()
	for b.Loop() {
		res, err := r.client.Post(url, "application/json", strings.NewReader(`{"argv":["true"]}`))
		if err != nil {
			b.Fatal(err)
		}
		var out outcome.Outcome
		if err := json.NewDecoder(res.Body).Decode(&out); err != nil || out.Status != outcome.Success {
			b.Fatal(err, out)
		}
		res.Body.Close()
	}
}
