package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"

	"hutch/internal/api"
)

// request is one question.
type request struct {
	method, path string
	query        url.Values
	accept       string    // "" is application/json
	json         any       // a body, written as JSON
	stream       io.Reader // or one of unknown length, of bytes
	upgrade      string    // the protocol to change to
	key          string    // of a WebSocket
}

// answer is what came back, with a status below 300, or 101.
type answer struct {
	*head
	io.Reader // the body
	conn      net.Conn
	release   func() bool
}

// Close ends the connection, however much of the body was read.
func (a *answer) Close() error {
	a.release()
	return a.conn.Close()
}

// do asks, and returns the beginning of the answer; what the daemon refuses is
// an *api.Error. When ctx ends, so does the connection.
func (c *Client) do(ctx context.Context, q request) (*answer, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	release := context.AfterFunc(ctx, func() { conn.Close() })
	a, err := c.exchange(conn, q)
	if err != nil {
		release()
		conn.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	a.release = release
	return a, nil
}

func (c *Client) exchange(conn net.Conn, q request) (*answer, error) {
	w := bufio.NewWriter(conn)
	body, err := c.writeHead(w, q)
	if err != nil {
		return nil, err
	}
	// The daemon may answer before it has read all, and then closes: its answer
	// says more than our broken pipe.
	sent := &sending{done: make(chan struct{})}
	if q.stream != nil {
		go sent.pump(conn, chunks{w}, q.stream)
	} else {
		w.Write(body)
		sent.end(w.Flush(), nil)
	}
	r := bufio.NewReader(conn)
	var h *head
	for {
		if h, err = readHead(r); err != nil || h.status >= 200 || h.status == 101 {
			break
		}
	}
	switch {
	case err != nil && sent.sourceFailed() != nil:
		return nil, sent.sourceFailed()
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), sent.failed() && err != nil:
		return nil, errCut
	case err != nil:
		return nil, fmt.Errorf("hutchd's answer: %w", err)
	}
	a := &answer{head: h, conn: conn}
	if h.status == 101 {
		a.Reader = r
		return a, nil
	}
	if a.Reader, err = h.body(r, q.method); err != nil {
		return nil, err
	}
	if h.status >= 300 {
		return nil, problem(h, a.Reader)
	}
	return a, nil
}

// writeHead writes the head of a request, and returns the body that is to
// follow.
func (c *Client) writeHead(w *bufio.Writer, q request) ([]byte, error) {
	target := q.path
	if len(q.query) > 0 {
		target += "?" + q.query.Encode()
	}
	host := c.address
	if c.network == "unix" {
		host = "hutchd"
	}
	var body []byte
	if q.json != nil {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(q.json); err != nil {
			return nil, err
		}
		body = text.Bytes()
	}
	accept := q.accept
	if accept == "" {
		accept = "application/json"
	}
	fmt.Fprintf(w, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: hutch\r\nAccept: %s\r\n", q.method, target, host, accept)
	if c.token != "" {
		if strings.ContainsAny(c.token, "\r\n") {
			return nil, errors.New("the token holds a newline; set HUTCH_TOKEN to the daemon's token alone")
		}
		fmt.Fprintf(w, "Authorization: Bearer %s\r\n", c.token)
	}
	switch {
	case q.upgrade != "":
		fmt.Fprintf(w, "Connection: Upgrade\r\nUpgrade: %s\r\n", q.upgrade)
		if q.key != "" {
			fmt.Fprintf(w, "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n", q.key)
		}
	default:
		// One request a connection: none can meet a connection that the other
		// end has just given up, and then not know whether it was carried out.
		io.WriteString(w, "Connection: close\r\n")
	}
	switch {
	case q.stream != nil:
		io.WriteString(w, "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n")
	case body != nil:
		fmt.Fprintf(w, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	case q.method == "POST" || q.method == "PUT":
		io.WriteString(w, "Content-Length: 0\r\n")
	}
	_, err := io.WriteString(w, "\r\n")
	return body, err
}

// sending is the state of a body that is on its way.
type sending struct {
	mu          sync.Mutex
	err, source error
	done        chan struct{}
}

func (s *sending) end(err, source error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.source = err, source
	close(s.done)
}

// pump sends all of a source. Where the source fails, the connection ends
// without the mark of the end, so that nobody takes what came for all.
func (s *sending) pump(conn net.Conn, w chunks, source io.Reader) {
	if err := w.w.Flush(); err != nil {
		s.end(err, nil)
		return
	}
	kept := &keeping{r: source}
	_, err := io.CopyBuffer(w, struct{ io.Reader }{kept}, make([]byte, 64<<10))
	if err == nil {
		err = w.Close()
	}
	s.end(err, kept.err)
	if kept.err != nil {
		conn.Close()
	}
}

func (s *sending) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

func (s *sending) sourceFailed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source
}

// keeping remembers whether it was the reading that failed.
type keeping struct {
	r   io.Reader
	err error
}

func (k *keeping) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		k.err = err
	}
	return n, err
}

// maxProblem bounds an error's text, in bytes.
const maxProblem = 1 << 20

// problem makes an error of an answer that is one.
func problem(h *head, body io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(body, maxProblem))
	var p api.Problem
	if err != nil || json.Unmarshal(text, &p) != nil || p.Code == "" && p.Detail == "" && p.Title == "" {
		return &api.Error{Code: byStatus(h.status), Text: fmt.Sprintf("hutchd answered %d: %s", h.status, clip(strings.TrimSpace(string(text))))}
	}
	return explained(&p, h.status)
}

// explained is the error that a problem describes.
func explained(p *api.Problem, status int) error {
	e := &api.Error{Code: p.Code, Text: p.Detail}
	if e.Code == "" {
		e.Code = byStatus(status)
	}
	if e.Text == "" {
		e.Text = p.Title
	}
	for _, why := range p.Errors {
		e.Text += fmt.Sprintf("; %s: %s", why.Location, why.Message)
	}
	if len(p.Delivery) > 0 {
		return &Undelivered{Err: e, Report: p.Delivery}
	}
	return e
}

// Undelivered says that a commit was not made, and what came of it instead: the
// JSON of its report.
type Undelivered struct {
	Err    *api.Error
	Report json.RawMessage
}

func (u *Undelivered) Error() string { return u.Err.Text }

// Unwrap returns the error with its code.
func (u *Undelivered) Unwrap() error { return u.Err }

func byStatus(status int) api.Code {
	switch status {
	case 400, 405, 413, 415, 422:
		return api.Invalid
	case 401, 403:
		return api.Refused
	case 404:
		return api.NotFound
	case 409:
		return api.WrongState
	case 429, 503:
		return api.Full
	case 501:
		return api.Unsupported
	}
	return api.Internal
}

// call asks for one value. A nil into drops the answer.
func (c *Client) call(ctx context.Context, q request, into any) error {
	a, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	defer a.Close()
	if into == nil || a.status == 204 {
		return nil
	}
	if err := json.NewDecoder(a).Decode(into); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return errCut
		}
		return broken("%w", err)
	}
	return nil
}
