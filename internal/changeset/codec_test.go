package changeset

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"hutch/internal/fsat"
)

var anyPath = rapid.Custom(func(t *rapid.T) string {
	component := rapid.StringMatching(`[a-c]|\.[a-c]|[a-c]\n`)
	path := strings.Join(rapid.SliceOfN(component, 1, 4).Draw(t, "path"), "/")
	if rapid.Bool().Draw(t, "not UTF-8") {
		path += "\xff\xfe"
	}
	return path
})

var anyTime = rapid.Custom(func(t *rapid.T) fsat.Time {
	return fsat.Time{Sec: rapid.Int64().Draw(t, "sec"), Nsec: rapid.Int64Range(0, 1e9-1).Draw(t, "nsec")}
})

var anyState = rapid.Custom(func(t *rapid.T) *State {
	s := &State{
		Type:  fsat.Type(rapid.IntRange(int(fsat.Regular), int(fsat.BlockDevice)).Draw(t, "type")),
		Mode:  rapid.Uint32Range(0, 0o7777).Draw(t, "mode"),
		UID:   rapid.Uint32().Draw(t, "uid"),
		GID:   rapid.Uint32().Draw(t, "gid"),
		Size:  rapid.Int64Min(0).Draw(t, "size"),
		Mtime: anyTime.Draw(t, "mtime"),
	}
	if rapid.Bool().Draw(t, "target") {
		s.Target = string(rapid.SliceOf(rapid.Byte()).Draw(t, "target"))
	}
	if rapid.Bool().Draw(t, "digest") {
		s.Digest = digestTag + strings.Repeat("0f", 32)
	}
	for range rapid.IntRange(0, 2).Draw(t, "xattrs") {
		if s.Xattrs == nil {
			s.Xattrs = map[string][]byte{}
		}
		s.Xattrs["user."+rapid.StringMatching(`[a-z]{1,3}`).Draw(t, "name")] = rapid.SliceOf(rapid.Byte()).Draw(t, "value")
	}
	return s
})

var anyChangeset = rapid.Custom(func(t *rapid.T) *Changeset {
	c := &Changeset{Entries: []Entry{}, GitChanged: rapid.Bool().Draw(t, "git")}
	for _, path := range rapid.SliceOfNDistinct(anyPath, 0, 5, rapid.ID[string]).Draw(t, "paths") {
		e := Entry{Path: path, Op: rapid.SampledFrom(opCodes).Draw(t, "op")}
		if e.Op != Created {
			e.Before = anyState.Draw(t, "before")
		}
		if e.Op != Deleted {
			e.After = anyState.Draw(t, "after")
			e.Source = rapid.SampledFrom([]Root{Layer, Workspace, Picked}).Draw(t, "source")
			e.SourcePath = anyPath.Draw(t, "source path")
		}
		e.BaseIno = rapid.Uint64().Draw(t, "base")
		if rapid.Bool().Draw(t, "rebased") {
			ctime := anyTime.Draw(t, "base ctime")
			e.BaseCtime = &ctime
		}
		e.BaseIndex = rapid.SampledFrom([]string{"", "blake3:00"}).Draw(t, "index")
		e.CopiedUp = rapid.Bool().Draw(t, "copied up")
		c.Entries = append(c.Entries, e)
		if c.Ancestors == nil {
			c.Ancestors = map[string]uint64{}
		}
		parent, _ := fsat.Split(path)
		c.Ancestors[parent] = rapid.Uint64Min(1).Draw(t, "ancestor")
	}
	for _, path := range rapid.SliceOfNDistinct(anyPath, 0, 3, rapid.ID[string]).Draw(t, "skipped") {
		c.Skipped = append(c.Skipped, Skipped{path, "fifo"})
	}
	c.seal()
	return c
})

