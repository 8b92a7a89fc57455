package supervise

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo-terminal for a command. The caller's own terminal never
// enters a box: what it read from there, and what it pushed back, would be the
// caller's (TIOCSTI).
type Terminal struct {
	mu     sync.Mutex // Resize comes from a goroutine of its own
	master int
	slave  int
}

// NewTerminal makes a pseudo-terminal with the kernel's modes and the size of
// the terminal like, which may be nil.
func NewTerminal(like *os.File) (*Terminal, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("pseudo-terminal: /dev/ptmx: %w", err)
	}
	t := &Terminal{master: master, slave: -1}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		t.Close()
		return nil, fmt.Errorf("pseudo-terminal: unlock: %w", err)
	}
	// By descriptor, not by name: /dev/pts may be another's.
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Close()
		return nil, fmt.Errorf("pseudo-terminal: open the other end: %w", errno)
	}
	t.slave = int(slave)
	if like != nil {
		t.Resize(like)
	}
	return t, nil
}

// Resize gives the terminal the size of another.
func (t *Terminal) Resize(like *os.File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size, err := unix.IoctlGetWinsize(int(like.Fd()), unix.TIOCGWINSZ); err == nil {
		_ = unix.IoctlSetWinsize(t.master, unix.TIOCSWINSZ, size)
	}
}

// Close closes both ends.
func (t *Terminal) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fd := range []*int{&t.master, &t.slave} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

func (t *Terminal) takeSlave() int {
	slave := t.slave
	t.slave = -1
	return slave
}

// dupMaster returns a descriptor of the master that its user closes.
func (t *Terminal) dupMaster() (int, error) {
	fd, err := unix.FcntlInt(uintptr(t.master), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("pseudo-terminal: %w", err)
	}
	return fd, unix.SetNonblock(fd, true)
}
