package daemon

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"hutch/internal/api"
)

// patience is how long a client may take.
type patience struct {
	body  time.Duration // to send a body of JSON
	stall time.Duration // between two pieces of anything else, in both directions
}

// piece is how much is written under one deadline.
const piece = 64 << 10

// patient is a ResponseWriter that waits only so long for a reader. It is the
// one place where deadlines of a response are set.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	status  int
	stalled bool // the client stopped reading
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteHeader notes the status for what counts requests.
func (p *patient) WriteHeader(status int) {
	if p.status == 0 || p.status < http.StatusOK {
		p.status = status
	}
	p.ResponseWriter.WriteHeader(status)
}

func (p *patient) Write(b []byte) (n int, err error) {
	if p.status == 0 {
		p.status = http.StatusOK
	}
	for {
		part := b[n:min(n+piece, len(b))]
		_ = p.control.SetWriteDeadline(time.Now().Add(p.stall)) // a recorder in a test has none
		m, err := p.ResponseWriter.Write(part)
		n += m
		if err != nil {
			p.stalled = p.stalled || errors.Is(err, os.ErrDeadlineExceeded)
			return n, err
		}
		if n == len(b) {
			return n, nil
		}
	}
}

// Flush sends what is buffered.
func (p *patient) Flush() { _ = p.flush() }

func (p *patient) flush() error {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.stall))
	err := p.control.Flush()
	p.stalled = p.stalled || errors.Is(err, os.ErrDeadlineExceeded)
	return err
}

// patientBody is a request's body that waits only so long for a sender. A
// deadline that stayed set after the end would end the request: net/http reads
// on, to learn that the client has gone.
type patientBody struct {
	io.ReadCloser
	control *http.ResponseController
	header  http.Header   // of the response
	stall   time.Duration // 0: until is for the whole body
	until   time.Time
	ended   bool
}

func (b *patientBody) Read(p []byte) (int, error) {
	if b.stall > 0 && !b.ended {
		_ = b.control.SetReadDeadline(time.Now().Add(b.stall))
	} else if !b.until.IsZero() {
		_ = b.control.SetReadDeadline(b.until)
		b.until = time.Time{}
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.ended {
		b.ended = true
		if err == io.EOF {
			_ = b.control.SetReadDeadline(time.Time{})
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			b.header.Set("Connection", "close") // the rest of the body may still come
			err = newProblem(http.StatusRequestTimeout, api.Invalid, "the body did not come in time: send it without pauses")
		}
	}
	return n, err
}
