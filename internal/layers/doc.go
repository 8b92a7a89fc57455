// Package layers keeps what boxes wrote and then froze: overlay uppers that are
// never written again and that many boxes may lie upon. It counts who needs
// which, makes unions and copies of them, and removes what nobody needs.
//
// On disk a layer is a directory of 12 random letters:
//
//	upper/  the frozen upper
//	seen    what its live overlay told of the workspace (changeset.Seen)
//	refs/   an empty file for each box that needs it, by the box's id
//
// A reference is made before the record that needs it is written, and dropped
// after the record that does not: a crash in between leaves one too many, never
// one too few, and Collect drops it. A reference is only added by somebody who
// holds one; so a layer without any can be removed. Whoever has a layer mounted
// holds a shared lock of its directory too, and a removal takes that lock alone.
//
// It may touch: its own directory, and directories it is handed.
package layers
