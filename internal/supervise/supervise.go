package supervise

import (
	"io"
	"syscall"
	"time"

	"hutch/internal/jail"
)

// End says why a command ended.
type End uint8

// The ends of a command.
const (
	ByItself      End = iota // see Result.Wait
	AtDeadline               // the deadline passed
	OutOfMemory              // the memory limit was reached
	TooMuchOutput            // the output limit was reached
	OutOfDisk                // the limit of what the layers take was reached
	OutOfTime                // the limit of processor time was reached
	TooManyTasks             // there were more processes than a box may have
	Interrupted              // the caller's context ended, or it sent a signal
	NeverStarted             // see Result.StartError
	BoxFailed                // see Result.Failure
)

// Limits bound one command.
type Limits struct {
	Timeout time.Duration // wall time; 0: none
	Output  int64         // bytes a stream; 0: none
	Memory  int64         // bytes, watched by polling where no cgroup does it; 0: none
	Swap    int64         // bytes beside Memory, where that is limited
	CPU     time.Duration // processor time of the whole box; 0: none
	Tasks   int64         // processes, watched by polling where the kernel does not count them; 0: none
	Disk    *Disk         // nil: none
}

// Result is what really happened.
type Result struct {
	End        End
	Wait       syscall.WaitStatus // of the command; valid for ByItself
	Known      bool               // Wait is valid
	StartError syscall.Errno      // why the command could not be started
	StartWhat  string             // the command that could not be
	StartDir   bool               // because of the directory that it was to start in
	Failure    error              // why the box failed, for BoxFailed
	Signal     syscall.Signal     // that Interrupted it; 0 for a context
	Duration   time.Duration      // start of the command to its end
	CPU        time.Duration      // of all processes of the box
	CPUSource  string             // "cgroup" or "polled"
	PeakMemory int64              // bytes; 0 when unknown
	PeakSource string             // "cgroup", "polled" or "none"
	Missing    []string           // steps that this host could not give
	Violations []Violation        // calls that the box refused its commands, in the order of the first of each kind
	NoRoute    uint64             // packets that had no route out of a box without network
	NoPort     uint64             // datagrams to closed ports of such a box's own loopback
	Workspace  int                // root of the workspace as the box saw it; -1
	Layer      int                // upper of a layer in RAM; -1
}

// Violation is one kind of call that the box refused its commands.
type Violation struct {
	Call         int    // number of the system call; negative: of several kinds
	First, Third uint64 // arguments of the first; of ioctl, First is the request
	Errno        syscall.Errno
	Count        uint64
	Process      string // name of the first process that tried, which it chose
}

// Input is what a command reads. A file of the host is never handed in: a box
// could reopen it for writing through /proc/self/fd/0.
type Input struct {
	Reader io.Reader
}

// Owner is the user a command runs as, by ids of this process's namespace. One
// that is not the caller could not open /dev/stdout: to the kernel that is a
// file of whoever made the pipe.
type Owner struct{ UID, GID uint32 }

// Command is one command to follow.
type Command struct {
	Box    *jail.Box
	Cgroup *jail.Cgroup // nil where there is none
	Exec   jail.Command // its descriptors are filled in here
	Owner  *Owner       // whom the command's pipes are given to; nil: they stay the caller's
	Limits Limits
	Stdin  *Input // nil: end of file at once
	// Terminal, when it is not nil, is the command's input and output; all it
	// writes is Stdout's.
	Terminal *Terminal
	Stdout   *Capture
	Stderr   *Capture
	// Signals delivers the signals that should end the command.
	Signals <-chan syscall.Signal
	// Done is closed when the caller gave up.
	Done <-chan struct{}
}
