package guard

import (
	"errors"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"hutch/internal/changeset"
	"hutch/internal/fsat"
)

// The judges of rows whose content or surroundings decide.

// judgeHookManager holds where a hook is there to read the file.
func judgeHookManager(l *look) (Tier, string) {
	if l.j.setup().hooksThere {
		return Hold, ""
	}
	return Flag, "no hook is installed that reads it: " + l.row.Why
}

func judgeRebase(l *look) (Tier, string) {
	text, err := l.after()
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	switch name := l.parts[len(l.parts)-1]; {
	case slices.Contains(l.parts, "rebase-apply"):
		if strings.Trim(name, "0123456789") != "" && name != "patch" && !strings.HasSuffix(name, ".patch") {
			return "", ""
		}
		return l.row.Tier, "it is a patch that git am goes on with: " + l.row.Why
	case name == "opts":
		return onKeys(gitmodulesKeys, func(key, _ string) bool {
			return strings.HasPrefix(key, "options.strategy") || strings.HasPrefix(key, "options.gpg")
		})(l)
	case name == "strategy":
		if strategies.has(strings.TrimSpace(string(text))) {
			return "", ""
		}
		return l.row.Tier, "it names a strategy that is none of git's: " + l.row.Why
	case strings.HasPrefix(name, "strategy") || name == "gpg_sign_opt":
		if len(strings.TrimSpace(string(text))) == 0 {
			return "", ""
		}
		return l.row.Tier, ""
	}
	return onKeys(todoKeys, func(command, _ string) bool { return command == "exec" || command == "x" })(l)
}

const strategies = set("ort recursive resolve octopus ours subtree")

func gitmodulesKeys(text []byte) (map[string]string, error) {
	config, err := parseGitConfig(text)
	if err != nil {
		return nil, err
	}
	keys := map[string]string{}
	for key, values := range config {
		keys[key.String()] = strings.Join(values, "\n")
	}
	return keys, nil
}

// judgeInstructions holds what is more than text for the agent.
func judgeInstructions(l *look) (Tier, string) {
	text, err := l.after()
	if errors.Is(err, errTooLarge) && !strings.Contains(l.parts[len(l.parts)-1], ".md") {
		return l.row.Tier, "" // no harness looks for front matter in there
	}
	if err != nil {
		return Hold, l.unread(err)
	}
	keys, err := frontMatter(text)
	if err != nil {
		return Hold, "its front matter cannot be read (" + err.Error() + "), so it counts as if it defined hooks"
	}
	for _, key := range []string{"hooks", "mcpservers", "mcp-servers", "permissionmode", "permission-mode", "permissions", "permission"} {
		if _, has := keys[key]; has {
			return Hold, "its front matter has " + key + ", which the harness obeys without asking"
		}
	}
	for _, key := range []string{"allowed-tools", "allowedtools"} {
		if strings.Contains(strings.ToLower(keys[key]), "bash") || strings.Contains(keys[key], "*") {
			return Hold, "its front matter allows commands of the shell without asking"
		}
	}
	return l.row.Tier, ""
}

// judgeShadow flags a new module that python would take for one of its own.
func judgeShadow(l *look) (Tier, string) {
	if l.e.Before != nil {
		return "", ""
	}
	name := strings.TrimSuffix(l.parts[len(l.parts)-1], ".py")
	if !stdlib.has(name) {
		return "", ""
	}
	return l.row.Tier, "it shadows the module " + name + ": " + l.row.Why
}

// environment returns the directory above a path that is a virtual environment
// after the promotion, and whether the change makes it.
func (l *look) environment() (dir string, found, fresh bool) {
	for dir, _ = fsat.Split(l.e.Path); ; dir, _ = fsat.Split(dir) {
		config := fsat.Join(dir, "pyvenv.cfg")
		if _, found := l.j.merged(config); found {
			e := l.j.find(config)
			return dir, true, e != nil && e.Before == nil
		}
		// Tools look for an interpreter in a directory of such a name, whatever
		// else is in it.
		_, name := fsat.Split(dir)
		switch fold(name) {
		case ".venv", "venv", ".env", "env", "virtualenv":
			e := l.j.find(dir)
			return dir, true, e != nil && e.Before == nil
		}
		if dir == "." {
			return "", false, false
		}
	}
}

