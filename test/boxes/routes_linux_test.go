package boxes

import (
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"hutch/test/lab"
)

// To pick among the changes of a box that lives takes the terminal here: the
// daemon lets go of the box, and has it again when it is asked for.
func TestPickFromALiveBox(t *testing.T) {
	w := newWorld(t)
	w.Sample()
	id := w.box("--name", "p")
	w.Want(w.exec(id, "echo box > a.txt; echo new > new.txt; setsid sleep 1000 > /dev/null 2>&1 &"), 0)
	r := w.RunWith(w.input("n\ny\n"), "commit", "p", "-p")
	w.Want(r, 0)
	if w.Read("new.txt") != "new\n" || w.Read("a.txt") != "foo one\nfoo two\n" {
		t.Errorf("%v", r)
	}
	if b := parsed[boxJSON](w, "box", "show", "p", "--json"); b.Live {
		t.Errorf("%+v", b)
	}
	if got := w.exec(id, "cat a.txt; pgrep -x sleep").Stdout; got != "box\n" {
		t.Errorf("%q", got)
	}
	w.out("discard", "p", "--force")
}

// A released box is quiet, and can be worked on here.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	id := w.box()
	w.Want(w.exec(id, "echo x > x; setsid sleep 1000 > /dev/null 2>&1 &"), 0)
	w.out("box", "release", id)
	if b := parsed[boxJSON](w, "box", "show", id, "--json"); b.Live || b.State != "ready" {
		t.Errorf("%+v", b)
	}
	w.out("commit", id)
	if w.Read("x") != "x\n" {
		t.Error("the change did not arrive")
	}
}

// A daemon of another state directory is not asked about boxes of this one, and
// what needs one says so.
func TestDaemonOfAnotherStateDirectory(t *testing.T) {
	w := newWorld(t)
	w.out("daemon", "start")
	theirs := w.box("--name", "theirs")
	o := lab.Options{Env: []string{"XDG_STATE_HOME=" + filepath.Join(w.Base, "other")}}
	r := w.RunWith(o, "box", "create", "--name", "ours")
	w.Want(r, 0)
	ours := strings.TrimSpace(r.Stdout)
	if r := w.RunWith(o, "box", "list"); !strings.Contains(r.Stdout, ours) || strings.Contains(r.Stdout, theirs) {
		t.Errorf("%v", r)
	}
	if list := w.out("box", "list"); strings.Contains(list, ours) || !strings.Contains(list, theirs) {
		t.Errorf("%s", list)
	}
	if r := w.RunWith(o, "box", "exec", "ours", "--", "true"); r.Code != 125 || !strings.Contains(r.Stderr, "HUTCH_SOCKET") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("%v", r)
	}
	w.Want(w.RunWith(o, "box", "rm", "ours"), 0)
	w.out("box", "rm", "theirs")
}

// A daemon of another hutch, whose protocol is another, is not taken for ours: it
// can be told to end, and nothing else.
func TestDaemonOfAnotherVersion(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("unix", filepath.Join(w.State, "s"))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 100)
	theirs := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path
		if r.URL.Path == "/v1/shutdown" {
			l.Close()
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"version":"9.9","api":9,"pid":4194305,"state_dir":%q}`, w.StateDir())
	})}
	go theirs.Serve(l)
	defer theirs.Close()
	for _, args := range [][]string{{"box", "create"}, {"box", "list"}, {"box", "exec", "x", "--", "true"}} {
		w.fails("9.9", args...)
	}
	w.out("daemon", "stop")
	close(asked)
	for what := range asked {
		if what != "GET /v1/status" && what != "POST /v1/shutdown" {
			t.Errorf("asked of a daemon of another version: %s", what)
		}
	}
	id := w.box()
	w.Want(w.exec(id, "true"), 0)
	w.out("box", "rm", id)
}

// A daemon that listens at TCP is asked with its token, and with no other.
func TestDaemonOverTCP(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	w.Env = append(w.Env, "HUTCHD_LISTEN="+address, "HUTCHD_TOKEN=a-token-of-some-length-0123456789")
	w.out("daemon", "start")
	host := lab.Options{Env: []string{"HUTCH_HOST=" + address, "HUTCH_TOKEN=a-token-of-some-length-0123456789", "HUTCH_SOCKET=/nowhere"}}
	r := w.RunWith(host, "box", "create", "--name", "far")
	w.Want(r, 0)
	r = w.RunWith(lab.Options{Env: host.Env, Stdin: w.input("through").Stdin}, "box", "exec", "far", "--", "sh", "-c", "cat; exit 6")
	if r.Code != 6 || r.Stdout != "through" {
		t.Errorf("%v", r)
	}
	w.Want(w.RunWith(host, "box", "rm", "far"), 0)
	for _, token := range []string{"", "wrong"} {
		r := w.RunWith(lab.Options{Env: []string{"HUTCH_HOST=" + address, "HUTCH_TOKEN=" + token}}, "box", "list")
		if r.Code != 125 || strings.Count(r.Stderr, "\n") != 1 || r.Stdout != "" {
			t.Errorf("token %q: %v", token, r)
		}
	}
}
