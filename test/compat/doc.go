// Package compat is the proof that real programs keep working in a box under
// the default policy. Each job in jobs/ is a small but whole piece of a
// program's work; it is done twice at the same path, bare and in a box whose
// change is promoted, and exit code, output and the tree that it made must
// agree. docs/compatibility.md is the table of the jobs, written by this test.
//
// It may touch: the worlds it makes.
package compat
