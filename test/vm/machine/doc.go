// Package machine boots Debian kernels in QEMU: it fetches a kernel, packs the
// first root file system of a guest, starts the machine, and is the beginning of
// the guest's init.
//
// It may touch: the cache it is told of; apt's configuration, reading; and, as
// PID 1 of a guest, everything.
package machine
