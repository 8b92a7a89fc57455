package view

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"hutch/internal/fsat"
)

// Bounds of a whole root. A directory costs some microseconds in the layer, an
// overlay half a millisecond.
const (
	maxParts = 64
	maxDirs  = 4000
	depthOf  = 3 // levels of a part whose directories become the user's own
	depthOfL = 6 // the same below /usr/local
)

// ownPlaces are not the host's in any box.
var ownPlaces = []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/lost+found"}

// showWhole shows every directory of the root with a layer over it, and the
// user's home. Other users' homes are left out, with what is secret.
func (s *sight) showWhole() {
	s.homesOfOthers = s.otherHomes()
	for _, name := range s.list("/") {
		path := "/" + name
		if target, isLink := s.files.readlink(path); isLink {
			s.links = append(s.links, Symlink{path, target})
			continue
		}
		if !s.files.isDir(path) || slices.Contains(ownPlaces, path) || slices.Contains(homeParents, path) || path == "/root" {
			continue
		}
		s.showPart(path)
	}
	if real, ok := s.files.real(s.Home); ok && s.Home != "" && real != "/" && s.part(real) == nil && s.files.isDir(real) && !s.inWorkspace(real) && real != "/tmp" {
		s.showPart(real)
	}
	s.take()
	for i := range s.parts {
		p := &s.parts[i]
		slices.Sort(p.Absent)
		p.Absent = slices.Compact(p.Absent)
		s.own(p)
	}
}

