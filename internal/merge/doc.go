// Package merge brings together two changes of one file.
//
// A file that both the box and the user changed is a conflict, unless it is known
// what both began with: then their changes are merged line by line, as git does,
// and what does not touch arrives together. [Text] merges; a [Finder] finds the
// content at the time of the branch in the host's own git repository.
//
// A merge that is wrong and looks right is worse than a conflict. Where a diff
// could have been drawn in more than one way, the lines in question count as
// changed, and a base that is not known is said to be unknown.
//
// It may touch: the workspace and its git directory, reading.
package merge