func encoded(t interface {
	Helper()
	Fatal(...any)
}, c *Changeset) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := c.Encode(&buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestEncodeIsLossless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyChangeset.Draw(t, "changeset")
		data := encoded(t, c)
		got, err := Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		if !bytes.Equal(encoded(t, got), data) {
			t.Fatal("encoded again it differs")
		}
	})
}

func TestDecodeBelievesNothing(t *testing.T) {
	file := func() *State { return &State{Type: fsat.Regular} }
	good := Entry{Path: "p", Op: Created, After: file(), Source: Layer, SourcePath: "p"}
	for name, spoil := range map[string]func(*Entry){
		"dotdot":             func(e *Entry) { e.Path = "../p" },
		"absolute":           func(e *Entry) { e.Path = "/p" },
		"empty":              func(e *Entry) { e.Path = "" },
		"the workspace":      func(e *Entry) { e.Path = "." },
		"NUL":                func(e *Entry) { e.Path = "p\x00" },
		"source outside":     func(e *Entry) { e.SourcePath = "a/../../p" },
		"no source":          func(e *Entry) { e.Source, e.SourcePath = "", "" },
		"no source path":     func(e *Entry) { e.SourcePath = "" },
		"created from one":   func(e *Entry) { e.Before = file() },
		"deleted, but there": func(e *Entry) { e.Op = Deleted },
		"mode":               func(e *Entry) { e.After.Mode = 0o10000 },
		"type":               func(e *Entry) { e.After.Type = 99 },
		"size":               func(e *Entry) { e.After.Size = -1 },
		"digest":             func(e *Entry) { e.After.Digest = "md5:1" },
		"attribute":          func(e *Entry) { e.After.Xattrs = map[string][]byte{"trusted.overlay.opaque": []byte("y")} },
		"time":               func(e *Entry) { e.After.Mtime.Nsec = 1e9 },
	} {
		e := good
		e.After = file()
		spoil(&e)
		c := &Changeset{Entries: []Entry{e}}
		c.seal()
		if _, err := Decode(bytes.NewReader(encoded(t, c))); err == nil {
			t.Errorf("%s: believed", name)
		}
	}
	second := good
	second.Path = "a"
	c := &Changeset{Entries: []Entry{good, second}}
	c.Digest = digestOf(c.Entries)
	if _, err := Decode(bytes.NewReader(encoded(t, c))); err == nil {
		t.Error("out of order: believed")
	}
	c = &Changeset{Entries: []Entry{good}, Digest: digestTag + strings.Repeat("0", 64)}
	if _, err := Decode(bytes.NewReader(encoded(t, c))); err == nil {
		t.Error("a digest of something else: believed")
	}
}

func TestDamageIsNoticed(t *testing.T) {
	c := &Changeset{Entries: []Entry{{Path: "p", Op: Created, After: &State{Type: fsat.Regular}, Source: Layer, SourcePath: "p"}}}
	c.seal()
	var manifest bytes.Buffer
	if err := WriteManifest(&manifest, someRecords(3)); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]struct {
		data []byte
		read func([]byte) error
	}{
		"changeset": {encoded(t, c), func(b []byte) error { _, err := Decode(bytes.NewReader(b)); return err }},
		"manifest":  {manifest.Bytes(), func(b []byte) error { _, err := ReadManifest(bytes.NewReader(b)); return err }},
	} {
		if err := file.read(file.data); err != nil {
			t.Fatal(err)
		}
		for i := range file.data {
			bad := bytes.Clone(file.data)
			bad[i] ^= 0x10
			if file.read(bad) == nil {
				t.Errorf("%s: byte %d was changed and nobody noticed", name, i)
			}
			if file.read(file.data[:i]) == nil {
				t.Errorf("%s: cut at byte %d and nobody noticed", name, i)
			}
		}
		if file.read(append(bytes.Clone(file.data), 0)) == nil {
			t.Errorf("%s: a byte more and nobody noticed", name)
		}
		newer := bytes.Clone(file.data)
		newer[7]++
		if err := file.read(newer); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("version %d", newer[7])) {
			t.Errorf("%s: a later version: %v", name, err)
		}
	}
}

