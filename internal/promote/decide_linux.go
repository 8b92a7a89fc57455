package promote

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// verdict is what becomes of an entry.
type verdict uint8

const (
	take  verdict = iota // the box's side goes into the workspace
	agree                // the workspace is so already
	leave                // the workspace's side stays
	clash                // a conflict that the mode does not settle
)

// decision is a verdict on one entry, and what it was founded on.
type decision struct {
	verdict verdict
	st      fsat.Stat // the host at the path
	found   bool      // the host has something there
	// entry is what is taken: the changeset's, or a merged one.
	entry *changeset.Entry
	// attrs takes mode, owner and xattrs only, onto the host's content.
	attrs bool
}

// firmness is how far a conflict can be settled.
type firmness uint8

const (
	soft  firmness = iota // by any mode
	stays                 // only by leaving the workspace's side
	hard                  // by none
)

// difference is what the host did to a path since the branch.
type difference struct {
	what string // a plain phrase; "" for nothing
	firm firmness
}

// decide judges every entry by itself, parents first, and then what follows
// for the directories above and below what is left.
func (p *planner) decide() error {
	entries := p.req.Changes.Entries
	for i := range entries {
		e := &entries[i]
		d := decision{entry: e}
		err := p.judge(e, &d)
		if absent(err) {
			// It went, or a symlink came in its way, between two looks at it.
			d.verdict, err = clash, nil
			p.conflict(e, "is changing it right now", "")
		}
		if err != nil {
			return fmt.Errorf("%q: %w", e.Path, err)
		}
		p.decisions[i] = d
	}
	p.keepAbove()
	p.dropBelow()
	return nil
}

// judge fills the decision on one entry.
func (p *planner) judge(e *changeset.Entry, d *decision) error {
	dir, _ := fsat.Split(e.Path)
	if leftLock(e) {
		d.verdict = leave
		p.notes = append(p.notes, fmt.Sprintf("%q was left out: a git in the box did not release this lock", e.Path))
		return nil
	}
	if e.Path != "." && p.fresh[dir] {
		if e.Op != changeset.Created {
			return fmt.Errorf("%s beneath a new directory", e.Op)
		}
		p.fresh[e.Path] = e.After.Type == fsat.Directory
		return nil
	}
	if e.Path != "." && p.dropped[dir] {
		d.verdict, p.dropped[e.Path] = leave, true
		p.resolve(e.Path, TookOurs)
		return nil
	}
	diff, err := p.look(e, d)
	if err != nil {
		return err
	}
	spared := false
	if diff.firm == soft && p.vanishes(d) && e.Before != nil && e.Before.Type == fsat.Directory {
		// Before the times: these changed with what was added.
		if spared, err = p.spare(e, d); err != nil {
			return err
		}
	}
	if diff.what != "" && diff.firm == soft && !spared {
		agreed, unmoved, err := p.sameIndex(e, d)
		if err != nil {
			return err
		}
		if agreed {
			d.verdict = agree
			return nil
		}
		if unmoved {
			diff.what = ""
		}
	}
	if diff.what != "" && !spared {
		if same, err := p.equal(e, d.st, d.found); err != nil {
			return err
		} else if same {
			d.verdict = agree
			return nil
		}
		if err := p.settle(e, d, diff); err != nil {
			return err
		}
	}
	hostDir := d.found && d.st.Type == fsat.Directory
	switch boxDir := e.After != nil && e.After.Type == fsat.Directory; {
	case d.verdict == take && boxDir && !hostDir:
		p.fresh[e.Path] = true
	case d.verdict == leave && e.After != nil && boxDir != hostDir:
		p.dropped[e.Path] = true
	}
	return nil
}

// vanishes reports whether taking an entry ends a directory of the host.
func (p *planner) vanishes(d *decision) bool {
	return d.found && d.st.Type == fsat.Directory && (d.entry.After == nil || d.entry.After.Type != fsat.Directory)
}

