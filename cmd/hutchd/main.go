// Command hutchd will be the daemon: boxes that outlive a command, warm pools,
// an HTTP API. It is not part of this version.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "hutchd: the daemon is not part of this version; every command of `hutch` works without it")
	os.Exit(125)
}
