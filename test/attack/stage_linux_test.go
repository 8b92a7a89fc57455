package attack

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// who is a user that boxes run as, and how hutch is told so.
type who struct {
	name string // in the table
	uid  int    // of the command
	args []string
}

// whos lists the users that boxes can run as here: root's boxes as the
// workspace's owner and as root.
func whos() []who {
	if root() {
		return []who{{name: "owner", uid: 1000}, {name: "root", uid: 0, args: []string{"--user", "root"}}}
	}
	return []who{{name: "user", uid: os.Getuid()}}
}

// stage is a world with canaries in and around it: what must not be read, must
// not change, must not be spoken to, and must not be signalled.
type stage struct {
	*lab.World
	t        *testing.T
	who      who
	token    string // stands in every secret
	id       string // stands in names
	program  string // the attacks, in the workspace
	beside   string // a directory beside the workspace
	canary   *exec.Cmd
	files    lab.Tree
	host     hostState
	mu       sync.Mutex
	heard    []string // what any listener got
	params   []string
	teardown []func()

	unboxed   bool     // the attack is made without a box
	moreFlags []string // of hutch run
}

func random() string {
	b := make([]byte, 8)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// secrets are files of a home, each with the token in it.
var secrets = []string{
	".ssh/id_ed25519", ".ssh/authorized_keys", ".aws/credentials", ".netrc", ".config/gh/hosts.yml", ".kube/config", ".docker/config.json", ".gnupg/private-keys-v1.d/k.key",
	".bash_history", ".git-credentials", ".npmrc", ".pypirc", ".config/google-chrome/Default/Cookies", ".cargo/credentials.toml", "notes/diary.txt", ".bashrc", ".gitconfig",
}

func newStage(t *testing.T, s lab.Strategy, as who) *stage {
	t.Helper()
	w := lab.NewWith(t, s)
	st := &stage{World: w, t: t, who: as, token: "canary-" + random(), id: random(), beside: filepath.Join(w.Base, "beside")}
	put := func(path, text string, mode os.FileMode) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), mode))
		must(t, os.Chmod(path, mode))
	}
	for _, name := range secrets {
		put(filepath.Join(w.Home, name), st.token+" in the home\n", 0o644)
	}
	put(filepath.Join(st.beside, "secret"), st.token+" beside\n", 0o644)
	put(filepath.Join(st.beside, "neighbour", "secret"), st.token+" of another workspace\n", 0o644)
	put(filepath.Join(st.beside, "etc", "passwd"), st.token+":x:0:0::/:/bin/sh\n", 0o644)
	put(filepath.Join(st.beside, "script.sh"), "#!/bin/sh\nexit 0\n", 0o755)
	put(filepath.Join(w.Dir, ".hutch", "canary"), st.token+" of a transaction\n", 0o644)
	w.Write("kept", "kept\n")
	w.Write("gone", "gone\n")
	w.Write("tree/inner/file", "inner\n")
	w.Write("tree/other", "other\n")
	st.program = filepath.Join(w.Dir, "attack")
	text, err := os.ReadFile(program(t))
	must(t, err)
	put(st.program, string(text), 0o755)
	canary := filepath.Join(st.beside, "canary-program")
	put(canary, string(text), 0o755)
	if as.uid != os.Getuid() {
		// All of it the box's user's own: that another user may not is no
		// merit of the box.
		for _, dir := range []string{w.Dir, w.Home, st.beside} {
			must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				return os.Lchown(path, as.uid, as.uid)
			}))
		}
	}
	st.canary = exec.Command(canary, "idle")
	st.canary.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if as.uid != os.Getuid() {
		st.canary.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.uid)}
	}
	must(t, st.canary.Start())
	unexpect := lab.Expect(st.canary.Process.Pid)
	st.teardown = append(st.teardown, func() {
		st.canary.Process.Kill()
		st.canary.Wait()
		unexpect()
	})
	st.listen()
	st.ipc()
	// In the order of registration: this must run before the world closes.
	t.Cleanup(st.close)
	st.param("ws=%s", w.Dir)
	st.param("home=%s", w.Home)
	st.param("beside=%s", st.beside)
	st.param("canarydir=%s", filepath.Join(st.beside, "neighbour"))
	st.param("name=secret")
	st.param("secret=%s", filepath.Join(st.beside, "secret"))
	st.param("neighbour=%s", filepath.Join(st.beside, "neighbour", "secret"))
	st.param("state=%s", w.StateDir())
	st.param("pid=%d", st.canary.Process.Pid)
	st.param("hutch=%d", os.Getpid())
	st.param("nonce=h%s", st.id[:13])
	st.remember()
	return st
}

