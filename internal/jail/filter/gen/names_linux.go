package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// unixDir is where the module golang.org/x/sys lies: its tables name the
// system calls of every architecture, but a build only sees its own.
var unixDir = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return "", fmt.Errorf("go list golang.org/x/sys: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "unix"), nil
})

// syscallNumbers returns the named system calls of an architecture.
func syscallNumbers(goarch string) (map[string]uintptr, error) {
	dir, err := unixDir()
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, "zsysnum_linux_"+goarch+".go"), nil, 0)
	if err != nil {
		return nil, err
	}
	numbers := make(map[string]uintptr)
	for _, decl := range file.Decls {
		for _, spec := range decl.(*ast.GenDecl).Specs {
			value := spec.(*ast.ValueSpec)
			name := strings.ToLower(strings.TrimPrefix(value.Names[0].Name, "SYS_"))
			nr, err := strconv.ParseUint(value.Values[0].(*ast.BasicLit).Value, 0, 32)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			numbers[name] = uintptr(nr)
		}
	}
	return numbers, nil
}
