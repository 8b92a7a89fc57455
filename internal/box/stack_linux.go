package box

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/api"
	"hutch/internal/changeset"
	"hutch/internal/fsat"
	"hutch/internal/jail"
	"hutch/internal/layers"
	"hutch/internal/workspace"
)

// maxLayers is how many frozen layers a box lies upon before they are made one:
// each costs at every mount (101 take 1.5 ms, 3 take 0.2), and 501 are refused.
const maxLayers = 16

// promotedName is the file that says what earlier commits took from the layers (a
// changeset).
const promotedName = "promoted"

// seenName is the file that says what the live overlay told of the own layer
// (changeset.Seen): it goes with the layer.
func (r *Record) seenName() string { return r.Layer + ".seen" }

// layersOf opens the layers that lie beside a directory of boxes. In one that
// --layer-dir named they lie in it: what is beside it may be anybody's.
func (b *Boxes) layersOf(base string) (*layers.Store, error) {
	b.layersMu.Lock()
	defer b.layersMu.Unlock()
	if s := b.layers[base]; s != nil {
		return s, nil
	}
	s, err := layers.Open(layersPath(b.store, base))
	if err != nil {
		return nil, stateError(err)
	}
	if b.layers == nil {
		b.layers = map[string]*layers.Store{}
	}
	b.layers[base] = s
	return s, nil
}

func layersPath(s *Store, base string) string {
	if base == filepath.Join(s.Path, "boxes") {
		return filepath.Join(s.Path, "layers")
	}
	return filepath.Join(base, layersName)
}

const layersName = ".layers"

func (h *held) layers() (*layers.Store, error) { return h.boxes.layersOf(filepath.Dir(h.path)) }

func (h *held) prefix() string { return xattrPrefix(h.record.Trusted) }

// stackable refuses what only an overlay can do.
func (h *held) stackable() error {
	if h.record.Form == changeset.Overlay && h.record.Layer != "" {
		return nil
	}
	return &api.Error{Code: api.Unsupported, Text: fmt.Sprintf("box %s is a %s of its workspace, and only an overlay can be frozen; commit or discard it", h.id, h.record.Strategy)}
}

// branch is what is to be mounted for the box as it stands, with a lock on its
// frozen layers. h.mu is held. What was read of the box is not believed from now
// on.
func (h *held) branch() (branch, error) {
	if h.record.Form != changeset.Overlay {
		return branch{tree: filepath.Join(h.path, h.record.Layer), trusted: h.record.Trusted}, nil
	}
	if err := h.unread(); err != nil {
		return branch{}, err
	}
	if h.live == nil {
		if err := h.freshWork(h.record.Work); err != nil {
			return branch{}, err
		}
	}
	s, err := h.layers()
	if err != nil {
		return branch{}, err
	}
	return h.branchOf(s, h.record, "")
}

// branchOf is what is mounted for a record. Moving is set while the topmost
// frozen layer lies in the box's directory yet.
func (h *held) branchOf(s *layers.Store, r *Record, moving string) (branch, error) {
	hold, err := s.Lock(r.Layers)
	if err != nil {
		return branch{}, err
	}
	b := branch{hold: hold, upper: filepath.Join(h.path, r.Layer), work: filepath.Join(h.path, r.Work), trusted: r.Trusted}
	for i, id := range slices.Backward(r.Layers) {
		if moving != "" && i == len(r.Layers)-1 {
			b.lower = append(b.lower, filepath.Join(h.path, moving))
			continue
		}
		b.lower = append(b.lower, s.Path(id))
	}
	b.lower = append(b.lower, string(r.RawWorkspace))
	return b, nil
}

// freshWork makes the overlay's work directory anew: a volatile overlay leaves a
// mark in it by which the kernel refuses it (work/incompat).
func (d *dir) freshWork(name string) error {
	if err := fsat.RemoveAll(d.fd, name); err != nil {
		return stateError(err)
	}
	if err := unix.Mkdirat(d.fd, name, 0o700); err != nil {
		return stateError(err)
	}
	return nil
}

