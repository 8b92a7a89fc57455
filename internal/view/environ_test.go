package view

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The box of these tests: ann's, with some toolchains.
func testOptions() EnvOptions {
	return EnvOptions{
		Box: "b1", User: "ann", Home: "/home/ann", Workspace: "/home/ann/src/app",
		Shows: []Show{{"/etc", ReadOnly}, {"/home/ann/.pyenv", ReadOnly}, {"/home/ann/go/pkg/mod", CopyOnWrite}, {"/opt", ReadOnly}, {"/usr", ReadOnly}},
		Links: []Symlink{{"/bin", "usr/bin"}, {"/lib", "usr/lib"}},
	}
}

// inherited are variables as they are found in developers' shells, and
// whether a box gets them by itself.
var inherited = []struct {
	pass bool
	vars []string
}{
	{true, []string{
		"LANG=en_GB.UTF-8", "LANGUAGE=sk:en", "LC_ALL=C.UTF-8", "LC_CTYPE=sk_SK.UTF-8", "LC_MESSAGES=C", "TZ=Europe/Vienna", "TERM=xterm-256color", "COLORTERM=truecolor",
		"TERM_PROGRAM=WezTerm", "COLUMNS=120", "LINES=40", "LS_COLORS=di=01;34", "LESS=-R", "NO_COLOR=1", "FORCE_COLOR=1", "CLICOLOR=1", "CI=true", "DEBIAN_FRONTEND=noninteractive",
		"PAGER=less", "GIT_PAGER=cat", "EDITOR=vim", "VISUAL=vim", "GIT_TERMINAL_PROMPT=0", "GIT_AUTHOR_NAME=Ann", "GIT_AUTHOR_EMAIL=ann@example.org", "GIT_COMMITTER_NAME=Ann", "EMAIL=ann@example.org",
		"CC=clang", "CXX=clang++", "CFLAGS=-O2", "CXXFLAGS=-O2", "LDFLAGS=-s", "SOURCE_DATE_EPOCH=1", "CMAKE_GENERATOR=Ninja", "CMAKE_BUILD_PARALLEL_LEVEL=4", "OMP_NUM_THREADS=2", "TOKENIZERS_PARALLELISM=false",
		"GOFLAGS=-mod=mod", "GOPROXY=off", "GOPRIVATE=example.org/x", "GOSUMDB=off", "GOTOOLCHAIN=local", "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0", "GOMAXPROCS=2", "GODEBUG=madvdontneed=1",
		"GOPATH=/home/ann/go", "GOROOT=/usr/local/go", "GOCACHE=/home/ann/.cache/go-build", "GOMODCACHE=/home/ann/go/pkg/mod", "GOBIN=/home/ann/go/bin",
		"PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=0", "PYTHONUTF8=1", "PYTHONIOENCODING=utf-8", "PYTHONPATH=/home/ann/src/app:/home/ann/src/app/lib", "PYTEST_ADDOPTS=-q", "PYENV_ROOT=/home/ann/.pyenv",
		"PYENV_VERSION=3.12.1", "VIRTUAL_ENV=/home/ann/src/app/.venv", "CONDA_DEFAULT_ENV=base", "PIP_NO_INPUT=1", "PIP_INDEX_URL=file:///srv/wheels", "UV_LINK_MODE=copy", "DJANGO_SETTINGS_MODULE=app.settings",
		"NODE_ENV=test", "NODE_NO_WARNINGS=1", "npm_config_registry=file:///srv/npm", "NEXT_TELEMETRY_DISABLED=1", "NODE_PATH=/usr/lib/node_modules", "NVM_DIR=/home/ann/.nvm",
		"RUST_BACKTRACE=1", "RUST_LOG=debug", "RUSTFLAGS=-Cdebuginfo=0", "CARGO_HOME=/home/ann/.cargo", "RUSTUP_HOME=/home/ann/.rustup", "CARGO_INCREMENTAL=0", "CARGO_TERM_COLOR=always", "CARGO_PROFILE_DEV_DEBUG=0", "CARGO_TARGET_DIR=/home/ann/src/app/target",
		"JAVA_HOME=/usr/lib/jvm/java-21", "GRADLE_USER_HOME=/home/ann/.gradle", "RAILS_ENV=test", "RACK_ENV=test", "MIX_ENV=test", "DOTNET_NOLOGO=1", "DOTNET_ROOT=/usr/share/dotnet", "ASDF_NODEJS_VERSION=20.1.0",
		"HTTP_PROXY=http://proxy:3128", "https_proxy=http://proxy:3128", "NO_PROXY=localhost,.local", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt", "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt", "PKG_CONFIG_PATH=/usr/lib/pkgconfig", "XDG_CACHE_HOME=/home/ann/.cache", "SHELL=/bin/zsh",
	}},
	{false, []string{
		// Secrets by name.
		"AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY=x", "AWS_SESSION_TOKEN=x", "GITHUB_TOKEN=x", "GH_TOKEN=x", "GITLAB_TOKEN=x", "NPM_TOKEN=x", "NODE_AUTH_TOKEN=x", "PYPI_TOKEN=x", "TWINE_PASSWORD=x",
		"OPENAI_API_KEY=x", "ANTHROPIC_API_KEY=x", "ANTHROPIC_AUTH_TOKEN=x", "GEMINI_API_KEY=x", "HF_TOKEN=x", "HUGGING_FACE_HUB_TOKEN=x", "COHERE_API_KEY=x", "MISTRAL_API_KEY=x", "REPLICATE_API_TOKEN=x", "WANDB_API_KEY=x",
		"AZURE_CLIENT_SECRET=x", "ARM_CLIENT_SECRET=x", "GOOGLE_APPLICATION_CREDENTIALS=/home/ann/k.json", "GOOGLE_API_KEY=x", "DIGITALOCEAN_ACCESS_TOKEN=x", "CLOUDFLARE_API_TOKEN=x", "CF_API_KEY=x", "HEROKU_API_KEY=x", "FLY_API_TOKEN=x", "VERCEL_TOKEN=x",
		"DATABASE_URL=postgres://db/x", "DATABASE_PASSWORD=x", "DB_PASS=x", "DB_PASSWD=x", "PGPASSWORD=x", "PGPASSFILE=/home/ann/.pgpass", "MYSQL_PWD=x", "MYSQL_ROOT_PASSWORD=x", "REDIS_URL=redis://r", "MONGODB_URI=mongodb://m",
		"SECRET_KEY_BASE=x", "DJANGO_SECRET_KEY=x", "JWT_SECRET=x", "SESSION_SECRET=x", "COOKIE_SECRET=x", "ENCRYPTION_KEY=x", "SIGNING_KEY=x", "PRIVATE_KEY=x", "SSH_PRIVATE_KEY=x", "GPG_PASSPHRASE=x", "VAULT_TOKEN=x", "VAULT_ADDR=https://v",
		"CARGO_REGISTRY_TOKEN=x", "CARGO_REGISTRIES_X_TOKEN=x", "NPM_CONFIG__AUTH=x", "npm_config__authToken=x", "UV_PUBLISH_TOKEN=x", "POETRY_PYPI_TOKEN_PYPI=x", "POETRY_HTTP_BASIC_X_PASSWORD=x", "BUNDLE_GITHUB__COM=x:y", "BUNDLE_RUBYGEMS__PKG__GITHUB__COM=x", "NUGET_API_KEY=x",
		"SLACK_BOT_TOKEN=x", "SLACK_WEBHOOK_URL=x", "DISCORD_TOKEN=x", "TELEGRAM_TOKEN=x", "STRIPE_SECRET_KEY=x", "TWILIO_AUTH_TOKEN=x", "SENDGRID_API_KEY=x", "SENTRY_DSN=x", "SENTRY_AUTH_TOKEN=x", "DD_API_KEY=x", "NEW_RELIC_LICENSE_KEY=x", "DOCKER_PASSWORD=x", "DOCKER_AUTH_CONFIG=x",
		"KUBECONFIG=/home/ann/.kube/config", "BORG_PASSPHRASE=x", "RESTIC_PASSWORD=x", "RESTIC_PASSWORD_FILE=/x", "SOPS_AGE_KEY=x", "ANSIBLE_VAULT_PASSWORD_FILE=/x", "TF_VAR_db_password=x", "MNEMONIC=x", "CI_JOB_TOKEN=x", "ACTIONS_RUNTIME_TOKEN=x", "ACTIONS_ID_TOKEN_REQUEST_TOKEN=x",
		// Secrets by value, under names that would pass.
		"HTTPS_PROXY=http://ann:hunter2@proxy:3128", "http_proxy=http://ann:hunter2@proxy:3128", "PIP_EXTRA_INDEX_URL=https://a.org/simple https://u:p@b.org/simple", "GOPROXY=" + "https://a.org,https://u:p@b.org|direct", "UV_INDEX_URL=https://token@b.org/simple", "npm_config_registry=" + "https://u:p@r.org/",
		"GOFLAGS=ghp_0123456789abcdef0123456789abcdef0123", "PYTEST_ADDOPTS=sk-ant-api03-0123456789abcdef", "EMAIL=eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.x",
		// Doors.
		"LD_PRELOAD=/usr/lib/x.so", "LD_LIBRARY_PATH=/opt/x/lib", "LD_AUDIT=/x.so", "BASH_ENV=/home/ann/.bashenv", "ENV=/home/ann/.shrc", "PROMPT_COMMAND=x", "BASH_FUNC_which%%=() { x; }", "ZDOTDIR=/home/ann/.zsh", "PYTHONSTARTUP=/home/ann/.pyrc", "PYTHONHOME=/usr", "PERL5OPT=-Mx", "PERL5LIB=/home/ann/perl5", "RUBYOPT=-rx",
		"NODE_OPTIONS=--require /x.js", "JAVA_TOOL_OPTIONS=-javaagent:/x.jar", "_JAVA_OPTIONS=-Dp=x", "MAVEN_OPTS=-Dp=x", "GRADLE_OPTS=-Dp=x", "RUSTC_WRAPPER=/x", "MAKEFLAGS= -j --jobserver-auth=3,4", "GIT_DIR=/home/ann/src/other/.git", "GIT_SSH_COMMAND=ssh -i /x", "GIT_ASKPASS=/x", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_VALUE_0=x", "GIT_EXEC_PATH=/x",
		"SSH_AUTH_SOCK=/run/user/1000/ssh", "SSH_AGENT_PID=5", "SSH_CONNECTION=1.2.3.4", "GPG_AGENT_INFO=/x", "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus", "DOCKER_HOST=unix:///var/run/docker.sock", "CONTAINER_HOST=unix:///x", "DISPLAY=:0", "WAYLAND_DISPLAY=wayland-0", "XAUTHORITY=/home/ann/.Xauthority",
		"XDG_RUNTIME_DIR=/run/user/1000", "XDG_SESSION_ID=2", "TMUX=/tmp/tmux-1000/default,1,0", "VSCODE_IPC_HOOK_CLI=/run/user/1000/vscode.sock", "VSCODE_GIT_IPC_HANDLE=/x", "NVIM=/run/x", "PULSE_SERVER=unix:/x", "KRB5CCNAME=FILE:/tmp/krb5cc_1000", "NOTIFY_SOCKET=/run/systemd/notify", "LISTEN_FDS=1",
		"HUTCH_SOCKET=/x", "HUTCH_BOX=outer", "CLAUDECODE=1", "CLAUDE_CODE_ENTRYPOINT=cli",
		// True of the host only, or of another user.
		"PWD=/x", "OLDPWD=/y", "TMPDIR=/tmp/x", "HOSTNAME=laptop", "MAIL=/var/mail/ann", "SHLVL=2", "_=/usr/bin/env", "SUDO_USER=ann", "SUDO_COMMAND=/x", "HISTFILE=/home/ann/.histfile", "XDG_DATA_DIRS=/usr/share", "GDMSESSION=gnome", "WINDOWID=1", "MANPATH=/usr/share/man",
		// Cloud accounts without a secret: still nobody's business.
		"AWS_PROFILE=prod", "AWS_REGION=eu-west-1", "GOOGLE_CLOUD_PROJECT=p", "AZURE_TENANT_ID=t", "DOCKER_CONFIG=/home/ann/.docker", "GH_HOST=x", "KUBE_CONTEXT=prod", "VAULT_NAMESPACE=n",
		// Places a box does not see.
		"GOROOT=/data/go", "JAVA_HOME=/srv/jdk", "PYTHONPATH=/home/ann/src/app:/srv/lib", "NODE_PATH=relative", "VIRTUAL_ENV=/data/venv", "SSL_CERT_FILE=/root/ca.pem", "CARGO_TARGET_DIR=/var/tmp/target", "GOPATH=/home/ann/go:/data/go", "XDG_CONFIG_HOME=/home/annabel/.config", "GOCACHE=off", "GOBIN=",
		"ANDROID_HOME=/home/ann/../bob/sdk",
	}},
}

