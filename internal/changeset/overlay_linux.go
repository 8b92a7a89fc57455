package changeset

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// The prefixes of overlayfs's own attributes: without and with the mount
// option userxattr.
const (
	trustedPrefix = "trusted.overlay."
	userPrefix    = "user.overlay."
)

// overlayDir is a directory on at least one side: as the workspace has it, and
// as the box sees it, which overlayfs merges from a directory of the layer and
// one of the workspace.
type overlayDir struct {
	path   string
	before bool   // the workspace has a directory at path
	upper  bool   // the layer has one
	lower  string // the path in the workspace of what is merged into it; "" for nothing
	git    bool   // beneath a .git that is left out
}

// gone reports whether the box sees no directory there.
func (d *overlayDir) gone() bool { return !d.upper && d.lower == "" }

// overlay walks a layer made by overlayfs.
type overlay struct {
	*reader
	pending []overlayDir
	// plain holds the layer's inode of every path that overlayfs merges with
	// the same path in the workspace: what the live overlay says of these
	// may be what the branch saw.
	plain map[string]uint64
	seen  map[uint64]bool // inodes of the workspace that were met
	below map[uint64]bool // inodes of the layers below; nil until they are asked for
	// sameFS: overlayfs then passes the inode numbers of the workspace on.
	sameFS bool
}

func (r *reader) readOverlay() error {
	if p := r.src.XattrPrefix; p != trustedPrefix && p != userPrefix {
		return fmt.Errorf("unknown prefix of overlay attributes %q", p)
	}
	layer, err := fsat.Fstat(r.src.Layer)
	if err != nil {
		return err
	}
	host, err := fsat.Fstat(r.src.Workspace)
	if err != nil {
		return err
	}
	w := &overlay{
		reader: r,
		plain:  map[string]uint64{".": layer.Ino},
		seen:   map[uint64]bool{host.Ino: true},
		sameFS: layer.Dev == host.Dev,
	}
	r.bases = w
	// overlayfs merges the root whatever attributes it has.
	w.pending = []overlayDir{{path: ".", before: true, upper: true, lower: "."}}
	for len(w.pending) > 0 {
		dir := w.pending[len(w.pending)-1]
		w.pending = w.pending[:len(w.pending)-1]
		if dir.git && r.gitChanged {
			continue
		}
		if err := w.walk(dir); err != nil {
			return fmt.Errorf("directory %q: %w", dir.path, err)
		}
	}
	return nil
}

// openDirs are the descriptors of an overlayDir; -1 for what it does not have.
type openDirs struct{ before, upper, lower int }

