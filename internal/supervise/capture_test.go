package supervise

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func tempFile(t *testing.T) func() (*os.File, error) {
	return func() (*os.File, error) { return os.Create(filepath.Join(t.TempDir(), "capture")) }
}

type slowWriter struct {
	bytes.Buffer
	release chan struct{}
}

func (w *slowWriter) Write(p []byte) (int, error) {
	<-w.release
	return w.Buffer.Write(p)
}

// A reader that stops must not stop what drains the command's pipe.
func TestCaptureIsNotHeldUpByItsStream(t *testing.T) {
	reader := &slowWriter{release: make(chan struct{})}
	c := NewCapture(tempFile(t), reader)
	defer c.Close()
	piece := bytes.Repeat([]byte("x"), 64<<10)
	for range 64 {
		c.write(piece) // would hang here
	}
	if c.Size() != 4<<20 {
		t.Fatalf("%d bytes kept", c.Size())
	}
	done := make(chan struct{})
	c.finish() // does not wait
	go func() { c.Flush(); close(done) }()
	select {
	case <-done:
		t.Fatal("Flush did not wait for the stream")
	case <-time.After(20 * time.Millisecond):
	}
	close(reader.release)
	<-done
	if reader.Len() != 4<<20 {
		t.Fatalf("%d bytes streamed", reader.Len())
	}
}

func TestCaptureWithoutOutputMakesNoFile(t *testing.T) {
	c := NewCapture(func() (*os.File, error) { t.Error("a file was made"); return nil, os.ErrInvalid }, &bytes.Buffer{})
	c.finish()
	if head, err := c.Head(10); len(head) != 0 || err != nil || c.Size() != 0 {
		t.Errorf("head %q, %v, size %d", head, err, c.Size())
	}
}

func TestCaptureSaysWhatItLost(t *testing.T) {
	full := errors.New("disk full")
	c := NewCapture(func() (*os.File, error) { return nil, full }, nil)
	c.write([]byte("lost"))
	c.write([]byte("lost too"))
	c.finish()
	if !errors.Is(c.Lost(), full) || c.Size() != 0 {
		t.Errorf("lost %v, size %d", c.Lost(), c.Size())
	}
}

func TestCaptureHead(t *testing.T) {
	c := NewCapture(tempFile(t), nil)
	defer c.Close()
	c.write([]byte("hello "))
	c.write([]byte("world"))
	c.finish()
	for limit, want := range map[int64]string{0: "", 5: "hello", 100: "hello world"} {
		if head, err := c.Head(limit); string(head) != want || err != nil {
			t.Errorf("head of %d: %q, %v; want %q", limit, head, err, want)
		}
	}
}

// A box that could not be made ends its captures, and the next attempt's output
// must be streamed whole all the same.
func TestCaptureAfterAnAttemptThatFailed(t *testing.T) {
	reader := &slowWriter{release: make(chan struct{})}
	close(reader.release)
	c := NewCapture(tempFile(t), reader)
	defer c.Close()
	c.finish()
	for range 100 {
		c.write([]byte("line\n"))
		time.Sleep(100 * time.Microsecond) // so that the reader catches up
	}
	c.finish()
	c.Flush()
	if reader.Len() != 500 {
		t.Errorf("%d bytes streamed of 500", reader.Len())
	}
}
