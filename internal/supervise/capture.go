package supervise

import (
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Capture keeps what a command writes to one stream, in a file that the box
// never holds: a process can reopen its own /proc/self/fd/1 for writing, and
// would truncate the evidence were that the file.
//
// What was kept may be streamed on as it comes. Streaming reads the file back,
// so a slow or stopped reader never stops the command or its deadline.
type Capture struct {
	create func() (*os.File, error)
	stream io.Writer
	small  int64       // bytes that are kept in memory before a file is made
	timer  *time.Timer // makes it when they were in memory for long enough

	mu     sync.Mutex
	more   *sync.Cond
	begun  bool   // something was written
	memory []byte // what was kept, until there is a file
	file   *os.File
	size   int64
	lost   error // the first error of writing the file; what follows is dropped
	closed bool  // nothing will follow
	shut   bool  // its file is closed

	unread   atomic.Bool // the stream's reader has gone away
	streamed chan struct{}
}

// NewCapture returns a capture whose file is made by create when the first
// byte arrives, and streamed to stream unless that is nil.
func NewCapture(create func() (*os.File, error), stream io.Writer) *Capture {
	c := &Capture{create: create, stream: stream}
	c.more = sync.NewCond(&c.mu)
	return c
}

// NewSmallCapture returns a capture that makes its file only when there are more
// than small bytes, and keeps them in memory until then.
func NewSmallCapture(small int64, create func() (*os.File, error), stream io.Writer) *Capture {
	c := NewCapture(create, stream)
	c.small = small
	return c
}

func (c *Capture) write(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil || len(p) == 0 {
		return
	}
	inMemory := c.file == nil && c.size+int64(len(p)) <= c.small
	if !inMemory && c.file == nil {
		if c.lost = c.spill(); c.lost != nil {
			return
		}
	}
	if !c.begun {
		c.begun = true
		c.closed = false // by an attempt to start the command that came to nothing
		if c.stream != nil {
			c.streamed = make(chan struct{})
			go c.pump()
		}
	}
	if inMemory {
		if c.timer == nil {
			c.timer = time.AfterFunc(inMemoryFor, c.settle)
		}
		c.memory = append(c.memory, p...)
		c.size += int64(len(p))
	} else {
		n, err := c.file.WriteAt(p, c.size)
		c.size += int64(n)
		c.lost = err
	}
	c.more.Broadcast()
}

// inMemoryFor is how long little output may be in memory alone: what a command
// that goes on wrote is to outlive this process.
const inMemoryFor = 200 * time.Millisecond

// settle moves what is in memory into a file, when the command goes on.
func (c *Capture) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil && !c.closed && !c.shut && c.lost == nil {
		c.lost = c.spill()
	}
}

// spill makes the file and moves what is in memory into it.
func (c *Capture) spill() error {
	file, err := c.create()
	if err != nil {
		return err
	}
	if _, err := file.WriteAt(c.memory, 0); err != nil {
		file.Close()
		return err
	}
	c.file, c.memory = file, nil
	return nil
}

// readAt reads what was kept at an offset below the size.
func (c *Capture) readAt(p []byte, at int64) (int, error) {
	c.mu.Lock()
	file, size := c.file, c.size
	if c.shut {
		c.mu.Unlock()
		return 0, os.ErrClosed
	}
	if file == nil {
		defer c.mu.Unlock()
		return copy(p, c.memory[min(at, size):]), nil
	}
	c.mu.Unlock()
	n, err := file.ReadAt(p[:min(int64(len(p)), size-at)], at)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (c *Capture) pump() {
	defer close(c.streamed)
	reader := c.Reader(0, true)
	buf := make([]byte, 64<<10)
	for {
		n, err := reader.Read(buf)
		if n == 0 && err != nil {
			return
		}
		if _, err := c.stream.Write(buf[:n]); err != nil {
			c.unread.Store(true)
			return
		}
	}
}

// Reader reads what was kept from an offset on. With follow it waits for more
// until the capture is finished. Its Close ends a Read that waits.
func (c *Capture) Reader(from int64, follow bool) io.ReadCloser {
	return &captureReader{of: c, at: max(from, 0), follow: follow}
}

type captureReader struct {
	of     *Capture
	at     int64
	follow bool
	closed bool // under of.mu
}

func (r *captureReader) Read(p []byte) (int, error) {
	c := r.of
	c.mu.Lock()
	for r.follow && r.at >= c.size && !c.closed && !r.closed && c.lost == nil {
		c.more.Wait()
	}
	size, closed := c.size, r.closed
	c.mu.Unlock()
	switch {
	case closed:
		return 0, os.ErrClosed
	case r.at >= size:
		return 0, io.EOF
	}
	n, err := c.readAt(p, r.at)
	r.at += int64(n)
	return n, err
}

func (r *captureReader) Close() error {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.closed = true
	r.of.more.Broadcast()
	return nil
}

// finish says that nothing will follow.
func (c *Capture) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.more.Broadcast()
}

// InFile reports whether a file was made.
func (c *Capture) InFile() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file != nil
}

// Flush waits until all that was kept is streamed: as long as the reader takes.
func (c *Capture) Flush() {
	c.mu.Lock()
	streamed := c.streamed
	c.mu.Unlock()
	if streamed != nil {
		<-streamed
	}
}

// Size returns how many bytes were kept.
func (c *Capture) Size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// Lost returns the error because of which output was dropped, or nil.
func (c *Capture) Lost() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Head returns the first limit bytes, or all.
func (c *Capture) Head(limit int64) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil {
		return slices.Clone(c.memory[:min(limit, int64(len(c.memory)))]), nil
	}
	buf := make([]byte, min(limit, c.size))
	n, err := c.file.ReadAt(buf, 0)
	if err == io.EOF {
		err = nil
	}
	return buf[:n], err
}

// Close closes the file.
func (c *Capture) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		c.file.Close()
		c.file, c.shut = nil, true
	}
}
