package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hutch/internal/api"
	"hutch/internal/outcome"
)

// serve runs net/http's server at a socket of its own, and returns a client.
func serve(t *testing.T, handler http.Handler) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return Unix(path)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCalls(t *testing.T) {
	var mux http.ServeMux
	mux.HandleFunc("GET /v1/boxes", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `[{"id":"a","name":%q,"future_field":1}]`, r.URL.Query().Get("all"))
	})
	mux.HandleFunc("POST /v1/boxes", func(w http.ResponseWriter, r *http.Request) {
		var q api.Create
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.ContentLength < 0 || r.Header.Get("Content-Type") != "application/json" {
			t.Error(err, r.ContentLength, r.Header)
		}
		w.WriteHeader(201)
		json.NewEncoder(w).Encode(api.Box{ID: "new", Workspace: q.Workspace})
	})
	mux.HandleFunc("DELETE /v1/boxes/{box}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("box") != "a/b c" {
			t.Errorf("box %q", r.PathValue("box"))
		}
		w.WriteHeader(204)
	})
	mux.HandleFunc("PUT /v1/boxes/{box}/files", func(w http.ResponseWriter, r *http.Request) {
		sum, err := io.Copy(io.Discard, r.Body)
		if err != nil || sum != 3<<20 || r.URL.Query().Get("path") != "a&b=c/ü" || r.URL.Query().Get("mode") != "755" {
			t.Error(sum, err, r.URL.Query())
		}
	})
	mux.HandleFunc("GET /v1/boxes/{box}/files", func(w http.ResponseWriter, r *http.Request) {
		for range 300 { // more than net/http gives a length to
			w.Write(bytes.Repeat([]byte("x"), 1000))
		}
	})
	c, ctx := serve(t, &mux), within(t)
	list, err := c.List(ctx, true)
	if err != nil || len(list) != 1 || list[0].ID != "a" || list[0].Name != "true" {
		t.Errorf("%+v, %v", list, err)
	}
	b, err := c.Create(ctx, api.Create{Workspace: "/w"})
	if err != nil || b.ID != "new" || b.Workspace != "/w" {
		t.Errorf("%+v, %v", b, err)
	}
	if err := c.Remove(ctx, "a/b c"); err != nil {
		t.Error(err)
	}
	if err := c.WriteFile(ctx, "a", "a&b=c/ü", 0o755, io.LimitReader(endless{}, 3<<20)); err != nil {
		t.Error(err)
	}
	r, err := c.ReadFile(ctx, "a", "x")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if text, err := io.ReadAll(r); err != nil || len(text) != 300000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// What the daemon refuses is an *api.Error with its code, also when it refuses
// before it has read what is sent.
func TestProblems(t *testing.T) {
	answer := func(status int, kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			io.WriteString(w, text)
		}
	}
	const kind = "application/problem+json"
	for _, c := range []struct {
		name    string
		handler http.HandlerFunc
		code    api.Code
		text    string
	}{
		{"a problem", answer(404, kind, `{"status":404,"title":"Not Found","detail":"no box x; see hutch box list","code":"not_found"}`), api.NotFound, "no box x; see hutch box list"},
		{"of a status alone", answer(422, kind, `{"title":"Unprocessable","detail":"validation failed","errors":[{"message":"too few","location":"body.argv"}]}`), api.Invalid, "validation failed; body.argv: too few"},
		{"of a title alone", answer(409, kind, `{"title":"Conflict"}`), api.WrongState, "Conflict"},
		{"no JSON", answer(502, "text/html", "<h1>bad gateway</h1>"), api.Internal, "hutchd answered 502: <h1>bad gateway</h1>"},
		{"empty", answer(503, "", ""), api.Full, "hutchd answered 503: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, ctx := serve(t, c.handler), within(t)
			for what, err := range map[string]error{
				"a call":   client.Discard(ctx, "x", false),
				"a stream": client.WriteFile(ctx, "x", "p", 0, io.LimitReader(endless{}, 1<<30)),
			} {
				var e *api.Error
				if !errors.As(err, &e) || e.Code != c.code || e.Text != c.text {
					t.Errorf("%s: %#v", what, err)
				}
			}
			_, err := client.Attach(ctx, "x", api.Run{})
			var e *api.Error
			if !errors.As(err, &e) || e.Code != c.code {
				t.Errorf("attach: %#v", err)
			}
		})
	}
}

