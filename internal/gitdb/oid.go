package gitdb

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
)

// What can be wrong with a repository, for errors.Is.
var (
	ErrNotFound    = errors.New("no such git object")
	ErrCorrupt     = errors.New("damaged or forged git data")
	ErrTooLarge    = errors.New("git data beyond the bounds of what is read")
	ErrUnsupported = errors.New("git repository of a kind that is not read")
	// ErrAlternates comes with ErrNotFound where the repository borrows
	// objects from another one.
	ErrAlternates = errors.New("the repository borrows objects (objects/info/alternates), which are not followed")
)

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
}

// OID is the name of an object: the 20 or 32 raw bytes of its hash, or "" for
// no object.
type OID string

// String returns the name in hexadecimal.
func (id OID) String() string { return hex.EncodeToString([]byte(id)) }

// ParseOID reads a full name in lower-case hexadecimal.
func ParseOID(text string) (OID, error) {
	raw, err := hex.DecodeString(text)
	if err != nil || (len(raw) != sha1.Size && len(raw) != sha256.Size) || hex.EncodeToString(raw) != text {
		return "", corrupt("%.70q is not the name of an object", text)
	}
	return OID(raw), nil
}

// Format is the hash of a repository.
type Format int

// The hashes git knows; their value is the size in bytes.
const (
	SHA1   Format = sha1.Size
	SHA256 Format = sha256.Size
)

func (f Format) new() hash.Hash {
	if f == SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// Kind is the kind of an object, numbered as in a pack.
type Kind uint8

// The kinds of object.
const (
	Commit Kind = 1 + iota
	Tree
	Blob
	Tag
)

var kindNames = [...]string{Commit: "commit", Tree: "tree", Blob: "blob", Tag: "tag"}

// String returns git's name of the kind.
func (k Kind) String() string {
	if k >= Commit && k <= Tag {
		return kindNames[k]
	}
	return "unknown"
}

func parseKind(name string) (Kind, bool) {
	for k := Commit; k <= Tag; k++ {
		if kindNames[k] == name {
			return k, true
		}
	}
	return 0, false
}

// Name returns the name of an object with that content.
func (f Format) Name(kind Kind, content []byte) OID {
	h := f.new()
	h.Write(strconv.AppendInt([]byte(kind.String()+" "), int64(len(content)), 10))
	h.Write([]byte{0})
	h.Write(content)
	return OID(h.Sum(nil))
}
