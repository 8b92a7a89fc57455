// Package run holds the black-box tests of `hutch run` and of the commands
// around it: everything is done through the binary, nothing through the rooms.
package run
