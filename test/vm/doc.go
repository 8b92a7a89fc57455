// Command vm boots other kernels and runs hutch's own checks in them. Run by
// make vm.
//
// It may touch: build/vm, a directory of its own beneath the temporary
// directory, and the guests that it starts.
package main
