package limits

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// actor is the name by which the test binary, in a box, does what it is told.
const actor = "act"

const chunk = 1 << 20

// act does one thing that takes much of something.
func act(args []string) {
	verb, args := args[0], args[1:]
	n := func(i int) int64 {
		v, err := strconv.ParseInt(args[i], 10, 64)
		check(err)
		return v
	}
	switch verb {
	case "anon": // MB, seconds: memory of its own, step by step
		for range n(0) {
			touch(-1)
		}
		time.Sleep(time.Duration(n(1)) * time.Second)
	case "small": // MB, seconds: the same in many small maps
		more := true
		for i := range n(0) << 8 {
			// Not of one kind, or the kernel would make one map of them.
			protection := unix.PROT_READ | unix.PROT_WRITE
			if i%2 == 1 {
				protection |= unix.PROT_EXEC
			}
			m, err := unix.Mmap(-1, 0, 4096, protection, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if more = err == nil; !more {
				break // as many as one process may have
			}
			m[0] = 1
		}
		for i := int64(0); more && i <= n(0); i++ {
			touch(-1)
		}
		time.Sleep(time.Duration(n(1)) * time.Second)
	case "memfd": // MB, seconds: files in memory that nobody maps
		for range n(0) {
			fd, err := unix.MemfdCreate("bomb", 0)
			check(err)
			_, err = unix.Write(fd, full[:])
			check(err)
			pause()
		}
		time.Sleep(time.Duration(n(1)) * time.Second)
	case "pipes": // MB, seconds: what is written and never read
		for range n(0) {
			var p [2]int
			check(unix.Pipe2(p[:], unix.O_NONBLOCK))
			_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, chunk)
			for {
				if _, err := unix.Write(p[1], full[:]); err != nil {
					break
				}
			}
		}
		time.Sleep(time.Duration(n(1)) * time.Second)
	case "file": // path, MB, seconds
		write(args[0], n(1))
		time.Sleep(time.Duration(n(2)) * time.Second)
	case "many": // directory, count, seconds
		check(os.MkdirAll(args[0], 0o755))
		for i := range n(1) {
			fd, err := unix.Open(filepath.Join(args[0], strconv.FormatInt(i, 10)), unix.O_CREAT|unix.O_WRONLY, 0o644)
			check(err)
			unix.Close(fd)
			if i%1000 == 999 {
				pause()
			}
		}
		time.Sleep(time.Duration(n(2)) * time.Second)
	case "nameless": // path, MB, seconds: a file that no name leads to
		fd, err := unix.Open(args[0], unix.O_CREAT|unix.O_RDWR, 0o644)
		check(err)
		check(unix.Unlink(args[0]))
		for range n(1) {
			_, err := unix.Write(fd, full[:])
			check(err)
			pause()
		}
		time.Sleep(time.Duration(n(2)) * time.Second)
	case "sparse": // path, GB
		file, err := os.Create(args[0])
		check(err)
		check(file.Truncate(n(1) << 30))
		_, err = file.WriteAt([]byte("end"), n(1)<<30)
		check(err)
	case "closed": // path, MB, seconds: in a directory that is closed to its owner
		check(os.Mkdir(args[0], 0o755))
		file := filepath.Join(args[0], "f")
		write(file, 1)
		fd, err := unix.Open(file, unix.O_WRONLY|unix.O_APPEND, 0)
		check(err)
		check(os.Chmod(args[0], 0))
		for range n(1) {
			_, err := unix.Write(fd, full[:])
			check(err)
			pause()
		}
		time.Sleep(time.Duration(n(2)) * time.Second)
	case "spin": // processes, milliseconds of processor time each; prints what all of them took
		var children []*exec.Cmd
		for range n(0) {
			c := exec.Command("/proc/self/exe", "burn", args[1])
			c.Args[0] = actor
			check(c.Start())
			children = append(children, c)
		}
		for _, c := range children {
			check(c.Wait())
		}
		fmt.Println((used(unix.RUSAGE_CHILDREN) + used(unix.RUSAGE_SELF)).Milliseconds())
	case "orphan": // milliseconds: one that nobody waits for burns them, and this ends after that
		c := exec.Command("/proc/self/exe", "burn", "3600000")
		c.Args[0] = actor
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		check(c.Start())
		for used := int64(0); used < n(0); {
			time.Sleep(5 * time.Millisecond)
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", c.Process.Pid))
			check(err)
			var ns int64
			_, err = fmt.Sscan(string(text), &ns)
			check(err)
			used = ns / 1e6
		}
	case "burn": // milliseconds of processor time
		for used(unix.RUSAGE_SELF) < time.Duration(n(0))*time.Millisecond {
		}
	case "open": // prints how many descriptors can be opened
		opened := 0
		for ; opened < 100_000; opened++ {
			if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
				break
			}
		}
		fmt.Println(opened)
	case "start": // count: prints how many processes can be started
		started := 0
		for range n(0) {
			c := exec.Command("/bin/sleep", "100")
			if c.Start() != nil {
				break
			}
			started++
		}
		fmt.Println(started)
	case "stubborn": // ends by no signal that can be ignored
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
		time.Sleep(time.Hour)
	default:
		check(fmt.Errorf("no verb %q", verb))
	}
}

var full [chunk]byte

// touch takes one megabyte of memory and keeps it.
func touch(fd int) {
	m, err := unix.Mmap(fd, 0, chunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(err)
	for i := 0; i < len(m); i += 4096 {
		m[i] = 1
	}
	pause()
}

func write(path string, megabytes int64) {
	file, err := os.Create(path)
	check(err)
	for range megabytes {
		if _, err := file.Write(full[:]); err != nil {
			fmt.Fprintln(os.Stderr, err) // it holds what it has
			return
		}
		pause()
	}
}

// pause bounds how much a bomb takes between two looks at it.
func pause() { time.Sleep(500 * time.Microsecond) }

func used(who int) time.Duration {
	var ru unix.Rusage
	check(unix.Getrusage(who, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "act:", err)
		os.Exit(9)
	}
}
