package client

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1" // RFC 6455 proves with it that the other end speaks the protocol; nothing rests on its strength
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"unicode/utf8"
)

// The opcodes of RFC 6455, section 5.2.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa
)

// The codes of a close frame that we send, and one that stands for none.
const (
	closeNormal   = 1000
	closeProtocol = 1002
	closeNoStatus = 1005
	closeNotUTF8  = 1007
	closeTooBig   = 1009
)

// maxMessage bounds a message, in bytes: an outcome carries up to 10 MiB a
// stream, which JSON and base64 lengthen.
const maxMessage = 128 << 20

// websocket is the client's end of a WebSocket.
type websocket struct {
	conn    net.Conn
	release func() bool
	r       *bufio.Reader

	mu     sync.Mutex // of writing: one frame at a time
	closed bool       // our close frame is out

	pongs chan []byte // the answer to the last ping
	ended chan struct{}
	once  sync.Once
}

// closedError is the close frame of the other end.
type closedError struct {
	code   int
	reason string
}

func (e *closedError) Error() string {
	return fmt.Sprintf("hutchd closed the connection: %d %s", e.code, e.reason)
}

// websocket opens one.
func (c *Client) websocket(ctx context.Context, path string, query url.Values) (*websocket, error) {
	var nonce [16]byte
	rand.Read(nonce[:]) // never fails
	key := base64.StdEncoding.EncodeToString(nonce[:])
	a, err := c.do(ctx, request{method: "GET", path: path, query: query, upgrade: "websocket", key: key})
	if err != nil {
		return nil, err
	}
	switch {
	case a.status != 101, !strings.EqualFold(a.fields["upgrade"], "websocket"), !holdsWord(a.fields["connection"], "upgrade"):
		err = broken("it does not change to a WebSocket")
	case a.fields["sec-websocket-accept"] != acceptKey(key):
		err = broken("its key does not fit")
	case a.fields["sec-websocket-extensions"] != "", a.fields["sec-websocket-protocol"] != "":
		err = broken("it wants an extension that nobody asked for")
	}
	if err != nil {
		a.Close()
		return nil, err
	}
	w := &websocket{conn: a.conn, release: a.release, r: a.Reader.(*bufio.Reader), pongs: make(chan []byte, 1), ended: make(chan struct{})}
	go w.pong()
	return w, nil
}

func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func holdsWord(list, word string) bool {
	for one := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.TrimSpace(one), word) {
			return true
		}
	}
	return false
}

// message returns the next text or binary message, and answers pings meanwhile.
// The close frame of the other end is a *closedError. One goroutine may read.
func (w *websocket) message() (text bool, data []byte, err error) {
	text, data, err = readMessage(w.r, maxMessage, func(op byte, payload []byte) {
		if op != opPing {
			return
		}
		// Only the last ping needs an answer, which must not wait for what is
		// being written: then nobody would read what the other end writes.
		select {
		case <-w.pongs:
		default:
		}
		select {
		case w.pongs <- payload:
		default:
		}
	})
	var wrong *protocolError
	var closed *closedError
	switch {
	case errors.As(err, &wrong):
		_ = w.sendClose(wrong.code) // the error is told already
	case errors.As(err, &closed):
		_ = w.sendClose(closed.code)
	}
	return text, data, err
}

func (w *websocket) pong() {
	for {
		select {
		case payload := <-w.pongs:
			if w.write(opPong, payload) != nil {
				return
			}
		case <-w.ended:
			return
		}
	}
}

// write sends one unfragmented message, or a control frame.
func (w *websocket) write(op byte, payload []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return net.ErrClosed
	}
	return w.writeLocked(op, payload)
}

func (w *websocket) writeLocked(op byte, payload []byte) error {
	var mask [4]byte
	rand.Read(mask[:]) // never fails
	_, err := w.conn.Write(appendFrame(nil, op, payload, mask))
	return err
}

// sendClose sends our close frame, once.
func (w *websocket) sendClose(code int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if code == closeNoStatus {
		return w.writeLocked(opClose, nil)
	}
	return w.writeLocked(opClose, binary.BigEndian.AppendUint16(nil, uint16(code)))
}

// Close ends the connection without waiting for the other end.
func (w *websocket) Close() error {
	w.once.Do(func() { close(w.ended) })
	w.release()
	return w.conn.Close()
}

