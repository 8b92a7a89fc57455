package gitdb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"hutch/internal/fsat"
)

// IndexEntry is one path in an index, with how its file looked when git last
// knew it to hold this content.
type IndexEntry struct {
	Path  string // clean in the sense of fsat.Check
	Mode  uint32 // as in a tree; ModeTree for a directory of a sparse index
	ID    OID
	Stage int // 0, or 1 to 3 of an unresolved merge

	AssumeValid, SkipWorktree, IntentToAdd bool

	Mtime, Ctime fsat.Time
	Dev, Ino     uint32 // their lower 32 bits
	Size         uint32 // bytes, modulo 2^32; 0 where git knows that the file may have changed
}

// maxIndexPaths bounds the bytes of all paths: version 4 shares prefixes, and
// could name long paths at no cost.
const maxIndexPaths = 512 << 20

// ParseIndex reads an index of version 2, 3 or 4 (gitformat-index(5)). Like git
// it does not check the hash at the end. A split index is ErrUnsupported.
func ParseIndex(format Format, index []byte) ([]IndexEntry, error) {
	p := indexParser{format: format, all: index}
	if err := p.parse(); err != nil {
		return nil, fmt.Errorf("git index: %w", err)
	}
	return p.entries, nil
}

var errSplit = fmt.Errorf("%w: a split index; git update-index --no-split-index makes it whole", ErrUnsupported)

type indexParser struct {
	format  Format
	all     []byte
	at      int
	version uint32
	entries []IndexEntry
	starts  []int // where each entry begins
	shared  []int // how much of the path before it each takes over
	paths   int   // bytes
}

func (p *indexParser) parse() error {
	const head = 12
	if len(p.all) < head+int(p.format) || string(p.all[:4]) != "DIRC" {
		return corrupt("not an index")
	}
	p.version = binary.BigEndian.Uint32(p.all[4:])
	if p.version < 2 || p.version > 4 {
		return fmt.Errorf("%w: version %d", ErrUnsupported, p.version)
	}
	count := binary.BigEndian.Uint32(p.all[8:])
	p.at = head
	for range count {
		if err := p.entry(); err != nil {
			return err
		}
	}
	return p.extensions()
}

func (p *indexParser) rest() []byte { return p.all[p.at : len(p.all)-int(p.format)] }