// installed reports whether an absolute path is one of an installation, or one
// that the user cannot write to.
func (l *look) installed(path string) bool {
	p, err := l.j.outside(path)
	return err == nil && p.inside == "" && (l.j.installed(p.path) || p.exists && !p.writable)
}

func judgeInterpreter(l *look) (Tier, string) {
	_, found, fresh := l.environment()
	if !found {
		return "", ""
	}
	if l.e.Before != nil {
		return l.row.Tier, "it replaces the interpreter: " + l.row.Why
	}
	if l.e.After.Type != fsat.Symlink {
		return l.row.Tier, "it is an interpreter of the change's own: " + l.row.Why
	}
	_, out := l.j.resolve(l.e.Path, l.e.After.Target)
	if out == "" || !l.installed(out) {
		return l.row.Tier, "it leads to no installed interpreter: " + l.row.Why
	}
	if !fresh {
		return l.row.Tier, "it is a new interpreter of an environment that was there: " + l.row.Why
	}
	return "", ""
}

func judgeVenvConfig(l *look) (Tier, string) {
	if l.e.Before != nil {
		return l.row.Tier, "it changes an environment that was there: " + l.row.Why
	}
	text, err := l.after()
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	keys, err := iniKeys(text)
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	for _, key := range []string{"home", "base-executable", "executable", "base-prefix", "base-exec-prefix"} {
		if value, has := keys[key]; has && (!filepath.IsAbs(value) || !l.installed(value)) {
			return l.row.Tier, "its " + key + " is no installed interpreter's: " + l.row.Why
		}
	}
	if dir, _ := fsat.Split(l.e.Path); dir != "." {
		if _, there, err := l.j.stat(fsat.Join(dir, "bin")); err != nil || there {
			l.j.fail(err)
			return l.row.Tier, "it makes an environment of a directory that was there: " + l.row.Why
		}
	}
	return "", ""
}

// startupLines are what setuptools, virtualenv and their like put into .pth
// files of every environment. They import a module that lies beside them.
var startupLines = []string{
	"import _virtualenv",
	"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; enabled and __import__('_distutils_hack');",
	"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'stdlib') == 'local'; enabled and __import__('_distutils_hack');",
	"import os; enabled = os.environ.get('SETUPTOOLS_USE_DISTUTILS', 'local') == 'local'; enabled and __import__('_distutils_hack')",
}

func judgeStartup(l *look) (Tier, string) {
	name := l.parts[len(l.parts)-1]
	_, _, fresh := l.environment()
	switch {
	case strings.HasSuffix(name, "._pth"):
		return l.row.Tier, ""
	case !strings.HasSuffix(name, ".pth"):
		if fresh && (name == "_virtualenv.py" || slices.Contains(l.parts, "_distutils_hack")) {
			return "", "" // the .pth beside it is flagged
		}
		return l.row.Tier, ""
	case !slices.Contains(l.parts, "site-packages") && !slices.Contains(l.parts, "dist-packages"):
		return "", "" // the weights of a model
	}
	text, err := l.after()
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	tier, why := Tier(""), ""
	dir, _ := fsat.Split(l.e.Path)
	for line := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return r == '\n' || r == '\r' }) {
		bare := strings.TrimRight(line, " \t\f\v")
		switch {
		case bare == "" || bare[0] == '#':
		case strings.HasPrefix(bare, "import ") || strings.HasPrefix(bare, "import\t"):
			if !fresh || !slices.Contains(startupLines, bare) {
				return l.row.Tier, "it imports: " + l.row.Why
			}
			tier, why = Open, "the new environment imports what setuptools or virtualenv put there: "+l.row.Why
		default:
			if _, out := l.j.resolve(fsat.Join(dir, "x"), bare); out != "" {
				return l.row.Tier, "it adds a directory outside of the workspace: " + l.row.Why
			}
		}
	}
	return tier, why
}

