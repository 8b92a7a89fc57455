package disk

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCut(t *testing.T) {
	var l Log
	d := &Disk{size: 1 << 20, log: &l, base: Pages{0: bytes.Repeat([]byte{'b'}, Page)}, over: Pages{}}
	l.Start()
	l.add(Event{Kind: Write, Disk: d, Off: 512, Data: bytes.Repeat([]byte{'1'}, 512)})
	l.add(Event{Kind: Flush, Disk: d})
	l.add(Event{Kind: Write, Disk: d, Off: Page, Data: bytes.Repeat([]byte{'2'}, 2*Page)})
	r := rand.New(rand.NewPCG(1, 1))
	kept := map[int]int{}
	for range 100 {
		c := l.Cut(3, 0.5, r)[d]
		if p := c[0]; p[0] != 'b' || p[512] != '1' || p[1024] != 'b' {
			t.Fatal("a flushed write is lost, or took its page along")
		}
		kept[len(c)]++
	}
	if kept[1] < 10 || kept[2] < 20 || kept[3] < 10 {
		t.Errorf("pages of one write are not lost apart: %v", kept)
	}
	if c := l.Cut(3, 0, r, d)[d]; len(c) != 3 {
		t.Errorf("a safe disk lost a write")
	}
	if c := l.Cut(1, 0, r)[d]; len(c) != 0 {
		t.Errorf("an unflushed write stayed with probability 0")
	}
}

// TestFlushArrives shows that an fsync on a file system reaches the disk as a
// flush that comes after its writes: all else rests on that.
func TestFlushArrives(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir, at := t.TempDir(), t.TempDir()
	var l Log
	d, err := New(dir, 64<<20, &l)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := d.Format(t.TempDir(), "ext4"); err != nil {
		t.Fatal(err)
	}
	if err := d.Mount("ext4", at); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Unmount(at); err != nil {
			t.Error(err)
		}
	}()
	root, err := unix.Open(at, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Syncfs(root)
	unix.Close(root)
	if err != nil {
		t.Fatal(err)
	}
	l.Start()
	content := bytes.Repeat([]byte("needle.."), 512)
	f, err := os.Create(at + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Write(content)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	l.Mark("synced")
	written, flushed := -1, -1
	for i, e := range l.Events()[:l.At("synced")] {
		if e.Kind == Write && bytes.Contains(e.Data, content) {
			written = i
		}
		if e.Kind == Flush {
			flushed = i
		}
	}
	if written < 0 || flushed < written {
		t.Errorf("the write is event %d, the last flush event %d", written, flushed)
	}
}
