package box

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hutch/internal/promote"
)

const keyName = "key"

// key returns what authenticates the transactions of this state directory in
// workspaces. It is made when it is first wanted.
func (s *Store) key() (promote.Key, error) {
	key, err := s.readKey()
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeKey(); err != nil {
			return key, stateError(err)
		}
		key, err = s.readKey()
	}
	return key, err
}

func (s *Store) readKey() (key promote.Key, err error) {
	path := filepath.Join(s.Path, keyName)
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return key, err
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return key, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != int64(len(key)) || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return key, fmt.Errorf("%s: not a key of %d bytes that only you can read; restore it, or remove it, and then nothing promoted before can be undone", path, len(key))
	}
	if n, err := file.ReadAt(key[:], 0); n != len(key) {
		return key, fmt.Errorf("%s: %w", path, err)
	}
	if key == (promote.Key{}) { // what a power cut leaves of a file that was not synced
		return key, fmt.Errorf("%s: it is all zeros; remove it, and then nothing promoted before can be undone", path)
	}
	return key, nil
}

// makeKey puts a new key in place, whole and durable, unless another process
// was first.
func (s *Store) makeKey() error {
	var key promote.Key
	_, _ = rand.Read(key[:]) // never fails
	path := filepath.Join(s.Path, keyName)
	temp := path + "." + newID()
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	defer file.Close()
	if _, err := file.Write(key[:]); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	// A link and not a rename: it fails where a key is already.
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := os.Open(s.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
