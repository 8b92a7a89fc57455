// Package changeset reads what a box changed.
//
// It turns a layer (the upper directory of an overlay, or a reflinked or
// copied tree) into a list of created, modified and deleted paths relative to
// the workspace, with BLAKE3 of before and after and one digest of the whole,
// saves it, and prints it as a unified diff. For an overlay the cost is
// O(changes). Everything in a layer is hostile input.
//
// What counts as a change: content, type, permission bits and user.*
// attributes that differ from what the workspace holds now, and the owner
// where the box could change it (an overlay with trusted.* attributes). Times
// alone do not, nor does a file that was only copied up. The workspace's own
// root directory is no entry.
//
// What is left out: the workspace's top-level .git, unless it is asked for (a
// .git further down is somebody's file like any other, be it a fresh clone's,
// a submodule's or a vendored one's: promoting a project without it would
// break it); .DS_Store, unless its directory goes away; and, as Skipped, what
// can never be promoted: FIFOs, sockets, devices, hutch's own directory, and
// paths longer than 8 KiB.
//
// Files that their owner may not read: in the layer they are given the right
// for as long as Read runs, and then their mode back; in the workspace nothing
// is ever changed, so an entry there has no digest, and is taken as changed.
//
// It may touch: layers and workspaces, through fsat, reading only but for the
// modes just named. It runs nothing.
package changeset
