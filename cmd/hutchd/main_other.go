//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "hutchd: boxes need Linux; run it there, or in a virtual machine")
	os.Exit(125)
}