// appendFrame appends a frame of a client: whole, and masked, which keeps what a
// box wrote from reading like another protocol to whoever is in between.
func appendFrame(dst []byte, op byte, payload []byte, mask [4]byte) []byte {
	dst = append(dst, 0x80|op)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, 0x80|byte(n))
	case n <= 0xffff:
		dst = binary.BigEndian.AppendUint16(append(dst, 0x80|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 0x80|127), uint64(n))
	}
	dst = append(dst, mask[:]...)
	from := len(dst)
	dst = append(dst, payload...)
	for i := range payload {
		dst[from+i] ^= mask[i&3]
	}
	return dst
}

// protocolError is what the other end did wrong, and the code that tells it so.
type protocolError struct {
	code int
	err  error
}

func (e *protocolError) Error() string { return e.err.Error() }

func wrong(code int, format string, args ...any) error {
	return &protocolError{code, broken(format, args...)}
}

// readMessage reads the frames of one message of a server. Control frames that
// come in between go to control; a close frame is a *closedError.
func readMessage(r *bufio.Reader, most int, control func(op byte, payload []byte)) (text bool, data []byte, err error) {
	begun := false
	for {
		f, err := readFrame(r, most-len(data))
		if err != nil {
			return false, nil, err
		}
		switch {
		case f.op == opClose:
			return false, nil, readClose(f.payload)
		case f.op >= opClose:
			control(f.op, f.payload)
			continue
		case (f.op == opContinuation) != begun:
			return false, nil, wrong(closeProtocol, "a frame of a message is out of order")
		case !begun:
			text, begun = f.op == opText, true
		}
		data = append(data, f.payload...)
		if !f.last {
			continue
		}
		if text && !utf8.Valid(data) {
			return false, nil, wrong(closeNotUTF8, "a text is not UTF-8")
		}
		return text, data, nil
	}
}

// frame is one frame of a server.
type frame struct {
	op      byte
	last    bool
	payload []byte
}

// readFrame reads one frame; most bounds the payload of a data frame.
func readFrame(r *bufio.Reader, most int) (*frame, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	f := &frame{op: head[0] & 0x0f, last: head[0]&0x80 != 0}
	size := uint64(head[1] & 0x7f)
	switch {
	case head[0]&0x70 != 0:
		return nil, wrong(closeProtocol, "a frame has reserved bits")
	case head[1]&0x80 != 0:
		return nil, wrong(closeProtocol, "a frame of a server is masked")
	case f.op > opBinary && f.op < opClose, f.op > opPong:
		return nil, wrong(closeProtocol, "a frame is of kind %d", f.op)
	case f.op >= opClose && (!f.last || size > 125):
		return nil, wrong(closeProtocol, "a control frame is too long, or in parts")
	}
	least := uint64(0)
	var long [8]byte
	switch size {
	case 126:
		if _, err := io.ReadFull(r, long[6:]); err != nil {
			return nil, cutFrame(err)
		}
		least = 126
	case 127:
		if _, err := io.ReadFull(r, long[:]); err != nil {
			return nil, cutFrame(err)
		}
		least = 1 << 16
	}
	if least > 0 {
		if size = binary.BigEndian.Uint64(long[:]); size < least || size > 1<<63-1 {
			return nil, wrong(closeProtocol, "the length of a frame is not in its shortest form")
		}
	}
	if size > uint64(max(most, 0)) && f.op < opClose {
		return nil, wrong(closeTooBig, "a message is longer than %d bytes", maxMessage)
	}
	// Memory follows what comes, not what is announced.
	for left := int(size); left > 0; {
		part := min(left, 64<<10)
		from := len(f.payload)
		f.payload = append(f.payload, make([]byte, part)...)
		if _, err := io.ReadFull(r, f.payload[from:]); err != nil {
			return nil, cutFrame(err)
		}
		left -= part
	}
	return f, nil
}

func cutFrame(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func readClose(payload []byte) error {
	if len(payload) == 0 {
		return &closedError{code: closeNoStatus}
	}
	if len(payload) == 1 {
		return wrong(closeProtocol, "a close frame holds half a code")
	}
	code := int(binary.BigEndian.Uint16(payload))
	if !utf8.Valid(payload[2:]) {
		return wrong(closeNotUTF8, "the reason of a close frame is not UTF-8")
	}
	if code < 1000 || code >= 5000 || code == 1004 || code == closeNoStatus || code == 1006 || code == 1015 {
		return wrong(closeProtocol, "a close frame has the code %d", code)
	}
	return &closedError{code, string(payload[2:])}
}
