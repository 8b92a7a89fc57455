// Guard replays the histories of git repositories through the handoff guard, to
// count how often ordinary work would be held.
//
//	go run ./bench/guard [-n 300] [-v] DIR
//
// DIR holds clones, bare or not. Of each, the last n commits of the first-parent
// line are judged one by one, each as the change of a box: the parent's tree lies
// on the disk as the workspace, the commit's files as the layer. Git is asked for
// objects only; nothing of a clone is checked out by its own configuration.
package main
