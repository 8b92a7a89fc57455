package run

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// peakRSS follows the peak resident memory of one process, in KiB, until it is
// gone. The process's own figure is read: rusage would add what it inherited.
func peakRSS(pid int) <-chan int {
	peak := make(chan int, 1)
	go func() {
		most := 0
		for {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				peak <- most
				return
			}
			_, rest, ok := strings.Cut(string(status), "VmHWM:")
			if !ok { // a zombie
				peak <- most
				return
			}
			if kb, err := strconv.Atoi(strings.Fields(rest)[0]); err == nil {
				most = max(most, kb)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}()
	return peak
}

func TestMuchOutputNeitherBlocksNorGrows(t *testing.T) {
	w := lab.New(t)
	const size = 200_000_000
	run := w.Start(lab.Options{}, "run", "--json", "--", "sh", "-c", fmt.Sprintf("yes 0123456789 | head -c %d; echo end >&2", size))
	peak := peakRSS(run.Pid())
	r := run.Wait()
	out := lab.ParseOutcome(t, r)
	if out.Status != "success" || out.Stderr != "end\n" {
		t.Errorf("status %q stderr %q", out.Status, out.Stderr)
	}
	if out.StdoutBytes != size || !out.StdoutTruncated {
		t.Errorf("stdout_bytes %d truncated %v, want %d true", out.StdoutBytes, out.StdoutTruncated, size)
	}
	if len(out.Stdout) > 11<<20 || len(out.Stdout) < 1<<20 {
		t.Errorf("%d bytes of stdout returned, want about 10 MiB", len(out.Stdout))
	}
	// 10 MiB are held, encoded and printed; 200 MB must never be.
	if kb := <-peak; kb == 0 || kb > 128<<10 {
		t.Errorf("hutch took %d KiB", kb)
	}
	if out.StdoutPath == "" {
		t.Error("the outcome does not say where the rest lies")
	} else if st, err := os.Stat(out.StdoutPath); err != nil || st.Size() != size {
		t.Errorf("the whole output at %s: %v %v", out.StdoutPath, st, err)
	}
	// The rest was kept on purpose.
	w.KeepsBoxes()
}

func TestStreamedOutputIsWhole(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--", "sh", "-c", "head -c 30000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2")
	w.Want(r, 0)
	if len(r.Stdout) != 30_000_000 || strings.Trim(r.Stdout, "x") != "" {
		t.Errorf("stdout is %d bytes", len(r.Stdout))
	}
	if len(r.Stderr) != 3_000_000 || strings.Trim(r.Stderr, "y") != "" {
		t.Errorf("stderr is %d bytes", len(r.Stderr))
	}
}

func TestOutputStreamsAsItComes(t *testing.T) {
	w := lab.New(t)
	run := w.Start(lab.Options{}, "run", "--", "sh", "-c", "echo first; sleep 170")
	run.WaitFor("first") // long before the command ends
	run.Signal(unix.SIGTERM)
	run.Wait()
}

func TestOutputLimitEndsTheCommand(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		for _, stream := range []string{"yes", "yes >&2"} {
			out, r := w.JSON("--commit", "--output-limit", "1M", "--", "sh", "-c", "echo new > new.txt; (trap '' PIPE TERM; "+stream+")")
			w.Want(r, 137)
			if out.Status != "output_exceeded" {
				t.Errorf("status %q", out.Status)
			}
			if out.StdoutBytes > 2<<20 {
				t.Errorf("kept %d bytes with a limit of 1 MiB", out.StdoutBytes)
			}
		}
		w.Untouched(before)
		w.KeepsBoxes() // output may lie in the state directory
	})
}

func TestCapturedOutputCannotBeTakenBack(t *testing.T) {
	w := lab.New(t)
	for name, script := range map[string]string{
		"reopen and truncate": "echo before; : > /proc/self/fd/1; echo after",
		"truncate": `echo before; python3 -c '
import os
for op in (lambda: os.ftruncate(1, 0), lambda: os.truncate("/proc/self/fd/1", 0), lambda: os.lseek(1, 0, 0)):
    try: op()
    except OSError: pass
fd = None
try:
    fd = os.open("/proc/self/fd/1", os.O_RDWR | os.O_TRUNC)
    os.ftruncate(fd, 0)
except OSError: pass
'; echo after`,
	} {
		t.Run(name, func(t *testing.T) {
			out, _ := w.JSON("--", "sh", "-c", script)
			if out.Stdout != "before\nafter\n" {
				t.Errorf("captured %q", out.Stdout)
			}
			if r := w.Box("--", "sh", "-c", script); r.Stdout != "before\nafter\n" {
				t.Errorf("streamed %q", r.Stdout)
			}
		})
	}
}

func TestCapturedOutputToAFileCannotBeTakenBack(t *testing.T) {
	// hutch's own stdout is a file here: the box must not hold it.
	w := lab.New(t)
	file := filepath.Join(w.Base, "out")
	w.Host("sh", "-c", fmt.Sprintf("echo kept > %s; %s run -- sh -c 'echo before; : > /proc/self/fd/1; echo after' >> %s", file, lab.Hutch(t), file))
	got, err := os.ReadFile(file)
	if err != nil || string(got) != "kept\nbefore\nafter\n" {
		t.Errorf("file holds %q, %v", got, err)
	}
}