// judgeNix holds what an .envrc may use. What that says is a script, so that it
// is there is enough.
func judgeNix(l *look) (Tier, string) {
	if _, found := l.j.merged(beside(l.e, ".envrc")); found {
		return Hold, ""
	}
	return Flag, "no .envrc uses it: " + l.row.Why
}

func toolVersionKeys(text []byte) (map[string]string, error) {
	var keys collector
	for _, line := range lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 {
			if err := keys.add(words[0], strings.Join(words[1:], " ")); err != nil {
				return nil, err
			}
		}
	}
	return keys.keys(), nil
}

// toolElsewhere reports whether the version of a tool is a place to take it
// from.
func toolElsewhere(version string) bool { return strings.ContainsAny(version, ":/\\~") }

// loaderVariable reports whether a variable of an .env file is obeyed by what
// loads other programs, by git, or by a harness; a framework's own are not.
func loaderVariable(name, _ string) bool {
	for _, public := range []string{"VITE_", "NEXT_PUBLIC_", "REACT_APP_", "NUXT_PUBLIC_", "EXPO_PUBLIC_", "PUBLIC_", "VUE_APP_", "GATSBY_", "NG_APP_"} {
		if strings.HasPrefix(name, public) {
			return false // goes into what the browser loads
		}
	}
	if plainVariables.has(name) {
		return false
	}
	if name == shellLine || loaderVariables.has(name) || strings.HasSuffix(name, "_BASE_URL") {
		return true
	}
	for _, prefix := range []string{"LD_", "DYLD_", "GIT_", "PYTHON", "NPM_CONFIG_", "npm_config_", "PIP_", "UV_", "BASH_FUNC_", "CLAUDE_", "CODEX_", "ANTHROPIC_", "GEMINI_CLI_", "OPENCODE_", "CARGO_TARGET_", "CARGO_BUILD_", "GCONV_", "MISE_", "DIRENV_"} {
		if strings.HasPrefix(name, prefix) && (prefix != "PYTHON" || len(name) == len(prefix) || name[len(prefix)] != '_') && !strings.HasSuffix(name, "_API_KEY") && !strings.HasSuffix(name, "_MODEL") {
			return true
		}
	}
	return false
}

const loaderVariables = set("PATH HOME SHELL ENV BASH_ENV ZDOTDIR IFS PROMPT_COMMAND PS4 SHELLOPTS BASHOPTS FPATH CDPATH EDITOR VISUAL PAGER MANPAGER BROWSER LESSOPEN LESSCLOSE " +
	"NODE_OPTIONS NODE_PATH NODE_EXTRA_CA_CERTS NODE_TLS_REJECT_UNAUTHORIZED ELECTRON_RUN_AS_NODE BUN_OPTIONS DENO_DIR YARN_RC_FILENAME COREPACK_NPM_REGISTRY " +
	"PERL5OPT PERL5LIB PERL5DB PERLLIB RUBYOPT RUBYLIB GEM_HOME GEM_PATH BUNDLE_GEMFILE BUNDLE_PATH JAVA_TOOL_OPTIONS _JAVA_OPTIONS JDK_JAVA_OPTIONS JAVA_OPTS JAVA_HOME CLASSPATH MAVEN_OPTS MAVEN_ARGS GRADLE_OPTS GRADLE_USER_HOME SBT_OPTS " +
	"GOFLAGS GOPROXY GONOSUMDB GONOSUMCHECK GOSUMDB GOENV GOTOOLCHAIN GOROOT GOBIN GOPATH CC CXX AR RUSTC RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER RUSTFLAGS RUSTDOC RUSTUP_HOME RUSTUP_TOOLCHAIN CARGO_HOME CARGO CARGO_ENCODED_RUSTFLAGS " +
	"SSH_ASKPASS SSH_AUTH_SOCK SUDO_ASKPASS XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR XDG_DATA_DIRS XDG_CONFIG_DIRS HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE CURL_HOME " +
	"DOCKER_HOST DOCKER_CONFIG KUBECONFIG AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE VIRTUAL_ENV CONDA_PREFIX PHP_INI_SCAN_DIR PHPRC R_PROFILE R_PROFILE_USER R_ENVIRON OPENSSL_CONF OPENSSL_MODULES GTK_MODULES QT_PLUGIN_PATH LUA_INIT LUA_PATH VIMINIT GVIMINIT EXINIT MYVIMRC " +
	"OPENAI_API_BASE OPENAI_PROXY HUTCH_SOCKET")

