package view

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"hutch/internal/fsat"
)

// EnvOptions is what the environment of a box depends on, besides the host's.
type EnvOptions struct {
	Box       string // its id; the command finds it in HUTCH_BOX
	User      string
	Home      string
	Workspace string
	Shows     []Show // as View returns them
	Links     []Symlink

	// Fixed takes the place of what differs between hosts, users and runs; nil:
	// nothing does.
	Fixed *Fixed

	// Pass names variables to inherit; a name may end in *, which never
	// brings in a secret's name or a door.
	Pass []string
	// Set holds NAME=VALUE, and always wins. It is the way to hand a secret to
	// a box.
	Set []string
}

// Fixed is an environment that is the same wherever and whenever a command runs.
type Fixed struct {
	// Date is SOURCE_DATE_EPOCH unless the host sets that: the time, in
	// seconds since 1970, that builds take for theirs.
	Date int64
}

func (f *Fixed) apply(env map[string]string) {
	for name := range env {
		if name == "LANGUAGE" || strings.HasPrefix(name, "LC_") {
			delete(env, name)
		}
	}
	env["TZ"], env["LANG"], env["LC_ALL"] = "UTC", "C.UTF-8", "C.UTF-8"
	env["PYTHONHASHSEED"], env["PERL_HASH_SEED"] = "0", "0"
	env["HUTCH_BOX"] = "deterministic"
	if _, set := env["SOURCE_DATE_EPOCH"]; !set {
		env["SOURCE_DATE_EPOCH"] = strconv.FormatInt(f.Date, 10)
	}
}

// kind is how a variable's value is judged.
type kind uint8

const (
	word    kind = iota // any value
	place               // a path or a list of paths: each is seen in the box, or one that it can make in its home
	program             // a path that is seen in the box
)

// A variable is a row of names whose values are of a kind.
type variable struct {
	row
	kind
}