// freshLike makes an empty own layer that lies upon one whose root is open as
// like.
func (d *dir) freshLike(layer, work string, like int, prefix string) error {
	fd, err := fsat.Mkdir(d.fd, layer, 0o700)
	if err != nil {
		return stateError(err)
	}
	defer unix.Close(fd)
	if err := layers.Like(fd, like, prefix); err != nil {
		return stateError(err)
	}
	return d.freshWork(work)
}

// bare reports whether the own layer holds nothing that the frozen ones do not.
func (h *held) bare() (bool, error) {
	if len(h.record.Layers) == 0 {
		return false, nil
	}
	fd, err := fsat.OpenDir(h.fd, h.record.Layer)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	entries, err := fsat.ReadDir(fd)
	if err != nil || len(entries) > 0 {
		return false, err
	}
	s, err := h.layers()
	if err != nil {
		return false, err
	}
	top, err := s.OpenUpper(h.record.Layers[len(h.record.Layers)-1])
	if err != nil {
		return false, err
	}
	defer unix.Close(top)
	own, err := fsat.Fstat(fd)
	if err != nil {
		return false, err
	}
	st, err := fsat.Fstat(top)
	return err == nil && own.Mode == st.Mode && own.UID == st.UID && own.GID == st.GID && own.Mtime == st.Mtime, err
}

// quiet refuses a box with processes.
func (h *held) quiet(what string) error {
	if h.live == nil || h.live.Quiet() {
		return nil
	}
	return &api.Error{Code: api.NotQuiet, Text: fmt.Sprintf("%s, nothing may run in box %s; wait for its processes, or end them with `hutch box kill %s`", what, h.id, h.id)}
}

// turn puts a record in force that names another own layer. A live box is
// remounted first: what cannot be is an error that changed nothing. On an error
// the new own layer is gone, as long as the record does not name it.
func (h *held) turn(s *layers.Store, r *Record, durable bool) error {
	if h.live != nil {
		b, err := h.branchOf(s, r, r.Moving)
		if err == nil {
			err = h.live.Remount(b)
		}
		if err != nil {
			if errors.Is(err, jail.ErrBusyMount) {
				err = told{err, &api.Error{Code: api.NotQuiet, Text: fmt.Sprintf("somebody reads or writes a file of box %s; do it again when that is over", h.id)}}
			}
			return errors.Join(err, fsat.RemoveAll(h.fd, r.Layer), fsat.RemoveAll(h.fd, r.Work))
		}
	}
	old := h.record
	if err := h.writeRecord(r, durable); err != nil {
		return err
	}
	if r.Moving != "" {
		if err := s.Freeze(r.Layers[len(r.Layers)-1], h.fd, r.Moving); err != nil {
			return err // the next holder does it
		}
	}
	// Nobody can reach what is mounted no more.
	err := fsat.RemoveAll(h.fd, old.Work)
	if r.Moving == "" {
		err = errors.Join(err, fsat.RemoveAll(h.fd, old.Layer), fsat.RemoveAll(h.fd, old.seenName()))
	}
	return err
}

// writeRecord puts a record in place. Its content is always on the disk before
// its name is: a power cut leaves the old one or the new one. Durable says that
// it must be the new one.
func (h *held) writeRecord(r *Record, durable bool) error {
	text, err := r.encode()
	if err != nil {
		return err
	}
	if durable {
		err = h.save(recordName, text)
	} else {
		err = h.replace(recordName, text, true)
	}
	if err == nil {
		h.record = r
	}
	return err
}