func TestInherited(t *testing.T) {
	names := make(map[string]bool)
	for _, group := range inherited {
		for _, v := range group.vars {
			name, _, _ := strings.Cut(v, "=")
			names[name] = true
			got := Environ([]string{v}, testOptions())
			if has := slices.Contains(got, v); has != group.pass {
				t.Errorf("%s: passes %v, want %v", v, has, group.pass)
			}
			if group.pass {
				continue
			}
			// Not by any wildcard, unless it is neither secret nor door.
			o := testOptions()
			o.Pass = []string{"*"}
			if (Door(name) || secretName(name)) && slices.Contains(Environ([]string{v}, o), v) {
				t.Errorf("%s: a wildcard brings it in", v)
			}
		}
	}
	if len(names) < 200 {
		t.Errorf("only %d names", len(names))
	}
}

// TestRealisticEnvironment holds to the table that the black-box test runs too.
func TestRealisticEnvironment(t *testing.T) {
	text, err := os.ReadFile("testdata/environment.txt")
	if err != nil {
		t.Fatal(err)
	}
	o, count := testOptions(), 0
	for line := range strings.Lines(string(text)) {
		verdict, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || verdict == "#" {
			continue
		}
		count++
		v = strings.NewReplacer("{home}", o.Home, "{ws}", o.Workspace).Replace(v)
		if has := slices.Contains(Environ([]string{v}, o), v); has != (verdict == "pass") {
			t.Errorf("%s: passes %v, want %s", v, has, verdict)
		}
	}
	if count < 200 {
		t.Errorf("only %d variables", count)
	}
}

