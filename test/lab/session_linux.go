package lab

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal makes a pseudo-terminal of our own for hutch to be started on.
func Terminal(t *testing.T, rows, columns uint16) (master, slave *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "master"), os.NewFile(peer, "slave")
}

// Session is a person's terminal, and what runs on it as its session.
type Session struct {
	t             *testing.T
	w             *World
	Master, Slave *os.File
	Number        int // of /dev/pts
	mu            sync.Mutex
	shown         bytes.Buffer
	seen          int           // bytes of it that Next has gone past
	read          chan struct{} // closed at the end
}

// NewSession makes a terminal of 33 lines and 77 columns.
func NewSession(t *testing.T, w *World) *Session {
	t.Helper()
	s := &Session{t: t, w: w, read: make(chan struct{})}
	s.Master, s.Slave = Terminal(t, 33, 77)
	number, err := unix.IoctlGetInt(int(s.Master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	s.Number = number
	master := int(s.Master.Fd()) // blocking
	go func() {
		defer close(s.read)
		buf := make([]byte, 4096)
		for {
			n, err := unix.Read(master, buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 {
				return
			}
			s.mu.Lock()
			s.shown.Write(buf[:n])
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		s.Slave.Close()
		<-s.read
		s.Master.Close()
	})
	return s
}

// Start starts a program on the terminal and returns what waits for its end. A
// shell leads the session: with its leader the kernel takes the terminal away.
func (s *Session) Start(name string, args ...string) (wait func() int) {
	s.t.Helper()
	fromShell, ended, err := os.Pipe()
	stay, toShell, err2 := os.Pipe()
	if err := errors.Join(err, err2); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-c", `trap '' INT QUIT; "$@" 3>&- 4<&-; echo $? >&3; exec 3>&-; read -r _ <&4`, "sh", name}, args...)...)
	cmd.Dir, cmd.Env = s.w.Dir, s.w.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Slave, s.Slave, s.Slave
	cmd.ExtraFiles = []*os.File{ended, stay}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended.Close()
	stay.Close()
	expected := Expect(cmd.Process.Pid)
	kill := time.AfterFunc(HardLimit, func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	s.t.Cleanup(func() {
		toShell.Close()
		cmd.Wait()
		kill.Stop()
		expected()
	})
	return func() int {
		s.t.Helper()
		text, err := io.ReadAll(fromShell)
		fromShell.Close()
		code, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
		if err := errors.Join(err, err2); err != nil {
			s.t.Fatalf("the program on the terminal did not end by itself: %v", err)
		}
		return code
	}
}

// Run is Start and the wait for the end.
func (s *Session) Run(name string, args ...string) int {
	s.t.Helper()
	return s.Start(name, args...)()
}

// Said waits until the terminal has shown a text, and returns all it showed.
func (s *Session) Said(text string) string {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		s.mu.Lock()
		shown := s.shown.String()
		s.mu.Unlock()
		if strings.Contains(shown, text) {
			return shown
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the terminal never showed %q, but %q", text, shown)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Next waits until the terminal has shown a text after what it waited for last.
func (s *Session) Next(text string) {
	s.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		s.mu.Lock()
		news := s.shown.String()[s.seen:]
		at := strings.Index(news, text)
		if at >= 0 {
			s.seen += at + len(text)
		}
		s.mu.Unlock()
		if at >= 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the terminal never showed %q, but %q", text, news)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Types types at the terminal.
func (s *Session) Types(text string) {
	s.t.Helper()
	if _, err := s.Master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// State is all of a terminal that its owner could miss.
type State struct {
	Termios    unix.Termios
	Size       unix.Winsize
	Mode       uint32
	UID, GID   uint32
	Discipline int
	Exclusive  int
	Typed      string // what waits to be read from it
}

// State looks at the terminal.
func (s *Session) State() State {
	s.t.Helper()
	fd := int(s.Slave.Fd())
	var st unix.Stat_t
	termios, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	size, err2 := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	discipline, err3 := unix.IoctlGetInt(fd, unix.TIOCGETD)
	exclusive, err4 := unix.IoctlGetInt(fd, unix.TIOCGEXCL)
	if err := errors.Join(err, err2, err3, err4, unix.Fstat(fd, &st)); err != nil {
		s.t.Fatal(err)
	}
	// Without lines, since half a line waits too.
	raw := *termios
	raw.Lflag &^= unix.ICANON
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 0, 0
	buf := make([]byte, 4096)
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		s.t.Fatal(err)
	}
	n, err := unix.Read(fd, buf)
	if err := errors.Join(err, unix.IoctlSetTermios(fd, unix.TCSETS, termios)); err != nil {
		s.t.Fatal(err)
	}
	return State{*termios, *size, st.Mode, st.Uid, st.Gid, discipline, exclusive, string(buf[:max(n, 0)])}
}
