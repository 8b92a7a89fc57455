// Package supervise follows one command from start to truth: it drains its
// output into files the box never holds, keeps its deadline and memory limit,
// ends the whole tree when it must, and reports what really happened.
//
// It may touch: the box's control socket, its pipes, and the capture files.
package supervise