// plainVariables would match by their prefix, but nothing obeys them.
const plainVariables = set("PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONIOENCODING PYTHONUTF8 PYTHONHASHSEED PYTHONFAULTHANDLER " +
	"GIT_SHA GIT_COMMIT GIT_BRANCH GIT_TAG GIT_REVISION GIT_HASH GIT_REF GIT_VERSION GIT_COMMIT_SHA GIT_COMMIT_HASH GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL " +
	"PIP_NO_CACHE_DIR PIP_DISABLE_PIP_VERSION_CHECK UV_COMPILE_BYTECODE UV_LINK_MODE ANTHROPIC_API_KEY")

// judgeHome holds files of a home directory that is, or lies in, the workspace.
func judgeHome(l *look) (Tier, string) {
	home := ""
	switch {
	case l.j.Home == "" || !beneath(l.j.Home, l.j.WorkspacePath):
		return "", ""
	case l.j.Home != l.j.WorkspacePath:
		home = fold(strings.TrimPrefix(strings.TrimPrefix(l.j.Home, l.j.WorkspacePath), "/")) + "/"
	}
	rest, ok := strings.CutPrefix(strings.Join(l.parts, "/"), home)
	if !ok || !ofHome(rest) {
		return "", ""
	}
	return l.row.Tier, "it is in your home directory: " + l.row.Why
}

// ofHome reports whether the row of home directories speaks of a folded path
// relative to one.
func ofHome(path string) bool {
	parts := strings.Split(path, "/")
	return slices.ContainsFunc(ruleOf("home").Paths, func(text string) bool {
		p := parsePattern(0, "/"+text)
		return p.matches(parts)
	})
}

// findHomeLinks looks for files of the home directory that are links into the
// workspace, as those who keep their dot files in a repository have them.
func (j *judge) findHomeLinks() {
	if j.Home == "" || beneath(j.Home, j.WorkspacePath) {
		return
	}
	names := []string{".config", ".local"}
	for _, text := range ruleOf("home").Paths {
		names = append(names, strings.TrimSuffix(text, "/**"))
	}
	for _, name := range names {
		if inside := j.leadsHere(filepath.Join(j.Home, name)); inside != "" {
			j.homeLinks = append(j.homeLinks, alias{name, inside})
		}
	}
}

// homeLink judges a path that the home directory leads to.
func (j *judge) homeLink(e *changeset.Entry) {
	for i := range j.homeLinks {
		a := &j.homeLinks[i]
		rest, ok := strings.CutPrefix(e.Path, a.target)
		if ok && (rest == "" || rest[0] == '/') && !e.IsDir() && !sameContent(e) && ofHome(a.link+fold(rest)) {
			j.rule(e.Path, "home", "your home directory leads here by "+a.link)
		}
	}
}

func judgePackageConfig(l *look) (Tier, string) {
	hooked := l.j.setup().hooksThere
	return onKeys(jsonKeys, func(key, value string) bool {
		head, _, _ := strings.Cut(key, sep)
		switch head {
		case "packagemanager":
			return strings.ContainsAny(value, "/\\") || strings.Contains(value, "::")
		case "lint-staged", "husky", "simple-git-hooks", "githooks", "pre-commit", "pre-push", "lefthook":
			return hooked
		case "pnpm":
			return keyMatches("pnpm.configdependencies.**", "pnpm.onlybuiltdependencies.**", "pnpm.neverbuiltdependencies.**", "pnpm.dangerouslyallowallbuilds")(key, "")
		}
		return false
	})(l)
}

// plainJVM reports whether arguments of a JVM only size and tune it.
func plainJVM(args string) bool {
	for arg := range strings.FieldsSeq(args) {
		if !slices.ContainsFunc([]string{"-Xmx", "-Xms", "-Xss", "-XX:Max", "-XX:+Use", "-XX:-Use", "-XX:+HeapDumpOnOutOfMemoryError", "-Dfile.encoding=", "--add-opens", "--add-exports", "java.base/", "jdk.compiler/"},
			func(plain string) bool { return strings.HasPrefix(arg, plain) }) {
			return false
		}
	}
	return true
}

