package changeset

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/zeebo/blake3"
)

// digestTag names the algorithm in front of every digest.
const digestTag = "blake3:"

// sparseTag is that of a file which is mostly holes: hashing them takes the
// time of their length, which a box chooses at no cost (truncate -s 8E).
const sparseTag = "blake3-sparse:"

// DigestOf returns the digest of a file with that content and no holes.
func DigestOf(content []byte) string {
	h := blake3.New()
	h.Write(content)
	return formatDigest(h)
}

func formatDigest(h *blake3.Hasher) string { return formatTagged(digestTag, h) }

func formatTagged(tag string, h *blake3.Hasher) string {
	var sum [32]byte
	h.Sum(sum[:0])
	return tag + hex.EncodeToString(sum[:])
}

// validDigest accepts what formatDigest writes.
func validDigest(s string) bool {
	digits, ok := strings.CutPrefix(s, digestTag)
	if !ok {
		digits, ok = strings.CutPrefix(s, sparseTag)
	}
	if !ok || len(digits) != 64 {
		return false
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// seal sorts the entries and computes the digest over them.
func (c *Changeset) seal() {
	slices.SortFunc(c.Entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(c.Skipped, func(a, b Skipped) int { return strings.Compare(a.Path, b.Path) })
	c.Digest = digestOf(c.Entries)
}

// digestOf frames every field with its length, so that no two lists of entries
// are written alike.
func digestOf(entries []Entry) string {
	h := blake3.New()
	var buf []byte
	text := func(s string) {
		buf = binary.AppendUvarint(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	state := func(s *State) {
		if s == nil {
			buf = append(buf, 0)
			return
		}
		buf = append(buf, 1, byte(s.Type))
		buf = binary.AppendUvarint(buf, uint64(s.Mode))
		text(s.Target)
		text(s.Digest)
	}
	text("hutch.changeset/v1")
	for i := range entries {
		e := &entries[i]
		text(e.Path)
		text(string(e.Op))
		state(e.Before)
		state(e.After)
		h.Write(buf)
		buf = buf[:0]
	}
	h.Write(buf)
	return formatDigest(h)
}
