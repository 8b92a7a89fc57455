package box

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/workspace"
)

// A recipe is what a jail is made by, whatever box it is for.
type recipe struct {
	request Request
	force   *policy.InForce
	base    string // the directory of boxes that its own directory lies in
}

// key tells recipes apart.
func (r recipe) key(ws *workspace.Workspace) string {
	force := *r.force
	force.Origins, force.Notes, force.Untrusted = nil, nil, nil
	text, err := json.Marshal([]any{ws.Path, ws.Stat.Dev, ws.Stat.Ino, ws.Stat.UID, ws.Stat.GID, r.base, r.request.User, []string(callerOf(r.request)), force})
	if err != nil {
		return ""
	}
	return string(text)
}

const (
	// parkedAge is how long a jail that nobody took is kept: what it shows of the
	// host are directories as they were then, and one of them may be another now.
	parkedAge = 3 * time.Minute
	// parkedMemory is what the kernel takes for a jail, in bytes: measured 0.3 MiB
	// of slab, and the mounts of a large view.
	parkedMemory = 1 << 20
	// parkedShare of the memory that is available may go into jails that nobody
	// asked for.
	parkedShare = 64
	// yielding is how long after a box got its jail none is made.
	yielding = 10 * time.Millisecond
	// recent is how far back the rate counts by which a pool's size is decided.
	recent = 10 * time.Second
)

// pool holds jails that are ready but for the branch: one kind for each recipe
// that was asked for lately, as many as the rate suggests. They are made by one
// goroutine that yields to requests; an empty pool is never an error.
type pool struct {
	boxes *Boxes
	most  int           // jails in all; 0: no pool
	wake  chan struct{} // something may be to do
	stop  chan struct{}
	done  chan struct{}

	requests     atomic.Int32 // boxes that are being given a jail
	served       atomic.Int64 // when one was last, in ns
	hits, misses atomic.Uint64

	mu    sync.Mutex
	kinds map[string]*kind
}

// kind are the jails of one recipe.
type kind struct {
	recipe recipe
	path   string // of the workspace
	parked []*parked
	taken  []time.Time // lately
	asked  time.Time   // when it was last asked for
	failed time.Time   // when one could not be made; zero: it could
}

type parked struct {
	*resident
	since time.Time
	sees  []byte // what it was made to see
}

func newPool(b *Boxes, most int) *pool {
	p := &pool{boxes: b, most: most, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), kinds: map[string]*kind{}}
	if most > 0 {
		go p.run()
		b.work.Go(func() { _, _ = b.keepers.get() })
	} else {
		close(p.done)
	}
	return p
}

// close ends all that is parked.
func (p *pool) close() {
	close(p.stop)
	<-p.done
	p.mu.Lock()
	kinds := p.kinds
	p.kinds = map[string]*kind{}
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, k := range kinds {
		for _, j := range k.parked {
			all.Go(j.End)
		}
	}
	all.Wait()
}

// PoolCounts tells how many jails were at hand when a box needed one, and how
// many had to be made.
func (b *Boxes) PoolCounts() (hits, misses uint64) { return b.pool.hits.Load(), b.pool.misses.Load() }

// jailFor returns a jail by a recipe: one that is at hand, or a new one.
func (b *Boxes) jailFor(ctx context.Context, r recipe, ws *workspace.Workspace) (*resident, error) {
	p := b.pool
	first := true
	for {
		j := p.take(r, ws, first)
		if j == nil {
			break
		}
		first = false
		if j.fit(ws) {
			p.hits.Add(1)
			return j.resident, nil
		}
		b.work.Go(j.End)
	}
	p.misses.Add(1)
	return b.inhabit(ctx, r, ws)
}

// request says that a box wants a jail, until the function that it returns is
// called.
func (p *pool) request() (served func()) {
	p.requests.Add(1)
	return func() {
		p.served.Store(time.Now().UnixNano())
		p.requests.Add(-1)
		p.hint()
	}
}

// expect says that so many jails by a recipe may be wanted soon.
func (p *pool) expect(r recipe, ws *workspace.Workspace, count int) {
	if p.most == 0 {
		return
	}
	p.mu.Lock()
	k := p.kindOf(r, ws)
	for range min(count-1, p.most) {
		k.taken = append(k.taken, k.asked, k.asked) // half of them are made ahead
	}
	p.mu.Unlock()
	p.hint()
}

// expectLike says that so many jails like that of a box may be wanted soon.
func (b *Boxes) expectLike(h *held, count int) {
	if b.pool.most == 0 {
		return
	}
	terms, err := h.terms()
	if err != nil {
		return
	}
	ws, err := workspace.Reopen(string(h.record.RawWorkspace))
	if err != nil {
		return
	}
	defer ws.Close()
	b.pool.expect(recipe{request(terms.Create), &terms.InForce, filepath.Dir(h.path)}, ws, count)
}

// kindOf returns the kind of a recipe. p.mu is held.
func (p *pool) kindOf(r recipe, ws *workspace.Workspace) *kind {
	key := r.key(ws)
	k := p.kinds[key]
	if k == nil {
		k = &kind{recipe: r, path: ws.Path}
		p.kinds[key] = k
	}
	k.asked = time.Now()
	return k
}

