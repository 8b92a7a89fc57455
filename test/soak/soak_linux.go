package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hutch/test/lab"
)

// config says how long a soak is and what it may use.
type config struct {
	hutch   string // the program; hutchd lies beside it
	dir     string // of the soak alone; it need not be empty of the like of state/
	seed    uint64
	execs   int // commands, about
	workers int
	most    int // boxes on a workspace
	kills   int // of the daemon, in the second half
	long    bool
	logf    func(format string, args ...any)
}

// soak is one.
type soak struct {
	config
	d     *lab.Daemon
	team  []*worker
	done  atomic.Int64 // commands that have ended
	round int
	// life counts the lives of the daemon: even while one serves, odd from just
	// before it is killed until the next one serves.
	life   atomic.Int64
	lifeMu sync.Mutex
	born   *sync.Cond

	mu     sync.Mutex
	faults []error
	failed atomic.Bool
}

// The rounds of a soak. The first four are calm: one daemon serves them all, so
// that what it takes after the first can be compared with after the fourth.
const (
	calm   = 4
	stormy = 2
)

func (s *soak) fault(w *worker, err error) {
	s.failed.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if w != nil {
		text = fmt.Sprintf("worker %d: ", w.n)
	}
	s.faults = append(s.faults, fmt.Errorf("%s%w", text, err))
	if w != nil {
		s.logf("%s%v", text, err)
		var of *boxFault
		if errors.As(err, &of) {
			s.logf("what was done on the workspace of that box:\n  %s", strings.Join(of.box.family.did, "\n  "))
		}
	}
}

// over reports whether it makes no sense to go on.
func (s *soak) over() bool { return s.failed.Load() }

// up waits until a daemon serves, and returns in which life.
func (s *soak) up() int64 {
	s.lifeMu.Lock()
	defer s.lifeMu.Unlock()
	for s.life.Load()&1 == 1 && !s.failed.Load() {
		s.born.Wait()
	}
	return s.life.Load()
}

