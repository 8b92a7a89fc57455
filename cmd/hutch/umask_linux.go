package main

import "golang.org/x/sys/unix"

// keepOwnerBits takes out of the umask what would shut hutch out of the
// directories that it makes itself, and leave them where it cannot clear them.
func keepOwnerBits() {
	unix.Umask(unix.Umask(0o777) &^ 0o700)
}
