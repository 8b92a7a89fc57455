//go:build !linux

package main

import "os"

// enterRaw does nothing where no command can run.
func enterRaw(*os.File) (resized <-chan os.Signal, restore func()) { return nil, func() {} }
