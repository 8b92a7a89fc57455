// Warm times a command in a box that lives, from the message to the report of its
// end, beside vfork, exec and wait of the same static program, and mounts into
// that box.
package main