// spare looks at what else a directory holds that is to go: the box never saw
// it, so it must not be lost. A directory that the box deleted can stay with
// it; one that the box made a file cannot. It reports whether there is any.
func (p *planner) spare(e *changeset.Entry, d *decision) (bool, error) {
	strangers, err := p.strangers(e)
	if err != nil || strangers == nil {
		return false, err
	}
	mode := p.req.OnConflict
	if mode == Ours || mode == Theirs && e.After == nil {
		d.verdict = leave
		p.resolve(e.Path, TookOurs)
		return true, nil
	}
	d.verdict = clash
	why := ""
	if mode != Fail {
		why = "the box never saw it, so it is not removed"
	}
	for _, path := range strangers {
		p.conflicts = append(p.conflicts, Conflict{Path: path, Box: string(changeset.Deleted), Host: "has it, unknown to the box", Why: why})
	}
	return true, nil
}

// settle decides about a path that both changed.
func (p *planner) settle(e *changeset.Entry, d *decision, diff difference) error {
	mode := p.req.OnConflict
	refuse := func(why string) error {
		d.verdict = clash
		p.conflict(e, diff.what, why)
		return nil
	}
	if mode == Fail {
		return refuse("")
	}
	if diff.firm == hard {
		return refuse("no mode settles that: put the directory back, or discard the box's change")
	}
	if mode == Ours {
		d.verdict = leave
		p.resolve(e.Path, TookOurs)
		return nil
	}
	if diff.firm == stays {
		return refuse("only ours settles that")
	}
	if e.After != nil && p.altered(e) && d.found && d.st.Type == e.After.Type && d.st.Nlink == 1 {
		// The box did not touch the content, so both changes go together.
		d.attrs = e.After.Type == fsat.Regular
		p.resolve(e.Path, map[Mode]How{Theirs: TookTheirs, Merge: TookMerge}[mode])
		return nil
	}
	contents := e.After != nil && e.After.Type == fsat.Regular && d.found && d.st.Type == fsat.Regular
	if mode == Merge {
		if !contents {
			return refuse("only the contents of a file can be merged: choose ours or theirs")
		}
		return p.merge(e, d, refuse)
	}
	return p.theirs(e, d, contents, refuse)
}

// theirs takes the box's side where that loses nothing but what it displaces.
func (p *planner) theirs(e *changeset.Entry, d *decision, contents bool, refuse func(string) error) error {
	hostDir := d.found && d.st.Type == fsat.Directory
	switch {
	case hostDir && (e.Before == nil || e.Before.Type != fsat.Directory) && (e.After == nil || e.After.Type != fsat.Directory):
		return refuse("a whole directory of the workspace would go: move it away, or choose ours")
	case !d.found && e.After != nil && e.After.Type == fsat.Directory && (e.Before != nil || e.CopiedUp):
		return refuse("what it held is gone, so it cannot come back whole: only ours settles that")
	case e.After != nil && e.After.Type == fsat.Regular && (e.Before != nil || e.CopiedUp) && e.After.Mtime.Before(p.req.Stamp.T):
		// overlayfs copies a file whole when it is only opened for writing,
		// or given the mode it has; its modification time stays. To take it
		// would take back the user's edit for nothing.
		return refuse("the box has an old copy of it and seems not to have written it: only ours settles that")
	}
	if contents && p.req.Merge != nil {
		// A box's side that adds nothing to the host's is not a change: it
		// was touched only, which looks like a write.
		host, box, err := p.contents(e, d)
		if err == nil {
			if merged, clean, _ := p.req.Merge(e.Path, e, host, box); clean && merged != nil && string(merged) == string(host) {
				d.verdict = leave
				p.resolve(e.Path, TookOurs)
				return nil
			}
		} else if !errors.Is(err, errNoMerge) {
			return err
		}
	}
	p.resolve(e.Path, TookTheirs)
	return nil
}

// merge puts the changes of both into one content.
func (p *planner) merge(e *changeset.Entry, d *decision, refuse func(string) error) error {
	if p.req.Merge == nil {
		return refuse("nothing here can merge it: choose ours or theirs")
	}
	host, box, err := p.contents(e, d)
	if errors.Is(err, errNoMerge) {
		return refuse(err.Error())
	}
	if err != nil {
		return err
	}
	merged, clean, why := p.req.Merge(e.Path, e, host, box)
	if merged == nil || !clean && !p.req.Markers {
		if why == "" {
			why = "it cannot be merged"
		}
		return refuse(why)
	}
	how := TookMerge
	if !clean {
		how = TookMarkers
	}
	p.resolve(e.Path, how)
	// What the box did not change of the mode is the host's to say.
	after := *e.After
	if e.Before != nil && e.Before.Mode == after.Mode {
		after.Mode = d.st.Mode
	}
	if string(merged) == string(host) && finalMode(&after, 0) == d.st.Mode {
		d.verdict = leave
		return nil
	}
	if string(merged) == string(box) && after.Mode == e.After.Mode {
		return nil
	}
	sum, err := digestOf(strings.NewReader(string(merged)))
	if err != nil {
		return err
	}
	after.Size, after.Digest = int64(len(merged)), sum
	entry := *e
	entry.After = &after
	d.entry = &entry
	p.merged[d.entry] = merged
	return nil
}

