package changeset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"hutch/internal/fsat"
)

// The files that this package writes start with a magic of 8 bytes, the last
// of which is the version, and end with a CRC-32C over all before it, most
// significant byte first. In between, numbers are varints and names are raw
// bytes after their length: JSON would mangle those that are not UTF-8.

// castagnoli makes its table when it is needed: 0.2 ms of every start otherwise.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

const sumSize = 4

var errCorrupt = errors.New("corrupt")

// encoder gathers the fields of a file.
type encoder struct {
	w   io.Writer
	buf []byte
	sum uint32
	err error
}

// flushSize is where the buffer is written out.
const flushSize = 64 << 10

func newEncoder(w io.Writer, magic string) *encoder {
	return &encoder{w: w, buf: append(make([]byte, 0, flushSize+8192), magic...)}
}

func (e *encoder) uint(v uint64)    { e.buf = binary.AppendUvarint(e.buf, v) }
func (e *encoder) int(v int64)      { e.buf = binary.AppendVarint(e.buf, v) }
func (e *encoder) byte(v byte)      { e.buf = append(e.buf, v) }
func (e *encoder) time(t fsat.Time) { e.int(t.Sec); e.int(t.Nsec) }

func (e *encoder) bool(v bool) {
	if v {
		e.byte(1)
	} else {
		e.byte(0)
	}
}

func (e *encoder) text(s string) {
	e.uint(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

// endRecord writes the buffer out when it is full.
func (e *encoder) endRecord() {
	if len(e.buf) >= flushSize {
		e.flush()
	}
}

func (e *encoder) flush() {
	e.sum = crc32.Update(e.sum, castagnoli(), e.buf)
	if e.err == nil {
		_, e.err = e.w.Write(e.buf)
	}
	e.buf = e.buf[:0]
}

// close writes the rest and the checksum.
func (e *encoder) close() error {
	e.flush()
	if e.err == nil {
		_, e.err = e.w.Write(binary.BigEndian.AppendUint32(nil, e.sum))
	}
	return e.err
}

// decoder takes the fields of a file apart. The first thing wrong ends it: all
// later fields are zero.
type decoder struct {
	rest string // a string, so that names need no copy of their own
	err  error
}

func newDecoder(r io.Reader, magic string) (*decoder, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if len(data) < len(magic)+sumSize {
		return nil, fmt.Errorf("%w: %d bytes are too few", errCorrupt, len(data))
	}
	if got := string(data[:len(magic)]); got != magic {
		if got[:len(magic)-1] == magic[:len(magic)-1] {
			return nil, fmt.Errorf("version %d is not %d, the one that this hutch knows", got[len(magic)-1], magic[len(magic)-1])
		}
		return nil, fmt.Errorf("%w: it starts with %q", errCorrupt, got)
	}
	body, sum := data[:len(data)-sumSize], data[len(data)-sumSize:]
	if crc32.Checksum(body, castagnoli()) != binary.BigEndian.Uint32(sum) {
		return nil, fmt.Errorf("%w: the checksum does not match", errCorrupt)
	}
	return &decoder{rest: string(body[len(magic):])}, nil
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
	}
	d.rest = ""
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.fail("it ends early")
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) uint() uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := d.byte()
		if shift == 63 && b > 1 {
			d.fail("a number is too large")
			return 0
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v
		}
	}
}

func (d *decoder) int() int64 {
	v := d.uint()
	return int64(v>>1) ^ -int64(v&1)
}

func (d *decoder) uint32() uint32 {
	v := d.uint()
	if v > 1<<32-1 {
		d.fail("a number is too large")
	}
	return uint32(v)
}

func (d *decoder) bool() bool {
	b := d.byte()
	if b > 1 {
		d.fail("%d is no truth value", b)
	}
	return b == 1
}

func (d *decoder) time() fsat.Time {
	t := fsat.Time{Sec: d.int(), Nsec: d.int()}
	if t.Nsec < 0 || t.Nsec >= 1e9 {
		d.fail("a time has %d nanoseconds", t.Nsec)
	}
	return t
}

func (d *decoder) text() string {
	n := d.uint()
	if n > uint64(len(d.rest)) {
		d.fail("it ends early")
		return ""
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

// count reads how many records of at least size bytes follow: never more than
// there is room for.
func (d *decoder) count(size int) int {
	n := d.uint()
	if n > uint64(len(d.rest)/size) {
		d.fail("it ends early")
		return 0
	}
	return int(n)
}

// path reads a clean relative path.
func (d *decoder) path() string {
	s := d.text()
	if d.err == nil {
		if err := fsat.Check(s); err != nil {
			d.fail("%v", err)
		}
	}
	return s
}

// end checks that nothing follows.
func (d *decoder) end() error {
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes follow the end", len(d.rest))
	}
	return d.err
}
