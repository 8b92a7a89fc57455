package gitdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// pack is one pack and its index. Both are read piece by piece, never mapped: a
// file that is cut short under a mapping kills the reader.
type pack struct {
	name    string // without suffix
	format  Format
	idx     *os.File
	idxSize int64
	data    *os.File
	size    int64 // of data, less the hash at its end
	fanout  [256]uint32
}

// openPack opens objects/pack/NAME.idx and .pack; nil when either is not there.
func openPack(v view, name string, format Format) (*pack, error) {
	p := &pack{name: name, format: format}
	var err error
	if p.idx, p.idxSize, err = openSized(v, "objects/pack/"+name+".idx"); err != nil {
		return nil, absent(err)
	}
	if p.data, p.size, err = openSized(v, "objects/pack/"+name+".pack"); err != nil {
		p.close()
		return nil, absent(err)
	}
	if err := p.readHeads(); err != nil {
		p.close()
		return nil, fmt.Errorf("pack %s: %w", name, err)
	}
	return p, nil
}

func openSized(v view, path string) (*os.File, int64, error) {
	f, st, err := v.open(path)
	return f, st.Size, err
}

func absent(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (p *pack) close() {
	p.idx.Close()
	if p.data != nil {
		p.data.Close()
	}
}

func (p *pack) count() int64 { return int64(p.fanout[255]) }

const (
	idxHead   = 8 // magic, version
	fanoutLen = 256 * 4
)

func (p *pack) readHeads() error {
	var head [idxHead + fanoutLen]byte
	if err := readAt(p.idx, head[:], 0); err != nil {
		return err
	}
	if string(head[:4]) != "\xfftOc" || binary.BigEndian.Uint32(head[4:]) != 2 {
		return fmt.Errorf("%w: a pack index that is not of version 2", ErrUnsupported)
	}
	previous := uint32(0)
	for i := range p.fanout {
		p.fanout[i] = binary.BigEndian.Uint32(head[idxHead+4*i:])
		if p.fanout[i] < previous {
			return corrupt("pack index: fan-out")
		}
		previous = p.fanout[i]
	}
	least := idxHead + fanoutLen + p.count()*(int64(p.format)+8) + 2*int64(p.format)
	if p.idxSize < least || p.idxSize > least+p.count()*8 {
		return corrupt("pack index of %d bytes for %d objects", p.idxSize, p.count())
	}
	var start [12]byte
	if err := readAt(p.data, start[:], 0); err != nil {
		return err
	}
	version := binary.BigEndian.Uint32(start[4:])
	if string(start[:4]) != "PACK" || (version != 2 && version != 3) {
		return corrupt("no pack of version 2 or 3")
	}
	if int64(binary.BigEndian.Uint32(start[8:])) != p.count() {
		return corrupt("pack and index differ in the number of objects")
	}
	p.size -= int64(p.format)
	return nil
}

func readAt(f *os.File, buf []byte, off int64) error {
	_, err := f.ReadAt(buf, off)
	if errors.Is(err, io.EOF) {
		return corrupt("%s: cut short", f.Name())
	}
	return err
}

// name returns the i-th name of the index.
func (p *pack) oid(i int64) (OID, error) {
	var id [SHA256]byte
	err := readAt(p.idx, id[:p.format], idxHead+fanoutLen+i*int64(p.format))
	return OID(id[:p.format]), err
}

// offset returns where the i-th object of the index begins.
func (p *pack) offset(i int64) (int64, error) {
	offsets := idxHead + fanoutLen + p.count()*(int64(p.format)+4) // behind names and CRCs
	var b [8]byte
	if err := readAt(p.idx, b[:4], offsets+i*4); err != nil {
		return 0, err
	}
	off := int64(binary.BigEndian.Uint32(b[:4]))
	if off&(1<<31) != 0 {
		at := offsets + p.count()*4 + (off&^(1<<31))*8
		if at+8 > p.idxSize-2*int64(p.format) {
			return 0, corrupt("pack index: large offset")
		}
		if err := readAt(p.idx, b[:], at); err != nil {
			return 0, err
		}
		large := binary.BigEndian.Uint64(b[:])
		if large > math.MaxInt64 {
			return 0, corrupt("pack index: large offset")
		}
		off = int64(large)
	}
	return off, nil
}

// find returns where an object begins.
func (p *pack) find(id OID) (off int64, ok bool, err error) {
	lo, hi := int64(0), int64(p.fanout[id[0]])
	if id[0] > 0 {
		lo = int64(p.fanout[id[0]-1])
	}
	for lo < hi {
		mid := (lo + hi) / 2
		at, err := p.oid(mid)
		if err != nil {
			return 0, false, err
		}
		switch c := strings.Compare(string(at), string(id)); {
		case c == 0:
			off, err := p.offset(mid)
			return off, err == nil, err
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false, nil
}

// The two kinds of delta in a pack.
const (
	ofsDelta Kind = 6
	refDelta Kind = 7
)

// packEntry is the head of one object in a pack.
type packEntry struct {
	kind    Kind
	size    int64 // inflated, of the object or its delta
	back    int64 // ofsDelta: how far before this one the base begins
	base    OID   // refDelta
	headLen int
}

// maxEntryHead is the most that parsePackEntry looks at.
const maxEntryHead = 10 + int(SHA256)

// parsePackEntry reads the head of an object in a pack.
func parsePackEntry(format Format, b []byte) (packEntry, error) {
	r := bytes.NewReader(b)
	short := corrupt("pack entry")
	c, err := r.ReadByte()
	if err != nil {
		return packEntry{}, short
	}
	e := packEntry{kind: Kind(c >> 4 & 7), size: int64(c & 15)}
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = r.ReadByte(); err != nil || shift > 53 {
			return packEntry{}, short
		}
		e.size |= int64(c&0x7f) << shift
	}
	switch e.kind {
	case Commit, Tree, Blob, Tag:
	case ofsDelta:
		back, n := offsetVarint(b[len(b)-r.Len():])
		if n == 0 {
			return packEntry{}, short
		}
		r.Seek(int64(n), io.SeekCurrent)
		e.back = int64(back)
	case refDelta:
		var id [SHA256]byte
		if _, err := io.ReadFull(r, id[:format]); err != nil {
			return packEntry{}, short
		}
		e.base = OID(id[:format])
	default:
		return packEntry{}, corrupt("pack entry of kind %d", e.kind)
	}
	e.headLen = len(b) - r.Len()
	return e, nil
}

func (p *pack) entry(off int64) (packEntry, error) {
	if off < 12 || off >= p.size {
		return packEntry{}, corrupt("offset %d outside of its pack", off)
	}
	var head [maxEntryHead]byte
	n := min(int64(len(head)), p.size-off)
	if err := readAt(p.data, head[:n], off); err != nil {
		return packEntry{}, err
	}
	return parsePackEntry(p.format, head[:n])
}
