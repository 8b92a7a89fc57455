package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hutch/test/lab"
)

// worker is a client with boxes of its own, that knows what each must hold.
type worker struct {
	*soak
	n        int
	r        *rand.Rand
	http     *http.Client
	families []*family
	made     int   // boxes so far: gives names
	seen     int64 // the life of the daemon in which the last request began
}

// family is a workspace and the boxes on it. It is committed to only while it
// has one: a workspace that changes under another box shows there in part.
type family struct {
	did   []string // lately, to its boxes
	dir   string
	tree  tree
	boxes []*box
}

// box is what a box must be.
type box struct {
	*family
	id, name string
	tree     tree
	checks   map[string]tree
	names    int // of checkpoints so far
	// Of what is left running, in the life of the daemon that it is of:
	running map[string]bool // commands
	writer  string          // the one of them that writes
	orphans int
	life    int64
	// Of commands that ended: what was told of them. Of those in unsure nobody
	// was told.
	told   map[string]told
	unsure map[string]bool
}

type told struct {
	status string
	code   int
}

// errLost is that of a request whose answer never came because the daemon died.
var errLost = errors.New("the daemon died before it answered")

// hung bounds every request.
const hung = time.Minute

// ask sends a request, and waits for the next daemon where this one dies.
func (w *worker) ask(method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), hung)
	defer cancel()
	return w.judged(w.start(), method+" "+path, func() error { return lab.CallWith(ctx, w.http, method, path, in, out) })
}

// start waits until a daemon is there, and notes in which of its lives a request
// begins.
func (w *worker) start() int64 {
	w.seen = w.up()
	return w.seen
}

// judged does what asks the daemon, and tells whether a failure is its death.
func (w *worker) judged(life int64, what string, do func() error) error {
	err := do()
	var p *lab.Problem
	dies := w.life.Load() != life || life&1 == 1
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %v", what, hung)
	case errors.As(err, &p) && (!dies || p.Status < 500 && p.Status != http.StatusTooManyRequests):
		return err
	case dies:
		return errLost
	}
	return fmt.Errorf("%s: %w, though the daemon lives", what, err)
}

// sure asks until an answer comes: only for what can be asked twice.
func (w *worker) sure(method, path string, in, out any) error {
	for {
		if err := w.ask(method, path, in, out); !errors.Is(err, errLost) {
			return err
		}
	}
}

func (b *box) path(rest string) string { return "/v1/boxes/" + b.id + rest }

// alive forgets what died with a daemon, or is about to.
func (w *worker) alive(b *box) {
	now := w.life.Load()
	if now += now & 1; b.life == now {
		return
	}
	for id := range b.running {
		b.unsure[id] = true
	}
	b.life, b.running, b.orphans, b.writer = now, map[string]bool{}, 0, ""
}

func (b *box) quiet() bool { return len(b.running) == 0 && b.orphans == 0 }

// stable reports whether the daemon is still that of the last request's start.
func (w *worker) stable() bool { return w.life.Load() == w.seen }

func (w *worker) note(f *family, id, format string, args ...any) {
	const most = 120
	if len(f.did) >= most {
		f.did = slices.Delete(f.did, 0, most/4)
	}
	f.did = append(f.did, fmt.Sprintf("%s life %d %s: %s", time.Now().Format("15:04:05.000"), w.life.Load(), id, fmt.Sprintf(format, args...)))
}

// boxFault is a fault of a box.
type boxFault struct {
	box  *box
	text string
}

func (f *boxFault) Error() string { return "box " + f.box.id + ": " + f.text }

func (w *worker) wrong(b *box, format string, args ...any) error {
	return &boxFault{b, fmt.Sprintf(format, args...)}
}

// session is one round of a worker: it makes boxes, does what comes, and drops
// them all.
func (w *worker) session(until func() bool) {
	for !until() && !w.over() {
		if err := w.step(); err != nil {
			w.fault(w, err)
			return
		}
	}
	for _, f := range w.families {
		for len(f.boxes) > 0 {
			if err := w.drop(f.boxes[0]); err != nil {
				w.fault(w, err)
				return
			}
		}
	}
}

// step does one thing.
func (w *worker) step() error {
	f := pick(w.r, w.families)
	if len(f.boxes) == 0 || w.r.IntN(60) == 0 && len(f.boxes) < w.most {
		return w.create(f)
	}
	b := pick(w.r, f.boxes)
	w.alive(b)
	what := w.r.IntN(total)
	for _, d := range deeds {
		if what -= d.weight; what < 0 {
			w.note(b.family, b.id, "%s", d.name)
			if err := d.do(w, b); err != nil {
				return fmt.Errorf("%s: %w", d.name, err)
			}
			return nil
		}
	}
	panic("the weights do not add up")
}

