package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/internal/api"
)

func TestASocketThatWasLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "s")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
	}
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "somebody serves") {
		t.Errorf("%v", err)
	}
	l.Listener.Close() // as a daemon that dies leaves it
	time.Sleep(10 * time.Millisecond)
	again, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // is not ours any more
	if _, err := os.Lstat(path); err != nil {
		t.Error("the next daemon's socket was taken away")
	}
	again.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("it is still there")
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); err == nil {
		t.Error("a file was taken for a socket")
	}
	if text, _ := os.ReadFile(path); string(text) != "mine" {
		t.Error("a file was removed")
	}
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(filepath.Join(open, "s")); err == nil {
		t.Error("a directory where all can write was taken")
	}
}

func TestOneDaemonAStateDirectory(t *testing.T) {
	dir := t.TempDir()
	lock, err := TakeLock(dir, filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := ListenUnix(filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TakeLock(dir, filepath.Join(dir, "s")); err == nil || !strings.Contains(err.Error(), "already runs") {
		t.Errorf("%v", err)
	}
	// One that is about to end is waited for.
	l.Close()
	time.AfterFunc(100*time.Millisecond, lock.Release)
	next, err := TakeLock(dir, filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	next.Release()
}

// served runs a daemon, and returns how it ended.
func served(t *testing.T, m *memory, ctx context.Context, times Times) (*rig, <-chan error) {
	t.Helper()
	r := &rig{t: t, boxes: m, path: filepath.Join(t.TempDir(), "s")}
	l, err := ListenUnix(r.path)
	if err != nil {
		t.Fatal(err)
	}
	r.s = New(m, Options{Log: slog.New(slog.DiscardHandler)})
	r.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.path)
	}}}
	end := make(chan error, 1)
	go func() { end <- r.s.Serve(ctx, []net.Listener{l}, times) }()
	return r, end
}

func ends(t *testing.T, end <-chan error) {
	t.Helper()
	select {
	case err := <-end:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}

func TestTheIdleEnd(t *testing.T) {
	r, end := served(t, newMemory(), t.Context(), Times{Idle: 200 * time.Millisecond})
	at := "/v1/boxes/" + r.box()
	r.do("POST", at+"/execs?detach=true", `{"argv":["sleep","0.6"]}`, 201, nil)
	r.do("POST", at+"/execs", `{"argv":["daemonise"]}`, 200, nil)
	time.Sleep(time.Second)
	select {
	case <-end:
		t.Fatal("it ended while something was left running")
	default:
	}
	r.do("POST", at+"/kill", `{"all":true}`, 204, nil)
	ends(t, end)
}

func TestASilentConnectionKeepsItAlive(t *testing.T) {
	r, end := served(t, newMemory(), t.Context(), Times{Idle: 100 * time.Millisecond})
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(400 * time.Millisecond)
	select {
	case <-end:
		t.Fatal("it ended")
	default:
	}
	c.Close()
	ends(t, end)
}

func TestDraining(t *testing.T) {
	m := newMemory()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, end := served(t, m, ctx, Times{Drain: 5 * time.Second})
	at := "/v1/boxes/" + r.box()
	answer := make(chan string, 1)
	go func() {
		res := r.ask("POST", at+"/execs", `{"argv":["sleep","0.3"]}`)
		text, _ := io.ReadAll(res.Body)
		answer <- string(text)
	}()
	eventually(t, "it runs", func() bool { n, _ := r.s.queue.counts(); return n == 1 })
	// A connection that is open already hears that the daemon is about to end.
	c, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "POST "+at+"/execs HTTP/1.1\r\nHost: x\r\n"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	stop()
	eventually(t, "it drains", r.s.draining.Load)
	if _, err := io.WriteString(c, "Content-Length: 17\r\n\r\n{\"argv\":[\"true\"]}"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	n, _ := c.Read(b)
	if !bytes.HasPrefix(b[:n], []byte("HTTP/1.1 503")) || !bytes.Contains(b[:n], []byte("Retry-After")) {
		t.Errorf("%q", b[:n])
	}
	if text := <-answer; !strings.Contains(text, `"status":"success"`) {
		t.Errorf("what ran was not waited for: %s", text)
	}
	ends(t, end)
}

func TestDrainingIsBounded(t *testing.T) {
	m := newMemory()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, end := served(t, m, ctx, Times{Drain: 100 * time.Millisecond})
	at := "/v1/boxes/" + r.box()
	r.do("POST", at+"/execs?detach=true", `{"argv":["stubborn","60"]}`, 201, nil)
	go r.client.Get("http://x" + at + "/execs/1/output?follow=true")
	conn := r.attach(at)
	say(t, conn, 1, `{"argv":["cat"]}`)
	hear(t, conn)
	// Who waits for a command that is ended hears why.
	status := make(chan int, 1)
	go func() {
		res := r.ask("POST", at+"/execs", `{"argv":["sleep","60"]}`)
		status <- res.StatusCode
	}()
	eventually(t, "it runs", func() bool { n, _ := r.s.queue.counts(); return n == 3 })
	stop()
	if got := <-status; got != 503 {
		t.Errorf("%d", got)
	}
	ends(t, end)
	list, _ := m.List(false)
	for _, b := range list {
		if b.Live || b.State == api.Busy {
			t.Errorf("%+v", b)
		}
	}
}

func TestALogTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := &logFile{path: path, max: 1000}
	if err := l.open(); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewJSONHandler(l, nil))
	for i := range 100 {
		log.Info("exec", "box", "b", "exec", i)
	}
	for _, name := range []string{path, path + ".1"} {
		text, err := os.ReadFile(name)
		if err != nil || len(text) > 1000 {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
		for line := range bytes.Lines(text) {
			var v map[string]any
			if err := json.Unmarshal(line, &v); err != nil || v["box"] != "b" {
				t.Errorf("%q: %v", line, err)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(dir, "t")
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if token, err := ReadToken(write("0123456789abcdef\n", 0o600)); err != nil || string(token) != "0123456789abcdef" {
		t.Errorf("%q %v", token, err)
	}
	for _, c := range []struct {
		text string
		mode os.FileMode
	}{{"0123456789abcdef", 0o644}, {"short", 0o600}, {"", 0o600}, {"0123456789 abcdef", 0o600}} {
		if token, err := ReadToken(write(c.text, c.mode)); err == nil {
			t.Errorf("%+v: %q", c, token)
		}
	}
}
