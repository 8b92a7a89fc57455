package filter

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// numbers reads the names of an architecture's system calls from its golden
// table.
func numbers(t *testing.T, goarch string) map[string]uint32 {
	t.Helper()
	text, err := os.ReadFile("golden_" + goarch + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]uint32{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 5 {
			if nr, err := strconv.ParseUint(f[0], 10, 32); err == nil {
				byName[f[1]] = uint32(nr)
			}
		}
	}
	return byName
}

// TestNotifyVerdicts runs the second program on every number of both
// architectures, and of the other one's.
func TestNotifyVerdicts(t *testing.T) {
	for goarch, audit := range map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64} {
		byName := numbers(t, goarch)
		var renames []uint32
		for _, name := range []string{"rename", "renameat", "renameat2"} {
			if nr, ok := byName[name]; ok {
				renames = append(renames, nr)
			}
		}
		if want := map[string]int{"amd64": 3, "arm64": 2}[goarch]; len(renames) != want {
			t.Fatalf("%s: %d calls that rename, want %d", goarch, len(renames), want)
		}
		program := notify(audit, renames, byName["landlock_restrict_self"], byName["prctl"], byName["clone"])
		if goarch == runtime.GOARCH && !bytes.Equal(program, Notify()) {
			t.Errorf("%s: Notify is another program", goarch)
		}
		var code []bpf.Instruction
		for ; len(program) > 0; program = program[8:] {
			code = append(code, bpf.RawInstruction{
				Op: binary.LittleEndian.Uint16(program), Jt: program[2], Jf: program[3], K: binary.LittleEndian.Uint32(program[4:]),
			}.Disassemble())
		}
		vm, err := bpf.NewVM(code)
		if err != nil {
			t.Fatal(err)
		}
		run := func(nr, arch uint32, arg0 uint64) uint32 {
			data := make([]byte, 64)
			binary.BigEndian.PutUint32(data, nr) // the interpreter loads big-endian
			binary.BigEndian.PutUint32(data[4:], arch)
			binary.BigEndian.PutUint32(data[16:], uint32(arg0))
			binary.BigEndian.PutUint32(data[20:], uint32(arg0>>32))
			verdict, err := vm.Run(data)
			if err != nil {
				t.Fatal(err)
			}
			return uint32(verdict)
		}
		notified := map[uint32]bool{byName["landlock_restrict_self"]: true}
		for _, nr := range renames {
			notified[nr] = true
		}
		const x32 = 0x40000000
		for nr := range uint32(1024) {
			for _, arg0 := range []uint64{0, 1, unix.PR_SET_CHILD_SUBREAPER, unix.CLONE_PARENT, unix.CLONE_PARENT | unix.CLONE_VM, 1<<32 | unix.PR_SET_CHILD_SUBREAPER} {
				want := uint32(unix.SECCOMP_RET_ALLOW)
				if notified[nr] || nr == byName["prctl"] && uint32(arg0) == unix.PR_SET_CHILD_SUBREAPER || nr == byName["clone"] && arg0&unix.CLONE_PARENT != 0 {
					want = retUserNotif
				}
				if got := run(nr, audit, arg0); got != want {
					t.Errorf("%s: call %d with %#x: %#x, want %#x", goarch, nr, arg0, got, want)
				}
				for _, other := range []uint32{unix.AUDIT_ARCH_I386, audit ^ 1} {
					if got := run(nr, other, arg0); got != unix.SECCOMP_RET_ALLOW {
						t.Errorf("%s: call %d of architecture %#x: %#x", goarch, nr, other, got)
					}
				}
				if got := run(nr|x32, audit, arg0); got != unix.SECCOMP_RET_ALLOW {
					t.Errorf("%s: x32 call %d: %#x", goarch, nr, got)
				}
			}
		}
	}
}