func TestEnviron(t *testing.T) {
	host := []string{
		"PATH=/home/ann/.pyenv/shims::relative/bin:./x:/home/ann/bin:/home/ann/src/app/node_modules/.bin:/home/ann/src/other/bin:/usr/local/bin:/usr/bin/:/bin:/usr/bin:/sbin:/home/ann/.pyenv/../bin",
		"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/home/ann/fish", "LANG=C", "LANG=second", "AWS_REGION=eu", "FOO_A=1", "FOO_B=2", "FOO_TOKEN=3", "LD_PRELOAD=/x.so", "NODE_OPTIONS=--max-old-space-size=100", "API_KEY=k", "=odd", "odd",
	}
	tests := []struct {
		name string
		pass []string
		set  []string
		want []string // beside the usual
		not  []string // names
	}{
		{"by itself", nil, nil, []string{"LANG=C"}, []string{"AWS_REGION", "FOO_A", "NODE_OPTIONS"}},
		{"a name", []string{"AWS_REGION"}, nil, []string{"AWS_REGION=eu"}, []string{"FOO_A"}},
		{"a wildcard", []string{"FOO_*"}, nil, []string{"FOO_A=1", "FOO_B=2"}, []string{"FOO_TOKEN"}},
		{"everything", []string{"*"}, nil, []string{"FOO_A=1", "AWS_REGION=eu"}, []string{"FOO_TOKEN", "API_KEY", "LD_PRELOAD", "NODE_OPTIONS"}},
		{"a door by its name", []string{"NODE_OPTIONS"}, nil, []string{"NODE_OPTIONS=--max-old-space-size=100"}, nil},
		{"a secret by its name", []string{"API_KEY", "FOO_TOKEN"}, nil, nil, []string{"API_KEY", "FOO_TOKEN"}},
		{"a secret, set", nil, []string{"API_KEY=mine"}, []string{"API_KEY=mine"}, nil},
		{"set wins", []string{"FOO_A"}, []string{"FOO_A=9", "HOME=/x", "PATH=/y", "FOO_A=10", "EMPTY=", "URL=https://u:p@h"}, []string{"FOO_A=10", "HOME=/x", "PATH=/y", "EMPTY=", "URL=https://u:p@h"}, nil},
		{"what is no assignment", nil, []string{"FOO", "=x", ""}, nil, []string{"FOO", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := testOptions()
			o.Pass, o.Set = tt.pass, tt.set
			got := Environ(host, o)
			if !slices.IsSorted(got) {
				t.Errorf("not sorted: %q", got)
			}
			for _, v := range tt.want {
				if !slices.Contains(got, v) {
					t.Errorf("no %s", v)
				}
			}
			for _, name := range tt.not {
				if slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
					t.Errorf("%s is there", name)
				}
			}
		})
	}

	want := []string{"HOME=/home/ann", "HUTCH_BOX=b1", "LANG=C", "LOGNAME=ann", "PATH=/home/ann/.pyenv/shims:/home/ann/src/app/node_modules/.bin:/usr/local/bin:/usr/bin:/bin", "SHELL=/bin/sh", "USER=ann"}
	if diff := cmp.Diff(want, Environ(host, testOptions())); diff != "" {
		t.Errorf("by itself, -want +got:\n%s", diff)
	}
	if got := Environ([]string{"PATH=/srv/bin:."}, testOptions()); !slices.Contains(got, "PATH="+defaultPath) {
		t.Errorf("a PATH of which nothing is seen: %q", got)
	}
}

