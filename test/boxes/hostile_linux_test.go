package boxes

import (
	"context"
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

// api asks the daemon by HTTP.
func (w *world) api(method, path string, body io.Reader) (status int, text string) {
	w.T.Helper()
	c := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(w.State, "s"))
	}}}
	r, err := http.NewRequest(method, "http://hutchd"+path, body)
	if err != nil {
		w.T.Fatal(err)
	}
	answer, err := c.Do(r)
	if err != nil {
		w.T.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		w.T.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// Root's hutchd reaches the files of a box with the rights of the box's user: a
// link that the box made does not open what is closed to it, nor does a directory
// that it moves.
func TestFilesAreReachedAsTheBoxesUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root's boxes run as somebody else")
	}
	w := newWorld(t)
	data := filepath.Join(w.Base, "data")
	for _, dir := range []string{data, filepath.Join(data, "vault"), filepath.Join(w.Dir, "vault"), filepath.Join(w.Dir, "own")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("of root\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{w.Dir, w.Home, data, filepath.Join(w.Dir, "own"), filepath.Join(w.Dir, "own", "secret")} {
		if err := os.Chown(path, 1000, 1000); err != nil {
			t.Fatal(err)
		}
	}
	id := w.box("--write", data)
	w.Want(w.exec(id, fmt.Sprintf("test $(id -u) = 1000; ln -s %s/vault away; ln -s %s/secret one; mkdir -m 555 closed", data, data)), 0)
	for _, path := range []string{"away/secret", "one", "vault/secret", data + "/vault/secret"} {
		w.fails("permission denied", "box", "cat", id, path)
	}
	for _, path := range []string{"away", "vault"} {
		w.fails("permission denied", "box", "ls", id, path)
	}
	for _, path := range []string{"away/new", "vault/new", "closed/new"} {
		r := w.RunWith(w.input("x"), "box", "write", id, path)
		if r.Code != 125 || !strings.Contains(r.Stderr, "permission denied") {
			t.Errorf("write %s: %v", path, r)
		}
	}
	for method, call := range map[string]string{"DELETE": "files?path=away/secret", "POST": "dir?path=vault/new"} {
		if status, text := w.api(method, "/v1/boxes/"+id+"/"+call, nil); status != http.StatusForbidden {
			t.Errorf("%s %s: %d %s", method, call, status, text)
		}
	}
	// What is its own it has, and what is made is its.
	if got := w.out("box", "cat", id, "own/secret"); got != "of root" {
		t.Errorf("%q", got)
	}
	w.Want(w.RunWith(w.input("x"), "box", "write", id, "own/new"), 0)
	if status, text := w.api("POST", "/v1/boxes/"+id+"/dir?path=own/a/b", nil); status >= 300 {
		t.Errorf("%d %s", status, text)
	}
	w.Want(w.exec(id, `test "$(stat -c %u:%g:%a own/new own/a own/a/b | tr '\n' ' ')" = '1000:1000:644 1000:1000:755 1000:1000:755 '`), 0)
	w.out("box", "rm", id)
}

// The times, names, numbers and sizes that a box chooses do not keep a directory
// from being listed, or a file from being told of.
func TestFilesOfOddTimesAndNames(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	w.Want(w.exec(id, `cd /tmp && touch -d @999999999999999 late && touch -d @-999999999999999 early; touch "$(printf 'e\033]0;t\007')" "$(printf 'a\nb')" "$(printf 'x\377')"; truncate -s 8T holes`), 0)
	r := w.Run("box", "ls", "-l", id, "/tmp")
	w.Want(r, 0)
	for _, name := range []string{"late", "early", "^[]0;t^G", "a", "holes"} {
		if !strings.Contains(r.Stdout, name) {
			t.Errorf("no %q in %q", name, r.Stdout)
		}
	}
	if strings.ContainsAny(r.Stdout, "\x1b\x07") {
		t.Errorf("%q", r.Stdout)
	}
	w.out("box", "cat", id, "/tmp/late")
	w.Want(w.exec(id, "mkdir /tmp/many && cd /tmp/many && seq 100001 | xargs touch"), 0)
	w.fails("more than can be listed", "box", "ls", id, "/tmp/many")
	w.out("box", "rm", id)
}

// A box that renames all the time does not keep the daemon at a path for ever.
func TestAWayThatIsRenamedAllTheTime(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	up := strings.Repeat("../d/", 400)
	w.Want(w.exec(id, fmt.Sprintf("mkdir d; echo x > d/f; ln -s %sf d/l0; for i in $(seq 1 30); do ln -s %sl$((i-1)) d/l$i; done", up, up)), 0)
	w.out("box", "exec", id, "--detach", "--", "python3", "-c", `import os
for n in range(4):
    if not os.fork():
        os.mkdir("r%d" % n)
        while True:
            os.rename("r%d" % n, "s%d" % n)
            os.rename("s%d" % n, "r%d" % n)
os.wait()`)
	time.Sleep(200 * time.Millisecond)
	for range 5 {
		began := time.Now()
		r := w.Run("box", "cat", id, "d/l30")
		if took := time.Since(began); took > 15*time.Second || r.Code != 0 && !strings.Contains(r.Stderr, "renamed all the time") {
			t.Errorf("after %v: %v", took, r)
		}
	}
	w.out("box", "rm", id)
}

