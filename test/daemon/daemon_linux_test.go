package daemon

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestTheLifeOfABoxOverHTTP(t *testing.T) {
	h := newHouse(t)
	h.Write("a", "one\n")
	at := h.create()
	h.says(at, `cat a; echo two > b; echo t > /tmp/t; echo h > ~/h`, "one")
	h.says(at, `cat b /tmp/t ~/h`, "two\nt\nh")
	if h.Exists("b") {
		t.Error("the workspace was changed")
	}
	if r := h.sh(at, `exit 3`); r.Status != "failed" || r.ExitCode != 3 {
		t.Errorf("%+v", r)
	}
	// Input, environment and directory come with the command.
	r := decode[result](t, h.ask("POST", at+"/execs", `{"argv":["sh","-c","cat; echo $X; pwd"],"stdin":"in\n","env":["X=x"],"dir":"/tmp"}`, 200))
	if r.Stdout != "in\nx\n/tmp\n" {
		t.Errorf("%+v", r)
	}
	// A deadline of its own.
	if r := decode[result](t, h.ask("POST", at+"/execs", `{"argv":["sleep","60"],"timeout_seconds":0.2}`, 200)); r.Status != "timeout" || r.ExitCode != 124 {
		t.Errorf("%+v", r)
	}
	h.ask("POST", at+"/checkpoints", `{"name":"then"}`, 201)
	h.says(at, `rm b; echo three > c`, "")
	h.ask("POST", at+"/restore", `{"name":"then"}`, 204)
	h.says(at, `ls`, "a\nb")
	type box struct{ ID, Parent string }
	forks := decode[[]box](t, h.ask("POST", at+"/fork", `{"count":2}`, 201))
	for i, f := range forks {
		h.says("/v1/boxes/"+f.ID, fmt.Sprintf(`cat b; echo fork%d > b; cat b`, i), fmt.Sprintf("two\nfork%d", i))
	}
	h.says(at, `cat b`, "two")
	if patch := h.ask("GET", at+"/diff?format=patch", "", 200); !strings.Contains(patch, "+++ b/b\n@@ -0,0 +1 @@\n+two") {
		t.Errorf("%s", patch)
	}
	h.ask("POST", at+"/commit", ``, 200)
	if h.Read("b") != "two\n" {
		t.Errorf("%q", h.Read("b"))
	}
	h.ask("POST", at+"/execs", argv("true"), 409)
	for _, f := range forks {
		h.drop("/v1/boxes/" + f.ID)
	}
}

func TestFilesOverHTTP(t *testing.T) {
	h := newHouse(t)
	at := h.create()
	outside := filepath.Join(h.Base, "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := func(path string) string { return at + "/files?path=" + path }
	h.ask("PUT", file(h.Dir+"/x")+"&mode=750", "content", 204)
	h.says(at, `stat -c '%a %s' x; cat x`, "750 7\ncontent")
	h.says(at, `printf from > y`, "")
	if got := h.ask("GET", file(h.Dir+"/y"), "", 200); got != "from" {
		t.Errorf("%q", got)
	}
	h.ask("POST", at+"/dir?path="+h.Dir+"/d/e", "", 204)
	if got := h.ask("GET", at+"/dir?path="+h.Dir, "", 200); !strings.Contains(got, `"name":"d"`) {
		t.Errorf("%s", got)
	}
	// What a box makes leads nowhere but into the box.
	h.says(at, fmt.Sprintf(`ln -s %s out; ln -s / root; ln -s %s/../../../../.. up; ln -s /proc/1/root host; mkfifo pipe`, outside, h.Dir), "")
	for _, path := range []string{"/out/secret", "/root" + outside + "/secret", "/up" + outside + "/secret", "/host" + outside + "/secret", "/../../../../../.." + outside + "/secret"} {
		res, err := h.request(t.Context(), "GET", file(h.Dir+path), "")
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode < 400 {
			t.Errorf("GET %s: %d %q", path, res.StatusCode, text)
		}
		res, err = h.request(t.Context(), "PUT", file(h.Dir+strings.Replace(path, "secret", "planted", 1)), "p")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
	}
	if list, _ := os.ReadDir(outside); len(list) != 1 {
		t.Errorf("the host was written: %v", list)
	}
	// A pipe that nobody writes holds no request.
	begin := time.Now()
	res, err := h.request(t.Context(), "GET", file(h.Dir+"/pipe"), "")
	if err != nil {
		t.Fatal(err)
	}
	if res.Body.Close(); res.StatusCode < 400 || time.Since(begin) > 10*time.Second {
		t.Errorf("a pipe: %d after %v", res.StatusCode, time.Since(begin))
	}
	h.ask("DELETE", file(h.Dir+"/x"), "", 204)
	h.ask("GET", file(h.Dir+"/x"), "", 404)
	h.drop(at)
}

func TestAServerInABox(t *testing.T) {
	h := newHouse(t)
	h.Write("page", "hello")
	at := h.create()
	h.ask("POST", at+"/execs?detach=true", argv("python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"), 201)
	h.eventually("it listens", func() bool { return strings.Contains(h.ask("GET", at+"/ports", "", 200), "8000") })
	if got := h.ask("GET", at+"/ports/8000/proxy/page", "", 200); got != "hello" {
		t.Errorf("%q", got)
	}
	h.ask("GET", at+"/ports/8001/proxy/page", "", 404)
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/ports/8000/tunnel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: hutch-tunnel\r\n\r\n", at)
	r := bufio.NewReader(conn)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%v %v", res, err)
	}
	fmt.Fprint(conn, "GET /page HTTP/1.0\r\n\r\n")
	if all, err := io.ReadAll(r); err != nil || !strings.HasSuffix(string(all), "hello") {
		t.Errorf("%v %q", err, all)
	}
	// The host has no such port.
	if c, err := net.DialTimeout("tcp", "127.0.0.1:8000", time.Second); err == nil {
		c.Close()
		t.Error("the port is open on the host")
	}
	h.drop(at)
}

