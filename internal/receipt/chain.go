package receipt

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/zeebo/blake3"
)

// entry is one line as scan finds it: a receipt or repair, or with err what is
// neither.
type entry struct {
	repair
	err  error
	line int    // from 1
	text []byte // all its bytes, the newline included; valid until the next line
}

// scan calls next for each line of r, until it returns false. A line longer
// than MaxLine comes in pieces that are not receipts, with one line number.
func scan(r io.Reader, next func(entry) bool) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var text []byte
	line, long := 1, false
	for {
		part, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return err
		}
		text = append(text, part...)
		if errors.Is(err, bufio.ErrBufferFull) && len(text) <= MaxLine {
			continue
		}
		if len(text) > 0 {
			e := entry{line: line, text: text}
			whole := bytes.TrimSuffix(text, []byte("\n"))
			switch {
			case long || len(whole) > MaxLine:
				e.err = errors.New("longer than any receipt")
			default:
				e.repair, e.err = parse(whole)
			}
			if !next(e) {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		long = err != nil
		if !long {
			line++
		}
		text = text[:0]
	}
}

// chain checks that every line continues the one before.
type chain struct {
	sound  int
	broken int
	reason string

	prev      string // hash of the last receipt or repair; "" before the first
	torn      *blake3.Hasher
	tornBytes int64
	tornLine  int
	tornErr   error
}

func (c *chain) next(e entry) bool {
	if e.err != nil {
		if c.tornBytes == 0 {
			c.torn, c.tornLine, c.tornErr = blake3.New(), e.line, e.err
		}
		c.torn.Write(e.text)
		c.tornBytes += int64(len(e.text))
		return true
	}
	if c.prev == "" {
		c.prev = Genesis
	}
	isRepair := e.Schema == RepairSchema
	switch {
	case !e.sealed:
		return c.fail(e.line, "its seal is not the hash of its content: it was changed")
	case c.tornBytes > 0 && !isRepair:
		return c.fail(c.tornLine, c.tornErr.Error())
	case c.tornBytes == 0 && isRepair:
		return c.fail(e.line, "a repair of nothing: the torn bytes before it are gone")
	case isRepair && (e.TornBytes != c.tornBytes || e.Torn != sum(c.torn)):
		return c.fail(c.tornLine, "the torn bytes are not those that the repair on line "+fmt.Sprint(e.line)+" names")
	case e.Prev != c.prev:
		return c.fail(e.line, "its prev is not the hash of the receipt before: that one was changed, or one was dropped or inserted")
	}
	c.prev = e.Hash
	c.tornBytes = 0
	c.sound++
	return true
}

// end is called after the last line.
func (c *chain) end() {
	if c.broken == 0 && c.tornBytes > 0 {
		c.fail(c.tornLine, c.tornErr.Error()+" (the last append was cut short; the next one repairs it)")
	}
}

func (c *chain) fail(line int, reason string) bool {
	c.broken, c.reason = line, reason
	return false
}

func sum(h *blake3.Hasher) string {
	return fmt.Sprintf("blake3:%x", h.Sum(nil))
}

// tail is what the end of the log says to the next append.
type tail struct {
	prev       string // hash of the last receipt or repair, or Genesis
	terminated bool   // the log is empty or ends in a newline
	torn       string // hash of all bytes after that receipt, a newline at the end included
	tornBytes  int64
}

// tailChunk is read at first: enough for the usual last line.
const tailChunk = 8 << 10

// readTail finds the last receipt of a log of size bytes. It reads backwards,
// so that the cost is that of the last line whatever the size of the log.
func readTail(r io.ReaderAt, size int64) (tail, error) {
	end := tail{prev: Genesis, terminated: true}
	if size == 0 {
		return end, nil
	}
	var buf []byte
	at := -1
	for chunk := int64(tailChunk); ; chunk *= 4 {
		start := max(0, size-chunk)
		buf = make([]byte, size-start)
		if _, err := r.ReadAt(buf, start); err != nil {
			return tail{}, fmt.Errorf("read the last receipt: %w", err)
		}
		if at = lastReceipt(buf, start == 0); at >= 0 || start == 0 {
			break
		}
		if chunk >= 4*MaxLine {
			return tail{}, fmt.Errorf("the last %d bytes of the log hold no receipt; move the file aside and a new one is begun", chunk)
		}
	}
	end.terminated = buf[len(buf)-1] == '\n'
	rest := buf
	if at >= 0 {
		line, after, _ := bytes.Cut(buf[at:], []byte("\n"))
		end.prev, rest = digest(line), after
	}
	if len(rest) > 0 {
		h := blake3.New()
		h.Write(rest)
		end.tornBytes = int64(len(rest))
		if !end.terminated {
			h.Write([]byte("\n"))
			end.tornBytes++
		}
		end.torn = sum(h)
	}
	return end, nil
}

// lastReceipt returns where in buf the last whole receipt begins, or -1. The
// first line of buf counts only when the log begins there.
func lastReceipt(buf []byte, whole bool) int {
	for stop := len(buf); stop > 0; {
		line := bytes.TrimSuffix(buf[:stop], []byte("\n"))
		start := bytes.LastIndexByte(line, '\n') + 1
		if start == 0 && !whole {
			return -1
		}
		if line = line[start:]; len(line) <= MaxLine {
			if _, err := parse(line); err == nil {
				return start
			}
		}
		stop = start
	}
	return -1
}

// pick finds the newest receipt with an id, or with the one id that begins
// with it.
func pick(all []Receipt, id string) (Receipt, error) {
	var found *Receipt
	for i := range all {
		r := &all[len(all)-1-i]
		if r.ID == id {
			return *r, nil
		}
		if found == nil && strings.HasPrefix(r.ID, id) {
			found = r
		}
	}
	if found == nil {
		return Receipt{}, fmt.Errorf("%q: %w", id, ErrNotFound)
	}
	for _, r := range all {
		if r.ID != found.ID && strings.HasPrefix(r.ID, id) {
			return Receipt{}, fmt.Errorf("%q could be receipt %s or %s; give more of it", id, found.ID, r.ID)
		}
	}
	return *found, nil
}