// officialRelease reports whether a URL is one of a release from those who make
// it.
func officialRelease(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Port() != "" || strings.Contains(u.Path, "..") {
		return false
	}
	return u.Hostname() == "services.gradle.org" && strings.HasPrefix(u.Path, "/distributions/") ||
		strings.HasSuffix(u.Hostname(), ".maven.apache.org") && strings.HasPrefix(u.Path, "/maven2/org/apache/maven/")
}

// judgeWrapper flags another release from where releases come from.
func judgeWrapper(l *look) (Tier, string) {
	changed, err := l.keys(propertyKeys)
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	if l.e.After == nil {
		return l.row.Tier, ""
	}
	text, err := l.after()
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	after, err := propertyKeys(text)
	if err != nil {
		return l.row.Tier, l.unread(err)
	}
	for key, value := range changed {
		_, kept := after[key]
		switch {
		case kept && (key == "distributionurl" || key == "wrapperurl") && officialRelease(value):
		case kept && (key == "distributionsha256sum" || key == "wrappersha256sum" || key == "wrapperversion" || key == "networktimeout"):
		case kept && key == "validatedistributionurl" && value == "true":
		default:
			return l.row.Tier, "it changes " + Printable(short(key)) + ": " + l.row.Why
		}
	}
	return Flag, "it names another release: " + l.row.Why
}

// pnpmRuns are keys of pnpm-workspace.yaml, without dashes, that say whose code
// runs, and where packages come from.
const pnpmRuns = set("configdependencies pnpmfile globalpnpmfile onlybuiltdependencies onlybuiltdependenciesfile neverbuiltdependencies dangerouslyallowallbuilds allowbuilds ignoredbuiltdependencies " +
	"ignorescripts scriptshell shellemulator registry registries namedregistries usenodeversion nodedownloadmirrors hooks userconfig npmpath minimumreleaseage blockexoticsubdeps trustpolicy enableprepostscripts")

// rustToolchainKeys reads the file in both of its forms.
func rustToolchainKeys(text []byte) (map[string]string, error) {
	bare := strings.TrimSpace(string(text))
	if !strings.ContainsAny(bare, "[=\n") {
		if strings.ContainsAny(bare, "/\\") {
			return map[string]string{"toolchain.path": bare}, nil
		}
		return map[string]string{"toolchain.channel": bare}, nil
	}
	return tomlKeys(text)
}

// pylintKeys reads a configuration of pylint in either of its forms, TOML also
// as INI: only the name of the key matters.
func pylintKeys(text []byte) (map[string]string, error) {
	keys, err := iniKeys(text)
	if err != nil {
		return nil, err
	}
	if written, err := tomlKeys(text); err == nil { // where names may be escaped
		for key, value := range written {
			keys[key] += "\n" + value
		}
	}
	return keys, nil
}

// stdlib are the modules of python's standard library (sys.stdlib_module_names).
const stdlib = set("abc aifc antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect builtins bz2 cProfile calendar cgi cgitb " +
	"chunk cmath cmd code codecs codeop collections colorsys compileall concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses " +
	"dataclasses datetime dbm decimal difflib dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl filecmp fileinput fnmatch " +
	"fractions ftplib functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib imaplib imghdr imp " +
	"importlib inspect io ipaddress itertools json keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder " +
	"msilib msvcrt multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os ossaudiodev pathlib pdb pickle pickletools " +
	"pipes pkgutil platform plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re " +
	"readline reprlib resource rlcompleter runpy sched secrets select selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver " +
	"spwd sqlite3 sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau symtable sys sysconfig syslog tabnanny " +
	"tarfile telnetlib tempfile termios textwrap this threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle " +
	"turtledemo types typing unicodedata unittest urllib uu uuid venv warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp " +
	"zipfile zipimport zlib zoneinfo")
