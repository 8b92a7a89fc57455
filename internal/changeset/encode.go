package changeset

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

const encodeMagic = "hutchcs\x04"

var (
	opCodes   = []Op{Created, Modified, Deleted}
	rootCodes = []Root{"", Layer, Workspace, Picked}
)

// Encode writes the changeset so that Decode, in another process, gives the
// same one.
func (c *Changeset) Encode(w io.Writer) error {
	e := newEncoder(w, encodeMagic)
	e.uint(uint64(len(c.Entries)))
	for i := range c.Entries {
		entry := &c.Entries[i]
		e.text(entry.Path)
		e.byte(byte(slices.Index(opCodes, entry.Op)))
		e.state(entry.Before)
		e.state(entry.After)
		e.byte(byte(slices.Index(rootCodes, entry.Source)))
		e.text(entry.SourcePath)
		e.uint(entry.BaseIno)
		e.bool(entry.BaseCtime != nil)
		if entry.BaseCtime != nil {
			e.time(*entry.BaseCtime)
		}
		e.text(entry.BaseIndex)
		e.text(entry.Link)
		e.bool(entry.CopiedUp)
		e.endRecord()
	}
	e.uint(uint64(len(c.Ancestors)))
	for _, path := range slices.Sorted(maps.Keys(c.Ancestors)) {
		e.text(path)
		e.uint(c.Ancestors[path])
		e.endRecord()
	}
	e.uint(uint64(len(c.Skipped)))
	for _, s := range c.Skipped {
		e.text(s.Path)
		e.text(s.Reason)
		e.endRecord()
	}
	e.bool(c.GitChanged)
	e.text(c.Digest)
	if err := e.close(); err != nil {
		return fmt.Errorf("write changeset: %w", err)
	}
	return nil
}

func (e *encoder) state(s *State) {
	e.bool(s != nil)
	if s == nil {
		return
	}
	e.byte(byte(s.Type))
	e.uint(uint64(s.Mode))
	e.uint(uint64(s.UID))
	e.uint(uint64(s.GID))
	e.int(s.Size)
	e.text(s.Target)
	e.text(s.Digest)
	e.time(s.Mtime)
	e.uint(uint64(len(s.Xattrs)))
	for _, name := range slices.Sorted(maps.Keys(s.Xattrs)) {
		e.text(name)
		e.text(string(s.Xattrs[name]))
	}
}

// Decode reads what Encode wrote. It believes nothing: what it returns has
// clean paths in order and the digest of its entries.
func Decode(r io.Reader) (*Changeset, error) {
	c, err := decode(r)
	if err != nil {
		return nil, fmt.Errorf("read changeset: %w", err)
	}
	return c, nil
}

func decode(r io.Reader) (*Changeset, error) {
	d, err := newDecoder(r, encodeMagic)
	if err != nil {
		return nil, err
	}
	c := &Changeset{Entries: []Entry{}}
	last := ""
	for range d.count(8) {
		e := d.entry()
		if d.err == nil && e.Path <= last {
			d.fail("%q is out of order", e.Path)
		}
		if d.err != nil {
			return nil, d.err
		}
		last = e.Path
		c.Entries = append(c.Entries, e)
	}
	last = ""
	for range d.count(3) {
		path, ino := d.path(), d.uint()
		if d.err == nil && (path <= last || ino == 0) {
			d.fail("%q is out of order", path)
		}
		if d.err != nil {
			return nil, d.err
		}
		last = path
		if c.Ancestors == nil {
			c.Ancestors = map[string]uint64{}
		}
		c.Ancestors[path] = ino
	}
	for range d.count(3) {
		s := Skipped{Path: d.path(), Reason: d.text()}
		if d.err != nil {
			return nil, d.err
		}
		c.Skipped = append(c.Skipped, s)
	}
	c.GitChanged = d.bool()
	c.Digest = d.text()
	if err := d.end(); err != nil {
		return nil, err
	}
	if c.Digest != digestOf(c.Entries) {
		return nil, fmt.Errorf("%w: the digest is not that of the entries", errCorrupt)
	}
	return c, nil
}

func (d *decoder) entry() Entry {
	e := Entry{Path: d.path()}
	if e.Path == "." {
		d.fail("the workspace itself is no entry")
	}
	e.Op = code(d, opCodes)
	e.Before, e.After = d.state(), d.state()
	if (e.Before == nil) != (e.Op == Created) || (e.After == nil) != (e.Op == Deleted) {
		d.fail("%q is %s, which its states are not", e.Path, e.Op)
	}
	e.Source = code(d, rootCodes)
	e.SourcePath = d.text()
	if (e.Source == "") != (e.After == nil) || (e.SourcePath == "") != (e.After == nil) {
		d.fail("the source of %q is missing, or one too many", e.Path)
	}
	if e.SourcePath != "" {
		if err := fsat.Check(e.SourcePath); err != nil {
			d.fail("%v", err)
		}
	}
	e.BaseIno = d.uint()
	if d.bool() {
		ctime := d.time()
		e.BaseCtime = &ctime
	}
	e.BaseIndex = d.text()
	if e.Link = d.text(); e.Link != "" {
		if e.After == nil || e.Link >= e.Path || fsat.Check(e.Link) != nil {
			d.fail("%q cannot be a link to %q", e.Path, e.Link)
		}
	}
	e.CopiedUp = d.bool()
	return e
}

func (d *decoder) state() *State {
	if !d.bool() {
		return nil
	}
	s := &State{
		Type:   d.fileType(),
		Mode:   d.mode(),
		UID:    d.uint32(),
		GID:    d.uint32(),
		Size:   d.int(),
		Target: d.text(),
		Digest: d.text(),
		Mtime:  d.time(),
	}
	if s.Size < 0 {
		d.fail("a file has %d bytes", s.Size)
	}
	if s.Digest != "" && !validDigest(s.Digest) {
		d.fail("%q is no digest", s.Digest)
	}
	last := ""
	for range d.count(2) {
		name, value := d.text(), d.text()
		if d.err == nil && name <= last {
			d.fail("attribute %q is out of order", name)
		}
		if d.err != nil {
			return nil
		}
		if !strings.HasPrefix(name, "user.") || strings.IndexByte(name, 0) >= 0 {
			d.fail("attribute %q is not a user's", name)
		}
		last = name
		if s.Xattrs == nil {
			s.Xattrs = map[string][]byte{}
		}
		s.Xattrs[name] = []byte(value)
	}
	return s
}

// code reads the place of a value in its list.
func code[T any](d *decoder, values []T) T {
	i := int(d.byte())
	if i >= len(values) {
		d.fail("%d is not one of %v", i, values)
		i = 0
	}
	return values[i]
}
