package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/url"
	pathpkg "path"
	"strconv"

	"hutch/internal/api"
)

// boxPath is the path of something of a box.
func boxPath(box string, rest ...string) string {
	path := "/v1/boxes/" + url.PathEscape(box)
	for _, part := range rest {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// Status tells what the daemon is doing.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	var s api.Status
	return &s, c.call(ctx, request{method: "GET", path: "/v1/status"}, &s)
}

// Shutdown asks the daemon to finish what runs and to end.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.call(ctx, request{method: "POST", path: "/v1/shutdown"}, nil)
}

// Create makes a box.
func (c *Client) Create(ctx context.Context, q api.Create) (*api.Box, error) {
	var b api.Box
	return &b, c.call(ctx, request{method: "POST", path: "/v1/boxes", json: q}, &b)
}

// List lists boxes, ended ones with all.
func (c *Client) List(ctx context.Context, all bool) ([]api.Box, error) {
	list := []api.Box{}
	return list, c.call(ctx, request{method: "GET", path: "/v1/boxes", query: url.Values{"all": {strconv.FormatBool(all)}}}, &list)
}

// Show tells what is known of a box.
func (c *Client) Show(ctx context.Context, box string) (*api.Box, error) {
	var b api.Box
	return &b, c.call(ctx, request{method: "GET", path: boxPath(box)}, &b)
}

// Remove ends a box and drops all that is left of it, its record too.
func (c *Client) Remove(ctx context.Context, box string) error {
	return c.call(ctx, request{method: "DELETE", path: boxPath(box)}, nil)
}

// Detach starts a command that nobody waits for.
func (c *Client) Detach(ctx context.Context, box string, run api.Run) (*api.Exec, error) {
	var e api.Exec
	return &e, c.call(ctx, request{method: "POST", path: boxPath(box, "execs"), query: url.Values{"detach": {"true"}}, json: run}, &e)
}

// Execs lists the commands of a box, oldest first.
func (c *Client) Execs(ctx context.Context, box string) ([]api.Exec, error) {
	list := []api.Exec{}
	return list, c.call(ctx, request{method: "GET", path: boxPath(box, "execs")}, &list)
}

// Exec tells what is known of a command.
func (c *Client) Exec(ctx context.Context, box, exec string) (*api.Exec, error) {
	var e api.Exec
	return &e, c.call(ctx, request{method: "GET", path: boxPath(box, "execs", exec)}, &e)
}

