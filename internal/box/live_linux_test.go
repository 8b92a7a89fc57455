package box

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/outcome"
	"hutch/internal/policy"
)

// inBox runs a shell command in a box and returns its outcome.
func inBox(t testing.TB, b *Boxes, box, script string) *outcome.Outcome {
	t.Helper()
	return ran(t, b, box, api.Run{Argv: []string{"/bin/sh", "-c", script}})
}

func tryRun(b *Boxes, box string, r api.Run) (*outcome.Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := b.Exec(ctx, box, r, Streams{})
	if err != nil {
		return nil, err
	}
	return s.Wait(ctx)
}

func ran(t testing.TB, b *Boxes, box string, r api.Run) *outcome.Outcome {
	t.Helper()
	out, err := tryRun(b, box, r)
	if err != nil {
		t.Fatalf("%q: %v", r.Argv, err)
	}
	return out
}

// said fails the test unless a command succeeded and wrote just that.
func said(t testing.TB, out *outcome.Outcome, want string) {
	t.Helper()
	if out.Status != outcome.Success || out.Stdout != want {
		t.Errorf("%s, exit code %d, stdout %q, stderr %q, error %q; want %q", out.Status, out.ExitCode, out.Stdout, out.Stderr, out.Error, want)
	}
}

func TestWhatOneCommandLeavesTheNextFinds(t *testing.T) {
	b := testBoxes(t)
	ws := t.TempDir()
	os.WriteFile(filepath.Join(ws, "given"), []byte("host\n"), 0o644)
	box := create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, box, "cat given; echo new >made; echo t >/tmp/t; echo h >$HOME/.h; mkdir -p d/e && mv d f && echo $HUTCH_BOX"), "host\n"+box+"\n")
	said(t, inBox(t, b, box, "cat made /tmp/t $HOME/.h; ls f; pwd"), "new\nt\nh\ne\n"+ws+"\n")
	if _, err := os.Stat(filepath.Join(ws, "made")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the box wrote to the workspace")
	}
	// The branch outlives the jail; /tmp does not.
	if err := b.Release(box); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Show(box); err != nil || got.Live || got.State != api.Ready || got.Execs != 2 {
		t.Errorf("after its release: %+v, %v", got, err)
	}
	said(t, inBox(t, b, box, "cat made; ls f; test ! -e /tmp/t"), "new\ne\n")
}

func TestTwoBoxesOfOneWorkspaceDoNotSeeEachOther(t *testing.T) {
	b := testBoxes(t)
	ws := t.TempDir()
	one, two := create(t, b, api.Create{Workspace: ws}).ID, create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, one, "echo 1 >file; echo 1 >/tmp/file; sleep 100 >/dev/null 2>&1 & echo"), "\n")
	said(t, inBox(t, b, two, "ls; ls /tmp/file 2>/dev/null; cat /proc/[0-9]*/cmdline | grep -a 'sleep.10[0]'; echo -"), "-\n")
	list, err := b.Processes(two)
	if err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestEndsAreToldAsTheyWere(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	short, none := 0.2, 0.0
	missing := "is-not-there"
	for _, c := range []struct {
		r        api.Run
		status   outcome.Status
		exit     int
		signal   string
		timedOut bool
	}{
		{api.Run{Argv: []string{"true"}}, outcome.Success, 0, "", false},
		{api.Run{Argv: []string{"sh", "-c", "exit 7"}}, outcome.Failed, 7, "", false},
		{api.Run{Argv: []string{"sh", "-c", "kill -TERM $$"}}, outcome.Killed, 143, "SIGTERM", false},
		{api.Run{Argv: []string{"sh", "-c", "kill -SEGV $$"}}, outcome.Killed, 139, "SIGSEGV", false},
		{api.Run{Argv: []string{"sleep", "30"}, Timeout: &short}, outcome.Timeout, 124, "", true},
		{api.Run{Argv: []string{"sh", "-c", "trap '' TERM; sleep 30 & sleep 30"}, Timeout: &short}, outcome.Timeout, 124, "", true},
		{api.Run{Argv: []string{missing}}, outcome.Failed, 127, "", false},
		{api.Run{Argv: []string{"/etc/passwd"}}, outcome.Failed, 126, "", false},
		{api.Run{Argv: []string{"true"}, Dir: "no/such"}, outcome.Failed, 126, "", false},
		{api.Run{Argv: []string{"sleep", "0.3"}, Timeout: &none}, outcome.Success, 0, "", false},
	} {
		out := ran(t, b, box, c.r)
		if out.Status != c.status || out.ExitCode != c.exit || out.Signal != c.signal || out.TimedOut != c.timedOut {
			t.Errorf("%q: %s, %d, %q, timed out %v: %s; want %s, %d, %q", c.r.Argv, out.Status, out.ExitCode, out.Signal, out.TimedOut, out.Error, c.status, c.exit, c.signal)
		}
	}
	if list, err := b.Processes(box); err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
	said(t, inBox(t, b, box, "echo still here"), "still here\n")
}

