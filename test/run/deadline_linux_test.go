package run

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// stubborn is a tree of processes that forks, leaves its session, ignores
// every signal it can and never ends.
const stubborn = `
trap '' TERM INT HUP QUIT
for i in 1 2 3 4 5 6 7 8; do
	setsid sh -c 'trap "" TERM INT HUP QUIT; (while :; do sleep 0.05; done) & while :; do sleep 0.05; done' &
done
echo ready
while :; do sleep 0.05; done`

func TestDeadlineKillsTheWholeTree(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		out, r := w.JSON("--commit", "--timeout-ms", "1000", "--", "sh", "-c", "echo new > new.txt"+stubborn)
		w.Want(r, 124)
		if !out.TimedOut || out.Status != "timeout" || !strings.Contains(out.Stdout, "ready") {
			t.Errorf("timed_out %v status %q stdout %q", out.TimedOut, out.Status, out.Stdout)
		}
		if r.Duration > 30*time.Second {
			t.Errorf("ended after %v, limit 1s", r.Duration)
		}
		w.Untouched(before)
		// That no process is left is the shared check's to say.
	})
}

func TestDeadlineKillsAForkBomb(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--timeout", "1s", "--pids", "128", "--", "python3", "-c", `
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        pass`)
	w.Want(r, 124)
	if r.Duration > time.Minute {
		t.Errorf("ended after %v, limit 1s", r.Duration)
	}
}

func TestNoTimeoutIsZero(t *testing.T) {
	w := lab.New(t)
	w.Want(w.Box("--timeout", "0", "--", "sleep", "0.2"), 0)
	w.Want(w.Box("--timeout-ms", "0", "--", "sleep", "0.2"), 0)
}

func TestBackgroundChildHoldingOutputDoesNotDelay(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		r := w.Box("--", "sh", "-c", "setsid sleep 170 & sleep 170 & echo done")
		w.Want(r, 0)
		if r.Stdout != "done\n" {
			t.Errorf("stdout %q", r.Stdout)
		}
		if r.Duration > time.Minute {
			t.Errorf("waited %v for a child that holds the pipe", r.Duration)
		}
	})
}

func TestSignalsToHutchEndTheBox(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			lab.Each(t, func(t *testing.T, w *lab.World) {
				w.Sample()
				before := w.Snap()
				run := w.Start(lab.Options{}, "run", "--strategy", w.Strategy.Name, "--commit", "--", "sh", "-c", "echo new > new.txt"+stubborn)
				run.WaitFor("ready")
				run.Signal(sig)
				r := run.Wait()
				if want := 128 + int(sig); r.Code != want {
					t.Errorf("exit %d, want %d\n%v", r.Code, want, r)
				}
				w.Untouched(before)
			})
		})
	}
}

func TestSIGKILLOfHutchLeavesNoProcess(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		before := w.Snap()
		census := lab.TakeCensus(w.Base)
		run := w.Start(lab.Options{}, "run", "--strategy", w.Strategy.Name, "--commit", "--", "sh", "-c", "echo new > new.txt"+stubborn)
		run.WaitFor("ready")
		run.Signal(syscall.SIGKILL)
		w.Want(run.Wait(), 137)
		for _, left := range lab.Leftovers(census, 2*time.Second, w.Base) {
			if strings.HasPrefix(left, "process") || strings.HasPrefix(left, "mount") {
				t.Errorf("2s after SIGKILL of hutch: %s", left)
			}
		}
		w.Untouched(before)
		// What a killed hutch could not clear, gc does.
		w.Age()
		w.Want(w.Run("gc"), 0)
		w.Untouched(before)
	})
}

func TestKilledHutchDoesNotHinderTheNext(t *testing.T) {
	w := lab.New(t)
	w.Sample()
	for i := range 3 {
		run := w.Start(lab.Options{}, "run", "--", "sh", "-c", "echo ready; sleep 170")
		run.WaitFor("ready")
		run.Signal(syscall.SIGKILL)
		w.Want(run.Wait(), 137)
		w.Want(w.Box("--commit", "--", "sh", "-c", fmt.Sprintf("echo %d > n%d", i, i)), 0)
		if got := w.Read(fmt.Sprintf("n%d", i)); got != fmt.Sprintf("%d\n", i) {
			t.Errorf("n%d holds %q", i, got)
		}
	}
	w.Age()
	w.Want(w.Run("gc"), 0)
	w.Want(w.Run("receipts", "verify"), 0)
}
