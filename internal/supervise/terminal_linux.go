package supervise

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Terminal is a command's pseudo-terminal, which its box makes in its own devpts.
// The caller's own terminal never enters a box: what it read from there, and what
// it pushed back, would be the caller's (TIOCSTI).
type Terminal struct {
	like   *os.File
	mu     sync.Mutex    // Resize comes from a goroutine of its own
	size   *unix.Winsize // as it was told; nil: it was not
	master int           // -1: not made yet, or closed
}

// NewTerminal returns a pseudo-terminal that is still to be made, with the
// kernel's modes and the size of the terminal like, which may be nil.
func NewTerminal(like *os.File) *Terminal {
	return &Terminal{like: like, master: -1}
}

// NewTerminalOf returns one of a size that is told, and not another's.
func NewTerminalOf(rows, cols uint16) *Terminal {
	return &Terminal{size: &unix.Winsize{Row: rows, Col: cols}, master: -1}
}

// SetSize gives it a size, at once or when it is made.
func (t *Terminal) SetSize(rows, cols uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size = &unix.Winsize{Row: rows, Col: cols}
	if t.master >= 0 {
		_ = unix.IoctlSetWinsize(t.master, unix.TIOCSWINSZ, t.size)
	}
}

// wanted is the size it should have; zero: unknown.
func (t *Terminal) wanted() (size [4]uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.size; s != nil {
		return [4]uint16{s.Row, s.Col, s.Xpixel, s.Ypixel}
	}
	if t.like == nil {
		return
	}
	if s, err := unix.IoctlGetWinsize(int(t.like.Fd()), unix.TIOCGWINSZ); err == nil {
		size = [4]uint16{s.Row, s.Col, s.Xpixel, s.Ypixel}
	}
	return
}

// Resize gives it the size of the terminal it is like, or that it was told.
func (t *Terminal) Resize() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.master >= 0 && t.size != nil {
		_ = unix.IoctlSetWinsize(t.master, unix.TIOCSWINSZ, t.size)
	}
	if t.master < 0 || t.like == nil || t.size != nil {
		return
	}
	if s, err := unix.IoctlGetWinsize(int(t.like.Fd()), unix.TIOCGWINSZ); err == nil {
		_ = unix.IoctlSetWinsize(t.master, unix.TIOCSWINSZ, s)
	}
}

// adopt takes the master that a box has sent.
func (t *Terminal) adopt(master int) error {
	if _, err := unix.IoctlGetInt(master, unix.TIOCGPTN); err != nil {
		unix.Close(master)
		return fmt.Errorf("pseudo-terminal: what the box sent is none: %w", err)
	}
	t.mu.Lock()
	if t.master >= 0 {
		t.mu.Unlock()
		unix.Close(master)
		return errors.New("pseudo-terminal: the box sent a second one")
	}
	t.master = master
	t.mu.Unlock()
	t.Resize() // it may have changed since the box was told
	return nil
}

// Close closes our end.
func (t *Terminal) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.master >= 0 {
		unix.Close(t.master)
		t.master = -1
	}
}

// dupMaster returns a descriptor of the master that its user closes.
func (t *Terminal) dupMaster() (int, error) {
	fd, err := unix.FcntlInt(uintptr(t.master), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("pseudo-terminal: %w", err)
	}
	return fd, unix.SetNonblock(fd, true)
}
