package fsat

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// searcher looks for an ordinary user into directories and files of his own
// that he closed to himself, as in chmod 000. To open them up for a look would
// show in their ctime, and a kill would leave them open. The searcher is a process in a
// user namespace of its own, which maps nothing but his uid and his group: there
// CAP_DAC_READ_SEARCH counts for files of his alone (user_namespaces(7),
// "Interaction of UIDs and capabilities"). It opens what it is asked for as
// [Open] does, and never for writing.
type searcher struct {
	mu      sync.Mutex
	allowed bool
	started bool
	socket  int
	gone    bool // it cannot be had here
}

var look searcher

// searcherName is the name under which a program that called Searcher starts
// itself.
const searcherName = "hutch-searcher"

// searcherFD is the searcher's end of the socket.
const searcherFD = 3

// Searcher lets this process look past modes: an ordinary user reads what is
// his own, whatever its mode. It is the first thing that main does, as it is
// what the process itself is started for in that case. Where user namespaces
// cannot be had, what is closed stays so (EACCES).
func Searcher() {
	if len(os.Args) == 1 && os.Args[0] == searcherName {
		serve(searcherFD)
		os.Exit(0)
	}
	look.allowed = os.Geteuid() != 0
}

// A request is what is wanted and the flags of an open, 4 bytes each, followed
// by a name; a descriptor comes with it. The answer is an errno, followed by the
// value of an attribute, or with the descriptor that was opened.
const (
	requestHead = 8
	answerHead  = 4

	wantOpen  = 1 // the name beneath a directory
	wantXattr = 2 // the attribute of that name
)

// xattrMax is the most that the value of an attribute can be (limits.h
// XATTR_SIZE_MAX).
const xattrMax = 64 << 10

func serve(socket int) {
	buf := make([]byte, requestHead+pathMax)
	oob := make([]byte, unix.CmsgSpace(4))
	value := make([]byte, xattrMax)
	for {
		n, fds, err := receive(socket, buf, oob)
		if err != nil || n < requestHead || len(fds) != 1 {
			return
		}
		var rights []byte
		name, size, found := string(buf[requestHead:n]), 0, -1
		switch binary.NativeEndian.Uint32(buf) {
		case wantOpen:
			if found, err = openat2(fds[0], name, int(binary.NativeEndian.Uint32(buf[4:])), 0); err == nil {
				rights = unix.UnixRights(found)
			}
		case wantXattr:
			if size, err = getxattr(fds[0], name, value); err != nil {
				size = 0
			}
		default:
			return
		}
		var errno unix.Errno
		_ = errors.As(err, &errno)
		answer := binary.NativeEndian.AppendUint32(nil, uint32(errno))
		err = unix.Sendmsg(socket, append(answer, value[:size]...), rights, nil, unix.MSG_NOSIGNAL)
		unix.Close(fds[0])
		if found >= 0 {
			unix.Close(found)
		}
		if err != nil {
			return
		}
	}
}

func receive(socket int, buf, oob []byte) (n int, fds []int, err error) {
	var control int
	for {
		n, control, _, _, err = unix.Recvmsg(socket, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil || control == 0 {
		return n, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:control])
	if err != nil {
		return n, nil, err
	}
	for i := range messages {
		rights, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return n, nil, err
		}
		fds = append(fds, rights...)
	}
	return n, fds, nil
}

// open is openat2 in the searcher.
func (s *searcher) open(dirfd int, rel string, flags int) (int, error) {
	const changes = unix.O_CREAT | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY
	if flags&unix.O_ACCMODE != unix.O_RDONLY || flags&changes != 0 {
		return -1, unix.EACCES
	}
	fd, _, err := s.ask(wantOpen, dirfd, rel, flags)
	return fd, err
}

// xattr returns an attribute, which is read like the content of the file.
func (s *searcher) xattr(fd int, name string) ([]byte, error) {
	_, value, err := s.ask(wantXattr, fd, name, 0)
	return value, err
}

func (s *searcher) ask(want uint32, about int, name string, flags int) (fd int, value []byte, err error) {
	if !s.allowed {
		return -1, nil, unix.EACCES
	}
	request := binary.NativeEndian.AppendUint32(nil, want)
	request = binary.NativeEndian.AppendUint32(request, uint32(flags))
	request = append(request, name...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 2 { // it may have been killed
		if s.gone || !s.started && !s.start() {
			break
		}
		fd, value, errno, err := s.exchange(want, about, request)
		if err == nil && errno != 0 {
			return -1, nil, errno
		}
		if err == nil {
			return fd, value, nil
		}
		unix.Close(s.socket)
		s.started = false
	}
	return -1, nil, unix.EACCES
}

func (s *searcher) exchange(want uint32, about int, request []byte) (fd int, value []byte, errno unix.Errno, err error) {
	if err := unix.Sendmsg(s.socket, request, unix.UnixRights(about), nil, unix.MSG_NOSIGNAL); err != nil {
		return -1, nil, 0, err
	}
	answer := make([]byte, answerHead+xattrMax)
	n, fds, err := receive(s.socket, answer, make([]byte, unix.CmsgSpace(4)))
	if err != nil {
		return -1, nil, 0, err
	}
	if n < answerHead {
		return -1, nil, 0, unix.EPROTO
	}
	errno = unix.Errno(binary.NativeEndian.Uint32(answer))
	if opened := errno == 0 && want == wantOpen; opened != (len(fds) == 1) {
		return -1, nil, 0, unix.EPROTO
	} else if opened {
		fd = fds[0]
	}
	return fd, answer[answerHead:n], errno, nil
}

func (s *searcher) start() bool {
	s.gone = true
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	theirs := os.NewFile(uintptr(pair[1]), "searcher")
	defer theirs.Close()
	none, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		unix.Close(pair[0])
		return false
	}
	defer none.Close()
	uid, gid := os.Geteuid(), os.Getegid()
	p, err := os.StartProcess("/proc/self/exe", []string{searcherName}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{none, none, none, theirs},
		Sys: &syscall.SysProcAttr{
			Setsid:      true, // an interrupt from the terminal is not for it
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_DAC_READ_SEARCH},
		},
	})
	if err != nil {
		unix.Close(pair[0])
		return false
	}
	go func() { _, _ = p.Wait() }()
	s.socket, s.started, s.gone = pair[0], true, false
	return true
}
