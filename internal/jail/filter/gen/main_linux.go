// Command gen writes the seccomp programs of a box and what they answer, for
// each architecture, in the directory it is run in: filter_GOARCH.bpf and
// golden_GOARCH.txt, and command_GOARCH.bpf and golden_command_GOARCH.txt for the
// programs that commands carry besides, ports_GOARCH.bpf for boxes whose policy
// names ports, and refused_GOARCH.txt with the names of
// what they refuse. With -golden it only prints what the
// programs answer.
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
		commands, err := compileCommands(a)
		if err != nil {
			log.Fatal(err)
		}
		commandTable, err := describeCommands(a)
		if err != nil {
			log.Fatal(err)
		}
		ports, err := compilePorts(a)
		if err != nil {
			log.Fatal(err)
		}
		names, err := refused(a)
		if err != nil {
			log.Fatal(err)
		}
		if *golden {
			fmt.Print(table, commandTable)
			continue
		}
		for name, content := range map[string][]byte{
			"filter_" + a.goarch + ".bpf": program, "golden_" + a.goarch + ".txt": []byte(table),
			"command_" + a.goarch + ".bpf": commands, "golden_command_" + a.goarch + ".txt": []byte(commandTable),
			"ports_" + a.goarch + ".bpf":   ports,
			"refused_" + a.goarch + ".txt": []byte(names),
		} {
			if err := os.WriteFile(name, content, 0o644); err != nil {
				log.Fatal(err)
			}
		}
	}
}
