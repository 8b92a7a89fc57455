package machine

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"strings"
)

// Archive is the first root file system of a guest (cpio's "newc" form:
// Documentation/driver-api/early-userspace/buffer-format.rst). All in it is
// root's. What lies in a directory comes after the directory.
type Archive struct {
	buf  bytes.Buffer
	ino  int
	dirs map[string]bool
}

// Dir adds a directory, and those above it.
func (a *Archive) Dir(name string) {
	name = strings.Trim(path.Clean(name), "/")
	if name == "." || name == "" || a.dirs[name] {
		return
	}
	a.Dir(path.Dir(name))
	if a.dirs == nil {
		a.dirs = map[string]bool{}
	}
	a.dirs[name] = true
	a.add(name, 0o40755, nil)
}

// Link adds a symbolic link.
func (a *Archive) Link(name, target string) {
	a.Dir(path.Dir(name))
	a.add(name, 0o120777, []byte(target))
}

// Text adds a file with a content.
func (a *Archive) Text(name, content string) {
	a.Dir(path.Dir(name))
	a.add(name, 0o100644, []byte(content))
}

// File adds a file of the host, executable where that is.
func (a *Archive) File(name, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	st, err := os.Stat(from)
	if err != nil {
		return err
	}
	a.Dir(path.Dir(name))
	a.add(name, 0o100644|int(st.Mode().Perm()&0o111), content)
	return nil
}

func (a *Archive) add(name string, mode int, content []byte) {
	a.ino++
	name = strings.TrimPrefix(path.Clean(name), "/")
	fmt.Fprintf(&a.buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", a.ino, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(content)
	a.pad()
}

func (a *Archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

// Write ends the archive and writes it out.
func (a *Archive) Write(to string) error {
	a.add("TRAILER!!!", 0, nil)
	return os.WriteFile(to, a.buf.Bytes(), 0o644)
}
