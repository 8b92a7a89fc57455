package view

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"hutch/internal/fsat"
)

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	return string(out)
}

func TestAsked(t *testing.T) {
	const lines = `/data/set/x
		/data/link -> set
		/home/ann/dotfiles/aws/credentials
		/home/ann/.kube2 -> .kube
		/home/ann/notes.txt
		/home/ann/.config/app/conf
		/home/bob/x
		/run/secrets/key
		/home/ann/src/app/inner/x
		/home/ann/src/app/out -> /home/ann/.ssh`
	for _, tt := range []struct {
		name        string
		read, write []string
		hide        []string
		shows       []Show // that must be among them
		not         []string
		masks       []string // that must be among them
		note, err   string
	}{
		{name: "a directory", read: []string{"/data/set"}, shows: []Show{{"/data/set", ReadOnly}}},
		{name: "one of the home", read: []string{"~/dotfiles"}, shows: []Show{{"/home/ann/dotfiles", ReadOnly}}},
		{name: "a file", read: []string{"~/notes.txt"}, shows: []Show{{"/home/ann/notes.txt", ReadOnly}}},
		{name: "copy-on-write", write: []string{"/data/set", "~/notes.txt"}, shows: []Show{{"/data/set", CopyOnWrite}, {"/home/ann/notes.txt", CopyOnWrite}}},
		{name: "through a link", read: []string{"/data/link"}, shows: []Show{{"/data/set", ReadOnly}}},
		{name: "a secret by its name", read: []string{"~/.aws"}, shows: []Show{{"/home/ann/.aws", ReadOnly}}, note: "although it is a secret"},
		{name: "a file in a secret", read: []string{"~/.ssh/id_ed25519"}, shows: []Show{{"/home/ann/.ssh/id_ed25519", ReadOnly}}, note: "although it is a secret"},
		{name: "a secret of the system", read: []string{"/etc/shadow"}, note: "although it is a secret"},
		{name: "around secrets", read: []string{"~/.config"}, shows: []Show{{"/home/ann/.config", ReadOnly}}, masks: []string{"/home/ann/.config/gh", "/home/ann/.config/gcloud"}, note: "/home/ann/.config/gh"},
		{name: "a link to a secret", read: []string{"~/.kube2"}, err: "leads to /home/ann/.kube, which is secret"},
		{name: "the home", read: []string{"~"}, err: "is a home"},
		{name: "around the home", read: []string{"/home"}, err: "is a home"},
		{name: "the root", read: []string{"/"}, err: "is a home, or around one"},
		{name: "another's home", read: []string{"/home/bob"}, err: "is a home"},
		{name: "hutch's state", read: []string{"~/.local/state/hutch"}, err: "hutch's own state"},
		{name: "in hutch's state", write: []string{"~/.local/state/hutch/boxes"}, err: "hutch's own state"},
		{name: "around hutch's state, to write", write: []string{"~/.local"}, err: "hutch's own state"},
		{name: "around hutch's state", read: []string{"~/.local"}, shows: []Show{{"/home/ann/.local", ReadOnly}}, masks: []string{"/home/ann/.local/state/hutch"}, note: "/home/ann/.local/state/hutch"},
		{name: "a socket", read: []string{"/run/docker.sock"}, err: "is a socket"},
		{name: "services' directories", read: []string{"/run/user"}, err: "the sockets of services"},
		{name: "a file of a service", read: []string{"/run/secrets/key"}, shows: []Show{{"/run/secrets/key", ReadOnly}}},
		{name: "nothing", read: []string{"/nowhere"}, note: "does not exist"},
		{name: "in the workspace", read: []string{"/home/ann/src/app/inner"}, note: "lies in the workspace"},
		{name: "through a link of the workspace", read: []string{"/home/ann/src/app/out"}, note: "lies in the workspace", not: []string{"/home/ann/.ssh"}},
		{name: "relative", read: []string{"x"}, err: "not an absolute path"},
		{name: "a file to write elsewhere", write: []string{"/data/set/x"}, err: "name its directory"},
		{name: "hidden and shown", read: []string{"/data/set"}, hide: []string{"/data"}, note: "hidden too", not: []string{"/data/set"}},
		{name: "hidden of the system", hide: []string{"/opt/tool"}, masks: []string{"/opt/tool"}},
		{name: "hiding the workspace", hide: []string{"~/src"}, err: "the workspace lies there"},
		{name: "beside the workspace", read: []string{"~/src"}, shows: []Show{{"/home/ann/src", ReadOnly}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := testHost(t, systemPath, lines)
			_ = os.Remove(h.root + "/run/docker.sock")
			if err := unix.Mknod(h.root+"/run/docker.sock", unix.S_IFSOCK|0o666, 0); err != nil {
				t.Fatal(err)
			}
			h.Read, h.Write, h.Hide = tt.read, tt.write, tt.hide
			v, err := Look(h)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.shows {
				if !slices.Contains(v.Shows, want) {
					t.Errorf("not shown: %v in %v", want, v.Shows)
				}
			}
			for _, not := range tt.not {
				if slices.ContainsFunc(v.Shows, func(x Show) bool { return fsat.Within(x.Path, not) || fsat.Within(not, x.Path) }) {
					t.Errorf("shown: %s", not)
				}
			}
			for _, want := range tt.masks {
				if !slices.Contains(v.Masks, want) {
					t.Errorf("no mask of %s: %v", want, v.Masks)
				}
			}
			if slices.Contains(v.Masks, "/etc/shadow") == slices.Contains(tt.read, "/etc/shadow") {
				t.Errorf("masks: %v", v.Masks)
			}
			if notes := strings.Join(v.Notes, "\n"); !strings.Contains(notes, tt.note) || tt.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, tt.note)
			}
		})
	}
}

