package changeset

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
)

// writeBinary writes a change of bytes as git apply takes it (gitformat-pack(5)
// for deltas, git's base85 for the lines): how to make after from before, then
// the way back.
func writeBinary(w *bufio.Writer, before, after []byte) {
	w.WriteString("GIT binary patch\n")
	for _, way := range [][2][]byte{{before, after}, {after, before}} {
		from, to := way[0], way[1]
		kind, size, data := "literal", len(to), deflate(to)
		if d := delta(from, to); d != nil {
			if small := deflate(d); len(small) < len(data) {
				kind, size, data = "delta", len(d), small
			}
		}
		fmt.Fprintf(w, "%s %d\n", kind, size)
		writeBase85(w, data)
		w.WriteByte('\n')
	}
}

func deflate(data []byte) []byte {
	var buf bytes.Buffer
	z := zlib.NewWriter(&buf)
	_, _ = z.Write(data) // a buffer takes everything
	_ = z.Close()
	return buf.Bytes()
}

// delta is git's delta from one content to another that keeps what both start
// and end with; nil when that is nothing.
func delta(from, to []byte) []byte {
	limit := min(len(from), len(to))
	head := 0
	for head < limit && from[head] == to[head] {
		head++
	}
	tail := 0
	for tail < limit-head && from[len(from)-1-tail] == to[len(to)-1-tail] {
		tail++
	}
	if head+tail == 0 {
		return nil
	}
	d := binary.AppendUvarint(nil, uint64(len(from)))
	d = binary.AppendUvarint(d, uint64(len(to)))
	d = appendCopy(d, 0, head)
	for middle := to[head : len(to)-tail]; len(middle) > 0; {
		n := min(len(middle), 127)
		d = append(append(d, byte(n)), middle[:n]...)
		middle = middle[n:]
	}
	return appendCopy(d, len(from)-tail, tail)
}

// appendCopy appends the instructions that copy n bytes from at.
func appendCopy(d []byte, at, n int) []byte {
	for n > 0 {
		size := min(n, 0xffff)
		d = append(d, 0x80|0x0f|0x30, byte(at), byte(at>>8), byte(at>>16), byte(at>>24), byte(size), byte(size>>8))
		at += size
		n -= size
	}
	return d
}

const base85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

// writeBase85 writes lines of up to 52 bytes, the length of each before it.
func writeBase85(w *bufio.Writer, data []byte) {
	for len(data) > 0 {
		n := min(len(data), 52)
		if n <= 26 {
			w.WriteByte(byte('A' + n - 1))
		} else {
			w.WriteByte(byte('a' + n - 27))
		}
		var line [52]byte
		copy(line[:], data[:n])
		for at := 0; at < n; at += 4 {
			v := binary.BigEndian.Uint32(line[at:])
			var digits [5]byte
			for i := 4; i >= 0; i-- {
				digits[i] = base85[v%85]
				v /= 85
			}
			w.Write(digits[:])
		}
		w.WriteByte('\n')
		data = data[n:]
	}
}
