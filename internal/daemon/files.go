package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
)

// FilePath is a path in a box. The box resolves it, beneath its own root.
type FilePath struct {
	BoxPath
	Path string `query:"path" required:"true" maxLength:"4096" doc:"in the box; one that is not absolute begins in the workspace"`
}

// The headers that tell of a file.
const (
	headerMode = "Hutch-File-Mode" // permission bits, octal
	headerType = "Hutch-File-Type"
)

func (s *Server) fileRoutes() {
	read := operation("GET", "/v1/boxes/{box}/files", "read-file", "Read a file of a box", ofLive)
	read = answers(read, "200", "its bytes; its mode in octal is in the header "+headerMode, map[string]*huma.Schema{"application/octet-stream": binary()})
	register(s, read, s.readFile)
	register(s, operation("HEAD", "/v1/boxes/{box}/files", "stat-file", "Size, mode and time of a file of a box", ofLive), s.readFile)

	write := operation("PUT", "/v1/boxes/{box}/files", "write-file", "Write a file of a box", ofLive)
	write.RequestBody = &huma.RequestBody{Description: "its bytes, of any length", Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: binary()}}}
	write = answers(write, "204", "written", nil)
	register(s, write, s.writeFile)
	register(s, operation("DELETE", "/v1/boxes/{box}/files", "remove-file", "Remove a file, or an empty directory, of a box", ofLive), func(_ context.Context, in *FilePath) (*empty, error) {
		return nil, s.alive(in.Box, func(id string) error { return s.boxes.RemoveFile(id, in.Path) })
	})
	register(s, operation("GET", "/v1/boxes/{box}/dir", "list-directory", "List a directory of a box", ofLive), func(_ context.Context, in *FilePath) (out *reply[[]api.File], err error) {
		err = s.alive(in.Box, func(id string) error {
			list, err := s.boxes.ListDir(id, in.Path)
			out = &reply[[]api.File]{orEmpty(list)}
			return err
		})
		return out, err
	})
	mkdir := operation("POST", "/v1/boxes/{box}/dir", "make-directory", "Make a directory, and those above it, in a box", ofLive)
	register(s, mkdir, func(_ context.Context, in *FilePath) (*empty, error) {
		return nil, s.alive(in.Box, func(id string) error { return s.boxes.MakeDir(id, in.Path) })
	})
}

// alive does what needs a live box.
func (s *Server) alive(ref string, do func(id string) error) error {
	l, err := s.lives.enter(ref)
	if err != nil {
		return err
	}
	defer s.lives.leave(l)
	return do(l.id)
}

func (s *Server) readFile(_ context.Context, in *FilePath) (*raw, error) {
	l, err := s.lives.enter(in.Box)
	if err != nil {
		return nil, err
	}
	from, f, err := s.boxes.ReadFile(l.id, in.Path)
	if err != nil {
		s.lives.leave(l)
		return nil, err
	}
	return &raw{func(c huma.Context) {
		defer s.lives.leave(l)
		defer from.Close()
		r, w := humago.Unwrap(c)
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Last-Modified", f.ModTime.UTC().Format(http.TimeFormat))
		h.Set(headerMode, fmt.Sprintf("%04o", f.Mode))
		h.Set(headerType, f.Type)
		h.Set("Content-Length", strconv.FormatInt(f.Size, 10))
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusOK)
			return
		}
		// A file that grows meanwhile is read as long as it was; one that
		// shrinks breaks off, which the client sees by the length.
		copyOut(w, io.LimitReader(from, f.Size), false)
	}}, nil
}

func (s *Server) writeFile(_ context.Context, in *struct {
	FilePath
	Mode string `query:"mode" pattern:"^[0-7]{1,4}$" doc:"permission bits, octal; by default those of the file that is there, else 644"`
}) (*raw, error) {
	var mode uint64
	if in.Mode != "" {
		var err error
		if mode, err = strconv.ParseUint(in.Mode, 8, 32); err != nil {
			return nil, refuse(api.Invalid, fmt.Sprintf("mode %q: give octal digits", in.Mode))
		}
	}
	return &raw{func(c huma.Context) {
		r, w := humago.Unwrap(c)
		err := s.alive(in.Box, func(id string) error { return s.boxes.WriteFile(id, in.Path, uint32(mode), r.Body) })
		if err != nil {
			writeProblem(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}}, nil
}
