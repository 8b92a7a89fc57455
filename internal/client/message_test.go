package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/iotest"
)

// answered reads an answer whole, as exchange does.
func answered(r io.Reader, method string) (status int, body string, err error) {
	br := bufio.NewReader(r)
	h, err := readHead(br)
	if err != nil {
		return 0, "", err
	}
	b, err := h.body(br, method)
	if err != nil {
		return h.status, "", err
	}
	text, err := io.ReadAll(b)
	return h.status, string(text), err
}

func TestAnswers(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		name, text string
		method     string
		status     int
		body       string
		fails      string // in the error; "" is none
	}{
		{"of a length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more", "GET", 200, "hello", ""},
		{"of no length", "HTTP/1.1 200 OK\r\nX: y\r\n\r\nto the end", "GET", 200, "to the end", ""},
		{"without a phrase", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "GET", 200, "", ""},
		{"with line feeds alone", "HTTP/1.1 200 OK\ncontent-length:\t2 \n\nok", "GET", 200, "ok", ""},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", "GET", 200, "abc0123456789", ""},
		{"chunked and empty", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET", 200, "", ""},
		{"of HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", 200, "", ""},
		{"without content", "HTTP/1.1 204 No Content\r\n\r\nnot read", "GET", 204, "", ""},
		{"a long field", "HTTP/1.1 200 OK\r\nX: " + long + "\r\nContent-Length: 1\r\n\r\ny", "GET", 200, "y", ""},
		{"one length twice", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\ny", "GET", 200, "y", ""},

		{"cut in its length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "GET", 200, "hel", "unexpected EOF"},
		{"cut in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "GET", 200, "hel", "unexpected EOF"},
		{"cut after a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", "GET", 200, "hel", "unexpected EOF"},
		{"cut before the last line", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "GET", 200, "", "unexpected EOF"},
		{"cut in its head", "HTTP/1.1 200 OK\r\nContent-", "GET", 0, "", "unexpected EOF"},
		{"empty", "", "GET", 0, "", "unexpected EOF"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nyy", "GET", 0, "", "two lengths"},
		{"chunked with a length", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "GET", 200, "", "both chunked"},
		{"an unknown coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "GET", 200, "", "transfer encoding"},
		{"a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "GET", 200, "", "length"},
		{"a signed length", "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx", "GET", 200, "", "length"},
		{"a huge length", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "GET", 200, "", "length"},
		{"an empty length", "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", "GET", 200, "", "length"},
		{"a chunk with more", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "GET", 200, "abc", "longer than it says"},
		{"no size of a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", "GET", 200, "", "size of a chunk"},
		{"a negative chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "GET", 200, "", "size of a chunk"},
		{"a huge chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "GET", 200, "", "size of a chunk"},
		{"another protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "GET", 0, "", "begins with"},
		{"a version to come", "HTTP/2.0 200 OK\r\n\r\n", "GET", 0, "", "begins with"},
		{"no status", "HTTP/1.1 OK\r\n\r\n", "GET", 0, "", "begins with"},
		{"a long status", "HTTP/1.1 2000 OK\r\n\r\n", "GET", 0, "", "begins with"},
		{"a folded field", "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", "GET", 0, "", "field"},
		{"a space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\n", "GET", 0, "", "field"},
		{"a return within a line", "HTTP/1.1 200 OK\r\nX: y\rContent-Length: 1\r\n\r\n", "GET", 0, "", "control"},
		{"an endless head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+long+"\r\n", 14) + "\r\n", "GET", 0, "", "longer"},
		{"an endless line", "HTTP/1.1 200 " + strings.Repeat("x", 70000), "GET", 0, "", "longer"},
		{"endless trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: "+long+"\r\n", 14) + "\r\n", "GET", 200, "", "longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(c.text), iotest.OneByteReader(strings.NewReader(c.text))} {
				status, body, err := answered(r, c.method)
				if status != c.status || body != c.body {
					t.Errorf("%d %q, want %d %q", status, body, c.status, c.body)
				}
				if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
					t.Errorf("error %v, want one with %q", err, c.fails)
				}
			}
		})
	}
}

// What is written in chunks is read back by another reader of chunks, and by
// ours.
func TestChunksAreReadByOthers(t *testing.T) {
	var wire bytes.Buffer
	w := chunks{bufio.NewWriter(&wire)}
	for _, part := range []string{"a", "", strings.Repeat("b", 100000), "\r\n"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := "a" + strings.Repeat("b", 100000) + "\r\n"
	theirs, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(wire.Bytes())))
	if string(theirs) != want || err != nil {
		t.Errorf("net/http reads %d bytes, %v", len(theirs), err)
	}
	ours, err := io.ReadAll(&chunked{r: bufio.NewReader(bytes.NewReader(wire.Bytes()))})
	if string(ours) != want || err != nil {
		t.Errorf("we read %d bytes, %v", len(ours), err)
	}
}

// Whatever a daemon answers is read or refused, without a panic and without
// memory beyond what came; where net/http takes it whole too, both read the same.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.0 404 Not\r\n\r\n{}", "HTTP/1.1 204 No\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7fffffffffffffff\r\n",
	} {
		f.Add(s, "GET")
	}
	f.Fuzz(func(t *testing.T, text, method string) {
		status, body, err := answered(strings.NewReader(text), method)
		if len(body) > len(text) {
			t.Fatalf("%d bytes of %d", len(body), len(text))
		}
		if err != nil || method != "GET" {
			return
		}
		theirs, herr := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), &http.Request{Method: method})
		if herr != nil {
			return // it is stricter elsewhere, as about names of fields
		}
		other, herr := io.ReadAll(theirs.Body)
		if herr == nil && (theirs.StatusCode != status || string(other) != body) {
			t.Errorf("we read %d %q, net/http %d %q", status, body, theirs.StatusCode, other)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add("{}\n{\"a\":1}\n")
	f.Add("half")
	f.Fuzz(func(t *testing.T, text string) {
		var seen strings.Builder
		err := readLines(strings.NewReader(text), 1000, func(line []byte) error {
			if len(line) > 1000 || bytes.IndexByte(line, '\n') != len(line)-1 {
				t.Fatalf("no line: %q", line)
			}
			seen.Write(line)
			return nil
		})
		if !strings.HasPrefix(text, seen.String()) || err == nil && seen.String() != text {
			t.Errorf("lines of %q are %q, %v", text, seen.String(), err)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) && strings.HasSuffix(text, "\n") {
			t.Errorf("%q was not cut", text)
		}
	})
}
