//go:build !linux

package main

import "fmt"

func main() { fmt.Println("vm: not run: only Linux makes what the guests boot") }
