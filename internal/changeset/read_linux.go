package changeset

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Read reads what a box changed out of its layer. The box must be quiet.
func Read(src Source) (*Changeset, error) {
	r := &reader{
		src:   src,
		layer: &root{name: Layer, fd: src.Layer},
		host:  &root{name: Workspace, fd: src.Workspace},
		files: map[string]*file{},
	}
	c, err := r.read()
	if relocked := r.layer.relock(); relocked != nil {
		err = errors.Join(err, relocked)
	}
	if err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	return c, nil
}

const (
	hutchDir = ".hutch"
	dsStore  = ".DS_Store"
)

// maxPath bounds the walk, twice PATH_MAX: 100,000 nested
// directories would make paths of 10 GB in all.
const maxPath = 2 * 4096

// reader gathers the differences that a walk finds, then compares them.
type reader struct {
	src   Source
	layer *root
	host  *root

	changes    []change
	files      map[string]*file // of the workspace, by path: a moved directory shows each twice
	skipped    []Skipped
	gitChanged bool
	linked     links

	bases baser
}

// change is a path that may differ between the workspace and the box's view.
type change struct {
	path          string
	before, after *file // nil where nothing is
	git           bool  // beneath a .git that is left out
	chowned       bool  // the box gave it to another owner
}

// baser tells what the branch saw at a path.
type baser interface {
	// entry returns the inode at the path of a change, 0 when unknown, and
	// whether a file that the workspace does not have was copied from it.
	entry(*change) (ino uint64, copied bool)
	// directory returns the inode of a directory above a change.
	directory(path string) uint64
}

func (r *reader) read() (*Changeset, error) {
	var err error
	switch r.src.Form {
	case Overlay:
		err = r.readOverlay()
	case Tree:
		err = r.readTree()
	default:
		err = fmt.Errorf("unknown form of layer %q", r.src.Form)
	}
	if err != nil {
		return nil, err
	}
	if err := r.load(); err != nil {
		return nil, err
	}

	c := &Changeset{Entries: []Entry{}, Skipped: r.skipped}
	for i := range r.changes {
		ch := &r.changes[i]
		if err := r.agree(ch); err != nil {
			return nil, err
		}
		if ch.same() {
			continue
		}
		if same, err := r.sameIndex(ch); err != nil {
			return nil, err
		} else if same {
			continue
		}
		if ch.git {
			r.gitChanged = true
			continue
		}
		c.Entries = append(c.Entries, r.entry(ch))
		r.linked.add(ch)
	}
	r.linked.name(c.Entries)
	c.GitChanged = r.gitChanged
	c.Ancestors = r.ancestors(c.Entries)
	c.seal()
	return c, nil
}

// found notes a path that may have changed. Beneath a .git that is left out
// the first sure difference is all that is to be known.
func (r *reader) found(ch change) {
	if ch.before == nil && ch.after == nil || r.hides(&ch) {
		return
	}
	if ch.git && !ch.isIndex() && surelyDiffer(ch.before, ch.after) {
		r.gitChanged = true
		return
	}
	r.changes = append(r.changes, ch)
}

// hides reports whether a change is of what the box never saw: a path that was
// hidden from it, or a directory that holds one, which goes for the box and
// stays for the workspace.
func (r *reader) hides(ch *change) bool {
	for _, hidden := range r.src.Hidden {
		switch {
		case ch.path == hidden:
			if ch.after != nil && !ch.git {
				r.skip(ch.path, Hidden)
			}
			return true
		case strings.HasPrefix(ch.path, hidden+"/"):
			return true
		case strings.HasPrefix(hidden, ch.path+"/") && !ch.after.isDir():
			if !ch.git {
				r.skip(ch.path, "holds what was hidden from the box")
			}
			return true
		}
	}
	return false
}

// isHutch reports whether a path is, or lies in, a directory in which hutch keeps
// transactions. At any depth: every directory can be a workspace, and a journal
// that a box wrote would be believed there.
func isHutch(path string) bool {
	return slices.Contains(strings.Split(path, "/"), hutchDir)
}

// isIndex reports whether the change is of an index of git, whose bytes change
// without a change of meaning.
func (ch *change) isIndex() bool {
	return IsIndex(ch.path) && ch.before != nil && ch.after != nil && ch.before.plain() && ch.after.plain()
}

