package main

import (
	"fmt"

	"hutch/internal/outcome"
)

// violationLines is how many lines are spent on what a box refused.
const violationLines = 5

// explainViolations tells what the box refused while the command ran, so that
// nobody looks for the fault in the command.
func explainViolations(list []outcome.Violation) []string {
	var lines []string
	for i, v := range list {
		if i == violationLines-1 && len(list) > violationLines {
			return append(lines, fmt.Sprintf("the box refused %d more kinds of call; --json lists them", len(list)-i))
		}
		switch {
		case v.Kind == "network":
			lines = append(lines, fmt.Sprintf("%s (%d): this box has no network; --allow-net shares the host's", v.What, v.Count))
		case v.Process == "":
			lines = append(lines, fmt.Sprintf("the box refused %s%s%s%s", v.What, errno(v), times(v), grants(v)))
		default:
			lines = append(lines, fmt.Sprintf("the box refused %s to %q%s%s%s", v.What, v.Process, errno(v), times(v), grants(v)))
		}
	}
	return lines
}

// grants names the capability that a refused call would have needed; most need
// one that no box has.
func grants(v outcome.Violation) string {
	switch v.What {
	case "fork", "vfork", "clone", "execve", "execveat":
		return "; its policy does not grant subprocess"
	case "ptrace", "process_vm_readv", "process_vm_writev":
		return "; its policy does not grant debug"
	}
	return ""
}

func errno(v outcome.Violation) string {
	if v.Errno == "" {
		return ""
	}
	return " (" + v.Errno + ")"
}

func times(v outcome.Violation) string {
	if v.Count == 1 {
		return ""
	}
	return fmt.Sprintf(", %d times in all", v.Count)
}
