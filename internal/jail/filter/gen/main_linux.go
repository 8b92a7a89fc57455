// Command gen writes the seccomp programs of a box and what they answer:
// filter_GOARCH.bpf and golden_GOARCH.txt, for each architecture, in the
// directory it is run in. With -golden it only prints what the programs
// answer.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	golden := flag.Bool("golden", false, "print what the programs answer; write nothing")
	flag.Parse()
	for _, a := range arches {
		program, err := compile(a)
		if err != nil {
			log.Fatal(err)
		}
		table, err := describe(a, program)
		if err != nil {
			log.Fatal(err)
		}
		if *golden {
			fmt.Print(table)
			continue
		}
		if err := os.WriteFile("filter_"+a.goarch+".bpf", program, 0o644); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile("golden_"+a.goarch+".txt", []byte(table), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
