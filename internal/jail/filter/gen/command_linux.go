package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"

	"hutch/internal/jail/filter"
)

// reading are the calls by which a debugger reaches into a process.
var reaching = []string{"ptrace", "process_vm_readv", "process_vm_writev"}

// forking are the calls that make a process, beside clone.
var forking = []string{"fork", "vfork"}

// moving are the calls that the mover has to see: the renames, and what leaves a
// process with fewer rights than the box (a Landlock domain of its own).
var moving = []string{"rename", "renameat", "renameat2", "landlock_restrict_self"}

// commandRules are the rules of the program that a command carries beside the
// one of its box: boxinit is told of what that refuses, and more is refused.
// What has no rule is allowed, for the other program to judge.
func commandRules(base map[string][]clause, c filter.Command) map[string][]clause {
	refuse := told(eperm)
	rules := make(map[string][]clause)
	for name, clauses := range base {
		var own []clause
		refuses := false
		for _, cl := range clauses {
			if isTold(cl.verdict) {
				refuses = true
			} else {
				cl.verdict = allow
			}
			own = append(own, cl)
		}
		if refuses {
			rules[name] = own
		}
	}
	if c.NoDebug {
		for _, name := range reaching {
			rules[name] = []clause{{always, refuse}}
		}
	}
	// Of clone's flags these must not be set, and those must.
	mask, must := uintptr(newNamespace), uintptr(0)
	if c.NoSubprocess {
		mask, must = mask|unix.CLONE_THREAD, unix.CLONE_THREAD
		for _, name := range forking {
			rules[name] = []clause{{always, refuse}}
		}
		// The kernel ignores these registers, and empties them for the program
		// that starts: only boxinit knows what was in them.
		var nonce seccomp.PerArg
		nonce[3], nonce[4] = seccomp.EqualTo(word(0, 1)), seccomp.EqualTo(word(2, 3))
		rules["execve"] = []clause{{nonce, allow}, {always, refuse}}
		rules["execveat"] = []clause{{always, refuse}}
	}
	clone := []clause{{seccomp.PerArg{seccomp.MaskedEqual(mask, must)}, allow}, {always, refuse}}
	if c.Renames {
		for _, name := range moving {
			rules[name] = []clause{{always, ask}}
		}
		// These hide from whom a process has its rights.
		rules["prctl"] = []clause{{is(0, unix.PR_SET_CHILD_SUBREAPER), ask}, {always, allow}}
		clone = append([]clause{{seccomp.PerArg{seccomp.MaskedEqual(mask|unix.CLONE_PARENT, must)}, allow}}, clone...)
		clone[1].verdict = ask
	}
	rules["clone"] = clone
	if c.Untold {
		for _, clauses := range rules {
			for i, cl := range clauses {
				if isTold(cl.verdict) {
					clauses[i].verdict = untold(cl.verdict)
				}
			}
		}
	}
	return rules
}

func word(high, low int) uintptr {
	return uintptr(filter.Nonce[high])<<32 | uintptr(filter.Nonce[low])
}

// compileCommand makes one program for the commands of a box.
func compileCommand(a arch, c filter.Command) ([]byte, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return nil, err
	}
	base, err := resolve(a, numbers)
	if err != nil {
		return nil, err
	}
	return build(a, numbers, commandRules(base, c), allow, allow)
}

// compilePorts makes the program of boxes whose policy names TCP ports.
func compilePorts(a arch) ([]byte, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return nil, err
	}
	return build(a, numbers, portRules(), allow, allow)
}

// refused names the calls that some program refuses by way of boxinit: a number
// and a name each line.
func refused(a arch) (string, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return "", err
	}
	base, err := resolve(a, numbers)
	if err != nil {
		return "", err
	}
	var lines []string
	for name, clauses := range commandRules(base, filter.Command{NoDebug: true, NoSubprocess: true}) {
		if nr, ok := numbers[name]; ok && slices.ContainsFunc(clauses, func(c clause) bool { return isTold(c.verdict) }) {
			lines = append(lines, fmt.Sprintf("%d %s\n", nr, name))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

// compileCommands makes the file of all of them: the length of each in
// instructions, then each.
func compileCommands(a arch) ([]byte, error) {
	var lengths, programs []byte
	for i := range filter.Commands {
		var program []byte
		if c := filter.CommandOf(i); !c.Untold || !c.Renames {
			var err error
			if program, err = compileCommand(a, c); err != nil {
				return nil, fmt.Errorf("%+v: %w", c, err)
			}
		}
		lengths = binary.LittleEndian.AppendUint16(lengths, uint16(len(program)/8))
		programs = append(programs, program...)
	}
	return append(lengths, programs...), nil
}
