package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Listener is where a daemon listens.
type Listener struct {
	net.Listener
	Name string // as /v1/status tells it
	Host string // of TCP: what a Host may be
	path string // of a socket that we made
	made unix.Stat_t
}

// ownOnly lets in only whom the daemon runs as, and root; nobody in a box.
type ownOnly struct{ *net.UnixListener }

// Accept returns the next connection of somebody who may.
func (l ownOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := credentials(c)
		if err == nil && (int(cred.Uid) == os.Geteuid() || cred.Uid == 0) && outside(c, cred.Pid) {
			return c, nil
		}
		c.Close()
	}
}

// strangers lets in only so many at a time: whoever reaches a port may connect, and
// must not take every descriptor before it is asked for a token.
type strangers struct {
	net.Listener
	slots chan struct{}
}

// mostStrangers is how many connections there may be at each TCP port.
const mostStrangers = 2048

func newStrangers(l net.Listener) strangers {
	most := uint64(mostStrangers)
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		most = max(1, min(most, limit.Cur/4))
	}
	return strangers{l, make(chan struct{}, most)}
}

// Accept returns the next connection, and closes those that are too many.
func (l strangers) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		t, ok := c.(*net.TCPConn)
		select {
		case l.slots <- struct{}{}:
			if ok {
				return &stranger{TCPConn: t, leave: sync.OnceFunc(func() { <-l.slots })}, nil
			}
			<-l.slots
		default:
		}
		c.Close()
	}
}

// stranger gives its place back when it is closed.
type stranger struct {
	*net.TCPConn
	leave func()
}

// Close closes the connection.
func (c *stranger) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}

// ListenUnix listens at a socket that only its owner can connect to, in a
// directory that only its owner can enter. What a daemon that died left there is
// taken away; where somebody answers, it is not.
func ListenUnix(path string) (*Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := trusted(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, fmt.Errorf("socket: somebody serves at %s: end that daemon (hutch daemon stop), or choose another --socket", path)
	} else if errors.Is(err, unix.ECONNREFUSED) {
		if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
			_ = os.Remove(path)
		}
	}
	// The socket never exists with another mode than its last.
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket: %w; a file that is in the way must be removed, and a path has at most 107 bytes", err)
	}
	l.SetUnlinkOnClose(false) // Close looks first whether it is ours
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return &Listener{Listener: ownOnly{l}, Name: "unix:" + path, path: path, made: st}, nil
}

// trusted refuses a directory in which somebody else could put a socket of his
// own in the place of ours.
func trusted(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("socket: %s: %w", dir, err)
	}
	if int(st.Uid) != os.Geteuid() && st.Uid != 0 || st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("socket: others can write to %s: choose another directory with --socket", dir)
	}
	return nil
}

// Close takes the socket away, if it is still the one that was made here, and
// ends listening.
func (l *Listener) Close() error {
	var st unix.Stat_t
	// The time, too: an inode's number is soon used again.
	if l.path != "" && unix.Lstat(l.path, &st) == nil && st.Dev == l.made.Dev && st.Ino == l.made.Ino && st.Mtim == l.made.Mtim {
		_ = os.Remove(l.path)
	}
	return l.Listener.Close()
}

// ListenTCP listens at HOST:PORT. Whoever serves there must ask for a token.
func ListenTCP(address string) (*Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q: give HOST:PORT", address)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return &Listener{Listener: newStrangers(l), Name: "tcp:" + l.Addr().String(), Host: host}, nil
}

// firstHanded is the descriptor that systemd begins with, sd_listen_fds(3).
const firstHanded = 3

// Handed are the sockets that a service manager opened for this process; none
// when there is no such.
func Handed() ([]*Listener, error) {
	pid, fds := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name) // not for our children
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 0 || n > 64 {
		return nil, fmt.Errorf("LISTEN_FDS is %q: the service manager handed over nothing that makes sense", fds)
	}
	var list []*Listener
	for fd := firstHanded; fd < firstHanded+n; fd++ {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "handed")
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("the socket that the service manager handed over as descriptor %d: %w", fd, err)
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // it is the service manager's
			list = append(list, &Listener{Listener: ownOnly{u}, Name: "unix:" + u.Addr().String()})
			continue
		}
		host, _, _ := net.SplitHostPort(l.Addr().String())
		list = append(list, &Listener{Listener: newStrangers(l), Name: "tcp:" + l.Addr().String(), Host: host})
	}
	return list, nil
}

// TCP reports whether the listener lets in whom the kernel does not vouch for.
func (l *Listener) TCP() bool { return strings.HasPrefix(l.Name, "tcp:") }

// Notify tells the service manager, if there is one, that the daemon is ready or
// ends: sd_notify(3).
func Notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if name, abstract := strings.CutPrefix(path, "@"); abstract {
		path = "\x00" + name
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(state))
}

// Lock is that of the one daemon of a state directory.
type Lock struct{ f *os.File }

// lockPatience is how long a daemon that is about to end is waited for.
const lockPatience = 20 * time.Second

// TakeLock takes the lock of a state directory. While another daemon has it and
// answers at the socket, it fails at once; one that is about to end is waited for.
func TakeLock(stateDir, socket string) (*Lock, error) {
	f, err := os.OpenFile(filepath.Join(stateDir, "hutchd.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	for end := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("state directory: flock: %w", err)
		}
		if serves(socket) || time.Now().After(end) {
			text := make([]byte, 32)
			n, _ := f.ReadAt(text, 0)
			f.Close()
			return nil, fmt.Errorf("hutchd already runs for %s (pid %s): hutch daemon status", stateDir, strings.TrimSpace(string(text[:n])))
		}
	}
	_ = f.Truncate(0)
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return &Lock{f}, nil
}

func serves(socket string) bool {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// Release lets the next daemon begin.
func (l *Lock) Release() { l.f.Close() }

// manyFiles is how many descriptors the table is grown for.
const manyFiles = 1 << 16

// GrowTable makes the descriptor table large at once: to grow it in a process of
// many threads waits for a grace period of the whole machine, 10 to 16 ms in the
// middle of a request. The Go runtime has raised the soft limit already.
func GrowTable() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	high := int(min(limit.Cur, manyFiles)) - 1
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(null)
	if high > null {
		if fd, err := unix.FcntlInt(uintptr(null), unix.F_DUPFD_CLOEXEC, high); err == nil {
			unix.Close(fd)
		}
	}
}
