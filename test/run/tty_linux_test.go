package run

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// terminal makes a pseudo-terminal of our own for hutch to be started on.
func terminal(t *testing.T, rows, columns uint16) (master, slave *os.File) {
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

// TestTerminal types at a command in a box as a person does.
func TestTerminal(t *testing.T) {
	w := lab.New(t)
	master, slave := terminal(t, 33, 77)
	defer master.Close()
	cmd := exec.Command(lab.Hutch(t), "run", "--tty", "--timeout", "60s", "--", "sh")
	cmd.Dir, cmd.Env = w.Dir, w.Environ("PS1=$ ")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	defer cmd.Process.Kill()

	pieces := make(chan []byte, 64)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 4096)
			n, err := master.Read(buf)
			if n > 0 {
				pieces <- buf[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	var seen bytes.Buffer
	expect := func(text string) {
		t.Helper()
		deadline := time.After(30 * time.Second)
		for !strings.Contains(seen.String(), text) {
			select {
			case piece, ok := <-pieces:
				if !ok {
					t.Fatalf("hutch ended before it said %q; it said %q", text, seen.String())
				}
				seen.Write(piece)
			case <-deadline:
				t.Fatalf("hutch never said %q; it said %q", text, seen.String())
			}
		}
		seen.Reset()
	}
	send := func(text string) {
		t.Helper()
		if _, err := master.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}

	// What is typed is echoed, so what is awaited must not be in it.
	send("test -t 0 && test -t 1 && echo is'-'terminal; stty size\n")
	expect("is-terminal")
	send("stty size\n")
	expect("33 77")
	send("trap 'echo interru''pted' INT; sleep 60\n")
	time.Sleep(300 * time.Millisecond)
	send("\x03")
	expect("interrupted")
	send("exit 7\n")

	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("hutch ended with %v, want 7", err)
	}
}

// A command with a terminal of its own cannot reach the caller's: there is none
// in the box.
func TestTerminalOfTheCallerIsAbsent(t *testing.T) {
	w := lab.New(t)
	r := w.Run("run", "--", "sh", "-c", "test -t 0 || test -t 1 || test -t 2 || echo none; : < /dev/tty")
	if !strings.Contains(r.Stdout, "none") || r.Code == 0 {
		t.Errorf("a terminal could be reached: %v", r)
	}
	r = w.Run("run", "--tty", "--", "sh", "-c", "test -t 1 && echo is-terminal")
	w.Want(r, 0)
	if !strings.Contains(r.Stdout, "is-terminal\r\n") {
		t.Errorf("no terminal: %q", r.Stdout)
	}
}