func TestTheMemoryLimitIsTold(t *testing.T) {
	b := testBoxes(t)
	limit := policy.Size(64 << 20)
	box := create(t, b, api.Create{Policy: policy.Policy{Limits: policy.Limits{Memory: &limit}}}).ID
	said(t, inBox(t, b, box, "echo before"), "before\n")
	out := ran(t, b, box, api.Run{Argv: []string{"python3", "-c", "x = b'1' * (400 << 20); print(len(x))"}})
	if out.Status != outcome.MemoryExceeded {
		t.Errorf("%s, exit code %d, stdout %q, stderr %q, error %q", out.Status, out.ExitCode, out.Stdout, out.Stderr, out.Error)
	}
	said(t, inBox(t, b, box, "echo after"), "after\n")
}

func TestADeadlineEndsOnlyItsCommandsTree(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	said(t, inBox(t, b, box, "sleep 321 >/dev/null 2>&1 & echo up"), "up\n")
	var all sync.WaitGroup
	all.Go(func() {
		said(t, inBox(t, b, box, "sleep 1; echo through"), "through\n")
	})
	short := 0.3
	out := ran(t, b, box, api.Run{Argv: []string{"sh", "-c", "setsid sleep 654 & sleep 654 & (sleep 654 &) ; wait"}, Timeout: &short})
	if !out.TimedOut {
		t.Errorf("%+v", out)
	}
	all.Wait()
	list, err := b.Processes(box)
	if err != nil || len(list) != 1 || list[0].Name != "sleep" || list[0].Argv[1] != "321" || list[0].Exec != "" {
		t.Errorf("left: %+v, %v", list, err)
	}
	if err := b.Kill(box, api.Kill{PID: list[0].PID}); err != nil {
		t.Error(err)
	}
	for range 100 {
		if list, _ = b.Processes(box); len(list) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(list) != 0 {
		t.Errorf("killed, and there still: %+v", list)
	}
}

func TestInputOutputAndEnvironmentOfACommand(t *testing.T) {
	b := testBoxes(t)
	ws := t.TempDir()
	os.MkdirAll(filepath.Join(ws, "sub/dir"), 0o755)
	box := create(t, b, api.Create{Workspace: ws, Environ: []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "SECRET_KEY=1"}, Policy: policy.Policy{Env: policy.Env{Set: map[string]string{"A": "policy", "B": "policy"}}}}).ID
	said(t, ran(t, b, box, api.Run{Argv: []string{"cat"}, Stdin: "in\n"}), "in\n")
	said(t, ran(t, b, box, api.Run{Argv: []string{"sh", "-c", "pwd; echo $A $B $LANG $SECRET_KEY."}, Dir: "sub/dir", Env: []string{"A=given"}}), ws+"/sub/dir\ngiven policy C.UTF-8 .\n")
	said(t, ran(t, b, box, api.Run{Argv: []string{"pwd"}, Dir: "/tmp"}), "/tmp\n")

	var stdout, stderr bytes.Buffer
	s, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sh", "-c", "cat; echo err >&2"}}, Streams{Stdin: strings.NewReader("streamed"), Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Wait(context.Background()); err != nil || out.Status != outcome.Success || stdout.String() != "streamed" || stderr.String() != "err\n" {
		t.Errorf("%+v, %v, %q, %q", out, err, stdout.String(), stderr.String())
	}

	out := ran(t, b, box, api.Run{Argv: []string{"sh", "-c", "printf '\\377\\376'"}})
	if string(out.StdoutBase64) != "//4=" || out.StdoutBytes != 2 {
		t.Errorf("%q, %d", out.StdoutBase64, out.StdoutBytes)
	}
	for _, bad := range []api.Run{{}, {Argv: []string{""}}, {Argv: []string{"a\x00b"}}, {Argv: []string{"true"}, Env: []string{"novalue"}}, {Argv: []string{"true"}, Stdin: "a", StdinBase64: []byte("b")}} {
		if _, err := b.Exec(context.Background(), box, bad, Streams{}); code(err) != api.Invalid {
			t.Errorf("%q: %v", bad.Argv, err)
		}
	}
	if _, err := b.Exec(context.Background(), "nobox", api.Run{Argv: []string{"true"}}, Streams{}); code(err) != api.NotFound {
		t.Errorf("%v", err)
	}
}

