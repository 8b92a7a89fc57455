//go:build amd64 || arm64

package filter

// Default returns the program that every process of a box carries, PID 1 too:
// an array of struct sock_filter, eight bytes an instruction, little-endian. The
// caller owns the bytes.
func Default() []byte { return []byte(program) }

// Ports returns the program for boxes whose policy names TCP ports: it closes the
// ways past Landlock's rules about them. The caller owns the bytes.
func Ports() []byte { return []byte(ports) }

// Program returns the bytes, which the caller owns; nil for a Command that is
// none (Untold with Renames: nobody could be asked).
func (c Command) Program() []byte { return c.in(commands) }