// Output reads what a command wrote to a stream; follow waits for more until it
// ends.
func (c *Client) Output(ctx context.Context, box, exec, stream string, offset int64, follow bool) (io.ReadCloser, error) {
	query := url.Values{"stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}, "follow": {strconv.FormatBool(follow)}}
	return c.open(ctx, request{method: "GET", path: boxPath(box, "execs", exec, "output"), query: query, accept: "*/*"})
}

// Processes lists what runs in a box.
func (c *Client) Processes(ctx context.Context, box string) ([]api.Process, error) {
	list := []api.Process{}
	return list, c.call(ctx, request{method: "GET", path: boxPath(box, "processes")}, &list)
}

// Kill sends a signal to what runs in a box.
func (c *Client) Kill(ctx context.Context, box string, k api.Kill) error {
	return c.call(ctx, request{method: "POST", path: boxPath(box, "kill"), json: k}, nil)
}

// ReadFile reads a file of a box.
func (c *Client) ReadFile(ctx context.Context, box, path string) (io.ReadCloser, error) {
	return c.open(ctx, request{method: "GET", path: boxPath(box, "files"), query: url.Values{"path": {path}}, accept: "*/*"})
}

// StatFile tells what is known of a regular file of a box, or of what a link
// there leads to.
func (c *Client) StatFile(ctx context.Context, box, path string) (*api.File, error) {
	a, err := c.do(ctx, request{method: "HEAD", path: boxPath(box, "files"), query: url.Values{"path": {path}}, accept: "*/*"})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	f := &api.File{Name: pathpkg.Base(path), Path: path, Type: "file"}
	mode, err := strconv.ParseUint(a.fields["hutch-file-mode"], 8, 32)
	if err != nil {
		return nil, broken("the mode of a file is %q", clip(a.fields["hutch-file-mode"]))
	}
	f.Mode = uint32(mode)
	if f.Size, err = strconv.ParseInt(a.fields["content-length"], 10, 64); err != nil {
		return nil, broken("the size of a file is %q", clip(a.fields["content-length"]))
	}
	return f, nil
}

// WriteFile writes a file of a box; mode 0 leaves the mode to the daemon.
func (c *Client) WriteFile(ctx context.Context, box, path string, mode uint32, content io.Reader) error {
	query := url.Values{"path": {path}}
	if mode != 0 {
		query.Set("mode", strconv.FormatUint(uint64(mode), 8))
	}
	return c.call(ctx, request{method: "PUT", path: boxPath(box, "files"), query: query, stream: content}, nil)
}

// ListDir lists a directory of a box.
func (c *Client) ListDir(ctx context.Context, box, path string) ([]api.File, error) {
	list := []api.File{}
	return list, c.call(ctx, request{method: "GET", path: boxPath(box, "dir"), query: url.Values{"path": {path}}}, &list)
}

// MakeDir makes a directory in a box.
func (c *Client) MakeDir(ctx context.Context, box, path string) error {
	return c.call(ctx, request{method: "POST", path: boxPath(box, "dir"), query: url.Values{"path": {path}}}, nil)
}

// Checkpoint notes a state that a box can go back to; without a name one is made
// up.
func (c *Client) Checkpoint(ctx context.Context, box, name string) (*api.Checkpoint, error) {
	var p api.Checkpoint
	return &p, c.call(ctx, request{method: "POST", path: boxPath(box, "checkpoints"), json: api.CheckpointRequest{Name: name}}, &p)
}

// Restore takes a box back to a checkpoint.
func (c *Client) Restore(ctx context.Context, box, name string) error {
	return c.call(ctx, request{method: "POST", path: boxPath(box, "restore"), json: api.RestoreRequest{Name: name}}, nil)
}

// Fork makes n boxes that begin where a box stands.
func (c *Client) Fork(ctx context.Context, box string, n int, names []string) ([]api.Box, error) {
	list := []api.Box{}
	return list, c.call(ctx, request{method: "POST", path: boxPath(box, "fork"), json: api.ForkRequest{Count: n, Names: names}}, &list)
}

// Diff reads what a box changed, in a format: json or patch. Where there are
// globs it is what matches one of them.
func (c *Client) Diff(ctx context.Context, box, format string, git bool, only []string) (io.ReadCloser, error) {
	query := url.Values{"format": {format}, "git": {strconv.FormatBool(git)}, "only": only}
	return c.open(ctx, request{method: "GET", path: boxPath(box, "diff"), query: query, accept: "*/*"})
}

// Commit promotes what a box changed, and decodes the report of that. An error
// may be an *Undelivered.
func (c *Client) Commit(ctx context.Context, box string, q api.Commit, report any) error {
	return c.call(ctx, request{method: "POST", path: boxPath(box, "commit"), json: q}, report)
}

// Discard drops a box; force ends what runs in it.
func (c *Client) Discard(ctx context.Context, box string, force bool) error {
	return c.call(ctx, request{method: "POST", path: boxPath(box, "discard"), json: api.Discard{Force: force}}, nil)
}

// Release ends what runs in a box, and lets another process have it.
func (c *Client) Release(ctx context.Context, box string) error {
	return c.call(ctx, request{method: "POST", path: boxPath(box, "release")}, nil)
}

// Ports lists what listens in a box.
func (c *Client) Ports(ctx context.Context, box string) ([]api.Port, error) {
	list := []api.Port{}
	return list, c.call(ctx, request{method: "GET", path: boxPath(box, "ports")}, &list)
}

// Race runs commands side by side and keeps the change of one.
func (c *Client) Race(ctx context.Context, q api.Race) (*api.RaceResult, error) {
	var r api.RaceResult
	return &r, c.call(ctx, request{method: "POST", path: "/v1/races", json: q}, &r)
}

// open asks for a stream.
func (c *Client) open(ctx context.Context, q request) (io.ReadCloser, error) {
	a, err := c.do(ctx, q)
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Dial connects to a port in a box.
func (c *Client) Dial(ctx context.Context, box string, port uint16) (net.Conn, error) {
	a, err := c.do(ctx, request{method: "GET", path: boxPath(box, "ports", strconv.Itoa(int(port)), "tunnel"), upgrade: "hutch-tunnel"})
	if err != nil {
		return nil, err
	}
	if a.status != 101 {
		a.Close()
		return nil, broken("it opens no tunnel")
	}
	return &tunnel{Conn: a.conn, a: a, r: a.Reader.(*bufio.Reader)}, nil
}

// tunnel is a connection of which some may have been read with the answer.
type tunnel struct {
	net.Conn
	a *answer
	r *bufio.Reader
}

func (t *tunnel) Read(p []byte) (int, error) { return t.r.Read(p) }

func (t *tunnel) Close() error { return t.a.Close() }

// CloseWrite says that no more will be written.
func (t *tunnel) CloseWrite() error {
	if half, ok := t.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Stream runs a command, and calls each with every event of it: its start, the
// pieces of its output, and last its outcome. What each returns ends it. When
// ctx ends, so does the command.
func (c *Client) Stream(ctx context.Context, box string, run api.Run, each func(*api.Event) error) error {
	a, err := c.do(ctx, request{method: "POST", path: boxPath(box, "execs"), json: run, accept: "application/x-ndjson"})
	if err != nil {
		return err
	}
	defer a.Close()
	over := false
	err = readLines(a, maxMessage, func(line []byte) error {
		var e api.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return broken("%w", err)
		}
		if e.Error != nil {
			return explained(e.Error, e.Error.Status)
		}
		over = over || e.Outcome != nil
		return each(&e)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && !over || errors.Is(err, io.ErrUnexpectedEOF) {
		return errCut
	}
	return err
}

// readLines calls each with every line of NDJSON, until one fails. A line has at
// most so many bytes.
func readLines(r io.Reader, most int, each func(line []byte) error) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := lines.ReadSlice('\n')
		if len(line)+len(part) > most {
			return broken("a line is longer than %d bytes", most)
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0:
			return io.ErrUnexpectedEOF // half a line says nothing
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(line); err != nil {
			return err
		}
		line = line[:0]
	}
}
