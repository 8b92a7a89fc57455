package compat

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const (
	document = "../../docs/compatibility.md"
	notHere  = "not here"
)

// row is what the table says of a job beside what its file does.
type row struct {
	version string
	results map[string]string // by way
}

const intro = `# Programs in a box

Each line is a job of a real program under the default policy: no flags, no network, nothing granted. ` + "`make compat`" + ` does every job
twice at the same path, bare and in a box whose change is promoted, and compares exit code, output and the tree that it made; *works*
means that all three agreed. *Not here* means that the machine of this table lacks the program, and nothing is known. The jobs are in ` + "`test/compat/jobs`" + `.

Made on %s by make compat.

| program | version | what was done | as uid 1000 | as root | note |
|---|---|---|---|---|---|
`

// write writes the table. What this run did not do keeps
// its cell.
func write(t *testing.T, all []job, table map[string]*row) {
	t.Helper()
	text, _ := os.ReadFile(document)
	for _, cells := range lines(string(text)) {
		for _, j := range all {
			if j.program != cells[0] {
				continue
			}
			if table[j.name] == nil {
				table[j.name] = &row{version: cells[1], results: map[string]string{}}
			}
			for i, way := range []string{"user", "root"} {
				if r := table[j.name].results; r[way] == "" {
					r[way] = cells[3+i]
				}
			}
		}
	}
	var out strings.Builder
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(uts.Release[:]), "-")
	fmt.Fprintf(&out, intro, "Linux "+release+", "+unix.ByteSliceToString(uts.Machine[:]))
	for _, j := range all {
		r := table[j.name]
		if r == nil {
			r = &row{}
		}
		cells := []string{j.program, r.version, j.does, r.results["user"], r.results["root"], j.note}
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | "))
	}
	if err := os.WriteFile(document, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// lines returns the cells of a document's table, but for its head.
func lines(text string) [][]string {
	var all [][]string
	for line := range strings.Lines(text) {
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "| ")
		if !ok {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, "|")+" ", " | ")
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), `\|`, "|")
		}
		if len(cells) == 6 && cells[0] != "program" {
			all = append(all, cells)
		}
	}
	return all
}

func TestDocumentListsExactlyTheJobs(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	var listed, want []string
	for _, cells := range lines(string(text)) {
		listed = append(listed, strings.Join([]string{cells[0], cells[2], cells[5]}, " | "))
		for _, result := range cells[3:5] {
			if result != "works" && result != "refused" && result != notHere {
				t.Errorf("%s: %q", cells[0], result)
			}
		}
	}
	for _, j := range jobs(t) {
		want = append(want, strings.Join([]string{j.program, j.does, j.note}, " | "))
	}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("%s does not list the jobs (make compat): -want +listed\n%s", document, diff)
	}
}
