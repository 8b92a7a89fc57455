// Package promote carries a changeset into the workspace, whole or not at
// all, surviving a crash at any instant: journal, apply, recover, undo.
//
// A transaction lives in <workspace>/.hutch/txn-ID/: a slot for each change
// with its final content, mode, xattrs and times, made durable; then the
// journal, whose rename is the commit point; then every slot is exchanged with
// its target, so that afterwards the slots hold the undo data. A crash before
// the commit point rolls back, one after it rolls forward, at the next
// promotion or recover. The slot alone tells whether a step was done: it is
// not done while the slot holds the staged inode.
//
// It may touch: the workspace and its .hutch, and layers, through fsat only.
package promote