// FuzzEnviron: whatever the host's environment and the wildcards are, no
// secret is inherited, no door opens without its name, and a PATH has only
// absolute entries.
func FuzzEnviron(f *testing.F) {
	for _, group := range inherited {
		f.Add(strings.Join(group.vars, "\n"), "*")
	}
	f.Add("PATH=::.:/usr/bin:../x\nA=1", "A*\n**\n\nPATH")
	f.Fuzz(func(t *testing.T, host, pass string) {
		o := testOptions()
		o.Pass = strings.Split(pass, "\n")
		for _, v := range Environ(strings.Split(host, "\n"), o) {
			name, value, ok := strings.Cut(v, "=")
			switch {
			case name == "PATH":
				for entry := range strings.SplitSeq(value, ":") {
					if !o.sees(entry) && value != defaultPath {
						t.Errorf("PATH has %q", entry)
					}
				}
			case name == "HUTCH_BOX" || name == "HOME" || name == "USER" || name == "LOGNAME":
			case !ok || secretName(name) || secretValue(value):
				t.Errorf("%q is there", v)
			case Door(name) && !slices.Contains(o.Pass, name) && !slices.ContainsFunc(variables, func(r variable) bool { return slices.Contains(r.names, name) }):
				t.Errorf("%q is there without its name", v)
			}
		}
	})
}

