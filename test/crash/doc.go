// Package crash proves, with the real binary and from outside, that a
// promotion arrives whole or not at all: a tracer kills hutch, tears its writes
// or fails its calls at every call that changes the disk, and a disk that logs
// its writes is replayed as if the power had gone at any moment.
//
// It may touch: what it made itself, beneath the temporary directory and
// /dev/shm, and as root loop devices and mounts in a mount namespace of its own.
package crash
