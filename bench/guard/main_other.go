//go:build !linux

package main

func main() { println("bench/guard runs on Linux") }
