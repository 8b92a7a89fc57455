package changeset

import (
	"fmt"
	"io"

	"hutch/internal/fsat"
)

// Record says how one file of a tree looked when the tree was made. A file
// that still looks so was not touched in the box: nothing sets a ctime back.
type Record struct {
	Path    string    // relative to the tree, clean in the sense of fsat.Check; "." is the tree itself
	Copy    fsat.Stat // of the copy, taken right after it was made and its mode and times were set
	HostIno uint64    // of the file in the workspace that was copied
}

const manifestMagic = "hutchmf\x01"

// recordSize is the least that a record takes: a path of one byte and its
// length, then eleven fields.
const recordSize = 13

// WriteManifest writes the records in the order in which they come.
func WriteManifest(w io.Writer, records []Record) error {
	e := newEncoder(w, manifestMagic)
	e.uint(uint64(len(records)))
	for i := range records {
		r := &records[i]
		e.text(r.Path)
		e.byte(byte(r.Copy.Type))
		e.uint(uint64(r.Copy.Mode))
		e.uint(uint64(r.Copy.UID))
		e.uint(uint64(r.Copy.GID))
		e.int(r.Copy.Size)
		e.uint(r.Copy.Ino)
		e.time(r.Copy.Mtime)
		e.time(r.Copy.Ctime)
		e.uint(r.HostIno)
		e.endRecord()
	}
	if err := e.close(); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// ReadManifest reads what WriteManifest wrote: of each Stat type, mode, owner,
// size, inode and the times of the last change.
func ReadManifest(r io.Reader) ([]Record, error) {
	records, err := readManifest(r)
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	return records, nil
}

func readManifest(r io.Reader) ([]Record, error) {
	d, err := newDecoder(r, manifestMagic)
	if err != nil {
		return nil, err
	}
	records := make([]Record, d.count(recordSize))
	for i := range records {
		r := &records[i]
		r.Path = d.path()
		r.Copy.Type = d.fileType()
		r.Copy.Mode = d.mode()
		r.Copy.UID = d.uint32()
		r.Copy.GID = d.uint32()
		r.Copy.Size = d.int()
		r.Copy.Ino = d.uint()
		r.Copy.Mtime = d.time()
		r.Copy.Ctime = d.time()
		r.HostIno = d.uint()
		if d.err != nil {
			return nil, d.err
		}
	}
	return records, d.end()
}

func (d *decoder) fileType() fsat.Type {
	t := fsat.Type(d.byte())
	if t < fsat.Regular || t > fsat.BlockDevice {
		d.fail("%d is no type of file", t)
	}
	return t
}

func (d *decoder) mode() uint32 {
	m := d.uint()
	if m > 0o7777 {
		d.fail("%#o is no mode", m)
	}
	return uint32(m)
}