func (st *stage) param(format string, args ...any) {
	st.params = append(st.params, fmt.Sprintf(format, args...))
}

func (st *stage) close() {
	for i := len(st.teardown) - 1; i >= 0; i-- {
		st.teardown[i]()
	}
	st.teardown = nil
}

// hear notes what a listener got: any byte, and any connection.
func (st *stage) hear(what string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.heard = append(st.heard, what)
}

// listen puts listeners where a box might reach them.
func (st *stage) listen() {
	t := st.t
	hearPackets := func(what string, c net.PacketConn, err error) {
		t.Helper()
		must(t, err)
		st.teardown = append(st.teardown, func() { c.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				n, _, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				st.hear(fmt.Sprintf("a datagram of %d bytes at %s", n, what))
			}
		}()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	tcp := st.accept("a port of the host's loopback", l, err)
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	hearPackets("a UDP port of the host's loopback", udp, err)
	_, udpPort, _ := net.SplitHostPort(udp.LocalAddr().String())
	abstract := "@hutch-" + st.id
	l, err = net.Listen("unix", abstract)
	st.accept("an abstract socket", l, err)
	dgram, err := net.ListenPacket("unixgram", abstract)
	hearPackets("an abstract datagram socket", dgram, err)
	// Sockets by path: in the workspace, deep in it, in the home, beside.
	for i, path := range []string{filepath.Join(st.Dir, "docker.sock"), filepath.Join(st.Dir, "tree", "agent.sock"), filepath.Join(st.Home, "agent.sock"), filepath.Join(st.beside, "d.sock")} {
		st.serve(filepath.Base(path), path, i)
	}
	st.param("port=%s", port)
	st.param("udp=%s", udpPort)
	st.param("abstract=%s", abstract)
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
				st.param("address=%s", ip.IP)
				break
			}
		}
	}
}

// accept notes every connection and byte that a listener gets.
func (st *stage) accept(what string, l net.Listener, err error) net.Listener {
	st.t.Helper()
	must(st.t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			st.hear("a connection to " + what)
			go func() {
				c.SetDeadline(time.Now().Add(5 * time.Second))
				text, _ := io.ReadAll(c)
				c.Close()
				if len(text) > 0 {
					st.hear(fmt.Sprintf("%d bytes at %s", len(text), what))
				}
			}()
		}
	}()
	st.teardown = append(st.teardown, func() { l.Close() })
	return l
}

// serve listens at a path, and tells the attack of it.
func (st *stage) serve(what, path string, index int) {
	st.t.Helper()
	if len(path) > 100 { // sun_path
		st.t.Fatalf("%s is too long for a socket's path", path)
	}
	l, err := net.Listen("unix", path)
	st.accept(what, l, err)
	must(st.t, os.Chmod(path, 0o777))
	must(st.t, os.Chown(path, st.who.uid, st.who.uid))
	st.param("socket%d=%s", index, path)
}

const (
	ipcCreate = 0o1000
	ipcRemove = 0
)