func TestATerminalIsTheCommandsAndHasASize(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	defer in.Close()
	var out bytes.Buffer
	s, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sh", "-c", "stty size; read x; stty size; test -t 0 && test -t 1 && echo tty"}, TTY: &api.Size{Rows: 11, Cols: 22}}, Streams{Stdin: in, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if text, _ := b.Output(box, s.Exec().ID, "stdout", 0, false); text != nil {
			got, _ := io.ReadAll(text)
			text.Close()
			if strings.Contains(string(got), "11 22") {
				break
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := s.Resize(api.Size{Rows: 33, Cols: 44}); err != nil {
		t.Error(err)
	}
	fmt.Fprintln(feed, "go")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if got, err := s.Wait(ctx); err != nil || got.Status != outcome.Success {
		t.Errorf("%+v, %v", got, err)
	}
	if text := out.String(); !strings.Contains(text, "11 22") || !strings.Contains(text, "33 44") || !strings.Contains(text, "tty") {
		t.Errorf("%q", text)
	}
}

func TestThePolicyHoldsForEveryCommand(t *testing.T) {
	b := testBoxes(t)
	no := false
	ws := t.TempDir()
	os.WriteFile(filepath.Join(ws, "secret.env"), []byte("x"), 0o644)
	os.WriteFile(filepath.Join(ws, "run"), []byte("#!/bin/sh\n"), 0o755)
	box := create(t, b, api.Create{Workspace: ws, Policy: policy.Policy{Capabilities: policy.Capabilities{FSWrite: &no, TTY: &no}, Paths: policy.Paths{Hide: []string{"*.env", "run"}}}}).ID
	if out := inBox(t, b, box, "echo x >file"); out.Status != outcome.Failed || !strings.Contains(out.Stderr, "Read-only") {
		t.Errorf("%s: %q", out.Status, out.Stderr)
	}
	said(t, inBox(t, b, box, "ls; test ! -e secret.env && echo absent"), "absent\n")
	for _, r := range []api.Run{{Argv: []string{"true"}, TTY: &api.Size{}}, {Argv: []string{"./run"}}} {
		if out := ran(t, b, box, r); out.Status != outcome.Denied || len(out.Denied) != 1 || out.ExitCode != 125 {
			t.Errorf("%q: %+v", r.Argv, out)
		}
	}
	// It is the policy that the box was created with.
	os.WriteFile(filepath.Join(ws, ".hutch.toml"), []byte("[capabilities]\nsubprocess = false\n"), 0o644)
	b.Release(box)
	said(t, inBox(t, b, box, "/bin/echo sub"), "sub\n")
	os.Remove(filepath.Join(ws, ".hutch.toml"))

	blind := create(t, b, api.Create{Workspace: ws, Policy: policy.Policy{Capabilities: policy.Capabilities{FSRead: &no}}}).ID
	said(t, inBox(t, b, blind, "ls -A; touch x 2>/dev/null || echo empty"), "empty\n")
}

func TestABackgroundServerIsReached(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	const server = `
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"from the box " + self.path.encode())
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", 8123), H).serve_forever()
`
	said(t, ran(t, b, box, api.Run{Argv: []string{"sh", "-c", "cat >server.py; nohup python3 server.py >/dev/null 2>&1 </dev/null & for i in $(seq 200); do python3 -c 'import socket;socket.create_connection((\"127.0.0.1\",8123))' 2>/dev/null && break; sleep .05; done; echo up"}, Stdin: server}), "up\n")
	ports, err := b.Ports(box)
	if err != nil || len(ports) != 1 || ports[0] != (api.Port{Port: 8123, Address: "127.0.0.1", Proto: "tcp"}) {
		t.Errorf("%+v, %v", ports, err)
	}
	for range 3 {
		conn, err := b.Dial(context.Background(), box, 8123)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "GET /path HTTP/1.0\r\n\r\n")
		got, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || !strings.Contains(string(got), "from the box /path") {
			t.Errorf("%q, %v", got, err)
		}
		said(t, inBox(t, b, box, "echo between"), "between\n")
	}
	if _, err := b.Dial(context.Background(), box, 8124); code(err) != api.NotFound {
		t.Errorf("nobody listens there: %v", err)
	}
	if err := b.Kill(box, api.Kill{All: true}); err != nil {
		t.Fatal(err)
	}
	if ports, err := b.Ports(box); err != nil || len(ports) != 0 {
		t.Errorf("killed, and listening: %+v, %v", ports, err)
	}
}

