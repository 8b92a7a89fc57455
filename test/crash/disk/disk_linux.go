package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is one disk. Its zero is a hole.
type Disk struct {
	size int64
	log  *Log
	dir  string // where the FUSE file system is mounted
	fuse *os.File
	done chan struct{}

	mu    sync.Mutex
	base  Pages
	over  Pages
	opens int
}

// New makes a disk of size bytes, a multiple of Page, whose file is File. dir
// must be an empty directory. It needs root.
func New(dir string, size int64, log *Log) (*Disk, error) {
	fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	d := &Disk{size: size, log: log, dir: dir, fuse: fuse, done: make(chan struct{}), base: Pages{}, over: Pages{}}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse.Fd())
	if err := unix.Mount("hutch-crash-disk", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		fuse.Close()
		return nil, fmt.Errorf("mount fuse: %w", err)
	}
	go d.serve()
	return d, nil
}

// File is the path of the disk's one file.
func (d *Disk) File() string { return filepath.Join(d.dir, "disk") }

// Close takes the disk away.
func (d *Disk) Close() error {
	err := unix.Unmount(d.dir, 0)
	if err != nil {
		_ = unix.Unmount(d.dir, unix.MNT_DETACH|unix.MNT_FORCE)
	}
	d.fuse.Close()
	<-d.done
	return err
}

