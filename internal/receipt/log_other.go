//go:build !linux

package receipt

import (
	"fmt"
	"os"
	"runtime"
)

func unsupported() error {
	return fmt.Errorf("receipts are not supported on this system yet (%s)", runtime.GOOS)
}

func openFile(path string, flags int) (*os.File, error) { return nil, unsupported() }

func isReadOnlyFS(error) bool { return false }

func lock(*os.File, bool) error { return unsupported() }

func unlock(*os.File) {}

func datasync(*os.File) error { return unsupported() }

func syncDir(string) error { return unsupported() }
