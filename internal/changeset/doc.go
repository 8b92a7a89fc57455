// Package changeset reads what a box changed.
//
// It turns a layer (the upper directory of an overlay, or a reflinked or
// copied tree) into a list of created, modified and deleted paths relative to
// the workspace, with BLAKE3 of before and after and one digest of the whole,
// and prints it as JSON or as a unified diff. For an overlay the cost is
// O(changes). Everything in a layer is hostile input.
//
// It may touch: layers and workspaces, reading only, through fsat. It runs
// nothing and writes nothing.
package changeset
