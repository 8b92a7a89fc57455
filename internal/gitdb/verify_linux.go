package gitdb

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Finding is a file in a git directory by which git would see something else
// than the objects say.
type Finding struct {
	Path   string // relative to the git directory
	Reason string // one plain phrase
}

// Verify looks at what was written into a repository (paths relative to the git
// directory, as a changeset names them) and returns what is not to be trusted.
// Git hashes hardly anything that it reads: a second copy of an object, in a
// loose file or a pack, need not be what its name says, and git may take it in
// place of the true one. So every object in a new file is hashed. The
// multi-pack-index, commit-graphs, alternates and grafts tell git of objects
// without naming them by hash, so any is a finding; git makes the first two anew.
// An error is of the reading itself.
func (r *Repo) Verify(paths []string) ([]Finding, error) {
	var found []Finding
	packs := map[string]bool{}
	for _, p := range paths {
		reason := ""
		dir, name := path.Split(p)
		switch {
		case strings.HasPrefix(p, "objects/info/commit-graph"):
			reason = "a commit-graph: git takes the trees of commits from it"
		case strings.HasPrefix(p, "objects/pack/multi-pack-index"):
			reason = "a multi-pack-index: git takes the places of objects from it"
		case p == "objects/info/alternates" || p == "objects/info/http-alternates":
			reason = "alternates: git reads objects of another repository"
		case p == "info/grafts":
			reason = "grafts: git sees other parents of commits"
		case dir == "objects/pack/":
			base := strings.TrimSuffix(strings.TrimSuffix(name, ".idx"), ".pack")
			if base == name || packs[base] {
				continue
			}
			packs[base] = true
			if err := r.verifyPack(base); err != nil {
				if !isFinding(err) {
					return nil, err
				}
				reason = err.Error()
			}
		case strings.HasPrefix(p, "objects/"):
			id, err := ParseOID(strings.Replace(strings.TrimPrefix(p, "objects/"), "/", "", 1))
			if err != nil || len(dir) != len("objects/xx/") {
				continue // a directory, or a name that git does not look at
			}
			if err := r.verifyLoose(id); err != nil {
				if !isFinding(err) {
					return nil, err
				}
				reason = err.Error()
			}
		}
		if reason != "" {
			found = append(found, Finding{p, reason})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Path, b.Path) })
	return found, nil
}

// isFinding reports whether an error tells of what was written, and not of the
// reading.
func isFinding(err error) bool {
	for _, kind := range []error{ErrCorrupt, ErrTooLarge, ErrUnsupported} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

func (r *Repo) verifyLoose(id OID) error {
	kind, content, err := r.loose(r.view, id, maxObject)
	if errors.Is(err, unix.ENOENT) {
		return nil // deleted
	}
	if err == nil && r.format.Name(kind, content) != id {
		err = errMisnamed
	}
	return err
}

func (r *Repo) verifyPack(name string) error {
	if err := r.openPacks(); err != nil {
		return err
	}
	i := slices.IndexFunc(r.packs, func(p *pack) bool { return p.name == name })
	if i < 0 {
		return nil // deleted, or half a pack, which git passes over
	}
	p := r.packs[i]
	type object struct {
		id  OID
		off int64
	}
	objects := make([]object, p.count())
	for i := range objects {
		o := &objects[i]
		var err error
		if o.id, err = p.oid(int64(i)); err != nil {
			return err
		}
		if o.off, err = p.offset(int64(i)); err != nil {
			return err
		}
		first := int64(0)
		if o.id[0] > 0 {
			first = int64(p.fanout[o.id[0]-1])
		}
		if int64(i) < first || int64(i) >= int64(p.fanout[o.id[0]]) || (i > 0 && objects[i-1].id >= o.id) {
			return corrupt("pack index: out of order")
		}
	}
	// In the order of the pack, bases are read shortly before their deltas.
	slices.SortFunc(objects, func(a, b object) int { return cmp.Compare(a.off, b.off) })
	for _, o := range objects {
		kind, content, err := r.unpack(p, o.off, maxObject)
		if err == nil && r.format.Name(kind, content) != o.id {
			err = errMisnamed
		}
		if err != nil {
			return fmt.Errorf("object %v: %w", o.id, err)
		}
	}
	return nil
}
