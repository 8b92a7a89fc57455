package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
	"hutch/internal/plan"
	"hutch/internal/view"
)

// TransactionDir is hidden from every box. A transaction travels with the
// workspace, and what is in it decides what a recovery writes.
const TransactionDir = ".hutch"

// mounts shows the host and the workspace, parents before what lies in them.
func (b *Box) mounts(p *plan.Plan) error {
	inHome := func(path string) bool { return fsat.Within(path, b.Home) }
	inWorkspace := func(path string) bool { return fsat.Within(path, b.Workspace) }
	caches := b.CacheDirs
	overlay := func(lower, path string) error {
		if len(caches) == 0 {
			return fmt.Errorf("no layer for the caches in %s", lower)
		}
		dir := caches[0]
		caches = caches[1:]
		p.Add(plan.Overlay, attrData, 0, 0, lower, filepath.Join(dir, "upper"), filepath.Join(dir, "work"), path, b.overlayOptions())
		return nil
	}
	home := b.homeShows()
	show := func(s view.Show) error {
		switch part := b.part(s.Path); {
		case part >= 0:
			b.layer(p, part)
		case slices.Contains(home, s.Path):
			attr := uint64(0)
			if s.Mode != view.CopyOnWrite {
				attr = attrSystem
			}
			p.Add(plan.Rebind, 0, 0, attr, strings.TrimPrefix(s.Path, b.Home+"/"), s.Path)
		case s.Mode != view.CopyOnWrite:
			p.Add(plan.Bind, attrSystem, plan.BindOptional, 0, s.Path, s.Path)
		default:
			return overlay(s.Path, s.Path)
		}
		return nil
	}
	// What lies in a private directory must wait until that is there.
	private := func(path string) bool {
		return inHome(path) || fsat.Within(path, "/tmp") || fsat.Within(path, "/run") || fsat.Within(path, "/dev")
	}
	for _, link := range b.Links {
		if !private(link.Path) {
			p.Add(plan.Symlink, 0, 0, 0, link.Target, link.Path)
		}
	}
	for _, s := range b.Show {
		if !private(s.Path) && !inWorkspace(s.Path) {
			if err := show(s); err != nil {
				return err
			}
		}
	}

	if !inWorkspace(b.Home) && !fsat.Within("/tmp", b.Home) && !b.homeShown() {
		p.Add(plan.Rebind, 0o755, owner(b.User), 0, "home", b.Home)
	}
	if b.Network {
		// Where a resolver writes its file under /run, names need it.
		if path, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && !fsat.Within(path, "/etc") {
			p.Add(plan.Bind, attrSystem|unix.MOUNT_ATTR_NOEXEC, plan.BindOptional, 0, path, path)
		}
	}

	for _, link := range b.Links {
		if private(link.Path) && !inWorkspace(link.Path) {
			b.ownDirs(p, link.Path)
			p.Add(plan.Symlink, 0, 0, 0, link.Target, link.Path)
		}
	}
	if len(home) > 0 {
		// It takes the place of the hidden mount, of which nothing more is
		// wanted but a place for an empty directory.
		if err := overlay(b.Home, ""); err != nil {
			return err
		}
	}
	for _, s := range b.Show {
		if private(s.Path) && !inWorkspace(s.Path) {
			b.ownDirs(p, s.Path)
			if err := show(s); err != nil {
				return err
			}
		}
	}

	for _, f := range b.Files {
		b.ownDirs(p, f.Path)
		p.Add(plan.File, uint64(f.Mode), owner(b.User), b.owned(), f.Path, f.Content)
	}
	if inHome(b.Workspace) {
		b.ownDirs(p, b.Workspace)
	}
	attr := uint64(attrData)
	if !b.Policy.FSWrite {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	switch {
	case !b.Policy.FSRead:
		p.Add(plan.Rebind, 0o755, owner(b.User), 0, "empty", b.Workspace)
		p.Add(plan.ReadOnly, 0, 0, 0, b.Workspace)
	case b.Resident:
		p.Add(plan.Dir, 0o755, 0, 0, b.Workspace)
	case b.Mount.Tree != "":
		p.Add(plan.Bind, attr, 0, 0, b.Mount.Tree, b.Workspace)
	default:
		if b.Mount.Upper == "" {
			options := fmt.Sprintf("mode=0700,size=%d", b.Mount.RAMSize)
			if b.Mount.RAMFiles > 0 {
				// Not the box's: the layer's own directories and the overlay's, and
				// what hides files.
				own := int64(8 + len(b.Mount.Dirs) + len(b.Mount.Absent))
				options += fmt.Sprintf(",nr_inodes=%d", b.Mount.RAMFiles+own)
			}
			p.Add(plan.RAMLayer, uint64(b.Mount.Mode), owner(b.User), plan.TagLayer, options)
			b.fill(p, "", b.Mount.Dirs, b.Mount.Absent, plan.LayerRAM)
		}
		p.Add(plan.Overlay, attr, 0, 0, b.Mount.Lower, b.Mount.Upper, b.Mount.Work, b.Workspace, b.overlayOptions())
	}
	for _, path := range append([]string{filepath.Join(b.Workspace, TransactionDir)}, b.Masks...) {
		// A mask would go with the mount that it lies on: in a box whose branch
		// is mounted again, the layer itself hides such paths.
		if !b.Resident || !inWorkspace(path) {
			p.Add(plan.Mask, 0, 0, 0, path)
		}
	}
	if b.Privileged && b.User.UID == 0 {
		// Most of /proc is owned by uid 0 of the host, and the kernel keeps a
		// mode that its owner gives it, for every mount of it.
		p.Add(plan.ReadOnly, 0, 0, 0, "/proc")
	}
	return nil
}

// part returns the place in Parts of the one at a path; -1 for none.
func (b *Box) part(path string) int {
	return slices.IndexFunc(b.Parts, func(p view.Part) bool { return p.Path == path })
}

// homeShown reports whether the home is the host's, with a layer over it.
func (b *Box) homeShown() bool {
	return slices.ContainsFunc(b.Parts, func(p view.Part) bool { return fsat.Within(b.Home, p.Path) })
}

// layer shows a part, with a layer in the hidden mount: memory, so that nothing
// of it is left, and no overlay lies over its own layer.
func (b *Box) layer(p *plan.Plan, i int) {
	part := &b.Parts[i]
	if part.Copy {
		p.Add(plan.Bind, attrData, 0, 0, b.Copies[part.Path], part.Path)
		return
	}
	dir := fmt.Sprintf("part%d", i)
	upper, work := dir+"/upper", dir+"/work"
	p.Add(plan.LayerDir, 0o700, 0, 0, dir)
	p.Add(plan.LayerDir, uint64(part.Dir.Mode), b.ownerOf(part.Dir), 0, upper)
	p.Add(plan.LayerDir, 0o700, 0, 0, work)
	b.fill(p, upper+"/", part.Dirs, part.Absent, 0)
	for _, rel := range part.Fresh {
		flags := uint64(plan.LayerOpaque)
		if b.Trusted {
			flags |= plan.LayerTrusted
		}
		p.Add(plan.LayerDir, 0o1777, 0, flags, upper+"/"+rel)
	}
	p.Add(plan.Overlay, attrData, plan.OverlayHidden, 0, part.Path, upper, work, part.Path, b.overlayOptions())
}

// fill puts directories and whiteouts into a layer before it is mounted.
func (b *Box) fill(p *plan.Plan, prefix string, dirs []view.Dir, absent []string, base uint64) {
	for _, d := range dirs {
		p.Add(plan.LayerDir, uint64(d.Mode), b.ownerOf(d), base, prefix+d.Rel)
	}
	for _, rel := range absent {
		p.Add(plan.Whiteout, 0, 0, base, prefix+rel)
	}
}

// ownerOf is whom a directory of a layer is given to. Only root can give to
// another: what an ordinary user makes is his own.
func (b *Box) ownerOf(d view.Dir) uint64 {
	if !b.Privileged {
		return 0
	}
	return owner(view.User{UID: d.UID, GID: d.GID})
}

// owned is 1 where what is made has to be given to the user.
func (b *Box) owned() uint64 {
	if b.Privileged {
		return 1
	}
	return 0
}

// homeShows lists what is shown of the home from one overlay over the whole of
// it: an overlay costs a dozen directories made and removed, a bind mount next
// to nothing. What is read-only is among it too, since a socket that is bound
// can be connected to, and one in an overlay cannot: its inode is another.
func (b *Box) homeShows() []string {
	var paths []string
	if b.ApartCaches {
		return nil
	}
	mount, shown := mountID(b.Home), b.homeShown()
	for _, s := range b.Show {
		if fsat.Within(s.Path, b.Home) && s.Path != b.Home && !fsat.Within(s.Path, b.Workspace) && (s.Mode == view.CopyOnWrite || !shown && mountID(s.Path) == mount) && b.part(s.Path) < 0 {
			paths = append(paths, s.Path)
		}
	}
	return paths
}

// mountID tells mounts apart: an overlay does not show what is mounted in its
// lower directory.
func mountID(path string) uint64 {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	return st.Mnt_id
}

// Caches returns how many CacheDirs the box needs.
func (b *Box) Caches() int {
	home := b.homeShows()
	need := min(len(home), 1)
	for _, s := range b.Show {
		if s.Mode == view.CopyOnWrite && !fsat.Within(s.Path, b.Workspace) && !slices.Contains(home, s.Path) && b.part(s.Path) < 0 {
			need++
		}
	}
	return need
}

// ownDirs makes the directories between HOME and path the user's own; mount
// points made on the way would be root's.
func (b *Box) ownDirs(p *plan.Plan, path string) {
	if !b.Privileged {
		return
	}
	rest, ok := strings.CutPrefix(filepath.Dir(path), b.Home+"/")
	if !ok {
		return
	}
	dir := b.Home
	for name := range strings.SplitSeq(rest, "/") {
		dir += "/" + name
		if slices.ContainsFunc(b.Show, func(s view.Show) bool { return fsat.Within(dir, s.Path) && b.part(s.Path) < 0 }) {
			return // it is there, and its owner the host's
		}
		p.Add(plan.Dir, 0o755, owner(b.User), 1, dir)
	}
}

// overlayOptions: volatile, since the last unmount would otherwise sync the
// layer's whole file system (79 ms with 200 MB dirty); promotion syncs what it
// takes. metacopy would leave content behind in the workspace, and an index
// keeps a layer from being mounted again.
func (b *Box) overlayOptions() string {
	if b.Trusted {
		return "redirect_dir=on,metacopy=off,index=off,volatile"
	}
	return "userxattr,index=off,volatile"
}

// BranchOptions are those of the overlay of a box that lives. No directory may
// lead elsewhere in it: its layer will lie below others'.
func BranchOptions(trusted bool) string {
	if trusted {
		return "redirect_dir=off,metacopy=off,index=off,volatile"
	}
	return "userxattr,index=off,volatile"
}

// BranchAttr are the attributes, MOUNT_ATTR_*, of the mount of such a branch.
func BranchAttr(write bool) uint64 {
	if write {
		return attrData
	}
	return attrData | unix.MOUNT_ATTR_RDONLY
}