func TestUndelivered(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(409)
		io.WriteString(w, `{"code":"held","detail":"held back","delivery":{"held":[{"path":"x"}]}}`)
	}))
	err := c.Commit(within(t), "x", api.Commit{}, nil)
	var u *Undelivered
	var e *api.Error
	if !errors.As(err, &u) || !strings.Contains(string(u.Report), `"path":"x"`) || !errors.As(err, &e) || e.Code != api.HeldBack || err.Error() != "held back" {
		t.Errorf("%#v", err)
	}
}

func TestNoDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c, ctx := Unix(path), within(t)
	if _, err := c.List(ctx, false); !errors.Is(err, ErrNoDaemon) || c.Running(ctx) {
		t.Errorf("without a socket: %v", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Running(ctx) {
		t.Error("not running, with a socket that listens")
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if _, err := c.List(ctx, false); !errors.Is(err, ErrNoDaemon) || c.Running(ctx) {
		t.Errorf("with a socket that a crash left: %v", err)
	}
}

// A source that fails leaves the daemon no file that looks whole.
func TestASourceThatFails(t *testing.T) {
	seen := make(chan error, 1)
	c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		seen <- err
	}))
	broke := errors.New("the disk is gone")
	err := c.WriteFile(within(t), "x", "p", 0, io.MultiReader(strings.NewReader("some"), failing{broke}))
	if !errors.Is(err, broke) {
		t.Errorf("%v, want %v", err, broke)
	}
	if err := <-seen; err == nil {
		t.Error("the daemon took it for whole")
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A daemon that dies in the middle is told from one that has no more to say.
func TestCutAnswers(t *testing.T) {
	for _, text := range []string{"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\n"} {
		c := raw(t, func(conn net.Conn, _ *http.Request) { io.WriteString(conn, text) })
		_, err := c.List(within(t), false)
		var e *api.Error
		if !errors.As(err, &e) || !strings.Contains(e.Text, "went away") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCancel(t *testing.T) {
	c := raw(t, func(conn net.Conn, _ *http.Request) { io.Copy(io.Discard, conn) })
	ctx, cancel := context.WithCancel(within(t))
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := c.List(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// raw serves connections by hand.
func raw(t *testing.T, handle func(net.Conn, *http.Request)) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				q, err := http.ReadRequest(r)
				if err != nil {
					t.Error(err)
					return
				}
				handle(&buffered{conn, r}, q)
			}()
		}
	}()
	return Unix(path)
}

// buffered is a connection of which some was read ahead.
type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

func TestStream(t *testing.T) {
	body := ""
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "application/x-ndjson" {
			t.Error(r.Header)
		}
		io.WriteString(w, body)
	}))
	for _, q := range []struct{ body, seen, fails string }{
		{`{"exec":{"id":"1"}}` + "\n" + `{"stream":"stdout","data":"a"}` + "\n" + `{"stream":"stderr","base64":"/w=="}` + "\n" + `{"outcome":{"exit_code":3}}` + "\n", "exec 1 stdout a stderr \xff exit 3 ", ""},
		{`{"exec":{"id":"1"}}` + "\n" + `{"error":{"code":"full","detail":"too many"}}` + "\n", "exec 1 ", "too many"},
		{`{"exec":{"id":"1"}}` + "\n", "exec 1 ", "went away"},
		{`{"exec":{"id":"1"}}` + "\n" + `{"outc`, "exec 1 ", "went away"},
		{"no\n", "", "makes no sense"},
	} {
		body = q.body
		seen := ""
		err := c.Stream(within(t), "x", api.Run{Argv: []string{"a"}}, func(e *api.Event) error {
			switch {
			case e.Exec != nil:
				seen += "exec " + e.Exec.ID + " "
			case e.Outcome != nil:
				seen += fmt.Sprintf("exit %d ", e.Outcome.ExitCode)
			default:
				seen += e.Stream + " " + e.Data + string(e.Base64) + " "
			}
			return nil
		})
		if seen != q.seen || q.fails == "" && err != nil || q.fails != "" && (err == nil || !strings.Contains(err.Error(), q.fails)) {
			t.Errorf("%q: %q, %v", q.body, seen, err)
		}
	}
}

