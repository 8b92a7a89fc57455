package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// An arch is an architecture hutch has a program for.
type arch struct {
	goarch  string
	audit   uint32 // its AUDIT_ARCH value
	foreign uint32 // that of the 32-bit one its kernel may also run
}

var arches = []arch{
	{"amd64", unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386},
	{"arm64", unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_ARM},
}

// A verdict is what a program answers: a SECCOMP_RET value.
type verdict uint32

const (
	allow = verdict(unix.SECCOMP_RET_ALLOW)
	kill  = verdict(unix.SECCOMP_RET_KILL_PROCESS)

	eperm           = verdict(unix.SECCOMP_RET_ERRNO | unix.EPERM)
	enosys          = verdict(unix.SECCOMP_RET_ERRNO | unix.ENOSYS)
	eafnosupport    = verdict(unix.SECCOMP_RET_ERRNO | unix.EAFNOSUPPORT)
	eprotonosupport = verdict(unix.SECCOMP_RET_ERRNO | unix.EPROTONOSUPPORT)
	eopnotsupp      = verdict(unix.SECCOMP_RET_ERRNO | unix.EOPNOTSUPP)
)

func (v verdict) String() string {
	switch {
	case v == allow:
		return "allow"
	case v == kill:
		return "kill"
	case v&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(v & unix.SECCOMP_RET_DATA))
	}
	return fmt.Sprintf("%#x", uint32(v))
}

func (v verdict) action() seccomp.Action {
	switch v {
	case allow:
		return seccomp.Allow
	case kill:
		return seccomp.KillProcess
	}
	return seccomp.ReturnError.Code(uint16(v & unix.SECCOMP_RET_DATA))
}

// compile makes the program for an architecture.
func compile(a arch) ([]byte, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return nil, err
	}
	rules, err := resolve(a, numbers)
	if err != nil {
		return nil, err
	}

	p := seccomp.Program{Options: seccomp.ProgramOptions{
		DefaultAction: enosys.action(),
		BadArchAction: kill.action(),
	}}
	// The clauses of a call keep their order when each stands in a rule set of
	// its own depth.
	depth := 0
	for _, clauses := range rules {
		depth = max(depth, len(clauses))
	}
	for i := range depth {
		sets := make(map[verdict]seccomp.SyscallRules)
		for name, clauses := range rules {
			nr, ok := numbers[name]
			if !ok || i >= len(clauses) {
				continue // a name of another architecture
			}
			c := clauses[i]
			if _, ok := sets[c.verdict]; !ok {
				sets[c.verdict] = seccomp.NewSyscallRules()
			}
			sets[c.verdict].Set(nr, c.when)
		}
		for v, set := range sets {
			p.RuleSets = append(p.RuleSets, seccomp.RuleSet{Rules: set, Action: v.action()})
		}
	}
	program, _, err := p.Build()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.goarch, err)
	}
	if err := setArch(program, a.audit); err != nil {
		return nil, err
	}
	if len(program) > 4096 { // BPF_MAXINSNS
		return nil, fmt.Errorf("%s: %d instructions are more than the kernel takes", a.goarch, len(program))
	}

	var b bytes.Buffer
	for _, in := range program {
		binary.Write(&b, binary.LittleEndian, in)
	}
	return b.Bytes(), nil
}

// setArch makes a program compare with another architecture than the one the
// compiler was built for.
func setArch(program []bpf.Instruction, audit uint32) error {
	i := slices.IndexFunc(program, func(in bpf.Instruction) bool {
		return in.OpCode == bpf.Jmp|bpf.Jeq|bpf.K && in.K == seccomp.LINUX_AUDIT_ARCH
	})
	const archOffset = 4 // of arch in struct seccomp_data
	if i != 1 || program[0].OpCode != bpf.Ld|bpf.Abs|bpf.W || program[0].K != archOffset {
		return errors.New("the program does not open with the architecture's check")
	}
	program[i].K = audit
	return nil
}
