package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// house is a world with a hutchd that a test started, and may end.
type house struct {
	*lab.World
	socket string
	cmd    *exec.Cmd
	client *http.Client
	stderr *bytes.Buffer
	gone   chan struct{}
}

func newHouse(t *testing.T, flags ...string) *house {
	t.Helper()
	h := &house{World: lab.New(t)}
	h.socket = filepath.Join(h.State, "run", "s")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", h.socket)
	}, MaxIdleConnsPerHost: 100}
	h.client = &http.Client{Transport: transport, Timeout: time.Minute}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		h.end()
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(h.StateDir(), "hutchd.log"))
			t.Logf("the log ends:\n%s\n%s", log[max(0, len(log)-6000):], h.stderr)
		}
	})
	h.start(flags...)
	return h
}

func (h *house) command(flags ...string) *exec.Cmd {
	cmd := exec.Command(lab.Hutch(h.T)+"d", flags...)
	cmd.Env = h.Environ("HUTCH_SOCKET=" + h.socket)
	return cmd
}

// start starts hutchd and waits until it says that it serves.
func (h *house) start(flags ...string) {
	h.T.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		h.T.Fatal(err)
	}
	defer r.Close()
	h.cmd = h.command(append([]string{"--ready-fd", fmt.Sprint(3)}, flags...)...)
	h.cmd.ExtraFiles = []*os.File{w}
	h.stderr = &bytes.Buffer{}
	h.cmd.Stderr = h.stderr
	if err := h.cmd.Start(); err != nil {
		h.T.Fatal(err)
	}
	w.Close()
	h.gone = make(chan struct{})
	go func(cmd *exec.Cmd, gone chan struct{}) { cmd.Wait(); close(gone) }(h.cmd, h.gone)
	if line, _ := io.ReadAll(r); strings.TrimSpace(string(line)) != fmt.Sprint(h.cmd.Process.Pid) {
		<-h.gone
		h.T.Fatalf("hutchd is not ready: %q %s", line, h.stderr)
	}
}

// end ends hutchd, and wants that to go well.
func (h *house) end() {
	h.T.Helper()
	select {
	case <-h.gone:
		return
	default:
	}
	h.cmd.Process.Signal(syscall.SIGTERM)
	h.ended(30*time.Second, 0)
}

func (h *house) ended(within time.Duration, code int) {
	h.T.Helper()
	select {
	case <-h.gone:
		if got := h.cmd.ProcessState.ExitCode(); got != code {
			h.T.Errorf("hutchd ended with %d: %s", got, h.stderr)
		}
	case <-time.After(within):
		h.cmd.Process.Kill()
		<-h.gone
		h.T.Fatalf("hutchd did not end within %v", within)
	}
}

// crash kills hutchd as nothing can be caught.
func (h *house) crash() {
	h.cmd.Process.Kill()
	<-h.gone
}

func (h *house) request(ctx context.Context, method, path, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://hutchd"+path, strings.NewReader(body))
	if err != nil {
		h.T.Fatal(err)
	}
	if method == "POST" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return h.client.Do(req)
}

// ask sends a request, wants a status, and returns the body.
func (h *house) ask(method, path, body string, status int) string {
	h.T.Helper()
	res, err := h.request(context.Background(), method, path, body)
	if err != nil {
		h.T.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != status {
		h.T.Fatalf("%s %s %s: %d, not %d: %v %s", method, path, body, res.StatusCode, status, err, text)
	}
	return string(text)
}

// result is of an outcome what these tests look at.
type result struct {
	Status, Signal, Stdout, Stderr, Error string
	ExitCode                              int   `json:"exit_code"`
	StdoutBytes                           int64 `json:"stdout_bytes"`
}

func decode[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func (h *house) create() string {
	h.T.Helper()
	type box struct{ ID string }
	b := decode[box](h.T, h.ask("POST", "/v1/boxes", fmt.Sprintf(`{"workspace":%q}`, h.Dir), 201))
	return "/v1/boxes/" + b.ID
}

func (h *house) drop(at string) {
	h.T.Helper()
	h.ask("POST", at+"/discard", `{"force":true}`, 204)
}

func argv(words ...string) string {
	text, _ := json.Marshal(map[string]any{"argv": words})
	return string(text)
}

// sh runs a script in a box.
func (h *house) sh(at, script string) result {
	h.T.Helper()
	return decode[result](h.T, h.ask("POST", at+"/execs", argv("sh", "-c", script), 200))
}

// says wants a script to succeed with an output.
func (h *house) says(at, script, want string) {
	h.T.Helper()
	if r := h.sh(at, script); r.Status != "success" || strings.TrimSpace(r.Stdout) != want {
		h.T.Errorf("%s: %+v, want %q", script, r, want)
	}
}

func (h *house) eventually(what string, is func() bool) {
	h.T.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if is() {
			return
		}
	}
	h.T.Fatalf("%s never came true", what)
}
