package model

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Op is one file operation. Paths are relative to the directory the script
// runs in, which is the root of the tree.
type Op struct {
	Kind string
	A, B string // paths; for symlink A is the target, for xattrs B the name
	N    int64  // offset, size, seconds or uid
	M    int64  // length or gid
	Mode uint32
	Data string
}

func (op Op) String() string {
	out := fmt.Sprintf("{Kind: %q, A: %q", op.Kind, op.A)
	if op.B != "" {
		out += fmt.Sprintf(", B: %q", op.B)
	}
	if op.N != 0 {
		out += fmt.Sprintf(", N: %d", op.N)
	}
	if op.M != 0 {
		out += fmt.Sprintf(", M: %d", op.M)
	}
	if op.Mode != 0 {
		out += fmt.Sprintf(", Mode: %#o", op.Mode)
	}
	if op.Data != "" {
		out += ", Data: " + quote(op.Data)
	}
	return out + "},"
}

// quote is %q, but for the long contents that generators make.
func quote(data string) string {
	if i := slices.Index(contents, data); i >= 0 && len(data) > 100 {
		return fmt.Sprintf("contents[%d]", i)
	}
	return fmt.Sprintf("%q", data)
}

// Script is what one process does.
type Script struct {
	Ops    []Op
	Unpriv bool // drop the capabilities that no box has
	View   bool // tell what the tree looks like at the end
	Exit   int
	Hang   bool   // never end
	Eat    int64  // use so many bytes of memory at the end
	Say    string // written to standard output at once, before the report
}

// Reply is what an operation came to: the errno of the first call that failed,
// and what it showed.
type Reply struct {
	Errno unix.Errno
	Saw   string
}

func (r Reply) String() string {
	name := "ok"
	if r.Errno != 0 {
		name = unix.ErrnoName(r.Errno)
	}
	if r.Saw != "" {
		name += fmt.Sprintf(" %q", r.Saw)
	}
	return name
}

// Report is what a script's process tells.
type Report struct {
	Replies []Reply
	View    Tree
}

// execute is main in the process that carries out a script: in a box, or on a
// plain directory.
func execute() int {
	// Capabilities belong to a thread.
	runtime.LockOSThread()
	var s Script
	in, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(in)).Decode(&s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "script:", err)
		return 99
	}
	unix.Umask(0o022)
	if s.Unpriv {
		if err := dropCapabilities(); err != nil {
			fmt.Fprintln(os.Stderr, "script:", err)
			return 99
		}
	}
	var report Report
	for _, op := range s.Ops {
		report.Replies = append(report.Replies, op.do())
	}
	if s.View {
		report.View = snapshot(".", false)
	}
	var out bytes.Buffer
	if err := gob.NewEncoder(&out).Encode(report); err != nil {
		fmt.Fprintln(os.Stderr, "script:", err)
		return 99
	}
	fmt.Println(s.Say + base64.StdEncoding.EncodeToString(out.Bytes()))
	if s.Eat > 0 {
		hog := make([]byte, s.Eat)
		for i := 0; i < len(hog); i += 4096 {
			hog[i] = 1
		}
		runtime.KeepAlive(hog)
	}
	for s.Hang {
		time.Sleep(time.Hour)
	}
	return s.Exit
}

func dropCapabilities() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capset(&hdr, &data[0])
}

func parseReport(text string) (*Report, error) {
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("no report: %w in %.200q", err, text)
	}
	var r Report
	if err := gob.NewDecoder(bytes.NewReader(raw)).Decode(&r); err != nil {
		return nil, fmt.Errorf("no report: %w", err)
	}
	return &r, nil
}

// do carries out one operation.
func (op Op) do() Reply {
	saw, err := op.try()
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EIO
		saw = err.Error()
	}
	return Reply{errno, saw}
}