func TestSomethingListensOnIPv6Alone(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	said(t, inBox(t, b, box, `python3 -c '
import socket
s = socket.socket(socket.AF_INET6); s.bind(("::1", 8125)); s.listen()
open("/tmp/up", "w")
c, _ = s.accept(); c.sendall(b"six"); c.close()' >/dev/null 2>&1 &
for i in $(seq 200); do test -e /tmp/up && break; sleep .05; done; echo`), "\n")
	conn, err := b.Dial(context.Background(), box, 8125)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "six" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestEveryCommandIsOnRecord(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	said(t, inBox(t, b, box, "echo one"), "one\n")
	large := inBox(t, b, box, "head -c 300000 /dev/zero | tr '\\0' x; echo err >&2; exit 3")
	if large.StdoutBytes != 300000 || len(large.Stdout) != 300000 || large.StdoutPath == "" {
		t.Errorf("%d bytes, %d here, path %q", large.StdoutBytes, len(large.Stdout), large.StdoutPath)
	}
	part := ran(t, b, box, api.Run{Argv: []string{"sh", "-c", "echo 0123456789"}, Return: 4})
	if part.Stdout != "0123" || !part.StdoutTruncated || part.StdoutBytes != 11 || len(part.Notes) == 0 || !strings.Contains(part.Notes[len(part.Notes)-1], "hutch box logs "+box+" 3") {
		t.Errorf("%q, %v, %d, %q", part.Stdout, part.StdoutTruncated, part.StdoutBytes, part.Notes)
	}
	check := func(b *Boxes) {
		t.Helper()
		execs, err := b.Execs(box)
		if err != nil || len(execs) != 3 {
			t.Fatalf("%+v, %v", execs, err)
		}
		for i, want := range []struct {
			status outcome.Status
			stdout int
			exit   int
		}{{outcome.Success, 4, 0}, {outcome.Failed, 300000, 3}, {outcome.Success, 11, 0}} {
			e, err := b.ExecOf(box, strconv.Itoa(i+1))
			if err != nil || e.Running || e.Outcome == nil || e.Outcome.Status != want.status || e.Outcome.ExitCode != want.exit || len(e.Outcome.Stdout) != want.stdout || e.Outcome.Receipt != fmt.Sprintf("%s-%d", box, i+1) {
				t.Fatalf("command %d: %+v, %v", i+1, e, err)
			}
			if r, err := b.store.Receipts.Show(e.Outcome.Receipt); err != nil || r.ID != e.Outcome.Receipt {
				t.Errorf("its receipt: %v", err)
			}
			out, err := b.Output(box, e.ID, "stdout", 2, false)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(out)
			out.Close()
			if err != nil || len(text) != want.stdout-2 {
				t.Errorf("command %d: %d bytes from 2 on, %v", i+1, len(text), err)
			}
		}
		if _, err := b.ExecOf(box, "4"); code(err) != api.NotFound {
			t.Error(err)
		}
		if _, err := b.Output(box, "1", "stdin", 0, false); code(err) != api.Invalid {
			t.Error(err)
		}
	}
	check(b)
	if err := b.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	again, err := OpenBoxes(Options{})
	if err != nil {
		t.Fatal(err)
	}
	check(again)
	b.store, _ = OpenStore() // testBoxes closes it
	if err := again.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestOutputIsFollowedToItsEnd(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	s, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sh", "-c", "for i in 1 2 3; do echo $i; sleep .1; done; head -c 50000 /dev/zero"}}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	if e := s.Exec(); !e.Running || e.ID != "1" {
		t.Errorf("%+v", e)
	}
	if got, err := b.Show(box); err != nil || got.State != api.Busy || !got.Live {
		t.Errorf("%+v, %v", got, err)
	}
	follow, err := b.Output(box, "1", "stdout", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(follow)
	follow.Close()
	if err != nil || len(text) != 50006 || !strings.HasPrefix(string(text), "1\n2\n3\n") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	waiting, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sleep", "100"}}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	follow, err = b.Output(box, waiting.Exec().ID, "stdout", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { follow.Close() })
	if _, err := follow.Read(make([]byte, 1)); err == nil {
		t.Error("a reader that was closed reads")
	}
	if err := b.Kill(box, api.Kill{Exec: waiting.Exec().ID}); err != nil {
		t.Error(err)
	}
	if out, err := waiting.Wait(context.Background()); err != nil || out.Status != outcome.Killed || out.Signal != "SIGKILL" {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestABoxWithCommandsIsNotReleased(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	s, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sleep", "100"}}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Release(box); code(err) != api.NotQuiet {
		t.Errorf("%v", err)
	}
	if err := s.Signal("TERM"); err != nil {
		t.Error(err)
	}
	if out, err := s.Wait(context.Background()); err != nil || out.Signal != "SIGTERM" {
		t.Errorf("%+v, %v", out, err)
	}
	if err := b.Release(box); err != nil {
		t.Errorf("%v", err)
	}
	if err := b.Discard(context.Background(), box, false); err != nil {
		t.Error(err)
	}
}

// Who has killed what runs finds the box at rest, and the ends of its commands
// on record.
func TestAKillIsOverWhenItReturns(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	for i := range 10 {
		var last *Started
		for range 3 {
			s, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sleep", "100"}}, Streams{})
			if err != nil {
				t.Fatal(err)
			}
			last = s
		}
		if err := b.Kill(box, api.Kill{Exec: last.Exec().ID}); err != nil {
			t.Fatal(err)
		}
		if e, err := b.ExecOf(box, last.Exec().ID); err != nil || e.Outcome == nil || e.Outcome.Signal != "SIGKILL" {
			t.Errorf("%+v, %v", e, err)
		}
		if err := b.Kill(box, api.Kill{All: true, Signal: []string{"", "9"}[i%2]}); err != nil {
			t.Fatal(err)
		}
		if now, err := b.Show(box); err != nil || now.State != api.Ready || len(now.Running) != 0 {
			t.Errorf("%+v, %v", now, err)
		}
		if err := b.Release(box); err != nil {
			t.Error(err)
		}
	}
}

func TestClosingWaitsForCommandsAndThenEndsThem(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{}).ID
	quick, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sh", "-c", "sleep .3; echo done"}}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	slow, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sleep", "100"}}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	_ = b.Close(ctx)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	out, err := quick.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	said(t, out, "done\n")
	if out, err := slow.Wait(context.Background()); err != nil || out.Status == outcome.Success || out.CommandExitCode != nil && *out.CommandExitCode == 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"true"}}, Streams{}); code(err) != api.Full {
		t.Errorf("it was started all the same: %v", err)
	}
	b.store, _ = OpenStore()
}

