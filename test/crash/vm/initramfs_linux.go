package main

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"slices"
)

// initramfs packs files into an archive that a kernel unpacks as its first root
// (cpio's "newc" form: Documentation/driver-api/early-userspace/buffer-format.rst).
func initramfs(to string, dirs []string, files map[string]string) error {
	var buf bytes.Buffer
	ino := 0
	add := func(name string, mode int, content []byte) {
		ino++
		fmt.Fprintf(&buf, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", ino, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
		buf.WriteString(name + "\x00")
		pad(&buf)
		buf.Write(content)
		pad(&buf)
	}
	for _, dir := range dirs {
		add(dir, 0o40755, nil)
	}
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		content, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		add(path.Clean(name), 0o100755, content)
	}
	add("TRAILER!!!", 0, nil)
	return os.WriteFile(to, buf.Bytes(), 0o644)
}

func pad(buf *bytes.Buffer) {
	for buf.Len()%4 != 0 {
		buf.WriteByte(0)
	}
}
