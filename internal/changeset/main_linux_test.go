package changeset

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// How a test process was started: by go test, or again by itself, where it can
// mount something that nobody else sees and that is gone with it.
const (
	insideEnv    = "HUTCH_CHANGESET_TEST_INSIDE"
	privateMount = "mount namespace of root"
	userNS       = "user namespace of an ordinary user"
	ordinaryUser = "ordinary user"
)

func inside() string { return os.Getenv(insideEnv) }

func TestMain(m *testing.M) {
	flag.Parse()
	fuzzing := flag.Lookup("test.fuzz").Value.String() != ""
	if os.Geteuid() != 0 || inside() != "" || fuzzing {
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"="+privateMount)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// again runs the tests that match pattern in a process of another kind.
func again(t *testing.T, kind, pattern string) {
	t.Helper()
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	tmp, err := os.MkdirTemp("", "changeset") // those of t are open to their owner only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	attr := &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	id := os.Geteuid()
	if id == 0 {
		id = 1000
		if err := os.Chown(tmp, id, id); err != nil {
			t.Fatal(err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
	}
	if kind == userNS {
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		attr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}
	}
	// The build directory of go test is not open to other users; an open
	// file is.
	cmd := exec.Command("/proc/self/fd/3", "-test.v", "-test.run="+pattern)
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), insideEnv+"="+kind, "TMPDIR="+tmp)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", kind, err, out)
	}
	if !strings.Contains(string(out), "--- PASS") || strings.Contains(string(out), "--- SKIP") {
		t.Fatalf("%s: no test ran, or not all:\n%s", kind, out)
	}
}

func TestInUserNamespace(t *testing.T) {
	if inside() == userNS {
		return
	}
	again(t, userNS, "^TestOverlay")
}