// list returns the names in a directory, sorted.
func (s *sight) list(dir string) []string {
	f, err := os.Open(s.root + dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	slices.Sort(names)
	return names
}

// showPart shows a directory with a layer over it; or what is in it, where
// something is mounted further down, which the kernel refuses to let an
// ordinary user cover.
func (s *sight) showPart(path string) {
	if s.kept(path) || s.inWorkspace(path) || slices.Contains(s.pseudo, path) {
		return
	}
	st, ok := s.stat(path)
	if !ok || !s.User.MayRead(st.Uid, st.Gid, st.Mode) {
		return
	}
	if slices.Contains(s.Refused, path) || len(s.parts) >= maxParts {
		s.refused = append(s.refused, path)
		return
	}
	below := s.mountsBelow(path)
	private := path == "/etc" && s.User.UID != 0
	if len(below) > 0 && !s.Nested && !private {
		s.bare = append(s.bare, path)
		for _, name := range s.list(path) {
			child := filepath.Join(path, name)
			switch n := s.files.lookup(child); {
			case !n.ok || s.kept(child):
			case n.target != "":
				s.links = append(s.links, Symlink{child, n.target})
			case n.mode.IsDir():
				s.showPart(child)
			case n.mode.IsRegular():
				s.shows = append(s.shows, Show{child, ReadOnly})
			}
		}
		return
	}
	root := Dir{Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid}
	if s.User.UID != 0 {
		root = Dir{Mode: st.Mode&0o7777 | 0o700, UID: s.User.UID, GID: s.User.GID}
	}
	p := Part{Path: path, Dir: root, Copy: private}
	if fsat.Within("/var/tmp", path) && path != "/var/tmp" {
		p.Fresh = append(p.Fresh, strings.TrimPrefix("/var/tmp", path+"/"))
	}
	s.parts = append(s.parts, p)
	s.shows = append(s.shows, Show{path, CopyOnWrite})
	if s.Nested && !private {
		for _, mount := range below {
			if s.files.isDir(mount) && !fsat.Within(mount, "/var/tmp") {
				s.showPart(mount)
			}
		}
	}
}

// take makes absent what is kept from boxes. A whiteout hides what comes to be
// at its place as well.
func (s *sight) take() {
	for _, home := range s.homes {
		s.takeHome(home)
	}
	for _, home := range s.homesOfOthers {
		s.takeAway(home)
	}
	for _, r := range slices.Concat(systemSecrets, dataSecrets) {
		for _, name := range r.names {
			s.takeAway(name)
		}
	}
	for _, path := range s.hidden {
		s.takeAway(path)
	}
	for _, prefix := range append([]string{"/usr", "/usr/local"}, s.below("/opt")...) {
		for _, rel := range prefixSecrets.names {
			s.takeAway(filepath.Join(prefix, rel))
		}
	}
	if s.StateDir != "" {
		s.takeAway(s.StateDir)
	}
}

func (s *sight) below(dir string) []string {
	var paths []string
	for _, name := range s.list(dir) {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// takeHome makes the secrets of a home absent: those that the tables name, and
// what lies beside them under a name that says so.
func (s *sight) takeHome(home string) {
	for name := range secretsOfHome {
		s.takeAway(home + "/" + name)
	}
	for _, dir := range []string{home, home + "/.config", home + "/.local/share", home + "/.cache"} {
		for _, name := range s.list(dir) {
			if secretFile(name) {
				s.takeAway(dir + "/" + name)
			}
		}
	}
}

// secretFile reports whether the name of a file says that it holds a secret.
func secretFile(name string) bool {
	lower := strings.ToLower(name)
	for _, end := range []string{"_history", ".pem", ".key", ".p12", ".pfx", ".kdbx", ".kdb", ".jks", ".keystore", ".ovpn", ".ppk", ".gpg", ".asc"} {
		if strings.HasSuffix(lower, end) {
			return true
		}
	}
	for _, word := range []string{"credential", "secret", "password", "passwd", "token", "apikey", "api_key", "private_key", "id_rsa", "id_ed25519", "id_ecdsa"} {
		if strings.Contains(lower, word) {
			return true
		}
	}
	return lower == ".env" || strings.HasPrefix(lower, ".env.") || lower == ".envrc"
}

// takeAway makes one path absent: its name, and what it leads to. Where a
// directory on the way does not exist, that.
func (s *sight) takeAway(path string) {
	if real, ok := s.files.real(path); ok {
		s.white(real)
	}
	for at := path; at != "/"; at = filepath.Dir(at) {
		if parent, ok := s.files.real(filepath.Dir(at)); ok {
			s.white(filepath.Join(parent, filepath.Base(at)))
			return
		}
	}
}

func (s *sight) white(real string) {
	if p := s.part(real); p != nil && real != p.Path && !s.shownAsAsked(real) && !s.askedFor(real) {
		if rel := strings.TrimPrefix(real[len(p.Path):], "/"); !slices.ContainsFunc(p.Absent, func(a string) bool { return fsat.Within(rel, a) }) {
			p.Absent = append(p.Absent, rel)
		}
	}
}

// askedFor reports whether the user names a path to be shown, before what he
// names is looked at.
func (s *sight) askedFor(real string) bool {
	return slices.ContainsFunc(slices.Concat(s.Read, s.Write), func(asked string) bool {
		path, ok := s.absolute(asked)
		if !ok {
			return false
		}
		r, ok := s.files.real(path)
		return ok && (r == real || path == real)
	})
}

// kept reports whether a directory is kept from boxes whole.
func (s *sight) kept(path string) bool {
	return s.isSecret(path) || slices.ContainsFunc(dataSecrets, func(r row) bool { return slices.Contains(r.names, path) }) ||
		slices.ContainsFunc(s.homesOfOthers, func(home string) bool {
			return fsat.Within(path, home) && !s.overHome(path) && !fsat.Within(path, s.Home)
		})
}

// own lists the directories of a part's layer: those above what is absent, and
// for an ordinary user those that lie near the top, which become his own so
// that he can put files into them.
func (s *sight) own(p *Part) {
	dirs := map[string]Dir{}
	for _, rel := range p.Absent {
		for at := rel; ; {
			i := strings.LastIndexByte(at, '/')
			if i < 0 {
				break
			}
			at = at[:i]
			if st, ok := s.stat(p.Path + "/" + at); ok {
				dirs[at] = Dir{at, st.Mode & 0o7777, st.Uid, st.Gid}
			}
		}
	}
	if s.User.UID != 0 && !p.Copy {
		s.descend(p, "", 1, dirs)
	}
	for _, rel := range p.Fresh {
		delete(dirs, rel)
	}
	for _, d := range dirs {
		p.Dirs = append(p.Dirs, d)
	}
	slices.SortFunc(p.Dirs, func(a, b Dir) int { return comparePaths(a.Rel, b.Rel) })
}

func (s *sight) descend(p *Part, rel string, depth int, dirs map[string]Dir) {
	most := depthOf
	if fsat.Within(p.Path+"/"+rel, "/usr/local") {
		most = depthOfL
	}
	if depth > most {
		return
	}
	entries, err := os.ReadDir(s.root + p.Path + "/" + rel)
	if err != nil {
		return
	}
	for _, e := range entries {
		below := strings.TrimPrefix(rel+"/"+e.Name(), "/")
		if !e.IsDir() || s.dirs >= maxDirs || slices.ContainsFunc(p.Absent, func(a string) bool { return fsat.Within(below, a) }) || slices.Contains(p.Fresh, below) {
			continue
		}
		// What is the user's own, with all in it as a rule, he can write to.
		st, ok := s.stat(p.Path + "/" + below)
		if !ok || st.Uid == s.User.UID || !s.User.MayRead(st.Uid, st.Gid, st.Mode) || !s.User.MayRead(st.Uid, st.Gid, st.Mode<<2) {
			continue
		}
		s.dirs++
		dirs[below] = Dir{below, st.Mode&0o7777 | 0o700, s.User.UID, s.User.GID}
		s.descend(p, below, depth+1, dirs)
	}
}

func (s *sight) stat(real string) (unix.Stat_t, bool) {
	var st unix.Stat_t
	return st, unix.Lstat(s.root+real, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// otherHomes lists the homes of other people's accounts.
func (s *sight) otherHomes() []string {
	const people = 1000 // first uid of a person; below are services, and root
	var homes []string
	_ = accounts{s.root + "/etc"}.lines("passwd", 7, func(f []string) bool {
		uid, err := parseID(f[2])
		home := filepath.Clean(f[5])
		if err == nil && (uid >= people || uid == 0) && filepath.IsAbs(home) && home != "/" && !s.overHome(home) && !slices.Contains(neverShown.names, home) && !fsat.Within("/usr", home) && !strings.HasPrefix(home, "/nonexistent") {
			homes = append(homes, home)
		}
		return true
	})
	return homes
}

// mountsBelow lists the mount points inside a directory, without those that are
// no part of what a box sees.
func (s *sight) mountsBelow(dir string) []string {
	if s.mounts == nil {
		s.mounts = []string{}
		if s.root == "" {
			s.mounts, s.pseudo = readMounts()
		}
	}
	var below []string
	for _, m := range s.mounts {
		if fsat.Within(m, dir) && m != dir && !slices.Contains(below, m) {
			below = append(below, m)
		}
	}
	slices.SortFunc(below, comparePaths)
	return below
}

// pseudoTypes are file systems that hold no files but the kernel's and its
// services'. A chroot on the host has them in odd places.
var pseudoTypes = []string{
	"proc", "sysfs", "cgroup", "cgroup2", "devtmpfs", "devpts", "mqueue", "debugfs", "tracefs", "securityfs", "bpf", "fusectl", "configfs", "pstore", "efivarfs", "autofs", "binfmt_misc", "nsfs", "rpc_pipefs", "nfsd", "selinuxfs", "hugetlbfs",
}

// readMounts lists the mount points of the host, and those of them that are of
// the kernel's own file systems.
func readMounts() (points, pseudo []string) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, nil
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		if f := strings.Fields(before); len(f) > 4 {
			point := unescape.Replace(f[4])
			points = append(points, point)
			if kind, _, _ := strings.Cut(after, " "); slices.Contains(pseudoTypes, kind) {
				pseudo = append(pseudo, point)
			}
		}
	}
	return points, pseudo
}