// upgraded answers a WebSocket's first request, and hands the connection on.
func upgraded(t *testing.T, then func(net.Conn)) *Client {
	return raw(t, func(conn net.Conn, q *http.Request) {
		if q.Method != "GET" || q.Header.Get("Upgrade") != "websocket" || q.Header.Get("Sec-WebSocket-Version") != "13" {
			t.Errorf("%s %v", q.Method, q.Header)
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", acceptKey(q.Header.Get("Sec-WebSocket-Key")))
		then(conn)
	})
}

// receive reads frames of the client until f says that it is enough.
func receive(t *testing.T, conn net.Conn, f func(op byte, payload []byte) bool) {
	var b []byte
	part := make([]byte, 4096)
	for {
		if op, payload, rest, err := frameIn(b); err == nil {
			b = rest
			if f(op, payload) {
				return
			}
			continue
		}
		n, err := conn.Read(part)
		if err != nil {
			t.Errorf("the client went away: %v", err)
			return
		}
		b = append(b, part[:n]...)
	}
}

// frameIn is unmask of what may be too short still.
func frameIn(b []byte) (op byte, payload, rest []byte, err error) {
	if len(b) < 14 { // zeroes for what a head may have more
		if op, payload, rest, err = unmask(append(bytes.Clone(b), make([]byte, 14)...)); err != nil || len(rest) < 14 {
			return 0, nil, nil, io.ErrUnexpectedEOF
		}
		return op, payload, rest[:len(rest)-14], nil
	}
	return unmask(b)
}

func TestAcceptKey(t *testing.T) {
	if got := acceptKey("dGhlIHNhbXBsZSBub25jZQ=="); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" { // RFC 6455, section 1.3
		t.Error(got)
	}
}