func (op Op) try() (saw string, err error) {
	switch op.Kind {
	case "write":
		return "", op.open(unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, op.writeAll)
	case "excl":
		return "", op.open(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, op.writeAll)
	case "append":
		return "", op.open(unix.O_WRONLY|unix.O_APPEND, op.writeAll)
	case "pwrite":
		return "", op.open(unix.O_WRONLY, func(fd int) error {
			_, err := unix.Pwrite(fd, []byte(op.Data), op.N)
			return err
		})
	case "rdwr":
		return "", op.open(unix.O_RDWR, func(int) error { return nil })
	case "ftruncate":
		return "", op.open(unix.O_RDWR, func(fd int) error { return unix.Ftruncate(fd, op.N) })
	case "truncate":
		return "", unix.Truncate(op.A, op.N)
	case "sparse":
		return "", op.open(unix.O_RDWR|unix.O_CREAT, func(fd int) error {
			if err := unix.Ftruncate(fd, 64<<20); err != nil {
				return err
			}
			_, err := unix.Pwrite(fd, []byte(op.Data), op.N)
			return err
		})
	case "fallocate":
		return "", op.open(unix.O_RDWR, func(fd int) error { return unix.Fallocate(fd, op.Mode, op.N, op.M) })
	case "mmap":
		return "", op.open(unix.O_RDWR, op.writeMapped)
	case "read":
		err = op.open(unix.O_RDONLY, func(fd int) error {
			sum, err := contentHash(fd)
			saw = sum
			return err
		})
		return saw, err
	case "stat":
		var st unix.Stat_t
		if err := unix.Lstat(op.A, &st); err != nil {
			return "", err
		}
		saw := fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			saw += fmt.Sprintf(" size %d", st.Size)
		}
		return saw, nil
	case "list":
		names, err := listDir(op.A)
		return fmt.Sprintf("%q", names), err
	case "readlink":
		buf := make([]byte, 5000)
		n, err := unix.Readlink(op.A, buf)
		return string(buf[:max(n, 0)]), err
	case "access":
		return "", unix.Access(op.A, op.Mode)
	case "copyrange":
		return "", op.copyRange()
	case "mkdir":
		return "", unix.Mkdir(op.A, op.Mode)
	case "rmdir":
		return "", unix.Rmdir(op.A)
	case "unlink":
		return "", unix.Unlink(op.A)
	case "rename":
		return "", unix.Rename(op.A, op.B)
	case "noreplace":
		return "", unix.Renameat2(unix.AT_FDCWD, op.A, unix.AT_FDCWD, op.B, unix.RENAME_NOREPLACE)
	case "exchange":
		return "", unix.Renameat2(unix.AT_FDCWD, op.A, unix.AT_FDCWD, op.B, unix.RENAME_EXCHANGE)
	case "link":
		return "", unix.Link(op.A, op.B)
	case "symlink":
		return "", unix.Symlink(op.A, op.B)
	case "chmod":
		return "", unix.Fchmodat(unix.AT_FDCWD, op.A, op.Mode, 0)
	case "chown":
		return "", unix.Lchown(op.A, int(op.N), int(op.M))
	case "utimes":
		ts := unix.NsecToTimespec(op.N)
		return "", unix.UtimesNanoAt(unix.AT_FDCWD, op.A, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	case "setxattr":
		return "", unix.Lsetxattr(op.A, op.B, []byte(op.Data), int(op.N))
	case "rmxattr":
		return "", unix.Lremovexattr(op.A, op.B)
	case "getxattr":
		buf := make([]byte, 5000)
		n, err := unix.Lgetxattr(op.A, op.B, buf)
		return string(buf[:max(n, 0)]), err
	case "mkfifo":
		return "", unix.Mkfifo(op.A, op.Mode)
	case "socket":
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return "", err
		}
		defer unix.Close(fd)
		return "", unix.Bind(fd, &unix.SockaddrUnix{Name: op.A})
	case "tmpfile":
		return "", op.tmpfile()
	case "rmtree":
		return "", removeTree(unix.AT_FDCWD, op.A)
	case "recreate": // a directory removed and made anew: opaque in an overlay
		if err := removeTree(unix.AT_FDCWD, op.A); err != nil {
			return "", err
		}
		if err := unix.Mkdir(op.A, op.Mode); err != nil {
			return "", err
		}
		return "", Op{A: op.A + "/" + op.B, Data: op.Data}.open(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, Op{Data: op.Data}.writeAll)
	case "resave": // as editors do: a new file renamed over the old one
		temp := op.A + "~"
		if err := (Op{A: temp}).open(unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, op.writeAll); err != nil {
			return "", err
		}
		if err := unix.Rename(temp, op.A); err != nil {
			unix.Unlink(temp)
			return "", err
		}
		return "", nil
	case "relink": // written through a descriptor whose name is taken by another file meanwhile
		return "", op.open(unix.O_WRONLY, func(fd int) error {
			if err := unix.Unlink(op.A); err != nil {
				return err
			}
			if err := op.open(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, op.writeAll); err != nil {
				return err
			}
			_, err := unix.Write(fd, []byte("lost"))
			return err
		})
	case "deep":
		return "", op.deep()
	case "stamp":
		return op.stamp()
	case "soften":
		return "", soften(".")
	case "age":
		return "", age(".", op.N)
	}
	return "", fmt.Errorf("unknown operation %q", op.Kind)
}

