package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/api"
	"hutch/internal/client"
)

func daemonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Start, stop or look at hutchd, in which boxes live",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(daemonStartCommand(), daemonStopCommand(), daemonStatusCommand())
	return cmd
}

var noWords = words{0, 0, "this takes no arguments"}

func daemonStartCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("start", "Start the daemon, where none runs", noWords, func(ctx context.Context, _ []string) error {
		if _, err := liveDaemon(ctx); err != nil {
			return err
		}
		return tellStatus(ctx, wantsJSON(cmd.Flags()), os.Stderr)
	})
	return cmd
}

func daemonStopCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("stop", "End the daemon, and with it all that runs in boxes", noWords, func(ctx context.Context, _ []string) error {
		w, err := whereDaemon()
		if err != nil {
			return err
		}
		stopped := struct {
			Stopped bool `json:"stopped"`
		}{true}
		s, err := w.Status(ctx)
		if errors.Is(err, client.ErrNoDaemon) {
			stopped.Stopped = false
			say("no daemon runs")
		} else if err != nil {
			return err
		} else if err := stopDaemon(ctx, w, s.PID); err != nil {
			return err
		}
		if wantsJSON(cmd.Flags()) {
			return printJSON(stopped)
		}
		return nil
	})
	cmd.Long = `End the daemon, and with it all that runs in boxes. Commands that run may finish
first. What boxes changed is on disk and stays.`
	return cmd
}

// stopLimit bounds the wait for a daemon that was asked to end: it lets commands
// finish.
const stopLimit = 5 * time.Minute

func stopDaemon(ctx context.Context, w *where, pid int) error {
	if err := w.Shutdown(ctx); err != nil && !errors.Is(err, client.ErrNoDaemon) {
		return err
	}
	for deadline := time.Now().Add(stopLimit); w.Running(ctx) || w.socket != "" && runs(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("hutchd (pid %d) has not ended within %v; `hutch daemon status` tells what runs", pid, stopLimit)
		}
	}
	return nil
}

func daemonStatusCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("status", "Tell what the daemon is doing", noWords, func(ctx context.Context, _ []string) error {
		return tellStatus(ctx, wantsJSON(cmd.Flags()), os.Stdout)
	})
	cmd.Long = `Tell what the daemon is doing. The exit code is 1 when none runs. --json prints
what GET /v1/status answers, and "alive".`
	return cmd
}

// alive is what the daemon says of itself, where there is one.
type alive struct {
	Alive bool `json:"alive"`
	*api.Status
}

func tellStatus(ctx context.Context, asJSON bool, to *os.File) error {
	w, err := whereDaemon()
	if err != nil {
		return err
	}
	s, err := w.Status(ctx)
	if errors.Is(err, client.ErrNoDaemon) {
		if asJSON {
			if err := printJSON(alive{}); err != nil {
				return err
			}
		} else {
			fmt.Fprintln(to, "no daemon runs")
		}
		return exit(1)
	}
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(alive{true, s})
	}
	fmt.Fprintf(to, "hutchd %s, pid %d, since %s\nlistens at %s\nstate directory %s\n%d live boxes, %d commands run, %d wait\n",
		s.Version, s.PID, s.Started.Local().Format(time.DateTime), strings.Join(s.Listen, ", "), s.StateDir, s.Live, s.Running, s.Waiting)
	if s.Draining {
		fmt.Fprintln(to, "it is about to end")
	}
	return nil
}

// startLimit bounds the start of a daemon.
const startLimit = 10 * time.Second

// startDaemon starts hutchd and waits until it answers. Of several processes
// that do so at once one starts it, and the others find it there.
func startDaemon(ctx context.Context, w *where) error {
	if err := w.CanConnect(); err != nil {
		return err
	}
	program, err := findDaemon()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(w.state, 0o700); err != nil {
		return fmt.Errorf("state directory: %w; free space there, or set XDG_STATE_HOME to a directory you can write", err)
	}
	unlock, err := lockStart(w.state)
	if err != nil {
		return fmt.Errorf("start hutchd: %w", err)
	}
	defer unlock()
	if w.Running(ctx) {
		return nil
	}
	logPath := filepath.Join(w.state, "hutchd.log")
	log, err := openLog(logPath)
	if err != nil {
		return fmt.Errorf("start hutchd: its log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program)
	cmd.Dir, cmd.Env = "/", daemonEnviron(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	detach(cmd)
	begin, err := log.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("start hutchd: its log: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start hutchd: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	deadline := time.After(startLimit)
	for {
		if w.Running(ctx) {
			return nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case err := <-ended:
			if w.Running(ctx) {
				return nil // somebody else's was faster
			}
			return fmt.Errorf("hutchd did not start (%v): %s; its log is %s", err, lastLine(logPath, begin), logPath)
		case <-deadline:
			return fmt.Errorf("hutchd does not answer at %s after %v; its log is %s", w.socket, startLimit, logPath)
		}
	}
}

// findDaemon finds hutchd beside hutch, else in PATH.
func findDaemon() (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "hutchd")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	program, err := exec.LookPath("hutchd")
	if err != nil {
		return "", errors.New("this needs the daemon hutchd, which is neither beside hutch nor in PATH; install it there")
	}
	return filepath.Abs(program)
}

// daemonEnviron is what of the environment the daemon gets. It outlives who
// starts it and serves others too: neither his secrets nor his policy are for
// it. Each request brings its own caller's.
func daemonEnviron(environ []string) []string {
	var kept []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case name == "PATH", name == "HOME", name == "USER", name == "LOGNAME", name == "TMPDIR", name == "TZ", name == "LANG", name == "GOMAXPROCS", name == "GOMEMLIMIT", name == "GOGC", name == "GODEBUG",
			strings.HasPrefix(name, "LC_"), strings.HasPrefix(name, "XDG_"), strings.HasPrefix(name, "HUTCHD_"), name == "HUTCH_SOCKET":
			kept = append(kept, e)
		}
	}
	return kept
}

// mostLog is how long the daemon's log may be when it starts; a longer one is
// moved aside, over the one before.
const mostLog = 4 << 20

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > mostLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// lastLine is the last that a log says after an offset.
func lastLine(path string, from int64) string {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) <= from {
		return "it said nothing"
	}
	lines := strings.Split(strings.TrimSpace(string(text[from:])), "\n")
	return lines[len(lines)-1]
}
