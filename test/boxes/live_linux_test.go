package boxes

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// processJSON is a process as programs read it.
type processJSON struct {
	PID     int
	HostPID int `json:"host_pid"`
	Exec    string
	Name    string
	Argv    []string
}

// What runs is listed with the command it belongs to; one process, one command
// or everything is ended, and the box lives on.
func TestProcessesAndKill(t *testing.T) {
	w := newWorld(t)
	id := w.box("--name", "p")
	one := w.out("box", "exec", id, "--detach", "--", "sh", "-c", "sleep 1001 & sleep 1002 & wait")
	two := w.out("box", "exec", id, "--detach", "--", "sh", "-c", "trap 'exit 6' USR1; while :; do sleep 0.05; done")
	find := func(what string) *processJSON {
		for _, p := range parsed[[]processJSON](w, "box", "ps", "p", "--json") {
			if strings.Contains(strings.Join(p.Argv, " "), what) && !strings.Contains(strings.Join(p.Argv, " "), "wait") {
				return &p
			}
		}
		return nil
	}
	until(t, "running", func() bool { return find("sleep 1001") != nil && find("sleep 1002") != nil })
	if p := find("sleep 1001"); p.Exec != one || p.PID <= 1 || p.Name != "sleep" {
		t.Errorf("%+v", p)
	}
	if table := w.out("box", "ps", "p"); !strings.Contains(table, "sleep 1001") || !strings.HasPrefix(table, "PID") {
		t.Errorf("%s", table)
	}
	w.out("box", "kill", "p", "--pid", fmt.Sprint(find("sleep 1001").PID))
	until(t, "one process gone", func() bool { return find("sleep 1001") == nil })
	if find("sleep 1002") == nil {
		t.Error("another process went too")
	}
	w.out("box", "kill", "p", two, "--signal", "sigusr1")
	until(t, "signalled", func() bool {
		e := parsed[execJSON](w, "box", "logs", "p", two, "--json")
		return e.Outcome != nil && e.Outcome.ExitCode == 6
	})
	w.out("box", "kill", "p", one)
	until(t, "the command gone", func() bool { return find("sleep 1002") == nil })
	if e := parsed[execJSON](w, "box", "logs", "p", one, "--json"); e.Outcome == nil || e.Outcome.Status != "killed" {
		t.Errorf("%+v", e)
	}
	w.Want(w.exec(id, "setsid sleep 1003 > /dev/null 2>&1 &"), 0)
	w.out("box", "kill", "p")
	until(t, "all gone", func() bool { return find("sleep 1003") == nil })
	w.Want(w.exec(id, "true"), 0)
	w.fails("", "box", "kill", "p", "--signal", "NONSENSE")
	w.fails("", "box", "kill", "p", "999")
	w.out("box", "rm", id)
}

// Files go in and out, through pipes and by name, with links that stay in the
// box resolved there.
func TestFiles(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	before := w.Snap()
	id := w.box("--name", "f")
	r := w.RunWith(w.input("written\x00\xff"), "box", "write", "f", "new.bin", "--mode", "750")
	w.Want(r, 0)
	if r := w.Run("box", "cat", "f", "new.bin"); r.Stdout != "written\x00\xff" || r.Code != 0 {
		t.Errorf("%v", r)
	}
	if r := w.exec(id, "stat -c %a new.bin; cat new.bin | wc -c"); r.Stdout != "750\n9\n" {
		t.Errorf("%v", r)
	}
	w.Want(w.RunWith(w.input("in tmp"), "box", "write", "f", "/tmp/x"), 0)
	if got := w.exec(id, "cat /tmp/x").Stdout; got != "in tmp" {
		t.Errorf("%q", got)
	}
	if got := w.out("box", "cat", "f", w.Dir+"/a.txt"); got != "foo one\nfoo two" {
		t.Errorf("%q", got)
	}
	if got := w.out("box", "ls", "f"); got != "README.md\na.txt\ndir/\nlink\nmodule.py\nnew.bin\nrun.sh" {
		t.Errorf("%q", got)
	}
	files := parsed[[]struct {
		Name, Type, Target string
		Size               int64
		Mode               uint32
	}](w, "box", "ls", "f", ".", "--json")
	seen := map[string]string{}
	for _, f := range files {
		seen[f.Name] = fmt.Sprintf("%s %o %d %s", f.Type, f.Mode, f.Size, f.Target)
	}
	if seen["new.bin"] != "file 750 9 " || !strings.HasPrefix(seen["dir"], "directory 755 ") || !strings.HasPrefix(seen["link"], "symlink ") || !strings.HasSuffix(seen["link"], " a.txt") {
		t.Errorf("%q", seen)
	}
	w.fails("nothing-here", "box", "cat", "f", "nothing-here")
	w.fails("", "box", "cat", "f", "dir")
	w.fails("", "box", "ls", "f", "a.txt")
	w.Untouched(before)
	w.out("box", "rm", id)
}

