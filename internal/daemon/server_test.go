package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

// rig is a server over boxes in memory, on a unix socket as in earnest.
type rig struct {
	t      testing.TB
	boxes  *memory
	s      *Server
	path   string
	client *http.Client
}

func start(t testing.TB, o Options) *rig {
	t.Helper()
	r := &rig{t: t, boxes: newMemory(), path: filepath.Join(t.TempDir(), "s")}
	r.s = New(r.boxes, o)
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	h := r.s.httpServer()
	go h.Serve(l)
	transport := &http.Transport{MaxIdleConnsPerHost: 100, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.path)
	}}
	r.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		h.Close()
		_ = r.boxes.Close(context.Background())
	})
	return r
}

// ask sends a request with a body of JSON, if any.
func (r *rig) ask(method, path, body string) *http.Response {
	r.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, "http://hutchd"+path, reader)
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" && method == "POST" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { res.Body.Close() })
	return res
}

// do expects a status, and decodes the body.
func (r *rig) do(method, path, body string, status int, into any) {
	r.t.Helper()
	res := r.ask(method, path, body)
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if res.StatusCode != status {
		r.t.Fatalf("%s %s: %d, not %d: %s", method, path, res.StatusCode, status, text)
	}
	if status >= 400 && res.Header.Get("Content-Type") != problemType {
		r.t.Errorf("%s %s: %d is no problem but %q: %s", method, path, status, res.Header.Get("Content-Type"), text)
	}
	if into == nil {
		return
	}
	if s, ok := into.(*string); ok {
		*s = string(text)
		return
	}
	if err := json.Unmarshal(text, into); err != nil {
		r.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
}

func (r *rig) box() string {
	r.t.Helper()
	var b api.Box
	r.do("POST", "/v1/boxes", `{"workspace":"/w"}`, 201, &b)
	return b.ID
}

// refused expects a problem.
func (r *rig) refused(method, path, body string, status int, code api.Code, says ...string) {
	r.t.Helper()
	var p api.Problem
	r.do(method, path, body, status, &p)
	if p.Code != code || p.Status != status || p.Detail == "" {
		r.t.Errorf("%s %s %s: %+v", method, path, body, p)
	}
	for _, s := range says {
		if !strings.Contains(p.Detail, s) {
			r.t.Errorf("%s %s %.80s: %q does not say %q", method, path, body, p.Detail, s)
		}
	}
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if is() {
			return
		}
	}
	buf := make([]byte, 1<<20)
	t.Fatalf("%s never came true\n%s", what, buf[:runtime.Stack(buf, true)])
}

