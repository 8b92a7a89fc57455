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

	// The mover of boxinit is asked, and may tell the kernel to go on.
	ask = verdict(unix.SECCOMP_RET_USER_NOTIF)
)

// told is a verdict that refuses as v does, by way of boxinit, which counts it.
// The kernel gives the listener no errno: the low bits are for who reads the
// program, and boxinit decides once more by the registers (refusal.c).
func told(v verdict) verdict { return ask | v&unix.SECCOMP_RET_DATA }

func isTold(v verdict) bool {
	return v&unix.SECCOMP_RET_ACTION_FULL == ask && v != ask
}

// untold is v without boxinit: the same errno, from the program itself.
func untold(v verdict) verdict { return unix.SECCOMP_RET_ERRNO | v&unix.SECCOMP_RET_DATA }

func (v verdict) String() string {
	switch {
	case v == allow:
		return "allow"
	case v == kill:
		return "kill"
	case v == ask:
		return "ask"
	case isTold(v):
		return "told:" + untold(v).String()
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
	if v&unix.SECCOMP_RET_ACTION_FULL == ask {
		// The compiler gives a code to this one only; see setNotify.
		return seccomp.Trace.Code(uint16(v & unix.SECCOMP_RET_DATA))
	}
	return seccomp.ReturnError.Code(uint16(v & unix.SECCOMP_RET_DATA))
}

// compile makes the program of an architecture that every process of a box
// carries, PID 1 too.
func compile(a arch) ([]byte, error) {
	numbers, err := syscallNumbers(a.goarch)
	if err != nil {
		return nil, err
	}
	rules, err := resolve(a, numbers)
	if err != nil {
		return nil, err
	}
	return build(a, numbers, rules, enosys, kill)
}

// build makes a program of rules, and of what it answers for calls without one
// and for those of another architecture.
func build(a arch, numbers map[string]uintptr, rules map[string][]clause, other, foreign verdict) ([]byte, error) {
	p := seccomp.Program{Options: seccomp.ProgramOptions{
		DefaultAction: other.action(),
		BadArchAction: foreign.action(),
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
	setNotify(program)
	if len(program) > 4096 { // BPF_MAXINSNS
		return nil, fmt.Errorf("%s: %d instructions are more than the kernel takes", a.goarch, len(program))
	}

	var b bytes.Buffer
	for _, in := range program {
		binary.Write(&b, binary.LittleEndian, in)
	}
	return b.Bytes(), nil
}

// setNotify makes a program that traces one that notifies, with the same codes.
func setNotify(program []bpf.Instruction) {
	for i, in := range program {
		if in.OpCode == bpf.Ret|bpf.K && in.K&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_TRACE {
			program[i].K = uint32(ask) | in.K&unix.SECCOMP_RET_DATA
		}
	}
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
