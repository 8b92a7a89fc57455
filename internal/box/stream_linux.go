package box

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/term"
)

// streamed is what a stream is written to. A terminal obeys what it is told, so
// one is told only what is safe; a file or a pipe gets all, unless the policy
// says otherwise.
func (r *run) streamed(w io.Writer) io.Writer {
	if w == nil || !r.policy.StripEscapes && !isTerminal(w) {
		return w
	}
	set := term.Lines
	if r.Terminal && !r.policy.StripEscapes {
		set = term.Screen
	}
	through := term.NewWriter(w, set)
	r.through = append(r.through, through)
	return through
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	conn, err := file.SyscallConn() // Fd would make it blocking, for all who share it
	if err != nil {
		return false
	}
	err = errors.ErrUnsupported
	_ = conn.Control(func(fd uintptr) { _, err = unix.IoctlGetTermios(int(fd), unix.TCGETS) })
	return err == nil
}

// flush waits until all output is streamed, and sets terminals back.
func (r *run) flush() {
	r.stdout.Flush()
	r.stderr.Flush()
	for _, w := range r.through {
		_ = w.Close() // a terminal that is gone needs none
	}
}