func TestTheLifeOfABox(t *testing.T) {
	r := start(t, Options{Version: "v"})
	var b api.Box
	r.do("POST", "/v1/boxes", `{"workspace":"/w","name":"fix","policy":{"limits":{"memory":"64M"}}}`, 201, &b)
	if b.Name != "fix" || b.Memory != 64<<20 {
		t.Errorf("%+v", b)
	}
	at := "/v1/boxes/fix"
	var out outcome.Outcome
	r.do("POST", at+"/execs", `{"argv":["echo","hello"]}`, 200, &out)
	if out.Stdout != "hello\n" || out.Status != outcome.Success {
		t.Errorf("%+v", out)
	}
	r.do("POST", at+"/execs", `{"argv":["false"]}`, 200, &out)
	if out.Status != outcome.Failed || out.ExitCode != 1 {
		t.Errorf("%+v", out)
	}
	r.do("POST", at+"/execs", `{"argv":["put","a","1"]}`, 200, nil)
	r.do("POST", at+"/checkpoints", `{"name":"one"}`, 201, nil)
	r.do("POST", at+"/execs", `{"argv":["put","a","2"]}`, 200, nil)
	var forks []api.Box
	r.do("POST", at+"/fork", `{"count":2}`, 201, &forks)
	if len(forks) != 2 || forks[0].Parent != b.ID {
		t.Errorf("%+v", forks)
	}
	r.do("POST", at+"/restore", `{"name":"one"}`, 204, nil)
	r.do("POST", at+"/execs", `{"argv":["get","a"]}`, 200, &out)
	if out.Stdout != "1" {
		t.Errorf("restored: %q", out.Stdout)
	}
	var points []api.Checkpoint
	if r.do("GET", at+"/checkpoints", "", 200, &points); len(points) != 1 {
		t.Errorf("%+v", points)
	}
	var text string
	r.do("PUT", at+"/files?path=/w/b&mode=600", "bytes", 204, nil)
	if r.do("GET", at+"/files?path=/w/b", "", 200, &text); text != "bytes" {
		t.Errorf("file: %q", text)
	}
	if res := r.ask("HEAD", at+"/files?path=/w/b", ""); res.StatusCode != 200 || res.Header.Get("Content-Length") != "5" || res.Header.Get(headerMode) != "0644" {
		t.Errorf("HEAD: %d %v", res.StatusCode, res.Header)
	}
	var files []api.File
	if r.do("GET", at+"/dir?path=/w", "", 200, &files); len(files) != 1 || files[0].Name != "b" {
		t.Errorf("%+v", files)
	}
	r.do("DELETE", at+"/files?path=/w/b", "", 204, nil)
	r.refused("GET", at+"/files?path=/w/b", "", 404, api.NotFound)
	var execs []api.Exec
	if r.do("GET", at+"/execs", "", 200, &execs); len(execs) != 5 {
		t.Errorf("%d execs", len(execs))
	}
	var e api.Exec
	if r.do("GET", at+"/execs/1", "", 200, &e); e.Outcome == nil || e.Outcome.Stdout != "hello\n" {
		t.Errorf("%+v", e)
	}
	if r.do("GET", at+"/execs/1/output?offset=2", "", 200, &text); text != "llo\n" {
		t.Errorf("output: %q", text)
	}
	var done struct{ Status outcome.Status }
	if r.do("POST", at+"/commit", `{}`, 200, &done); done.Status != outcome.Success {
		t.Errorf("%+v", done)
	}
	r.refused("POST", at+"/execs", `{"argv":["true"]}`, 404, api.NotFound)
	r.refused("POST", "/v1/boxes/"+b.ID+"/execs", `{"argv":["true"]}`, 409, api.WrongState)
	r.do("POST", "/v1/boxes/"+forks[0].ID+"/discard", "", 204, nil)
	r.do("DELETE", "/v1/boxes/"+forks[1].ID, "", 204, nil)
	var list []api.Box
	if r.do("GET", "/v1/boxes", "", 200, &list); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if r.do("GET", "/v1/boxes?all=true", "", 200, &list); len(list) != 2 {
		t.Errorf("%+v", list)
	}
	var st api.Status
	if r.do("GET", "/v1/status", "", 200, &st); st.Version != "v" || st.Live != 0 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
}

