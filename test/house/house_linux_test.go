package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// top is the root of the repository as seen from this package.
const top = "../.."

// rooms returns the directories below internal/ that hold Go code, relative
// to it.
func rooms(t *testing.T) []string {
	t.Helper()
	var list []string
	base := filepath.Join(top, "internal")
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if d.Name() == "testdata" {
			return filepath.SkipDir
		}
		if files, _ := filepath.Glob(filepath.Join(path, "*.go")); len(files) > 0 {
			rel, _ := filepath.Rel(base, path)
			list = append(list, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 8 {
		t.Fatalf("only %d rooms found: %q", len(list), list)
	}
	return list
}

// parse reads the Go files of a directory, tests left out.
func parse(t *testing.T, dir string) map[string]*ast.File {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	parsed := map[string]*ast.File{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		parsed[name] = f
	}
	return parsed
}

func TestEveryRoomSaysWhatItIsFor(t *testing.T) {
	for _, room := range rooms(t) {
		said := false
		for _, f := range parse(t, filepath.Join(top, "internal", room)) {
			said = said || (f.Doc != nil && len(f.Doc.Text()) > 40)
		}
		if !said {
			t.Errorf("internal/%s opens with no package comment", room)
		}
	}
}

func TestTopRoomsSayWhatTheyMayTouch(t *testing.T) {
	for _, room := range rooms(t) {
		if strings.Contains(room, "/") {
			continue
		}
		said := false
		for _, f := range parse(t, filepath.Join(top, "internal", room)) {
			said = said || (f.Doc != nil && strings.Contains(f.Doc.Text(), "It may touch:"))
		}
		if !said {
			t.Errorf("the package comment of internal/%s does not say what it may touch", room)
		}
	}
}

// allowed says which rooms each room may import. Data flows one way:
// policy -> plan, workspace -> changeset -> guard -> promote, everything -> box. A room
// that is not here must be added, with a thought.
var allowed = map[string][]string{
	"fsat":      {},
	"plan":      {},
	"receipt":   {},
	"changeset": {"fsat", "gitdb"},
	"gitdb":     {"fsat"},
	"workspace": {"fsat", "changeset", "gitdb"},
	"promote":   {"fsat", "changeset", "workspace"},
	"globs":     {},
	"term":      {},
	"merge":     {"fsat", "changeset", "gitdb", "globs"},
	"guard":     {"fsat", "changeset", "globs", "gitdb"},
	"outcome":   {"changeset", "promote", "guard"},
	"api":       {"outcome", "policy"},
	"layers":    {"fsat", "changeset", "workspace"},
	"client":    {"api", "outcome"},
	"daemon":    {"api", "box", "outcome", "changeset", "policy"},
	"view":      {"fsat", "globs"},
	"policy":    {"plan", "view", "fsat", "globs"},
	"jail":      {"plan", "fsat"},
	"supervise": {"jail", "plan", "outcome", "fsat"},
	"box":       {"policy", "view", "plan", "workspace", "jail", "supervise", "term", "changeset", "globs", "gitdb", "guard", "merge", "promote", "receipt", "outcome", "fsat", "api", "layers"},
}

// roomOf returns the top room of an import path: what lies below a room is
// part of it.
func roomOf(path string) string {
	room, _, _ := strings.Cut(strings.TrimPrefix(path, "hutch/internal/"), "/")
	return room
}

func TestRoomsImportOneWay(t *testing.T) {
	for _, room := range rooms(t) {
		own := roomOf("hutch/internal/" + filepath.ToSlash(room))
		may, known := allowed[own]
		for name, f := range parse(t, filepath.Join(top, "internal", room)) {
			for _, imp := range f.Imports {
				p, _ := strconv.Unquote(imp.Path.Value)
				if p == "hutch" || strings.HasPrefix(p, "hutch/cmd") || strings.HasPrefix(p, "hutch/test") {
					t.Errorf("%s reaches back to %s", name, p)
				}
				if !strings.HasPrefix(p, "hutch/internal/") || roomOf(p) == own {
					continue
				}
				if !known {
					t.Errorf("%s imports %s, but what internal/%s may import is not written down in this test", name, p, own)
				} else if !slices.Contains(may, roomOf(p)) {
					t.Errorf("%s imports %s; internal/%s may import only %q", name, p, own, may)
				}
			}
		}
	}
}

func TestOnlyTheFrontImportsBox(t *testing.T) {
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		rel, _ := filepath.Rel(top, p)
		if !strings.HasSuffix(rel, ".go") || strings.HasPrefix(rel, "internal/box/") || strings.HasPrefix(rel, "internal/daemon/") || strings.HasPrefix(rel, "cmd/") || !strings.Contains(rel, "/") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			if imp.Path.Value == `"hutch/internal/box"` {
				t.Errorf("%s imports internal/box", rel)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pathCalls name files by a string. In a tree that a box or another user can
// change, a directory in the middle of the string can be swapped for a symlink
// between the check and the use; a descriptor cannot.
var pathCalls = map[string][]string{
	"os": {
		"Open", "OpenFile", "Create", "CreateTemp", "ReadFile", "WriteFile", "ReadDir", "Rename", "Remove", "RemoveAll", "Mkdir", "MkdirAll",
		"MkdirTemp", "Chmod", "Chown", "Lchown", "Chtimes", "Truncate", "Symlink", "Link", "Readlink", "Stat", "Lstat", "Chdir", "DirFS", "CopyFS",
	},
	"unix": {
		"Open", "Creat", "Rename", "Unlink", "Rmdir", "Mkdir", "Mknod", "Mkfifo", "Chmod", "Chown", "Lchown", "Utimes", "UtimesNano", "Truncate",
		"Symlink", "Link", "Readlink", "Stat", "Lstat", "Chdir", "Setxattr", "Lsetxattr", "Getxattr", "Lgetxattr", "Statfs",
	},
	"filepath": {"Walk", "WalkDir", "Glob", "EvalSymlinks"},
}

// ofTheKernel reports whether an argument is a constant path in /proc or /sys,
// where no one can put a symlink.
func ofTheKernel(arg ast.Expr) bool {
	lit, ok := arg.(*ast.BasicLit)
	return ok && (strings.HasPrefix(lit.Value, `"/proc/`) || strings.HasPrefix(lit.Value, `"/sys/`))
}

func TestNoPathStringsWhereLayersAreRead(t *testing.T) {
	for _, room := range []string{"changeset", "promote"} {
		for name, f := range parse(t, filepath.Join(top, "internal", room)) {
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || (len(call.Args) > 0 && ofTheKernel(call.Args[0])) {
					return true
				}
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Obj == nil && slices.Contains(pathCalls[strings.Replace(pkg.Name, "syscall", "unix", 1)], sel.Sel.Name) {
					t.Errorf("%s calls %s.%s: a path string can be redirected by a swapped symlink (CVE-2024-21626, CVE-2025-31133 are of this kind); go through internal/fsat", name, pkg.Name, sel.Sel.Name)
				}
				return true
			})
		}
	}
}

func deps(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", pkg)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	return strings.Fields(string(out))
}

func TestTheCLIStaysLight(t *testing.T) {
	// What is linked is initialised at each start.
	heavy := []string{"net/http", "crypto/tls", "gvisor.dev/", "github.com/moby/", "github.com/prometheus/", "github.com/danielgtaylor/", "github.com/coder/", "hutch/internal/daemon", "html/template"}
	all := deps(t, "./cmd/hutch")
	if !slices.Contains(all, "hutch/internal/box") {
		t.Errorf("cmd/hutch does not import internal/box: is this its list? %q", all)
	}
	for _, dep := range all {
		for _, h := range heavy {
			if dep == h || strings.HasSuffix(h, "/") && strings.HasPrefix(dep, h) {
				t.Errorf("cmd/hutch links %s", dep)
			}
		}
	}
}

func TestCgoIsNotUsed(t *testing.T) {
	for _, room := range rooms(t) {
		for name, f := range parse(t, filepath.Join(top, "internal", room)) {
			for _, imp := range f.Imports {
				if imp.Path.Value == `"C"` {
					t.Errorf("%s uses cgo", name)
				}
			}
		}
	}
}

func TestUnsafeIsInFilesThatSaySo(t *testing.T) {
	for _, room := range rooms(t) {
		for name, f := range parse(t, filepath.Join(top, "internal", room)) {
			for _, imp := range f.Imports {
				if imp.Path.Value == `"unsafe"` && !strings.Contains(path.Base(name), "unsafe") {
					t.Errorf("%s imports unsafe; put it into a file named *_unsafe*.go", name)
				}
			}
		}
	}
}

// foreign is what ties a repository to one machine. The patterns do not match
// themselves.
var foreign = []struct {
	what string
	re   *regexp.Regexp
}{
	{"a path of one machine", regexp.MustCompile(`(^|[^A-Za-z0-9_.])/([w]ork|[f]arm)/`)},
	{"a registry host", regexp.MustCompile(`[r]egistry\.npmjs\.org|[p]roxy\.golang\.org|[f]iles\.pythonhosted\.org|[p]ypi\.org/simple|[s]tatic\.crates\.io|[d]eb\.debian\.org|[r]epo1?\.maven`)},
	{"a registry setting", regexp.MustCompile(`"resolved": *"[h]ttp|([G]OPROXY|[r]egistry|[i]ndex-url) *[=:] *"?http`)},
}

func TestNothingForeignInTheRepository(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "build", ".hutch"}, rel) {
				return filepath.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || filepath.Base(p) == "go.sum" || rel == ".git" {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		seen++
		if bytes.IndexByte(b, 0) >= 0 {
			return nil // binary
		}
		for i, line := range bytes.Split(b, []byte("\n")) {
			for _, f := range foreign {
				if f.re.Match(line) {
					t.Errorf("%s:%d holds %s: %s", rel, i+1, f.what, bytes.TrimSpace(line))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Errorf("only %d files were looked at", seen)
	}
}