// variables are what a box inherits by itself. A name may have a * in it.
var variables = []variable{
	{row{"language, time and terminal", []string{"LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLUMNS", "LINES", "LS_COLORS", "LESS", "LESSCHARSET"}}, word},
	{row{"whether to colour, to prompt, to page", []string{"NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "CARGO_TERM_COLOR", "CI", "DEBIAN_FRONTEND", "GIT_TERMINAL_PROMPT", "PAGER", "GIT_PAGER", "MANPAGER", "EDITOR", "VISUAL", "GIT_EDITOR"}}, word},
	{row{"who commits", []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"}}, word},
	{row{"what to build, and how", []string{"CC", "CXX", "CPP", "AR", "LD", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "SOURCE_DATE_EPOCH", "CMAKE_GENERATOR", "CMAKE_BUILD_TYPE", "CMAKE_BUILD_PARALLEL_LEVEL", "CTEST_OUTPUT_ON_FAILURE", "CTEST_PARALLEL_LEVEL", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES"}}, word},
	{row{"Go", []string{"GOFLAGS", "GOPROXY", "GONOPROXY", "GOPRIVATE", "GONOSUMDB", "GOSUMDB", "GOINSECURE", "GOTOOLCHAIN", "GOOS", "GOARCH", "GOAMD64", "GOARM", "GOARM64", "CGO_ENABLED", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GODEBUG", "GOEXPERIMENT", "GO111MODULE", "GOTRACEBACK", "GOWORK", "GORACE"}}, word},
	{row{"Python", []string{"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONWARNINGS", "PYTHONFAULTHANDLER", "PYTHONOPTIMIZE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONDEVMODE", "PYTEST_ADDOPTS", "PYENV_VERSION", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INPUT", "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_REQUIRE_VIRTUALENV", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_PYTHON", "UV_OFFLINE", "UV_LINK_MODE", "POETRY_VIRTUALENVS_IN_PROJECT", "DJANGO_SETTINGS_MODULE", "FLASK_APP", "FLASK_ENV"}}, word},
	{row{"Node", []string{"NODE_ENV", "NODE_NO_WARNINGS", "npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_loglevel", "npm_config_fund", "npm_config_audit", "YARN_ENABLE_TELEMETRY", "NEXT_TELEMETRY_DISABLED", "COREPACK_ENABLE_DOWNLOAD_PROMPT", "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD"}}, word},
	{row{"Rust", []string{"RUST_BACKTRACE", "RUST_LOG", "RUST_MIN_STACK", "RUSTFLAGS", "RUSTDOCFLAGS", "RUSTUP_TOOLCHAIN", "CARGO_INCREMENTAL", "CARGO_BUILD_JOBS", "CARGO_BUILD_TARGET", "CARGO_NET_OFFLINE", "CARGO_PROFILE_*"}}, word},
	{row{"other languages", []string{"RBENV_VERSION", "RAILS_ENV", "RACK_ENV", "DOTNET_CLI_TELEMETRY_OPTOUT", "DOTNET_NOLOGO", "DOTNET_ROLL_FORWARD", "MIX_ENV", "APP_ENV", "ASDF_*_VERSION"}}, word},
	{row{"proxies; one with a password is stopped by its value", []string{"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"}}, word},
	{row{"where toolchains are", []string{"GOROOT", "PYENV_ROOT", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_EXE", "CONDA_PYTHON_EXE", "NVM_DIR", "NVM_BIN", "NVM_INC", "VOLTA_HOME", "ASDF_DIR", "ASDF_DATA_DIR", "BUN_INSTALL", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "JDK_HOME", "M2_HOME", "MAVEN_HOME", "GRADLE_HOME", "SDKMAN_DIR", "RBENV_ROOT", "GEM_HOME", "GEM_PATH", "DOTNET_ROOT", "ANDROID_HOME", "ANDROID_SDK_ROOT", "FLUTTER_ROOT", "HOMEBREW_PREFIX", "HOMEBREW_CELLAR", "HOMEBREW_REPOSITORY"}}, place},
	{row{"the user's shell", []string{"SHELL"}}, program},
	{row{"where to look for sources and libraries", []string{"GOPATH", "GOBIN", "PYTHONPATH", "NODE_PATH", "PKG_CONFIG_PATH", "CMAKE_PREFIX_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"}}, place},
	{row{"where to write", []string{"GOCACHE", "GOMODCACHE", "PIP_CACHE_DIR", "UV_CACHE_DIR", "PYTHONPYCACHEPREFIX", "npm_config_cache", "YARN_CACHE_FOLDER", "PNPM_HOME", "DENO_DIR", "CARGO_TARGET_DIR", "GRADLE_USER_HOME", "CCACHE_DIR", "SCCACHE_DIR", "NUGET_PACKAGES", "PLAYWRIGHT_BROWSERS_PATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}}, place},
	{row{"whom to trust", []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT", "CARGO_HTTP_CAINFO"}}, place},
}

// doors are variables that make a program load code or lead it to a service of
// the host. A wildcard does not bring them in; their full name in Pass does.
var doors = []row{
	{"code loaded into every program", []string{"LD_*", "DYLD_*", "GLIBC_TUNABLES", "GCONV_PATH", "BASH_ENV", "ENV", "BASH_FUNC_*", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "PS4", "ZDOTDIR", "PYTHONSTARTUP", "PYTHONHOME", "PERL5OPT", "PERL5LIB", "RUBYOPT", "NODE_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "RUSTC_WRAPPER", "MAKEFLAGS", "GIT_*"}},
	{"services of the host", []string{"DBUS_*", "SSH_*", "GPG_*", "DOCKER_*", "CONTAINER_HOST", "BUILDKIT_HOST", "DISPLAY", "WAYLAND_*", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SESSION_*", "PULSE_*", "PIPEWIRE_*", "TMUX*", "STY", "VSCODE_*", "NVIM", "LISTEN_*", "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "KRB5*"}},
	{"hutch", []string{"HUTCH_*"}},
	{"true of the host only", []string{"PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "MAIL", "HOSTNAME", "SHLVL", "_"}},
}

// defaultPath is for a host whose PATH has nothing that a box sees.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Environ returns the environment of a command in a box, sorted: what is on
// the list of harmless variables, what Pass names, and what Set sets. Nothing
// is inherited whose name or value is a secret's, nor a place that the box
// does not see.
func Environ(host []string, o EnvOptions) []string {
	env := make(map[string]string)
	path := ""
	seen := make(map[string]bool)
	for _, e := range host {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" || seen[name] { // of two, getenv takes the first
			continue
		}
		seen[name] = true
		if name == "PATH" {
			path = value
		}
		if o.inherits(name, value) {
			env[name] = value
		}
	}

	env["PATH"] = o.path(path)
	if o.Home != "" {
		env["HOME"] = o.Home
	}
	if o.User != "" {
		env["USER"], env["LOGNAME"] = o.User, o.User
	}
	if _, ok := env["SHELL"]; !ok {
		env["SHELL"] = "/bin/sh"
	}
	if o.Box != "" {
		env["HUTCH_BOX"] = o.Box
	}
	if o.Fixed != nil {
		o.Fixed.apply(env)
	}
	for _, e := range o.Set {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" {
			env[name] = value
		}
	}

	list := make([]string, 0, len(env))
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// Wanted returns what of the host's environment a box can depend on: what it may
// inherit, and what Look is led by. The rest, where the secrets are, nobody needs
// to keep for it.
func Wanted(host []string, pass []string) []string {
	wanted := []string{}
	for _, e := range host {
		name, value, _ := strings.Cut(e, "=")
		if leads(name) || mayInherit(name, pass) && !secretName(name) && !secretValue(value) {
			wanted = append(wanted, e)
		}
	}
	return wanted
}

// leads reports whether Look follows a variable.
func leads(name string) bool {
	return name == "PATH" || name == "HOME" || slices.Contains(places.names, name) ||
		slices.ContainsFunc(caches, func(c cache) bool { return name != "" && (c.env == name || c.parent == name) }) ||
		slices.ContainsFunc(configs, func(c config) bool { return name != "" && c.parent == name })
}

func mayInherit(name string, pass []string) bool {
	by := func(pattern string) bool { return matches(pattern, name) }
	return name != "" && (slices.Contains(pass, name) || slices.ContainsFunc(pass, by) && !Door(name) ||
		slices.ContainsFunc(variables, func(v variable) bool { return slices.ContainsFunc(v.names, by) }))
}

func (o EnvOptions) inherits(name, value string) bool {
	return o.named(name, value) && !secretName(name) && !secretValue(value)
}

// named reports whether a table or Pass names a variable.
func (o EnvOptions) named(name, value string) bool {
	for _, pattern := range o.Pass {
		if pattern == name || matches(pattern, name) && !Door(name) {
			return true
		}
	}
	for _, v := range variables {
		if slices.ContainsFunc(v.names, func(pattern string) bool { return matches(pattern, name) }) {
			switch v.kind {
			case place:
				return o.seesAll(value)
			case program:
				return o.sees(filepath.Clean(value))
			}
			return true
		}
	}
	return false
}

// Door reports whether a variable makes a program load code, or leads it to a
// service of the host.
func Door(name string) bool {
	return slices.ContainsFunc(doors, func(r row) bool {
		return slices.ContainsFunc(r.names, func(pattern string) bool { return matches(pattern, name) })
	})
}

// matches reports whether a name is what a pattern says; a * in it stands for
// anything.
func matches(pattern, name string) bool {
	if pattern == "" || pattern[0] != name[0] && pattern[0] != '*' {
		return false // as nearly always
	}
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	return len(name) >= len(before)+len(after) && strings.HasPrefix(name, before) && strings.HasSuffix(name, after)
}

// path returns the entries of PATH that the box sees, in their order. An empty
// or relative one means the current directory, where a box must not look for
// programs by accident.
func (o EnvOptions) path(path string) string {
	var kept []string
	for _, entry := range filepath.SplitList(path) {
		if entry = filepath.Clean(entry); o.sees(entry) && !slices.Contains(kept, entry) {
			kept = append(kept, entry)
		}
	}
	if len(kept) == 0 {
		return defaultPath
	}
	return strings.Join(kept, string(filepath.ListSeparator))
}

// seesAll reports whether every path of a list is one the box sees, or could
// make in its home.
func (o EnvOptions) seesAll(list string) bool {
	paths := filepath.SplitList(list)
	for _, path := range paths {
		path = filepath.Clean(path)
		if !o.sees(path) && !(o.Home != "" && fsat.Within(path, o.Home)) {
			return false
		}
	}
	return len(paths) > 0
}

// sees reports whether a path is shown to the box, was it there on the host.
func (o EnvOptions) sees(path string) bool {
	return filepath.IsAbs(path) && (o.Workspace != "" && fsat.Within(path, o.Workspace) ||
		slices.ContainsFunc(o.Shows, func(s Show) bool { return fsat.Within(path, s.Path) }) ||
		slices.ContainsFunc(o.Links, func(l Symlink) bool { return fsat.Within(path, l.Path) }))
}