func someRecords(n int) []Record {
	records := make([]Record, n)
	for i := range records {
		records[i] = Record{
			Path: fmt.Sprintf("dir\xff/sub%d/file%d", i%100, i),
			Copy: fsat.Stat{
				Type: fsat.Regular, Mode: 0o644, UID: 1000, GID: 1000, Size: int64(i), Ino: uint64(i) << 20,
				Mtime: fsat.Time{Sec: -int64(i), Nsec: 999_999_999}, Ctime: fsat.Time{Sec: 1 << 31, Nsec: int64(i)},
			},
			HostIno: uint64(i),
		}
	}
	return records
}

func TestManifestIsLossless(t *testing.T) {
	for _, n := range []int{0, 1, 10_000} {
		want := someRecords(n)
		var buf bytes.Buffer
		if err := WriteManifest(&buf, want); err != nil {
			t.Fatal(err)
		}
		got, err := ReadManifest(&buf)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d records came back as others", n)
		}
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, fmt.Errorf("disk full")
	}
	return len(b), nil
}

func TestWriteErrorsAreReported(t *testing.T) {
	records := someRecords(10_000)
	var size bytes.Buffer
	if err := WriteManifest(&size, records); err != nil {
		t.Fatal(err)
	}
	for _, room := range []int{0, 100_000, size.Len() - 1} {
		if err := WriteManifest(&failingWriter{room}, records); err == nil {
			t.Errorf("%d bytes of room were enough", room)
		}
	}
	if err := (&Changeset{}).Encode(&failingWriter{}); err == nil {
		t.Error("no room was enough")
	}
}

// withSum appends the checksum, so that the fuzzer gets past it.
func withSum(magic string, body []byte) []byte {
	data := append([]byte(magic), body...)
	return binary.BigEndian.AppendUint32(data, crc32.Checksum(data, castagnoli()))
}

func body(data []byte) []byte { return data[len(encodeMagic) : len(data)-sumSize] }

func FuzzManifest(f *testing.F) {
	for _, n := range []int{0, 1, 5} {
		var buf bytes.Buffer
		if err := WriteManifest(&buf, someRecords(n)); err != nil {
			f.Fatal(err)
		}
		f.Add(body(buf.Bytes()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := ReadManifest(bytes.NewReader(withSum(manifestMagic, b)))
		if err != nil {
			return
		}
		for _, r := range records {
			if fsat.Check(r.Path) != nil {
				t.Fatalf("path %q", r.Path)
			}
		}
		var buf bytes.Buffer
		if err := WriteManifest(&buf, records); err != nil {
			t.Fatal(err)
		}
		again, err := ReadManifest(&buf)
		if err != nil || !slices.Equal(again, records) {
			t.Fatalf("written and read again it differs: %v", err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for seed := range 5 {
		f.Add(body(encoded(f, anyChangeset.Example(seed))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(bytes.NewReader(withSum(encodeMagic, b)))
		if err != nil {
			return
		}
		for _, e := range c.Entries {
			if fsat.Check(e.Path) != nil || e.After != nil && fsat.Check(e.SourcePath) != nil {
				t.Fatalf("paths %q, %q", e.Path, e.SourcePath)
			}
		}
		again, err := Decode(bytes.NewReader(encoded(t, c)))
		if err != nil || !cmp.Equal(c, again) {
			t.Fatalf("written and read again it differs: %v", err)
		}
	})
}

func BenchmarkManifest(b *testing.B) {
	records := someRecords(100_000)
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			if err := WriteManifest(&bytes.Buffer{}, records); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		var buf bytes.Buffer
		if err := WriteManifest(&buf, records); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := ReadManifest(bytes.NewReader(buf.Bytes())); err != nil {
				b.Fatal(err)
			}
		}
	})
}
