// Package supervise follows commands from start to truth, one in a box of its own
// (Command) or many in a box that lives (Live): it drains their output into files
// the box never holds, keeps their deadlines and limits, ends the whole tree when
// it must, and reports what really happened.
//
// It may touch: the box's control socket, its pipes, the capture files, and the
// box's processes, by /proc and pidfds.
package supervise
