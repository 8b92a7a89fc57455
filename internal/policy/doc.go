// Package policy says what a command may do and compiles that into a plan:
// capabilities, paths, network, environment, limits, and what of the host a
// box sees.
//
// What is not named is absent: a box's HOME is empty but for toolchains and
// build caches, and its environment holds an allowlist, so a secret need not
// be known to be kept out.
//
// It may touch: the host's file system, reading only, to find what exists.
package policy
