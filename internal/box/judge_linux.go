package box

import (
	"encoding/base64"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hutch/internal/outcome"
	"hutch/internal/supervise"
	"hutch/internal/term"
)

// judge turns what happened into status and exit code.
func judge(out *outcome.Outcome, res *supervise.Result, argv []string, tasks int64) {
	out.DurationMS = float64(res.Duration.Microseconds()) / 1000
	out.CPUMS = float64(res.CPU.Microseconds()) / 1000
	out.PeakMemorySource, out.CPUSource = res.PeakSource, res.CPUSource
	if res.PeakSource != "none" {
		peak := math.Round(float64(res.PeakMemory)/(1<<20)*100) / 100
		out.PeakMemoryMB = &peak
	}
	if res.Known && res.Wait.Exited() {
		code := res.Wait.ExitStatus()
		out.CommandExitCode = &code
	}
	out.Violations = violations(res)
	switch res.End {
	case supervise.AtDeadline:
		out.Status, out.ExitCode, out.TimedOut = outcome.Timeout, outcome.ExitTimeout, true
	case supervise.OutOfMemory:
		out.Status, out.ExitCode = outcome.MemoryExceeded, outcome.ExitKilled
	case supervise.TooMuchOutput:
		out.Status, out.ExitCode = outcome.OutputExceeded, outcome.ExitKilled
	case supervise.OutOfDisk:
		out.Status, out.ExitCode = outcome.DiskExceeded, outcome.ExitKilled
	case supervise.OutOfTime:
		out.Status, out.ExitCode = outcome.CPUExceeded, outcome.ExitTimeout
	case supervise.TooManyTasks:
		out.Status, out.ExitCode, out.Signal = outcome.Killed, outcome.ExitKilled, "SIGKILL"
		out.Notes = append(out.Notes, fmt.Sprintf("there were more than %d processes; they were ended", tasks))
	case supervise.NeverStarted:
		notStarted(out, res, argv[0])
	case supervise.Interrupted:
		sig := res.Signal
		if sig == 0 {
			sig = unix.SIGTERM
		}
		out.Status, out.ExitCode, out.Signal = outcome.Killed, outcome.ExitSignal+int(sig), unix.SignalName(sig)
	default:
		switch {
		case res.Wait.Signaled():
			out.Status, out.Signal = outcome.Killed, unix.SignalName(res.Wait.Signal())
			out.ExitCode = outcome.ExitSignal + int(res.Wait.Signal())
			if foreignCall(res) {
				out.Status = outcome.Denied
			}
		case res.Wait.ExitStatus() == 0:
			out.Status, out.ExitCode = outcome.Success, 0
		default:
			out.Status, out.ExitCode = outcome.Failed, res.Wait.ExitStatus()
		}
	}
}

func notStarted(out *outcome.Outcome, res *supervise.Result, name string) {
	out.Status = outcome.Failed
	if res.StartDir {
		out.ExitCode = outcome.ExitNotExecutable
		out.Error = fmt.Sprintf("%s: the directory to start in: %v in the box; give another, or make it first", name, res.StartError)
		return
	}
	switch res.StartError {
	case unix.ENOENT, unix.ENOTDIR:
		out.ExitCode = outcome.ExitNotFound
		out.Error = fmt.Sprintf("%s: not found in the box; give a path, or a command on the box's PATH", name)
	case unix.EACCES, unix.ENOEXEC, unix.EPERM, unix.EISDIR:
		out.ExitCode = outcome.ExitNotExecutable
		out.Error = fmt.Sprintf("%s: not executable: %v; check its mode and its first line", name, res.StartError)
	default:
		out.ExitCode = outcome.ExitNotExecutable
		out.Error = fmt.Sprintf("%s: could not be started: %v", res.StartWhat, res.StartError)
	}
}

// output puts the captured output into the outcome.
func (r *run) output() {
	out := r.out
	for _, s := range []shown{
		{r.stdout, "stdout", &out.Stdout, &out.StdoutBase64, &out.StdoutPath, &out.StdoutTruncated, &out.StdoutBytes},
		{r.stderr, "stderr", &out.Stderr, &out.StderrBase64, &out.StderrPath, &out.StderrTruncated, &out.StderrBytes},
	} {
		cut := s.fill(out, r.Return, r.policy.StripEscapes)
		switch {
		case r.Return <= 0:
		case r.keep != "" && s.from.Size() > 0:
			*s.path = filepath.Join(r.dir.path, s.name)
		case r.keep == "" && cut:
			*s.path = r.store.saveOutput(r.dir, s.name)
		}
	}
}

// shown is one stream of a command and where the outcome says what of it.
type shown struct {
	from                *supervise.Capture
	name                string
	text, encoded, path *string
	truncated           *bool
	size                *int64
}

// fill puts up to limit bytes into the outcome, none where that is 0, and
// reports whether there are more.
func (s *shown) fill(out *outcome.Outcome, limit int64, strip bool) (cut bool) {
	*s.size = s.from.Size()
	if err := s.from.Lost(); err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("%s was lost after %d bytes: %v", s.name, s.from.Size(), err))
		*s.truncated = true
	}
	if limit <= 0 {
		return false
	}
	head, err := s.from.Head(limit)
	if err != nil {
		out.Notes = append(out.Notes, fmt.Sprintf("%s cannot be read back: %v", s.name, err))
	}
	if cut = s.from.Size() > int64(len(head)); cut {
		*s.truncated = true
	}
	if strip {
		head = term.Strip(head)
	}
	*s.text, *s.encoded = asText(head)
	return cut
}

// asText is output as JSON can say it, and in base64 where it cannot.
func asText(output []byte) (text, encoded string) {
	if !utf8.Valid(output) {
		encoded = base64.StdEncoding.EncodeToString(output)
	}
	return strings.ToValidUTF8(string(output), "\uFFFD"), encoded
}