// deeds are what a worker does, and how often.
var deeds = []struct {
	name   string
	weight int
	do     func(*worker, *box) error
}{
	{"true", 20, (*worker).truth},
	{"exit", 6, (*worker).exit},
	{"script", 26, (*worker).script},
	{"list tree", 8, (*worker).verify},
	{"stdin", 4, (*worker).stdin},
	{"large output", 2, (*worker).large},
	{"nothing to execute", 2, (*worker).missing},
	{"deadline", 1, (*worker).deadline},
	{"signal", 3, (*worker).signal},
	{"stream", 4, (*worker).stream},
	{"detached", 4, (*worker).detached},
	{"in parallel", 2, (*worker).parallel},
	{"client leaves", 1, (*worker).leave},
	{"background", 3, (*worker).background},
	{"orphan", 2, (*worker).orphan},
	{"kill one", 3, (*worker).killOne},
	{"kill all", 2, (*worker).killAll},
	{"files", 7, (*worker).files},
	{"diff", 4, (*worker).diff},
	{"show", 2, (*worker).show},
	{"execs", 2, (*worker).execs},
	{"checkpoint", 3, (*worker).checkpoint},
	{"restore", 3, (*worker).restore},
	{"fork", 3, (*worker).fork},
	{"release", 2, (*worker).release},
	{"commit", 2, (*worker).commit},
	{"drop", 3, (*worker).drop},
	{"no such box", 1, (*worker).nobody},
}

var total = func() (n int) {
	for _, d := range deeds {
		n += d.weight
	}
	return n
}()

func (w *worker) newName() string {
	w.made++
	return fmt.Sprintf("s%d-%d-%d", w.round, w.n, w.made)
}

type boxJSON struct {
	ID, Name, State, Parent string
	Live                    bool
	Execs                   int
	Running                 []struct{ ID string }
	Checkpoints             []struct{ Name string }
}

func (w *worker) adopt(f *family, got boxJSON, t tree) *box {
	b := &box{family: f, id: got.ID, name: got.Name, tree: t, life: -1, checks: map[string]tree{}, told: map[string]told{}, unsure: map[string]bool{}}
	f.boxes = append(f.boxes, b)
	w.note(f, b.name, "is %s, %s, parent %q", b.id, got.State, got.Parent)
	w.alive(b)
	return b
}

func (w *worker) create(f *family) error {
	name := w.newName()
	w.note(f, name, "create")
	for {
		var got boxJSON
		err := w.ask("POST", "/v1/boxes", map[string]any{"name": name, "workspace": f.dir}, &got)
		if errors.Is(err, errLost) {
			err = w.sure("GET", "/v1/boxes/"+name, nil, &got)
			if lab.CodeOf(err) == "not_found" {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("create: %w", err)
		}
		if got.Name != name || got.State != "created" {
			return fmt.Errorf("create: the new box is %+v", got)
		}
		w.adopt(f, got, f.tree)
		return nil
	}
}

// forget takes a box out of the model.
func (w *worker) forget(b *box) {
	b.family.boxes = slices.DeleteFunc(b.family.boxes, func(o *box) bool { return o == b })
}

// drop discards or removes a box.
func (w *worker) drop(b *box) error {
	w.note(b.family, b.id, "drop")
	w.alive(b)
	forced := b.quiet() || w.r.IntN(2) == 0
	method, path, in := "POST", b.path("/discard"), any(map[string]any{"force": forced})
	if w.r.IntN(2) == 0 {
		method, path, in, forced = "DELETE", b.path(""), nil, true
	}
	err := w.ask(method, path, in, nil)
	if w.alive(b); !forced && w.stable() {
		if lab.CodeOf(err) != "not_quiet" {
			return w.wrong(b, "processes run in it, and discard without force: %v", err)
		}
		return w.verify(b)
	}
	for errors.Is(err, errLost) || err != nil && !forced {
		forced = true
		if err = w.ask("DELETE", b.path(""), nil, nil); lab.CodeOf(err) == "not_found" {
			err = nil
		}
	}
	if err != nil {
		return w.wrong(b, "drop: %v", err)
	}
	w.forget(b)
	return nil
}

// want is how a command must end.
type want struct {
	status string
	code   int
	stdout string
	signal string
}

var well = want{status: "success"}

func (w *worker) ended(b *box, o *lab.Outcome, id string, t want) error {
	w.done.Add(1)
	if id == "" {
		_, id, _ = strings.Cut(o.ID, "-")
	}
	b.told[id] = told{o.Status, o.ExitCode}
	signal, _ := o.Signal.(string)
	stdout := o.Stdout
	if o.StdoutBase64 != "" {
		raw, _ := base64.StdEncoding.DecodeString(o.StdoutBase64)
		stdout = string(raw)
	}
	if o.Status != t.status || o.ExitCode != t.code || stdout != t.stdout || signal != t.signal || o.Receipt == "" {
		return w.wrong(b, "exec %s: status %s, exit code %d, signal %q, stdout %.200q, receipt %q; want %+v\nstderr: %.300s\nerror: %s", id, o.Status, o.ExitCode, signal, stdout, o.Receipt, t, o.Stderr, o.Error)
	}
	return nil
}

// exec runs a command to its end. Where the daemon dies first, lost is given what
// the box's record says of it: nothing, an outcome, or that nobody knows.
func (w *worker) exec(b *box, run map[string]any, t want, lost func(*lab.Outcome) error) error {
	if lost == nil {
		lost = func(*lab.Outcome) error { return nil }
	}
	var out lab.Outcome
	err := w.ask("POST", b.path("/execs"), run, &out)
	if errors.Is(err, errLost) {
		found, err := w.after(b, 1)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return lost(nil)
		}
		return lost(found[0])
	}
	if err != nil {
		return w.wrong(b, "exec %v: %v", run["argv"], err)
	}
	if !w.stable() && out.Status != t.status { // the end of the daemon ended it
		_, id, _ := strings.Cut(out.ID, "-")
		b.unsure[id] = true
		w.alive(b)
		return lost(&out)
	}
	w.alive(b)
	return w.ended(b, &out, "", t)
}

