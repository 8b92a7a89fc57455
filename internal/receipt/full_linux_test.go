package receipt

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDisk fills a file system by appending: what does not fit is refused
// in one line and leaves nothing, and the log goes on when there is room.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"))
	defer unix.Unmount(dir, unix.MNT_DETACH)
	must(t, os.WriteFile(dir+"/other", make([]byte, 64<<10), 0o600))
	l := open(t, dir)
	pad := map[string]string{"pad": strings.Repeat("x", 9000)}
	var n int
	var err error
	for n = 0; err == nil; n++ {
		_, err = l.Append("id", pad, false)
	}
	n--
	if !errors.Is(err, unix.ENOSPC) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "free space") {
		t.Error(err)
	}
	sound(t, l, n)
	info, err := os.Stat(l.Path())
	must(t, err)
	if _, err := l.Append("id", pad, false); err == nil {
		t.Error("written to a full disk")
	}
	if after, err := os.Stat(l.Path()); err != nil || after.Size() != info.Size() {
		t.Errorf("%d bytes, then %d, %v", info.Size(), after.Size(), err)
	}
	must(t, os.Remove(dir+"/other"))
	add(t, l, "after", 1)
	sound(t, l, n+1)
	l.Close()
}
