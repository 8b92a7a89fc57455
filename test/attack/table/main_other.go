//go:build !linux

// Command table runs the attacks; there is a jail to attack on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "attack: on Linux only")
	os.Exit(1)
}
