// Package model runs random sequences of file operations in a box and, by the
// very same program, on a plain copy of the workspace, and holds the two trees
// against each other. README.md says what it proves.
//
// It may touch: what it made itself, through package lab.
package model
