// Rename times rename(2) of a file in a box whose renames the mover sees (an
// overlay that cannot rename directories) beside a box without one, and the
// rename of a directory that the layer below has, by its number of entries.
//
// The same call is timed in both boxes on the same kind of file system, the
// private /tmp: what differs is the mover alone. Run it as an ordinary user:
// root's overlay renames directories by itself.
package main