func TestWhatMakesNoSenseIsNamed(t *testing.T) {
	r := start(t, Options{})
	id := r.box()
	at := "/v1/boxes/" + id
	long := strings.Repeat("x", maxBody)
	for _, c := range []struct {
		method, path, body string
		status             int
		code               api.Code
		says               []string
	}{
		{"POST", "/v1/boxes", `{"workspace":"/w","nmae":"x"}`, 422, api.Invalid, []string{"nmae"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","Name":"x"}`, 422, api.Invalid, []string{"Name"}},
		{"POST", "/v1/boxes", `{"workspace":7}`, 422, api.Invalid, []string{"body.workspace", "string"}},
		{"POST", "/v1/boxes", `{}`, 422, api.Invalid, []string{"workspace"}},
		{"POST", "/v1/boxes", `{"workspace":"w"}`, 422, api.Invalid, []string{"absolute"}},
		{"POST", "/v1/boxes", `{"workspace":""}`, 422, api.Invalid, []string{"absolute"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","layer_dir":"l"}`, 422, api.Invalid, []string{"layer_dir", "absolute"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","policy_file":"../p"}`, 422, api.Invalid, []string{"policy_file", "absolute"}},
		{"POST", "/v1/races", `{"create":{"workspace":"w"},"count":1,"run":{"argv":["true"]}}`, 422, api.Invalid, []string{"absolute"}},
		{"POST", "/v1/boxes", `{"workspace":"/w"} x`, 400, api.Invalid, nil},
		{"POST", "/v1/boxes", `[]`, 422, api.Invalid, nil},
		{"POST", "/v1/boxes", ``, 400, api.Invalid, []string{"body"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","policy":{"limits":{"memry":"1G"}}}`, 422, api.Invalid, []string{"memry"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","policy":{"limits":{"memory":"lots"}}}`, 422, api.Invalid, []string{"lots", "size"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","policy":7}`, 422, api.Invalid, []string{"policy"}},
		{"POST", "/v1/boxes", `{"workspace":"/w","name":"` + long + `"}`, 413, api.Invalid, nil},
		{"POST", at + "/execs", `{"argv":[]}`, 422, api.Invalid, []string{"argv"}},
		{"POST", at + "/execs", `{"argv":null}`, 422, api.Invalid, []string{"argv"}},
		{"POST", at + "/execs", `{"argv":["a",7]}`, 422, api.Invalid, []string{"body.argv[1]"}},
		{"POST", at + "/execs", `{"argv":"a"}`, 422, api.Invalid, []string{"body.argv"}},
		{"POST", at + "/execs", `{"argv":["a"],"tty":{"rows":1}}`, 422, api.Invalid, []string{"cols"}},
		{"POST", at + "/execs", `{"argv":["a"],"stdin":"a","stdin_base64":"YQ=="}`, 422, api.Invalid, []string{"exclude"}},
		{"POST", at + "/execs?detatch=true", `{"argv":["a"]}`, 422, api.Invalid, []string{"detatch"}},
		{"POST", at + "/execs?on_disconnect=weep", `{"argv":["a"]}`, 422, api.Invalid, []string{"on_disconnect"}},
		{"GET", at + "/execs/99", "", 404, api.NotFound, []string{"99"}},
		{"GET", at + "/execs/1/output?offset=-1", "", 422, api.Invalid, []string{"offset"}},
		{"GET", at + "/files", "", 422, api.Invalid, []string{"path"}},
		{"PUT", at + "/files?path=/a&mode=999", "x", 422, api.Invalid, []string{"mode"}},
		{"POST", at + "/restore", `{"name":"nothing"}`, 404, api.NotFound, []string{"nothing"}},
		{"POST", at + "/kill", `{"signal":9}`, 422, api.Invalid, []string{"body.signal"}},
		{"POST", "/v1/races", `{"count":2}`, 422, api.Invalid, []string{"boxes, box and create"}},
		{"POST", "/v1/races", `{"box":"x","count":2}`, 422, api.Invalid, []string{"run and runs"}},
		{"GET", "/v1/boxes/none", "", 404, api.NotFound, []string{"none"}},
		{"GET", "/v1/nothing", "", 404, api.NotFound, []string{"/v1/nothing"}},
		{"GET", "/", "", 404, api.NotFound, nil},
		{"PATCH", "/v1/boxes", "{}", 405, api.Invalid, []string{"GET or HEAD or POST"}},
		{"DELETE", "/v1/health", "", 405, api.Invalid, []string{"GET"}},
		{"GET", at + "/attach", "", 426, api.Invalid, []string{"WebSocket"}},
		{"GET", at + "/ports/80/tunnel", "", 426, api.Invalid, []string{"hutch-tunnel"}},
		{"GET", at + "/ports/99999/proxy/", "", 422, api.Invalid, []string{"99999"}},
		{"GET", at + "/ports/81/proxy/", "", 502, api.NotFound, []string{"81"}},
		{"POST", "/v1/shutdown", "", 501, api.Unsupported, nil},
	} {
		r.refused(c.method, c.path, c.body, c.status, c.code, c.says...)
	}
	if n, _ := r.boxes.List(true); len(n) != 1 {
		t.Errorf("something was made all the same: %v", n)
	}
	if r.boxes.starts != 0 {
		t.Errorf("%d commands were started", r.boxes.starts)
	}
}

// A page can send a form to anywhere without asking first.
func TestAFormIsRefused(t *testing.T) {
	r := start(t, Options{})
	res, err := r.client.Post("http://x/v1/boxes", "application/x-www-form-urlencoded", strings.NewReader(`{"workspace":"/w"}`))
	if err != nil || res.StatusCode != 415 {
		t.Errorf("%v %v", res, err)
	}
}

func TestAnErrorEchoesNoBody(t *testing.T) {
	r := start(t, Options{})
	var text string
	r.do("POST", "/v1/boxes/x/execs", `{"argv":["a"],"env":"TOKEN=hush"}`, 422, &text)
	if strings.Contains(text, "hush") {
		t.Errorf("what was sent comes back: %s", text)
	}
	r.do("POST", "/v1/boxes/x/execs", `{"argv":["a"],"env":["TOKEN=hush"]`, 400, &text)
	if strings.Contains(text, "hush") {
		t.Errorf("what was sent comes back: %s", text)
	}
}

func TestAStreamOfEvents(t *testing.T) {
	for _, kind := range []string{ndjson, sse} {
		r := start(t, Options{})
		req, _ := http.NewRequest("POST", "http://x/v1/boxes/"+r.box()+"/execs", strings.NewReader(`{"argv":["split"]}`))
		req.Header.Set("Accept", kind)
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != kind {
			t.Fatalf("%d %v", res.StatusCode, res.Header)
		}
		var events []api.Event
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			line := lines.Text()
			if kind == sse {
				if line == "" {
					continue
				}
				var ok bool
				if line, ok = strings.CutPrefix(line, "data: "); !ok {
					t.Fatalf("%q", line)
				}
			}
			var e api.Event
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			events = append(events, e)
		}
		if len(events) < 3 || events[0].Exec == nil || events[0].Exec.ID != "1" {
			t.Fatalf("%s: %+v", kind, events)
		}
		var all bytes.Buffer
		for _, e := range events[1 : len(events)-1] {
			if e.Stream != "stdout" {
				t.Errorf("%+v", e)
			}
			all.WriteString(e.Data)
			all.Write(e.Base64)
		}
		if all.String() != "aä \xff" {
			t.Errorf("%q", all.String())
		}
		if events[1].Data != "a" {
			t.Errorf("a character was cut in two: %+v", events[1])
		}
		if last := events[len(events)-1]; last.Outcome == nil || last.Outcome.StdoutBytes != 5 || last.Outcome.Stdout != "" {
			t.Errorf("%+v", last)
		}
	}
}

func TestDetachedAndFollowed(t *testing.T) {
	r := start(t, Options{})
	at := "/v1/boxes/" + r.box()
	var e api.Exec
	r.do("POST", at+"/execs?detach=true", `{"argv":["sleep","0.1"]}`, 201, &e)
	if !e.Running || e.ID != "1" {
		t.Errorf("%+v", e)
	}
	var text string
	r.do("GET", at+"/execs/1/output?follow=true", "", 200, &text)
	if r.do("GET", at+"/execs/1", "", 200, &e); e.Running {
		t.Errorf("followed, but runs: %+v", e)
	}
	eventually(t, "no reader is open", func() bool { r.boxes.mu.Lock(); defer r.boxes.mu.Unlock(); return r.boxes.opened == 0 })
	eventually(t, "nothing runs", func() bool { n, _ := r.s.queue.counts(); return n == 0 })
}

// A follower that leaves lets go of what it read.
func TestAFollowerThatLeaves(t *testing.T) {
	r := start(t, Options{})
	at := "/v1/boxes/" + r.box()
	r.do("POST", at+"/execs?detach=true", `{"argv":["sleep","60"]}`, 201, nil)
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", "http://x"+at+"/execs/1/output?follow=true", nil)
	go func() {
		time.Sleep(50 * time.Millisecond)
		cancel()
	}()
	if res, err := r.client.Do(req); err == nil {
		res.Body.Close()
	}
	eventually(t, "the reader is closed", func() bool { r.boxes.mu.Lock(); defer r.boxes.mu.Unlock(); return r.boxes.opened == 0 })
}

func TestAClientThatLeaves(t *testing.T) {
	for _, c := range []struct {
		query, accept, argv string
		runs                bool
		signal              string
	}{
		{"", "", `["sleep","60"]`, false, "SIGINT"},
		{"", ndjson, `["sleep","60"]`, false, "SIGINT"},
		{"", "", `["stubborn","60"]`, false, "SIGKILL"},
		{"?on_disconnect=keep", "", `["sleep","60"]`, true, ""},
		{"?on_disconnect=keep", ndjson, `["sleep","60"]`, true, ""},
	} {
		r := start(t, Options{})
		at := "/v1/boxes/" + r.box()
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan struct{})
		r.boxes.started = func(string, api.Run) { close(started) }
		go func() {
			<-started
			time.Sleep(20 * time.Millisecond)
			cancel()
		}()
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://x"+at+"/execs"+c.query, strings.NewReader(`{"argv":`+c.argv+`}`))
		req.Header.Set("Accept", c.accept)
		if res, err := r.client.Do(req); err == nil {
			_, _ = io.ReadAll(res.Body)
			res.Body.Close()
		}
		var e api.Exec
		if c.runs {
			time.Sleep(100 * time.Millisecond)
			if r.do("GET", at+"/execs/1", "", 200, &e); !e.Running {
				t.Errorf("%+v: it was ended", c)
			}
			continue
		}
		eventually(t, "the command ends", func() bool { r.do("GET", at+"/execs/1", "", 200, &e); return !e.Running })
		if e.Outcome.Signal != c.signal {
			t.Errorf("%+v: %s", c, e.Outcome.Signal)
		}
		eventually(t, "its place is free", func() bool { n, _ := r.s.queue.counts(); return n == 0 })
	}
}

// A client that does not read holds neither a command nor the daemon.
func TestASlowReader(t *testing.T) {
	r := start(t, Options{Stall: 200 * time.Millisecond})
	id := r.box()
	at := "/v1/boxes/" + id
	before := runtime.NumGoroutine()
	conn, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"argv":["yes","8000000"]}`
	fmt.Fprintf(conn, "POST %s/execs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", at, ndjson, len(body), body)
	var e api.Exec
	eventually(t, "the command ends", func() bool {
		known, err := r.boxes.ExecOf(id, "1")
		if err != nil || known.Running {
			return false
		}
		e = *known
		return true
	})
	if e.Outcome.Status != outcome.Success || e.Outcome.StdoutBytes != 8000000 {
		t.Errorf("%s %d", e.Outcome.Status, e.Outcome.StdoutBytes)
	}
	eventually(t, "the client is cut off", func() bool { n, _ := r.s.queue.counts(); return n == 0 })
	r.client.CloseIdleConnections()
	eventually(t, "its goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
	// What it did read ends in the middle: no last chunk of a whole answer.
	all, _ := io.ReadAll(conn)
	if bytes.HasSuffix(all, []byte("0\r\n\r\n")) {
		t.Error("the answer looks whole")
	}
}

func TestASlowSender(t *testing.T) {
	r := start(t, Options{Body: time.Second, Stall: time.Second})
	id := r.box()
	for _, head := range []string{
		"POST /v1/boxes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"PUT /v1/boxes/" + id + "/files?path=/a HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc",
	} {
		conn, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, head)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		answer, err := io.ReadAll(conn)
		if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 4")) {
			t.Errorf("%q: %v %q", head, err, answer)
		}
	}
	// The deadline of a body is none of a command's.
	var out outcome.Outcome
	if r.do("POST", "/v1/boxes/"+id+"/execs", `{"argv":["sleep","1.3"]}`, 200, &out); out.Status != outcome.Success {
		t.Errorf("%+v", out)
	}
}

func TestBrowsersAreRefused(t *testing.T) {
	r := start(t, Options{})
	req, _ := http.NewRequest("GET", "http://x/v1/health", nil)
	req.Header.Set("Origin", "http://localhost")
	res, err := r.client.Do(req)
	if err != nil || res.StatusCode != 403 {
		t.Errorf("%v %v", res, err)
	}
}

func TestTCPNeedsTheToken(t *testing.T) {
	s := New(newMemory(), Options{Token: []byte("0123456789abcdef"), Hosts: []string{"box.example"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := s.httpServer()
	go h.Serve(l)
	defer h.Close()
	for _, c := range []struct {
		host, auth, path string
		status           int
	}{
		{"", "", "/v1/health", 401},
		{"", "Bearer 0123456789abcdeg", "/v1/health", 401},
		{"", "Bearer ", "/v1/health", 401},
		{"", "0123456789abcdef", "/v1/health", 401},
		{"", "Bearer 0123456789abcdef", "/v1/health", 200},
		{"localhost:1", "Bearer 0123456789abcdef", "/v1/health", 200},
		{"box.example", "Bearer 0123456789abcdef", "/v1/health", 200},
		{"evil.example", "Bearer 0123456789abcdef", "/v1/health", 403},
		{"", "Bearer 0123456789abcdef", "/debug/pprof/", 403},
	} {
		req, _ := http.NewRequest("GET", "http://"+l.Addr().String()+c.path, nil)
		req.Host = c.host
		req.Header.Set("Authorization", c.auth)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%+v: %d", c, res.StatusCode)
		}
	}
	none := New(newMemory(), Options{})
	if none.knows("Bearer ") || none.knows("") {
		t.Error("no token is a token")
	}
}

func (r *rig) attach(at string) *websocket.Conn {
	r.t.Helper()
	conn, _, err := websocket.Dial(r.t.Context(), "ws://x"+at+"/attach", &websocket.DialOptions{HTTPClient: r.client})
	if err != nil {
		r.t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	r.t.Cleanup(func() { conn.CloseNow() })
	return conn
}

func say(t testing.TB, conn *websocket.Conn, kind websocket.MessageType, frame string) {
	t.Helper()
	if err := conn.Write(t.Context(), kind, []byte(frame)); err != nil {
		t.Fatal(err)
	}
}

func hear(t testing.TB, conn *websocket.Conn) (e api.Event, data string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	kind, frame, err := conn.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if kind == websocket.MessageBinary {
		return e, string(frame)
	}
	if err := json.Unmarshal(frame, &e); err != nil {
		t.Fatal(err)
	}
	return e, ""
}

func TestAttach(t *testing.T) {
	r := start(t, Options{})
	at := "/v1/boxes/" + r.box()
	conn := r.attach(at)
	say(t, conn, websocket.MessageText, `{"argv":["cat"],"tty":{"rows":24,"cols":80}}`)
	if e, _ := hear(t, conn); e.Exec == nil || e.Exec.ID != "1" {
		t.Fatalf("%+v", e)
	}
	say(t, conn, websocket.MessageBinary, "ping")
	if _, data := hear(t, conn); data != "\x01ping" {
		t.Errorf("%q", data)
	}
	say(t, conn, websocket.MessageText, `{"resize":{"rows":5,"cols":6}}`)
	say(t, conn, websocket.MessageText, `{"eof":true}`)
	e, _ := hear(t, conn)
	if e.Outcome == nil || e.Outcome.Status != outcome.Success {
		t.Fatalf("%+v", e)
	}
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("%v", err)
	}
	r.boxes.mu.Lock()
	sizes := r.boxes.boxes["b00001"].execs[0].sizes
	r.boxes.mu.Unlock()
	if len(sizes) != 1 || sizes[0] != (api.Size{Rows: 5, Cols: 6}) {
		t.Errorf("%+v", sizes)
	}

	// A signal, and a client that leaves.
	conn = r.attach(at)
	say(t, conn, websocket.MessageText, `{"argv":["sleep","60"]}`)
	hear(t, conn)
	say(t, conn, websocket.MessageText, `{"signal":"TERM"}`)
	if e, _ := hear(t, conn); e.Outcome == nil || e.Outcome.Signal != "SIGTERM" {
		t.Errorf("%+v", e)
	}
	conn = r.attach(at)
	say(t, conn, websocket.MessageText, `{"argv":["cat"]}`)
	hear(t, conn)
	conn.CloseNow()
	var x api.Exec
	eventually(t, "the command ends", func() bool { r.do("GET", at+"/execs/3", "", 200, &x); return !x.Running })

	// What makes no sense.
	for _, c := range []struct {
		kind  websocket.MessageType
		frame string
		says  string
	}{
		{websocket.MessageText, `{"argv":["a"],"x":1}`, `"x"`},
		{websocket.MessageText, `{"argv":7}`, "argv"},
		{websocket.MessageText, `{"argv":[]}`, "argv"},
		{websocket.MessageText, `nonsense`, "invalid"},
		{websocket.MessageBinary, `{"argv":["a"]}`, "binary"},
	} {
		conn = r.attach(at)
		say(t, conn, c.kind, c.frame)
		if e, _ := hear(t, conn); e.Error == nil || e.Error.Code != api.Invalid || !strings.Contains(e.Error.Detail, c.says) {
			t.Errorf("%s: %+v", c.frame, e.Error)
		}
	}
	r.refused("GET", "/v1/boxes/none/attach", "", 404, api.NotFound)
	eventually(t, "nothing runs", func() bool { n, _ := r.s.queue.counts(); return n == 0 })
}

// A command that does not read its input holds no client for ever.
func TestInputThatNobodyReads(t *testing.T) {
	r := start(t, Options{})
	conn := r.attach("/v1/boxes/" + r.box())
	say(t, conn, websocket.MessageText, `{"argv":["sleep","0.3"]}`)
	go func() {
		for conn.Write(t.Context(), websocket.MessageBinary, make([]byte, 512<<10)) == nil {
		}
	}()
	hear(t, conn)
	if e, _ := hear(t, conn); e.Outcome == nil {
		t.Errorf("%+v", e)
	}
	eventually(t, "nothing runs", func() bool { n, _ := r.s.queue.counts(); return n == 0 })
}

func TestPorts(t *testing.T) {
	r := start(t, Options{})
	id := r.box()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inside := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		fmt.Fprintf(w, "%s %s %s %s %s", q.Method, q.RequestURI, q.Host, q.Header.Get("X-Forwarded-Prefix"), body)
	})}
	go inside.Serve(l)
	defer inside.Close()
	r.boxes.boxes[id].listener = l
	at := "/v1/boxes/" + id + "/ports"
	var ports []api.Port
	if r.do("GET", at, "", 200, &ports); len(ports) != 1 {
		t.Errorf("%+v", ports)
	}
	var text string
	r.do("POST", at+"/80/proxy/a/b%2Fc?x=1", "body", 200, &text)
	if want := "POST /a/b%2Fc?x=1 localhost:80 " + at + "/80/proxy/ body"; text != want {
		t.Errorf("%q, not %q", text, want)
	}
	conn, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/80/tunnel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: hutch-tunnel\r\n\r\nGET /t HTTP/1.0\r\n\r\n", at)
	b := bufio.NewReader(conn)
	res, err := http.ReadResponse(b, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("%v %v", res, err)
	}
	if all, err := io.ReadAll(b); err != nil || !bytes.Contains(all, []byte("GET /t ")) {
		t.Errorf("%v %q", err, all)
	}
}

// TestTheDocument holds the OpenAPI document to what is served.
func TestTheDocument(t *testing.T) {
	r := start(t, Options{})
	var doc struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Responses   map[string]struct{ Content map[string]any }
		}
		Components struct{ Schemas map[string]any }
	}
	r.do("GET", "/openapi.json", "", 200, &doc)
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("%q", doc.OpenAPI)
	}
	want := `GET /metrics, GET /v1/boxes, POST /v1/boxes, DELETE /v1/boxes/{box}, GET /v1/boxes/{box}, GET /v1/boxes/{box}/attach,
		GET /v1/boxes/{box}/checkpoints, POST /v1/boxes/{box}/checkpoints, POST /v1/boxes/{box}/commit, GET /v1/boxes/{box}/diff,
		GET /v1/boxes/{box}/dir, POST /v1/boxes/{box}/dir, POST /v1/boxes/{box}/discard, GET /v1/boxes/{box}/execs, POST /v1/boxes/{box}/execs,
		GET /v1/boxes/{box}/execs/{exec}, GET /v1/boxes/{box}/execs/{exec}/output, DELETE /v1/boxes/{box}/files, GET /v1/boxes/{box}/files,
		HEAD /v1/boxes/{box}/files, PUT /v1/boxes/{box}/files, POST /v1/boxes/{box}/fork, POST /v1/boxes/{box}/kill, GET /v1/boxes/{box}/ports,
		GET /v1/boxes/{box}/ports/{port}/proxy/{path}, HEAD /v1/boxes/{box}/ports/{port}/proxy/{path}, POST /v1/boxes/{box}/ports/{port}/proxy/{path},
		PUT /v1/boxes/{box}/ports/{port}/proxy/{path}, PATCH /v1/boxes/{box}/ports/{port}/proxy/{path}, DELETE /v1/boxes/{box}/ports/{port}/proxy/{path},
		OPTIONS /v1/boxes/{box}/ports/{port}/proxy/{path}, GET /v1/boxes/{box}/ports/{port}/tunnel, GET /v1/boxes/{box}/processes,
		POST /v1/boxes/{box}/release, POST /v1/boxes/{box}/restore, GET /v1/health, POST /v1/races, POST /v1/shutdown, GET /v1/status`
	for _, op := range strings.Split(want, ",") {
		method, path, _ := strings.Cut(strings.TrimSpace(op), " ")
		d, ok := doc.Paths[path][strings.ToLower(method)]
		if !ok {
			t.Errorf("%s %s is not in the document", method, path)
			continue
		}
		delete(doc.Paths[path], strings.ToLower(method))
		problems := 0
		successes := 0
		for status, res := range d.Responses {
			if status < "400" || status == "default" {
				successes++
			}
			if status >= "400" {
				problems++
				if res.Content[problemType] == nil {
					t.Errorf("%s %s: %s is no problem", method, path, status)
				}
			}
		}
		if problems == 0 {
			t.Errorf("%s %s has no errors", method, path)
		}
		if want := 1 + map[string]int{"exec": 1, "health": 1}[d.OperationID]; successes != want {
			t.Errorf("%s %s has %d successes, and %d are answered", method, path, successes, want)
		}
	}
	for path, methods := range doc.Paths {
		for method := range methods {
			t.Errorf("%s %s is in the document, not in this test", method, path)
		}
	}
	for _, name := range []string{"Box", "Create", "Run", "Outcome", "Problem", "Event", "DiffReport", "Delivery", "Race", "RaceResult"} {
		if doc.Components.Schemas[name] == nil {
			t.Errorf("there is no schema of %s", name)
		}
	}
	text, _ := json.Marshal(doc.Components.Schemas["Create"])
	if !bytes.Contains(text, []byte("whole_root")) {
		t.Errorf("a policy has no schema: %s", text)
	}
	var yaml string
	if r.do("GET", "/openapi.yaml", "", 200, &yaml); !strings.Contains(yaml, "openapi: 3.1.0") {
		t.Errorf("%.200s", yaml)
	}
}

