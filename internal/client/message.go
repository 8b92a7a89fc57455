package client

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxHead bounds the head of an answer, and each line of a chunked body that is
// not data, in bytes.
const maxHead = 64 << 10

// head is the first part of an answer. Names of fields are in lower case.
type head struct {
	status int
	fields map[string]string
}

// readHead reads a status line and the fields that follow.
func readHead(r *bufio.Reader) (*head, error) {
	left := maxHead
	line, err := readLine(r, &left)
	if err != nil {
		return nil, err
	}
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if version != "HTTP/1.1" && version != "HTTP/1.0" || len(code) != 3 || err != nil || status < 100 {
		return nil, broken("it begins with %q", clip(line))
	}
	h := &head{status: status, fields: map[string]string{}}
	for {
		line, err := readLine(r, &left)
		if err != nil {
			return nil, err
		}
		if line == "" {
			return h, nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !token(name) {
			return nil, broken("a field of its head is %q", clip(line))
		}
		name, value = strings.ToLower(name), strings.Trim(value, " \t")
		if before, twice := h.fields[name]; twice {
			if name == "content-length" && before != value {
				return nil, broken("it has two lengths")
			}
			if name != "content-length" {
				value = before + ", " + value
			}
		}
		h.fields[name] = value
	}
}

// readLine reads a line and its end, which takes from what is left of a budget.
func readLine(r *bufio.Reader, left *int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if *left -= len(part); *left < 0 {
			return "", broken("its head is longer than %d bytes", maxHead)
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) {
			return "", io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		text := strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r")
		if strings.ContainsAny(text, "\r\x00") {
			return "", broken("a line holds a control character")
		}
		return text, nil
	}
}

// token reports whether s can be the name of a field.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// body returns the reader of what follows a head. It ends with io.EOF where the
// message says that it ends, and with io.ErrUnexpectedEOF where it was cut.
func (h *head) body(r *bufio.Reader, method string) (io.Reader, error) {
	length, sized := h.fields["content-length"]
	coding, coded := h.fields["transfer-encoding"]
	switch {
	case method == "HEAD", h.status == 204, h.status == 304, h.status < 200:
		return strings.NewReader(""), nil
	case coded && sized:
		// Who reads the one and who reads the other would disagree on where
		// the answer ends.
		return nil, broken("it is both chunked and of a length")
	case coded:
		if !strings.EqualFold(coding, "chunked") {
			return nil, broken("its transfer encoding is %q", clip(coding))
		}
		return &chunked{r: r}, nil
	case sized:
		n, err := strconv.ParseInt(length, 10, 64)
		if err != nil || n < 0 || length[0] == '+' {
			return nil, broken("its length is %q", clip(length))
		}
		return &counted{r: r, left: n}, nil
	}
	return r, nil
}

// counted reads a body of a length.
type counted struct {
	r    io.Reader
	left int64
}

func (c *counted) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if c.left > 0 && errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if c.left == 0 {
		err = nil
	}
	return n, err
}

// chunked reads a chunked body.
type chunked struct {
	r     *bufio.Reader
	left  int64 // of the chunk
	begun bool
	err   error
}

func (c *chunked) Read(p []byte) (int, error) {
	if c.left == 0 && c.err == nil {
		c.err = c.next()
	}
	if c.err != nil || len(p) == 0 {
		return 0, c.err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.err = err
	return n, err
}

// next reads up to the data of the next chunk; io.EOF is after the last.
func (c *chunked) next() error {
	left := maxHead
	if c.begun {
		if line, err := readLine(c.r, &left); err != nil {
			return err
		} else if line != "" {
			return broken("a chunk is longer than it says")
		}
	}
	c.begun = true
	line, err := readLine(c.r, &left)
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(line, ";")
	size = strings.TrimRight(size, " \t")
	n, err := strconv.ParseUint(size, 16, 63)
	if err != nil || size[0] == '+' {
		return broken("the size of a chunk is %q", clip(line))
	}
	if c.left = int64(n); n > 0 {
		return nil
	}
	for { // trailers say nothing to us
		line, err := readLine(c.r, &left)
		if err != nil {
			return err
		}
		if line == "" {
			return io.EOF
		}
	}
}

// chunks writes what it is given as chunks.
type chunks struct{ w *bufio.Writer }

func (c chunks) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // a chunk of none would be the end
	}
	fmt.Fprintf(c.w, "%x\r\n", len(p))
	c.w.Write(p)
	c.w.WriteString("\r\n")
	if err := c.w.Flush(); err != nil { // what waits, waits for its next part
		return 0, err
	}
	return len(p), nil
}

func (c chunks) Close() error {
	c.w.WriteString("0\r\n\r\n")
	return c.w.Flush()
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