func TestAttach(t *testing.T) {
	c := upgraded(t, func(conn net.Conn) {
		var input strings.Builder
		first, ponged := true, false
		receive(t, conn, func(op byte, p []byte) bool {
			switch {
			case first:
				var run api.Run
				if err := json.Unmarshal(p, &run); op != opText || err != nil || run.Argv[0] != "cat" {
					t.Errorf("%d %q", op, p)
				}
				first = false
				io.WriteString(conn, served(0x81, `{"exec":{"id":"7"}}`)+served(0x82, "\x01out")+served(0x02, "\x02e")+served(0x89, "ping")+served(0x80, "rr"))
			case op == opPong:
				ponged = string(p) == "ping"
			case op == opBinary:
				input.Write(p)
			case op == opText && string(p) == `{"eof":true}`:
				return ponged
			case op == opText && (string(p) == `{"signal":"INT"}` || string(p) == `{"resize":{"rows":3,"cols":4}}`):
				input.WriteString("!")
			default:
				t.Errorf("%d %q", op, p)
			}
			return false
		})
		if want := "!!" + strings.Repeat("x", 100000); input.String() != want {
			t.Errorf("%d bytes of input", input.Len())
		}
		out, _ := json.Marshal(api.Event{Outcome: &outcome.Outcome{ExitCode: 5}})
		io.WriteString(conn, served(0x81, string(out))+served(0x88, "\x03\xe8"))
		closed := false
		receive(t, conn, func(op byte, p []byte) bool { closed = op == opClose && string(p) == "\x03\xe8"; return true })
		if !closed {
			t.Error("the close frame was not answered")
		}
	})
	ctx := within(t)
	a, err := c.Attach(ctx, "x", api.Run{Argv: []string{"cat"}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	seen := ""
	for {
		e, err := a.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Exec != nil:
			seen += "exec " + e.Exec.ID + " "
		case e.Outcome != nil:
			seen += fmt.Sprintf("exit %d", e.Outcome.ExitCode)
		default:
			seen += e.Stream + " " + string(e.Base64) + " "
		}
		if e.Stream == "stderr" {
			time.Sleep(50 * time.Millisecond) // the pong is another goroutine's
			if err := errors.Join(a.Signal(ctx, "INT", "7"), a.Resize(api.Size{Rows: 3, Cols: 4})); err != nil {
				t.Error(err)
			}
			if n, err := a.Write(bytes.Repeat([]byte("x"), 100000)); n != 100000 || err != nil {
				t.Error(n, err)
			}
			if err := a.CloseInput(); err != nil {
				t.Error(err)
			}
		}
	}
	if seen != "exec 7 stdout out stderr err exit 5" {
		t.Errorf("%q", seen)
	}
}

// Where nobody reads a command's input, pings are answered in their own time,
// output comes all the same, and a signal takes another way.
func TestAttachUnderPressure(t *testing.T) {
	killed := make(chan api.Kill, 1)
	release := make(chan bool)
	c := raw(t, func(conn net.Conn, q *http.Request) {
		if q.Method == "POST" && strings.HasSuffix(q.URL.Path, "/kill") {
			var k api.Kill
			json.NewDecoder(q.Body).Decode(&k)
			killed <- k
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n", acceptKey(q.Header.Get("Sec-WebSocket-Key")))
		time.Sleep(100 * time.Millisecond)
		for range 100 {
			io.WriteString(conn, served(0x89, "p")+served(0x82, "\x01out"))
		}
		<-release // having read nothing
	})
	ctx := within(t)
	a, err := c.Attach(ctx, "x", api.Run{Argv: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	var writing sync.WaitGroup
	writing.Go(func() { _, _ = io.Copy(a, endless{}) })
	for range 100 {
		if e, err := a.Next(); err != nil || string(e.Base64) != "out" {
			t.Fatal(e, err)
		}
	}
	if err := a.Signal(ctx, "INT", "7"); err != nil {
		t.Error(err)
	}
	if k := <-killed; k.Exec != "7" || k.Signal != "INT" {
		t.Errorf("%+v", k)
	}
	a.Close()
	writing.Wait()
	close(release)
}

func TestHandshakesThatAreNone(t *testing.T) {
	for name, text := range map[string]string{
		"no change":        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"a wrong key":      "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
		"another protocol": "HTTP/1.1 101 S\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: KEY\r\n\r\n",
		"no upgrade":       "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: KEY\r\n\r\n",
		"an extension":     "HTTP/1.1 101 S\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: KEY\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
	} {
		c := raw(t, func(conn net.Conn, q *http.Request) {
			io.WriteString(conn, strings.Replace(text, "KEY", acceptKey(q.Header.Get("Sec-WebSocket-Key")), 1))
		})
		if _, err := c.Attach(within(t), "x", api.Run{}); err == nil || !strings.Contains(err.Error(), "makes no sense") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A tunnel carries bytes both ways, those too that came with the answer, and
// tells the end of each way by itself.
func TestTunnel(t *testing.T) {
	c := raw(t, func(conn net.Conn, q *http.Request) {
		if q.Header.Get("Upgrade") != "hutch-tunnel" || q.URL.Path != "/v1/boxes/x/ports/80/tunnel" {
			t.Error(q.URL, q.Header)
		}
		io.WriteString(conn, "HTTP/1.1 101 S\r\nUpgrade: hutch-tunnel\r\nConnection: Upgrade\r\n\r\nearly ")
		said, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		conn.Write(said)
	})
	conn, err := c.Dial(within(t), "x", 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "hello")
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); string(text) != "early hello" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

func TestToken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Host != l.Addr().String() {
			t.Error(r.Host, r.Header)
		}
		io.WriteString(w, "[]")
	})}
	go server.Serve(l)
	defer server.Close()
	if _, err := TCP(l.Addr().String(), "secret").List(within(t), false); err != nil {
		t.Error(err)
	}
	if _, err := TCP(l.Addr().String(), "a\r\nX: y").List(within(t), false); err == nil {
		t.Error("a token with a newline was sent")
	}
}