// jailsLeft lists what of boxes is there: mounts, processes, directories.
func jailsLeft(t *testing.T, state string) []string {
	t.Helper()
	var found []string
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, state) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	entries, _ := os.ReadDir(filepath.Join(state, "hutch/boxes"))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), jailName) {
			found = append(found, e.Name())
		}
	}
	return found
}

func TestAfterAKillOfTheHolderNothingIsLeft(t *testing.T) {
	b := testBoxes(t)
	state := os.Getenv("XDG_STATE_HOME")
	ws := t.TempDir()
	box := create(t, b, api.Create{Workspace: ws}).ID
	quiet := create(t, b, api.Create{Workspace: ws}).ID

	holder := exec.Command(os.Args[0], "-test.run", "^TestHoldABox$")
	holder.Env = append(os.Environ(), "HUTCH_TEST_HOLD="+box)
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	holder.Stderr = os.Stderr
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	var pids []int
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "HOLDING "); ok {
			if err := json.Unmarshal([]byte(rest), &pids); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if len(pids) < 2 {
		t.Fatalf("the holder did not come up: %v, %v", pids, lines.Err())
	}
	if _, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"true"}}, Streams{}); code(err) != api.InUse {
		t.Errorf("another process has the box: %v", err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	deadline := time.Now().Add(5 * time.Second)
	for _, pid := range pids {
		for unix.Kill(pid, 0) == nil && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		if unix.Kill(pid, 0) == nil {
			t.Errorf("process %d is there still", pid)
		}
	}
	// The box opens again, with all that was written to it.
	var execs []api.Exec
	for range 100 {
		if execs, err = b.Execs(box); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil || len(execs) != 3 {
		t.Fatalf("%+v, %v", execs, err)
	}
	if out := execs[0].Outcome; out == nil || out.Status != outcome.Success {
		t.Errorf("what had ended: %+v", out)
	}
	for _, e := range execs[1:] {
		if e.Running || e.Outcome == nil || e.Outcome.Status != outcome.Error || !strings.Contains(e.Outcome.Error, unknownExit) {
			t.Errorf("what ran: %+v", e)
		}
	}
	said(t, inBox(t, b, box, "cat written"), "by the first holder\n")
	said(t, inBox(t, b, quiet, "ls -A"), "")
	// What its jail left on the disk is cleared as what any crash leaves is.
	for _, name := range jailsLeft(t, state) {
		old := time.Now().Add(-time.Hour)
		_ = os.Chtimes(filepath.Join(state, "hutch/boxes", name), old, old)
	}
	for _, id := range []string{box, quiet} {
		if err := b.Release(id); err != nil {
			t.Error(err)
		}
	}
	b.store.sweep(b.store.bases()[0])
	if left := jailsLeft(t, state); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if n, line, reason, err := b.store.Receipts.Verify(); err != nil || line != 0 || n == 0 {
		t.Errorf("receipts: %d sound, line %d: %s, %v", n, line, reason, err)
	}
}

// TestHoldABox is the process that is killed.
func TestHoldABox(t *testing.T) {
	box := os.Getenv("HUTCH_TEST_HOLD")
	if box == "" {
		return
	}
	b, err := OpenBoxes(Options{Pool: 2})
	if err != nil {
		t.Fatal(err)
	}
	said(t, inBox(t, b, box, "echo by the first holder >written"), "")
	for range 2 {
		if _, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"sh", "-c", "setsid sleep 1000 & sleep 1000"}}, Streams{}); err != nil {
			t.Fatal(err)
		}
	}
	var pids []int
	for len(pids) < 4 {
		pids = nil
		list, err := b.Processes(box)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			pids = append(pids, p.HostPID)
		}
		time.Sleep(5 * time.Millisecond)
	}
	text, _ := json.Marshal(pids)
	fmt.Printf("HOLDING %s\n", text)
	select {}
}

