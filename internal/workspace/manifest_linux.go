package workspace

import (
	"bufio"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

func writeManifest(boxFD int, records []changeset.Record) error {
	fd, err := fsat.Open(boxFD, manifestName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), manifestName)
	defer file.Close()
	buf := bufio.NewWriterSize(file, 256<<10)
	if err := changeset.WriteManifest(buf, records); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return file.Close()
}