func (p *indexParser) entry() error {
	const (
		stat         = 40 // ctime, mtime, dev, ino, mode, uid, gid, size
		assumeValid  = 0x8000
		extended     = 0x4000
		stage        = 0x3000
		lengthMask   = 0x0fff
		skipWorktree = 0x4000 // in the second word of flags
		intentToAdd  = 0x2000
	)
	b := p.rest()
	fixed := stat + int(p.format) + 2
	if len(b) < fixed+2 {
		return corrupt("cut short")
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	flags := binary.BigEndian.Uint16(b[fixed-2:])
	e := IndexEntry{
		Ctime:       fsat.Time{Sec: int64(word(0)), Nsec: int64(word(1))},
		Mtime:       fsat.Time{Sec: int64(word(2)), Nsec: int64(word(3))},
		Dev:         word(4),
		Ino:         word(5),
		Mode:        word(6),
		Size:        word(9),
		ID:          OID(b[stat : stat+int(p.format)]),
		AssumeValid: flags&assumeValid != 0,
		Stage:       int(flags & stage >> 12),
	}
	if flags&extended != 0 {
		if p.version == 2 {
			return corrupt("an extended entry in version 2")
		}
		more := binary.BigEndian.Uint16(b[fixed:])
		fixed += 2
		if more&^(skipWorktree|intentToAdd) != 0 {
			return fmt.Errorf("%w: flags %#x", ErrUnsupported, more)
		}
		e.SkipWorktree = more&skipWorktree != 0
		e.IntentToAdd = more&intentToAdd != 0
	}
	previous := ""
	if n := len(p.entries); n > 0 {
		previous = p.entries[n-1].Path
		if p.entries[n-1].Mode == ModeTree {
			previous += "/"
		}
	}
	shared := 0
	if p.version == 4 {
		strip, n := offsetVarint(b[fixed:])
		if n == 0 || strip > uint64(len(previous)) {
			return corrupt("prefix of a path")
		}
		fixed += n
		shared = len(previous) - int(strip)
	}
	end := bytes.IndexByte(b[fixed:], 0)
	if end < 0 {
		return corrupt("cut short")
	}
	path := previous[:shared] + string(b[fixed:fixed+end])
	if p.paths += len(path); p.paths > maxIndexPaths {
		return fmt.Errorf("%w: paths", ErrTooLarge)
	}
	if int(flags&lengthMask) != min(len(path), lengthMask) {
		return corrupt("length of path %.60q", path)
	}
	size := fixed + end + 1
	if p.version < 4 {
		if size = (fixed + end + 8) &^ 7; size > len(b) { // 1 to 8 NULs
			return corrupt("cut short")
		}
	}
	if err := p.add(e, path, previous); err != nil {
		return err
	}
	p.starts = append(p.starts, p.at)
	p.shared = append(p.shared, shared)
	p.at += size
	return nil
}

// add checks the path and the order that git relies on.
func (p *indexParser) add(e IndexEntry, path, previous string) error {
	if !validMode(e.Mode) {
		return corrupt("mode %o", e.Mode)
	}
	if n := len(p.entries); n > 0 {
		c := strings.Compare(previous, path)
		if c > 0 || (c == 0 && (p.entries[n-1].Stage == 0 || p.entries[n-1].Stage >= e.Stage)) {
			return corrupt("%.60q is out of order", path)
		}
	}
	if path == "" {
		return errSplit // they replace entries of the index that is shared
	}
	e.Path = path
	if e.Mode == ModeTree {
		e.Path = strings.TrimSuffix(path, "/")
		if e.Path == path {
			return corrupt("directory %.60q", path)
		}
	}
	if e.Path == "." || fsat.Check(e.Path) != nil {
		return corrupt("path %.60q", path)
	}
	p.entries = append(p.entries, e)
	return nil
}

// extensions passes over what speeds git up, but for what would make git see
// other entries than are read here.
func (p *indexParser) extensions() error {
	end := p.at
	for len(p.rest()) > 0 {
		b := p.rest()
		if len(b) < 8 {
			return corrupt("extension")
		}
		name, size := string(b[:4]), binary.BigEndian.Uint32(b[4:])
		if uint64(size) > uint64(len(b)-8) {
			return corrupt("extension %q", name)
		}
		body := b[8 : 8+size]
		switch {
		case name == "link":
			return errSplit
		case name == "IEOT":
			if !p.sameOffsets(body) {
				return corrupt("table of offsets")
			}
		case name == "EOIE":
			if size < 4 || int64(binary.BigEndian.Uint32(body)) != int64(end) {
				return corrupt("end of entries")
			}
		case name[0] >= 'A' && name[0] <= 'Z', name == "sdir":
		default:
			return fmt.Errorf("%w: extension %q", ErrUnsupported, name)
		}
		p.at += 8 + int(size)
	}
	return nil
}

// sameOffsets reports whether threads that begin at the offsets of an IEOT
// extension, as git's do, read what was read from the start.
func (p *indexParser) sameOffsets(body []byte) bool {
	if len(body) < 4 || len(body)%8 != 4 || binary.BigEndian.Uint32(body) != 1 {
		return false
	}
	next := 0
	for body = body[4:]; len(body) > 0; body = body[8:] {
		if next >= len(p.entries) || p.starts[next] != int(binary.BigEndian.Uint32(body)) || p.shared[next] != 0 {
			return false
		}
		n := binary.BigEndian.Uint32(body[4:])
		if int64(n) > int64(len(p.entries)-next) {
			return false
		}
		next += int(n)
	}
	return next == len(p.entries)
}

// offsetVarint reads the kind of number that packs use for offsets, and how long
// it is: 0 when it is cut short or too large.
func offsetVarint(b []byte) (n uint64, length int) {
	for i, c := range b {
		if i == 8 {
			break
		}
		n = n<<7 | uint64(c&0x7f)
		if c&0x80 == 0 {
			return n, i + 1
		}
		n++
	}
	return 0, 0
}