func TestMetrics(t *testing.T) {
	r := start(t, Options{})
	at := "/v1/boxes/" + r.box()
	r.do("POST", at+"/execs", `{"argv":["true"]}`, 200, nil)
	r.do("POST", at+"/execs?detach=true", `{"argv":["sleep","60"]}`, 201, nil)
	r.do("POST", at+"/kill", `{"exec":"2"}`, 204, nil)
	eventually(t, "it ends", func() bool { n, _ := r.s.queue.counts(); return n == 0 })
	var text string
	r.do("GET", "/metrics", "", 200, &text)
	for _, want := range []string{
		`hutch_execs_total{status="success"} 1`, `hutch_kills_total{cause="killed"} 1`, `hutch_phase_seconds_count{phase="exec"} 2`,
		`hutch_phase_seconds_count{phase="queue"} 2`, `hutch_phase_seconds_count{phase="jail"} 2`, `hutch_phase_seconds_count{phase="branch"} 1`,
		`hutch_boxes{state="ready"} 1`, `hutch_live_boxes 1`, `hutch_running_execs 0`, `hutch_waiting_execs 0`, `hutch_requests_in_flight 1`,
		`hutch_request_seconds_count{route="POST /v1/boxes",status="201"} 1`, `go_goroutines`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s", want)
		}
	}
}

