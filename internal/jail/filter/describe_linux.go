//go:build amd64 || arm64

package filter

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Describe names a call that was refused, with what of its arguments matters:
// first and third are its arguments, but for ioctl first is the request. A
// negative number stands for calls of several kinds.
func Describe(nr int, first, third uint64) string {
	if nr < 0 {
		return "other calls"
	}
	name := nameOf(nr)
	low := uint32(first)
	switch name {
	case "socket", "socketpair":
		names := strings.Fields(families)
		if low >= uint32(len(names)) {
			return name + " of an unknown family"
		}
		family := names[low]
		if name == "socket" && (low == unix.AF_INET || low == unix.AF_INET6 || low == unix.AF_NETLINK) {
			return fmt.Sprintf("socket AF_%s, protocol %d", family, int32(third))
		}
		return name + " AF_" + family
	case "ioctl":
		for _, c := range []struct {
			request uint32
			name    string
		}{{unix.TIOCSTI, "TIOCSTI"}, {unix.TIOCLINUX, "TIOCLINUX"}, {unix.TIOCSETD, "TIOCSETD"}} {
			if low == c.request {
				return "ioctl " + c.name
			}
		}
	case "clone", "unshare", "setns":
		var flags []string
		for _, f := range namespaces {
			if name != "setns" && low&f.flag != 0 {
				flags = append(flags, f.name)
			}
		}
		if len(flags) > 0 {
			return name + " " + strings.Join(flags, "|")
		}
	case "personality":
		return fmt.Sprintf("personality %#x", low)
	}
	return name
}

func nameOf(nr int) string {
	prefix := strconv.Itoa(nr) + " "
	for line := range strings.Lines(refused) {
		if name, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSuffix(name, "\n")
		}
	}
	return "call " + strconv.Itoa(nr)
}

var namespaces = []struct {
	flag uint32
	name string
}{
	{unix.CLONE_NEWUSER, "CLONE_NEWUSER"}, {unix.CLONE_NEWNS, "CLONE_NEWNS"}, {unix.CLONE_NEWPID, "CLONE_NEWPID"}, {unix.CLONE_NEWNET, "CLONE_NEWNET"},
	{unix.CLONE_NEWIPC, "CLONE_NEWIPC"}, {unix.CLONE_NEWUTS, "CLONE_NEWUTS"}, {unix.CLONE_NEWCGROUP, "CLONE_NEWCGROUP"}, {unix.CLONE_NEWTIME, "CLONE_NEWTIME"},
}

// families are the names of address families, by number (linux/socket.h).
const families = `UNSPEC UNIX INET AX25 IPX APPLETALK NETROM BRIDGE ATMPVC X25 INET6 ROSE DECnet NETBEUI SECURITY KEY NETLINK
	PACKET ASH ECONET ATMSVC RDS SNA IRDA PPPOX WANPIPE LLC IB MPLS CAN TIPC BLUETOOTH IUCV RXRPC ISDN PHONET IEEE802154 CAIF ALG NFC VSOCK
	KCM QIPCRTR SMC XDP MCTP`
