// Promote times promotions beside what a careful program does by hand with the
// same files: write, fsync and rename each, then fsync the directories. The two
// are interleaved in one run, on fresh images of each file system.
//
// Without flags it takes a minute or two and prints a table. -full measures up to
// 100,000 changes and rewrites REPORT.md, data.json and scale.svg beside this
// file (and scale.png, where rsvg-convert is installed). It needs root.
package main
