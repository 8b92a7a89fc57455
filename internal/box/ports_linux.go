package box

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
)

// listener is a socket that listens, as the kernel lists it.
type listener struct {
	address netip.AddrPort
	inode   string
}

// listeners lists the TCP sockets that listen in the network namespace of a
// process, from /proc/PID/net/tcp or tcp6.
func listeners(pid int, table string) ([]listener, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
	if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	const listening, ofInode = "0A", 9
	var list []listener
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= ofInode || fields[3] != listening {
			continue
		}
		if address, ok := parseAddress(fields[1]); ok {
			list = append(list, listener{address, fields[ofInode]})
		}
	}
	return list, lines.Err()
}

// parseAddress reads an address as /proc/net/tcp writes it: 32-bit words in the
// host's order, and a port, in hexadecimal digits.
func parseAddress(text string) (netip.AddrPort, bool) {
	digits, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(digits)
	n, perr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || perr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	if nativeIsLittle {
		for i := 0; i < len(raw); i += 4 {
			slices.Reverse(raw[i : i+4])
		}
	}
	address, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(address, uint16(n)), ok
}

// ports lists what listens in the box: in its own network namespace everything,
// and in the host's what a process of the box holds.
func (j *resident) ports() ([]api.Port, error) {
	ports := []api.Port{}
	var own map[string]bool
	if j.policy.Network {
		own = j.sockets()
	}
	for _, table := range []string{"tcp", "tcp6"} {
		list, err := listeners(j.box.Pid, table)
		if err != nil {
			return nil, err
		}
		for _, l := range list {
			p := api.Port{Port: l.address.Port(), Address: l.address.Addr().Unmap().String(), Proto: table}
			if (own == nil || own[l.inode]) && !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
	}
	slices.SortFunc(ports, func(a, b api.Port) int {
		if a.Port != b.Port {
			return int(a.Port) - int(b.Port)
		}
		return strings.Compare(a.Address, b.Address)
	})
	return ports, nil
}

// sockets are the inodes of the sockets that processes of the box hold.
func (j *resident) sockets() map[string]bool {
	held := map[string]bool{}
	for _, p := range j.live.Processes() {
		dir := fmt.Sprintf("/proc/%d/fd", p.Host)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:[") {
				held[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
			}
		}
	}
	return held
}

// Ports lists where something in a box listens; nowhere in one that is quiet.
func (b *Boxes) Ports(name string) ([]api.Port, error) {
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	h.mu.RLock()
	defer h.mu.RUnlock()
	j, ok := h.live.(*resident)
	if !ok || j.isGone() {
		return []api.Port{}, nil
	}
	return j.ports()
}

// Dial connects to a port in a box, on its loopback. In a box on the host's
// network it connects to what listens in the box only.
func (b *Boxes) Dial(ctx context.Context, name string, port uint16) (net.Conn, error) {
	h, err := b.hold(name)
	if err != nil {
		return nil, err
	}
	defer b.letGo(h)
	nobody := &api.Error{Code: api.NotFound, Text: fmt.Sprintf("nothing listens at port %d in box %s; see `hutch box ports %s`", port, h.id, h.id)}
	for _, at := range []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)} {
		socket, err := h.socket(at)
		if err != nil {
			return nil, err
		}
		if socket == nil {
			continue
		}
		conn, err := connected(ctx, socket, sockaddr(at))
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.ENETUNREACH) {
			return nil, fmt.Errorf("port %d in box %s: %w", port, h.id, err)
		}
	}
	return nil, nobody
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// answers tells whether what listens at a place is who answers at an address: on
// the host's network another program may have the same port of another address.
func answers(p api.Port, at netip.AddrPort) bool {
	where, err := netip.ParseAddr(p.Address)
	return err == nil && p.Port == at.Port() && where.Is4() == at.Addr().Is4() && (where.IsUnspecified() || where == at.Addr())
}

// socket makes a socket in the network of a box; nil where nothing of the box can
// listen at an address.
func (h *held) socket(at netip.AddrPort) (*os.File, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	j, ok := h.live.(*resident)
	if !ok || j.isGone() {
		return nil, nil
	}
	if j.policy.Network {
		ports, err := j.ports()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(ports, func(p api.Port) bool { return answers(p, at) }) {
			return nil, nil
		}
	}
	domain := unix.AF_INET
	if at.Addr().Is6() {
		domain = unix.AF_INET6
	}
	keeper, err := j.keepers.get()
	if err != nil {
		return nil, err
	}
	fd, err := keeper.Socket(j.ns, domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "box"), nil
}

// connected connects a socket, which it takes over.
func connected(ctx context.Context, socket *os.File, to unix.Sockaddr) (net.Conn, error) {
	defer socket.Close() // net.FileConn has its own
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	if cerr := raw.Control(func(fd uintptr) { err = connect(ctx, int(fd), to) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return net.FileConn(socket)
}

// connect waits for a connection on the host's own loopback or a box's: that is
// there at once, or a queue is full.
func connect(ctx context.Context, fd int, to unix.Sockaddr) error {
	err := unix.Connect(fd, to)
	for errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EINTR) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, perr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(50*time.Millisecond/time.Millisecond))
		if perr != nil && !errors.Is(perr, unix.EINTR) {
			return perr
		}
		if n > 0 {
			errno, gerr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if gerr != nil {
				return gerr
			}
			if errno != 0 {
				return unix.Errno(errno)
			}
			return nil
		}
	}
	return err
}

// nativeIsLittle tells the byte order of this machine.
var nativeIsLittle = [2]byte{1, 0} == func() [2]byte {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], 1)
	return b
}()