// TestTenThousandForNothing asks for a box that does not exist.
func TestTenThousandForNothing(t *testing.T) {
	r := start(t, Options{})
	ask := func(n int) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for i := range n / 8 {
					path, body := "/v1/boxes/none/execs", `{"argv":["true"]}`
					req, _ := http.NewRequest("POST", fmt.Sprintf("http://x%s?on_disconnect=keep", strings.Replace(path, "none", fmt.Sprint("none", i), 1)), strings.NewReader(body))
					res, err := r.client.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, res.Body)
					if res.Body.Close(); res.StatusCode != 404 {
						t.Errorf("%d", res.StatusCode)
					}
				}
			})
		}
		all.Wait()
	}
	size := func() (int, uint64, int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fds, _ := os.ReadDir("/proc/self/fd")
		return runtime.NumGoroutine(), m.HeapAlloc, len(fds)
	}
	ask(2000)
	g, heap, fds := size()
	ask(10000)
	g2, heap2, fds2 := size()
	if g2 > g+2 || fds2 > fds+2 || heap2 > heap+1<<20 {
		t.Errorf("goroutines %d to %d, heap %d to %d, descriptors %d to %d", g, g2, heap, heap2, fds, fds2)
	}
	if len(r.s.queue.lines) != 0 || len(r.s.lives.live) != 0 || r.boxes.starts != 0 {
		t.Error("something was kept of them")
	}
}
