package changeset

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func hashOf(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	digest, err := hashFile(int(f.Fd()), make([]byte, readSize))
	must(t, err)
	return digest
}

// The length of a file costs a box nothing; it must not cost us more.
func TestSparseFileIsHashedByItsData(t *testing.T) {
	dir := t.TempDir()
	make := func(name string, size int64, at int64, text string) string {
		f, err := os.Create(filepath.Join(dir, name))
		must(t, err)
		defer f.Close()
		must(t, f.Truncate(size))
		_, err = f.WriteAt([]byte(text), at)
		must(t, err)
		return hashOf(t, f.Name())
	}
	const tera = 1 << 40
	a := make("a", tera, 5<<30, "data")
	if !strings.HasPrefix(a, sparseTag) || !validDigest(a) {
		t.Fatalf("digest %s", a)
	}
	if b := make("b", tera, 5<<30, "data"); b != a {
		t.Errorf("equal files: %s and %s", a, b)
	}
	for what, other := range map[string]string{
		"content": make("c", tera, 5<<30, "dato"), "place": make("d", tera, 6<<30, "data"), "size": make("e", tera+1, 5<<30, "data"),
	} {
		if other == a {
			t.Errorf("another %s has the same digest", what)
		}
	}
	if zeros := make("f", tera, 5<<30, "\x00\x00"); zeros != make("g", tera, 7<<30, "\x00") {
		t.Error("zeros that are written differ from a hole")
	}
}

func TestSparseAndDenseFileOfEqualContentAreEqual(t *testing.T) {
	h := newHandmade(t)
	const size = sparseSize + 5
	must(t, os.WriteFile(h.host+"/f", make([]byte, size), 0o644))
	must(t, os.WriteFile(h.layer+"/f", nil, 0o644))
	must(t, os.Truncate(h.layer+"/f", size))
	if c := h.read(); len(c.Entries) != 0 {
		t.Errorf("entries %+v", c.Entries)
	}
	must(t, os.Truncate(h.layer+"/f", size+1))
	if c := h.read(); len(c.Entries) != 1 {
		t.Errorf("entries %+v", c.Entries)
	}
}