func TestManyCommandsAtOnceInManyBoxes(t *testing.T) {
	b := testBoxes(t)
	ws := t.TempDir()
	var all sync.WaitGroup
	for range 4 {
		box := create(t, b, api.Create{Workspace: ws}).ID
		for range 4 {
			all.Go(func() {
				for i := range 10 {
					out, err := tryRun(b, box, api.Run{Argv: []string{"sh", "-c", "echo $0 >>log; echo $0", fmt.Sprint(i)}})
					if err != nil || out.Stdout != fmt.Sprintln(i) {
						t.Errorf("%+v, %v", out, err)
						return
					}
				}
			})
		}
		t.Cleanup(func() { said(t, inBox(t, b, box, "wc -l <log"), "40\n") })
	}
	all.Wait()
}

func TestNothingIsLeftOfABox(t *testing.T) {
	b := testBoxes(t)
	state := os.Getenv("XDG_STATE_HOME")
	count := func() (fds, threads int) {
		entries, _ := os.ReadDir("/proc/self/fd")
		tasks, _ := os.ReadDir("/proc/self/task")
		return len(entries), len(tasks)
	}
	one := func() {
		box := create(t, b, api.Create{}).ID
		said(t, inBox(t, b, box, "sleep 100 >/dev/null 2>&1 & echo x >f"), "")
		if err := b.Discard(context.Background(), box, true); err != nil {
			t.Error(err)
		}
	}
	one()
	before, _ := count()
	for range 10 {
		one()
	}
	runtime.GC()
	after := 0
	for range 100 {
		if after, _ = count(); after <= before && len(jailsLeft(t, state)) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if after > before {
		t.Errorf("%d descriptors, and %d after ten boxes", before, after)
	}
	if left := jailsLeft(t, state); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestWhereverTheWorkspaceLies(t *testing.T) {
	b := testBoxes(t)
	home := tempDir(t)
	under := func(path string) string {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	places := map[string]string{
		"in the home": under(filepath.Join(home, "code/project")), "the home": home, "beside the home": under(filepath.Join(filepath.Dir(home), "beside/project")),
		"odd": under(filepath.Join(home, "a:b,c\\d e")),
	}
	if os.Geteuid() == 0 {
		top := fmt.Sprintf("/hutch-test-%d", os.Getpid())
		places["at the top"], places["in what is shown"] = under(top), under("/usr/local/share"+top)
		defer os.RemoveAll(top)
		defer os.RemoveAll("/usr/local/share" + top)
	}
	for what, ws := range places {
		if err := os.WriteFile(filepath.Join(ws, "given"), []byte("host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		box := create(t, b, api.Create{Workspace: ws, Force: true, Environ: []string{"HOME=" + home, "PATH=/usr/bin:/bin"}}).ID
		out := inBox(t, b, box, "set -e; cat given; echo x >new; mkdir d; mv new d/n; rm given; echo y >given; cat d/n given; pwd; echo h >$HOME/.written; echo t >/tmp/t.$$; touch /usr/local/no 2>/dev/null && echo WROTE || true; touch /etc/no 2>/dev/null && echo WROTE || true")
		if want := "host\nx\ny\n" + ws + "\n"; out.Status != outcome.Success || out.Stdout != want {
			t.Errorf("%s: %s, %q, %q, %q", what, out.Status, out.Stdout, out.Stderr, out.Error)
			continue
		}
		if _, err := b.Checkpoint(context.Background(), box, "c"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		said(t, inBox(t, b, box, "cat d/n given; echo z >d/z; rm -r d"), "x\ny\n")
		if err := b.Restore(context.Background(), box, "c"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		said(t, inBox(t, b, box, "cat d/n given"), "x\ny\n")
		if got, err := os.ReadFile(filepath.Join(ws, "given")); err != nil || string(got) != "host\n" {
			t.Errorf("%s: the workspace's own file is %q, %v", what, got, err)
		}
	}
}

func TestWhatABoxDoesAboveItsWorkspaceLeadsNoMountElsewhere(t *testing.T) {
	b := testBoxes(t)
	home := tempDir(t)
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	ws := filepath.Join(home, "a/b/project")
	if err := os.MkdirAll(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	box := create(t, b, api.Create{Workspace: ws, Environ: []string{"HOME=" + home, "PATH=/usr/bin:/bin"}}).ID
	said(t, inBox(t, b, box, "echo x >f; cd $HOME; mv a moved 2>/dev/null; ln -s /etc a 2>/dev/null; mkdir -p a/b/project 2>/dev/null; cd /; echo done"), "done\n")
	// Either it could not, or there is nothing to be replaced; never a mount on what
	// it put there.
	_, err := b.Checkpoint(context.Background(), box, "c")
	t.Logf("checkpoint: %v", err)
	if err := b.Release(box); err != nil {
		t.Fatal(err)
	}
	said(t, inBox(t, b, box, "cat f"), "x\n")
}

// A command that begins while the list of them is read is not taken for one whose
// end nobody saw.
func TestCommandsAreListedWhileTheyBegin(t *testing.T) {
	b := testBoxes(t)
	box := create(t, b, api.Create{Workspace: testWorkspace(t)}).ID
	said(t, inBox(t, b, box, ":"), "")
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 60 {
				if out, err := tryRun(b, box, api.Run{Argv: []string{"true"}}); err != nil || out.Status != outcome.Success {
					t.Errorf("%+v, %v", out, err)
				}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	for n := 0; ; n++ {
		list, err := b.Execs(box)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if e.Outcome != nil && e.Outcome.Status == outcome.Error {
				t.Fatalf("list %d: %+v: %s", n, e, e.Outcome.Error)
			}
		}
		select {
		case <-done:
			return
		default:
		}
	}
}