// take takes the jail of a recipe that was parked last; nil where there is none.
// First says that nobody counted this demand yet.
func (p *pool) take(r recipe, ws *workspace.Workspace, first bool) *parked {
	if p.most == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.kindOf(r, ws)
	if first {
		k.taken = append(k.taken, k.asked)
	}
	n := len(k.parked)
	if n == 0 {
		return nil
	}
	j := k.parked[n-1]
	k.parked = k.parked[:n-1]
	return j
}

// fit reports whether a parked jail is what one would be that is made now.
func (j *parked) fit(ws *workspace.Workspace) bool {
	if time.Since(j.since) > parkedAge || j.isGone() {
		return false
	}
	sees, err := j.sight(ws)
	return err == nil && bytes.Equal(sees, j.sees)
}

// available is how much memory the kernel could give, in bytes.
func available() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// sight is the plan of what the box would see, were it made now for a workspace.
func (j *resident) sight(ws *workspace.Workspace) ([]byte, error) {
	c, plan := j.cell, *j.plan
	c.plan, c.ws, c.out = &plan, ws, outcome.New()
	if err := c.look(); err != nil {
		return nil, err
	}
	if err := c.show(); err != nil {
		return nil, err
	}
	// Names of its own directory are no part of what it sees.
	plan.CacheDirs, plan.Copies = make([]string, plan.Caches()), map[string]string{}
	for i := range plan.CacheDirs {
		plan.CacheDirs[i] = fmt.Sprintf("/cache%d", i)
	}
	view, err := plan.View()
	if err != nil {
		return nil, err
	}
	messages, err := view.Messages()
	return slices.Concat(messages...), err
}

// hint makes the pool look whether something is to do.
func (p *pool) hint() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run makes and drops jails until the pool is closed.
func (p *pool) run() {
	defer close(p.done)
	const look = 5 * time.Second
	timer := time.NewTimer(look)
	for {
		select {
		case <-p.stop:
			return
		case <-p.wake:
		case <-timer.C:
		}
		pause := p.tend()
		for pause > 0 {
			select {
			case <-p.stop:
				return
			case <-time.After(pause):
			}
			pause = p.tend()
		}
		timer.Reset(look)
	}
}

// tend drops what is too old, and makes one jail where one is wanted. It returns
// how long to wait before the next, or 0 where none is wanted.
func (p *pool) tend() time.Duration {
	for _, j := range p.stale() {
		j.End()
	}
	// Those who wait go first, and so do their first commands: who makes a jail
	// holds locks of the kernel that are wanted to mount a branch, too.
	if p.requests.Load() > 0 {
		return 2 * time.Millisecond
	}
	if rest := yielding - time.Since(time.Unix(0, p.served.Load())); rest > 0 {
		return rest
	}
	k := p.next()
	if k == nil {
		return 0
	}
	began := time.Now()
	err := p.add(k)
	if err != nil {
		p.mu.Lock()
		k.failed = time.Now()
		p.mu.Unlock()
	}
	// Half of the time at most.
	return max(time.Since(began), time.Millisecond)
}

// stale takes out what nobody should get any more.
func (p *pool) stale() []*parked {
	p.mu.Lock()
	defer p.mu.Unlock()
	var old []*parked
	now := time.Now()
	for key, k := range p.kinds {
		k.parked = slices.DeleteFunc(k.parked, func(j *parked) bool {
			if now.Sub(j.since) < parkedAge && !j.isGone() && now.Sub(k.asked) < parkedAge {
				return false
			}
			old = append(old, j)
			return true
		})
		k.taken = slices.DeleteFunc(k.taken, func(t time.Time) bool { return now.Sub(t) > recent })
		if len(k.parked) == 0 && now.Sub(k.asked) >= parkedAge {
			delete(p.kinds, key)
		}
	}
	return old
}

// next is the kind that lacks most; nil where none lacks any.
func (p *pool) next() *kind {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := 0
	for _, k := range p.kinds {
		total += len(k.parked)
	}
	if total >= min(p.most, int(available()/parkedShare/parkedMemory)) {
		return nil
	}
	var found *kind
	for _, k := range p.kinds {
		if k.lacks() > 0 && time.Since(k.failed) > recent && (found == nil || k.lacks() > found.lacks()) {
			found = k
		}
	}
	return found
}

// lacks is how many jails of the kind there should be more: one, and half as many
// as were taken lately.
func (k *kind) lacks() int { return 1 + (len(k.taken)+1)/2 - len(k.parked) }

// add makes one jail of a kind.
func (p *pool) add(k *kind) error {
	ws, err := workspace.Reopen(k.path)
	if err != nil {
		return err
	}
	defer ws.Close()
	j, err := p.boxes.inhabit(context.Background(), k.recipe, ws)
	if err != nil {
		return err
	}
	one := &parked{resident: j, since: time.Now()}
	if one.sees, err = j.sight(ws); err != nil {
		j.End()
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kinds[k.recipe.key(ws)] != k { // it is another workspace now, or nobody wants it any more
		p.boxes.work.Go(j.End)
		return nil
	}
	k.parked = append(k.parked, one)
	return nil
}