// Two hosts whose every variable differs make one environment.
func TestFixedEnvironment(t *testing.T) {
	o := testOptions()
	o.Fixed = &Fixed{Date: 17}
	o.Box = "b1"
	first := Environ([]string{"TZ=Asia/Tokyo", "LANG=ja_JP.UTF-8", "LC_TIME=C", "PYTHONHASHSEED=random"}, o)
	o.Box = "b2"
	second := Environ([]string{"LANGUAGE=de", "LC_ALL=C", "PERL_HASH_SEED=3"}, o)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("-first +second:\n%s", diff)
	}
	for _, want := range []string{"TZ=UTC", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "PYTHONHASHSEED=0", "PERL_HASH_SEED=0", "SOURCE_DATE_EPOCH=17", "HUTCH_BOX=deterministic"} {
		if !slices.Contains(first, want) {
			t.Errorf("no %s in %q", want, first)
		}
	}
	o.Set = []string{"TZ=Europe/Rome"}
	got := Environ([]string{"SOURCE_DATE_EPOCH=5"}, o)
	if !slices.Contains(got, "SOURCE_DATE_EPOCH=5") || !slices.Contains(got, "TZ=Europe/Rome") {
		t.Errorf("what was asked for is not in %q", got)
	}
}

func TestWhatIsWantedOfAnEnvironmentIsAllThatABoxDependsOn(t *testing.T) {
	host := []string{
		"PATH=/usr/bin:/home/u/go/bin", "HOME=/home/u", "LANG=C.UTF-8", "LC_TIME=C", "GOCACHE=/home/u/c", "GOPATH=/home/u/go", "RUSTUP_HOME=/opt/r", "CARGO_HOME=/home/u/.cargo",
		"AWS_SECRET_ACCESS_KEY=x", "GITHUB_TOKEN=ghp_0123456789abcdefghijklmnopqrstuvwxyz", "DATABASE_URL=postgres://u:p@h/d", "LD_PRELOAD=/x.so", "MINE_A=1", "MINE_TOKEN=2",
		"HTTPS_PROXY=http://u:secret@proxy:1", "HUTCH_LIMITS_MEMORY=1G", "=odd", "noequals", "EDITOR=vi", "EDITOR=again",
	}
	o := EnvOptions{Box: "b", User: "u", Home: "/home/u", Workspace: "/w", Shows: []Show{{"/usr", ReadOnly}, {"/opt/r", ReadOnly}}, Pass: []string{"MINE_*", "LD_PRELOAD"}}
	wanted := Wanted(host, o.Pass)
	if got, want := Environ(wanted, o), Environ(host, o); !slices.Equal(got, want) {
		t.Errorf("a box gets\n%q, and of all\n%q", got, want)
	}
	for _, e := range wanted {
		for _, secret := range []string{"AWS_SECRET", "GITHUB_TOKEN", "DATABASE_URL", "MINE_TOKEN", "HUTCH_LIMITS", "HTTPS_PROXY"} {
			if strings.HasPrefix(e, secret) {
				t.Errorf("%s is kept", secret)
			}
		}
	}
	for _, name := range []string{"GOCACHE", "GOPATH", "RUSTUP_HOME", "CARGO_HOME", "PATH", "HOME"} {
		if !slices.ContainsFunc(wanted, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			t.Errorf("%s, which leads the view, is not kept", name)
		}
	}
}