// ipc makes System V and POSIX objects that everyone may read, and a key.
func (st *stage) ipc() {
	b := make([]byte, 4)
	rand.Read(b)
	key := uintptr(b[0])<<16 | uintptr(b[1])<<8 | uintptr(b[2]) | 0x41000000
	if shm, _, e := unix.Syscall(unix.SYS_SHMGET, key, 4096, ipcCreate|0o666); e == 0 {
		st.teardown = append(st.teardown, func() { unix.Syscall(unix.SYS_SHMCTL, shm, ipcRemove, 0) })
	} else {
		st.t.Fatalf("shmget: %v", e)
	}
	if msg, _, e := unix.Syscall(unix.SYS_MSGGET, key, ipcCreate|0o666, 0); e == 0 {
		st.teardown = append(st.teardown, func() { unix.Syscall(unix.SYS_MSGCTL, msg, ipcRemove, 0) })
	} else {
		st.t.Fatalf("msgget: %v", e)
	}
	if sem, _, e := unix.Syscall(unix.SYS_SEMGET, key, 1, ipcCreate|0o666); e == 0 {
		st.teardown = append(st.teardown, func() { unix.Syscall6(unix.SYS_SEMCTL, sem, 0, ipcRemove, 0, 0, 0) })
	} else {
		st.t.Fatalf("semget: %v", e)
	}
	name := "hutch-" + st.id
	shm := "/dev/shm/" + name
	must(st.t, os.WriteFile(shm, []byte(st.token), 0o666))
	st.teardown = append(st.teardown, func() { os.Remove(shm) })
	if mqOpen(name, unix.O_CREAT|unix.O_RDWR) {
		st.teardown = append(st.teardown, func() { mqUnlink(name) })
	}
	st.param("ipckey=%d", key)
	st.param("mq=/%s", name)
	st.param("shm=/%s", name)
	st.param("key=%s", name)
	// In the keyring of the box's user, which is one for each user namespace.
	keep := func(how ...string) {
		cmd := exec.Command(st.program, append([]string{"keep-key", "key=" + name}, how...)...)
		if st.who.uid != os.Getuid() {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(st.who.uid), Gid: uint32(st.who.uid)}}
		}
		if text, err := cmd.CombinedOutput(); err != nil {
			st.t.Fatalf("a key: %v %s", err, text)
		}
	}
	keep()
	st.teardown = append(st.teardown, func() { keep("remove=1") })
}

func mqOpen(name string, flags int) bool {
	p, _ := unix.BytePtrFromString(name)
	fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), uintptr(flags), 0o666, 0, 0, 0)
	if e == 0 {
		unix.Close(int(fd))
	}
	return e == 0
}

func mqUnlink(name string) {
	p, _ := unix.BytePtrFromString(name)
	unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)), 0, 0)
}

// remember notes how everything is, right before an attack.
func (st *stage) remember() {
	st.t.Helper()
	st.files = st.snapshot()
	st.host = lookAtHost()
	st.mu.Lock()
	st.heard = nil
	st.mu.Unlock()
}

// snapshot is of all that a box must not change: everything but hutch's state.
func (st *stage) snapshot() lab.Tree {
	st.t.Helper()
	return lab.Snapshot(st.t, st.Base).Without("state", "tmp")
}

// damage tells what of the canaries is not as it was. In the workspace it looks
// away from what changes names, which a promotion may.
func (st *stage) damage(changes ...string) []string {
	st.t.Helper()
	var found []string
	for _, d := range st.files.Diff(st.snapshot()) {
		allowed := false
		for _, c := range changes {
			allowed = allowed || strings.Contains(d, c)
		}
		if !allowed {
			found = append(found, d)
		}
	}
	found = append(found, st.canaryDamage()...)
	found = append(found, st.host.changes(lookAtHost(), st.Base)...)
	time.Sleep(2 * time.Millisecond) // what was sent arrives
	st.mu.Lock()
	defer st.mu.Unlock()
	return append(found, st.heard...)
}

