package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hutch/test/lab"
)

// clientEnv makes this program a client: clients are told apart by their
// processes. Its value is a job.
const clientEnv = "HUTCH_SOAK_CLIENT"

// job is what a client does.
type job struct {
	Dir   string // of the daemon
	Box   string
	Execs int
	Width int // requests at once
}

// client says that it is ready, waits for a line, runs commands, and prints how
// long each took in microseconds.
func client() int {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(clientEnv)), &j); err != nil {
		fmt.Println(err)
		return 1
	}
	d := &lab.Daemon{Dir: j.Dir}
	d.HTTP = d.Client()
	ask := func() error {
		var out lab.Outcome
		if err := d.Call(context.Background(), "POST", "/v1/boxes/"+j.Box+"/execs", map[string]any{"argv": []string{"true"}}, &out); err != nil {
			return err
		}
		if out.Status != "success" {
			return fmt.Errorf("%s: %s", out.Status, out.Error)
		}
		return nil
	}
	if err := d.Call(context.Background(), "GET", "/v1/health", nil, nil); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	times := make([]int64, j.Execs)
	work := make(chan int)
	errs := make([]error, j.Width)
	var all sync.WaitGroup
	for i := range j.Width {
		all.Go(func() {
			for n := range work {
				start := time.Now()
				if err := ask(); err != nil {
					errs[i] = err
				}
				times[n] = time.Since(start).Microseconds()
			}
		})
	}
	for n := range j.Execs {
		work <- n
	}
	close(work)
	all.Wait()
	for _, err := range errs {
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(times)
	return 0
}

// clients runs jobs at the same time, each in a process, and returns how long
// each one's commands took, sorted.
func clients(t *testing.T, jobs []job) [][]int64 {
	t.Helper()
	type running struct {
		cmd   *exec.Cmd
		start io.WriteCloser
		said  *bufio.Reader
	}
	var list []running
	for _, j := range jobs {
		text, _ := json.Marshal(j)
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), clientEnv+"="+string(text), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		start, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		said, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			start.Close()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}()
		list = append(list, running{cmd, start, bufio.NewReader(said)})
	}
	for _, r := range list {
		if line, err := r.said.ReadString('\n'); line != "ready\n" {
			t.Fatalf("a client says %q (%v)", line, err)
		}
	}
	for _, r := range list {
		_, _ = io.WriteString(r.start, "go\n")
	}
	var all [][]int64
	for i, r := range list {
		line, _ := r.said.ReadString('\n')
		var times []int64
		if err := json.Unmarshal([]byte(line), &times); err != nil {
			t.Fatalf("client %d: %s", i, strings.TrimSpace(line))
		}
		slices.Sort(times)
		all = append(all, times)
	}
	return all
}

func at(sorted []int64, percent int) int64 {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

func boxes(t *testing.T, w *lab.World, d *lab.Daemon, n int) []string {
	t.Helper()
	ids := make([]string, n)
	err := each(n, func(i int) error {
		var b boxJSON
		err := d.Call(context.Background(), "POST", "/v1/boxes", map[string]any{"workspace": w.Dir}, &b)
		if err == nil {
			ids[i] = b.ID
			err = expect(d, b.ID, "exit 0", "")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := each(n, func(i int) error {
			return d.Call(context.Background(), "DELETE", "/v1/boxes/"+ids[i], nil, nil)
		}); err != nil {
			t.Error(err)
		}
	})
	return ids
}

// 64 clients at once are all served, without an error, and none much worse than
// the others.
func TestManyClients(t *testing.T) {
	const n = 64
	execs, percent := 25, 90
	if lab.Proof() {
		execs, percent = 400, 99
	}
	w, d := serve(t)
	ids := boxes(t, w, d, n/4)
	var jobs []job
	for i := range n {
		jobs = append(jobs, job{d.Dir, ids[i%len(ids)], execs, 1})
	}
	start := time.Now()
	all := clients(t, jobs)
	took := time.Since(start)
	var tails, middles []int64
	for _, times := range all {
		tails, middles = append(tails, at(times, percent)), append(middles, at(times, 50))
	}
	slices.Sort(tails)
	slices.Sort(middles)
	t.Logf("%d clients, %d commands each, %.0f commands/s (load %s); p50 of the best, the middle and the worst client: %d, %d, %d µs; p%d: %d, %d, %d µs",
		n, execs, float64(n*execs)/took.Seconds(), lab.Load(), middles[0], at(middles, 50), middles[n-1], percent, tails[0], at(tails, 50), tails[n-1])
	if worst, middle := tails[n-1], at(tails, 50); worst > 4*middle+100_000 {
		t.Errorf("the worst client's p%d is %d µs, the middle one's %d", percent, worst, middle)
	}
}

// A client that asks for much at once does not make the others wait for all of
// that.
func TestAGreedyClient(t *testing.T) {
	w, d := serve(t, "--max-running", "2")
	ids := boxes(t, w, d, 4)
	jobs := []job{{d.Dir, ids[0], 1000, 200}}
	for i := range 6 {
		jobs = append(jobs, job{d.Dir, ids[i%len(ids)], 20, 1})
	}
	all := clients(t, jobs)
	greedy := at(all[0], 50)
	for i, times := range all[1:] {
		t.Logf("client %d: p50 %d µs, most %d; the greedy one: %d, %d", i, at(times, 50), at(times, 100), greedy, at(all[0], 100))
		if at(times, 50) > greedy/3 {
			t.Errorf("a modest client waits %d µs at p50, the greedy one %d", at(times, 50), greedy)
		}
	}
}

// Requests for a box that is not there, in the long version ten thousand, are all
// told so, and leave nothing.
func TestNobodyManyTimes(t *testing.T) {
	n := 1500
	if lab.Proof() {
		n = 10_000
	}
	_, d := serve(t)
	ask := func(int) error {
		err := d.Call(context.Background(), "POST", "/v1/boxes/nosuchbox/execs", map[string]any{"argv": []string{"true"}}, nil)
		if lab.CodeOf(err) != "not_found" {
			return fmt.Errorf("a box that is not there: %w", err)
		}
		return nil
	}
	look := func() lab.Usage {
		if err := each(200, ask); err != nil {
			t.Fatal(err)
		}
		if err := d.Call(context.Background(), "GET", "/debug/pprof/heap?gc=1", nil, nil); err != nil {
			t.Fatal(err)
		}
		u, err := lab.UsageOf(d.PID())
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	before := look()
	if err := each(n, ask); err != nil {
		t.Fatal(err)
	}
	after := look()
	if after.FDs > before.FDs+10 || after.RSS > before.RSS+16<<20 || after.Threads > before.Threads+10 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if entries, _ := os.ReadDir(filepath.Join(d.StateDir(), "boxes")); len(entries) > 0 {
		t.Errorf("%v", entries)
	}
}
