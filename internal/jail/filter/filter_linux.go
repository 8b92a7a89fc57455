//go:build amd64 || arm64

package filter

// Default returns the program: an array of struct sock_filter, eight bytes an
// instruction, little-endian. The caller owns the bytes.
func Default() []byte { return []byte(program) }