// TestPlantedToolchain: what a command left in the workspace widens the view to
// nothing but toolchains of the user's own home.
func TestPlantedToolchain(t *testing.T) {
	for _, tt := range []struct {
		target string
		shown  bool
	}{
		{"/home/ann/.pyenv/versions/3/bin/python", true},
		{"/home/ann/Documents/.pyenv/versions/3/bin/python", false},
		{"/srv/data/.pyenv/versions/3/bin/python", false},
		{"/root/.pyenv/versions/3/bin/python", false},
		{"/home/bob/.local/bin/python", false},
	} {
		for _, active := range []bool{false, true} {
			h := testHost(t, systemPath, tt.target+"\n/home/ann/src/app/.venv/pyvenv.cfg\n/home/ann/src/app/.venv/bin/python -> "+tt.target)
			if active {
				h.Path = append([]string{"/home/ann/src/app/.venv/bin"}, h.Path...)
			}
			v, err := Look(h)
			if err != nil {
				t.Fatal(err)
			}
			if shown := slices.ContainsFunc(v.Shows, func(x Show) bool { return fsat.Within(tt.target, x.Path) }); shown != tt.shown {
				t.Errorf("%s (active %v): shown %v", tt.target, active, shown)
			}
		}
	}
}

func TestToolchainsCopyOnWrite(t *testing.T) {
	h := testHost(t, "/home/ann/.pyenv/shims:/home/ann/miniconda3/bin:/data/node/bin:"+systemPath,
		"/home/ann/.pyenv/shims/\n/home/ann/miniconda3/bin/\n/home/ann/miniconda3/conda-meta/\n/home/ann/miniconda3/.condarc\n/data/node/bin/\n/data/node/lib/node_modules/")
	h.Toolchains = true
	v, err := Look(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/home/ann/.pyenv", "/home/ann/miniconda3", "/data/node", "/usr/local"} {
		if !slices.Contains(v.Shows, Show{path, CopyOnWrite}) {
			t.Errorf("%s: %v", path, v.Shows)
		}
	}
	if !slices.Contains(v.Masks, "/home/ann/miniconda3/.condarc") {
		t.Errorf("masks %v", v.Masks)
	}
}

