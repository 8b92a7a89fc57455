package model

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// stamp is the content of a file that says who wrote it, and on top of what.
// It checks itself: half of one is none.
type stamp struct {
	file    string
	who     string // "editor", "box1", "box2"
	gen     int
	baseWho string // of what the writer read there; "" for nothing that was whole
	baseGen int
}

func (s stamp) encode() string {
	body := fmt.Sprintf("%s %s %d %q %d\n", s.file, s.who, s.gen, s.baseWho, s.baseGen)
	body += strings.Repeat(fmt.Sprintf("%s%d ", s.who, s.gen), 100+s.gen%7*300)
	return fmt.Sprintf("%08x %08x ", len(body), crc32.ChecksumIEEE([]byte(body))) + body
}

func decode(text string) (s stamp, err error) {
	var size, sum uint32
	if len(text) < 18 {
		return s, fmt.Errorf("only %d bytes", len(text))
	}
	if _, err := fmt.Sscanf(text, "%08x %08x ", &size, &sum); err != nil {
		return s, err
	}
	body := text[18:]
	if len(body) != int(size) || crc32.ChecksumIEEE([]byte(body)) != sum {
		return s, fmt.Errorf("torn: %d of %d bytes", len(body), size)
	}
	_, err = fmt.Sscanf(body, "%s %s %d %q %d\n", &s.file, &s.who, &s.gen, &s.baseWho, &s.baseGen)
	return s, err
}

// stamp writes generation N of B into A, by rename when M is set, and returns
// what it is based on.
func (op Op) stamp() (saw string, err error) {
	s := stamp{file: op.A, who: op.B, gen: int(op.N)}
	if old, err := os.ReadFile(op.A); err == nil {
		if was, err := decode(string(old)); err == nil {
			s.baseWho, s.baseGen = was.who, was.gen
		}
	}
	saw = fmt.Sprintf("%q %d", s.baseWho, s.baseGen)
	if op.M != 0 {
		return saw, Op{Kind: "resave", A: op.A, Data: s.encode()}.do().err()
	}
	return saw, Op{Kind: "write", A: op.A, Data: s.encode()}.do().err()
}

func (r Reply) err() error {
	if r.Errno != 0 {
		return r.Errno
	}
	return nil
}

// The files: shared are written by both boxes and nobody else, own by one box,
// edited by the boxes and by the editor.
var (
	shared = []string{"shared0", "shared1", "dir/shared2"}
	edited = []string{"renamed0", "dir/renamed1", "inplace0", "dir/inplace1"}
)

func ownFiles(who string) []string { return []string{"own-" + who, "dir/own-" + who} }

// TestConcurrentWriters lets two boxes promote into one workspace while an
// editor saves files in it and a reader reads them.
func TestConcurrentWriters(t *testing.T) {
	for _, strategy := range lab.Strategies(t) {
		t.Run(strategy.Test, func(t *testing.T) {
			seed, _ := firstSeed(t)
			limit := 3 * time.Second
			if lab.Proof() {
				limit = 2 * time.Minute
			}
			newStage(t, strategy).concurrent(seed, limit)
		})
	}
}

// history is what the actors did, for the judgement in the end.
type history struct {
	mu    sync.Mutex
	bases map[stamp]stamp // what a box's stamp was based on; neither with its base
	slots map[stamp]bool  // what lay in the undo data of promotions
	looks []look
}

// look is what the editor found in a file that it had saved.
type look struct {
	found stamp
	last  int // the generation it had saved
}

func id(file, who string, gen int) stamp { return stamp{file: file, who: who, gen: gen} }