// Links and names that a box made lead to nothing of the host, whichever verb
// meets them.
func TestHostileFiles(t *testing.T) {
	w := newWorld(t)
	secret := filepath.Join(w.Home, "secret")
	if err := os.WriteFile(secret, []byte("SECRET"), 0o644); err != nil {
		t.Fatal(err)
	}
	id := w.box("--name", "h")
	w.Want(w.exec(id, fmt.Sprintf(`
ln -s %[1]s abs; ln -s %[2]s dir; ln -s ../home/secret rel; ln -s ../../../../../../../../../%[1]s up; ln -s /proc/1/root%[1]s proc
ln -s loop loop; mkfifo fifo; ls dir/secret && exit 1; mkdir tree; ln -s %[1]s tree/abs; ln -s ../a tree/out; ln -s inside tree/in; echo in > tree/inside
ln -s sub/../../../x tree/sly; mkfifo tree/fifo; mkdir -p tree/sub; echo deep > tree/sub/deep`, secret, w.Home)), 0)
	for _, path := range []string{"abs", "rel", "up", "proc", "dir/secret", "../home/secret", secret, "loop"} {
		// What is there is the box's own, even by the host's name.
		if r := w.Run("box", "cat", "h", path); strings.Contains(r.Stdout, "SECRET") {
			t.Errorf("cat %s: %v", path, r)
		}
		r := w.RunWith(w.input("OVERWRITTEN"), "box", "write", "h", path)
		if r.Code != 0 && (r.Code != 125 || strings.Count(r.Stderr, "\n") != 1) {
			t.Errorf("write %s: %v", path, r)
		}
		out := filepath.Join(w.Base, "got")
		if r := w.Run("box", "cp", "h:"+path, out); r.Code == 0 {
			if text, _ := os.ReadFile(out); strings.Contains(string(text), "SECRET") {
				t.Errorf("cp %s: %v", path, r)
			}
		}
		os.RemoveAll(out)
	}
	if text, err := os.ReadFile(secret); string(text) != "SECRET" || err != nil {
		t.Fatalf("the host's file holds %q, %v", text, err)
	}
	run := w.Start(lab.Options{}, "box", "cat", "h", "fifo") // nobody writes
	if r := run.Wait(); r.Code == 0 || r.Duration > time.Minute {
		t.Errorf("%v", r)
	}
	// A tree is copied out without what would lead out of it.
	out := filepath.Join(w.Base, "out")
	r := w.Run("box", "cp", "h:tree", out, "--json")
	var c struct {
		Files, Directories, Links int
		LeftOut                   []string `json:"left_out"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &c); err != nil || r.Code != 125 || c.Files != 2 || c.Directories != 2 || c.Links != 1 || len(c.LeftOut) != 4 {
		t.Errorf("%v: %+v\n%v", err, c, r)
	}
	for name, want := range map[string]bool{"inside": true, "in": true, "sub/deep": true, "abs": false, "out": false, "sly": false, "fifo": false} {
		if _, err := os.Lstat(filepath.Join(out, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(out, "in")); string(text) != "in\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	w.out("box", "rm", id)
}

// Trees go in, out, and from box to box, with contents, modes and names.
func TestCopy(t *testing.T) {
	w := newWorld(t)
	one, two := w.box("--name", "one"), w.box("--name", "two")
	src := filepath.Join(w.Base, "src")
	odd := "odd name\n*"
	for name, text := range map[string]string{"a": "A", "sub/b": strings.Repeat("B", 3<<20), "sub/" + odd: "odd", "empty/x": ""} {
		path := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(src, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	w.out("box", "cp", src, "one:copy")
	w.out("box", "cp", "one:copy", "two:/tmp")
	out := filepath.Join(w.Base, "back")
	w.out("box", "cp", "two:/tmp/copy/", out)
	before, after := lab.Snapshot(t, src), lab.Snapshot(t, out)
	for path, n := range before {
		if m := after[path]; n.Mode != m.Mode || n.Content != m.Content {
			t.Errorf("%q: %+v, want %+v", path, m, n)
		}
	}
	if len(before) != len(after) {
		t.Errorf("%d paths, want %d", len(after), len(before))
	}
	// A file into a directory keeps its name; over a file it replaces it.
	w.out("box", "cp", filepath.Join(src, "a"), "one:copy/sub")
	w.out("box", "cp", filepath.Join(src, "empty/x"), "one:copy/a")
	if r := w.exec(one, "cat copy/sub/a; wc -c < copy/a"); r.Stdout != "A0\n" {
		t.Errorf("%v", r)
	}
	w.out("box", "cp", "one:copy/sub/a", w.Base)
	if text, err := os.ReadFile(filepath.Join(w.Base, "a")); string(text) != "A" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	w.fails("not there", "box", "cp", "one:nothing", w.Base)
	w.fails("not there", "box", "cp", filepath.Join(w.Base, "nothing"), "one:x")
	w.fails("directory", "box", "cp", src, "one:copy/a")
	w.fails("no box", "box", "cp", "nobox:x", w.Base)
	entries, _ := os.ReadDir(w.Base)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".hutch") {
			t.Errorf("left behind: %s", e.Name())
		}
	}
	w.out("box", "rm", one, two)
}

// What listens in a box is listed, and reached through the daemon, although the
// box has no network.
func TestPortsAndForward(t *testing.T) {
	w := newWorld(t)
	w.Write("served.txt", "served\n")
	id := w.box("--name", "web")
	w.out("box", "exec", "web", "--detach", "--", "python3", "-m", "http.server", "8123", "--bind", "127.0.0.1")
	var ports []struct {
		Port           uint16
		Address, Proto string
	}
	until(t, "listening", func() bool {
		ports = parsed[[]struct {
			Port           uint16
			Address, Proto string
		}](w, "box", "ports", "web", "--json")
		return len(ports) > 0
	})
	if len(ports) != 1 || ports[0].Port != 8123 || ports[0].Address != "127.0.0.1" || ports[0].Proto != "tcp" {
		t.Errorf("%+v", ports)
	}
	if table := w.out("box", "ports", "web"); !strings.Contains(table, "8123") {
		t.Errorf("%s", table)
	}
	run := w.Start(lab.Options{}, "box", "forward", "web", "0:8123", "--json")
	run.WaitFor("}")
	local := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(run.Stdout())
	for range 3 {
		resp, err := http.Get("http://" + local + "/served.txt")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(text) != "served\n" || err != nil {
			t.Errorf("%q, %v", text, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	run.Signal(unix.SIGINT)
	if r := run.Wait(); r.Code != 0 {
		t.Errorf("%v", r)
	}
	if conn, err := net.Dial("tcp", local); err == nil {
		conn.Close()
		t.Error("somebody still listens")
	}
	w.out("box", "rm", id)
}

// Each way of a forwarded connection ends by itself.
func TestForwardHalfClosed(t *testing.T) {
	w := newWorld(t)
	w.Write("server.py", `
import socket
s = socket.create_server(("127.0.0.1", 9000))
while True:
    c, _ = s.accept()
    data = b""
    while part := c.recv(65536):
        data += part
    c.sendall(b"%d bytes" % len(data))
    c.close()
`)
	id := w.box()
	w.out("box", "exec", id, "--detach", "--", "python3", "server.py")
	until(t, "listening", func() bool { return strings.Contains(w.out("box", "ports", id), "9000") })
	run := w.Start(lab.Options{}, "box", "forward", id, "0:9000", "--json")
	run.WaitFor("}")
	conn, err := net.Dial("tcp", regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(run.Stdout()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(make([]byte, 5<<20)); err != nil {
		t.Fatal(err)
	}
	conn.(*net.TCPConn).CloseWrite()
	if text, err := io.ReadAll(conn); string(text) != "5242880 bytes" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	conn.Close()
	// A port where nobody listens is a closed connection, and a line.
	run.Signal(unix.SIGTERM)
	run.Wait()
	run = w.Start(lab.Options{}, "box", "forward", id, "0:9999", "--json")
	run.WaitFor("}")
	if conn, err = net.Dial("tcp", regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(run.Stdout())); err != nil {
		t.Fatal(err)
	}
	if text, _ := io.ReadAll(conn); len(text) > 0 {
		t.Errorf("%q", text)
	}
	conn.Close()
	run.Signal(unix.SIGTERM)
	if r := run.Wait(); r.Code != 0 || strings.Count(r.Stderr, "\n") != 2 || !strings.Contains(r.Stderr, "9999") {
		t.Errorf("%v", r)
	}
	w.out("box", "rm", id)
}

// Many hutches at once find no daemon, and one is there afterwards.
func TestOneDaemonIsStarted(t *testing.T) {
	w := newWorld(t)
	var all sync.WaitGroup
	pids := make([]int, 6)
	for i := range pids {
		all.Go(func() {
			r := w.Run("daemon", "start", "--json")
			var s struct {
				Alive bool
				PID   int
			}
			if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil || r.Code != 0 || !s.Alive {
				t.Errorf("%v\n%v", err, r)
			}
			pids[i] = s.PID
		})
	}
	all.Wait()
	for _, pid := range pids {
		if pid != pids[0] || pid == 0 {
			t.Errorf("daemons %v", pids)
		}
	}
	if got := w.out("daemon", "status"); !strings.Contains(got, fmt.Sprintf("pid %d", pids[0])) || !strings.Contains(got, w.StateDir()) {
		t.Errorf("%q", got)
	}
	w.out("daemon", "stop")
	if w.daemonRuns() {
		t.Error("the daemon runs after it was stopped")
	}
	if r := w.Run("daemon", "stop", "--json"); r.Code != 0 || r.Stdout != "{\"stopped\":false}\n" {
		t.Errorf("%v", r)
	}
}

// The daemon that starts on demand survives the terminal and the signals of who
// started it, and holds nothing of his.
func TestDaemonIsOnItsOwn(t *testing.T) {
	w := newWorld(t)
	id, env := w.box(), w.Env
	w.Env = append(w.Env, "MY_SECRET=x", "HUTCH_LIMITS_MEMORY=1M")
	s := lab.NewSession(t, w.World)
	if code := s.Run("/bin/sh", "-c", `trap "" HUP INT QUIT TSTP TTOU PIPE USR1; exec "$0" daemon start`, lab.Hutch(t)); code != 0 {
		t.Fatalf("exit %d: %s", code, s.Said(""))
	}
	status := parsed[struct{ PID int }](w, "daemon", "status", "--json")
	w.Env = env
	if got := w.out("box", "exec", id, "--", "grep", "SigIgn", "/proc/self/status"); got != "SigIgn:\t0000000000000000" {
		t.Errorf("a command ignores what the daemon does: %s", got)
	}
	w.out("box", "rm", id)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", status.PID))
	if err != nil || strings.Contains(string(environ), "MY_SECRET") || strings.Contains(string(environ), "HUTCH_LIMITS") {
		t.Errorf("%q, %v", environ, err)
	}
	if sid, err := unix.Getsid(status.PID); err != nil || sid != status.PID {
		t.Errorf("session %d of %d, %v", sid, status.PID, err)
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", status.PID))
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/dev/pts") || strings.HasPrefix(to, "/dev/tty") {
			t.Errorf("it holds %s", to)
		}
	}
	if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", status.PID)); cwd != "/" {
		t.Errorf("it is in %s", cwd)
	}
}

// A daemon that nobody needs ends; one in which something runs does not.
func TestDaemonEndsWhenIdle(t *testing.T) {
	w := newWorld(t)
	w.Env = append(w.Env, "HUTCHD_IDLE=500ms")
	id := w.box()
	exec := w.out("box", "exec", id, "--detach", "--", "sleep", "3")
	time.Sleep(1500 * time.Millisecond)
	if !w.daemonRuns() {
		t.Error("the daemon ended while a command ran")
	}
	until(t, "ended", func() bool { time.Sleep(time.Second); return !w.daemonRuns() })
	if e := parsed[execJSON](w, "box", "logs", id, exec, "--json"); e.Outcome == nil || e.Outcome.ExitCode != 0 || e.Outcome.Status != "success" {
		t.Errorf("%+v", e)
	}
	w.out("box", "rm", id)
}

// kill -9 of the daemon: what ran ends with it, what was written stays, and each
// command's end is as it was, or unknown.
func TestAfterTheDaemonWasKilled(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	id := w.box("--name", "k")
	w.Want(w.exec("k", "echo kept > kept.txt; echo said"), 0)
	running := w.out("box", "exec", "k", "--detach", "--", "sh", "-c", "echo begun; sleep 1000")
	until(t, "begun", func() bool { return w.Run("box", "logs", "k", running).Stdout == "begun\n" })
	time.Sleep(500 * time.Millisecond) // for so long a little output is in memory
	pid := parsed[struct{ PID int }](w, "daemon", "status", "--json").PID
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "down", func() bool { return !w.daemonRuns() })
	b := parsed[boxJSON](w, "box", "show", "k", "--json")
	if b.ID != id || b.Live || b.State == "failed" {
		t.Errorf("%+v", b)
	}
	list := parsed[[]execJSON](w, "box", "logs", "k", "--json")
	if len(list) != 2 || list[0].Outcome == nil || list[0].Outcome.ExitCode != 0 || list[1].Running || list[1].Outcome == nil || list[1].Outcome.Status != "error" || !strings.Contains(list[1].Outcome.Error, "unknown") {
		t.Errorf("%+v", list)
	}
	if got := w.out("box", "logs", "k", list[0].ID); got != "said" {
		t.Errorf("%q", got)
	}
	if got := w.out("box", "logs", "k", running); got != "begun" {
		t.Errorf("%q", got)
	}
	if got := w.exec("k", "cat kept.txt; pgrep -x sleep").Stdout; got != "kept\n" {
		t.Errorf("%q", got)
	}
	if got := w.out("diff", "k", "--name-status"); got != "A\tkept.txt" {
		t.Errorf("%q", got)
	}
	w.out("receipts", "verify")
	w.out("box", "rm", "k")
	w.out("daemon", "stop")
	w.Age()
	w.out("gc") // of what the daemon had made ahead
}
