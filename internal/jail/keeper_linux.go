package jail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"hutch/internal/plan"
)

// Namespaces are those of a box by which a keeper can enter it. A descriptor is
// -1 where the box's is this process's own.
type Namespaces struct{ User, Mnt, Net int }

// Close closes the descriptors. Whoever holds them last pays for the end of the
// box's mounts.
func (n *Namespaces) Close() {
	for _, fd := range []*int{&n.User, &n.Mnt, &n.Net} {
		if *fd >= 0 {
			unix.Close(*fd)
		}
		*fd = -1
	}
}

// Namespaces waits until PID 1 is there and opens its namespaces, for the caller
// to close. It must be called before the end of the plan is sent (the part that
// holds plan.Serve): then PID 1 closes itself to everybody (EACCES). Of a box that
// root makes, the user namespace is ours until that end, and so are the rights
// over the others: User is -1.
func (b *Box) Namespaces() (*Namespaces, error) {
	for b.Pid == 0 {
		r, _, err := b.next(0)
		if err != nil {
			return nil, err
		}
		b.kept = append(b.kept, r)
		if r.Kind == Failed {
			return nil, &StepError{Op: r.Op, Step: r.Step, Arg: r.Text, Err: r.Err}
		}
	}
	n := &Namespaces{User: -1, Mnt: -1, Net: -1}
	for _, space := range []struct {
		name string
		fd   *int
	}{{"user", &n.User}, {"mnt", &n.Mnt}, {"net", &n.Net}} {
		var ours, theirs unix.Stat_t
		err := unix.Stat("/proc/self/ns/"+space.name, &ours)
		if err == nil {
			*space.fd, err = unix.Open(fmt.Sprintf("/proc/%d/ns/%s", b.Pid, space.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if err == nil {
			err = unix.Fstat(*space.fd, &theirs)
		}
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("the box's %s namespace: %w", space.name, err)
		}
		if ours.Dev == theirs.Dev && ours.Ino == theirs.Ino {
			unix.Close(*space.fd)
			*space.fd = -1
		}
	}
	return n, nil
}

// Keeper is a process outside every box that mounts into boxes, and makes sockets
// in their networks. It dies with this process. Its methods may be called from any
// goroutine, and serve as many at a time as are called.
type Keeper struct {
	mu      sync.Mutex
	control int // -1: closed
	pid     int
}

// Errors of Remount.
var (
	// ErrBusyMount: a process uses what is mounted there; nothing was changed.
	ErrBusyMount = errors.New("a process uses the mount that shall be replaced")
	// ErrLostMount: the old mount is gone and the new one could not be put in
	// its place, nor the old one back: the box has nothing there any more.
	ErrLostMount = errors.New("nothing is mounted there any more")
)

// StartKeeper starts a keeper.
func StartKeeper() (*Keeper, error) {
	k := &Keeper{control: -1}
	if err := k.start(); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Keeper) start() (err error) {
	OnSpawner(func() { k.pid, k.control, err = spawn(nil) })
	if err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	if err = send(k.control, plan.Message(plan.MessageKeep, 0), nil); err != nil {
		_ = k.end()
	}
	return err
}

// Close ends the keeper. Requests under way are still answered.
func (k *Keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.end()
}

func (k *Keeper) end() error {
	if k.control < 0 {
		return nil
	}
	unix.Close(k.control)
	k.control = -1
	var usage unix.Rusage
	return waitFor(k.pid, &usage)
}

// Remount says what a box shall see at a path.
type Remount struct {
	NS *Namespaces
	// Lower are the layers below, the topmost first: absolute paths of this
	// process, at most 32. LowerID, where it has an entry, is the device and
	// inode (as stat(2) has them) that each must be.
	Lower   []string
	LowerID [][2]uint64
	// Upper and Work are the overlay's own, and not those of the mount that is
	// replaced; both empty: it cannot be written.
	Upper, Work string
	Tree        string // bind this directory instead, with what is mounted in it
	Options     string // further ones of the overlay: "key=value,flag"
	Attr        uint64 // MOUNT_ATTR_*
	Target      string // absolute path in the box, without symlinks
	// Replace: something of ours is mounted there, and goes unless a process
	// uses it. Any descriptor in it is such use: what the last Remount returned,
	// too.
	Replace bool
	// Was is the number of that mount (MountID), which must still be there: a
	// box can rename directories above a mount point. 0: whatever is there.
	Was uint64
}

const (
	replaces = 1 // as in keeper.c
	binds    = 2
)

func (r *Remount) encode() ([]byte, error) {
	layers, flags := r.Lower, uint32(0)
	if r.Tree != "" {
		layers, flags = []string{r.Tree}, binds
	}
	if r.Replace {
		flags |= replaces
	}
	le := binary.LittleEndian
	m := le.AppendUint32(plan.Message(plan.MessageRemount, 0), flags)
	m = le.AppendUint32(m, uint32(len(layers)))
	m = le.AppendUint64(le.AppendUint64(m, r.Attr), r.Was)
	for i := range layers {
		var id [2]uint64
		if i < len(r.LowerID) {
			id = r.LowerID[i]
		}
		m = le.AppendUint64(le.AppendUint64(m, id[0]), id[1])
	}
	for _, s := range append([]string{r.Target, r.Options, r.Upper, r.Work}, layers...) {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("%q holds a NUL byte", s)
		}
		m = append(append(m, s...), 0)
	}
	if len(m) > plan.MessageMax {
		return nil, fmt.Errorf("the paths of %d layers do not fit into a message", len(layers))
	}
	le.PutUint32(m[4:], uint32(len(m)))
	return m, nil
}

// Remount mounts into a box that serves (Ready was received), and returns an O_PATH
// descriptor of the new mount's root, which the caller closes before the next
// Remount there. The new mount is made first: on an error, but for ErrLostMount,
// the box sees what it saw. ESTALE: a layer or the mount to be replaced is not the
// one that was asked for.
func (k *Keeper) Remount(r Remount) (root int, err error) {
	message, err := r.encode()
	if err != nil {
		return -1, fmt.Errorf("mount %s in the box: %w", r.Target, err)
	}
	if root, err = k.ask(message, r.NS.Mnt, r.NS.User); err != nil {
		return -1, fmt.Errorf("mount %s in the box: %w", r.Target, err)
	}
	return root, nil
}

// Socket makes a socket in a box's network, as socket(2) does.
func (k *Keeper) Socket(ns *Namespaces, domain, typ int) (fd int, err error) {
	message := plan.Message(plan.MessageSocket, 0)
	message = binary.LittleEndian.AppendUint32(message, uint32(domain))
	message = binary.LittleEndian.AppendUint32(message, uint32(typ))
	binary.LittleEndian.PutUint32(message[4:], uint32(len(message)))
	space, user := ns.Net, ns.User
	if space < 0 { // the box has our network
		user = -1
	}
	if fd, err = k.ask(message, space, user); err != nil {
		return -1, fmt.Errorf("socket in the box's network: %w", err)
	}
	return fd, nil
}

// MountID returns the kernel's number of the mount that fd lies in. No other mount
// has it while that one is mounted.
func MountID(fd int) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err
}

