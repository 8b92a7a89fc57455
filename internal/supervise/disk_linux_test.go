package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// layer makes an empty box directory with one layer, "upper", in it.
func layer(t *testing.T) (d *Disk, upper string) {
	t.Helper()
	dir := t.TempDir()
	upper = filepath.Join(dir, "upper")
	if err := os.Mkdir(upper, 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		must(t, fsat.RemoveAll(fd, "upper")) // the standard library's takes seconds for a long chain
		unix.Close(fd)
	})
	return &Disk{Dir: fd, Names: []string{"upper", "absent"}}, upper
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func walked(t *testing.T, d *Disk) usage {
	t.Helper()
	used, err := d.walk(nil, false)
	must(t, err)
	return used
}

func TestWalkCountsWhatFilesTake(t *testing.T) {
	d, upper := layer(t)
	must(t, os.WriteFile(filepath.Join(upper, "f"), make([]byte, 1<<20), 0o644))
	one := walked(t, d)
	if one.files != 1 || one.bytes < 1<<20 || one.bytes > 1<<20+64<<10 {
		t.Errorf("a file of 1 MB: %+v", one)
	}
	must(t, os.Link(filepath.Join(upper, "f"), filepath.Join(upper, "g")))
	if two := walked(t, d); two != one {
		t.Errorf("a second name made %+v of %+v", two, one)
	}
	must(t, os.WriteFile(filepath.Join(upper, "holes"), nil, 0o644))
	must(t, os.Truncate(filepath.Join(upper, "holes"), 1<<40))
	if holes := walked(t, d); holes.bytes != one.bytes || holes.files != 2 {
		t.Errorf("holes made %+v of %+v", holes, one)
	}
	must(t, os.Symlink("/", filepath.Join(upper, "link")))
	if link := walked(t, d); link.files != 3 {
		t.Errorf("a symlink made %+v", link)
	}
}

func TestWalkEndsAtTheLimit(t *testing.T) {
	d, upper := layer(t)
	d.Files = 10
	for i := range 100 {
		must(t, os.Mkdir(filepath.Join(upper, strconv.Itoa(i)), 0o755))
	}
	used, err := d.walk(nil, true)
	if err != nil || used.files != 11 || !d.passed(used) {
		t.Errorf("%+v, %v", used, err)
	}
}

// chain makes directories in each other, as deep as no path could name, each
// with another beside it where beside is set.
func chain(t *testing.T, upper string, depth int, beside bool) {
	t.Helper()
	fd, err := unix.Open(upper, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range depth {
		for _, name := range []string{"a", "b"} {
			if name == "b" && !beside {
				continue
			}
			must(t, unix.Mkdirat(fd, name, 0o755))
		}
		// Down that which is looked at first, so that the other waits.
		var names []string
		for len(names) == 0 { // a signal may have come before the first
			var buf [4096]byte
			n, err := unix.ReadDirent(fd, buf[:])
			must(t, err)
			_, _, names = unix.ParseDirent(buf[:n], -1, nil)
		}
		next, err := unix.Openat(fd, names[0], unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

func TestWalkFollowsAnyChain(t *testing.T) {
	d, upper := layer(t)
	chain(t, upper, deepest+100, false)
	if used := walked(t, d); used.files != deepest+100 {
		t.Errorf("%d of %d directories", used.files, deepest+100)
	}
}

func TestWalkRefusesWhatItCannotFollow(t *testing.T) {
	d, upper := layer(t)
	chain(t, upper, deepest+10, true)
	if _, err := d.walk(nil, false); !errors.Is(err, errTooDeep) {
		t.Errorf("%v", err)
	}
}

func TestLookWalksOnlyForAReason(t *testing.T) {
	d, upper := layer(t)
	d.Bytes = 1 << 40 // the machine does not write half of that meanwhile
	must(t, d.Begin(0))
	must(t, os.WriteFile(filepath.Join(upper, "f"), make([]byte, 1<<20), 0o644))
	const nobody = 1 << 30 // a box that lives, without processes
	if over, _ := d.look(nobody, new(atomic.Bool)); over || d.now.bytes != 0 {
		t.Errorf("over: %v, walked: %+v", over, d.now)
	}
	d.Bytes = 1 << 19 // now it is more than all that is left
	if over, _ := d.look(0, new(atomic.Bool)); !over {
		t.Errorf("1 MB is within half of that: %+v", d.now)
	}
}

func TestWhatACopyBeganWithIsNotAdded(t *testing.T) {
	d, upper := layer(t)
	must(t, os.WriteFile(filepath.Join(upper, "f"), make([]byte, 8<<20), 0o644))
	d.Bytes = 4 << 20
	must(t, d.Begin(0))
	must(t, os.WriteFile(filepath.Join(upper, "g"), make([]byte, 3<<20), 0o644))
	if over, _ := d.look(0, new(atomic.Bool)); over {
		t.Error("3 MB beside what was copied are over 4 MB")
	}
	must(t, os.WriteFile(filepath.Join(upper, "h"), make([]byte, 3<<20), 0o644))
	if over, _ := d.look(0, new(atomic.Bool)); !over {
		t.Error("6 MB beside what was copied are within 4 MB")
	}
}