// A link that is copied out of a box leads to within what was copied, whatever
// other links it goes through.
func TestCopiedLinksDoNotCompose(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	w.Want(w.exec(id, `mkdir -p d/e/f/g; echo in > d/in; ln -s ../.. d/e/f/top; ln -s top/../secret d/e/f/out; ln -s top/in d/e/f/good; ln -s ../e/f/top/../.. d/e/out2; ln -s f/top d/e/twice`), 0)
	to := filepath.Join(w.Base, "to")
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := w.Run("box", "cp", id+":d", to)
	if r.Code != 125 || strings.Count(r.Stderr, "left out") != 2 {
		t.Errorf("%v", r)
	}
	n := 0
	err := filepath.WalkDir(filepath.Join(to, "d"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type() != os.ModeSymlink {
			return err
		}
		n++
		if real, err := filepath.EvalSymlinks(path); err != nil || !strings.HasPrefix(real+"/", filepath.Join(to, "d")+"/") {
			t.Errorf("%s leads to %q: %v", path, real, err)
		}
		return nil
	})
	if err != nil || n != 3 {
		t.Errorf("%d links, %v", n, err)
	}
	w.out("box", "rm", id)
}

// A socket of the daemon that a box is shown is no way to command it.
func TestNoBoxCommandsTheDaemon(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.Base, "sock")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	w.Env = append(w.Env, "HUTCH_SOCKET="+socket)
	flags := []string{"--read", dir}
	if os.Geteuid() == 0 {
		flags = append(flags, "--user", "root") // whom the socket lets in
	}
	id := w.box(flags...)
	for name, code := range map[string]string{
		"a process": "",
		// Whose number may be another's by the time the daemon looks.
		"one that is gone": "r, s = socket.socketpair()\nif os.fork():\n    os._exit(0)\n",
	} {
		r := w.Run("box", "exec", id, "--", "python3", "-c", `import os, socket
c = socket.socket(socket.AF_UNIX)
c.connect("`+socket+`")
print("connected", flush=True)
`+code+`try:
    c.sendall(b"GET /v1/status HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    print(c.recv(1000))
except OSError as e:
    print("refused", e)
`)
		// It came as far as the daemon, which did not answer.
		if !strings.Contains(r.Stdout, "connected") || strings.Contains(r.Stdout, "HTTP/1.1") {
			t.Errorf("%s: %v", name, r)
		}
	}
	w.out("box", "rm", id)
}

// On the host's network, the ports of a box are those at which it listens, and no
// service of the host that has the same number elsewhere.
func TestPortsOfTheHostAreNotTheBoxes(t *testing.T) {
	w := newWorld(t)
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{}, 16)
	go func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			heard <- struct{}{}
			fmt.Fprint(c, "HTTP/1.0 200 OK\r\n\r\nof the host")
			c.Close()
		}
	}()
	defer host.Close()
	port := host.Addr().(*net.TCPAddr).Port
	id := w.box("--allow-net")
	for _, at := range []string{"127.0.0.2", "::1"} {
		exec := w.out("box", "exec", id, "--detach", "--", "python3", "-m", "http.server", fmt.Sprint(port), "--bind", at)
		until(t, "listening", func() bool { return strings.Contains(w.out("box", "ports", id), at) })
		status, text := w.api("GET", fmt.Sprintf("/v1/boxes/%s/ports/%d/proxy/", id, port), nil)
		if strings.Contains(text, "of the host") || at == "::1" && status != 200 {
			t.Errorf("%s: %d %q", at, status, text)
		}
		w.out("box", "kill", id, exec)
	}
	select {
	case <-heard:
		t.Error("the host's own service was reached")
	default:
	}
	w.out("box", "rm", id)
}

// The name of a box does not change what is asked of its servers.
func TestProxyOfABoxCalledProxy(t *testing.T) {
	w := newWorld(t)
	w.Write("there", "hello")
	w.box("--name", "proxy")
	w.out("box", "exec", "proxy", "--detach", "--", "python3", "-m", "http.server", "8000", "--bind", "127.0.0.1")
	until(t, "listening", func() bool { return strings.Contains(w.out("box", "ports", "proxy"), "8000") })
	if status, text := w.api("GET", "/v1/boxes/proxy/ports/8000/proxy/there", nil); status != 200 || text != "hello" {
		t.Errorf("%d %q", status, text)
	}
	w.out("box", "rm", "proxy")
}

