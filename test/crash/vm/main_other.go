//go:build !linux

package main

import "fmt"

func main() { fmt.Println("vm: skipped: only Linux mounts the disks of the guest") }
