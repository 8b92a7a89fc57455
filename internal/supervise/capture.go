package supervise

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
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

	mu     sync.Mutex
	more   *sync.Cond
	file   *os.File
	size   int64
	lost   error // the first error of writing the file; what follows is dropped
	closed bool

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

func (c *Capture) write(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return
	}
	if c.file == nil {
		if c.file, c.lost = c.create(); c.lost != nil {
			return
		}
		c.closed = false // by an attempt to start the command that came to nothing
		if c.stream != nil {
			c.streamed = make(chan struct{})
			go c.pump()
		}
	}
	n, err := c.file.WriteAt(p, c.size)
	c.size += int64(n)
	c.lost = err
	c.more.Signal()
}

func (c *Capture) pump() {
	defer close(c.streamed)
	buf := make([]byte, 64<<10)
	for at := int64(0); ; {
		c.mu.Lock()
		for at == c.size && !c.closed {
			c.more.Wait()
		}
		size := c.size
		c.mu.Unlock()
		if at == size {
			return
		}
		n, err := c.file.ReadAt(buf[:min(int64(len(buf)), size-at)], at)
		if n == 0 && err != nil {
			return
		}
		at += int64(n)
		if _, err := c.stream.Write(buf[:n]); err != nil {
			c.unread.Store(true)
			return
		}
	}
}

// finish says that nothing will follow.
func (c *Capture) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.more.Signal()
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
		return nil, nil
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
		c.file = nil
	}
}
