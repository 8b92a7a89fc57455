package changeset

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// maxShown is the size of the largest file that a patch shows.
const maxShown = 1 << 20

// Patch writes the changeset as a patch in git's format that git apply takes.
// It shows what git knows of: files, executable or not, and symlinks. Of a
// binary file, one larger than 1 MiB and one that cannot be read it only says
// that it differs, in a line that git apply passes over.
//
// What is not the content that the changeset speaks of, because the workspace
// or the layer changed since, is an error.
func Patch(w io.Writer, c *Changeset, layerFD, workspaceFD int) error {
	layer := &root{name: Layer, fd: layerFD}
	host := &root{name: Workspace, fd: workspaceFD}
	out := patcher{bufio.NewWriter(w)}
	err := out.changeset(c, layer, host)
	if relocked := layer.relock(); relocked != nil {
		err = errors.Join(err, relocked)
	}
	if err == nil {
		err = out.w.Flush()
	}
	if err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	return nil
}

func (p patcher) changeset(c *Changeset, layer, host *root) error {
	for i := range c.Entries {
		e := &c.Entries[i]
		sameContent := e.Before != nil && e.After != nil && e.Before.Type == e.After.Type &&
			e.Before.Digest == e.After.Digest && e.Before.Target == e.After.Target &&
			(e.Before.Type != fsat.Regular || e.Before.Digest != "")
		before, err := blobOf(e.Before, host, e.Path, !sameContent)
		if err != nil {
			return err
		}
		source := layer
		if e.Source == Workspace {
			source = host
		}
		after, err := blobOf(e.After, source, e.SourcePath, !sameContent)
		if err != nil {
			return err
		}
		p.file(e.Path, before, after, sameContent)
	}
	return nil
}

// blobOf returns one side of an entry; nil for what git does not know of.
func blobOf(s *State, r *root, path string, withContent bool) (*blob, error) {
	if s == nil {
		return nil, nil
	}
	switch {
	case s.Type == fsat.Symlink:
		return &blob{mode: "120000", content: []byte(s.Target)}, nil
	case s.Type != fsat.Regular:
		return nil, nil
	}
	b := &blob{mode: "100644"}
	if s.Mode&0o100 != 0 {
		b.mode = "100755"
	}
	switch {
	case !withContent:
		return b, nil
	case s.Digest == "":
		b.hidden = "it cannot be read"
		return b, nil
	case s.Size > maxShown:
		b.hidden = "it is larger than 1 MiB"
		return b, nil
	}
	content, err := r.readFile(path)
	if err != nil {
		return nil, err
	}
	h := blake3.New()
	h.Write(content)
	if formatDigest(h) != s.Digest {
		return nil, fmt.Errorf("%q in the %s changed since it was compared", path, r.name)
	}
	b.content = content
	if bytes.IndexByte(content, 0) >= 0 {
		b.hidden = binaryContent
	}
	return b, nil
}

// readFile reads a file that was no larger than maxShown, and no more of it.
func (r *root) readFile(path string) ([]byte, error) {
	fd, err := r.openFile(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return io.ReadAll(io.LimitReader(&fdReader{fd: fd}, maxShown+1))
}
