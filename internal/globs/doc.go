// Package globs matches paths against patterns in the syntax of gitignore(5),
// as git itself does: the last pattern that matches decides, "!" takes back,
// and what lies beneath a matched directory is matched whatever later patterns
// say. A pattern in double quotes is one path, as it is.
//
// It may touch: nothing. It imports no other room.
package globs
