// Diff times how long hutch takes to tell what a box changed: ten changes in a
// workspace of 100 files and in one of 100,000, as the outcome reports it
// (diff.elapsed_micros).
package main
