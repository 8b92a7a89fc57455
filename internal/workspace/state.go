package workspace

import (
	"errors"
	"os"
	"path/filepath"
)

// StateDir names the directory in which hutch keeps boxes and receipts:
// $XDG_STATE_HOME/hutch when that is set, else ~/.local/state/hutch, or
// /var/lib/hutch for root. It need not exist.
func StateDir() (string, error) {
	// The XDG specification: a relative path is invalid and is ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hutch"), nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/hutch", nil
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/state/hutch"), nil
	}
	return "", errors.New("no state directory: set HOME or XDG_STATE_HOME to an absolute path")
}