func shell(text string) map[string]any { return map[string]any{"argv": []string{"sh", "-c", text}} }

type execJSON struct {
	ID      string
	Box     string
	Argv    []string
	Running bool
	Outcome *lab.Outcome
}

// after compares the box's record of commands with what was told of them, and
// returns what is known of commands that nobody was told of, of which there may
// be a number that are new.
func (w *worker) after(b *box, most int) ([]*lab.Outcome, error) {
	var list []execJSON
	if err := w.sure("GET", b.path("/execs"), nil, &list); err != nil {
		return nil, w.wrong(b, "execs: %v", err)
	}
	w.alive(b)
	here := map[string]bool{}
	var fresh []*lab.Outcome
	for _, e := range list {
		if n, err := strconv.Atoi(e.ID); err != nil || n < 1 || here[e.ID] || e.Box != b.id || len(e.Argv) == 0 || e.Running == (e.Outcome != nil) {
			return nil, w.wrong(b, "the record of a command makes no sense: %+v", e)
		}
		here[e.ID] = true
		if e.Running {
			if w.stable() && !b.running[e.ID] {
				return nil, w.wrong(b, "exec %s %q is said to run, but was not left running", e.ID, e.Argv)
			}
			continue
		}
		t, known := b.told[e.ID]
		switch {
		case known && (t.status != e.Outcome.Status || t.code != e.Outcome.ExitCode):
			return nil, w.wrong(b, "exec %s was told as %+v and is recorded as %s, %d", e.ID, t, e.Outcome.Status, e.Outcome.ExitCode)
		case known, b.unsure[e.ID]:
		default:
			b.unsure[e.ID] = true
			fresh = append(fresh, e.Outcome)
			if e.Outcome.Status == "error" && !strings.Contains(e.Outcome.Error, "unknown") {
				return nil, w.wrong(b, "exec %s failed: %s", e.ID, e.Outcome.Error)
			}
		}
	}
	for id := range b.told {
		if !here[id] {
			return nil, w.wrong(b, "exec %s, which ended as %+v, is not in the record", id, b.told[id])
		}
	}
	if len(fresh) > most {
		return nil, w.wrong(b, "%d commands are recorded that nobody started: %+v", len(fresh)-most, fresh)
	}
	return fresh, nil
}

func (w *worker) execs(b *box) error {
	_, err := w.after(b, 0)
	return err
}

func (w *worker) truth(b *box) error {
	return w.exec(b, map[string]any{"argv": []string{"true"}}, well, nil)
}

func (w *worker) exit(b *box) error {
	code := 1 + w.r.IntN(120)
	return w.exec(b, shell(fmt.Sprintf("exit %d", code)), want{status: "failed", code: code}, nil)
}

func (w *worker) missing(b *box) error {
	return w.exec(b, map[string]any{"argv": []string{"no-such-command"}}, want{status: "failed", code: 127}, nil)
}

func (w *worker) signal(b *box) error {
	signals := []struct {
		name string
		n    int
	}{{"KILL", 9}, {"TERM", 15}, {"SEGV", 11}}
	s := pick(w.r, signals)
	return w.exec(b, shell(fmt.Sprintf("kill -%d $$; sleep 9", s.n)), want{status: "killed", code: 128 + s.n, signal: "SIG" + s.name}, nil)
}

func (w *worker) deadline(b *box) error {
	run := map[string]any{"argv": []string{"sleep", "100"}, "timeout_seconds": 0.03}
	if w.r.IntN(2) == 0 {
		run["argv"] = []string{"sh", "-c", "trap '' TERM INT; sleep 101 & sleep 102"}
	}
	err := w.exec(b, run, want{status: "timeout", code: 124}, nil)
	if err == nil && b.quiet() {
		return w.nothing(b)
	}
	return err
}

// nothing wants that nothing runs in a box.
func (w *worker) nothing(b *box) error {
	w.alive(b)
	if !b.quiet() {
		return nil
	}
	var list []struct {
		PID, HostPID int
		Name, Exec   string
		Argv         []string
	}
	if err := w.sure("GET", b.path("/processes"), nil, &list); err != nil {
		return w.wrong(b, "processes: %v", err)
	}
	if w.alive(b); len(list) > 0 {
		return w.wrong(b, "nothing was left running, but these are there: %+v", list)
	}
	return nil
}

func (w *worker) stdin(b *box) error {
	text := strings.Repeat(token(w.r)+"\n", 1+w.r.IntN(20))
	run := map[string]any{"argv": []string{"cat"}, "stdin": text}
	if w.r.IntN(2) == 0 {
		text += "\xff\xfe"
		run = map[string]any{"argv": []string{"cat"}, "stdin_base64": []byte(text)}
	}
	return w.exec(b, run, want{status: "success", stdout: text}, nil)
}