func TestAClientThatGoesEndsItsCommand(t *testing.T) {
	h := newHouse(t)
	at := h.create()
	left := func(query string) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			h.eventually("it runs", func() bool { return strings.Contains(h.ask("GET", at+"/processes", "", 200), `"sleep"`) })
			cancel()
		}()
		if res, err := h.request(ctx, "POST", at+"/execs"+query, argv("sleep", "600")); err == nil {
			res.Body.Close()
			t.Error("it was answered")
		}
	}
	left("")
	h.eventually("nothing runs", func() bool { return h.ask("GET", at+"/processes", "", 200) == "[]\n" })
	type exec struct {
		Running bool
		Outcome result
	}
	if e := decode[exec](t, h.ask("GET", at+"/execs/1", "", 200)); e.Running || e.Outcome.Status != "killed" || e.Outcome.Signal != "SIGINT" {
		t.Errorf("%+v", e)
	}
	left("?on_disconnect=keep")
	time.Sleep(300 * time.Millisecond)
	if !strings.Contains(h.ask("GET", at+"/processes", "", 200), `"sleep"`) {
		t.Error("it was ended")
	}
	h.drop(at)
}

// A client that does not read is cut off; what it did not read is on disk.
func TestAClientThatDoesNotRead(t *testing.T) {
	h := newHouse(t)
	at := h.create()
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := argv("sh", "-c", "yes | head -c 20000000; echo end >&2")
	fmt.Fprintf(conn, "POST %s/execs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s", at, len(body), body)
	type exec struct {
		Running bool
		Outcome result
	}
	var e exec
	h.eventually("it ends", func() bool {
		list := decode[[]exec](t, h.ask("GET", at+"/execs", "", 200))
		if len(list) == 1 {
			e = list[0]
		}
		return len(list) == 1 && !e.Running
	})
	if e.Outcome.Status != "success" || e.Outcome.StdoutBytes != 20000000 {
		t.Errorf("%+v", e.Outcome)
	}
	if got := h.ask("GET", at+"/execs/1/output?stream=stderr", "", 200); got != "end\n" {
		t.Errorf("%q", got)
	}
	if got := h.ask("GET", at+"/execs/1/output?offset=10000000", "", 200); len(got) != 10000000 {
		t.Errorf("%d bytes are kept", len(got))
	}
	h.drop(at)
}

func TestKillMinusNine(t *testing.T) {
	h := newHouse(t)
	h.Write("a", "one\n")
	at := h.create()
	h.says(at, `echo kept > b`, "")
	h.ask("POST", at+"/execs?detach=true", argv("sleep", "600"), 201)
	other := h.create()
	h.says(other, `echo other > o; cat o`, "other")
	h.crash()
	h.Age() // what was only just made is left alone: somebody may be at it
	h.start()
	// The commands died with it: that nobody saw the end of one is said.
	type exec struct {
		Running bool
		Outcome *result
	}
	list := decode[[]exec](t, h.ask("GET", at+"/execs", "", 200))
	if len(list) != 2 || list[0].Outcome == nil || list[0].Outcome.Status != "success" {
		t.Fatalf("%+v", list)
	}
	if list[1].Running || list[1].Outcome == nil || list[1].Outcome.Status != "error" {
		t.Errorf("%+v", list[1])
	}
	h.says(at, `cat b`, "kept")
	h.says(other, `cat o`, "other")
	h.ask("POST", at+"/commit", `{}`, 200)
	if h.Read("b") != "kept\n" {
		t.Errorf("%q", h.Read("b"))
	}
	h.drop(other)
	// Receipts are whole.
	h.Want(h.Run("receipts", "verify"), 0)
}