// walk compares the entries of one directory. When the layer's directory is
// merged with the workspace's of the same path, only what the layer holds can
// differ; else all three are listed.
func (w *overlay) walk(dir overlayDir) error {
	fds := openDirs{-1, -1, -1}
	defer func() { closeAll(fds.before, fds.upper, fds.lower) }()

	var (
		err        error
		upper      map[string]bool
		xwhiteouts bool
		names      []string
	)
	if dir.upper {
		if fds.upper, err = w.layer.openDir(dir.path); err != nil {
			return err
		}
		if xwhiteouts, err = w.merge(&dir, fds.upper); err != nil {
			return err
		}
		entries, err := fsat.ReadDir(fds.upper)
		if err != nil {
			return err
		}
		upper = make(map[string]bool, len(entries))
		for _, e := range entries {
			upper[e.Name] = true
			names = append(names, e.Name)
		}
	}
	if dir.before {
		fds.before, err = w.host.openSearch(dir.path)
		if absent(err) {
			dir.before, err = false, nil // deleted since its parent was read
		}
		if err != nil {
			return err
		}
	}
	if dir.lower != "" && dir.lower != dir.path {
		if fds.lower, err = w.host.openSearch(dir.lower); err != nil {
			return err
		}
	}
	if dir.lower != dir.path {
		if names, err = w.addLower(names, upper, dir); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := w.compare(dir, fds, name, upper[name], xwhiteouts); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	return nil
}

// merge reads what the layer's directory says of the workspace's: that it
// hides it (opaque), or that it was renamed from elsewhere (redirect).
func (w *overlay) merge(dir *overlayDir, fd int) (xwhiteouts bool, err error) {
	opaque, _, err := fsat.Xattr(fd, w.src.XattrPrefix+"opaque")
	if err != nil {
		return false, err
	}
	xwhiteouts = string(opaque) == "x"
	if dir.path == "." {
		return xwhiteouts, nil
	}
	if string(opaque) == "y" {
		dir.lower = ""
		return xwhiteouts, nil
	}
	lower, moved, err := redirected(fd, w.src.XattrPrefix, dir.lower)
	if err != nil {
		return false, err
	}
	dir.lower = lower
	if lower == "" {
		return xwhiteouts, nil
	}
	st, ok, err := w.host.lookupPath(lower)
	if err != nil {
		return false, err
	}
	if ok && st.Type == fsat.Directory {
		if lower == dir.path {
			ino, err := fsat.Fstat(fd)
			if err != nil {
				return false, err
			}
			w.plain[dir.path] = ino.Ino
		}
		return xwhiteouts, nil
	}
	if moved {
		return false, fmt.Errorf("it was renamed from %q, where the workspace has no directory any more", lower)
	}
	dir.lower = ""
	return xwhiteouts, nil
}

// redirected returns where in the workspace overlayfs looks for the lower part
// of a file of the layer, open as fd: byName, its own name in the lower part
// of its parent ("" for nothing), unless an attribute says that it was renamed.
//
// That attribute is taken for a forgery where overlayfs would not follow it,
// or would be led out of the workspace by it, or into hutch's own directory.
func redirected(fd int, prefix, byName string) (path string, moved bool, err error) {
	value, ok, err := fsat.Xattr(fd, prefix+"redirect")
	if err != nil || !ok {
		return byName, false, err
	}
	redirect := string(value)
	forged := fmt.Errorf("forged redirect to %q", redirect)
	if prefix != trustedPrefix {
		return "", false, forged
	}
	path, absolute := strings.CutPrefix(redirect, "/")
	if path == "." || fsat.Check(path) != nil {
		return "", false, forged
	}
	if !absolute {
		if strings.Contains(path, "/") {
			return "", false, forged
		}
		if byName == "" {
			return "", false, nil
		}
		parent, _ := fsat.Split(byName)
		path = fsat.Join(parent, path)
	}
	if isHutch(path) {
		return "", false, forged
	}
	return path, true, nil
}

// addLower adds what the workspace shows in a directory that is not merged
// with the one of the same path: what the box sees from elsewhere, and what
// it does not see any more.
func (w *overlay) addLower(names []string, upper map[string]bool, dir overlayDir) ([]string, error) {
	added := map[string]bool{}
	add := func(path string) error {
		entries, err := w.host.list(path)
		if errors.Is(err, unix.EACCES) {
			if !dir.gone() {
				return shut(path)
			}
			err = nil // the promotion sees to it that nothing in it is lost
		}
		for _, e := range entries {
			if !upper[e.Name] && !added[e.Name] {
				added[e.Name] = true
				names = append(names, e.Name)
			}
		}
		return err
	}
	if dir.lower != "" {
		if err := add(dir.lower); err != nil {
			return nil, err
		}
	}
	if dir.before {
		if err := add(dir.path); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// compare looks at one name of a directory.
func (w *overlay) compare(dir overlayDir, fds openDirs, name string, inUpper, xwhiteouts bool) error {
	path := fsat.Join(dir.path, name)
	git := dir.git || path == gitDir && !w.src.Git
	if git && w.gitChanged {
		return nil
	}
	if len(path) > maxPath {
		w.skip(path, TooLong)
		return nil
	}

	var before, after *file
	if dir.before {
		st, ok, err := w.host.lookup(fds.before, dir.path, name)
		if err != nil {
			return err
		}
		if ok {
			before = w.hostFile(path, st)
			w.seen[st.Ino] = true
		}
	}
	child := overlayDir{path: path, before: before.isDir(), git: git}
	lower := ""
	if dir.lower != "" {
		lower = fsat.Join(dir.lower, name)
	}
	switch {
	case inUpper:
		st, ok, err := w.layer.lookup(fds.upper, dir.path, name)
		if err != nil {
			return err
		}
		whiteout, err := w.isWhiteout(path, st, xwhiteouts)
		if err != nil {
			return err
		}
		if !ok || whiteout {
			break
		}
		after = w.layerFile(path, st)
		after.lower, after.fresh = lower, before == nil
		if after.isDir() {
			child.upper, child.lower = true, lower
		} else if lower == path {
			w.plain[path] = st.Ino
		}
	case lower != "":
		st, ok, err := w.host.lookup(fds.lower, dir.lower, name)
		if err != nil {
			return err
		}
		if ok {
			after = w.hostFile(lower, st)
			if after.isDir() {
				child.lower = lower
			}
		}
	}

	if name == hutchDir {
		// Its deletion is how it is hidden from a box.
		if after != nil {
			w.skip(path, "hutch's own directory")
		}
		return nil
	}
	if after != nil {
		if reason := specialReason(after.stat.Type); reason != "" {
			if !git {
				w.skip(path, reason)
			}
			return nil
		}
	}
	if !dir.gone() && w.leftOut(name, before, after) {
		return nil
	}
	w.found(change{
		path: path, before: before, after: after, git: git,
		// Without privilege a layer has one owner for all.
		chowned: w.trusted() && before != nil && after != nil &&
			(before.stat.UID != after.stat.UID || before.stat.GID != after.stat.GID),
	})
	unchanged := !child.upper && child.lower == path
	if (child.before || after.isDir()) && !unchanged {
		w.pending = append(w.pending, child)
	}
	return nil
}

func (w *overlay) isWhiteout(path string, st fsat.Stat, xwhiteouts bool) (bool, error) {
	if st.Type == fsat.CharDevice && st.Rdev == 0 {
		return true, nil
	}
	if !xwhiteouts || st.Type != fsat.Regular || st.Size != 0 {
		return false, nil
	}
	fd, err := w.layer.openFile(path)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	_, ok, err := fsat.Xattr(fd, w.src.XattrPrefix+"whiteout")
	return ok, err
}

// entry gives the inode that the live overlay shows at the path of a change.
// A copied-up file keeps the number of the workspace's; the layer's own number
// means that the file replaced what was there, which is not known then.
func (w *overlay) entry(ch *change) (ino uint64, copied bool) {
	copied = ch.after != nil && ch.after.origin
	ino, _ = w.base(ch.path)
	if ino == 0 || ch.before != nil && ch.before.stat.Ino == ino {
		return ino, copied
	}
	// A file that was copied up and then renamed takes its number along. It
	// was met under the name that it had, or is one of a layer below.
	if w.seen[ino] || w.isBelow(ino) {
		return 0, false
	}
	return ino, copied
}

// isBelow reports whether a number is that of a file in a layer between. What
// cannot be read there is not known, and then nor is any number.
func (w *overlay) isBelow(ino uint64) bool {
	if w.below == nil {
		w.below = map[uint64]bool{}
		for _, fd := range w.src.Below {
			if err := inodesIn(fd, ".", w.below); err != nil {
				w.below[0] = true
			}
		}
	}
	return w.below[ino] || w.below[0]
}

func inodesIn(parent int, name string, into map[uint64]bool) error {
	fd, err := fsat.OpenDir(parent, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	for _, e := range entries {
		into[e.Ino] = true
		if e.Type == fsat.Directory {
			err = errors.Join(err, inodesIn(fd, e.Name, into))
		}
	}
	return err
}

// ReadSeen asks the live overlay, open as Merged, what of the workspace the
// branch saw where the layer changes something. No content is read. With Merged
// -1 it tells only which paths the layer changes.
func ReadSeen(src Source) (*Seen, error) {
	src.Form, src.Git = Overlay, true
	r := &reader{src: src, layer: &root{name: Layer, fd: src.Layer}, host: &root{name: Workspace, fd: src.Workspace}, files: map[string]*file{}}
	err := errors.Join(r.readOverlay(), r.layer.relock())
	if err != nil {
		return nil, fmt.Errorf("look what the branch saw: %w", err)
	}
	s := NewSeen()
	w := r.bases.(*overlay)
	for i := range r.changes {
		path := r.changes[i].path
		s.Paths[path], _ = w.entry(&r.changes[i])
		if ino, _ := w.base(path); ino != 0 && s.Paths[path] == 0 {
			s.Moved[path] = true
		}
	}
	for path := range w.plain {
		if ino := r.bases.directory(path); ino != 0 {
			s.Dirs[path] = ino
		}
	}
	return s, nil
}

// directory returns the inode of the workspace's directory at path. A file in
// its place, moved there in the box, shows the number it had elsewhere.
func (w *overlay) directory(path string) uint64 {
	ino, t := w.base(path)
	if t != fsat.Directory {
		return 0
	}
	return ino
}

// base returns the inode of the workspace that the live overlay shows at path, 0
// when that is not known, and the type of what is there.
func (w *overlay) base(path string) (uint64, fsat.Type) {
	upper, ok := w.plain[path]
	if !ok || w.src.Merged < 0 {
		return 0, fsat.Unknown
	}
	st, err := fsat.Lstat(w.src.Merged, path)
	if err != nil {
		return 0, fsat.Unknown
	}
	ino := st.Ino
	if !w.sameFS {
		// With the option xino, overlayfs marks the numbers of the lower
		// file system in the top bit, and those it made up in the next;
		// without it, none can be trusted.
		if ino>>62 != 0b10 {
			return 0, fsat.Unknown
		}
		return ino &^ (1 << 63), st.Type
	}
	if ino == upper {
		return 0, fsat.Unknown
	}
	return ino, st.Type
}