// script changes files.
func (w *worker) script(b *box) error {
	steps, states := b.tree.script(w.r, 4)
	word := token(w.r)
	text := shellOf(steps) + "\nprintf " + word
	w.note(b.family, b.id, "%q", text)
	last := states[len(states)-1]
	b.tree = last
	err := w.exec(b, shell(text), want{status: "success", stdout: word}, func(o *lab.Outcome) error {
		got, err := w.tree(b)
		if err != nil {
			return err
		}
		switch {
		case o == nil:
			if d := states[0].diff(got); len(d) > 0 {
				return w.wrong(b, "a command that is not recorded changed files: %s", strings.Join(d, "; "))
			}
		case o.Status == "success":
			if d := last.diff(got); len(d) > 0 {
				return w.wrong(b, "a command that is recorded as a success did not do all: %s", strings.Join(d, "; "))
			}
		case o.Status != "error" && o.Status != "killed":
			return w.wrong(b, "a script that cannot fail is recorded as %s, %d (%s)", o.Status, o.ExitCode, o.Stderr)
		case !within(got, steps, states):
			return w.wrong(b, "a script that was cut off left what no part of it does\nscript: %s\nagainst before: %s\nagainst after: %s", text, strings.Join(states[0].diff(got), "; "), strings.Join(last.diff(got), "; "))
		}
		b.tree = got
		return nil
	})
	if err == nil && w.r.IntN(4) == 0 {
		return w.verify(b)
	}
	return err
}

// tree reads what a box holds.
func (w *worker) tree(b *box) (tree, error) {
	for {
		var out lab.Outcome
		err := w.ask("POST", b.path("/execs"), shell(lister), &out)
		if errors.Is(err, errLost) {
			if _, err := w.after(b, 1); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, w.wrong(b, "list tree: %v", err)
		}
		if !w.stable() && out.Status != "success" {
			_, id, _ := strings.Cut(out.ID, "-")
			b.unsure[id] = true
			w.alive(b)
			continue
		}
		w.alive(b)
		if err := w.ended(b, &out, "", want{status: "success", stdout: out.Stdout}); err != nil {
			return nil, err
		}
		got, lines, err := listed(out.Stdout)
		if err == nil {
			err = counted(lines)
		}
		if err != nil {
			return nil, w.wrong(b, "%v", err)
		}
		return got, nil
	}
}

// verify compares a box with its model.
func (w *worker) verify(b *box) error {
	got, err := w.tree(b)
	if err != nil {
		return err
	}
	if d := b.tree.diff(got); len(d) > 0 {
		return w.wrong(b, "it does not hold what it must: %s", strings.Join(d, "; "))
	}
	return nil
}