// A box is committed to the directory that it was made of, and to no other that a
// link leads to by now.
func TestAWorkspaceThatIsALinkNow(t *testing.T) {
	w := newWorld(t)
	other := filepath.Join(w.Base, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	id := w.box()
	w.Want(w.exec(id, "echo new > new"), 0)
	w.out("box", "release", id)
	moved := w.Dir + ".moved"
	if err := os.Rename(w.Dir, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, w.Dir); err != nil {
		t.Fatal(err)
	}
	o := lab.Options{Dir: w.Base}
	for _, args := range [][]string{{"commit", id}, {"diff", id}, {"box", "exec", id, "--", "true"}, {"box", "fork", id}} {
		if r := w.RunWith(o, args...); args[0] != "box" && r.Code != 125 || args[0] == "box" && args[1] == "exec" && r.Code != 125 {
			t.Errorf("%v: %v", args, r)
		}
	}
	if list, err := os.ReadDir(other); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	if err := os.Remove(w.Dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(moved, w.Dir); err != nil {
		t.Fatal(err)
	}
	for _, b := range parsed[[]boxJSON](w, "box", "list", "--json") {
		if b.ID != id {
			w.out("box", "rm", b.ID)
		}
	}
	w.out("commit", id)
	if w.Read("new") != "new\n" {
		t.Error("it did not arrive")
	}
}

// A daemon that is killed leaves nothing that runs, no mount and no cgroup.
func TestKilledDaemonLeavesNothing(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	for n := range 4 {
		before := lab.TakeCensus(w.Base)
		w.Want(w.exec(id, "setsid sleep 7531 > /dev/null 2>&1 &"), 0)
		beside := w.Start(lab.Options{}, "box", "exec", id, "--", "sh", "-c", "echo ready; exec sleep 7531")
		beside.WaitFor("ready")
		status := parsed[struct{ PID int }](w, "daemon", "status", "--json")
		time.Sleep(time.Duration(n*n) * 10 * time.Millisecond)
		if err := syscall.Kill(status.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		beside.Wait()
		for _, left := range lab.Leftovers(before, 5*time.Second, w.Base) {
			if !strings.Contains(left, "cgroup") { // which the next daemon clears
				t.Errorf("left: %s", left)
			}
		}
		w.Want(w.exec(id, "! pgrep -f 753[1]"), 0)
	}
	w.out("box", "rm", id)
	w.out("daemon", "stop")
	w.Age() // what a crash leaves is cleared when it is surely nobody's
	w.out("gc")
}

// What the policy hides, and comes to be in the workspace after the box was made,
// is not shown to it either; what is the box's own is no secret.
func TestHiddenFilesThatComeLater(t *testing.T) {
	w := newWorld(t)
	w.Write("there/.env", "secret 1\n")
	id := w.box("--hide", ".env")
	fork := w.out("box", "fork", id)
	w.Want(w.exec(id, "! cat there/.env; mkdir own; echo mine > own/.env"), 0)
	w.out("box", "checkpoint", id, "c")
	w.out("box", "release", id)
	w.Want(w.exec(id, "cat own/.env"), 0)
	w.out("box", "release", id)
	w.Write("there/new/.env", "secret 2\n")
	w.Write("own/.env", "secret 3\n")
	for _, box := range []string{id, fork} {
		w.fails("which its policy hides", "box", "exec", box, "--", "true")
		w.fails("which its policy hides", "box", "cat", box, "there/new/.env")
	}
	if err := os.RemoveAll(filepath.Join(w.Dir, "there", "new")); err != nil {
		t.Fatal(err)
	}
	if r := w.exec(id, "cat own/.env there/.env"); r.Stdout != "mine\n" {
		t.Errorf("%v", r)
	}
	w.fails("own/.env", "box", "exec", fork, "--", "true")
	w.out("box", "rm", id)
	w.out("box", "rm", fork)
}

// Whoever reaches a port of the daemon, and knows no token, does not keep it from
// its boxes by connecting.
func TestStrangersDoNotTakeEveryDescriptor(t *testing.T) {
	w := newWorld(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	d := exec.Command("sh", "-c", `ulimit -n 800; exec "$0" --listen "$1" --pool 0`, filepath.Join(filepath.Dir(program(t)), "hutchd"), at)
	d.Env = append(w.Environ(w.Env...), "HUTCHD_TOKEN=0123456789abcdefghij")
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	done := lab.Expect(d.Process.Pid)
	defer func() {
		_ = d.Process.Signal(syscall.SIGTERM)
		_ = d.Wait()
		done()
	}()
	until(t, "served", w.daemonRuns)
	id := w.box()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range 900 {
		c, err := net.DialTimeout("tcp", at, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if r := w.exec(id, "echo served"); r.Stdout != "served\n" {
		t.Errorf("%v", r)
	}
	// Their places are free again.
	for _, c := range conns {
		c.Close()
	}
	conns = nil
	until(t, "answered", func() bool {
		r, err := http.Get("http://" + at + "/v1/status")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusUnauthorized
	})
	w.out("box", "rm", id)
}
