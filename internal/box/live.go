package box

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"

	"hutch/internal/api"
)

// Streams are where the input of a command comes from and where its output goes
// while it runs; nil is nowhere. Output is kept on disk in any case, and a
// writer that is slow does not hold up the command.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// signals are those that a program may be told by name.
var signals = map[string]syscall.Signal{
	"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13,
	"ALRM": 14, "TERM": 15, "CHLD": 17, "CONT": 18, "STOP": 19, "TSTP": 20, "TTIN": 21, "TTOU": 22, "URG": 23, "XCPU": 24, "XFSZ": 25, "VTALRM": 26,
	"PROF": 27, "WINCH": 28, "IO": 29, "PWR": 30, "SYS": 31,
}

// parseSignal reads a name such as TERM or SIGTERM, or a number; "" is KILL.
func parseSignal(name string) (syscall.Signal, error) {
	if name == "" {
		return signals["KILL"], nil
	}
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	if sig, ok := signals[strings.TrimPrefix(strings.ToUpper(name), "SIG")]; ok {
		return sig, nil
	}
	return 0, &api.Error{Code: api.Invalid, Text: fmt.Sprintf("%q is no signal; name one such as TERM, or give its number", name)}
}
