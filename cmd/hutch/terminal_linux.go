package main

import (
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
)

// enterRaw hands every key to the command, whose own terminal gives them their
// meaning, and tells of changes of size. While hutch is stopped by SIGTSTP the
// terminal is as it was before. restore must run before the process ends.
func enterRaw(terminal *os.File) (resized <-chan os.Signal, restore func()) {
	fd := int(terminal.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, func() {}
	}
	raw := *old // cfmakeraw(3)
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag &^= unix.CSIZE | unix.PARENB
	raw.Cflag |= unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(fd, unix.TCSETS, &raw) != nil {
		return nil, func() {}
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	stops := make(chan os.Signal, 2)
	signal.Notify(stops, syscall.SIGCONT) // after SIGSTOP too: a shell has set its own modes meanwhile
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(stops, syscall.SIGTSTP)
	}
	var mu sync.Mutex
	over := false
	set := func(to *unix.Termios, last bool) {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			_ = unix.IoctlSetTermios(fd, unix.TCSETS, to)
		}
		over = over || last
	}
	go func() {
		for s := range stops {
			if s == syscall.SIGTSTP {
				set(old, false)
				stop()
			}
			set(&raw, false) // in the background this waits for the foreground
			select {
			case changes <- syscall.SIGWINCH: // it went to who was in the foreground
			default:
			}
		}
	}()
	return changes, func() {
		signal.Stop(changes)
		signal.Stop(stops)
		set(old, true)
	}
}

// stop returns when the process goes on. The signal is one that stops it even
// without a shell to watch, and is sent to this thread: one to the process would
// be taken by any, and later.
func stop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// columns is the width of a terminal; 80 where it does not say.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return 80
	}
	return int(size.Col)
}

// terminalSize is that of a terminal; 24 by 80 where it does not say.
func terminalSize(f *os.File) *api.Size {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Row == 0 || size.Col == 0 {
		return &api.Size{Rows: 24, Cols: 80}
	}
	return &api.Size{Rows: size.Row, Cols: size.Col}
}
