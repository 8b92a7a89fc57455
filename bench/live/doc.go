// Live times what is asked of a hutchd over HTTP on its unix socket, beside what
// the kernel takes for the same: a warm command beside vfork, exec and wait of the
// same static program, a box that is made and runs one, forks and checkpoints, and
// how many commands a second many clients get.
package main
