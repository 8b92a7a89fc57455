package compat

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

//go:embed jobs/*.sh
var scripts embed.FS

// The kinds of job.
const (
	core    = "core"    // its programs must be here, and it runs every time
	light   = "light"   // make test does a few, by seed
	heavy   = "heavy"   // takes long: make test does one, by seed
	long    = "long"    // takes minutes where caches are cold: only for the table and the proof
	refused = "refused" // what a box does not do, and says so
)

// A job is a file of jobs/: a header of "# key: value" lines, a function job,
// and maybe a function before, which prepares the workspace on the host.
type job struct {
	name    string // of the file
	program string // as the table calls it
	version string // a command that prints it
	does    string
	kind    string
	needs   []string // commands; none named: the program
	has     string   // a command that fails where something else is not here
	exit    int
	makes   []string       // paths that must be there when it is done
	differs *regexp.Regexp // paths whose content is another each time
	varies  *regexp.Regexp // paths that may be missing from one tree
	refusal *regexp.Regexp // what a refused program says
	note    string         // what it needs otherwise
	before  bool
	script  string
}

// jobs reads the table of jobs, in the order of their kinds and names.
func jobs(t *testing.T) []job {
	t.Helper()
	files, err := fs.Glob(scripts, "jobs/*.sh")
	if err != nil {
		t.Fatal(err)
	}
	var all []job
	for _, kind := range []string{core, light, heavy, long, refused} {
		for _, file := range files {
			text, err := scripts.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			j, err := parse(strings.TrimSuffix(strings.TrimPrefix(file, "jobs/"), ".sh"), string(text))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if j.kind == kind {
				all = append(all, j)
			}
		}
	}
	if len(all) != len(files) {
		t.Fatalf("%d files, but %d jobs of a known kind", len(files), len(all))
	}
	return all
}

func parse(name, text string) (job, error) {
	j := job{name: name, script: text, before: strings.Contains(text, "\nbefore() {")}
	for line := range strings.Lines(text) {
		header, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# ")
		if !ok {
			break
		}
		key, value, _ := strings.Cut(header, ": ")
		var err error
		switch key {
		case "program":
			j.program = value
		case "version":
			j.version = value
		case "does":
			j.does = value
		case "kind":
			j.kind = value
		case "needs":
			j.needs = strings.Fields(value)
		case "has":
			j.has = value
		case "exit":
			j.exit, err = strconv.Atoi(value)
		case "makes":
			j.makes = strings.Fields(value)
		case "differs":
			j.differs, err = regexp.Compile(value)
		case "varies":
			j.varies, err = regexp.Compile(value)
		case "refusal":
			j.refusal, err = regexp.Compile(value)
		case "note":
			j.note = value
		default:
			err = fmt.Errorf("no such key: %s", key)
		}
		if err != nil {
			return j, err
		}
	}
	if len(j.needs) == 0 {
		j.needs = []string{j.program}
	}
	switch {
	case j.program == "" || j.version == "" || j.does == "" || !strings.Contains(text, "\njob() {"):
		return j, fmt.Errorf("lacks a program, its version, what it does, or the function job")
	case (j.kind == refused) != (j.refusal != nil):
		return j, fmt.Errorf("what is refused says by what words, and nothing else does")
	case j.kind == refused && j.note == "":
		return j, fmt.Errorf("what is refused says in a note why")
	case j.kind != refused && len(j.makes) == 0:
		return j, fmt.Errorf("makes nothing by which one could see that it was done")
	}
	return j, nil
}

// command is the argument vector of one of a job's functions.
func (j job) command(function string) []string {
	return []string{"bash", "-c", "set -euo pipefail\n" + j.script + "\n" + function}
}
