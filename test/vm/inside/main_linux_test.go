//go:build vm

package inside

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

func root() bool { return os.Geteuid() == 0 }

// since reports whether this kernel is of a version or later.
func since(t *testing.T, major, minor int) bool {
	t.Helper()
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	var is [2]int
	for i, s := range strings.SplitN(unix.ByteSliceToString(uts.Release[:]), ".", 3)[:2] {
		for _, c := range s {
			is[i] = is[i]*10 + int(c-'0')
		}
	}
	return is[0] > major || is[0] == major && is[1] >= minor
}

// What this guest, and this place in it, must give.
func landlock(t *testing.T) bool { return since(t, 5, 13) && os.Getenv("HUTCH_VM_LANDLOCK") != "no" }
func cgroups() bool {
	return root() || strings.Contains(os.Getenv("HUTCH_VM_CGROUP"), "user@1000.service")
}
func memory() bool           { return cgroups() && os.Getenv("HUTCH_VM_MEMORY") != "no" }
func peak(t *testing.T) bool { return memory() && since(t, 5, 19) }
func overlay(t *testing.T) bool {
	// The layer of an ordinary user's has to keep its notes.
	return root() || os.Getenv("HUTCH_VM_TMPFS") == "" || since(t, 6, 6)
}

// missing is what an outcome must call missing; limited says whether limits were
// asked for that this place does not give.
func missing(t *testing.T, limited bool) []string {
	list := []string{}
	if !landlock(t) {
		list = append(list, "landlock")
	}
	if limited {
		list = append(list, "limits")
	}
	return list
}

func wantMissing(t *testing.T, out lab.Outcome, limited bool) {
	t.Helper()
	if want := missing(t, limited); !slices.Equal(out.Missing, want) {
		t.Errorf("missing %q, want %q", out.Missing, want)
	}
	if out.Rung != "full" {
		t.Errorf("rung %q", out.Rung)
	}
}
