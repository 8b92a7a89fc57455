package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// picker asks what of a change is to be promoted, as git add -p asks what is to
// be staged. It reads a line an answer from standard input, be it a terminal or
// not.
type picker struct {
	in     *bufio.Reader
	out    *bufio.Writer
	colour bool
	quit   bool // nothing more is asked, nor taken

	changes *changeset.Changeset
	chosen  map[string]bool
	partial map[string]changeset.Partial
	asked   map[string]bool // by path
}

// newPicker asks on out.
func newPicker(out *os.File) *picker {
	colour := isTerminal(out) && !dumb() && os.Getenv("NO_COLOR") == ""
	return &picker{
		in: bufio.NewReader(os.Stdin), out: bufio.NewWriter(out), colour: colour,
		chosen: map[string]bool{}, partial: map[string]changeset.Partial{}, asked: map[string]bool{},
	}
}

var errQuit = errors.New("quit")

// pick goes through a change: files first, by name, then what no patch shows.
func (p *picker) pick(c *changeset.Changeset, t changeset.Trees) (changeset.Selection, error) {
	p.changes = c
	err := changeset.Files(c, t, func(f *changeset.FileChange) error {
		if p.quit {
			return errQuit
		}
		if p.inRetyped(f.Path) {
			return nil
		}
		p.asked[f.Path], p.asked[f.From] = true, true
		return p.file(f)
	})
	if err != nil && !errors.Is(err, errQuit) {
		return changeset.Selection{}, err
	}
	if err := p.others(); err != nil {
		return changeset.Selection{}, err
	}
	return changeset.Selection{Pass: p.pass, Partial: p.partial}, p.out.Flush()
}

// pass takes what was chosen, and the deletion of a directory in which all was:
// where something stays in it, Split leaves it.
func (p *picker) pass(e *changeset.Entry) bool {
	return p.chosen[e.Path] || e.Op == changeset.Deleted && e.IsDir() && !p.asked[e.Path] && !p.inRetyped(e.Path)
}

// retyped reports whether a directory became something else or the reverse:
// that is one change with all that is beneath it.
func retyped(e *changeset.Entry) bool {
	return e.Op == changeset.Modified && e.Before.Type != e.After.Type && (e.Before.Type == fsat.Directory || e.After.Type == fsat.Directory)
}

// inRetyped reports whether a path lies beneath such a change.
func (p *picker) inRetyped(path string) bool {
	for path, _ = fsat.Split(path); path != "."; path, _ = fsat.Split(path) {
		if e := p.changes.Find(path); e != nil && retyped(e) {
			return true
		}
	}
	return false
}

// take notes an answer for a whole file, and for what cannot be parted from it.
func (p *picker) take(f *changeset.FileChange) {
	p.chosen[f.Path] = true
	if f.From != "" {
		p.chosen[f.From] = true
	}
	if e := p.changes.Find(f.Path); e != nil && retyped(e) {
		for i := range p.changes.Entries {
			if below := &p.changes.Entries[i]; strings.HasPrefix(below.Path, f.Path+"/") {
				p.chosen[below.Path] = true
			}
		}
	}
}

// file asks about one file: hunk by hunk where it is text that was modified.
func (p *picker) file(f *changeset.FileChange) error {
	e := p.changes.Find(f.Path)
	if e == nil {
		return nil
	}
	if f.Status != changeset.StatusModified || len(f.Hunks) == 0 || e.After.Type != fsat.Regular {
		var text bytes.Buffer
		w := bufio.NewWriter(&text)
		f.WriteText(w)
		what := map[changeset.Status]string{
			changeset.StatusAdded: "addition", changeset.StatusDeleted: "deletion", changeset.StatusRenamed: "rename", changeset.StatusRetyped: "change of type",
		}[f.Status]
		if what == "" {
			what = "change"
		}
		if retyped(e) {
			what = "change of type, with all beneath it,"
			fmt.Fprintf(w, "%q: %s -> %s\n", e.Path, e.Before.Type, e.After.Type)
		}
		_ = w.Flush()
		decided, err := p.questions([]question{{text: text.String(), what: what}})
		if err == nil && decided[0].yes {
			p.take(f)
		}
		return err
	}

	var all []question
	var header bytes.Buffer
	w := bufio.NewWriter(&header)
	f.WriteHeader(w)
	attributes := !sameAttributes(e.Before, e.After)
	if attributes {
		fmt.Fprintf(w, "mode %04o -> %04o\n", e.Before.Mode, e.After.Mode)
		if !maps.EqualFunc(e.Before.Xattrs, e.After.Xattrs, bytes.Equal) {
			w.WriteString("extended attributes\n")
		}
		all = append(all, question{what: "change of mode and attributes"})
	}
	_ = w.Flush()
	for i := range f.Hunks {
		all = append(all, hunkQuestion(&f.Hunks[i]))
	}
	all[0].text = header.String() + all[0].text
	decided, err := p.questions(all)
	if err != nil {
		return err
	}
	part := changeset.Partial{Attributes: true}
	taken, left := 0, 0
	var hunks []changeset.Hunk
	for _, q := range decided {
		switch {
		case q.yes && q.hunk != nil:
			taken++
			hunks = append(hunks, *q.hunk)
		case q.yes:
			taken++
		case q.hunk == nil:
			left++
			part.Attributes = false
		default:
			left++
		}
	}
	switch {
	case left == 0:
		p.take(f)
	case taken > 0:
		part.Content = f.Apply(hunks)
		p.partial[f.Path] = part
	}
	return nil
}