func (op Op) open(flags int, use func(fd int) error) error {
	fd, err := unix.Open(op.A, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o666)
	if err != nil {
		return err
	}
	return errors.Join(use(fd), unix.Close(fd))
}

func (op Op) writeAll(fd int) error {
	_, err := unix.Write(fd, []byte(op.Data))
	return err
}

func (op Op) writeMapped(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Size == 0 {
		return nil
	}
	mem, err := unix.Mmap(fd, 0, int(min(st.Size, 4096)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(mem, op.Data)
	return unix.Munmap(mem)
}

func (op Op) copyRange() error {
	return op.open(unix.O_RDONLY, func(in int) error {
		return Op{A: op.B}.open(unix.O_WRONLY|unix.O_CREAT, func(out int) error {
			_, err := unix.CopyFileRange(in, nil, out, nil, 1<<20, 0)
			return err
		})
	})
}

// tmpfile gives a nameless file made in A the name B, by way of /proc as
// open(2) has it.
func (op Op) tmpfile() error {
	fd, err := unix.Open(op.A, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := op.writeAll(fd); err != nil {
		return err
	}
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, op.B, unix.AT_SYMLINK_FOLLOW)
}

// deep makes N nested directories below A, and a file in the last: beyond
// PATH_MAX only relative names lead there.
func (op Op) deep() error {
	at, err := unix.Open(op.A, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	name := strings.Repeat("x", int(op.M))
	for range op.N {
		if err := unix.Mkdirat(at, name, 0o755); err != nil && err != unix.EEXIST {
			unix.Close(at)
			return err
		}
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			return err
		}
		at = next
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, "bottom", unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte(op.Data))
	return errors.Join(err, unix.Close(fd))
}

// removeTree removes what it can, in the order of names, and returns the first
// error.
func removeTree(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err != unix.EISDIR {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	names, err := readNames(fd)
	first := err
	for _, n := range names {
		if err := removeTree(fd, n); err != nil && first == nil {
			first = err
		}
	}
	unix.Close(fd)
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && first == nil {
		first = err
	}
	return first
}

func listDir(path string) ([]string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readNames(fd)
}

// readNames lists an open directory, sorted.
func readNames(fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil {
			return names, err
		}
		if n <= 0 {
			slices.Sort(names)
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// soften makes everything readable and writable for its owner, as a workspace
// must be that is to be copied.
func soften(root string) error {
	return eachFile(root, func(dir int, name string, st *unix.Stat_t) error {
		want := st.Mode&0o7777 | 0o600
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			want |= 0o100
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK || want == st.Mode&0o7777 {
			return nil
		}
		return unix.Fchmodat(dir, name, want, 0)
	}, nil)
}

// age gives every file a time of its own in the past, so that a later look
// tells what was written since.
func age(root string, from int64) error {
	return eachFile(root, nil, func(dir int, name string, st *unix.Stat_t) error {
		h := fnv.New32()
		io.WriteString(h, name)
		ts := unix.NsecToTimespec(from + int64(h.Sum32()))
		return unix.UtimesNanoAt(dir, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// eachFile walks a tree by descriptors, calling down before and up after what a
// directory holds. Root itself is left out.
func eachFile(root string, down, up func(dir int, name string, st *unix.Stat_t) error) error {
	var walk func(fd int) error
	walk = func(fd int) error {
		names, err := readNames(fd)
		if err != nil {
			return err
		}
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return err
			}
			if down != nil {
				if err := down(fd, name, &st); err != nil {
					return err
				}
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				closed := st.Mode&0o500 != 0o500
				if closed {
					unix.Fchmodat(fd, name, st.Mode&0o7777|0o500, 0)
				}
				sub, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				if err == nil {
					err = walk(sub)
					unix.Close(sub)
				}
				if closed && down == nil {
					unix.Fchmodat(fd, name, st.Mode&0o7777, 0)
				}
				if err != nil {
					return err
				}
			}
			if up != nil {
				if err := up(fd, name, &st); err != nil {
					return err
				}
			}
		}
		return nil
	}
	fd, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return walk(fd)
}
