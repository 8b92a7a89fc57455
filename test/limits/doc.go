// Package limits tests every limit of a box from outside, with what hits it.
//
// What runs in the boxes is the test binary itself, so that the tests need
// nothing but it, hutch and a shell: they also run in virtual machines.
package limits