func wholeHost(t *testing.T, lines string) Host {
	h := testHost(t, systemPath, lines)
	put(t, h, "/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:4000:4000::/home/ann:/bin/sh\nbob:x:4001:4001::/data/bob:/bin/sh\nwww:x:33:33::/var/www:/bin/false\n")
	h.WholeRoot = true
	h.User = User{UID: 4000, GID: 4000}
	if os.Geteuid() != 0 {
		h.User = User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	}
	return h
}

func TestWholeRoot(t *testing.T) {
	h := wholeHost(t, "/data/bob/diary\n/data/set/x\n/data/mnt/disk/y\n/home/ann/dot/config/gh/hosts.yml\n/home/ann/.terraform.d -> dot/config/gh\n/var/lib/postgresql/x\n/var/lib/app/x\n/var/tmp/junk\n/var/cache/x\n/home/ann/work.pem\n/vmlinuz -> boot/vmlinuz\n/boot/vmlinuz\n/initrd")
	h.mounts = []string{"/", "/proc", "/data/mnt/disk", "/home"}
	v, err := Look(h)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]Part{}
	for _, p := range v.Parts {
		parts[p.Path] = p
		if !slices.Contains(v.Shows, Show{p.Path, CopyOnWrite}) {
			t.Errorf("%s is not among the shows", p.Path)
		}
	}
	for _, want := range []string{"/usr", "/opt", "/etc", "/var", "/srv", "/boot", "/home/ann", "/data/set", "/data/mnt/disk"} {
		if _, ok := parts[want]; !ok {
			t.Errorf("no part %s: %v", want, v.Shows)
		}
	}
	for _, not := range []string{"/home", "/root", "/run", "/proc", "/tmp", "/data", "/data/mnt", "/data/bob"} {
		if _, ok := parts[not]; ok {
			t.Errorf("part %s", not)
		}
	}
	if !parts["/etc"].Copy || parts["/usr"].Copy {
		t.Error("what is copied")
	}
	absent := map[string][]string{
		"/home/ann": {".ssh", ".aws", ".config/gh", ".gnupg", ".kube", ".local/state/hutch", ".bash_history", ".npmrc", "work.pem", ".env", ".claude", "dot/config/gh", ".terraform.d"},
		"/var":      {"lib/postgresql", "lib/hutch", "lib/docker"},
		"/etc":      {"shadow", "ssh/ssh_host_ed25519_key", "sudoers", "kubernetes"},
	}
	for part, names := range absent {
		for _, name := range names {
			if !slices.ContainsFunc(parts[part].Absent, func(a string) bool { return fsat.Within(name, a) }) {
				t.Errorf("%s: %s is there: %v", part, name, parts[part].Absent)
			}
		}
	}
	for _, name := range []string{"lib/app", "cache", "lib"} {
		if slices.Contains(parts["/var"].Absent, name) {
			t.Errorf("/var/%s is absent", name)
		}
	}
	if !slices.Equal(parts["/var"].Fresh, []string{"tmp"}) {
		t.Errorf("fresh: %v", parts["/var"].Fresh)
	}
	if !slices.Contains(v.Links, Symlink{"/vmlinuz", "boot/vmlinuz"}) {
		t.Errorf("links %v", v.Links)
	}
	said := strings.Join(v.Unwritable, "\n")
	for _, want := range []string{"/: ", "/data: ", "/data/mnt: ", "/proc", "other users"} {
		if !strings.Contains(said, want) {
			t.Errorf("unwritable does not say %q:\n%s", want, said)
		}
	}
	// Each directory above a whiteout is in the layer, before it.
	for _, p := range v.Parts {
		for _, a := range p.Absent {
			for i := range a {
				if a[i] == '/' && !slices.ContainsFunc(p.Dirs, func(d Dir) bool { return d.Rel == a[:i] }) {
					t.Errorf("%s: no directory %s above the whiteout %s", p.Path, a[:i], a)
				}
			}
		}
		if !slices.IsSortedFunc(p.Dirs, func(a, b Dir) int { return comparePaths(a.Rel, b.Rel) }) {
			t.Errorf("%s: not sorted: %v", p.Path, p.Dirs)
		}
	}

	// A configuration behind a link of the host's home: written where it leads.
	linked := wholeHost(t, "/home/ann/dot/config/git/")
	if err := os.RemoveAll(linked.root + "/home/ann/.config"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("dot/config", linked.root+"/home/ann/.config"); err != nil {
		t.Fatal(err)
	}
	put(t, linked, "/home/ann/dot/config/git/config", "[user]\nname = Ann\n[credential]\nhelper = x\n")
	if v, err := Look(linked); err != nil || len(v.Files) != 1 || v.Files[0].Path != "/home/ann/dot/config/git/config" {
		t.Errorf("files %v, %v", v.Files, err)
	}

	h.Nested = true
	h.Refused = []string{"/srv"}
	h.mounts = []string{"/", "/data/mnt/disk"}
	if v, err = Look(h); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/data": true, "/data/mnt/disk": true, "/srv": false} {
		if has := slices.ContainsFunc(v.Parts, func(p Part) bool { return p.Path == path }); has != want {
			t.Errorf("part %s: %v", path, has)
		}
	}
	for _, p := range v.Parts {
		if p.Path == "/data" && !slices.Contains(p.Absent, "bob") {
			t.Errorf("bob's home is there: %v", p.Absent)
		}
	}
	if lines, err := Unwritable(h); err != nil || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "/srv: ") }) {
		t.Errorf("%q %v", lines, err)
	}
}

