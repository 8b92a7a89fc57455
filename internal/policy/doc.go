// Package policy says what a command may do — capabilities, paths, network,
// environment, limits — where each line of that comes from, and compiles it
// into a plan.
//
// It may touch: the host's configuration files, reading only.
package policy
