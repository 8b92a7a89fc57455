package fsat

import (
	"errors"
	"fmt"
	"strings"
)

// Type is the kind of a file, independent of the operating system.
type Type uint8

// The kinds of file a tree can hold.
const (
	Unknown Type = iota
	Regular
	Directory
	Symlink
	FIFO
	Socket
	CharDevice
	BlockDevice
)

var typeNames = [...]string{"unknown", "file", "dir", "symlink", "fifo", "socket", "chardev", "blockdev"}

// String returns the name used in JSON and messages.
func (t Type) String() string {
	if int(t) < len(typeNames) {
		return typeNames[t]
	}
	return typeNames[Unknown]
}

// MarshalText implements [encoding.TextMarshaler].
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (t *Type) UnmarshalText(text []byte) error {
	for i, name := range typeNames {
		if name == string(text) {
			*t = Type(i)
			return nil
		}
	}
	return fmt.Errorf("unknown file type %q", text)
}

// Time is a file time: seconds and nanoseconds since the epoch.
type Time struct {
	Sec  int64 `json:"sec"`
	Nsec int64 `json:"nsec"`
}

// Before reports whether t is earlier than u.
func (t Time) Before(u Time) bool {
	return t.Sec < u.Sec || (t.Sec == u.Sec && t.Nsec < u.Nsec)
}

// Stat is what lstat(2) says of one file.
type Stat struct {
	Type  Type
	Mode  uint32 // permission bits with setuid, setgid and sticky: 07777
	UID   uint32
	GID   uint32
	Size  int64 // bytes
	Nlink uint64
	Ino   uint64
	Dev   uint64 // unix.Mkdev encoding
	Rdev  uint64
	Atime Time
	Mtime Time
	Ctime Time
	MntID uint64 // 0 where the kernel does not say
}

// Dirent is one entry of a directory, as getdents64(2) gives it.
type Dirent struct {
	Name string
	Type Type // Unknown where the file system does not say
	Ino  uint64
}

// ErrEscape is returned for a name that is absolute, empty, or holds "." or
// ".." components or a NUL: such a name cannot be meant to stay beneath a
// directory.
var ErrEscape = errors.New("path would leave its directory")

// Check returns ErrEscape unless rel is a clean relative path: "." itself, or
// components joined by single slashes, none of them empty, "." or "..".
func Check(rel string) error {
	if rel == "." {
		return nil
	}
	if strings.IndexByte(rel, 0) >= 0 {
		return fmt.Errorf("%q: %w", rel, ErrEscape)
	}
	for part := range strings.SplitSeq(rel, "/") {
		if part == "" || part == "." || part == ".." {
			return fmt.Errorf("%q: %w", rel, ErrEscape)
		}
	}
	return nil
}

// Split divides a checked relative path into its parent ("." at the top) and
// its last component.
func Split(rel string) (parent, name string) {
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		return rel[:i], rel[i+1:]
	}
	return ".", rel
}

// Join joins a checked relative directory and a name.
func Join(dir, name string) string {
	if dir == "." || dir == "" {
		return name
	}
	return dir + "/" + name
}
