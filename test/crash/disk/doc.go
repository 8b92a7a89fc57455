// Package disk is a disk with a volatile write cache whose power can be cut. It
// is a file served through FUSE, for a loop mount, that keeps its content in
// memory and writes down every write and flush in order. From that log any
// state can be made in which a cut would have left the disk: what was flushed,
// and any part of what was not.
//
// The process that serves a disk must not fork with a working directory, or a
// program, that lies on it.
//
// The protocol is spoken to /dev/fuse directly; it is that of linux/fuse.h.
//
// It may touch: the directory it is mounted at.
package disk
