package workspace

import (
	"os"
	"testing"

	"hutch/internal/changeset"
)

func readManifest(t testing.TB, path string) []changeset.Record {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	records, err := changeset.ReadManifest(f)
	must(t, err)
	return records
}