func TestHidden(t *testing.T) {
	h := testHost(t, systemPath, `/home/ann/src/app/.env
		/home/ann/src/app/conf/.env
		/home/ann/src/app/conf/a.key
		/home/ann/src/app/conf/deep/b.key
		/home/ann/src/app/conf/deep/c.txt
		/home/ann/src/app/secrets/x
		/home/ann/src/app/link -> secrets
		/home/ann/src/app/.git/.env
		/home/ann/src/app/.hutch/.env
		/home/ann/src/app/shut/x`)
	ws, err := unix.Open(h.root+h.Workspace, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ws)
	for _, tt := range []struct {
		hide, want []string
	}{
		{nil, nil},
		{[]string{".env"}, []string{".env", "conf/.env"}},
		{[]string{"./.env"}, []string{".env"}},
		{[]string{"conf/*.key"}, []string{"conf/a.key"}},
		{[]string{"conf/**/*.key"}, []string{"conf/a.key", "conf/deep/b.key"}},
		{[]string{"*.key", "!a.key"}, []string{"conf/deep/b.key"}},
		{[]string{"secrets/"}, []string{"secrets"}},
		{[]string{"conf", ".env"}, []string{".env", "conf"}},
		{[]string{"~/src/app/secrets", "/home/ann/src/app/conf/deep", "~/src/app/none", "~/.ssh"}, []string{"conf/deep", "secrets"}},
		{[]string{"link"}, []string{"link"}},
		{[]string{"~/src/app/link/x"}, []string{"secrets/x"}},
		{[]string{"~/src/app/link"}, []string{"link", "secrets"}},
		{[]string{"link/x"}, []string{"secrets/x"}},
		{[]string{".git/.env"}, []string{".git/.env"}},
	} {
		h.Hide = tt.hide
		got, err := Hidden(ws, h)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q, -want +got:\n%s", tt.hide, diff)
		}
	}
	h.Hide = []string{"a["}
	if _, err := Hidden(ws, h); err == nil || !strings.Contains(err.Error(), `"a["`) {
		t.Errorf("a bad pattern: %v", err)
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(h.root+"/home/ann/src/app/shut", 0); err != nil {
			t.Fatal(err)
		}
		h.Hide = []string{"nothing"}
		if got, err := Hidden(ws, h); err != nil || !slices.Equal(got, []string{"shut"}) {
			t.Errorf("what cannot be looked into is seen: %q %v", got, err)
		}
		os.Chmod(h.root+"/home/ann/src/app/shut", 0o755)
	}
	dirs, err := LayerDirs(ws, []string{"conf/deep/b.key", "conf/a.key", ".env"})
	if err != nil || len(dirs) != 2 || dirs[0].Rel != "conf" || dirs[1].Rel != "conf/deep" || dirs[0].Mode != 0o755 {
		t.Errorf("%v %v", dirs, err)
	}
}