func (w *worker) large(b *box) error {
	size, most := 100_000+w.r.IntN(300_000), 1+w.r.IntN(2000)
	run := shell(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; printf %s", size, "end"))
	run["return"] = most
	var out lab.Outcome
	err := w.ask("POST", b.path("/execs"), run, &out)
	if errors.Is(err, errLost) {
		_, err := w.after(b, 1)
		return err
	}
	if err != nil {
		return w.wrong(b, "exec: %v", err)
	}
	_, id, _ := strings.Cut(out.ID, "-")
	if !w.stable() {
		b.unsure[id] = true
		w.alive(b)
		return nil
	}
	if !out.StdoutTruncated || out.StdoutBytes != int64(size+3) || len(out.Stdout) > most {
		return w.wrong(b, "of %d bytes %d were returned where %d were asked for; stdout_bytes %d, stdout_truncated %v", size+3, len(out.Stdout), most, out.StdoutBytes, out.StdoutTruncated)
	}
	if err := w.ended(b, &out, "", want{status: "success", stdout: out.Stdout}); err != nil {
		return err
	}
	var rest []byte
	if err := w.sure("GET", b.path(fmt.Sprintf("/execs/%s/output?offset=%d", id, size-2)), nil, &rest); err != nil || string(rest) != "xxend" {
		return w.wrong(b, "the end of the output of exec %s is %q (%v)", id, rest, err)
	}
	return nil
}

// stream reads a command's output as it comes.
func (w *worker) stream(b *box) error {
	word := token(w.r)
	run := shell(fmt.Sprintf("printf %s; sleep 0.0%d; printf %s >&2; printf z", word, w.r.IntN(3), word))
	ctx, cancel := context.WithTimeout(context.Background(), hung)
	defer cancel()
	var text [2]string
	var id string
	var out *lab.Outcome
	err := w.judged(w.start(), "stream", func() error {
		resp, err := lab.Request(ctx, w.http, "POST", b.path("/execs"), "application/x-ndjson", run)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e struct {
				Exec         *execJSON
				Stream, Data string
				Outcome      *lab.Outcome
				Error        *lab.Problem
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return fmt.Errorf("%w: %.200q", err, lines.Text())
			}
			switch {
			case e.Exec != nil:
				id = e.Exec.ID
			case e.Error != nil:
				return e.Error
			case e.Outcome != nil:
				out = e.Outcome
			case e.Stream == "stderr":
				text[1] += e.Data
			default:
				text[0] += e.Data
			}
		}
		if err := lines.Err(); err != nil {
			return err
		}
		if out == nil {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	if errors.Is(err, errLost) {
		_, err := w.after(b, 1)
		return err
	}
	if err != nil {
		return w.wrong(b, "stream: %v", err)
	}
	if !w.stable() {
		b.unsure[id] = true
		w.alive(b)
		return nil
	}
	if id == "" || text != [2]string{word + "z", word} {
		return w.wrong(b, "the stream of exec %q was %q", id, text)
	}
	return w.ended(b, out, id, well)
}

// begin starts a command and leaves it; "" where the daemon died.
func (w *worker) begin(b *box, run map[string]any) (id string, err error) {
	var e execJSON
	err = w.ask("POST", b.path("/execs?detach=true"), run, &e)
	if errors.Is(err, errLost) {
		_, err := w.after(b, 1)
		return "", err
	}
	if err != nil || e.ID == "" || e.Box != b.id {
		return "", w.wrong(b, "detach: %+v, %v", e, err)
	}
	if w.alive(b); !w.stable() {
		b.unsure[e.ID] = true // it dies with that daemon
		return "", nil
	}
	b.running[e.ID] = true
	return e.ID, nil
}

// ending waits for a command that must end by itself.
func (w *worker) ending(b *box, id string, t want) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		var e execJSON
		if err := w.sure("GET", b.path("/execs/"+id), nil, &e); err != nil {
			return w.wrong(b, "exec %s: %v", id, err)
		}
		if w.alive(b); b.unsure[id] {
			return nil // it died with a daemon
		}
		if !e.Running {
			delete(b.running, id)
			if b.writer == id {
				b.writer = ""
			}
			return w.ended(b, e.Outcome, id, t)
		}
		if time.Now().After(deadline) {
			return w.wrong(b, "exec %s still runs", id)
		}
	}
}

func (w *worker) detached(b *box) error {
	word := token(w.r)
	id, err := w.begin(b, shell(fmt.Sprintf("sleep 0.0%d; printf %s", w.r.IntN(4), word)))
	if err != nil || id == "" {
		return err
	}
	var text []byte
	err = w.ask("GET", b.path("/execs/"+id+"/output?follow=true"), nil, &text)
	if err != nil && !errors.Is(err, errLost) {
		return w.wrong(b, "output of exec %s: %v", id, err)
	}
	if w.alive(b); b.unsure[id] {
		return nil
	}
	if string(text) != word {
		return w.wrong(b, "the output of exec %s was %q, not %q", id, text, word)
	}
	return w.ending(b, id, want{status: "success", stdout: word})
}

// parallel runs commands side by side in one box.
func (w *worker) parallel(b *box) error {
	n := 2 + w.r.IntN(3)
	outs, errs := make([]lab.Outcome, n), make([]error, n)
	life := w.start()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), hung)
			defer cancel()
			errs[i] = w.judged(life, "parallel", func() error {
				return lab.CallWith(ctx, w.http, "POST", b.path("/execs"), shell(fmt.Sprintf("sleep 0.00%d; printf %d; exit %d", i, i, i)), &outs[i])
			})
		})
	}
	wg.Wait()
	w.alive(b)
	lost := 0
	for i := range n {
		if errors.Is(errs[i], errLost) {
			lost++
			continue
		}
		if errs[i] != nil {
			return w.wrong(b, "in parallel: %v", errs[i])
		}
		t := want{status: "failed", code: i, stdout: strconv.Itoa(i)}
		if i == 0 {
			t.status = "success"
		}
		if outs[i].Status != t.status && w.life.Load() != life {
			_, id, _ := strings.Cut(outs[i].ID, "-")
			b.unsure[id] = true
			continue
		}
		if err := w.ended(b, &outs[i], "", t); err != nil {
			return err
		}
	}
	if lost > 0 {
		_, err := w.after(b, lost)
		return err
	}
	return nil
}

// leave goes away before the command has ended, which ends it.
func (w *worker) leave(b *box) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(5+w.r.IntN(20))*time.Millisecond)
	defer cancel()
	life := w.start()
	var out lab.Outcome
	err := lab.CallWith(ctx, w.http, "POST", b.path("/execs"), map[string]any{"argv": []string{"sleep", "103"}}, &out)
	if err == nil {
		return w.wrong(b, "sleep 103 ended at once: %+v", out)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var list []execJSON
		if err := w.sure("GET", b.path("/execs"), nil, &list); err != nil {
			return w.wrong(b, "execs: %v", err)
		}
		w.alive(b)
		runs := ""
		for _, e := range list {
			switch _, known := b.told[e.ID]; {
			case e.Running && !b.running[e.ID]:
				runs = e.ID
			case known, e.Running, b.unsure[e.ID], b.running[e.ID]:
			case w.life.Load() != life:
				b.unsure[e.ID] = true
			default:
				return w.ended(b, e.Outcome, e.ID, want{status: "killed", code: 130, signal: "SIGINT"})
			}
		}
		if w.life.Load() != life {
			_, err := w.after(b, 1)
			return err
		}
		if runs == "" && time.Now().After(deadline.Add(-9*time.Second)) {
			return nil // it never began
		}
		if time.Now().After(deadline) {
			return w.wrong(b, "exec %s runs on, though its client has gone", runs)
		}
	}
}