func (s *stage) concurrent(seed uint64, limit time.Duration) {
	t := s.T
	t.Helper()
	p := s.place(os.Geteuid())
	defer p.remove()
	if err := os.Mkdir(filepath.Join(p.ws, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, list := range [][]string{shared, edited, ownFiles("box1"), ownFiles("box2")} {
		for _, f := range list {
			all = append(all, f)
			first := stamp{file: f, who: "editor"}
			if err := os.WriteFile(filepath.Join(p.ws, f), []byte(first.encode()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := &history{bases: map[stamp]stamp{}, slots: map[stamp]bool{}}
	var stop atomic.Bool
	var others sync.WaitGroup
	reads, saves := 0, 0
	others.Go(func() {
		for !stop.Load() && !t.Failed() {
			for _, f := range all {
				if strings.Contains(f, "inplace") {
					continue // its writer itself tears it
				}
				text, err := os.ReadFile(filepath.Join(p.ws, f))
				if err == nil {
					_, err = decode(string(text))
				}
				if err != nil {
					t.Errorf("the reader found %s: %v", f, err)
					return
				}
				reads++
			}
		}
	})
	others.Go(func() { saves = p.edit(h, rand.New(rand.NewPCG(seed, 2)), &stop) })

	r := rand.New(rand.NewPCG(seed, 3))
	committed, conflicts, rounds := 0, 0, 0
	for end := time.Now().Add(limit); time.Now().Before(end) && !t.Failed(); rounds++ {
		var boxes sync.WaitGroup
		results := map[string]string{}
		for _, who := range []string{"box1", "box2"} {
			delay := time.Duration(r.IntN(60)) * time.Millisecond
			withEdited := r.IntN(3) == 0
			byRename := int64(r.IntN(2))
			boxes.Go(func() {
				time.Sleep(delay)
				status := p.write(h, who, rounds+1, byRename, withEdited)
				h.mu.Lock()
				results[who] = status
				h.mu.Unlock()
			})
		}
		boxes.Wait()
		for _, status := range results {
			switch status {
			case "success":
				committed++
			case "conflict":
				conflicts++
			}
		}
		p.checkSets(results, rounds+1)
		p.readSlots(h)
	}
	stop.Store(true)
	others.Wait()
	p.readSlots(h)
	if rec := p.RunWith(lab.Options{Dir: p.ws}, "recover"); rec.Code != 0 {
		t.Errorf("%v", rec)
	}
	lost := h.judge(t)
	t.Logf("seed %d: %d rounds, %d promotions, %d conflicts, %d saves (%d only in undo data), %d reads", seed, rounds, committed, conflicts, saves, lost, reads)
	if committed == 0 || saves == 0 || reads == 0 {
		t.Errorf("nothing happened")
	}
}

// write runs one box that writes generation gen into its files.
func (p *place) write(h *history, who string, gen int, byRename int64, withEdited bool) (status string) {
	files := append(ownFiles(who), shared...)
	if withEdited {
		files = append(files, edited[gen%len(edited)])
	}
	var script Script
	for _, f := range files {
		script.Ops = append(script.Ops, Op{Kind: "stamp", A: f, B: who, N: int64(gen), M: byRename})
	}
	in := p.stdin(script)
	defer in.Close()
	r := p.RunWith(lab.Options{Stdin: in, Dir: p.ws}, p.args(Commit)...)
	out := lab.ParseOutcome(p.T, r)
	report, err := parseReport(out.Stdout)
	if err != nil {
		p.T.Errorf("%v\n%v", err, r)
		return "error"
	}
	h.mu.Lock()
	for i, f := range files {
		base := stamp{file: f}
		fmt.Sscanf(report.Replies[i].Saw, "%q %d", &base.who, &base.gen)
		h.bases[id(f, who, gen)] = base
	}
	h.mu.Unlock()
	if out.Kept {
		if d := p.RunWith(lab.Options{Dir: p.ws}, "discard", out.ID); d.Code != 0 {
			p.T.Errorf("%v", d)
		}
	}
	switch {
	case out.Status == "success" && r.Code == 0 && out.Committed:
	case out.Status == "conflict" && r.Code == 125 && len(out.Conflicts) > 0:
	default:
		p.T.Errorf("neither promoted nor a conflict\n%v", r)
	}
	return out.Status
}

// checkSets holds what the boxes of a round left against a serial order.
func (p *place) checkSets(results map[string]string, gen int) {
	var winner stamp
	for i, f := range shared {
		text, err := os.ReadFile(filepath.Join(p.ws, f))
		if err != nil {
			p.T.Error(err)
			return
		}
		s, err := decode(string(text))
		if err != nil {
			p.T.Errorf("%s: %v", f, err)
			return
		}
		s.file, s.baseWho, s.baseGen = "", "", 0
		if i == 0 {
			winner = s
		} else if s != winner {
			p.T.Errorf("round %d: a mixed set: %s is %v, %s is %v", gen, shared[0], winner, f, s)
		}
	}
	for who, status := range results {
		for _, f := range ownFiles(who) {
			text, _ := os.ReadFile(filepath.Join(p.ws, f))
			s, err := decode(string(text))
			if arrived := s.gen == gen; err != nil || arrived != (status == "success") {
				p.T.Errorf("round %d: %s ended with %s, but %s is %v (%v)", gen, who, status, f, s, err)
			}
		}
	}
	if results["box1"] == "success" || results["box2"] == "success" {
		if winner.gen != gen || results[winner.who] != "success" {
			p.T.Errorf("round %d: %v, but the shared files are of %s, generation %d", gen, results, winner.who, winner.gen)
		}
	}
}

// readSlots notes what the undo data of the promotions holds.
func (p *place) readSlots(h *history) {
	filepath.WalkDir(filepath.Join(p.ws, ".hutch"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		if s, err := decode(string(text)); err == nil {
			h.mu.Lock()
			h.slots[id(s.file, s.who, s.gen)] = true
			h.mu.Unlock()
		}
		return nil
	})
}

// edit is the editor: it looks at a file, and saves it anew.
func (p *place) edit(h *history, r *rand.Rand, stop *atomic.Bool) (saves int) {
	last := map[string]int{}
	see := func(f string) {
		text, err := os.ReadFile(filepath.Join(p.ws, f))
		if err != nil {
			p.T.Errorf("the editor finds %s: %v", f, err)
			return
		}
		found, err := decode(string(text))
		if err != nil {
			p.T.Errorf("the editor finds %s: %v", f, err)
			return
		}
		h.mu.Lock()
		h.looks = append(h.looks, look{found, last[f]})
		h.mu.Unlock()
	}
	for !stop.Load() && !p.T.Failed() {
		f := edited[r.IntN(len(edited))]
		see(f)
		s := stamp{file: f, who: "editor", gen: last[f] + 1}
		path := filepath.Join(p.ws, f)
		var err error
		if strings.Contains(f, "renamed") {
			err = Op{Kind: "resave", A: path, Data: s.encode()}.do().err()
		} else {
			err = saveInPlace(path, s.encode())
		}
		if err != nil {
			p.T.Errorf("the editor saves %s: %v", f, err)
			return saves
		}
		last[f]++
		saves++
		time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
	}
	for _, f := range edited {
		see(f)
	}
	return saves
}

func saveInPlace(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Pwrite(fd, []byte(text), 0)
	return errors.Join(err, unix.Ftruncate(fd, int64(len(text))), unix.Close(fd))
}

// judge finds edits that were lost in silence: not there, not what a box built
// on, and not in the undo data. It returns how many are only in the undo data.
func (h *history) judge(t testing.TB) (inSlots int) {
	for _, l := range h.looks {
		at := id(l.found.file, l.found.who, l.found.gen)
		for at.who != "editor" && at.who != "" {
			base := h.bases[at]
			at = id(at.file, base.who, base.gen)
		}
		switch {
		case at.who == "editor" && at.gen == l.last:
		case h.slots[id(l.found.file, "editor", l.last)]:
			inSlots++
		default:
			t.Errorf("generation %d of %s, saved by the editor, is lost: there is generation %d of %s, built on %v", l.last, l.found.file, l.found.gen, l.found.who, at)
		}
	}
	return inSlots
}