// hutch runs the command line beside the daemon.
func (s *soak) hutch(args ...string) (string, error) {
	cmd := exec.Command(s.config.hutch, args...)
	cmd.Env, cmd.Dir = s.d.Environ(), s.dir
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run soaks, and returns what was wrong.
func (c config) run() []error {
	s := &soak{config: c}
	s.born = sync.NewCond(&s.lifeMu)
	before, groups := lab.TakeCensus(c.dir), lab.MemoryCgroups()
	var err error
	if s.d, err = lab.NewDaemon(c.hutch, c.dir, "--idle", "0", "--drain", "1s", "--log", "-"); err != nil {
		return []error{err}
	}
	if err := s.d.Start(); err != nil {
		return []error{err}
	}
	if s.team, err = s.hire(); err != nil {
		return append(s.faults, err, s.d.End(syscall.SIGKILL, 10*time.Second))
	}
	began := time.Now()
	var first usage
	for s.round = 1; s.round <= calm+stormy && !s.over(); s.round++ {
		until := int64(s.execs) * int64(s.round) / (calm + stormy)
		storm := make(chan struct{})
		var killer sync.WaitGroup
		if s.round > calm {
			killer.Go(func() { s.storm(storm, before) })
		}
		var all sync.WaitGroup
		for _, w := range s.team {
			all.Go(func() { w.session(func() bool { return s.done.Load() >= until }) })
		}
		all.Wait()
		close(storm)
		killer.Wait()
		if s.over() {
			break
		}
		now, err := s.measure()
		if err != nil {
			s.fault(nil, err)
			break
		}
		s.logf("round %d: %d execs in %v, load %s; the daemon, at rest: %v", s.round, s.done.Load(), time.Since(began).Round(time.Second), lab.Load(), now)
		switch s.round {
		case 1:
			first = now
		case calm:
			grown := now.grown(first, s.done.Load(), s.long)
			for _, err := range grown {
				s.fault(nil, err)
			}
			var stacks []byte
			if len(grown) > 0 && s.d.Call(context.Background(), "GET", "/debug/pprof/goroutine?debug=1", nil, &stacks) == nil {
				s.logf("the daemon's goroutines:\n%s", stacks)
			}
		}
	}
	s.finish(before, groups)
	return s.faults
}

// hire makes the workers and their workspaces.
func (s *soak) hire() ([]*worker, error) {
	var workers []*worker
	for n := range s.workers {
		w := &worker{soak: s, n: n, r: rand.New(rand.NewPCG(s.seed, uint64(n))), http: s.d.Client()}
		for i := range 2 {
			f, err := w.newFamily(filepath.Join(s.dir, fmt.Sprintf("ws%d-%d", n, i)))
			if err != nil {
				return nil, err
			}
			w.families = append(w.families, f)
		}
		workers = append(workers, w)
	}
	return workers, nil
}

// storm ends the daemon at random moments, mostly by force, and starts another.
func (s *soak) storm(over <-chan struct{}, before lab.Census) {
	r := rand.New(rand.NewPCG(s.seed, uint64(1000+s.round)))
	kills := max(1, s.kills/stormy)
	share := int64(s.execs/(calm+stormy)) / int64(kills+1)
	next := s.done.Load()
	for n := range kills {
		next += share/2 + r.Int64N(share+1)
		for s.done.Load() < next {
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
		if s.over() {
			return
		}
		sig, delay := syscall.SIGKILL, time.Duration(r.IntN(4000))*time.Microsecond
		if n%4 == 3 {
			sig = syscall.SIGTERM
		}
		if err := s.bury(sig, delay, before); err != nil {
			s.fault(nil, fmt.Errorf("the daemon, sent %v: %w", sig, err))
			s.born.Broadcast()
			return
		}
	}
}

// bury ends the daemon, looks that nothing of it is left, and starts the next.
func (s *soak) bury(sig syscall.Signal, delay time.Duration, before lab.Census) error {
	s.lifeMu.Lock()
	s.life.Add(1)
	s.lifeMu.Unlock()
	time.Sleep(delay)
	if err := s.d.End(sig, 20*time.Second); err != nil {
		return err
	}
	left := slices.DeleteFunc(lab.Leftovers(before, 10*time.Second, s.dir), func(what string) bool {
		return strings.HasPrefix(what, "cgroup ") // the next daemon's to clear
	})
	lab.Reap()
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}
	began := time.Now()
	if err := s.d.Start(); err != nil {
		return err
	}
	if text, err := s.hutch("receipts", "verify"); err != nil {
		return fmt.Errorf("receipts: %w: %s", err, text)
	}
	s.logf("%v: another daemon serves after %v", sig, time.Since(began).Round(time.Millisecond))
	s.lifeMu.Lock()
	s.life.Add(1)
	s.lifeMu.Unlock()
	s.born.Broadcast()
	return nil
}

// usage is what the daemon and the kernel take when no box is there.
type usage struct {
	lab.Usage
	goroutines, heap float64
	jails            int   // that are parked
	slab             int64 // bytes that the kernel cannot reclaim
	free             int64 // bytes
	groups           int
}

func (u usage) String() string {
	return fmt.Sprintf("RSS %.1f MB, heap %.1f MB, %d threads, %d fds, %.0f goroutines, %d jails parked; kernel: %.0f MB of slab, %.0f MB available, %d memory cgroups",
		mb(u.RSS), u.heap/(1<<20), u.Threads, u.FDs, u.goroutines, u.jails, mb(u.slab), mb(u.free), u.groups)
}

func mb(n int64) float64 { return float64(n) / (1 << 20) }

// measure looks at the daemon when all boxes are gone.
func (s *soak) measure() (u usage, err error) {
	var status struct {
		Live, Running, Waiting int
		Boxes                  map[string]int
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err := s.d.Call(context.Background(), "GET", "/v1/status", nil, &status); err != nil {
			return u, err
		}
		n := status.Live + status.Running + status.Waiting
		for _, k := range status.Boxes {
			n += k
		}
		layers, err := os.ReadDir(filepath.Join(s.d.StateDir(), "layers"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return u, err
		}
		if n == 0 && (len(layers) == 0 || s.round > calm) { // what a crash leaves is nobody's after a minute only
			break
		}
		if time.Now().After(deadline) {
			return u, fmt.Errorf("every box was dropped, and yet: %+v, %d layers", status, len(layers))
		}
	}
	if s.long { // the kernel frees the memory of namespaces some seconds later
		time.Sleep(20 * time.Second)
	}
	for _, w := range s.team {
		w.http.CloseIdleConnections()
	}
	for range 2 { // what a collection frees may free more in the next
		if err := s.d.Call(context.Background(), "GET", "/debug/pprof/heap?gc=1", nil, nil); err != nil {
			return u, err
		}
	}
	var m map[string]float64
	for last := -1.0; ; last = m["go_goroutines"] { // those of connections that were closed end by and by
		time.Sleep(200 * time.Millisecond)
		if m, err = s.d.Metrics(); err != nil {
			return u, err
		}
		if m["go_goroutines"] == last {
			break
		}
	}
	if u.Usage, err = lab.UsageOf(s.d.PID()); err != nil {
		return u, err
	}
	u.goroutines, u.heap = m["go_goroutines"], m["go_memstats_heap_inuse_bytes"]
	u.jails = max(0, len(lab.Children(s.d.PID()))-1) // less the keeper
	u.slab, u.free, u.groups = lab.MemInfo("SUnreclaim"), lab.MemInfo("MemAvailable"), lab.MemoryCgroups()
	return u, nil
}

// grown names what has grown since, beyond what parked jails explain. What the
// machine as a whole takes is anybody's: of that only much counts, and only in a
// long soak.
func (u usage) grown(first usage, execs int64, long bool) (faults []error) {
	jails := max(0, u.jails-first.jails)
	for _, c := range []struct {
		what             string
		was, is, allowed float64
	}{
		{"goroutines", first.goroutines, u.goroutines, 16 + 6*float64(jails)},
		{"descriptors", float64(first.FDs), float64(u.FDs), 10 + 16*float64(jails)},
		{"bytes of heap", first.heap, u.heap, 6<<20 + 256<<10*float64(jails)},
		{"bytes of memory", float64(first.RSS), float64(u.RSS), 32<<20 + 512<<10*float64(jails)},
	} {
		if c.is > c.was+c.allowed {
			faults = append(faults, fmt.Errorf("after %d execs the daemon has %.0f %s, and had %.0f", execs, c.is, c.what, c.was))
		}
	}
	if grown := u.slab - first.slab; long && grown > 96<<20 {
		faults = append(faults, fmt.Errorf("after %d execs the kernel has %.0f MB of slab more", execs, mb(grown)))
	}
	return faults
}

// finish ends the daemon and wants that nothing is left.
func (s *soak) finish(before lab.Census, groups int) {
	if text, err := s.hutch("receipts", "verify"); err != nil {
		s.fault(nil, fmt.Errorf("receipts: %w: %s", err, text))
	} else {
		s.logf("%s", text)
	}
	var list []boxJSON
	if err := s.d.Call(context.Background(), "GET", "/v1/boxes", nil, &list); err != nil {
		s.fault(nil, err)
	} else if len(list) > 0 && !s.over() {
		s.fault(nil, fmt.Errorf("boxes are left: %+v", list))
	}
	if err := s.d.End(syscall.SIGTERM, 30*time.Second); err != nil {
		s.fault(nil, err)
	}
	if s.over() {
		lab.Reap()
		return // what is left is of boxes that nobody dropped
	}
	for _, what := range lab.Leftovers(before, 20*time.Second, s.dir) {
		s.fault(nil, fmt.Errorf("left behind: %s", what))
	}
	lab.Reap()
	// What a crash left half made is the next command's to clear, once it is old
	// enough to be nobody's.
	for _, what := range s.inState() {
		s.logf("for hutch gc: %s", what)
	}
	lab.Age(s.d.StateDir())
	if text, err := s.hutch("gc", "--workspace", s.dir); err != nil {
		s.fault(nil, fmt.Errorf("gc: %w: %s", err, text))
	}
	for _, what := range s.inState() {
		s.fault(nil, fmt.Errorf("left behind in the state directory: %s", what))
	}
	entries, _ := os.ReadDir(filepath.Join(s.dir, "tmp"))
	for _, e := range entries {
		s.fault(nil, fmt.Errorf("left behind in the temporary directory: %s", e.Name()))
	}
	if _, err := os.Lstat(s.d.Socket()); err == nil {
		s.fault(nil, errors.New("the socket was left behind"))
	}
	now := lab.MemoryCgroups()
	if s.long {
		for end := time.Now().Add(30 * time.Second); now > groups && time.Now().Before(end); now = lab.MemoryCgroups() {
			time.Sleep(time.Second)
		}
		if now > groups+200 {
			s.fault(nil, fmt.Errorf("the kernel has %d memory cgroups, and had %d", now, groups))
		}
	}
	s.logf("memory cgroups before and after: %d, %d", groups, now)
}

// inState lists what of the state directory is neither a receipt, nor a log, nor
// remembered of boxes that have ended.
func (s *soak) inState() []string {
	may := []string{"receipts.jsonl", "receipts.lock", "key", "hutchd.log", "hutchd.lock", "hutchd.start", "ended", "trust", "layer-dirs"}
	var left []string
	entries, err := os.ReadDir(s.d.StateDir())
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range entries {
		if slices.Contains(may, e.Name()) {
			continue
		}
		if !e.IsDir() {
			left = append(left, e.Name())
			continue
		}
		inside, err := os.ReadDir(filepath.Join(s.d.StateDir(), e.Name()))
		if err != nil {
			left = append(left, err.Error())
		}
		for _, in := range inside {
			left = append(left, e.Name()+"/"+in.Name())
		}
	}
	return left
}
