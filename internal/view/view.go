package view

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/fsat"
)

// ShowMode is how a box sees a path of the host.
type ShowMode uint8

const (
	ReadOnly    ShowMode = iota
	CopyOnWrite          // the box may write; what it wrote is thrown away
)

func (m ShowMode) String() string {
	if m == CopyOnWrite {
		return "copy-on-write"
	}
	return "read-only"
}

// A Show is a path of the host that a box sees at the same place: a directory,
// or a file, and no symlink on the way to it.
type Show struct {
	Path string
	Mode ShowMode
}

// A Symlink is one to make in the box, so that a path the host resolves
// through a symlink resolves there too.
type Symlink struct{ Path, Target string }

// Host is what the view of a box depends on.
type Host struct {
	User      User     // whom the command runs as
	Home      string   // of that user
	Path      []string // the entries of PATH
	Env       []string // the host's environment: where caches and toolchains were moved to
	Workspace string   // real path
	StateDir  string   // hutch's own

	// What the policy asks for. Paths are absolute or begin with "~/".
	Read       []string // also shown, read-only
	Write      []string // also shown, copy-on-write
	Hide       []string // kept from the box; what is no path is left to Hidden
	Toolchains bool     // toolchains are copy-on-write
	WholeRoot  bool     // all of the host's file system is copy-on-write
	Nested     bool     // the kernel lays an overlay over a directory with mounts in it too
	Refused    []string // directories of which it made none

	root   string   // in tests: where the host's root really is
	mounts []string // mount points; nil: not read yet
}

// View is what a box sees of the host besides the workspace.
type View struct {
	Shows []Show    // sorted, parents first; none lies in another of the same mode
	Parts []Part    // of Shows, those that need layers of their own
	Links []Symlink // to make
	// Masks are secrets inside what is shown. The box finds an empty directory
	// in place of a directory, an empty file in place of a file.
	Masks []string
	Files []File   // of the box's home
	Notes []string // what was asked for and is not so, and what was asked for and is a secret
	// Unwritable is what cannot be written to although the whole root is
	// copy-on-write.
	Unwritable []string
}

// Look decides what a box sees: the system and the toolchains on PATH
// read-only, build caches copy-on-write, and what the policy asks for. What is
// not named here is absent, and so is anything that would bring a secret
// along: a home, hutch's state, or a directory around the workspace.
//
// It costs some dozen lstats, whatever the host holds; with WholeRoot one
// listing of the root's directories more. It fails where the policy asks for
// what no box may see.
func Look(h Host) (*View, error) {
	s := look(h)
	if s.err != nil {
		return nil, s.err
	}
	return &View{Shows: s.shows, Parts: s.parts, Links: s.links, Masks: s.masks(), Files: s.configured, Notes: s.notes, Unwritable: s.unwritable()}, nil
}