func TestOneDaemonOnly(t *testing.T) {
	h := newHouse(t)
	out, err := h.command().CombinedOutput()
	if err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), fmt.Sprintf("pid %d", h.cmd.Process.Pid)) {
		t.Errorf("%v %q", err, out)
	}
	h.ask("GET", "/v1/health", "", 200)
	if st, err := os.Stat(h.socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	// What a daemon that died left is no hindrance; one that ends leaves nothing.
	h.crash()
	if _, err := os.Lstat(h.socket); err != nil {
		t.Fatal("a crash takes the socket away?")
	}
	h.start()
	h.ask("POST", "/v1/shutdown", "", 202)
	h.ended(10*time.Second, 0)
	if _, err := os.Lstat(h.socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		h := newHouse(t)
		h.ask("GET", "/v1/health", "", 200)
		return
	}
	h := newHouse(t)
	for _, path := range []string{h.socket, filepath.Dir(h.socket)} { // as if the file system did not hold him
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cmd := h.command()
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `python3 - <<'E'
import socket, os
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ["HUTCH_SOCKET"])
try:
    s.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
    print(len(s.recv(1000)))
except OSError:
    print(0)
E`}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Errorf("%v %s", err, out)
	}
	if err := os.Chmod(filepath.Dir(h.socket), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestTermLetsCommandsFinish(t *testing.T) {
	h := newHouse(t)
	at := h.create()
	h.says(at, "true", "")
	answer := make(chan string, 1)
	go func() {
		res, err := h.request(context.Background(), "POST", at+"/execs", argv("sh", "-c", "touch started; sleep 1; echo done"))
		if err != nil {
			answer <- err.Error()
			return
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		answer <- string(text)
	}()
	h.eventually("it runs", func() bool { return strings.Contains(h.ask("GET", at+"/processes", "", 200), `"sleep"`) })
	h.cmd.Process.Signal(syscall.SIGTERM)
	if text := <-answer; !strings.Contains(text, `"stdout":"done\n"`) {
		t.Errorf("%s", text)
	}
	h.ended(10*time.Second, 0)
	h.start("--drain", "300ms")
	h.ask("POST", at+"/execs?detach=true", argv("sleep", "600"), 201)
	h.cmd.Process.Signal(syscall.SIGTERM)
	h.ended(10*time.Second, 0)
	h.start()
	h.says(at, "ls", "started")
	h.drop(at)
}

func TestTheIdleDaemonEnds(t *testing.T) {
	h := newHouse(t, "--idle", "500ms")
	at := h.create()
	h.says(at, "sleep 600 > /dev/null 2>&1 & echo x", "x")
	h.client.CloseIdleConnections()
	time.Sleep(1500 * time.Millisecond)
	h.ask("POST", at+"/kill", `{"all":true}`, 204) // it is there still: something runs
	h.client.CloseIdleConnections()
	h.ended(10*time.Second, 0)
	h.start()
	h.drop(at)
}

func TestTCP(t *testing.T) {
	h := newHouse(t)
	h.end()
	out, err := h.command("--listen", "127.0.0.1:0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "token") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v %q", err, out)
	}
	file := filepath.Join(h.Base, "token")
	if err := os.WriteFile(file, []byte("0123456789abcdef0123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.start("--listen", "127.0.0.1:0", "--token-file", file)
	type status struct{ Listen []string }
	s := decode[status](t, h.ask("GET", "/v1/status", "", 200))
	if len(s.Listen) != 2 {
		t.Fatalf("%+v", s)
	}
	address := strings.TrimPrefix(s.Listen[1], "tcp:")
	for auth, want := range map[string]int{"": 401, "Bearer wrong": 401, "Bearer 0123456789abcdef0123": 200} {
		req, _ := http.NewRequest("GET", "http://"+address+"/v1/boxes", nil)
		req.Header.Set("Authorization", auth)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if res.Body.Close(); res.StatusCode != want {
			t.Errorf("%q: %d", auth, res.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestSocketActivation hands a socket over, as systemd does.
func TestSocketActivation(t *testing.T) {
	h := newHouse(t)
	h.end()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// LISTEN_PID must be its own, which a shell that becomes it can tell.
	h.cmd = h.command()
	h.cmd.Args = []string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --ready-fd 4`, h.cmd.Path}
	h.cmd.Path = "/bin/sh"
	h.cmd.ExtraFiles = []*os.File{f, w}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	w.Close()
	h.gone = make(chan struct{})
	go func() { h.cmd.Wait(); close(h.gone) }()
	if line, _ := io.ReadAll(r); len(line) == 0 {
		t.Fatal("it is not ready")
	}
	r.Close()
	at := h.create()
	h.says(at, "echo $LISTEN_FDS$LISTEN_PID", "")
	h.drop(at)
	h.end()
	if _, err := os.Lstat(h.socket); err != nil {
		t.Error("the service manager's socket was taken away")
	}
	os.Remove(h.socket)
}

func TestTheBestOfARace(t *testing.T) {
	h := newHouse(t)
	h.Write("n", "0\n")
	type race struct {
		Winner string
		Error  string
		Racers []struct {
			Won   bool
			Score float64
			Fate  string
		}
	}
	r := decode[race](t, h.ask("POST", "/v1/races", fmt.Sprintf(
		`{"create":{"workspace":%q},"runs":[%s,%s,%s],"score":%s}`, h.Dir,
		argv("sh", "-c", "echo 5 > n"), argv("sh", "-c", "echo 9 > n"), argv("false"), argv("cat", "n")), 200))
	if r.Error != "" || len(r.Racers) != 3 || !r.Racers[1].Won || r.Racers[1].Score != 9 || r.Racers[1].Fate != "committed" || r.Racers[0].Fate != "discarded" {
		t.Errorf("%+v", r)
	}
	if h.Read("n") != "9\n" {
		t.Errorf("%q", h.Read("n"))
	}
	begin := time.Now()
	r = decode[race](t, h.ask("POST", "/v1/races", fmt.Sprintf(
		`{"create":{"workspace":%q},"runs":[%s,%s]}`, h.Dir, argv("sleep", "600"), argv("sh", "-c", "echo first > n")), 200))
	if !r.Racers[1].Won || h.Read("n") != "first\n" || time.Since(begin) > 20*time.Second {
		t.Errorf("%+v after %v: %q", r, time.Since(begin), h.Read("n"))
	}
}

func (h *house) rss() (kb int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "VmRSS:") {
			fmt.Sscan(strings.Fields(line)[1], &kb)
		}
	}
	return kb
}

func (h *house) descriptors() int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid))
	return len(list)
}

func TestTenThousandRequestsForNothing(t *testing.T) {
	h := newHouse(t)
	ask := func(n int) {
		for i := range n {
			h.ask("POST", fmt.Sprintf("/v1/boxes/none%d/execs", i), argv("true"), 404)
		}
	}
	ask(2000)
	rss, fds := h.rss(), h.descriptors()
	ask(10000)
	if r, f := h.rss(), h.descriptors(); r > rss+8<<10 || f > fds+4 {
		t.Errorf("memory %d to %d KiB, descriptors %d to %d", rss, r, fds, f)
	}
}

func TestSixtyFourClientsAtOnce(t *testing.T) {
	h := newHouse(t, "--max-running", "8")
	boxes := []string{h.create(), h.create(), h.create(), h.create()}
	for _, at := range boxes {
		h.says(at, "true", "")
	}
	const clients, each = 64, 10
	took := make([]time.Duration, clients)
	gun := make(chan struct{})
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			<-gun
			begin := time.Now()
			for i := range each {
				h.says(boxes[(c+i)%len(boxes)], fmt.Sprintf("echo %d.%d", c, i), fmt.Sprintf("%d.%d", c, i))
			}
			took[c] = time.Since(begin)
		})
	}
	close(gun)
	all.Wait()
	slices.Sort(took)
	t.Logf("the first of %d clients was done after %v, the middle %v, the last %v", clients, took[0], took[clients/2], took[clients-1])
	if took[0] < took[clients-1]/4 {
		t.Errorf("one was done after %v, another after %v", took[0], took[clients-1])
	}
	for _, at := range boxes {
		h.drop(at)
	}
}

// frame writes a frame of a WebSocket, masked with zeros as a client may.
func frame(w io.Writer, op byte, data string) {
	b := []byte{0x80 | op, 0x80 | 126, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(len(data)))
	_, _ = w.Write(append(b, data...))
}

func TestATerminalOverAWebSocket(t *testing.T) {
	h := newHouse(t)
	at := h.create()
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", at)
	r := bufio.NewReader(conn)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%v %v", res, err)
	}
	frame(conn, 1, `{"argv":["sh"],"tty":{"rows":10,"cols":20}}`)
	frame(conn, 2, "stty size; tty\n")
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	var all strings.Builder
	buf := make([]byte, 4096)
	until := func(text string) {
		t.Helper()
		for !strings.Contains(all.String(), text) {
			n, err := r.Read(buf)
			if err != nil {
				t.Fatalf("%v: %q", err, all.String())
			}
			all.Write(buf[:n])
		}
	}
	until("10 20")
	until("/dev/pts/")
	frame(conn, 1, `{"resize":{"rows":33,"cols":44}}`)
	frame(conn, 2, "stty size\n")
	until("33 44")
	frame(conn, 2, "exit 7\n")
	until(`"exit_code":7`)
	h.drop(at)
}
