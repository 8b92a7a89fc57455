package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"hutch/test/lab"
)

// inner marks the process that has a mount namespace of its own: the verdict
// looks at all mounts, and other tests make some at the same time.
const inner = "HUTCH_ATTACK_INNER"

func TestMain(m *testing.M) {
	if root() && os.Getenv(inner) == "" {
		os.Exit(lab.Again("attack", inner, syscall.SIGKILL))
	}
	lab.Main(m)
}

// FaultEnv names a hutch that was built with -tags hutchfault; without it one is
// built.
const FaultEnv = "HUTCH_FAULT_BIN"

// ProgramEnv names the attacks' program, for machines without a compiler.
const ProgramEnv = "HUTCH_ATTACK_PROGRAM"

var build struct {
	sync.Mutex
	dir            string
	program, fault string
}

// scratch is a directory for what is built once.
func scratch(t testing.TB) string {
	if build.dir == "" {
		dir, err := os.MkdirTemp("", "hutch-attack-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		build.dir = dir
		lab.AtEnd(func() { os.RemoveAll(dir) })
	}
	return build.dir
}

// program compiles the attacks: static where the machine has a static C
// library, so that they run in any view.
func program(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(ProgramEnv); path != "" {
		return path
	}
	build.Lock()
	defer build.Unlock()
	if build.program != "" {
		return build.program
	}
	sources, err := filepath.Glob("programs/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("the attacks' sources: %v, %v", sources, err)
	}
	out := filepath.Join(scratch(t), "attack")
	args := append([]string{"-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-zero-length", "-Wno-format-truncation", "-Wno-unused-result", "-pthread", "-o", out}, sources...)
	if text, err := exec.Command("cc", append([]string{"-static"}, args...)...).CombinedOutput(); err != nil {
		if text2, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			t.Fatalf("compiling the attacks: %v\n%s\n%s", err, text, text2)
		}
	}
	build.program = out
	return out
}

// fault returns a hutch that can leave out steps of a plan.
func fault(t testing.TB) string {
	t.Helper()
	if bin := os.Getenv(FaultEnv); bin != "" {
		return bin
	}
	build.Lock()
	defer build.Unlock()
	if build.fault != "" {
		return build.fault
	}
	out := filepath.Join(scratch(t), "hutch-fault")
	cmd := exec.Command("go", "build", "-tags", "hutchfault", "-o", out, "hutch/cmd/hutch")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building a hutch that leaves steps out: %v\n%s", err, text)
	}
	build.fault = out
	return out
}

func root() bool { return os.Geteuid() == 0 }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sprint(format string, args ...any) string { return fmt.Sprintf(format, args...) }
