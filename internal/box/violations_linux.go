package box

import (
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/jail/filter"
	"hutch/internal/outcome"
	"hutch/internal/supervise"
)

// violations lists what the kernel refused the box while its commands ran.
func violations(res *supervise.Result) []outcome.Violation {
	list := []outcome.Violation{}
	for _, v := range res.Violations {
		list = append(list, outcome.Violation{
			Kind: "syscall", What: filter.Describe(v.Call, v.First, v.Third), Errno: unix.ErrnoName(v.Errno), Count: int64(v.Count),
			Process: printable(v.Process),
		})
	}
	if foreignCall(res) {
		list = append(list, outcome.Violation{Kind: "syscall", What: "a call of the 32-bit interface", Count: 1})
	}
	if n := res.NoRoute; n > 0 {
		list = append(list, outcome.Violation{Kind: "network", What: "packets had nowhere to go", Count: int64(n)})
	}
	if n := res.NoPort; n > 0 {
		list = append(list, outcome.Violation{Kind: "network", What: "datagrams found closed ports of the box's own loopback", Count: int64(n)})
	}
	return list
}

// foreignCall reports whether the filter killed the command: it does so for
// system calls of another architecture only, by SIGSYS. A program that ends
// itself by that signal looks the same.
func foreignCall(res *supervise.Result) bool {
	return res.End == supervise.ByItself && res.Known && res.Wait.Signaled() && res.Wait.Signal() == unix.SIGSYS
}

// printable keeps what a box chose harmless to print.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), 15)])
}
