package view

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"hutch/internal/fsat"
)

// fakeHost makes a host's file system: a line is a directory when it ends in a
// slash, a symlink when it has an arrow, else a file.
func fakeHost(t *testing.T, lines ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, text := range lines {
		for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\t' }) {
			path, target, isLink := strings.Cut(line, " -> ")
			full := filepath.Join(root, path)
			var err error
			switch {
			case isLink:
				err = os.Symlink(target, mkdirFor(t, full))
			case strings.HasSuffix(path, "/"):
				err = os.MkdirAll(full, 0o755)
			default:
				err = os.WriteFile(mkdirFor(t, full), nil, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func mkdirFor(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

const debian = `/usr/bin/
	/usr/local/bin/
	/usr/lib/
	/bin -> usr/bin
	/sbin -> usr/sbin
	/usr/sbin/
	/lib -> usr/lib
	/opt/tool/bin/
	/etc/shadow
	/etc/shadow-
	/etc/gshadow
	/etc/passwd
	/etc/sudoers
	/etc/sudoers.d/x
	/etc/ssh/ssh_host_ed25519_key
	/etc/ssl/private/x.key
	/etc/ssl/certs/
	/etc/NetworkManager/system-connections/wifi
	/etc/kubernetes/admin.conf
	/etc/wireguard/wg0.conf
	/var/lib/hutch/
	/var/lib/docker/
	/var/run -> /run
	/run/docker.sock
	/run/user/1000/bus
	/root/.ssh/id_ed25519
	/srv/data/
	/mnt/nfs/`

// secrets is a home full of what must stay out.
const secretsOfAnn = `/home/ann/.ssh/id_ed25519
	/home/ann/.aws/credentials
	/home/ann/.gnupg/private-keys-v1.d/x
	/home/ann/.netrc
	/home/ann/.npmrc
	/home/ann/.pypirc
	/home/ann/.git-credentials
	/home/ann/.config/gh/hosts.yml
	/home/ann/.config/gcloud/credentials.db
	/home/ann/.kube/config
	/home/ann/.docker/config.json
	/home/ann/.mozilla/firefox/x/logins.json
	/home/ann/.config/google-chrome/Default/Cookies
	/home/ann/.bash_history
	/home/ann/.claude/.credentials.json
	/home/ann/.local/share/keyrings/login.keyring
	/home/ann/.local/state/hutch/boxes/
	/home/ann/.env
	/home/ann/Documents/tax.pdf
	/home/ann/src/app/
	/home/ann/src/other/`

func testHost(t *testing.T, path string, lines ...string) Host {
	return Host{
		Home: "/home/ann", Workspace: "/home/ann/src/app", StateDir: "/home/ann/.local/state/hutch",
		Path: filepath.SplitList(path), root: fakeHost(t, append([]string{debian, secretsOfAnn}, lines...)...),
	}
}

const systemPath = "/usr/local/bin:/usr/bin:/bin"

var (
	systemShows = []Show{{"/etc", ReadOnly}, {"/opt", ReadOnly}, {"/usr", ReadOnly}}
	systemLinks = []Symlink{{"/bin", "usr/bin"}, {"/lib", "usr/lib"}, {"/sbin", "usr/sbin"}}
	systemMasks = []string{
		"/etc/NetworkManager/system-connections", "/etc/gshadow", "/etc/kubernetes", "/etc/shadow", "/etc/shadow-",
		"/etc/ssh/ssh_host_ed25519_key", "/etc/ssl/private", "/etc/sudoers", "/etc/sudoers.d", "/etc/wireguard",
	}
)

func TestView(t *testing.T) {
	tests := []struct {
		name  string
		path  string // before the system's
		lines string
		env   []string
		edit  func(*Host)
		shows []Show // beside the system's
		links []Symlink
		masks []string
	}{
		{name: "nothing but the system"},
		{name: "tools of the system", path: "/opt/tool/bin"},
		{name: "relative and missing entries", path: ":.:bin:../x:/nowhere/bin:/home/ann/missing/bin"},
		{
			name: "pyenv", path: "/home/ann/.pyenv/shims:/home/ann/.pyenv/bin",
			lines: "/home/ann/.pyenv/shims/\n/home/ann/.pyenv/bin/\n/home/ann/.pyenv/versions/",
			shows: []Show{{"/home/ann/.pyenv", ReadOnly}},
		},
		{
			name: "cargo without its credentials", path: "/home/ann/.cargo/bin",
			lines: "/home/ann/.cargo/bin/\n/home/ann/.cargo/credentials.toml\n/home/ann/.cargo/config.toml\n/home/ann/.cargo/registry/\n/home/ann/.rustup/toolchains/",
			shows: []Show{
				{"/home/ann/.cargo/bin", ReadOnly}, {"/home/ann/.cargo/registry", CopyOnWrite}, {"/home/ann/.rustup", ReadOnly},
			},
		},
		{
			name: "nvm", path: "/home/ann/.nvm/versions/node/v20/bin",
			lines: "/home/ann/.nvm/versions/node/v20/bin/\n/home/ann/.nvm/versions/node/v20/lib/node_modules/",
			shows: []Show{{"/home/ann/.nvm", ReadOnly}},
		},
		{
			name: "a secret in a toolchain's prefix", path: "/home/ann/.npm-global/bin:/home/ann/miniconda3/bin",
			lines: "/home/ann/.npm-global/bin/\n/home/ann/.npm-global/lib/node_modules/\n/home/ann/.npm-global/etc/npmrc\n/home/ann/miniconda3/bin/\n/home/ann/miniconda3/conda-meta/\n/home/ann/miniconda3/.condarc",
			shows: []Show{{"/home/ann/.npm-global", ReadOnly}, {"/home/ann/miniconda3", ReadOnly}},
			masks: []string{"/home/ann/.npm-global/etc/npmrc", "/home/ann/miniconda3/.condarc"},
		},
		{
			name: "local bin and what it points into", path: "/home/ann/.local/bin",
			lines: "/home/ann/.local/bin/\n/home/ann/.local/lib/\n/home/ann/.local/share/uv/tools/\n/home/ann/.local/share/uv/credentials/credentials.toml\n/home/ann/.local/share/pipx/",
			shows: []Show{{"/home/ann/.local/bin", ReadOnly}, {"/home/ann/.local/lib", ReadOnly}, {"/home/ann/.local/share/pipx", ReadOnly}, {"/home/ann/.local/share/uv/tools", ReadOnly}},
		},
		{
			name: "an unknown directory alone", path: "/home/ann/bin:/data/tools/bin:/srv/data/bin",
			lines: "/home/ann/bin/\n/data/tools/bin/\n/data/tools/secret/\n/srv/data/bin/",
			shows: []Show{{"/home/ann/bin", ReadOnly}, {"/srv/data/bin", ReadOnly}, {"/data/tools/bin", ReadOnly}},
		},
		{
			name: "homes, data and what contains them", path: "/home/ann:/home:/:/root:/var:/srv:/mnt:/home/bob:/var/lib",
			lines: "/home/bob/",
		},
		{
			name: "secret places", path: "/home/ann/.ssh:/home/ann/.aws/bin:/home/ann/.config:/home/ann/.local/share:/home/ann/.local/state/hutch/boxes:/home/ann/.local/state:/root/.ssh:/home/ann/.docker/bin",
			lines: "/home/ann/.aws/bin/\n/home/ann/.docker/bin/",
		},
		{
			name: "sockets and kernel files", path: "/run:/run/user/1000:/proc/self:/dev:/sys:/var/run/x",
			lines: "/proc/self/\n/dev/\n/sys/\n/run/x/",
		},
		{
			name: "around the workspace", path: "/home/ann/src:/home/ann/src/app/node_modules/.bin:/home/ann/src/app:/home/ann/src/other/bin",
			lines: "/home/ann/src/app/node_modules/.bin/\n/home/ann/src/other/bin/",
			shows: []Show{{"/home/ann/src/other/bin", ReadOnly}},
		},
		{
			name: "a marker beside bin does not show a home", path: "/home/ann/bin",
			lines: "/home/ann/bin/\n/home/ann/release\n/home/ann/lib/node_modules/",
			shows: []Show{{"/home/ann/bin", ReadOnly}},
		},
		{
			name: "a link out of PATH into a secret", path: "/home/ann/bin:/home/ann/tools",
			lines: "/home/ann/bin -> .ssh\n/home/ann/tools -> /home/ann",
		},
		{
			name: "a linked directory", path: "/home/ann/bin:/run/user/1000/fnm/bin",
			lines: "/home/ann/bin -> dotfiles/bin\n/home/ann/dotfiles/bin/\n/home/ann/dotfiles/private/\n/run/user/1000/fnm -> /home/ann/.local/share/fnm/v20\n/home/ann/.local/share/fnm/v20/bin/",
			shows: []Show{{"/home/ann/.local/share/fnm", ReadOnly}, {"/home/ann/dotfiles/bin", ReadOnly}},
			links: []Symlink{{"/home/ann/bin", "/home/ann/dotfiles/bin"}, {"/run/user/1000/fnm/bin", "/home/ann/.local/share/fnm/v20/bin"}},
		},
		{
			name: "a link loop", path: "/home/ann/a:/home/ann/b/bin", lines: "/home/ann/a -> b\n/home/ann/b -> a",
		},
		{
			name: "a venv's interpreter", path: "/home/ann/src/app/.venv/bin",
			lines: "/home/ann/src/app/.venv/pyvenv.cfg\n/home/ann/src/app/.venv/bin/python -> /home/ann/.pyenv/versions/3.12/bin/python3.12\n/home/ann/.pyenv/versions/3.12/bin/python3.12",
			shows: []Show{{"/home/ann/.pyenv", ReadOnly}},
		},
		{
			name: "a venv that is not activated", lines: "/home/ann/src/app/.venv/bin/python -> /home/ann/.local/share/uv/python/cpython-3.12/bin/python3.12\n/home/ann/.local/share/uv/python/cpython-3.12/bin/python3.12",
			shows: []Show{{"/home/ann/.local/share/uv/python", ReadOnly}},
		},
		{
			name: "a workspace full of traps", path: "/home/ann/src/app/bin:/home/ann/src/app/node_modules/.bin:/home/ann/src/app/tools/bin:/home/ann/bin",
			lines: `/home/ann/src/app/.venv/bin/python -> /home/ann/.ssh/id_ed25519
				/home/ann/src/app/venv/bin/python -> /home/ann/Documents/tax.pdf
				/home/ann/src/app/bin -> /home/ann/Documents
				/home/ann/src/app/node_modules/.bin -> ../../../../Documents
				/home/ann/src/app/tools -> /home/ann/src/other
				/home/ann/src/other/bin/
				/home/ann/bin -> src/app/bin
				/home/ann/src/app/cache -> /home/ann/Documents
				/home/ann/src/app/jdk -> /home/ann/Documents`,
			env: []string{"GOCACHE=/home/ann/src/app/cache", "JAVA_HOME=/home/ann/src/app/jdk"},
		},
		{
			name: "caches", lines: "/home/ann/.cache/go-build/\n/home/ann/go/pkg/mod/\n/home/ann/.cache/pip/\n/home/ann/.npm/_cacache/\n/home/ann/.npm/_logs/\n/home/ann/.m2/repository/\n/home/ann/.m2/settings.xml\n/home/ann/.cache/huggingface/token",
			shows: []Show{{"/home/ann/.cache/go-build", CopyOnWrite}, {"/home/ann/.cache/pip", CopyOnWrite}, {"/home/ann/.m2/repository", CopyOnWrite}, {"/home/ann/.npm/_cacache", CopyOnWrite}, {"/home/ann/go/pkg/mod", CopyOnWrite}},
		},
		{
			name: "caches elsewhere", lines: "/data/go/pkg/mod/\n/data/cache/\n/fast/xdg/pip/\n/home/ann/.cache/pip/",
			env:   []string{"GOPATH=/data/go:/other", "GOCACHE=/data/cache", "XDG_CACHE_HOME=/fast/xdg", "PIP_CACHE_DIR=off"},
			shows: []Show{{"/data/cache", CopyOnWrite}, {"/data/go/pkg/mod", CopyOnWrite}},
		},
		{
			name: "caches that are no caches", lines: "/home/ann/.cache/go-build/",
			env: []string{"GOCACHE=/home/ann", "GOMODCACHE=/home/ann/.ssh", "PIP_CACHE_DIR=/", "UV_CACHE_DIR=/home/ann/src", "DENO_DIR=/home", "CCACHE_DIR=/home/ann/.bash_history", "SCCACHE_DIR=/run"},
		},
		{
			name: "a linked cache", lines: "/home/ann/.cache -> /data/cache\n/data/cache/pip/",
			shows: []Show{{"/data/cache/pip", CopyOnWrite}},
			links: []Symlink{{"/home/ann/.cache/pip", "/data/cache/pip"}},
		},
		{
			name: "a toolchain in a module cache", path: "/home/ann/go/pkg/mod/toolchain/bin:/home/ann/go/bin",
			lines: "/home/ann/go/pkg/mod/toolchain/bin/\n/home/ann/go/bin/",
			shows: []Show{{"/home/ann/go/bin", ReadOnly}, {"/home/ann/go/pkg/mod", CopyOnWrite}},
		},
		{
			name: "a cache in a toolchain", path: "/home/ann/.bun/bin", lines: "/home/ann/.bun/bin/\n/home/ann/.bun/install/cache/",
			shows: []Show{{"/home/ann/.bun", ReadOnly}, {"/home/ann/.bun/install/cache", CopyOnWrite}},
		},
		{
			name: "another user's tools", path: "/root/.pyenv/shims:/root/.cargo/bin:/root/tools/bin",
			lines: "/root/.pyenv/shims/\n/root/.cargo/bin/\n/root/.cargo/credentials\n/root/.rustup/\n/root/tools/bin/",
			shows: []Show{{"/root/.cargo/bin", ReadOnly}, {"/root/.pyenv", ReadOnly}, {"/root/.rustup", ReadOnly}, {"/root/tools/bin", ReadOnly}},
		},
		{
			name: "a toolchain that a variable moved", path: "/home/ann/.cargo/bin", env: []string{"RUSTUP_HOME=/data/rustup", "JAVA_HOME=/home/ann", "GOROOT=relative"},
			lines: "/home/ann/.cargo/bin/\n/data/rustup/",
			shows: []Show{{"/data/rustup", ReadOnly}, {"/home/ann/.cargo/bin", ReadOnly}},
		},
		{
			name: "a toolchain as the workspace", path: "/home/ann/.pyenv/bin", edit: func(h *Host) { h.Workspace = "/home/ann/.pyenv/plugins/x" },
			lines: "/home/ann/.pyenv/bin/\n/home/ann/.pyenv/plugins/x/",
			shows: []Show{{"/home/ann/.pyenv", ReadOnly}},
		},
		{
			name: "hutch's state in the system", edit: func(h *Host) { h.StateDir = "/opt/hutch/state" }, lines: "/opt/hutch/state/",
			masks: []string{"/opt/hutch/state"},
		},
		{
			name: "a home behind a link", path: "/home/ann/.pyenv/bin", edit: func(h *Host) { h.Home = "/u/ann" }, lines: "/u -> /home\n/home/ann/.pyenv/bin/\n/home/ann/.cache/pip/",
			shows: []Show{{"/home/ann/.cache/pip", CopyOnWrite}, {"/home/ann/.pyenv", ReadOnly}},
			links: []Symlink{{"/u/ann/.cache/pip", "/home/ann/.cache/pip"}},
		},
		{
			name: "nix", path: "/run/current-system/sw/bin:/nix/var/nix/profiles/default/bin",
			lines: "/nix/store/abc-sys/sw/bin/\n/nix/store/def-prof/bin/\n/nix/var/nix/daemon-socket/socket\n/run/current-system -> /nix/store/abc-sys\n/nix/var/nix/profiles/default -> /nix/store/def-prof",
			shows: []Show{{"/nix/store", ReadOnly}},
			links: []Symlink{{"/nix/var/nix/profiles/default/bin", "/nix/store/def-prof/bin"}, {"/run/current-system/sw/bin", "/nix/store/abc-sys/sw/bin"}},
		},
		{
			name: "linuxbrew", path: "/home/linuxbrew/.linuxbrew/bin", lines: "/home/linuxbrew/.linuxbrew/bin/\n/home/linuxbrew/.linuxbrew/Cellar/",
			shows: []Show{{"/home/linuxbrew/.linuxbrew", ReadOnly}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := testHost(t, tt.path+":"+systemPath, tt.lines)
			h.Env = tt.env
			if tt.edit != nil {
				tt.edit(&h)
			}
			v, err := Look(h)
			if err != nil {
				t.Fatal(err)
			}
			shows, links := v.Shows, v.Links
			wantShows := append(slices.Clone(systemShows), tt.shows...)
			slices.SortFunc(wantShows, func(a, b Show) int { return comparePaths(a.Path, b.Path) })
			if diff := cmp.Diff(wantShows, shows); diff != "" {
				t.Errorf("shows, -want +got:\n%s", diff)
			}
			wantLinks := append(slices.Clone(systemLinks), tt.links...)
			slices.SortFunc(wantLinks, func(a, b Symlink) int { return comparePaths(a.Path, b.Path) })
			if diff := cmp.Diff(wantLinks, links, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("links, -want +got:\n%s", diff)
			}
			wantMasks := append(slices.Clone(systemMasks), tt.masks...)
			slices.Sort(wantMasks)
			if diff := cmp.Diff(wantMasks, v.Masks); diff != "" {
				t.Errorf("masks, -want +got:\n%s", diff)
			}
			noSecret(t, h)
		})
	}
}

// noSecret walks what a box would see, and looks for what it must not.
func noSecret(t *testing.T, h Host) {
	t.Helper()
	v, err := Look(h)
	if err != nil {
		t.Fatal(err)
	}
	masks := v.Masks
	for _, x := range v.Shows {
		err := filepath.WalkDir(h.root+x.Path, func(path string, _ os.DirEntry, err error) error {
			path = strings.TrimPrefix(path, h.root)
			if slices.ContainsFunc(masks, func(m string) bool { return fsat.Within(path, m) }) {
				return err
			}
			for _, secret := range strings.Fields(secretsOfAnn + " /etc/shadow /root/.ssh /run/docker.sock /home/ann/.cargo/credentials.toml /root/.cargo/credentials /home/ann/.local/share/uv/credentials /home/ann/.m2/settings.xml /etc/kubernetes /opt/hutch/state /nix/var/nix/daemon-socket") {
				secret = strings.TrimSuffix(secret, "/")
				if secret != h.Workspace && !fsat.Within(h.Workspace, secret) && secret != "/home/ann/src/other" && fsat.Within(path, secret) {
					t.Errorf("%s is seen", path)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestViewIsCheap counts what it asks the kernel on a host that has
// everything.
func TestViewIsCheap(t *testing.T) {
	var lines []string
	for _, c := range caches {
		lines = append(lines, "/home/ann/"+c.dir+"/")
	}
	var path []string
	for _, tc := range toolchains {
		lines = append(lines, "/home/ann/"+tc.dir+"/")
		path = append(path, "/home/ann/"+tc.dir)
	}
	h := testHost(t, strings.Join(path, ":")+":"+systemPath, strings.Join(lines, "\n"))
	s := look(h)
	view := s.files.calls
	s.masks()
	t.Logf("%d lstats for the view, %d more for the masks", view, s.files.calls-view)
	if view > 150 || s.files.calls > 250 {
		t.Errorf("%d lstats for the view, %d with the masks", view, s.files.calls)
	}
}

// TestTables holds the tables to what the code assumes of them.
func TestTables(t *testing.T) {
	for _, c := range caches {
		if c.why == "" || filepath.IsAbs(c.dir) || (c.parent == "") != (c.below == "") {
			t.Errorf("cache %+v", c)
		}
	}
	for _, tc := range toolchains {
		if tc.why == "" || len(tc.shows) == 0 || filepath.IsAbs(tc.dir) {
			t.Errorf("toolchain %+v", tc)
		}
		for _, rel := range tc.shows {
			for name := range secretsOfHome {
				if fsat.Within(rel, name) {
					t.Errorf("toolchain %s shows %s, which is secret", tc.dir, rel)
				}
			}
		}
	}
	for _, c := range caches {
		for name := range secretsOfHome {
			if fsat.Within(c.dir, name) || fsat.Within(name, c.dir) {
				t.Errorf("cache %s and secret %s overlap", c.dir, name)
			}
		}
	}
	for name := range secretsOfHome {
		if filepath.IsAbs(name) || filepath.Clean(name) != name {
			t.Errorf("secret %s", name)
		}
	}
	for _, r := range slices.Concat(homeSecrets, systemSecrets, system, doors) {
		if r.why == "" || len(r.names) == 0 {
			t.Errorf("row %+v", r)
		}
	}
}