// Format makes a file system on the disk. It is made in a file beside it, since
// mkfs does not need to be logged.
func (d *Disk) Format(scratch, fs string, options ...string) error {
	img := filepath.Join(scratch, "mkfs.img")
	f, err := os.Create(img)
	if err != nil {
		return err
	}
	defer os.Remove(img)
	defer f.Close()
	if err := f.Truncate(d.size); err != nil {
		return err
	}
	argv := append([]string{"-q"}, options...)
	if out, err := exec.Command("mkfs."+fs, append(argv, img)...).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.%s: %w: %s", fs, err, out)
	}
	base := Pages{}
	for at := int64(0); at < d.size; {
		if at, err = f.Seek(at, unix.SEEK_DATA); err != nil {
			break
		}
		end, err := f.Seek(at, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for at -= at % Page; at < end; at += Page {
			page := make([]byte, Page)
			if _, err := f.ReadAt(page, at); err != nil && err != io.EOF {
				return err
			}
			base[at/Page] = page
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base, d.over = base, Pages{}
	return nil
}

// Mount mounts the file system of the disk at a directory. The loop device goes
// when the mount does.
func (d *Disk) Mount(fs, at string) error {
	out, err := exec.Command("mount", "-t", fs, "-o", "loop", d.File(), at).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mount -t %s: %w: %s", fs, err, out)
	}
	return nil
}

// Unmount unmounts what Mount mounted, and waits until nothing holds the disk.
func (d *Disk) Unmount(at string) error {
	var err error
	for range 100 {
		if err = unix.Unmount(at, 0); err != unix.EBUSY {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	for range 2000 {
		d.mu.Lock()
		held := d.opens
		d.mu.Unlock()
		if held == 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("the loop device still holds the disk")
}

// Freeze makes what the disk holds now what it is set back to by Load.
func (d *Disk) Freeze() {
	d.mu.Lock()
	defer d.mu.Unlock()
	base := Pages{}
	for n, p := range d.base {
		base[n] = p
	}
	for n, p := range d.over {
		base[n] = p
	}
	d.base, d.over = base, Pages{}
}

// Load sets the disk to what was frozen with some pages over it.
func (d *Disk) Load(p Pages) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p == nil {
		p = Pages{}
	}
	d.over = p
}

// overlay writes into pages, taking from the frozen content what a piece of a
// page does not cover.
func (d *Disk) overlay(p Pages, off int64, data []byte) {
	n := off / Page
	page := p[n]
	if page == nil {
		page = make([]byte, Page)
		copy(page, d.base[n])
		p[n] = page
	}
	copy(page[off%Page:], data)
}

func (d *Disk) write(off int64, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(data) > 0 {
		piece := min(int64(len(data)), Page-off%Page)
		d.overlay(d.over, off, data[:piece])
		off, data = off+piece, data[piece:]
	}
}

func (d *Disk) read(off int64, buf []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(buf) > 0 {
		piece := min(int64(len(buf)), Page-off%Page)
		page := d.over[off/Page]
		if page == nil {
			page = d.base[off/Page]
		}
		if page == nil {
			clear(buf[:piece])
		} else {
			copy(buf[:piece], page[off%Page:])
		}
		off, buf = off+piece, buf[piece:]
	}
}

// Numbers of linux/fuse.h.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opFlush       = 25
	opInit        = 26
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42

	bigWrites    = 1 << 5
	openDirectIO = 1 << 0
	maxWrite     = 128 << 10
	inHeader     = 40
	rootNode     = 1
	diskNode     = 2
)

var le = binary.NativeEndian

// serve answers one request after the other, so that the log has one order: a
// flush covers every write that was answered before it.
func (d *Disk) serve() {
	defer close(d.done)
	buf := make([]byte, maxWrite+8192)
	// The descriptor is read by plain calls: it must not be polled, and the
	// kernel ends the wait when the mount goes.
	fd := int(d.fuse.Fd())
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT {
			continue
		}
		if err != nil || n < inHeader {
			return
		}
		op, unique, node := le.Uint32(buf[4:]), le.Uint64(buf[8:]), le.Uint64(buf[16:])
		if op == opForget || op == opBatchForget || op == opInterrupt {
			continue
		}
		body, errno := d.answer(op, node, buf[inHeader:n])
		head := make([]byte, 16, 16+len(body))
		if errno != 0 {
			body = nil
		}
		le.PutUint32(head, uint32(16+len(body)))
		le.PutUint32(head[4:], uint32(-int32(errno)))
		le.PutUint64(head[8:], unique)
		if _, err := unix.Write(fd, append(head, body...)); err != nil && err != unix.ENOENT {
			return
		}
		if op == opDestroy {
			return
		}
	}
}

func (d *Disk) answer(op uint32, node uint64, in []byte) (out []byte, errno unix.Errno) {
	switch op {
	case opInit:
		out = make([]byte, 64)
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 31)
		le.PutUint32(out[12:], bigWrites)
		le.PutUint32(out[20:], maxWrite)
		le.PutUint32(out[24:], 1)
	case opLookup:
		if string(in[:len(in)-1]) != "disk" {
			return nil, unix.ENOENT
		}
		out = make([]byte, 40, 128)
		le.PutUint64(out, diskNode)
		le.PutUint64(out[16:], 3600)
		le.PutUint64(out[24:], 3600)
		out = append(out, d.attr(diskNode)...)
	case opGetattr, opSetattr:
		out = make([]byte, 16, 104)
		le.PutUint64(out, 3600)
		out = append(out, d.attr(node)...)
	case opOpen:
		out = make([]byte, 16)
		le.PutUint32(out[8:], openDirectIO)
		d.mu.Lock()
		d.opens++
		d.mu.Unlock()
	case opRelease:
		d.mu.Lock()
		d.opens--
		d.mu.Unlock()
	case opRead:
		off, size := int64(le.Uint64(in[8:])), int64(le.Uint32(in[16:]))
		out = make([]byte, max(0, min(size, d.size-off)))
		d.read(off, out)
	case opWrite:
		off, size := int64(le.Uint64(in[8:])), int64(le.Uint32(in[16:]))
		data := in[40 : 40+size]
		if off+size > d.size {
			return nil, unix.ENOSPC
		}
		d.write(off, data)
		d.log.add(Event{Kind: Write, Disk: d, Off: off, Data: append([]byte(nil), data...)})
		out = make([]byte, 8)
		le.PutUint32(out, uint32(size))
	case opFsync:
		d.log.add(Event{Kind: Flush, Disk: d})
	case opStatfs:
		out = make([]byte, 80)
	case opFlush, opDestroy:
	default:
		return nil, unix.ENOSYS
	}
	return out, 0
}

func (d *Disk) attr(node uint64) []byte {
	out := make([]byte, 88)
	le.PutUint64(out, node)
	mode, links := uint32(unix.S_IFDIR|0o700), uint32(2)
	if node == diskNode {
		mode, links = unix.S_IFREG|0o600, 1
		le.PutUint64(out[8:], uint64(d.size))
	}
	le.PutUint32(out[60:], mode)
	le.PutUint32(out[64:], links)
	le.PutUint32(out[80:], Page)
	return out
}