// canaryDamage looks at the process that must live on as it was.
func (st *stage) canaryDamage() []string {
	pid := st.canary.Process.Pid
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return []string{"the canary process is gone"}
	}
	var found []string
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch value = strings.TrimSpace(value); name {
		case "State":
			if value[0] != 'S' && value[0] != 'R' {
				found = append(found, "the canary process is in state "+value)
			}
		case "TracerPid":
			if value != "0" {
				found = append(found, "the canary process is traced")
			}
		}
	}
	score, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	own, _ := os.ReadFile("/proc/self/oom_score_adj")
	if !bytes.Equal(score, own) {
		found = append(found, "the canary process has another oom_score_adj: "+string(score))
	}
	if nice, err := unix.Getpriority(unix.PRIO_PROCESS, pid); err == nil {
		if mine, _ := unix.Getpriority(unix.PRIO_PROCESS, 0); nice != mine {
			found = append(found, fmt.Sprintf("the canary process has another niceness: %d", 20-nice))
		}
	}
	return found
}

// hostState is what of the machine a box could change.
type hostState map[string]string

var hostFiles = []string{
	"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory",
	"/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/sysrq", "/proc/sys/kernel/shmmax", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/panic_on_oops", "/proc/swaps", "/proc/modules", "/proc/self/oom_score_adj",
}

func lookAtHost() hostState {
	h := hostState{}
	for _, path := range hostFiles {
		text, err := os.ReadFile(path)
		if err != nil {
			text = []byte(err.Error())
		}
		h[path] = string(text)
	}
	if root() { // in a mount namespace of its own, where nobody else mounts
		text, _ := os.ReadFile("/proc/self/mountinfo")
		h["/proc/self/mountinfo"] = string(text)
	}
	// The wall clock against one that nobody can set.
	var wall, mono unix.Timespec
	unix.ClockGettime(unix.CLOCK_REALTIME, &wall)
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono)
	h["clock"] = strconv.FormatInt((wall.Nano()-mono.Nano())/1e9, 10)
	for _, path := range []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/etc/passwd", "/etc/hosts"} {
		var s unix.Stat_t
		if unix.Stat(path, &s) == nil {
			h[path] = fmt.Sprintf("%o %d %d", s.Mode, s.Uid, s.Gid)
		}
	}
	tables := ""
	for _, path := range []string{"/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"} {
		text, _ := os.ReadFile(path)
		tables += string(text)
	}
	for _, name := range []string{"hutch-attack", "hutch-residue"} {
		if mqOpen(name, unix.O_RDONLY) {
			h["message queue "+name] = "there"
		}
		if _, err := os.Lstat("/dev/shm/" + name); err == nil {
			h["/dev/shm/"+name] = "there"
		}
		if keys, err := os.ReadFile("/proc/keys"); err == nil && strings.Contains(string(keys), " "+name) {
			h["key "+name] = "there"
		}
	}
	if strings.Contains(tables, strconv.Itoa(0x68757499)) {
		h["System V object"] = "there"
	}
	return h
}

// differing returns the lines that only one of two texts has.
func differing(a, b string) (onlyA, onlyB []string) {
	inA, inB := strings.Split(a, "\n"), strings.Split(b, "\n")
	return slices.DeleteFunc(slices.Clone(inA), func(l string) bool { return slices.Contains(inB, l) }),
		slices.DeleteFunc(slices.Clone(inB), func(l string) bool { return slices.Contains(inA, l) })
}

func (h hostState) changes(now hostState, base string) []string {
	var found []string
	for name, value := range now {
		was := h[name]
		if name == "clock" {
			a, _ := strconv.Atoi(was)
			b, _ := strconv.Atoi(value)
			if a-b > 2 || b-a > 2 {
				found = append(found, fmt.Sprintf("the clock was set: by %d s", b-a))
			}
			continue
		}
		if was != value {
			gone, come := differing(was, value)
			found = append(found, fmt.Sprintf("the host's %s changed: %q, was %q", name, come, gone))
		}
	}
	// The machine's own mount table, where others mount too.
	if text, err := os.ReadFile("/proc/1/mountinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, base) {
				found = append(found, "a mount in the host's own table: "+line)
			}
		}
	}
	return found
}