// system are the directories a box has from the host. Data of the machine and
// of others is not among them: /var, /srv, /home, /root, /mnt, /run.
var system = []row{
	{"programs and libraries", []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"}},
	{"configuration, less its secrets", []string{"/etc"}},
	{"what is installed, and what was made of it then", []string{"/var/lib/dpkg", "/var/lib/rpm", "/var/lib/pacman", "/var/lib/texmf", "/var/cache/fontconfig"}},
	{"stores of package managers; not beside them, where their daemons' sockets are", []string{"/nix/store", "/gnu/store"}},
}

// systemTargets are files of the system that some distributions keep elsewhere
// and link to.
var systemTargets = row{"host names and certificates; not resolv.conf, which only a box with a network gets", []string{"/etc/hosts", "/etc/ssl/certs", "/etc/ssl/cert.pem"}}

// A toolchain is known by a directory below some home. When a PATH entry lies
// in it, shows are shown, relative to that home.
type toolchain struct {
	dir   string
	shows []string
	why   string
}

var toolchains = []toolchain{
	{".pyenv", []string{".pyenv"}, "shims need versions and libexec"},
	{".cargo", []string{".cargo/bin", ".cargo/env", ".rustup"}, "rustup's proxies need the toolchains; credentials stay out"},
	{".rustup", []string{".rustup"}, "a toolchain on PATH without its proxy"},
	{".nvm", []string{".nvm"}, "node and what npm installed beside it"},
	{".volta", []string{".volta"}, "shims need tools"},
	{".asdf", []string{".asdf", ".tool-versions", ".asdfrc"}, "shims need installs and the versions chosen"},
	{".local/share/mise", []string{".local/share/mise/shims", ".local/share/mise/installs"}, "not its config, which may hold secrets"},
	{".local/share/fnm", []string{".local/share/fnm"}, "node versions"},
	{".fnm", []string{".fnm"}, "node versions"},
	{".sdkman", []string{".sdkman/candidates", ".sdkman/bin", ".sdkman/etc"}, "JVMs and their tools"},
	{".jenv", []string{".jenv"}, "shims need versions"},
	{".bun", []string{".bun"}, "the runtime and its global packages"},
	{".deno", []string{".deno"}, "the runtime and its scripts"},
	{".rbenv", []string{".rbenv"}, "shims need versions"},
	{".rvm", []string{".rvm"}, "rubies and gemsets"},
	{".goenv", []string{".goenv"}, "shims need versions"},
	{".nodenv", []string{".nodenv"}, "shims need versions"},
	{".phpenv", []string{".phpenv"}, "shims need versions"},
	{".plenv", []string{".plenv"}, "shims need versions"},
	{".ghcup", []string{".ghcup"}, "compilers"},
	{".elan", []string{".elan"}, "proxies need the toolchains"},
	{".dotnet", []string{".dotnet"}, "the SDK"},
	{".opam", []string{".opam"}, "switches"},
	{".linuxbrew", []string{".linuxbrew"}, "the whole prefix: its binaries find their libraries there"},
	{".pixi", []string{".pixi"}, "environments"},
	{".local/share/pnpm", []string{".local/share/pnpm"}, "global packages"},
	{".local/share/uv", []string{".local/share/uv/tools", ".local/share/uv/python"}, "interpreters and tools; credentials stay out"},
	{".local/bin", []string{".local/bin", ".local/lib", ".local/share/uv/tools", ".local/share/uv/python", ".local/share/pipx", ".local/pipx"}, "and what its links point into"},
	{"go/bin", []string{"go/bin"}, "static binaries"},
}

// prefixes tell a directory that holds a whole installation: when the parent
// of a PATH entry has one of these, the parent is shown.
var prefixes = row{"its programs find the rest beside them", []string{
	"conda-meta",       // conda
	"pyvenv.cfg",       // a Python venv
	"pkg/tool",         // Go
	"lib/node_modules", // Node, or what npm -g installed
	"release",          // a JDK
}}

// places are variables that move a toolchain; their directories are shown as
// if they were on PATH.
var places = row{"found through the environment, where PATH names only a shim", []string{
	"RUSTUP_HOME", "GOROOT", "JAVA_HOME", "PYENV_ROOT", "NVM_DIR", "VOLTA_HOME", "ASDF_DATA_DIR", "RBENV_ROOT", "DOTNET_ROOT",
}}

// A cache is a directory below the home, unless variables move it: env names
// it, or it is below in the directory that parent names.
type cache struct {
	dir    string
	env    string
	parent string
	below  string
	why    string
}

var caches = []cache{
	{".cache/go-build", "GOCACHE", "XDG_CACHE_HOME", "go-build", "Go: compiled packages"},
	{"go/pkg/mod", "GOMODCACHE", "GOPATH", "pkg/mod", "Go: modules"},
	{".cache/golangci-lint", "GOLANGCI_LINT_CACHE", "XDG_CACHE_HOME", "golangci-lint", "Go: lint results"},
	{".cache/pip", "PIP_CACHE_DIR", "XDG_CACHE_HOME", "pip", "Python: wheels"},
	{".cache/uv", "UV_CACHE_DIR", "XDG_CACHE_HOME", "uv", "Python: wheels"},
	{".cache/pypoetry", "POETRY_CACHE_DIR", "XDG_CACHE_HOME", "pypoetry", "Python: wheels and virtualenvs"},
	{".cache/pre-commit", "PRE_COMMIT_HOME", "XDG_CACHE_HOME", "pre-commit", "hook environments"},
	{".npm/_cacache", "", "npm_config_cache", "_cacache", "Node: packages; the logs beside them stay out"},
	{".cache/yarn", "YARN_CACHE_FOLDER", "XDG_CACHE_HOME", "yarn", "Node: packages"},
	{".yarn/berry/cache", "", "", "", "Node: packages"},
	{".local/share/pnpm/store", "", "PNPM_HOME", "store", "Node: packages"},
	{".bun/install/cache", "BUN_INSTALL_CACHE_DIR", "BUN_INSTALL", "install/cache", "Node: packages"},
	{".cache/deno", "DENO_DIR", "XDG_CACHE_HOME", "deno", "Deno: modules"},
	{".cache/node-gyp", "", "XDG_CACHE_HOME", "node-gyp", "Node: headers"},
	{".cache/ms-playwright", "PLAYWRIGHT_BROWSERS_PATH", "XDG_CACHE_HOME", "ms-playwright", "browsers for tests, without profiles"},
	{".cargo/registry", "", "CARGO_HOME", "registry", "Rust: crates"},
	{".cargo/git", "", "CARGO_HOME", "git", "Rust: crates"},
	{".cache/sccache", "SCCACHE_DIR", "XDG_CACHE_HOME", "sccache", "compiled objects"},
	{".cache/ccache", "CCACHE_DIR", "XDG_CACHE_HOME", "ccache", "compiled objects"},
	{".m2/repository", "", "", "", "Java: artefacts; settings.xml stays out"},
	{".gradle/caches", "", "GRADLE_USER_HOME", "caches", "Java: artefacts; gradle.properties stays out"},
	{".gradle/wrapper", "", "GRADLE_USER_HOME", "wrapper", "Java: Gradle itself"},
	{".ivy2/cache", "", "", "", "Scala: artefacts"},
	{".cache/coursier", "COURSIER_CACHE", "XDG_CACHE_HOME", "coursier", "Scala: artefacts"},
	{".nuget/packages", "NUGET_PACKAGES", "", "", ".NET: packages"},
	{".cache/composer", "COMPOSER_CACHE_DIR", "XDG_CACHE_HOME", "composer", "PHP: packages"},
	{".cache/zig", "ZIG_GLOBAL_CACHE_DIR", "XDG_CACHE_HOME", "zig", "compiled objects"},
	{".hex/packages", "", "HEX_HOME", "packages", "Elixir: packages; hex.config stays out"},
	{".pub-cache/hosted", "", "PUB_CACHE", "hosted", "Dart: packages"},
	{".cabal/packages", "", "", "", "Haskell: packages"},
}

// neverShown are directories that are not shown whole, wherever PATH leads.
var neverShown = row{"homes, data, other mounts", []string{
	"/", "/home", "/root", "/Users", "/var", "/srv", "/mnt", "/media", "/tmp", "/nix", "/gnu", "/var/home", "/var/lib", "/var/tmp"}}

// notFiles are file systems of the kernel and of running services: sockets,
// devices, processes. Nothing below them is shown.
var notFiles = row{"a socket is a door", []string{"/proc", "/sys", "/dev", "/run", "/boot", "/var/run"}}

// sight is a view in the making.
type sight struct {
	Host
	files *resolver
	homes []string          // where homeSecrets may lie
	env   map[string]string // of Host.Env
	shows []Show
	links []Symlink
	found []string // prefixes among the shows
	tools ShowMode // how toolchains are shown

	asked      []string // real paths that the user named to be shown
	hidden     []string // real paths that the user named to be hidden
	also       []string // real paths that are secrets by their content
	parts      []Part
	dirs       int      // in the layers of parts
	pseudo     []string // mount points of the kernel's own file systems
	bare       []string // directories that are made anew, and filled from the host's
	refused    []string
	configured []File
	// homesOfOthers are kept out of a whole root.
	homesOfOthers []string
	notes         []string
	err           error
}

func look(h Host) *sight {
	s := &sight{Host: h, files: newResolver(h.root, h.Workspace), env: make(map[string]string)}
	if h.Toolchains || h.WholeRoot {
		s.tools = CopyOnWrite
	}
	for _, e := range h.Env {
		if name, value, ok := strings.Cut(e, "="); ok {
			if _, seen := s.env[name]; !seen {
				s.env[name] = value
			}
		}
	}
	if filepath.IsAbs(h.Home) {
		s.Home = filepath.Clean(h.Home)
		s.homes = append(s.homes, s.Home)
		if real, ok := s.files.real(s.Home); ok && real != s.Home {
			s.homes = append(s.homes, real)
		}
	}

	s.hide()
	if h.WholeRoot {
		s.showWhole()
	}
	for _, r := range system {
		for _, path := range r.names {
			s.showSystem(path)
		}
	}
	if h.Toolchains {
		s.showLocal()
	}
	for _, path := range systemTargets.names {
		if real, ok := s.files.real(path); ok && !s.shown(real) && !s.secret(real) {
			s.add(Show{real, ReadOnly})
		}
	}
	for _, entry := range h.Path {
		s.showBin(entry)
	}
	s.showInterpreters()
	for _, name := range places.names {
		if dir := s.env[name]; filepath.IsAbs(dir) {
			s.showTools(dir, dir)
		}
	}
	for _, c := range caches {
		s.showCache(c)
	}
	s.showAsked()
	s.settle()
	s.configure()
	return s
}

func (s *sight) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

func (s *sight) inWorkspace(path string) bool {
	return s.Workspace != "" && fsat.Within(path, s.Workspace)
}

// showLocal lets the directory be written to that programs are installed in
// without the system's package manager.
func (s *sight) showLocal() {
	const local = "/usr/local"
	if real, ok := s.files.real(local); ok && real == local && s.files.isDir(local) && !s.aroundWorkspace(local) {
		s.add(Show{local, CopyOnWrite})
	}
}

// showSystem shows a directory of the system, or makes its link again.
func (s *sight) showSystem(path string) {
	target, isLink := s.files.readlink(path)
	real, ok := s.files.real(path)
	switch {
	case !ok:
		return
	case isLink:
		if !s.shown(real) && !s.mayShow(real) {
			return
		}
		s.links = append(s.links, Symlink{path, target})
	}
	if !s.shown(real) {
		s.add(Show{real, ReadOnly})
	}
}

// showBin shows a PATH entry and what its programs need.
func (s *sight) showBin(entry string) {
	if !filepath.IsAbs(entry) {
		return
	}
	entry = filepath.Clean(entry)
	real, ok := s.files.real(entry)
	if !ok {
		return
	}
	if entry == "/snap/bin" {
		s.showSystem("/snap") // its programs are links to mounts beside it
		return
	}
	if s.files.exists(filepath.Join(filepath.Dir(real), "pyvenv.cfg")) {
		s.showInterpreter(real)
	}
	s.showTools(entry, real)
}

// showTools shows a directory of programs, path, which is real on disk: the
// toolchain it belongs to, the prefix it is part of, or just itself.
func (s *sight) showTools(path, real string) {
	if r, ok := s.files.real(real); ok {
		real = r
	} else {
		return
	}
	if s.Workspace != "" && fsat.Within(real, s.Workspace) {
		return // seen as part of the workspace
	}
	if home, tools, ok := findToolchain(real); ok {
		for _, rel := range tools.shows {
			s.showKnown(filepath.Join(home, rel), s.tools)
		}
	} else if !s.shown(real) || s.tools == CopyOnWrite {
		if prefix := filepath.Dir(real); s.isPrefix(prefix) && s.mayShow(prefix) {
			s.add(Show{prefix, s.tools})
			s.found = append(s.found, prefix)
		} else if !s.shown(real) && s.mayShow(real) {
			s.add(Show{real, s.tools})
		}
	}
	s.link(path, real)
}

// showInterpreters shows the Pythons that the workspace's own virtual
// environments come from, activated or not.
func (s *sight) showInterpreters() {
	if s.Workspace == "" {
		return
	}
	for _, venv := range []string{".venv", "venv"} {
		s.showInterpreter(filepath.Join(s.Workspace, venv, "bin"))
	}
}

// showInterpreter shows the Python that a venv's is a link to, if it belongs
// to a toolchain of the user's own. Not elsewhere: a command of an earlier box
// may have made the link, to whatever it would like to see, and any directory
// can be called .pyenv.
func (s *sight) showInterpreter(bin string) {
	python, ok := s.files.follow(filepath.Join(bin, "python"))
	if !ok {
		return
	}
	if home, _, ok := findToolchain(python); ok && (!s.inWorkspace(bin) || s.overHome(home) && slices.Contains(s.homes, home)) {
		dir := filepath.Dir(python)
		s.showTools(dir, dir)
	}
}

// showKnown shows a path that a table names, with its link when it is one.
func (s *sight) showKnown(path string, mode ShowMode) {
	real, ok := s.files.real(path)
	if !ok || s.secret(real) || s.secret(path) || s.overHome(real) || s.covered(real) {
		return
	}
	if mode == CopyOnWrite && !s.files.isDir(real) && (s.Home == "" || !fsat.Within(real, s.Home)) {
		mode = ReadOnly // an overlay is of a directory
	}
	s.add(Show{real, mode})
	s.link(path, real)
}

func (s *sight) showCache(c cache) {
	dir := s.env[c.env]
	if parent := s.env[c.parent]; dir == "" && parent != "" {
		parent, _, _ = strings.Cut(parent, string(filepath.ListSeparator)) // GOPATH is a list
		dir = filepath.Join(parent, c.below)
	}
	if dir == "" && s.Home != "" {
		dir = filepath.Join(s.Home, c.dir)
	}
	if !filepath.IsAbs(dir) { // "off", for one
		return
	}
	dir = filepath.Clean(dir)
	if real, ok := s.files.real(dir); ok && s.files.isDir(real) && !s.aroundWorkspace(real) && !s.neverWhole(real) {
		s.showKnown(dir, CopyOnWrite)
	}
}

// link makes path lead to real, unless it does so already.
func (s *sight) link(path, real string) {
	if path == real || !s.shown(real) || s.shown(path) || s.secret(path) {
		return
	}
	s.links = append(s.links, Symlink{path, real})
}

// findToolchain returns the toolchain a real path belongs to, and the home it
// lies below. The longest name wins.
func findToolchain(path string) (home string, found toolchain, ok bool) {
	for _, t := range toolchains {
		if !strings.Contains(path, t.dir) {
			continue // as nearly always
		}
		if i := strings.Index(path+"/", "/"+t.dir+"/"); i > 0 && len(t.dir) > len(found.dir) {
			home, found, ok = path[:i], t, true
		}
	}
	return home, found, ok
}

func (s *sight) isPrefix(dir string) bool {
	return slices.ContainsFunc(prefixes.names, func(mark string) bool {
		return s.files.exists(filepath.Join(dir, mark))
	})
}

// shown reports whether a path is seen in the box, the workspace left aside.
func (s *sight) shown(path string) bool {
	return slices.ContainsFunc(s.shows, func(x Show) bool { return fsat.Within(path, x.Path) })
}

// add shows a path, unless it is seen already.
func (s *sight) add(n Show) {
	for _, x := range s.shows {
		if fsat.Within(n.Path, x.Path) && (x.Mode == n.Mode || x.Mode == CopyOnWrite) {
			return
		}
	}
	s.shows = append(s.shows, n)
}

// mayShow reports whether a directory that no table names may be shown whole.
func (s *sight) mayShow(path string) bool {
	return !s.neverWhole(path) && !s.overHome(path) && !s.secret(path) && !s.aroundWorkspace(path) && !s.aroundSecret(path)
}

func (s *sight) neverWhole(path string) bool {
	return slices.Contains(neverShown.names, path) || homeOf(path) == path ||
		slices.ContainsFunc(notFiles.names, func(dir string) bool { return fsat.Within(path, dir) })
}

// overHome reports whether a path is a home or leads to it.
func (s *sight) overHome(path string) bool {
	return slices.ContainsFunc(s.homes, func(home string) bool { return fsat.Within(home, path) })
}

// aroundWorkspace reports whether a directory would show the workspace's
// neighbours.
func (s *sight) aroundWorkspace(path string) bool {
	return s.Workspace != "" && fsat.Within(s.Workspace, path)
}

// secret reports whether a path lies in a place that is kept from boxes.
func (s *sight) secret(path string) bool {
	if s.covered(path) {
		return true
	}
	if s.StateDir != "" && fsat.Within(path, s.StateDir) {
		return true
	}
	for _, home := range s.homesAbove(path) {
		rel := strings.TrimPrefix(path[len(home):], "/")
		for name := range secretsOfHome {
			if fsat.Within(rel, name) {
				return true
			}
		}
	}
	return false
}

// aroundSecret reports whether a directory contains such a place, there or
// not: it may come to be while a box is alive.
func (s *sight) aroundSecret(path string) bool {
	if s.StateDir != "" && fsat.Within(s.StateDir, path) {
		return true
	}
	for _, home := range s.homesAbove(path) {
		rel := strings.TrimPrefix(path[len(home):], "/")
		for name := range secretsOfHome {
			if fsat.Within(name, rel) {
				return true
			}
		}
	}
	return false
}

// homesAbove returns the homes that a path lies in.
func (s *sight) homesAbove(path string) []string {
	var above []string
	for _, home := range s.homes {
		if fsat.Within(path, home) {
			above = append(above, home)
		}
	}
	if home := homeOf(path); home != "" && !slices.Contains(above, home) {
		above = append(above, home)
	}
	return above
}

// secretsOfHome yields the names in homeSecrets.
func secretsOfHome(yield func(string) bool) {
	for _, r := range homeSecrets {
		for _, name := range r.names {
			if !yield(name) {
				return
			}
		}
	}
}

// masks returns the secrets inside what is shown.
func (s *sight) masks() []string {
	var found []string
	mask := func(path string) {
		if !s.shown(path) {
			return
		}
		// Where a link leads is what has to be hidden, if it is seen.
		if real, ok := s.files.real(path); ok && s.shown(real) && !s.absent(real) && !s.shownAsAsked(real) && !slices.Contains(found, real) {
			found = append(found, real)
		}
	}
	for _, path := range slices.Concat(s.hidden, s.also) {
		mask(path)
	}
	for _, r := range systemSecrets {
		for _, path := range r.names {
			mask(path)
		}
	}
	for _, x := range s.shows {
		for _, home := range s.homesAbove(x.Path) {
			rel := strings.TrimPrefix(x.Path[len(home):], "/")
			for name := range secretsOfHome {
				if fsat.Within(name, rel) {
					mask(home + "/" + name)
				}
			}
		}
	}
	for _, prefix := range s.found {
		for _, rel := range prefixSecrets.names {
			mask(filepath.Join(prefix, rel))
		}
	}
	if s.StateDir != "" {
		mask(s.StateDir)
	}
	slices.Sort(found)
	// What lies in a masked directory is gone with it.
	var masks []string
	for _, path := range found {
		if n := len(masks); n == 0 || !fsat.Within(path, masks[n-1]) {
			masks = append(masks, path)
		}
	}
	return masks
}

// settle sorts the shows, drops those that a later one made superfluous, and
// drops the links that lie in a show, where the host's own link is seen.
func (s *sight) settle() {
	byPath := func(a, b Show) int {
		if c := comparePaths(a.Path, b.Path); c != 0 {
			return c
		}
		return int(b.Mode) - int(a.Mode)
	}
	slices.SortFunc(s.shows, byPath)
	all := s.shows
	s.shows = nil
	for _, x := range all {
		s.add(x)
	}

	s.links = slices.DeleteFunc(s.links, func(l Symlink) bool { return s.shown(l.Path) })
	slices.SortFunc(s.links, func(a, b Symlink) int { return comparePaths(a.Path, b.Path) })
	s.links = slices.CompactFunc(s.links, func(a, b Symlink) bool { return a.Path == b.Path })
}

// comparePaths orders paths so that what lies in a directory follows it.
func comparePaths(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// resolver resolves symlinks like filepath.EvalSymlinks, asking the host about
// each name once.
//
// It does not believe the links of the workspace: whoever wrote there could
// have PATH or a cache lead anywhere.
type resolver struct {
	root      string
	workspace string
	names     map[string]node
	calls     int
}

// node is what a name in a real directory is.
type node struct {
	mode   os.FileMode
	ok     bool
	target string // of a symlink
}

func newResolver(root, workspace string) *resolver {
	return &resolver{root: root, workspace: workspace, names: make(map[string]node)}
}

// lookup asks about a path whose directory is real.
func (r *resolver) lookup(path string) node {
	n, known := r.names[path]
	if known {
		return n
	}
	r.calls++
	if info, err := os.Lstat(r.root + path); err == nil {
		n = node{mode: info.Mode(), ok: true}
		if n.mode&os.ModeSymlink != 0 {
			n.target, err = os.Readlink(r.root + path)
			n.ok = err == nil
		}
	}
	r.names[path] = n
	return n
}

// real returns an absolute path without its symlinks, if it exists and no link
// of the workspace is on the way.
func (r *resolver) real(path string) (string, bool) { return r.resolve(path, r.workspace) }

// follow is real through any link.
func (r *resolver) follow(path string) (string, bool) { return r.resolve(path, "") }

func (r *resolver) resolve(path, distrust string) (string, bool) {
	const maxLinks = 40    // as the kernel
	done, rest := "", path // done is real; "" is the root
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			done = done[:max(0, strings.LastIndexByte(done, '/'))]
			continue
		}
		next := done + "/" + name
		n := r.lookup(next)
		if !n.ok {
			return "", false
		}
		if n.mode&os.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > maxLinks || distrust != "" && fsat.Within(next, distrust) {
			return "", false
		}
		if strings.HasPrefix(n.target, "/") {
			done = ""
		}
		rest = n.target + "/" + rest
	}
	return cmp.Or(done, "/"), true
}

func (r *resolver) exists(path string) bool {
	_, ok := r.real(path)
	return ok
}

func (r *resolver) isDir(real string) bool { return r.lookup(real).mode.IsDir() }

// readlink returns the target of a path, if it is a symlink in a real
// directory.
func (r *resolver) readlink(path string) (string, bool) {
	n := r.lookup(path)
	return n.target, n.ok && n.mode&os.ModeSymlink != 0
}