// freeze makes the own layer, to which nothing writes, the topmost of the frozen
// ones, and gives the box a fresh one. change adds to the record that says so.
// h.mu is held.
func (h *held) freeze(durable bool, change func(*Record)) error {
	if err := h.stackable(); err != nil {
		return err
	}
	if err := h.unread(); err != nil {
		return err
	}
	r := h.record.clone()
	r.Moving = ""
	bare, err := h.bare()
	if err != nil {
		return err
	}
	if bare {
		if change == nil {
			return nil
		}
		change(r)
		return h.writeRecord(r, durable)
	}
	s, err := h.layers()
	if err != nil {
		return err
	}
	if err := h.see(); err != nil {
		return err
	}
	id, err := s.New(h.id)
	if err != nil {
		return stateError(err)
	}
	r.Moving, r.Shared = r.Layer, false
	r.Layers = append(r.Layers, id)
	r.Layer, r.Work = r.next()
	if change != nil {
		change(r)
	}
	err = h.passSeen(s, id)
	old := h.record.seenName()
	if err == nil {
		err = h.like(r, h.record.Layer)
	}
	if err == nil {
		err = h.turn(s, r, durable)
	}
	if err != nil && h.record != r {
		return errors.Join(err, s.Unref(id, h.id))
	}
	if err != nil {
		return err
	}
	_ = unix.Unlinkat(h.fd, old, 0) // it is with the layer now
	h.crowded()
	return nil
}

// like makes the own layer that a record names, with the root of another in the
// box's directory.
func (h *held) like(r *Record, other string) error {
	fd, err := fsat.OpenDir(h.fd, other)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return h.freshLike(r.Layer, r.Work, fd, h.prefix())
}

// passSeen gives a layer what is known of the own one, by a second name.
func (h *held) passSeen(s *layers.Store, id string) error {
	err := s.LinkSeen(id, h.fd, h.record.seenName())
	if errors.Is(err, fs.ErrNotExist) {
		return nil // found out when it is wanted
	}
	return err
}

// see notes what the live overlay tells of the workspace beneath the own layer.
// It is done whenever the box is quiet, and before its mount goes.
func (h *held) see() error {
	if h.live == nil || h.live.Root() < 0 || h.record.Form != changeset.Overlay {
		return nil
	}
	return h.look(h.live.Root())
}

// look adds to what was seen of the own layer; with root -1 only which paths it
// changes.
func (h *held) look(root int) error {
	fd, err := fsat.OpenDir(h.fd, h.record.Layer)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := h.readSeen(fd, root)
	if err != nil {
		return err
	}
	if known := h.ownSeen(); known != nil {
		known.Over(now)
		now = known
	}
	return h.saveSeen(h.record, now)
}

func (h *held) readSeen(layer, root int) (*changeset.Seen, error) {
	ws, err := workspace.Reopen(string(h.record.RawWorkspace))
	if err != nil {
		return nil, ofBox(h.id, err)
	}
	defer ws.Close()
	src := changeset.Source{Layer: layer, Workspace: ws.FD, XattrPrefix: h.prefix(), Merged: root, Manifest: -1, Hidden: h.record.hidden()}
	if root >= 0 {
		s, err := h.layers()
		if err != nil {
			return nil, err
		}
		for _, id := range h.record.Layers {
			fd, err := s.OpenUpper(id)
			if err != nil {
				return nil, err
			}
			defer unix.Close(fd)
			src.Below = append(src.Below, fd)
		}
	}
	return changeset.ReadSeen(src)
}

func (h *held) ownSeen() *changeset.Seen {
	text, err := h.readFile(h.record.seenName())
	if err != nil {
		return nil
	}
	seen, err := changeset.DecodeSeen(bytes.NewReader(text))
	if err != nil {
		return nil
	}
	return seen
}

func (h *held) saveSeen(r *Record, seen *changeset.Seen) error {
	var buf bytes.Buffer
	if err := seen.Encode(&buf); err != nil {
		return err
	}
	return h.replace(r.seenName(), buf.Bytes(), false)
}

