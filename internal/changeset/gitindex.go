package changeset

import (
	"bytes"
	"encoding/binary"
)

// sameIndex reports whether two git index files mean the same: the same names
// with the same content, mode and flags. What git remembers of files to save
// itself a look at them (times, inodes, sizes, caches) is left out: `git status`
// rewrites it, and in a copied tree all of it differs. See gitformat-index(5);
// versions 2 and 3 are understood, any other is never the same.
func sameIndex(a, b []byte) bool {
	left, ok := indexEntries(a)
	if !ok {
		return false
	}
	right, ok := indexEntries(b)
	return ok && bytes.Equal(left, right)
}

// indexEntries returns what an index means, in a form of our own, and false for
// what is not an index of SHA-1 names.
func indexEntries(index []byte) (meaning []byte, ok bool) {
	const (
		head     = 12 // "DIRC", version, number of entries
		stat     = 40 // ctime, mtime, dev, ino, mode, uid, gid, size
		modeAt   = 24
		nameHash = 20
		extended = 0x4000 // a flag: 16 more bits follow
	)
	if len(index) < head || string(index[:4]) != "DIRC" {
		return nil, false
	}
	be := binary.BigEndian
	if version := be.Uint32(index[4:]); version != 2 && version != 3 {
		return nil, false
	}
	count := be.Uint32(index[8:])
	rest := index[head:]
	for range count {
		if len(rest) < stat+nameHash+2 {
			return nil, false
		}
		fixed := stat + nameHash + 2
		if be.Uint16(rest[stat+nameHash:])&extended != 0 {
			fixed += 2
		}
		if len(rest) < fixed {
			return nil, false
		}
		name := bytes.IndexByte(rest[fixed:], 0)
		if name < 0 {
			return nil, false
		}
		meaning = append(meaning, rest[modeAt:modeAt+4]...)
		meaning = append(meaning, rest[stat:fixed+name+1]...)
		size := (fixed + name + 8) &^ 7 // padded with 1 to 8 NULs
		if size > len(rest) {
			return nil, false
		}
		rest = rest[size:]
	}
	return meaning, true
}
