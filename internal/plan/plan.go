package plan

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Code names an operation of boxinit. The numbers are the protocol: boxinit.c
// has the same list.
type Code uint32

// The operations, in the order in which a box is usually made.
const (
	Cgroup        Code = iota + 1 // A: descriptor of a cgroup.procs file to join and close
	Unshare                       // A: CLONE_NEW* flags; strings: what for
	Map                           // map own ids; strings: uid_map, gid_map
	Fork                          // make PID 1; A: ForkMaps; strings: uid_map, gid_map to write for it
	UserNS                        // leave the user namespace last, mapped by the parent of Fork
	Root                          // new root; strings: tmpfs options
	Dir                           // A: mode, B: uid<<32|gid, C: 1 to set that owner; strings: path
	File                          // A: mode, B and C as in Dir; one that exists stays; strings: path, content
	Symlink                       // strings: target, path
	Bind                          // A: MOUNT_ATTR_*, B: BindOptional; strings: source on the host, path
	Tmpfs                         // A: MOUNT_ATTR_*; strings: path, or "" for the hidden mount, options
	Overlay                       // A: MOUNT_ATTR_*, B: OverlayHidden; strings: lower, upper, work, path as in Tmpfs, options; upper and work "": the RAM layer
	Proc                          // A: MOUNT_ATTR_*, B: 1 if it may be missing; strings: path
	Sysfs                         // as Proc
	Devpts                        // as Proc
	Mqueue                        // as Proc
	Mask                          // hide a file or directory that exists; strings: path
	ReadOnly                      // make what is at a path read-only, if it exists; strings: path
	Pivot                         // enter the new root, read-only, and drop the old
	Hostname                      // strings: name
	Loopback                      // bring lo up
	Rlimit                        // A: resource, B: soft, C: hard; RLIMIT_NOFILE is the commands' alone
	SendFD                        // A: tag; strings: directory to hand to the supervisor
	IDs                           // A: uid, B: gid, C: set groups<<16 | count; raw: u32 groups
	MaxUserNS                     // user.max_user_namespaces = 0, asserted
	DropCaps                      // no capability, no_new_privs, a session keyring of its own
	Landlock                      // A: handled fs rights, B: net, C: scopes
	LandlockPath                  // A: rights, B: 1 if it may be missing; strings: path
	LandlockApply                 //
	Seccomp                       // A: bytes; raw: struct sock_filter[]
	Assert                        // A: Assert* bits
	Serve                         // A: ServeOneShot, or 0: many commands at once, and none of them ends the box
	RAMLayer                      // A: mode, B: uid<<32|gid, C: tag of the descriptor sent; strings: tmpfs options
	BoundCaps                     // empty bounding set, locked securebits; before IDs
	Rebind                        // bind a part of the hidden mount; A: mode to make it with, or 0, B: uid<<32|gid, C: MOUNT_ATTR_*; strings: part, path
	Commands                      // filters that commands carry besides; A: bytes of the one that tells PID 1, B: bytes of the one that tells nobody, C: Commands*; raw: both struct sock_filter[]
	OOMScore                      // A: what is added to the badness of the box for the kernel's OOM killer, unless it has more
	Personality                   // A: persona, as of personality(2); before Seccomp
	Umask                         // A: umask of the commands; without it the caller's
	LayerDir                      // make a directory in a layer of the hidden mount; A: mode, B: uid<<32|gid, C: Layer*; strings: path there
	Whiteout                      // make a path of such a layer absent; C: LayerRAM or 0; strings: path there
	Sysctl                        // strings: path of a switch in the new root's /proc/sys, value
	LandlockPort                  // A: rights, B: TCP port
)

var codeNames = [...]string{"", "join cgroup", "unshare", "map ids", "fork", "user namespace", "new root", "make directory", "make file",
	"make symlink", "bind", "mount tmpfs", "mount overlay", "mount proc", "mount sysfs", "mount devpts", "mount mqueue", "mask", "make read-only",
	"pivot", "hostname", "loopback", "rlimit", "send descriptor", "set ids", "max_user_namespaces", "drop capabilities", "landlock",
	"landlock path", "landlock apply", "seccomp", "assert", "serve", "RAM layer", "bound capabilities", "rebind", "filter of commands", "OOM score", "personality",
	"umask", "layer directory", "whiteout", "sysctl", "landlock port"}

// String names the step in messages.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("operation %d", uint32(c))
}