// stackSeen is what the branch saw, by all of its layers.
func (h *held) stackSeen() (*changeset.Seen, error) {
	all := changeset.NewSeen()
	add := func(seen *changeset.Seen, open func() (int, error), lowest bool) error {
		if seen == nil {
			fd, err := open()
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			if seen, err = h.readSeen(fd, -1); err != nil {
				return err
			}
		}
		if !lowest {
			seen.Upon()
		}
		all.Over(seen)
		return nil
	}
	s, err := h.layers()
	if err != nil {
		return nil, err
	}
	for i, id := range h.record.Layers {
		if err := add(s.Seen(id), func() (int, error) { return s.OpenUpper(id) }, i == 0); err != nil {
			return nil, err
		}
	}
	err = add(h.ownSeen(), func() (int, error) { return fsat.OpenDir(h.fd, h.record.Layer) }, len(h.record.Layers) == 0)
	return all, err
}

// unread is for a box that was read, and in which something is to run again:
// what was read of it is kept as what the branch saw.
func (h *held) unread() error {
	if !h.record.Read || h.record.Form != changeset.Overlay {
		return nil
	}
	text, err := h.readFile(changesName)
	if err != nil {
		return ofBox(h.id, err)
	}
	c, err := changeset.Decode(bytes.NewReader(text))
	if err != nil {
		return ofBox(h.id, err)
	}
	seen := c.Seen()
	if known := h.ownSeen(); known != nil {
		known.Over(seen)
		seen = known
	}
	if err := h.saveSeen(h.record, seen); err != nil {
		return err
	}
	if err := h.hideOwn(); err != nil {
		return err
	}
	r := h.record.clone()
	r.Read = false
	return h.writeRecord(r, false)
}

// hideOwn whites out hutch's own directory in a layer that a run made: there a
// mask hid it.
func (h *held) hideOwn() error {
	fd, err := fsat.OpenDir(h.fd, h.record.Layer)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := fsat.Fstat(fd)
	if err != nil {
		return err
	}
	err = unix.Mknodat(fd, ".hutch", unix.S_IFCHR, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return err
	}
	return fsat.SetTimesFD(fd, st.Atime, st.Mtime)
}

// union fills a directory of the box with what all of its layers are together.
// The own layer's files are shared where it is quiet, and copied where own is
// another directory than the box's layer.
func (h *held) union(name string, own int) (int, error) {
	if err := fsat.RemoveAll(h.fd, name); err != nil {
		return -1, err
	}
	fd, err := fsat.Mkdir(h.fd, name, 0o700)
	if err != nil {
		return -1, stateError(err)
	}
	err = h.unite(fd, own, h.record.Layers)
	if err != nil {
		unix.Close(fd)
		return -1, errors.Join(err, fsat.RemoveAll(h.fd, name))
	}
	return fd, nil
}

// unite merges frozen layers, and an upper upon them where own is not -1.
func (h *held) unite(dst, own int, ids []string) error {
	s, err := h.layers()
	if err != nil {
		return err
	}
	var uppers []int
	if own >= 0 {
		uppers = append(uppers, own)
	}
	for _, id := range slices.Backward(ids) {
		fd, err := s.OpenUpper(id)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		uppers = append(uppers, fd)
	}
	return layers.Merge(dst, uppers, h.prefix())
}

// snapshot copies the own layer of a busy box into dst while all of its
// processes are stopped, and notes what the overlay tells meanwhile.
func (h *held) snapshot(dst int) error {
	fd, err := fsat.OpenDir(h.fd, h.record.Layer)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	thaw, err := h.live.Freeze()
	if err != nil {
		return err
	}
	defer thaw()
	if err := layers.Copy(dst, fd, h.prefix()); err != nil {
		return err
	}
	return h.see()
}

// squash makes one own layer of all the layers of a quiet box that is not live.
// Files that nobody else needs are its own again.
func (h *held) squash() error {
	if len(h.record.Layers) == 0 {
		return nil
	}
	seen, err := h.stackSeen()
	if err != nil {
		return err
	}
	s, err := h.layers()
	if err != nil {
		return err
	}
	own, err := fsat.OpenDir(h.fd, h.record.Layer)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	r := h.record.clone()
	r.Moving = ""
	r.Layer, r.Work = r.next()
	fd, err := h.union(r.Layer, own)
	if err != nil {
		return err
	}
	unix.Close(fd)
	if err := h.freshWork(r.Work); err != nil {
		return err
	}
	r.Layers, r.Shared = nil, true
	if err := h.saveSeen(r, seen); err != nil {
		return err
	}
	before := h.record.uses()
	if err := h.turn(s, r, false); err != nil {
		return err
	}
	return h.unref(before)
}

