package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Daemon is a hutchd that a test or a benchmark started, and a client of its
// socket.
type Daemon struct {
	Program string   // hutchd
	Dir     string   // holds state, home, temporary directory, socket and log
	Args    []string // of hutchd
	Env     []string // beside what it gets in any case
	HTTP    *http.Client

	mu       sync.Mutex
	cmd      *exec.Cmd
	ended    chan struct{}
	expected func()
}

// NewDaemon prepares one that keeps everything of its own below a directory. The
// program is the hutchd beside a hutch.
func NewDaemon(hutch, dir string, args ...string) (*Daemon, error) {
	d := &Daemon{Program: filepath.Join(filepath.Dir(hutch), "hutchd"), Dir: dir, Args: args}
	for _, sub := range []string{"state", "home", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	d.HTTP = d.Client()
	return d, nil
}

// Client is another client of the daemon's socket, with connections of its own.
func (d *Daemon) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", d.Socket())
		},
		MaxIdleConns: 1024, MaxIdleConnsPerHost: 1024, DisableCompression: true,
	}}
}

// Socket is where it listens.
func (d *Daemon) Socket() string { return filepath.Join(d.Dir, "s") }

// StateDir is hutch's own directory.
func (d *Daemon) StateDir() string { return filepath.Join(d.Dir, "state", "hutch") }

// Log is where it and what it wrote to its standard error can be read.
func (d *Daemon) Log() string { return filepath.Join(d.Dir, "log") }

// Environ is the environment of the daemon, and of a hutch that is to ask it.
func (d *Daemon) Environ() []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(d.Dir, "home"), "XDG_STATE_HOME=" + filepath.Join(d.Dir, "state"),
		"TMPDIR=" + filepath.Join(d.Dir, "tmp"), "LANG=C.UTF-8", "USER=tester", "TERM=dumb", "HUTCH_SOCKET=" + d.Socket(),
	}, d.Env...)
}

// spawner starts daemons from one thread that lives as long as this process:
// they are to die with it, and the kernel means the thread.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// startLimit bounds the start of a daemon.
const startLimit = 20 * time.Second

// Start starts the daemon and returns when it answers.
func (d *Daemon) Start() error {
	log, err := os.OpenFile(d.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.Program, d.Args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", d.Environ(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return err
	}
	ended := make(chan struct{})
	d.mu.Lock()
	d.cmd, d.ended, d.expected = cmd, ended, Expect(cmd.Process.Pid)
	d.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	for deadline := time.Now().Add(startLimit); ; time.Sleep(2 * time.Millisecond) {
		err := d.Call(context.Background(), "GET", "/v1/health", nil, nil)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("hutchd ended at its start: %v; its log ends: %s", cmd.ProcessState, d.LogTail(2000))
		default:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("hutchd does not answer after %v (%w); its log ends: %s", startLimit, err, d.LogTail(2000))
		}
	}
}

// PID is that of the daemon.
func (d *Daemon) PID() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd.Process.Pid
}

// Ended is closed when the daemon that was started last has ended.
func (d *Daemon) Ended() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ended
}

// End sends the daemon a signal and waits until it has ended. What descends
// from it is then looked at as if it were this process's own.
func (d *Daemon) End(sig syscall.Signal, wait time.Duration) error {
	d.mu.Lock()
	cmd, ended, expected := d.cmd, d.ended, d.expected
	d.mu.Unlock()
	if cmd == nil {
		return nil
	}
	defer expected()
	_ = cmd.Process.Signal(sig)
	select {
	case <-ended:
	case <-time.After(wait):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("hutchd had not ended %v after %v; its log ends: %s", wait, sig, d.LogTail(2000))
	}
	if sig != syscall.SIGKILL && !cmd.ProcessState.Success() {
		return fmt.Errorf("hutchd, sent %v: %v; its log ends: %s", sig, cmd.ProcessState, d.LogTail(2000))
	}
	return nil
}

// LogTail is the end of the daemon's log.
func (d *Daemon) LogTail(most int) string {
	text, _ := os.ReadFile(d.Log())
	return string(text[max(0, len(text)-most):])
}

// Problem is an error that the daemon answered with.
type Problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (p *Problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Code, p.Detail) }

// CodeOf is the code of an error that the daemon answered with; "" of another.
func CodeOf(err error) string {
	var p *Problem
	if errors.As(err, &p) {
		return p.Code
	}
	return ""
}