func (r *reader) sameIndex(ch *change) (bool, error) {
	if !ch.isIndex() || max(ch.before.size(), ch.after.size()) > MaxIndex {
		return false, nil
	}
	var content [2][]byte
	for i, f := range []*file{ch.before, ch.after} {
		fd, err := f.root.openFile(f.path)
		if f.root.name == Workspace && absent(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		opened := os.NewFile(uintptr(fd), f.path)
		content[i], err = io.ReadAll(io.LimitReader(opened, MaxIndex))
		opened.Close()
		if err != nil {
			return false, err
		}
	}
	return sameIndex(content[0], content[1]), nil
}

// surelyDiffer compares without looking into the files.
func surelyDiffer(before, after *file) bool {
	if before == nil || after == nil || before.stat.Type != after.stat.Type {
		return true
	}
	if after.stat.Type != fsat.Symlink && before.stat.Mode != after.stat.Mode {
		return true
	}
	return after.stat.Type == fsat.Regular && before.size() != after.size()
}

// leftOut reports whether name, an entry of a directory that stays, is the
// clutter that nobody means to promote.
func (r *reader) leftOut(name string, before, after *file) bool {
	return name == dsStore && !r.src.Git && before.plain() && after.plain()
}

// specialReason says why a type of file cannot be promoted; "" for one that
// can.
func specialReason(t fsat.Type) string {
	switch t {
	case fsat.Regular, fsat.Directory, fsat.Symlink:
		return ""
	case fsat.FIFO:
		return "fifo"
	case fsat.Socket:
		return "socket"
	case fsat.CharDevice, fsat.BlockDevice:
		return "device"
	}
	return "unknown type of file"
}

func (r *reader) skip(path, reason string) {
	r.skipped = append(r.skipped, Skipped{Path: path, Reason: reason})
}

// hostFile returns the file of the workspace at path.
func (r *reader) hostFile(path string, st fsat.Stat) *file {
	f := r.files[path]
	if f == nil {
		f = &file{root: r.host, path: path, stat: st, content: r.host, contentPath: path}
		r.files[path] = f
	}
	return f
}

func (r *reader) layerFile(path string, st fsat.Stat) *file {
	return &file{root: r.layer, path: path, stat: st, content: r.layer, contentPath: path}
}

// same reports whether the box's view of a path equals the workspace's.
func (ch *change) same() bool {
	before, after := ch.before, ch.after
	if before == after {
		return true
	}
	if ch.chowned || surelyDiffer(before, after) || before.unreadable || after.unreadable {
		return false
	}
	return before.target == after.target && before.digest == after.digest &&
		maps.EqualFunc(before.xattrs, after.xattrs, bytes.Equal)
}

// trusted reports whether the layer was made by real root.
func (r *reader) trusted() bool {
	return r.src.Form == Overlay && r.src.XattrPrefix == trustedPrefix
}

func (r *reader) entry(ch *change) Entry {
	e := Entry{Path: ch.path, Op: Modified, Before: ch.before.state(), After: ch.after.state()}
	switch {
	case ch.before == nil:
		e.Op = Created
	case ch.after == nil:
		e.Op = Deleted
	}
	if ch.after != nil {
		e.Source, e.SourcePath = ch.after.content.name, ch.after.contentPath
	}
	var copied bool
	e.BaseIno, copied = r.bases.entry(ch)
	e.CopiedUp = copied && e.Op == Created
	if e.Path == gitDir+"/index" && r.src.GitIndex != nil {
		if index, err := io.ReadAll(io.NewSectionReader(r.src.GitIndex, 0, MaxIndex)); err == nil {
			e.BaseIndex = IndexDigest(index)
		}
	}
	return e
}

// links are the changed paths whose files have more names, by the file.
type links map[linkedFile][]string

type linkedFile struct {
	root     Root
	dev, ino uint64
}

// add notes a change whose file may stand at other paths too.
func (l *links) add(ch *change) {
	f := ch.after
	if f == nil || f.stat.Nlink < 2 || f.isDir() {
		return
	}
	if *l == nil {
		*l = links{}
	}
	id := linkedFile{f.root.name, f.stat.Dev, f.stat.Ino}
	(*l)[id] = append((*l)[id], ch.path)
}

// name sets Link in the entries of all names of a file but the first.
func (l links) name(entries []Entry) {
	first := map[string]string{}
	for _, paths := range l {
		slices.Sort(paths)
		for _, path := range paths[1:] {
			first[path] = paths[0]
		}
	}
	for i := range entries {
		entries[i].Link = first[entries[i].Path]
	}
}

func (r *reader) ancestors(entries []Entry) map[string]uint64 {
	var inodes map[string]uint64
	seen := map[string]bool{}
	for i := range entries {
		for path := entries[i].Path; path != "."; {
			path, _ = fsat.Split(path)
			if seen[path] {
				break
			}
			seen[path] = true
			if ino := r.bases.directory(path); ino != 0 {
				if inodes == nil {
					inodes = map[string]uint64{}
				}
				inodes[path] = ino
			}
		}
	}
	return inodes
}

// closeAll closes descriptors that may be -1.
func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
