package run

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"hutch/test/lab"
)

const trying = `
import socket, sys
server, other, open_port = map(int, sys.argv[1:])
def try_to(name, f):
    try: f(); print(name, "done")
    except OSError as e: print(name, e.strerror)
def connect(port, protocol=0, option=False):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    if option: s.setsockopt(socket.IPPROTO_TCP, 30, 1) # TCP_FASTOPEN_CONNECT
    s.connect(("127.0.0.1", port))
def bind(port, protocol=0, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_STREAM, protocol)
    s.bind(("", port)); s.listen()
    return s
def fast(send):
    s = socket.socket()
    send(s)
FAST = 0x20000000
to = ("127.0.0.1", server)
try_to("bind", lambda: bind(open_port))
try_to("bind other", lambda: bind(other))
try_to("bind other, IPv6", lambda: bind(other, 0, socket.AF_INET6))
try_to("bind other, MPTCP", lambda: bind(other, 262))
try_to("bind any", lambda: bind(0))
try_to("connect", lambda: connect(open_port))
try_to("connect server", lambda: connect(server))
try_to("connect server, MPTCP", lambda: connect(server, 262))
try_to("connect server, fast open", lambda: connect(server, 0, True))
try_to("sendto server", lambda: socket.socket().sendto(b"x", FAST, to))
try_to("sendmsg server", lambda: socket.socket().sendmsg([b"x"], [], FAST, to))
`

// TestPortsOfThePolicyHold: a server of the host, at a port that the policy does
// not name, is out of reach by every way that this kernel has to connect.
func TestPortsOfThePolicyHold(t *testing.T) {
	w := lab.New(t)
	w.Write("try.py", trying)
	var ports []any
	var listeners []net.Listener
	for range 3 {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listeners = append(listeners, l)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	listeners[1].Close()
	listeners[2].Close()
	args := strings.Fields(fmt.Sprintf("python3 try.py %d %d %d", ports...))
	open := fmt.Sprint(ports[2])
	const denied, unsupported, unknown, refused = "Permission denied", "Operation not supported", "Protocol not supported", "Connection refused"
	narrow := w.Box(append([]string{"--allow-net", "--connect", open, "--bind", open, "--"}, args...)...)
	want := fmt.Sprintf("bind done\nbind other %[1]s\nbind other, IPv6 %[1]s\nbind other, MPTCP %[3]s\nbind any %[1]s\nconnect %[4]s\nconnect server %[1]s\nconnect server, MPTCP %[3]s\nconnect server, fast open %[1]s\nsendto server %[2]s\nsendmsg server %[2]s\n",
		denied, unsupported, unknown, refused)
	if narrow.Stdout != want {
		t.Errorf("with ports named:\n%swant\n%s%v", narrow.Stdout, want, narrow)
	}
	// The same without: each way leads there, so that the above proves something.
	wide := w.Box(append([]string{"--allow-net", "--"}, args...)...)
	for line := range strings.Lines(wide.Stdout) {
		done := strings.HasSuffix(line, " done\n") || line == "connect "+refused+"\n"
		if !done && !strings.Contains(line, "MPTCP") { // not in every kernel
			t.Errorf("without ports named: %s%v", line, wide)
		}
	}
}
