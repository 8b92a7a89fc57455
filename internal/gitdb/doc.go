// Package gitdb reads a git repository without git.
//
// Git, run where a box may have written, does what it is told there: hooks,
// filters, pagers, a configured program. So the rooms that must know what a
// repository holds read it here: objects, refs and the index, by git's own
// formats (gitformat-pack(5), gitformat-index(5), gitrepository-layout(5)).
//
// Everything in a repository is hostile. An object counts only when its
// content hashes to its name; what it inflates to, how deep its deltas go, and
// all the work one [Repo] does are bounded; names in trees are checked. Nothing
// outside the given directories is read: symlinks and alternates are not
// followed, and of the configuration only the object format and the ref storage
// are looked at. What cannot be read as git would read it is an error.
//
// Git itself believes more: it seldom hashes what it reads, and it takes a
// commit's tree from the commit-graph and an object's place from the
// multi-pack-index. [Repo.Verify] finds in what a box wrote where git would see
// something else than this package does.
//
// It may touch: the directories it is handed, reading. It imports fsat alone.
package gitdb