// maxMerged bounds the files that are merged: both sides are held in memory.
const maxMerged = 16 << 20

var errNoMerge = errors.New("not merged")

// contents reads both sides of a regular file.
func (p *planner) contents(e *changeset.Entry, d *decision) (host, box []byte, err error) {
	if max(d.st.Size, e.After.Size) > maxMerged {
		return nil, nil, fmt.Errorf("%w: it is larger than %d MiB", errNoMerge, maxMerged>>20)
	}
	if host, err = readRegular(p.req.Workspace, e.Path, maxMerged); err != nil {
		if errors.Is(err, unix.EACCES) {
			err = fmt.Errorf("%w: the workspace's file cannot be read", errNoMerge)
		}
		return nil, nil, err
	}
	if box, err = p.boxContent(e, maxMerged); err != nil {
		return nil, nil, err
	}
	return host, box, nil
}

// boxContent reads what the box has at an entry, and holds it against the
// changeset.
func (p *planner) boxContent(e *changeset.Entry, limit int64) ([]byte, error) {
	tree := p.req.Layer
	switch e.Source {
	case changeset.Workspace:
		tree = p.req.Workspace
	case changeset.Picked:
		tree = p.req.Picked
	}
	box, err := readRegular(tree, e.SourcePath, limit)
	switch {
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("%w: the box's file cannot be read", errNoMerge)
	case absent(err):
		return nil, fmt.Errorf("the %s has no %q any more", e.Source, e.SourcePath) // not the host's doing
	case err != nil:
		return nil, err
	}
	if sum, err := digestOf(strings.NewReader(string(box))); err != nil || sum != e.After.Digest && !strings.HasPrefix(e.After.Digest, "blake3-sparse:") {
		return nil, errors.Join(fmt.Errorf("the %s changed since the changeset was read", e.Source), err)
	}
	return box, nil
}

func readRegular(dir int, rel string, limit int64) ([]byte, error) {
	fd, err := fsat.Open(dir, rel, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), rel)
	defer f.Close()
	st, err := fsat.Fstat(fd)
	if err != nil {
		return nil, err
	}
	if st.Type != fsat.Regular {
		return nil, fmt.Errorf("%w: it is a %s", errNoMerge, st.Type)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%w: it is larger than %d MiB", errNoMerge, limit>>20)
	}
	return data, err
}

// keepAbove leaves the directories that cannot go because something in them
// stays.
func (p *planner) keepAbove() {
	holds := map[string]bool{}
	entries := p.req.Changes.Entries
	for i := len(entries) - 1; i >= 0; i-- {
		d, path := &p.decisions[i], entries[i].Path
		if d.verdict == take && p.vanishes(d) && holds[path] {
			d.verdict = leave
			p.dropped[path] = d.entry.After != nil
			p.resolve(path, TookOurs)
		}
		if d.verdict == leave && d.found {
			dir, _ := fsat.Split(path)
			holds[dir] = true
		}
	}
}

// dropBelow leaves all beneath a directory that was to become something else
// but stays. What was beneath it is in the changeset as deleted.
func (p *planner) dropBelow() {
	entries := p.req.Changes.Entries
	for i := range entries {
		d, path := &p.decisions[i], entries[i].Path
		dir, _ := fsat.Split(path)
		if path != "." && p.dropped[dir] && d.verdict != agree {
			p.dropped[path] = true
			if d.verdict == take {
				d.verdict = leave
				p.resolve(path, TookOurs)
			}
		}
	}
}

func (p *planner) resolve(path string, how How) {
	p.resolved = append(p.resolved, Resolution{path, how})
}

func (p *planner) conflict(e *changeset.Entry, host, why string) {
	p.conflicts = append(p.conflicts, Conflict{Path: e.Path, Box: string(e.Op), Host: host, Why: why})
}