func TestOutputThatIsNotUTF8(t *testing.T) {
	w := lab.New(t)
	raw := "caf\xe9 \xff\x00 end"
	out, r := w.JSON("--", "printf", `caf\351 \377\000 end`)
	if got, err := base64.StdEncoding.DecodeString(out.StdoutBase64); err != nil || string(got) != raw {
		t.Errorf("stdout_base64 %q decodes to %q, %v", out.StdoutBase64, got, err)
	}
	if !strings.Contains(out.Stdout, "caf\uFFFD") {
		t.Errorf("stdout %q does not replace what is not UTF-8\n%v", out.Stdout, r)
	}
	out, _ = w.JSON("--", "printf", `caf\303\251`)
	if out.Stdout != "café" || out.StdoutBase64 != "" {
		t.Errorf("UTF-8: stdout %q base64 %q", out.Stdout, out.StdoutBase64)
	}
}

// Any bytes are one JSON object, in which none is lost.
func TestAnyBytesAreJSON(t *testing.T) {
	const size = 10 << 20
	w := lab.New(t)
	out, _ := w.JSON("--", "sh", "-c", fmt.Sprintf(`yes "$(printf '\000\377\200\033]0;\007\302\355\240\200')" | head -c %d; printf 'a\000b' >&2`, size))
	raw, err := base64.StdEncoding.DecodeString(out.StdoutBase64)
	if err != nil || len(raw) != size || out.StdoutBytes != size || out.StdoutTruncated {
		t.Errorf("%d of %d bytes, truncated %v (%v)", len(raw), out.StdoutBytes, out.StdoutTruncated, err)
	}
	if !strings.HasPrefix(string(raw), "\377\200\033]0;\007\302\355\240\200\n\377") { // sh drops NUL
		t.Errorf("begins with %q", raw[:20])
	}
	if out.Stderr != "a\x00b" || out.StderrBase64 != "" {
		t.Errorf("stderr %q %q", out.Stderr, out.StderrBase64)
	}
}

// What a command wrote before it was killed is there, whoever killed it.
func TestOutputIsWholeUpToTheKill(t *testing.T) {
	const script = `head -c 3000000 /dev/zero | tr '\0' x; printf end; printf err >&2; `
	w := lab.New(t)
	for end, status := range map[string]string{"kill -9 $$": "killed", "(sleep 170 &) ; exit 3": "failed"} {
		out, _ := w.JSON("--", "sh", "-c", script+end)
		if out.Status != status || len(out.Stdout) != 3000003 || !strings.HasSuffix(out.Stdout, "xend") || out.Stderr != "err" {
			t.Errorf("%s: status %s, %d bytes, stderr %q", end, out.Status, len(out.Stdout), out.Stderr)
		}
	}
	run := w.Start(lab.Options{}, "run", "--", "sh", "-c", script+"exec sleep 170")
	run.WaitFor("end")
	run.Signal(unix.SIGTERM)
	if r := run.Wait(); len(r.Stdout) != 3000003 || !strings.HasPrefix(r.Stderr, "err") {
		t.Errorf("interrupted: %d bytes, stderr %q", len(r.Stdout), r.Stderr)
	}
}

func TestStdin(t *testing.T) {
	w := lab.New(t)
	w.Write("in.txt", "from a file\n")
	t.Run("pipe", func(t *testing.T) {
		r, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			fmt.Fprint(wr, strings.Repeat("0123456789\n", 100_000))
			wr.Close()
		}()
		res := w.RunWith(lab.Options{Stdin: r}, "run", "--", "wc", "-c")
		r.Close()
		w.Want(res, 0)
		if strings.TrimSpace(res.Stdout) != "1100000" {
			t.Errorf("the box read %q bytes", res.Stdout)
		}
	})
	t.Run("file", func(t *testing.T) {
		f, err := os.Open(filepath.Join(w.Dir, "in.txt"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		res := w.RunWith(lab.Options{Stdin: f}, "run", "--", "cat")
		w.Want(res, 0)
		if res.Stdout != "from a file\n" {
			t.Errorf("the box read %q", res.Stdout)
		}
	})
	t.Run("pipe left open", func(t *testing.T) {
		r, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer wr.Close()
		w.Want(w.RunWith(lab.Options{Stdin: r}, "run", "--", "true"), 0)
	})
	t.Run("terminal", func(t *testing.T) {
		// A prompt must get end of file and not the user's keys.
		terminal := openTerminal(t)
		defer terminal.Close()
		res := w.RunWith(lab.Options{Stdin: terminal}, "run", "--", "sh", "-c", "read answer; echo $?; test -t 0; echo $?")
		w.Want(res, 0)
		if res.Stdout != "1\n1\n" {
			t.Errorf("a prompt saw %q, want end of file and no terminal", res.Stdout)
		}
	})
}

// openTerminal returns the user's end of a new pseudo-terminal.
func openTerminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return user
}
