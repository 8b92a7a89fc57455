//go:build hutchfault

package policy

import (
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/plan"
)

// leaveOut drops from a plan the steps that HUTCH_LEAVE_OUT names, as Code's
// String does, so that the attacks which they guard against can be seen to
// succeed. "net", "ipc" and "uts" leave out those namespaces.
func leaveOut(p *plan.Plan) *plan.Plan {
	names := strings.Split(os.Getenv("HUTCH_LEAVE_OUT"), ",")
	p.Ops = slices.DeleteFunc(p.Ops, func(op plan.Op) bool { return slices.Contains(names, op.Code.String()) })
	for i := range p.Ops {
		if p.Ops[i].Code != plan.Unshare {
			continue
		}
		for name, flag := range map[string]uint64{"net": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC, "uts": unix.CLONE_NEWUTS} {
			if slices.Contains(names, name) {
				p.Ops[i].A &^= flag
			}
		}
	}
	return p
}