func sameAttributes(a, b *changeset.State) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && maps.EqualFunc(a.Xattrs, b.Xattrs, bytes.Equal)
}

// others asks about what git would not tell of: empty directories, and modes
// and attributes.
func (p *picker) others() error {
	untold := map[string][]string{}
	for _, u := range p.changes.Untold() {
		untold[u.Path] = append(untold[u.Path], u.What)
	}
	for i := range p.changes.Entries {
		e := &p.changes.Entries[i]
		if p.quit || p.asked[e.Path] || p.inRetyped(e.Path) || untold[e.Path] == nil && !retyped(e) {
			continue
		}
		p.asked[e.Path] = true
		q := question{text: fmt.Sprintf("%q: %s\n", e.Path, strings.Join(untold[e.Path], ", ")), what: "change"}
		if retyped(e) {
			q = question{text: fmt.Sprintf("%q: %s -> %s\n", e.Path, e.Before.Type, e.After.Type), what: "change of type, with all beneath it,"}
		}
		decided, err := p.questions([]question{q})
		if err != nil {
			return err
		}
		if decided[0].yes {
			p.take(&changeset.FileChange{Path: e.Path})
		}
	}
	return nil
}

// question is one thing to be taken or left.
type question struct {
	text string // what it is about
	what string
	hunk *changeset.Hunk

	yes, decided bool
}

func hunkQuestion(h *changeset.Hunk) question {
	var text bytes.Buffer
	w := bufio.NewWriter(&text)
	h.Write(w)
	_ = w.Flush()
	return question{text: text.String(), what: "hunk", hunk: h}
}

const pickHelp = `y - promote this
n - leave this in the box
q - quit: leave this and all that follows
a - promote this and all that follows in this file
d - leave this and all that follows in this file
j - decide later, go to the next one of this file
k - decide later, go to the one before
s - split this hunk into smaller ones
? - print help
`

// questions asks what belongs to one file, and returns it decided; hunks may
// have been split. What is never decided stays in the box.
func (p *picker) questions(all []question) ([]question, error) {
	at := 0
	for !p.quit && at < len(all) {
		q := &all[at]
		keys := "y,n,q"
		if len(all) > 1 {
			keys += ",a,d"
		}
		if at+1 < len(all) {
			keys += ",j"
		}
		if at > 0 {
			keys += ",k"
		}
		parts := []changeset.Hunk(nil)
		if q.hunk != nil {
			if parts = q.hunk.Split(); len(parts) > 1 {
				keys += ",s"
			}
		}
		if err := paint(p.out, q.text, p.colour); err != nil {
			return nil, err
		}
		fmt.Fprintf(p.out, "(%d/%d) Promote this %s [%s,?]? ", at+1, len(all), q.what, keys)
		if err := p.out.Flush(); err != nil {
			return nil, err
		}
		line, err := p.in.ReadString('\n')
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("read an answer: %w", err)
		}
		answer := strings.TrimSpace(line)
		if err == io.EOF && answer == "" {
			fmt.Fprintln(p.out)
			answer = "q"
		}
		switch {
		case answer == "y" || answer == "n":
			q.yes, q.decided = answer == "y", true
			at = undecided(all, at)
		case answer == "q":
			p.quit = true
		case answer == "a" || answer == "d":
			for i := at; i < len(all); i++ {
				if !all[i].decided {
					all[i].yes, all[i].decided = answer == "a", true
				}
			}
			at = undecided(all, at)
		case answer == "j" && at+1 < len(all):
			at++
		case answer == "k" && at > 0:
			at--
		case answer == "s" && len(parts) > 1:
			split := append([]question{}, all[:at]...)
			for i := range parts {
				split = append(split, hunkQuestion(&parts[i]))
			}
			all = append(split, all[at+1:]...)
			fmt.Fprintf(p.out, "Split into %d hunks.\n", len(parts))
		default:
			p.out.WriteString(pickHelp)
		}
	}
	return all, nil
}

// undecided returns the next question after at that is not decided, else the
// first one; beyond the last when all are.
func undecided(all []question, at int) int {
	for step := 1; step <= len(all); step++ {
		if i := (at + step) % len(all); !all[i].decided {
			return i
		}
	}
	return len(all)
}