// background leaves a command running.
func (w *worker) background(b *box) error {
	if len(b.running) > 3 {
		return w.killAll(b)
	}
	run, writes := map[string]any{"argv": []string{"sleep", "1000"}, "timeout_seconds": 0}, false
	if b.writer == "" && w.r.IntN(2) == 0 {
		writes = true
		run["argv"] = []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i >>" + loose + "; sleep 0.2; done"}
	}
	id, err := w.begin(b, run)
	if id != "" && writes {
		b.writer = id
	}
	return err
}

// orphan leaves a process behind that no command waits for.
func (w *worker) orphan(b *box) error {
	if b.orphans > 3 {
		return w.killAll(b)
	}
	text := "sleep 1001 & echo left"
	if w.r.IntN(2) == 0 {
		text = "setsid sleep 1002 >/dev/null 2>&1 </dev/null & echo left"
	}
	lost := false
	err := w.exec(b, shell(text), want{status: "success", stdout: "left\n"}, func(*lab.Outcome) error {
		lost = true
		return nil
	})
	if err == nil && !lost && w.stable() {
		b.orphans++
	}
	return err
}

func (w *worker) killOne(b *box) error {
	if len(b.running) == 0 {
		return w.truth(b)
	}
	id := pick(w.r, slices.Sorted(maps.Keys(b.running)))
	err := w.ask("POST", b.path("/kill"), map[string]any{"exec": id}, nil)
	if w.alive(b); b.unsure[id] {
		return nil
	}
	if err != nil {
		return w.wrong(b, "kill exec %s: %v", id, err)
	}
	return w.ending(b, id, want{status: "killed", code: 137, signal: "SIGKILL"})
}

// killAll ends what runs in a box.
func (w *worker) killAll(b *box) error {
	err := w.ask("POST", b.path("/kill"), map[string]any{"all": true}, nil)
	if w.alive(b); !w.stable() {
		return nil
	}
	if err != nil {
		return w.wrong(b, "kill all: %v", err)
	}
	b.orphans = 0
	for _, id := range slices.Sorted(maps.Keys(b.running)) {
		if err := w.ending(b, id, want{status: "killed", code: 137, signal: "SIGKILL"}); err != nil {
			return err
		}
	}
	return w.nothing(b)
}

// files reaches into a box without a command.
func (w *worker) files(b *box) error {
	switch w.r.IntN(4) {
	case 0: // write
		p, text := b.tree.place(w.r, fileNames), token(w.r)
		n, there := b.tree[p]
		if there && n.kind != 'f' {
			return nil
		}
		if !there {
			n = node{'f', 0o644, ""}
		}
		n.text = text
		err := errLost
		for errors.Is(err, errLost) {
			err = w.ask("PUT", b.path("/files?path="+url.QueryEscape(p)), strings.NewReader(text), nil)
		}
		if err != nil {
			return w.wrong(b, "write %s: %v", p, err)
		}
		b.tree = maps.Clone(b.tree)
		b.tree[p] = n
	case 1: // read
		files := b.tree.all('f')
		if len(files) == 0 {
			return nil
		}
		p := pick(w.r, files)
		var text []byte
		if err := w.sure("GET", b.path("/files?path="+url.QueryEscape(p)), nil, &text); err != nil || string(text) != b.tree[p].text {
			return w.wrong(b, "%s reads as %q (%v), not %q", p, text, err, b.tree[p].text)
		}
	case 2: // remove
		files := b.tree.all('f')
		if len(files) == 0 {
			return nil
		}
		p := pick(w.r, files)
		err := w.ask("DELETE", b.path("/files?path="+url.QueryEscape(p)), nil, nil)
		for errors.Is(err, errLost) {
			if err = w.ask("DELETE", b.path("/files?path="+url.QueryEscape(p)), nil, nil); lab.CodeOf(err) == "not_found" {
				err = nil
			}
		}
		if err != nil {
			return w.wrong(b, "remove %s: %v", p, err)
		}
		b.tree = maps.Clone(b.tree)
		delete(b.tree, p)
	default: // list
		dirs := append([]string{"."}, b.tree.all('d')...)
		dir := pick(w.r, dirs)
		var list []struct {
			Name, Type, Target string
			Mode               uint32
			Size               int64
		}
		if err := w.sure("GET", b.path("/dir?path="+url.QueryEscape(dir)), nil, &list); err != nil {
			return w.wrong(b, "list %s: %v", dir, err)
		}
		got, must := tree{}, tree{}
		for p, n := range b.tree {
			if filepath.Dir(p) == dir {
				if n.kind == 'f' {
					n.text = strconv.Itoa(len(n.text))
				}
				must[p] = n
			}
		}
		for _, f := range list {
			n := node{map[string]byte{"file": 'f', "directory": 'd', "symlink": 'l'}[f.Type], f.Mode, f.Target}
			if n.kind == 'f' {
				n.text = strconv.FormatInt(f.Size, 10)
			}
			if p := filepath.Join(dir, f.Name); p != loose {
				got[p] = n
			}
		}
		if d := must.diff(got); len(d) > 0 {
			return w.wrong(b, "the list of %s: %s", dir, strings.Join(d, "; "))
		}
	}
	w.alive(b)
	return nil
}

