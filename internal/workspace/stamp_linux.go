package workspace

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// TakeStamp takes T, on the clock of the workspace's file system. It leaves no
// trace: the file it touches has no name, and the times of the directory do
// not change.
func TakeStamp(ws *Workspace) (Stamp, error) {
	var s Stamp
	ws.holdIndex()
	t, coarse, err := touch(ws.FD)
	if err != nil {
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return s, fmt.Errorf("stamp workspace %q: %w", ws.Path, err)
		}
		s.Reason = refusal(err)
	} else {
		s.T, s.Valid = t, true
	}
	clocks, err := Clocks()
	if err != nil {
		return s, err
	}
	s.Realtime, s.Boottime, s.BootID = clocks.Realtime, clocks.Boottime, clocks.BootID
	if s.Valid && coarse {
		waitTick(t)
	}
	return s, nil
}

// holdIndex keeps the index of git open. Best effort: without it the host's own
// use of git is a conflict.
func (ws *Workspace) holdIndex() {
	ws.dropIndex()
	if fd, err := fsat.Open(ws.FD, ".git/index", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0); err == nil {
		ws.GitIndex = os.NewFile(uintptr(fd), ".git/index")
	}
}

func (ws *Workspace) dropIndex() {
	if ws.GitIndex != nil {
		ws.GitIndex.Close()
		ws.GitIndex = nil
	}
}

// Clocks reads what a stamp says of clocks, without the rest of it.
func Clocks() (s Stamp, err error) {
	if s.BootID, err = bootID(); err != nil {
		return s, err
	}
	// Between two readings the process may wait for a processor: the pair that
	// was read the fastest counts.
	const fast = int64(100 * time.Microsecond)
	for tries, width := 0, int64(math.MaxInt64); tries < 100 && width >= fast; tries++ {
		first, err := now(unix.CLOCK_BOOTTIME)
		if err != nil {
			return s, err
		}
		wall, err := now(unix.CLOCK_REALTIME)
		if err != nil {
			return s, err
		}
		then, err := now(unix.CLOCK_BOOTTIME)
		if err != nil {
			return s, err
		}
		if took := (then.Sec-first.Sec)*1e9 + then.Nsec - first.Nsec; took < width {
			width, s.Realtime, s.Boottime = took, wall, then
		}
	}
	return s, nil
}

func refusal(err error) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return "the workspace is read-only"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "the workspace is not writable by this user"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return "the workspace's file system has no unnamed files (O_TMPFILE), so edits made on the host meanwhile could not be told"
	}
	return "no unnamed file could be made in the workspace: " + err.Error()
}

// touch makes an unnamed file in dirfd, changes it and returns its ctime, and
// whether that clock only moves in ticks.
//
// The first fstat matters: since Linux 6.13 a time that someone has looked at
// is followed by a finer one, so that what happened just before stays earlier
// than T. Where the two times are equal all the same, the file system has no
// such times and gives the coarse clock's.
func touch(dirfd int) (t fsat.Time, coarse bool, err error) {
	fd, err := unix.Openat(dirfd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return t, false, err
	}
	defer unix.Close(fd)
	before, err := fsat.Fstat(fd)
	if err != nil {
		return t, false, err
	}
	if err := unix.UtimesNanoAt(fd, "", nil, unix.AT_EMPTY_PATH); err != nil {
		return t, false, err
	}
	after, err := fsat.Fstat(fd)
	if err != nil {
		return t, false, err
	}
	return after.Ctime, before.Ctime == after.Ctime || !multigrain(), nil
}

// multigrain reports whether the kernel has multigrain timestamps (6.13). Only
// the version tells: two equal times prove that they are missing, two
// different ones may have straddled a tick.
var multigrain = sync.OnceValue(func() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 13
})

// waitTick returns when the coarse clock has passed t, so that whatever
// happens next gets a later time.
func waitTick(t fsat.Time) {
	tick := 10 * time.Millisecond // the longest in use: CONFIG_HZ=100
	var res unix.Timespec
	if unix.ClockGetres(unix.CLOCK_REALTIME_COARSE, &res) == nil && res.Nano() > 0 {
		tick = min(tick, time.Duration(res.Nano()))
	}
	// Bounded: a clock that is set back meanwhile must not hang the run.
	for range 5 {
		time.Sleep(tick)
		if n, err := now(unix.CLOCK_REALTIME_COARSE); err != nil || t.Before(n) {
			return
		}
	}
}

func now(clock int32) (fsat.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return fsat.Time{}, fmt.Errorf("clock_gettime: %w", err)
	}
	return fsat.Time{Sec: ts.Sec, Nsec: ts.Nsec}, nil
}

var bootID = sync.OnceValues(func() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var buf [64]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return strings.TrimSpace(string(buf[:n])), nil
})
