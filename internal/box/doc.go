// Package box is the life of a box: a small explicit state machine with its
// state on disk, and the one place where the rooms meet: policy, branch, jail,
// supervise, changeset, promote or discard, receipt.
//
// It may touch: hutch's state directory, and everything else through its rooms.
package box