func (w *worker) diff(b *box) error {
	var got struct {
		Created  []string `json:"files_created"`
		Modified []string `json:"files_modified"`
		Deleted  []string `json:"files_deleted"`
	}
	if err := w.sure("GET", b.path("/diff"), nil, &got); err != nil {
		return w.wrong(b, "diff: %v", err)
	}
	w.alive(b)
	must := b.family.tree.changes(b.tree)
	for i, list := range [][]string{got.Created, got.Modified, got.Deleted} {
		list = slices.DeleteFunc(list, func(p string) bool { return p == loose })
		slices.Sort(list)
		if !slices.Equal(list, must[i]) {
			return w.wrong(b, "%s: %q, must be %q", []string{"created", "modified", "deleted"}[i], list, must[i])
		}
	}
	return nil
}

func (w *worker) show(b *box) error {
	var got boxJSON
	name := pick(w.r, []string{b.id, b.name, b.id[:11]})
	if err := w.sure("GET", "/v1/boxes/"+name, nil, &got); err != nil {
		return w.wrong(b, "show %s: %v", name, err)
	}
	w.alive(b)
	known := len(b.told) + len(b.unsure)
	var checks []string
	for _, c := range got.Checkpoints {
		checks = append(checks, c.Name)
	}
	slices.Sort(checks)
	switch {
	case got.ID != b.id || got.Name != b.name:
		return w.wrong(b, "%s shows %+v", name, got)
	case w.stable() && len(b.running) > 0 && got.State != "busy":
		return w.wrong(b, "%d commands run, but it is %s", len(b.running), got.State)
	case w.stable() && len(b.running) == 0 && got.State != "ready" && got.State != "created":
		return w.wrong(b, "no command runs, but it is %s", got.State)
	case w.stable() && len(got.Running) != len(b.running):
		return w.wrong(b, "%+v are said to run, not %v", got.Running, b.running)
	case got.Execs < known:
		return w.wrong(b, "%d commands ran in it, not %d", known, got.Execs)
	}
	for c := range b.checks {
		if !slices.Contains(checks, c) {
			return w.wrong(b, "checkpoint %s is missing among %q", c, checks)
		}
	}
	return nil
}

func (w *worker) checkpoint(b *box) error {
	if len(b.checks) > 6 {
		return w.verify(b)
	}
	b.names++
	name := fmt.Sprintf("c%d", b.names)
	w.note(b.family, b.id, "checkpoint %s, quiet %v", name, b.quiet())
	err := w.ask("POST", b.path("/checkpoints"), map[string]any{"name": name}, nil)
	if errors.Is(err, errLost) {
		var list []struct{ Name string }
		if err := w.sure("GET", b.path("/checkpoints"), nil, &list); err != nil {
			return w.wrong(b, "checkpoints: %v", err)
		}
		for _, c := range list {
			if c.Name == name {
				b.checks[name] = b.tree
			}
		}
		w.alive(b)
		return w.verify(b)
	}
	if err != nil {
		return w.wrong(b, "checkpoint: %v", err)
	}
	b.checks[name] = b.tree
	if w.r.IntN(3) == 0 {
		return w.verify(b)
	}
	return nil
}

func (w *worker) restore(b *box) error {
	if len(b.checks) == 0 {
		return w.checkpoint(b)
	}
	name := pick(w.r, slices.Sorted(maps.Keys(b.checks)))
	w.note(b.family, b.id, "restore %s, quiet %v", name, b.quiet())
	if !b.quiet() {
		if w.r.IntN(2) == 0 {
			err := w.ask("POST", b.path("/restore"), map[string]any{"name": name}, nil)
			if w.alive(b); w.stable() {
				if lab.CodeOf(err) != "not_quiet" {
					return w.wrong(b, "processes run in it, and restore: %v", err)
				}
				return w.verify(b)
			}
		} else if err := w.killAll(b); err != nil {
			return err
		}
	}
	err := w.sure("POST", b.path("/restore"), map[string]any{"name": name}, nil)
	w.alive(b)
	if err != nil {
		return w.wrong(b, "restore %s: %v", name, err)
	}
	b.tree = b.checks[name]
	return w.verify(b)
}

func (w *worker) fork(b *box) error {
	n := min(1+w.r.IntN(2), w.most-len(b.family.boxes))
	if n <= 0 {
		return w.verify(b)
	}
	var names []string
	for range n {
		names = append(names, w.newName())
	}
	w.note(b.family, b.id, "fork %v, quiet %v", names, b.quiet())
	var forks []boxJSON
	err := w.ask("POST", b.path("/fork"), map[string]any{"count": n, "names": names}, &forks)
	if errors.Is(err, errLost) {
		for _, name := range names {
			var got boxJSON
			err := w.sure("GET", "/v1/boxes/"+name, nil, &got)
			if lab.CodeOf(err) == "not_found" {
				continue
			}
			if err != nil {
				return w.wrong(b, "fork %s: %v", name, err)
			}
			forks = append(forks, got)
		}
		w.alive(b)
	} else if err != nil {
		return w.wrong(b, "fork: %v", err)
	} else if len(forks) != n {
		return w.wrong(b, "%d forks were asked for, and %d came", n, len(forks))
	}
	for _, f := range forks {
		if f.Parent != b.id || f.State != "created" {
			return w.wrong(b, "the fork is %+v", f)
		}
		c := w.adopt(b.family, f, b.tree)
		if w.r.IntN(2) == 0 {
			if err := w.verify(c); err != nil {
				return fmt.Errorf("a fork: %w", err)
			}
		}
	}
	if w.r.IntN(3) == 0 {
		return w.verify(b)
	}
	return nil
}

