// Package view says what of the host a box sees: which directories, by which
// user, with which environment, and what is left out of them because it is a
// secret.
//
// What is not named is absent: a box's HOME is empty but for toolchains and
// build caches, and its environment holds an allowlist, so a secret need not
// be known to be kept out.
//
// It may touch: the host's file system, reading only, to find what exists.
package view
