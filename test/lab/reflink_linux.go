package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ReflinkEnv lists the directories on file systems with reflinks in which the
// tests may work, separated by colons.
const ReflinkEnv = "HUTCH_TEST_REFLINK_DIRS"

// MakeReflink mounts a fresh btrfs and a fresh xfs image below dir and returns
// their mount points. It needs root, and a mount namespace of its own so that
// the mounts go when the last process does.
func MakeReflink(dir string) ([]string, error) {
	var mounts []string
	for _, fs := range []struct {
		name string
		mkfs []string
	}{
		{"btrfs", []string{"mkfs.btrfs", "-q"}},
		{"xfs", []string{"mkfs.xfs", "-q", "-m", "reflink=1"}},
	} {
		image, point := filepath.Join(dir, fs.name+".img"), filepath.Join(dir, fs.name)
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			return nil, err
		}
		// Sparse: it takes only what the tests write.
		if err := os.Truncate(image, 2<<30); err != nil {
			return nil, err
		}
		if err := os.Mkdir(point, 0o755); err != nil {
			return nil, err
		}
		for _, argv := range [][]string{
			append(fs.mkfs, image),
			{"mount", "-o", "loop", image, point},
		} {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return nil, fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
			}
		}
		mounts = append(mounts, point)
	}
	return mounts, nil
}

// reflinkDirs returns the directories of ReflinkEnv. For root their absence is
// a failure: root can make them.
func reflinkDirs(t testing.TB) []string {
	t.Helper()
	if list := os.Getenv(ReflinkEnv); list != "" {
		return strings.Split(list, ":")
	}
	if os.Geteuid() == 0 {
		t.Fatalf("%s is not set; run through lab.Main or make test", ReflinkEnv)
	}
	return nil
}
