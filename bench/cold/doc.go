// Cold times `hutch run -- true` as a whole process beside bubblewrap doing the
// same and beside the bare spawn of true, interleaved in one run.
package main
