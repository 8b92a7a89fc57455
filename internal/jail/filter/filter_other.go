//go:build !linux || !(amd64 || arm64)

package filter

// Default returns nil: there is no program for this system, and a caller that
// needs one has to refuse.
func Default() []byte { return nil }

// Notify returns nil likewise.
func Notify() []byte { return nil }