// ask sends a request and returns the descriptor that answers it.
func (k *Keeper) ask(message []byte, space, user int) (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pair[0])
	fds := []int{pair[1]}
	if space >= 0 {
		fds = append(fds, space)
		if user >= 0 {
			fds = append(fds, user)
		}
	}
	err = k.tell(message, fds)
	unix.Close(pair[1])
	if err != nil {
		return -1, err
	}
	r, _, err := receive(pair[0], 0)
	switch {
	case err != nil:
		return -1, errors.New("the keeper ended without an answer")
	case r.Kind == FD && r.FD >= 0:
		_, _, _ = receive(pair[0], 0) // the keeper's own copy is closed
		return r.FD, nil
	case r.Kind == busy:
		return -1, ErrBusyMount
	case r.Kind == lost:
		return -1, fmt.Errorf("%w: %w", ErrLostMount, r.Err)
	}
	return -1, fmt.Errorf("%s: %w", r.Text, r.Err)
}

// tell sends a message, to a new keeper when something has ended the old one.
func (k *Keeper) tell(message []byte, fds []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.control < 0 {
		return errors.New("the keeper is closed")
	}
	err := send(k.control, message, fds)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		_ = k.end()
		if err = k.start(); err == nil {
			err = send(k.control, message, fds)
		}
	}
	return err
}
