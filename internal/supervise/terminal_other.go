//go:build !linux

package supervise

// Terminal is a pseudo-terminal for a command; not supported here.
type Terminal struct{}
