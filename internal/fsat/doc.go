// Package fsat is the one door to files named relative to an open directory.
//
// Everything a box wrote is hostile: a symlink, a "..", or a directory swapped
// while it is being walked must never lead outside the directory it was found
// in. So the rooms that read layers or write workspaces resolve every path
// here, from a directory descriptor, with openat2(2) RESOLVE_BENEATH and
// RESOLVE_NO_SYMLINKS, and never through a path string. Names are raw bytes:
// they may hold newlines and invalid UTF-8.
//
// It may touch: what it is handed a descriptor of. It imports no other room.
package fsat
