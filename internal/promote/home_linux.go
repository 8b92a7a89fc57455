package promote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

const txnPrefix = "txn-"

// The files of a transaction's directory, beside its slots. Which one is
// there is the state.
const (
	journalTmp  = "journal.tmp"
	journalFile = "journal" // committed: goes forward
	backFile    = "back"    // being reversed: goes back
	doneFile    = "done"
	abortedFile = "aborted"
	afterTmp    = "after.tmp"
	afterFile   = "after"
	undoTmp     = "undo.tmp"
	undoingFile = "undoing" // beside done: the undo goes on to its end
	redoingFile = "redoing" // beside done: the undo failed, and is itself reversed
	undoneFile  = "undone"  // beside done
)

// shed is the locked .hutch of a workspace.
type shed struct {
	ws   int
	fd   int
	auth authority
}

// openShed locks an existing .hutch; it is nil when there is none.
func openShed(ctx context.Context, ws int, key Key) (*shed, error) {
	if key == (Key{}) {
		return nil, errors.New("no key was given to authenticate journals with")
	}
	for {
		fd, err := fsat.OpenDir(ws, home)
		if errors.Is(err, unix.ENOENT) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s is not a plain directory, so nothing can be promoted here; move it away: %w", home, err)
		}
		s := &shed{ws: ws, fd: fd, auth: authority{key: key}}
		if err := s.checkOwner(); err != nil {
			s.close()
			return nil, err
		}
		if err := lock(ctx, fd); err != nil {
			s.close()
			return nil, err
		}
		// Prune of another process may have removed the directory while
		// this one waited for the lock on it.
		mine, err := fsat.Fstat(fd)
		if err != nil {
			s.close()
			return nil, err
		}
		if now, err := fsat.LstatName(ws, home); err != nil || now.Ino != mine.Ino || now.Dev != mine.Dev {
			s.close()
			continue
		}
		if s.auth.ino, s.auth.born, err = origin(ws); err != nil {
			s.close()
			return nil, err
		}
		return s, nil
	}
}

// origin tells the workspace's root from any copy of it.
func origin(ws int) (ino uint64, born fsat.Time, err error) {
	var st unix.Statx_t
	if err := unix.Statx(ws, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return 0, born, fmt.Errorf("stat the workspace: %w", err)
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		born = fsat.Time{Sec: st.Btime.Sec, Nsec: int64(st.Btime.Nsec)}
	}
	return st.Ino, born, nil
}

// makeShed is openShed that creates .hutch when it is missing.
func makeShed(ctx context.Context, ws int, key Key) (*shed, error) {
	for {
		err := mkdir(ws, home, 0o700)
		fresh := err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		s, err := openShed(ctx, ws, key)
		if err != nil {
			if fresh {
				_ = rmdir(ws, home)
			}
			return nil, err
		}
		if s == nil {
			continue
		}
		if err := s.furnish(); err != nil {
			s.leave()
			return nil, err
		}
		return s, nil
	}
}

// furnish gives .hutch its mode, owner and .gitignore.
func (s *shed) furnish() error {
	st, err := fsat.Fstat(s.fd)
	if err != nil {
		return err
	}
	if st.Mode != 0o700 {
		if err := chmod(s.fd, 0o700); err != nil {
			return err
		}
	}
	// Root in a user's workspace leaves a directory that the user can use.
	if owner, err := fsat.Fstat(s.ws); err == nil && os.Geteuid() == 0 && st.UID == 0 && owner.UID != 0 {
		if err := fchown(s.fd, owner.UID, owner.GID); err != nil {
			return err
		}
	}
	// A default ACL of the workspace would be inherited by all that is
	// staged here.
	if _, ok, err := fsat.Xattr(s.fd, "system.posix_acl_default"); err == nil && ok {
		if err := removeXattr(s.fd, "system.posix_acl_default"); err != nil {
			return err
		}
	}
	if _, err := fsat.LstatName(s.fd, ".gitignore"); err == nil {
		return nil
	}
	fd, err := createFile(s.fd, ".gitignore")
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write(fd, []byte("*\n"))
}

// checkOwner refuses a .hutch that someone else could have filled: a journal
// is an order to move files.
func (s *shed) checkOwner() error {
	st, err := fsat.Fstat(s.fd)
	if err != nil {
		return err
	}
	euid := uint32(os.Geteuid())
	if st.UID == euid {
		return nil
	}
	if owner, err := fsat.Fstat(s.ws); err == nil && euid == 0 && st.UID == owner.UID {
		return nil
	}
	return fmt.Errorf("%s belongs to uid %d, not to %d: run hutch as its owner, or remove it", home, st.UID, euid)
}

// lock takes the exclusive lock that serialises promotions. It polls so that
// ctx can end the wait.
func lock(ctx context.Context, fd int) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", home, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another promotion is under way: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}

// close gives up the lock, even where a process that is being started has a copy
// of the descriptor until its exec.
func (s *shed) close() {
	_ = unix.Flock(s.fd, unix.LOCK_UN)
	unix.Close(s.fd)
}

// ids returns the transactions in .hutch.
func (s *shed) ids() ([]string, error) {
	entries, err := fsat.ReadDir(s.fd)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		// What is no directory never was a transaction: it came with an archive.
		if id, ok := strings.CutPrefix(e.Name, txnPrefix); ok && checkID(id) == nil && (e.Type == fsat.Directory || e.Type == fsat.Unknown) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// leave gives up the lock. When no transaction is left it removes .hutch
// first, best effort: an empty one does no harm.
func (s *shed) leave() {
	defer s.close()
	entries, err := fsat.ReadDir(s.fd)
	if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name != ".gitignore" {
		return
	}
	if len(entries) == 1 {
		if err := unlink(s.fd, ".gitignore"); err != nil {
			return
		}
	}
	_ = rmdir(s.ws, home)
}

// state tells how far the transaction in the directory txn came.
func state(txn int) (State, error) {
	for _, f := range []struct {
		name  string
		state State
	}{
		// In this order: an undo leaves done where it is.
		{abortedFile, Aborted}, {undoneFile, Undone}, {undoingFile, Undoing}, {redoingFile, Redoing},
		{doneFile, Done}, {backFile, Reversing}, {journalFile, Committed},
	} {
		_, err := fsat.LstatName(txn, f.name)
		if err == nil {
			return f.state, nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return "", err
		}
	}
	return Unstarted, nil
}

// Status tells how far the transaction id came in the workspace.
func Status(workspaceFD int, id string) (State, error) {
	if err := checkID(id); err != nil {
		return "", err
	}
	txn, err := fsat.OpenDir(workspaceFD, home+"/"+txnPrefix+id)
	if errors.Is(err, unix.ENOENT) {
		return Absent, nil
	}
	if err != nil {
		return "", err
	}
	defer unix.Close(txn)
	return state(txn)
}

// Pending reports whether the workspace holds a transaction that Recover would
// complete; one that is being promoted right now counts too.
func Pending(workspaceFD int) (bool, error) {
	fd, err := fsat.OpenDir(workspaceFD, home)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s is not a plain directory, so nothing can be promoted here; move it away: %w", home, err)
	}
	s := &shed{ws: workspaceFD, fd: fd}
	defer s.close()
	ids, err := s.ids()
	if err != nil {
		return false, err
	}
	for _, id := range ids {
		st, err := Status(workspaceFD, id)
		if err != nil {
			return false, err
		}
		if !st.settled() {
			return true, nil
		}
	}
	return false, nil
}