// unref drops the references to layers that were used before and are not any
// more.
func (h *held) unref(before map[string]bool) error {
	now := map[string]bool{}
	if !h.gone {
		now = h.record.uses()
	}
	var errs []error
	for id := range before {
		if now[id] {
			continue
		}
		s, err := h.layers()
		if err == nil {
			err = s.Unref(id, h.id)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// crowded makes one layer of many, beside what else goes on.
func (h *held) crowded() {
	if len(h.record.Layers) < maxLayers || h.flattening {
		return
	}
	h.flattening = true
	b := h.boxes
	b.mu.Lock()
	h.users++
	b.mu.Unlock()
	b.work.Go(func() {
		defer b.letGo(h)
		// Nothing is lost where it fails: the next freeze tries again.
		_ = h.flatten()
		h.mu.Lock()
		h.flattening = false
		h.mu.Unlock()
	})
}

func (h *held) flatten() error {
	h.mu.RLock()
	old := slices.Clone(h.record.Layers)
	gone := h.gone
	h.mu.RUnlock()
	if gone {
		return nil
	}
	s, err := h.layers()
	if err != nil {
		return err
	}
	id, err := s.New(h.id)
	if err != nil {
		return err
	}
	err = h.flattenInto(s, id, old)
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if err = h.swapLayers(old, id); err == nil {
			return nil
		}
	}
	return errors.Join(err, s.Unref(id, h.id))
}

func (h *held) flattenInto(s *layers.Store, id string, old []string) error {
	hold, err := s.Lock(old)
	if err != nil {
		return err
	}
	defer hold.Release()
	fd, err := s.MakeUpper(id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := h.unite(fd, -1, old); err != nil {
		return err
	}
	all := changeset.NewSeen()
	for i, below := range old {
		seen := s.Seen(below)
		if seen == nil {
			upper, err := s.OpenUpper(below)
			if err != nil {
				return err
			}
			seen, err = h.readSeen(upper, -1)
			unix.Close(upper)
			if err != nil {
				return err
			}
		}
		if i > 0 {
			seen.Upon()
		}
		all.Over(seen)
	}
	return s.SaveSeen(id, all)
}

// swapLayers puts one layer in the place of those that it is the union of, where
// the box lies upon them yet.
func (h *held) swapLayers(old []string, id string) error {
	if h.gone || len(h.record.Layers) < len(old) || !slices.Equal(h.record.Layers[:len(old)], old) {
		return errors.New("the box has gone on")
	}
	before := h.record.uses()
	r := h.record.clone()
	r.Moving = ""
	r.Layers = append([]string{id}, r.Layers[len(old):]...)
	if err := h.writeRecord(r, false); err != nil {
		return err
	}
	return h.unref(before)
}

// mend puts right what a process that died left in the box's directory.
func (h *held) mend() error {
	r := h.record
	if r.Moving != "" {
		s, err := h.layers()
		if err != nil {
			return err
		}
		top := r.Layers[len(r.Layers)-1]
		frozen, err := s.Frozen(top)
		if err == nil && !frozen {
			err = s.Freeze(top, h.fd, r.Moving)
		}
		if err != nil {
			return ofBox(h.id, err)
		}
		r.Moving = ""
	}
	if r.Form != changeset.Overlay {
		return nil
	}
	entries, err := h.list()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name == r.Layer || e.Name == r.Work || e.Name == r.seenName() {
			continue
		}
		if strings.HasPrefix(e.Name, "upper") || strings.HasPrefix(e.Name, "work") || strings.HasPrefix(e.Name, unionName) {
			if err := fsat.RemoveAll(h.fd, e.Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// unionName is a directory of the box with all of its layers in one, for as long
// as they are looked at; with another letter, a copy of a busy one.
const unionName = "union"
