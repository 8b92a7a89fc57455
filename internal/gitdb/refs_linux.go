package gitdb

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

const (
	maxPackedRefs = 128 << 20
	maxReflog     = 64 << 20
	maxRef        = 4 << 10 // of a loose ref; what follows a name of an object does not count
	maxRefName    = 4 << 10
)

// Refs returns every ref, sorted by name: HEAD and its like (ORIG_HEAD,
// MERGE_HEAD; of FETCH_HEAD the first line), refs/ loose and packed, so also the
// stash, notes and replacements, and the HEADs and refs of linked worktrees
// under "worktrees/ID/". Symbolic refs are followed.
func (r *Repo) Refs() ([]Ref, error) {
	refs, err := r.refs()
	if err != nil {
		return nil, fmt.Errorf("read git refs: %w", err)
	}
	return refs, nil
}

func (r *Repo) refs() ([]Ref, error) {
	all := map[string]Ref{}
	content, err := r.view.read("packed-refs", maxPackedRefs)
	if err != nil {
		return nil, err
	}
	packed, err := parsePackedRefs(r.format, content)
	if err != nil {
		return nil, err
	}
	for _, ref := range packed {
		all[ref.Name] = ref
	}
	worktrees, err := r.view.list("worktrees")
	if err != nil {
		return nil, err
	}
	gitDirs := []string{"."}
	for _, w := range worktrees {
		gitDirs = append(gitDirs, "worktrees/"+w.Name)
	}
	for _, dir := range gitDirs {
		if err := r.pseudoRefs(all, dir); err != nil {
			return nil, err
		}
		if err := r.looseRefs(all, fsat.Join(dir, "refs")); err != nil {
			return nil, err
		}
	}
	refs := make([]Ref, 0, len(all))
	for name := range all {
		ref := all[name]
		ref.ID = follow(all, ref)
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	return refs, nil
}

// follow returns what a symbolic ref leads to. That of a worktree may lead to
// one of its own.
func follow(all map[string]Ref, ref Ref) OID {
	own := ""
	if parts := strings.SplitN(ref.Name, "/", 3); parts[0] == "worktrees" && len(parts) == 3 {
		own = parts[0] + "/" + parts[1] + "/"
	}
	for n := 0; ref.Target != "" && n < maxSymbolic; n++ {
		next, ok := all[own+ref.Target]
		if !ok {
			next = all[ref.Target]
		}
		ref = next
	}
	return ref.ID
}

// pseudoRefs reads HEAD and the other refs that lie in a git directory itself.
func (r *Repo) pseudoRefs(all map[string]Ref, dir string) error {
	entries, err := r.view.list(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type == fsat.Directory || strings.Trim(e.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
			continue
		}
		ref, ok, err := r.looseRef(fsat.Join(dir, e.Name))
		if err != nil {
			return err
		}
		if ok || e.Name == "HEAD" {
			all[ref.Name] = ref
		}
	}
	return nil
}

// looseRefs reads the refs in a directory and beneath it.
func (r *Repo) looseRefs(all map[string]Ref, dir string) error {
	if len(dir) > maxRefName {
		return fmt.Errorf("%w: refs nested too deep", ErrTooLarge)
	}
	if err := r.spend(0); err != nil {
		return err
	}
	entries, err := r.view.list(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := fsat.Join(dir, e.Name)
		if strings.HasPrefix(e.Name, ".") || strings.HasSuffix(e.Name, ".lock") {
			continue // git takes none of them for a ref
		}
		if e.Type == fsat.Directory {
			err = r.looseRefs(all, path)
		} else {
			all[path], _, err = r.looseRef(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Repo) looseRef(path string) (ref Ref, ok bool, err error) {
	ref.Name = path
	if err := r.spend(0); err != nil {
		return ref, false, err
	}
	f, _, err := r.view.open(path)
	if errors.Is(err, unix.ENOENT) { // deleted meanwhile
		return ref, false, nil
	}
	if err != nil {
		return ref, false, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxRef))
	if err != nil {
		return ref, false, err
	}
	ref.ID, ref.Target, ok = parseRef(r.format, content)
	if !ok {
		ref.ID, ref.Target = "", ""
	}
	return ref, ok, nil
}

// Stash returns the stash entries, stash@{0} first.
func (r *Repo) Stash() ([]OID, error) {
	content, err := r.view.read("logs/refs/stash", maxReflog)
	if err != nil {
		return nil, fmt.Errorf("read git stash: %w", err)
	}
	ids, err := parseReflog(r.format, content)
	if err != nil {
		return nil, fmt.Errorf("read git stash: %w", err)
	}
	return ids, nil
}
