package client

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// served is a frame as a server writes it; first is its first byte.
func served(first byte, payload string) string {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return string(b) + payload
}

func TestMessages(t *testing.T) {
	long := strings.Repeat("é", 40000)
	for _, c := range []struct {
		name, frames string
		text         bool
		data         string
		pings        string
		code         int    // that tells the other end what it did wrong
		fails        string // in the error
	}{
		{"a text", served(0x81, "hello"), true, "hello", "", 0, ""},
		{"bytes", served(0x82, "\x01\xff\x00"), false, "\x01\xff\x00", "", 0, ""},
		{"of 126 bytes", served(0x82, strings.Repeat("x", 126)), false, strings.Repeat("x", 126), "", 0, ""},
		{"of 80000 bytes", served(0x81, long), true, long, "", 0, ""},
		{"empty", served(0x81, ""), true, "", "", 0, ""},
		{"in parts, within a character", served(0x01, "a\xc3") + served(0x00, "\xa9") + served(0x80, "b"), true, "aéb", "", 0, ""},
		{"with a ping in between", served(0x01, "a") + served(0x89, "are you there") + served(0x80, "b"), true, "ab", "are you there", 0, ""},
		{"after a pong that nobody asked for", served(0x8a, "x") + served(0x81, "a"), true, "a", "", 0, ""},

		{"a close", served(0x88, "\x03\xe8bye"), false, "", "", 0, "1000 bye"},
		{"a close of no code", served(0x88, ""), false, "", "", 0, "1005"},
		{"half a close", served(0x88, "\x03"), false, "", "", 1002, "half a code"},
		{"a close of a reserved code", served(0x88, "\x03\xed"), false, "", "", 1002, "code 1005"},
		{"a close with no text", served(0x88, "\x03\xe8\xff"), false, "", "", 1007, "UTF-8"},
		{"no text", served(0x81, "a\xff"), false, "", "", 1007, "UTF-8"},
		{"half a character", served(0x01, "a\xc3") + served(0x80, ""), false, "", "", 1007, "UTF-8"},
		{"reserved bits", served(0xc1, "a"), false, "", "", 1002, "reserved"},
		{"an unknown kind", served(0x83, "a"), false, "", "", 1002, "kind 3"},
		{"an unknown control", served(0x8b, "a"), false, "", "", 1002, "kind 11"},
		{"a continuation of nothing", served(0x80, "a"), false, "", "", 1002, "out of order"},
		{"a message within another", served(0x01, "a") + served(0x81, "b"), false, "", "", 1002, "out of order"},
		{"a ping in parts", served(0x09, "a"), false, "", "", 1002, "control frame"},
		{"a long ping", served(0x89, strings.Repeat("x", 126)), false, "", "", 1002, "control frame"},
		{"a masked frame", "\x81\x81\x00\x00\x00\x00a", false, "", "", 1002, "masked"},
		{"a length in two bytes for one", "\x82\x7e\x00\x05hello", false, "", "", 1002, "shortest"},
		{"a length in eight for two", "\x82\x7f\x00\x00\x00\x00\x00\x00\x00\x7fhello", false, "", "", 1002, "shortest"},
		{"a negative length", "\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff", false, "", "", 1002, "shortest"},
		{"a huge length", "\x82\x7f\x00\x00\x7f\xff\xff\xff\xff\xff", false, "", "", 1009, "longer than"},
		{"too much in parts", served(0x02, strings.Repeat("x", 60000)) + served(0x00, strings.Repeat("x", 60000)), false, "", "", 1009, "longer than"},
		{"cut in a head", "\x81", false, "", "", 0, "EOF"},
		{"cut in a length", "\x81\x7e\x00", false, "", "", 0, "unexpected EOF"},
		{"cut in a payload", "\x81\x05hel", false, "", "", 0, "unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pings := ""
			text, data, err := readMessage(bufio.NewReader(strings.NewReader(c.frames)), 100000, func(op byte, p []byte) {
				if op == opPing {
					pings += string(p)
				}
			})
			if text != c.text || string(data) != c.data || pings != c.pings {
				t.Errorf("%v %.20q, pings %q", text, data, pings)
			}
			if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("error %v, want one with %q", err, c.fails)
			}
			var wrong *protocolError
			if code := 0; errors.As(err, &wrong) != (c.code != 0) || wrong != nil && wrong.code != c.code {
				t.Errorf("the other end is told %d (%v), want %d", code, wrong, c.code)
			}
		})
	}
}

// unmask reads a frame as a server does.
func unmask(b []byte) (op byte, payload, rest []byte, err error) {
	if len(b) < 6 || b[0]&0xf0 != 0x80 || b[1]&0x80 == 0 {
		return 0, nil, nil, errors.New("no whole, masked frame")
	}
	op, n, b := b[0]&0x0f, uint64(b[1]&0x7f), b[2:]
	switch n {
	case 126:
		n, b = uint64(binary.BigEndian.Uint16(b)), b[2:]
	case 127:
		n, b = binary.BigEndian.Uint64(b), b[8:]
	}
	mask, b := b[:4], b[4:]
	if uint64(len(b)) < n {
		return 0, nil, nil, io.ErrUnexpectedEOF
	}
	payload = bytes.Clone(b[:n])
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return op, payload, b[n:], nil
}

func TestFramesOfOursAreMasked(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 125, 126, 127, 65535, 65536, 70000} {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(rand.Uint32())
		}
		mask := [4]byte{1, 2, 3, 4}
		b := appendFrame([]byte("before"), opBinary, payload, mask)
		op, got, rest, err := unmask(b[len("before"):])
		if op != opBinary || !bytes.Equal(got, payload) || len(rest) > 0 || err != nil {
			t.Errorf("%d bytes: %d, %d bytes and %d more, %v", n, op, len(got), len(rest), err)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		served(0x81, "hello"), served(0x01, "a") + served(0x89, "p") + served(0x80, "b"), served(0x88, "\x03\xe8bye"), "\x82\x7f\x00\x00\x00\x00\x7f\xff\xff\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const most = 1000
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			control := 0
			_, data, err := readMessage(r, most, func(op byte, p []byte) {
				if control++; op < opClose || len(p) > 125 {
					t.Fatalf("control frame %d of %d bytes", op, len(p))
				}
			})
			if len(data) > most {
				t.Fatalf("a message of %d bytes", len(data))
			}
			if err != nil {
				return
			}
		}
	})
}