// release lets go of a box, which then lives on the disk only.
func (w *worker) release(b *box) error {
	err := w.ask("POST", b.path("/release"), nil, nil)
	if w.alive(b); !w.stable() {
		return nil
	}
	if len(b.running) > 0 {
		if lab.CodeOf(err) != "not_quiet" {
			return w.wrong(b, "commands run in it, and release: %v", err)
		}
		return nil
	}
	if err != nil {
		return w.wrong(b, "release: %v", err)
	}
	b.orphans = 0
	return nil
}

// commit carries what the box changed into the workspace.
func (w *worker) commit(b *box) error {
	if len(b.family.boxes) > 1 {
		return w.fork(b)
	}
	keep := w.r.IntN(2) == 0
	w.note(b.family, b.id, "commit, keep %v, quiet %v", keep, b.quiet())
	if !b.quiet() {
		if w.r.IntN(2) == 0 {
			err := w.ask("POST", b.path("/commit"), map[string]any{"keep": keep}, nil)
			if w.alive(b); w.stable() {
				if lab.CodeOf(err) != "not_quiet" {
					return w.wrong(b, "processes run in it, and commit: %v", err)
				}
				return w.verify(b)
			}
			return w.committed(b, keep, err)
		}
		if err := w.killAll(b); err != nil {
			return err
		}
	}
	return w.commitNow(b, keep)
}

// commitNow commits a quiet box.
func (w *worker) commitNow(b *box, keep bool) error {
	f := b.family
	err := w.ask("POST", b.path("/commit"), map[string]any{"keep": keep, "allow": []string{"**"}}, nil)
	if w.alive(b); errors.Is(err, errLost) {
		return w.committed(b, keep, err)
	}
	if err != nil {
		return w.wrong(b, "commit: %v", err)
	}
	got, err := onHost(f.dir)
	if err != nil {
		return err
	}
	if d := b.tree.diff(got); len(d) > 0 {
		return w.wrong(b, "the workspace does not hold what was committed: %s", strings.Join(d, "; "))
	}
	f.tree, b.checks = b.tree, map[string]tree{}
	if !keep {
		w.forget(b)
		return nil
	}
	return w.verify(b)
}

// committed finds out what came of a commit whose answer was lost: all or
// nothing.
func (w *worker) committed(b *box, keep bool, err error) error {
	if err != nil && !errors.Is(err, errLost) && lab.CodeOf(err) != "not_quiet" {
		return w.wrong(b, "commit: %v", err)
	}
	f := b.family
	if text, err := w.hutch("recover", "--workspace", f.dir); err != nil {
		return w.wrong(b, "recover: %v: %s", err, text)
	}
	var shown boxJSON
	err = w.sure("GET", b.path(""), nil, &shown)
	if err != nil && lab.CodeOf(err) != "not_found" {
		return w.wrong(b, "show: %v", err)
	}
	if err == nil && shown.State == "committing" { // as it says itself, to commit again ends that
		return w.commitNow(b, keep)
	}
	gone := err != nil || shown.State == "committed"
	got, err := onHost(f.dir)
	if err != nil {
		return err
	}
	before, after := f.tree.diff(got), b.tree.diff(got)
	switch {
	case len(before) > 0 && len(after) > 0:
		return w.wrong(b, "of a commit that was cut off a part arrived\nagainst before: %s\nagainst after: %s", strings.Join(before, "; "), strings.Join(after, "; "))
	case gone && len(after) > 0:
		return w.wrong(b, "it counts as committed, but its change is not in the workspace: %s", strings.Join(after, "; "))
	}
	if len(after) == 0 {
		f.tree = b.tree
	}
	b.checks = map[string]tree{}
	if gone {
		w.forget(b)
		return nil
	}
	w.alive(b)
	if err := w.verify(b); err != nil {
		return fmt.Errorf("after a commit that was cut off: %w", err)
	}
	return w.diff(b)
}

func (w *worker) nobody(*box) error {
	for _, path := range []string{"", "/execs", "/diff"} {
		if err := w.sure("GET", "/v1/boxes/nosuchbox"+path, nil, nil); lab.CodeOf(err) != "not_found" {
			return fmt.Errorf("a box that is not: %w", err)
		}
	}
	if err := w.sure("POST", "/v1/boxes/nosuchbox/execs", map[string]any{"argv": []string{"true"}}, nil); lab.CodeOf(err) != "not_found" {
		return fmt.Errorf("a box that is not: %w", err)
	}
	return nil
}

// newFamily makes a workspace.
func (w *worker) newFamily(dir string) (*family, error) {
	f := &family{dir: dir, tree: tree{}}
	for range 25 {
		f.tree.next(w.r).do(f.tree)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	return f, f.tree.put(dir)
}
