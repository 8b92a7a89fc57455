package view

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// put writes a file of a fake host.
func put(t *testing.T, h Host, path, content string) {
	t.Helper()
	if err := os.WriteFile(mkdirFor(t, h.root+path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func filesOf(t *testing.T, h Host) map[string]string {
	t.Helper()
	h.User = User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	v, err := Look(h)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range v.Files {
		files[f.Path] = f.Content
	}
	return files
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct{ name, path, text, want string }{
		{"git", "/home/ann/.gitconfig", `
# comment
[user]
	name = Ann "the \"one\"" O'Neil   # of many
	email = ann@example.com
	signingkey = ABCDEF
[credential]
	helper = store
[credential "https://example.com"]
	username = ann
[url "https://x-access-token:ghp_0123456789abcdef0123@github.com/"]
	insteadOf = https://github.com/
[http]
	extraheader = Authorization: Basic abc
[core]
	autocrlf = input
	sshCommand = ssh -i ~/.ssh/work
	hooksPath = ~/hooks
	fsmonitor = /x
	editor = vim
[alias] st = status
[init]
	defaultBranch = "ma\
in"
[commit]
	gpgsign = true
	verbose
[color "diff"]
	meta = yellow
[pull] rebase = true
`, "[user]\n\tname = \"Ann the \\\"one\\\" O'Neil\"\n\temail = \"ann@example.com\"\n[core]\n\tautocrlf = \"input\"\n[init]\n\tdefaultbranch = \"main\"\n[commit]\n\tverbose = \"true\"\n[pull]\n\trebase = \"true\"\n"},
		{"git in XDG's place", "/home/ann/.config/git/config", "[user]\nname=A\n", "[user]\n\tname = \"A\"\n"},
		{"git's ignored files", "/home/ann/.config/git/ignore", ".DS_Store\nghp_0123456789abcdef0123\n*.swp\n", ".DS_Store\n*.swp\n"},
		{"a name with a token", "/home/ann/.gitconfig", "[user]\nname = ghp_0123456789abcdef0123\nemail = a@b\n", "[user]\n\temail = \"a@b\"\n"},
		{"npm", "/home/ann/.npmrc", `registry=HTTPS://registry.example.com/
@corp:registry=HTTPS://npm.corp.example.com/
//npm.corp.example.com/:_authToken=npm_0123456789abcdefghij
//npm.corp.example.com/:_password="aHVudGVyMg=="
_auth=YW5uOmh1bnRlcjI=
; comment
@other:registry = HTTPS://ann:hunter2@npm.example.com/
save-exact = true
//x/:registry=HTTPS://sneaky.example.com/
email=ann@example.com
proxy=http://ann:pw@proxy
https-proxy=http://proxy:3128
cafile=/home/ann/ca.pem
registry=${REG}
`, "registry=HTTPS://registry.example.com/\n@corp:registry=HTTPS://npm.corp.example.com/\nsave-exact=true\nhttps-proxy=http://proxy:3128\n"},
		{"yarn", "/home/ann/.yarnrc.yml", "nodeLinker: node-modules\nnpmAuthToken: \"x\"\nnpmScopes:\n  corp:\n    npmAuthToken: y\nnpmRegistryServer: \"https://r.example.com\"\nenableTelemetry: false\n", "nodeLinker: node-modules\nnpmRegistryServer: \"https://r.example.com\"\nenableTelemetry: false\n"},
		{"pip", "/home/ann/.config/pip/pip.conf", "[global]\nindex-url = HTTPS://u:p@a.example.com/simple\nextra-index-url =\n    https://b.example.com/simple\n    https://__token__:x@c.example.com/simple\ntimeout = 60\ncert = /home/ann/ca.pem\n[install]\nbreak-system-packages = true\n", "[global]\nextra-index-url =\n    https://b.example.com/simple\ntimeout =\n    60\n[install]\nbreak-system-packages =\n    true\n"},
		{"pip of old", "/home/ann/.pip/pip.conf", "[global]\nno-cache-dir = 1\nindex-url = HTTPS://a.example.com/simple\n", "[global]\nindex-url =\n    HTTPS://a.example.com/simple\n"},
		{"cargo", "/home/ann/.cargo/config.toml", `[build]
jobs = 4 # cores
rustc-wrapper = "sccache"
rustflags = [
  "-C", # codegen
  "target-cpu=native",
]
[registries.corp]
index = "sparse+https://cargo.example.com/index/"
token = "cio0123456789"
credential-provider = "cargo:token"
[registries.other]
index = "https://ann:hunter2@cargo.example.com/index"
[registry]
global-credential-providers = ["cargo:token"]
token = "x"
[target.x86_64-unknown-linux-gnu]
linker = "clang"
[target.aarch64-unknown-linux-gnu]
linker = "/home/ann/bin/ld"
[net]
git-fetch-with-cli = true
[env]
SECRET = "x"
[source.crates-io]
replace-with = "mirror"
`, "[build]\njobs = 4\nrustflags = [ \"-C\", \"target-cpu=native\", ]\n[registries.corp]\nindex = \"sparse+https://cargo.example.com/index/\"\n[target.x86_64-unknown-linux-gnu]\nlinker = \"clang\"\n[net]\ngit-fetch-with-cli = true\n[source.crates-io]\nreplace-with = \"mirror\"\n"},
		{"uv", "/home/ann/.config/uv/uv.toml", "link-mode = \"copy\"\n[[index]]\nname = \"a\"\nurl = \"https://a.example.com/simple\"\n[[index]]\nname = \"b\"\nurl = \"https://u:p@b.example.com/simple\"\n[pip]\nkeyring-provider = \"subprocess\"\n", "link-mode = \"copy\"\n[[index]]\nname = \"a\"\nurl = \"https://a.example.com/simple\"\n[[index]]\nname = \"b\"\n"},
		{"bun", "/home/ann/.bunfig.toml", "[install]\nregistry = { url = \"https://r\", token = \"x\" }\nexact = true\n[install.scopes]\ncorp = \"https://n.example.com\"\nother = { token = \"t\", url = \"u\" }\n", "[install]\nexact = true\n[install.scopes]\ncorp = \"https://n.example.com\"\n"},
		{"bun's scopes as tables", "/home/ann/.bunfig.toml", "[install.scopes.corp]\nurl = \"https://n.example.com\"\ntoken = \"t\"\npassword = \"p\"\nusername = \"ann\"\n[test]\ncoverage = true\nx_token = \"t\"\n", "[install.scopes.corp]\nurl = \"https://n.example.com\"\n[test]\ncoverage = true\n"},
		{"a table named like a key's", "/home/ann/.cargo/config.toml", "[registries.y.\"token\"]\nindex = \"t\"\n[unstable]\nx-token = \"t\"\ngc = true\n", "[unstable]\ngc = true\n"},
		{"addresses with a secret elsewhere", "/home/ann/.npmrc", "registry=HTTPS://r.example.com/?token=x\n@a:registry=//ann:pw@r.example.com/\nproxy=ann:pw@proxy:80\nhttps-proxy=\"http:\\u002f\\u002fann:pw@proxy\"\nhttp-proxy=http://ann:p/w@proxy\n@b:registry=HTTPS://dl.example.com/Zk3aQ81xT0b7Yp2c/org/npm/\n@c:registry=HTTP://[::1]:4873/\n@d:registry=HTTPS://r.example.com:8443/artifactory/api/npm/npm-v2-2024/\n", "@c:registry=HTTP://[::1]:4873/\n@d:registry=HTTPS://r.example.com:8443/artifactory/api/npm/npm-v2-2024/\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := testHost(t, systemPath)
			put(t, h, tt.path, tt.text)
			if diff := cmp.Diff(tt.want, filesOf(t, h)[tt.path]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestConfigIncludes(t *testing.T) {
	h := testHost(t, systemPath)
	put(t, h, "/home/ann/.gitconfig", "[include]\n\tpath = .gitconfig-more\n[includeIf \"gitdir:~/src/\"]\n\tpath = ~/work.inc\n[includeIf \"gitdir:~/other/\"]\n\tpath = ~/other.inc\n[include]\npath = src/app/planted\n")
	put(t, h, "/home/ann/.gitconfig-more", "[user]\nname = More\n[include]\npath = .gitconfig\n")
	put(t, h, "/home/ann/work.inc", "[user]\nemail = ann@work\n[credential]\nhelper = x\n")
	put(t, h, "/home/ann/other.inc", "[user]\nemail = wrong\n")
	if err := os.Symlink("/home/ann/.ssh/id_ed25519", h.root+"/home/ann/src/app/planted"); err != nil {
		t.Fatal(err)
	}
	got := filesOf(t, h)["/home/ann/.gitconfig"]
	if !strings.Contains(got, `name = "More"`) || !strings.Contains(got, `email = "ann@work"`) || strings.Contains(got, "wrong") || strings.Contains(got, "helper") {
		t.Errorf("%s", got)
	}
}

func TestConfigIsNotReadWhereItMustNot(t *testing.T) {
	h := testHost(t, systemPath)
	if err := unix.Mkfifo(h.root+"/home/ann/.gitconfig", 0o644); err != nil { // would hang
		t.Fatal(err)
	}
	_ = os.Remove(h.root + "/home/ann/.npmrc")
	put(t, h, "/home/ann/Documents/rc", "registry=HTTPS://planted.example.com/\n")
	for link, target := range map[string]string{"/home/ann/.npmrc": "src/app/rc", "/home/ann/src/app/rc": "../../Documents/rc"} {
		if err := os.Symlink(target, h.root+link); err != nil { // the workspace chooses where that leads
			t.Fatal(err)
		}
	}
	put(t, h, "/home/ann/.yarnrc.yml", "nodeLinker: pnp\n"+strings.Repeat("#\n", configMax))
	put(t, h, "/home/ann/.bunfig.toml", "[install]\nexact = true\n")
	h.Read = []string{"~/.bunfig.toml"} // as it is
	for path := range filesOf(t, h) {
		t.Errorf("%s was made", path)
	}
	other := h
	other.Read = nil
	other.User = User{UID: 4242, GID: 4242}
	if err := os.Chmod(h.root+"/home/ann/.bunfig.toml", 0o640); err != nil {
		t.Fatal(err)
	}
	v, err := Look(other)
	if err != nil || len(v.Files) != 0 {
		t.Errorf("a user is given what he may not read: %v %v", v.Files, err)
	}
}

func TestSystemConfigWithAToken(t *testing.T) {
	h := testHost(t, systemPath)
	put(t, h, "/etc/gitconfig", "[url \"https://oauth2:glpat-0123456789abcdef@gitlab.com\"]\ninsteadOf = https://gitlab.com\n[user]\nname = System\n")
	put(t, h, "/etc/pip.conf", "[global]\nindex-url = HTTPS://pypi.example.com/simple\n")
	put(t, h, "/etc/environment", "PATH=/usr/bin\nDEPLOY_TOKEN=abcdefgh\n")
	put(t, h, "/home/ann/.gitconfig", "[user]\nemail = ann@example.com\n")
	h.User = User{UID: uint32(os.Geteuid())}
	v, err := Look(h)
	if err != nil {
		t.Fatal(err)
	}
	masks := strings.Join(v.Masks, " ")
	if !strings.Contains(masks, "/etc/gitconfig") || !strings.Contains(masks, "/etc/environment") || strings.Contains(masks, "/etc/pip.conf") {
		t.Errorf("masks: %s", masks)
	}
	if got := filesOf(t, h)["/home/ann/.gitconfig"]; got != "[user]\n\tname = \"System\"\n[user]\n\temail = \"ann@example.com\"\n" {
		t.Errorf("%s", got)
	}
}

// onAllowlist reads what was written by rules of its own.
var onAllowlist = map[string]struct {
	line *regexp.Regexp
	keys []string
}{
	"git":   {regexp.MustCompile(`^\t([a-z0-9-]+) = ".*"$`), gitKeys},
	"npm":   {regexp.MustCompile(`^([^=]+)=.+$`), npmKeys},
	"yarn":  {regexp.MustCompile(`^([A-Za-z]+): .+$`), yarnKeys},
	"pip":   {regexp.MustCompile(`^([a-z-]+) =$`), pipKeys},
	"cargo": {regexp.MustCompile(`^(["'A-Za-z0-9_@-]+) = .+$`), cargoKeys},
	"uv":    {regexp.MustCompile(`^(["'A-Za-z0-9_@-]+) = .+$`), uvKeys},
	"bun":   {regexp.MustCompile(`^(["'A-Za-z0-9_@-]+) = .+$`), bunKeys},
}

// FuzzConfig: whatever a file holds, no line of what comes of it holds a
// secret, and each is a section, or a setting on the list.
func FuzzConfig(f *testing.F) {
	for _, seed := range []string{
		"[user]\nname = a\n[credential]\nhelper = x\n", "[a \"b]\\\"\"]\nc = \"d\\\ne\"", "registry=HTTPS://a:b@c/\n@x:registry=HTTPS://c/\n", "a: b\n c: d\nnodeLinker: x\n",
		"[global]\nindex-url =\n  https://a:b@c\n  https://c\n", "[build]\njobs = 1\n[[index]]\nurl = \"x\"\n[registries.\"a.b\"]\nindex = 'https://x'\n", "key = \"\"\"\n[build]\njobs = 2\n\"\"\"\n", "[user]\nname = AKIA0123456789ABCDEF\n\x00\xff=\n[x",
	} {
		f.Add(seed)
	}
	clean := map[string]func(*sight, string) string{"git": (*sight).cleanGit, "npm": cleanNpmrc, "yarn": cleanYarn, "pip": cleanPip, "cargo": cleanCargo, "uv": cleanUv, "bun": cleanBun}
	f.Fuzz(func(t *testing.T, text string) {
		for kind, run := range clean {
			s := &sight{Host: Host{Home: "/home/ann", root: "/nonexistent"}, files: newResolver("/nonexistent", "")}
			section, rule := "", onAllowlist[kind]
			for line := range strings.Lines(run(s, text)) {
				line = strings.TrimSuffix(line, "\n")
				if secretValue(line) {
					t.Fatalf("%s: a secret: %q", kind, line)
				}
				switch m := rule.line.FindStringSubmatch(line); {
				case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
					section = strings.Trim(line, "[]")
				case kind == "pip" && strings.HasPrefix(line, "    "):
				case m == nil:
					t.Fatalf("%s: %q is no setting", kind, line)
				default:
					key := strings.TrimSpace(m[1])
					if kind != "npm" && kind != "yarn" && kind != "pip" {
						key = strings.TrimPrefix(section+"."+strings.Trim(key, `"'`), ".")
					}
					if !allowed(rule.keys, key) {
						t.Fatalf("%s: %q is not on the list (%q)", kind, key, line)
					}
				}
			}
		}
	})
}

// TestGitReadsWhatWasWritten asks git itself.
func TestGitReadsWhatWasWritten(t *testing.T) {
	s := &sight{files: newResolver("/nonexistent", "")}
	path := filepath.Join(t.TempDir(), "config")
	for _, value := range []string{"plain", "with \"quotes\"", `back\slash`, "  spaces  ", "# no comment", "a;b", "tab\there", "Ünïcode", "[x]"} {
		in := "[user]\n\tname = \"" + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(value) + "\"\n"
		if err := os.WriteFile(path, []byte(s.cleanGit(in)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := run(t, "git", "config", "--file", path, "user.name"); got != value+"\n" {
			t.Errorf("%q became %q", value, got)
		}
	}
}
