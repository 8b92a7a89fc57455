// Package workspace opens the user's real directory and makes branches of it:
// copy-on-write views in which a box may write.
//
// One file per strategy stands behind one interface: overlay (the kernel
// merges a layer over the workspace; no walk), reflink (FICLONE of every
// file) and copy. It also takes the stamp T of a branch (see Stamp), finds
// the git directories a workspace refers to, and refuses directories that
// cannot be a workspace.
//
// It may touch: the workspace, reading only (the stamp's unnamed file aside),
// and the box's own directory. It does not mount: an overlay is described
// here and mounted by jail.
package workspace
