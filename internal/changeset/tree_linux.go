package changeset

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// tree walks a whole copy of the workspace and holds it against its manifest.
// The manifest says what the box touched; the workspace says what that changed.
type tree struct {
	*reader
	records map[string]*treeRecord
	dirs    map[string]bool // directories that the box sees
	blocked map[string]bool // paths that were skipped, with all beneath
	pending []treeDir
}

type treeRecord struct {
	Record
	seen bool
}

type treeDir struct {
	path string
	git  bool
}

func (r *reader) readTree() error {
	records, err := ReadManifest(&fdReader{fd: r.src.Manifest})
	if err != nil {
		return err
	}
	w := &tree{
		reader:  r,
		records: make(map[string]*treeRecord, len(records)),
		dirs:    map[string]bool{},
		blocked: map[string]bool{},
		pending: []treeDir{{path: "."}},
	}
	r.bases = w
	held := make([]treeRecord, len(records))
	for i, rec := range records {
		held[i].Record = rec
		w.records[rec.Path] = &held[i]
	}
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
	for i := range held {
		if !held[i].seen {
			if err := w.missing(held[i].Path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *tree) walk(dir treeDir) error {
	w.dirs[dir.path] = true
	fd, err := w.layer.openDir(dir.path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	if err != nil {
		return err
	}
	for _, e := range entries {
		st, ok, err := w.layer.lookup(fd, dir.path, e.Name)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := w.compare(dir, e.Name, st); err != nil {
			return fmt.Errorf("%q: %w", e.Name, err)
		}
	}
	return nil
}

// compare looks at one file of the tree.
func (w *tree) compare(dir treeDir, name string, st fsat.Stat) error {
	path := fsat.Join(dir.path, name)
	git := dir.git || path == gitDir && !w.src.Git
	rec := w.records[path]
	if rec != nil {
		rec.seen = true
	}
	if git && w.gitChanged {
		return nil
	}
	reason := specialReason(st.Type)
	switch {
	case name == hutchDir:
		reason = "hutch's own directory"
	case len(path) > maxPath:
		reason = TooLong
	}
	if reason != "" {
		w.blocked[path] = true
		// One that the branch copied is nothing that the box made.
		copied := rec != nil && rec.Copy.Type == st.Type
		if !git && !copied {
			w.skip(path, reason)
		}
		return nil
	}
	if st.Type == fsat.Directory {
		w.pending = append(w.pending, treeDir{path, git})
	}
	if rec != nil && untouched(rec.Copy, st) {
		return nil
	}
	before, err := w.hostAt(path)
	if err != nil {
		return err
	}
	after := w.layerFile(path, st)
	if w.leftOut(name, before, after) {
		return nil
	}
	w.found(change{
		path: path, before: before, after: after, git: git,
		chowned: rec != nil && (rec.Copy.UID != st.UID || rec.Copy.GID != st.GID),
	})
	return nil
}

// untouched reports whether a file looks as it did when the tree was made. A
// same-size rewrite with its times set back moves the ctime, and so does a
// change of mode, owner or attributes. A directory's ctime moves with its
// entries too, which are looked at anyway.
func untouched(was, is fsat.Stat) bool {
	return was.Type == is.Type && was.Ino == is.Ino && was.Ctime == is.Ctime &&
		was.Size == is.Size && was.Mtime == is.Mtime && was.Mode == is.Mode
}

// missing looks at a path of the manifest that the tree does not have.
func (w *tree) missing(path string) error {
	parent, name := fsat.Split(path)
	git := !w.src.Git && fsat.Within(path, gitDir)
	if path == "." || isHutch(path) || git && w.gitChanged || w.isBlocked(path) {
		return nil
	}
	before, err := w.hostAt(path)
	if err != nil {
		return err
	}
	if w.dirs[parent] && w.leftOut(name, before, nil) {
		return nil
	}
	w.found(change{path: path, before: before, git: git})
	return nil
}

// isBlocked reports whether a path lies beneath one that is not promoted, and
// so stays as the workspace has it.
func (w *tree) isBlocked(path string) bool {
	if len(w.blocked) == 0 {
		return false
	}
	for ; path != "."; path, _ = fsat.Split(path) {
		if w.blocked[path] {
			return true
		}
	}
	return false
}

// hostAt returns the file of the workspace at path; nil when there is none.
func (w *tree) hostAt(path string) (*file, error) {
	st, ok, err := w.host.lookupPath(path)
	if err != nil || !ok {
		return nil, err
	}
	return w.hostFile(path, st), nil
}

func (w *tree) entry(ch *change) (ino uint64, copied bool) {
	return w.directory(ch.path), w.records[ch.path] != nil
}

func (w *tree) directory(path string) uint64 {
	if rec := w.records[path]; rec != nil {
		return rec.HostIno
	}
	return 0
}

// fdReader reads a descriptor that belongs to the caller from its start,
// without moving its offset.
type fdReader struct {
	fd  int
	off int64
}

func (r *fdReader) Read(buf []byte) (int, error) {
	for {
		n, err := unix.Pread(r.fd, buf, r.off)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(buf) > 0:
			return 0, io.EOF
		}
		r.off += int64(n)
		return n, nil
	}
}