// Flags of single operations.
const (
	ForkMaps           = 1
	BindOptional       = 1
	AssertNoUserNS     = 1
	AssertReadOnlyRoot = 2
	AssertNoCaps       = 4
	ServeOneShot       = 1
	OverlayHidden      = 1 // upper and work are paths in the hidden mount
	LayerRAM           = 1 // in the RAM layer, not the hidden mount
	LayerOpaque        = 2 // nothing of what lies below is seen in it
	LayerTrusted       = 4 // it is marked so by a trusted attribute

	CommandsRestart      = 1 // signals break off a wait for PID 1, as they do before Linux 5.19
	CommandsRename       = 2 // renames are asked about, and the mover answers
	CommandsNoSubprocess = 4 // the filters hold a nonce for the one execve that is allowed
)

// The tags of descriptors that a box hands to its supervisor.
const (
	TagWorkspace = 1 // root of the workspace as the box sees it
	TagLayer     = 2 // upper directory of a layer in RAM
	TagPrivate   = 3 // a directory on the box's own tmpfs
	TagTerminal  = 4 // master of the command's pseudo-terminal
	TagRoot      = 5 // root of the box
)

// Op is one step.
type Op struct {
	Code    Code
	A, B, C uint64
	Strings []string
	Raw     []byte // instead of Strings
}

// Plan is the list of steps that makes one box.
type Plan struct {
	Ops []Op
}

// Add appends a step whose arguments are strings.
func (p *Plan) Add(code Code, a, b, c uint64, args ...string) {
	p.Ops = append(p.Ops, Op{Code: code, A: a, B: b, C: c, Strings: args})
}

// AddRaw appends a step that carries bytes.
func (p *Plan) AddRaw(code Code, a, b, c uint64, raw []byte) {
	p.Ops = append(p.Ops, Op{Code: code, A: a, B: b, C: c, Raw: raw})
}

// The kinds of message that a supervisor sends.
const (
	MessagePlan    = 1
	MessageStart   = 2
	MessageSignal  = 3
	MessageEnd     = 4
	MessageKeep    = 5 // be a keeper; then:
	MessageRemount = 6
	MessageSocket  = 7
)

// MessageMax is the largest message boxinit receives, in bytes.
const MessageMax = 64 << 10

const (
	headSize = 16 // u32 kind, u32 size, u64 a
	opSize   = 32 // u32 code, u32 size, u64 a, b, c
)

// Message encodes a message without operations.
func Message(kind uint32, a uint64) []byte {
	m := make([]byte, headSize)
	binary.LittleEndian.PutUint32(m, kind)
	binary.LittleEndian.PutUint32(m[4:], headSize)
	binary.LittleEndian.PutUint64(m[8:], a)
	return m
}

// Messages encodes the plan as one or more plan messages, each within
// MessageMax and holding whole operations. A string with a NUL, or an
// operation too large for a message, is an error.
func (p *Plan) Messages() ([][]byte, error) {
	var messages [][]byte
	current := Message(MessagePlan, 0)
	finish := func() {
		binary.LittleEndian.PutUint32(current[4:], uint32(len(current)))
		messages = append(messages, current)
	}
	for _, op := range p.Ops {
		record, err := op.encode()
		if err != nil {
			return nil, err
		}
		if len(current)+len(record) > MessageMax {
			finish()
			current = Message(MessagePlan, 0)
		}
		current = append(current, record...)
	}
	finish()
	return messages, nil
}

func (op *Op) encode() ([]byte, error) {
	size := opSize + len(op.Raw)
	for _, s := range op.Strings {
		size += len(s) + 1
	}
	size = (size + 7) &^ 7
	if size > MessageMax-headSize {
		return nil, fmt.Errorf("plan: %s is %d bytes, more than a message holds", op.Code, size)
	}
	record := make([]byte, opSize, size)
	binary.LittleEndian.PutUint32(record, uint32(op.Code))
	binary.LittleEndian.PutUint32(record[4:], uint32(size))
	binary.LittleEndian.PutUint64(record[8:], op.A)
	binary.LittleEndian.PutUint64(record[16:], op.B)
	binary.LittleEndian.PutUint64(record[24:], op.C)
	record = append(record, op.Raw...)
	for _, s := range op.Strings {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("plan: %s: %q holds a NUL byte", op.Code, s)
		}
		record = append(record, s...)
		record = append(record, 0)
	}
	return record[:size], nil
}
