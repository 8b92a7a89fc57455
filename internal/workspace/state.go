package workspace

import (
	"errors"
	"fmt"
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

// Socket names the socket of the daemon: $HUTCH_SOCKET when that is set, else
// $XDG_RUNTIME_DIR/hutch/hutchd.sock, else hutchd.sock in the state directory.
// It need not exist.
func Socket() (string, error) {
	if path := os.Getenv("HUTCH_SOCKET"); path != "" {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("HUTCH_SOCKET %q: give an absolute path", path)
		}
		return path, nil
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "hutch", "hutchd.sock"), nil
	}
	dir, err := StateDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "hutchd.sock"), nil
}