// Call asks the daemon. In is sent as JSON, an io.Reader as it is, nil not at
// all; the answer is read into out: as JSON, into a *[]byte as it is, or thrown
// away where out is nil. An answer that is an error is a *Problem.
func (d *Daemon) Call(ctx context.Context, method, path string, in, out any) error {
	return CallWith(ctx, d.HTTP, method, path, in, out)
}

// CallWith is Call with a client of its own.
func CallWith(ctx context.Context, client *http.Client, method, path string, in, out any) error {
	resp, err := Request(ctx, client, method, path, "", in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	switch to := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*to = text
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: %w: %.200q", method, path, err, text)
	}
	return nil
}

// Request is CallWith for who reads the answer himself, and says what he accepts.
func Request(ctx context.Context, client *http.Client, method, path, accept string, in any) (*http.Response, error) {
	var body io.Reader
	kind := "application/octet-stream"
	switch from := in.(type) {
	case nil:
	case io.Reader:
		body = from
	default:
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body, kind = bytes.NewReader(text), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://hutch"+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", kind)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 400 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	p := &Problem{}
	if err := json.Unmarshal(text, p); err != nil || p.Code == "" || p.Status != resp.StatusCode || p.Detail == "" {
		return nil, fmt.Errorf("%s %s: %s, and what it says is no problem: %.300q", method, path, resp.Status, text)
	}
	return nil, p
}

// Metrics reads what the daemon counts: a value for each name with its labels.
func (d *Daemon) Metrics() (map[string]float64, error) {
	var text []byte
	if err := d.Call(context.Background(), "GET", "/metrics", nil, &text); err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if labels := strings.LastIndexByte(line, '}'); labels >= 0 {
			name, value, ok = line[:labels+1], strings.TrimSpace(line[labels+1:]), true
		}
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			found[name] = v
		}
	}
	return found, nil
}

// Usage is what a process takes.
type Usage struct {
	RSS     int64 // bytes
	Private int64 // bytes, of smaps_rollup; 0 where that may not be read
	Threads int
	FDs     int // 0 where they may not be counted
}

// UsageOf looks at a process.
func UsageOf(pid int) (Usage, error) {
	var u Usage
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	u.RSS, u.Threads = field(status, "VmRSS:")<<10, int(field(status, "Threads:"))
	if rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)); err == nil {
		u.Private = (field(rollup, "Private_Clean:") + field(rollup, "Private_Dirty:")) << 10
	}
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		u.FDs = len(fds)
	}
	return u, nil
}

// field is the number after a name at the beginning of a line.
func field(text []byte, name string) int64 {
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == name {
			n, _ := strconv.ParseInt(fields[1], 10, 64)
			return n
		}
	}
	return 0
}

// CPU is the processor time that a process has taken, less its children's, in
// steps of 10 ms.
func CPU(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// MemInfo reads a line of /proc/meminfo, in bytes.
func MemInfo(name string) int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	return field(text, name+":") << 10
}

// MemoryCgroups is how many memory cgroups the kernel has, those that were
// removed but are still charged for pages among them.
func MemoryCgroups() int {
	text, _ := os.ReadFile("/proc/cgroups")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 3 && f[0] == "memory" {
			n, _ := strconv.Atoi(f[2])
			return n
		}
	}
	return 0
}

// Reap waits for children that have ended and that nobody waits for: what a
// daemon that was killed left to its reaper.
func Reap() {
	self := os.Getpid()
	for pid, p := range processes() {
		if p.ppid != self || p.state != 'Z' {
			continue
		}
		if _, ours := expected.Load(pid); !ours {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// Load is how busy the machine is, for who quotes a figure.
func Load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(text))[:min(3, len(strings.Fields(string(text))))], " ")
}

// Children lists the live processes whose parent a process is.
func Children(pid int) []int {
	var found []int
	for child, p := range processes() {
		if p.ppid == pid && p.state != 'Z' && p.state != 'X' {
			found = append(found, child)
		}
	}
	return found
}

// Age makes what lies in the sub-directories of a state directory look an hour
// old: hutch leaves alone what may only just have been made.
func Age(stateDir string) {
	then := time.Now().Add(-time.Hour)
	found, _ := filepath.Glob(filepath.Join(stateDir, "*", "*"))
	for _, path := range found {
		_ = os.Chtimes(path, then, then)
	}
}
