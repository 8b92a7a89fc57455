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
// Content leaves the layer by a rename in two halves: a link into the slot when
// it is staged, and the end of the layer's own name when all is done. So until
// the promotion is durable the layer is whole, whatever dies. Where files
// cannot be linked, or the layer must live on, they are reflinked or copied.
//
// The files of a transaction's directory are its state: none of them, it is
// dropped; journal, it goes forward; back, it goes back; done, it is kept as
// undo data, with the state after it in the file after; aborted, it was taken
// back but holds what the user wrote meanwhile. Beside done: undoing, an undo
// goes on to its end; redoing, an undo failed and the promotion comes back;
// undone, the slots hold what was promoted.
//
// They are sealed with a key of the state directory (Key): a journal is an order
// to move files, and a workspace may come out of an archive.
//
// It may touch: the workspace and its .hutch, and layers, through fsat only.
package promote
