package guard

import (
	"slices"
	"strings"
	"sync"
)

// Row is one row of the table: what to look for, who runs it, and why that
// matters.
type Row struct {
	ID   string
	Tier Tier
	Who  string
	When string
	// Paths are looked for at any depth, or with a leading "/" at the top of
	// the workspace; "*" stands for any text of a name, "/**" at the end for
	// everything beneath. They are compared with the folded path. A row
	// without paths is judged by type, rights or links.
	Paths []string
	// Except pass.
	Except []string
	// Content says in words what of the content decides; "" for nothing.
	Content string
	// Restricts says that deleting or emptying such a file widens what may be
	// done, so that it counts like writing it.
	Restricts bool
	Why       string
	Source    string // where it was seen: CVE, advisory or manual

	judge      func(*look) (Tier, string)
	everywhere bool // installed packages and what builds leave included
	except     []pattern
}

// rows is the table, made ready.
var rows []Row

func init() {
	rows = table // not where it is declared: judges look rows up
}

var theIndex = sync.OnceValue(func() *index { return newIndex(rows) })

// Table returns the rows, in the order of the documentation.
func Table() []Row { return slices.Clone(rows) }

func ruleOf(id string) *Row {
	return &rows[slices.IndexFunc(rows, func(r Row) bool { return r.ID == id })]
}

const (
	nextGit  = "at the next git command here"
	nextOpen = "when the folder is opened"
	nextTool = "at the next command of that tool here"
	nextRun  = "when the agent starts here again"
	onBuild  = "when you build or test"
)

// table is the law: each row with the reason for it and where it was seen.
var table = []Row{
	// git
	{
		ID: "git-hooks", Tier: Hold, Who: "git", When: "at the next commit, checkout, merge or push here",
		Paths: []string{".git/hooks/**"}, Except: []string{".git/hooks/*.sample"}, Restricts: true, everywhere: true,
		Content: "also in the directory that the host's core.hooksPath names",
		Why:     "a hook runs by itself", Source: "githooks(5); CVE-2026-26268",
	},
	{
		ID: "husky", Tier: Hold, Who: "git, through husky", When: "at the next commit or push here",
		Paths: []string{".husky/**", ".huskyrc*"}, Restricts: true,
		Why: "husky's hooks run by themselves", Source: "husky's manual",
	},
	{
		ID: "hook-managers", Tier: Hold, Who: "git, through the hook that is installed", When: "at the next commit here",
		Paths: []string{".pre-commit-config.yaml", ".pre-commit-config.yml", "lefthook.yml", "lefthook.yaml", "lefthook.toml", "lefthook.json",
			".lefthook.yml", ".lefthook.yaml", ".lefthook.toml", ".lefthook.json", "lefthook-local.yml", ".lefthook/**", ".lefthook-local/**",
			".lintstagedrc*", "lint-staged.config.*", ".overcommit.yml", "simple-git-hooks.*", ".simple-git-hooks.*"},
		Restricts: true, judge: judgeHookManager, Content: "held where the host has a hook installed, else flagged",
		Why: "it says what the installed hook runs", Source: "the manuals of pre-commit, lefthook, lint-staged and overcommit",
	},
	{
		ID: "git-config", Tier: Hold, Who: "git", When: nextGit,
		Paths: []string{".git/config"}, Restricts: true, everywhere: true,
		judge: judgeGitConfig, Content: "variables that are not known to be harmless; also in workspace files that the host's configuration includes",
		Why: "many variables name a program that git runs, or where it looks", Source: "git-config(1); CVE-2026-26268; CVE-2026-45033",
	},
	{
		ID: "git-config-worktree", Tier: Hold, Who: "git", When: nextGit,
		Paths: []string{".git/config.worktree"}, Restricts: true, everywhere: true, judge: judgeGitConfig, Content: "variables that are not known to be harmless",
		Why: "it is read like .git/config", Source: "git-worktree(1)",
	},
	{
		ID: "git-rebase", Tier: Hold, Who: "git", When: "at git rebase --continue",
		Paths: []string{".git/rebase-merge/git-rebase-todo*", ".git/sequencer/todo", ".git/rebase-merge/strategy*", ".git/rebase-merge/gpg_sign_opt",
			".git/rebase-apply/**", ".git/sequencer/opts"},
		Except: []string{".git/rebase-merge/git-rebase-todo.backup"}, everywhere: true,
		judge: judgeRebase, Content: "exec lines, a strategy that is none of git's, patches that git am goes on with; the commits that it names are judged as a moved ref is",
		Why: "git goes on with what it lists", Source: "git-rebase(1)",
	},
	{
		ID: "git-objects", Tier: Hold, Who: "git", When: nextGit,
		Paths: []string{".git/objects/info/alternates", ".git/objects/info/http-alternates", ".git/remotes/**", ".git/branches/**"}, everywhere: true,
		Why: "git takes objects from where it points", Source: "gitrepository-layout(5)",
	},
	{
		ID: "git-commondir", Tier: Hold, Who: "git", When: nextGit,
		Paths: []string{".git/commondir"}, everywhere: true, judge: judgeCommonDir, Content: "anything but a worktree's way back to its repository",
		Why: "it puts another directory's configuration and hooks in the place of these", Source: "gitrepository-layout(5)",
	},
	{
		ID: "git-link", Tier: Hold, Who: "git", When: nextGit,
		Paths: []string{".git"}, everywhere: true, judge: judgeGitLink, Content: "where it leads: a worktree or submodule of this workspace's own .git passes",
		Why: "it puts another repository, with its configuration and hooks, in the place of this one", Source: "gitrepository-layout(5); CVE-2026-55607",
	},
	{
		ID: "git-directory", Tier: Hold, Who: "git", When: "at the next git command in that directory", everywhere: true,
		Content: "a directory with HEAD, objects and refs, or with HEAD and commondir, host and change merged, where none was; a new .git with nothing of the host in it is judged by what it holds",
		Why:     "git takes it for a repository and runs what its configuration says", Source: "gitrepository-layout(5); safe.bareRepository in git-config(1)",
	},
	{
		ID: "git-twin", Tier: Hold, Who: "git", When: nextGit, everywhere: true,
		Content: "a name that some file system takes for .git: other case, invisible characters, trailing dots, git~1",
		Why:     "on a file system that does not tell the names apart it is .git", Source: "CVE-2014-9390; CVE-2019-1352; CVE-2026-55607",
	},
	{
		ID: "git-modules", Tier: Hold, Who: "git", When: "at the next git submodule command here",
		Paths: []string{".gitmodules"}, judge: onKeys(gitmodulesKeys, func(key, _ string) bool {
			return strings.HasSuffix(key, ".url") || strings.HasSuffix(key, ".update") || strings.HasSuffix(key, ".path")
		}), Content: "url, update and path",
		Why: "it says what is fetched and put where", Source: "gitmodules(5); CVE-2018-17456; CVE-2024-32002",
	},
	{
		ID: "git-delivery", Tier: Hold, Who: "git", When: "at the next checkout", everywhere: true,
		Content: "what a moved ref, a new stash or a changed index entry would put into the work tree is judged like a change of the work tree, and shown as ref → path; this row holds what cannot be read",
		Why:     "a file that is committed and taken out of the tree again comes back with the commit", Source: "git-checkout(1)",
	},
	{
		ID: "git-replace", Tier: Hold, Who: "git", When: "whenever the replaced object is used", everywhere: true,
		Content: "a new or moved refs/replace/*",
		Why:     "git takes another object in the place of the one that was asked for", Source: "git-replace(1)",
	},
	{
		ID: "git-forged", Tier: Hold, Who: "git", When: nextGit, everywhere: true,
		Content: "an object whose content is not what its name says, a multi-pack-index, commit-graph or grafts file",
		Why:     "git would see something else than the objects say", Source: "gitrepository-layout(5)",
	},
	{
		ID: "git-attributes", Tier: Flag, Who: "git", When: "at the next diff, checkout or merge of such a file",
		Paths: []string{".gitattributes", ".git/info/attributes"}, judge: judgeAttributes, Content: "filter=, diff= and merge= that meet a configured driver",
		Why: "a driver that you configured runs on more files", Source: "gitattributes(5)",
	},

	// the agent's harness
	{
		ID: "hutch", Tier: Hold, Who: "hutch", When: "at the next hutch command here",
		Paths: []string{".hutch.toml", ".hutch/**"}, Restricts: true, everywhere: true,
		Why: "it says what the next box may do", Source: "docs/guard.md",
	},
	{
		ID: "harness-settings", Tier: Hold, Who: "the agent's harness", When: nextRun,
		Paths: []string{
			".claude/settings*.json", ".claude/hooks/**", ".claude/plugins/**", ".claude.json", ".claude-plugin/**", ".mcp.json",
			".vscode/mcp.json", ".codex/**", ".gemini/settings*.json", ".gemini/extensions/**", ".gemini/hooks/**", ".gemini/.env",
			".cursor/hooks*", ".cursor/hooks/**", ".cursor/mcp.json", ".cursor/sandbox.json", ".cursor/cli.json", ".cursor/environment.json", ".cursor/worktrees.json", ".cursor/permissions.json",
			"opencode.json", "opencode.jsonc", ".opencode/plugin/**", ".opencode/plugins/**", ".opencode/tool/**", ".opencode/tools/**", ".opencode/opencode.json*",
			".aider*", ".kiro/settings/**", ".kiro/hooks/**", ".roo/mcp.json", ".roomodes", ".amazonq/mcp.json", ".amazonq/cli-agents/**", ".qwen/settings*.json",
			".continue/**", ".continuerc.json", ".windsurf/mcp*.json", ".windsurf/hooks*", ".crush.json", "crush.json", ".goosehints.toml", ".junie/mcp/**",
			".factory/**", ".augment/settings*.json", ".github/hooks/**", ".github/mcp.json", ".copilot/**", ".pi/settings.json", ".pi/extensions/**", ".amp/settings*.json",
		},
		Except:    []string{".aiderignore", ".aider.chat.history.md", ".aider.input.history", ".aider.tags.cache*"},
		Restricts: true,
		Why:       "it says what the harness runs, and what it lets the agent do without asking",
		Source:    "CVE-2026-25725; CVE-2026-33068; CVE-2026-48124; CVE-2025-54135; CVE-2025-53773; CVE-2026-10591",
	},
	{
		ID: "harness-instructions", Tier: Open, Who: "the agent's harness", When: nextRun,
		Paths: []string{
			"agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md", "qwen.md", "warp.md", ".cursorrules", ".windsurfrules", ".clinerules", ".clinerules/**", ".goosehints", ".rules",
			".cursor/rules/**", ".cursor/commands/**", ".cursor/agents/**", ".cursor/skills/**", ".windsurf/rules/**", ".windsurf/workflows/**", ".roo/rules*", ".roo/rules/**", ".roo/commands/**", ".kiro/steering/**", ".kiro/skills/**",
			".claude/skills/**", ".claude/agents/**", ".claude/commands/**", ".claude/rules/**", ".claude/output-styles/**", ".claude/workflows/**", ".agents/**", ".agent/**",
			".opencode/agent/**", ".opencode/agents/**", ".opencode/command/**", ".opencode/commands/**", ".opencode/skills/**", ".gemini/commands/**", ".gemini/skills/**", ".gemini/agents/**",
			".github/copilot-instructions.md", ".github/instructions/**", ".github/prompts/**", ".github/chatmodes/**", ".github/agents/**", ".github/skills/**", ".amazonq/rules/**", ".junie/guidelines.md", ".trae/rules/**", ".augment/rules/**",
			"skill.md",
		},
		judge: judgeInstructions, Content: "held where the front matter defines hooks, servers or permissions",
		Why: "the agent follows it next time", Source: "the harnesses' manuals",
	},

	// the editor's own configuration
	{
		ID: "editor-config", Tier: Hold, Who: "the editor", When: nextOpen,
		Paths: []string{
			".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".vscode/extensions.json", ".vscode/c_cpp_properties.json", ".vscode/*.code-snippets", "*.code-workspace", ".theia/**", ".cursor/settings.json",
			".idea/runconfigurations/**", ".idea/watchertasks.xml", ".idea/tools/**", ".idea/externaltools.xml", ".idea/externaldependencies.xml", ".idea/workspace.xml", ".idea/startup.xml", ".idea/scopes/**", ".idea/tasks.xml",
			".run/**", "*.run.xml", "*.ipr", "*.iws", ".zed/**", ".helix/**", "*.sublime-project", "*.sublime-workspace", ".fleet/**", ".nova/**",
			".vimrc", "_vimrc", ".gvimrc", ".exrc", "_exrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".local.vimrc", ".vim/**", ".nvim/**", "coc-settings.json", ".neoconf.json", ".nlsp-settings/**", ".projections.json", ".dir-locals.el", ".dir-locals-2.el",
			".devcontainer/**", ".devcontainer.json", ".lsp/config.edn", ".clj-kondo/hooks/**", ".bsp/**", ".gitpod.yml", ".kakrc", ".settings/org.eclipse.ui.externaltools*", ".externaltoolbuilders/**",
		},
		Restricts: true,
		Why:       "it names programs that the editor starts, and what it trusts",
		Source:    "CVE-2026-10591; CVE-2025-53536; CVE-2025-55012; the editors' manuals",
	},
	{
		ID: "rust-analyzer", Tier: Hold, Who: "rust-analyzer", When: nextOpen,
		Paths:   []string{"rust-analyzer.toml", ".rust-analyzer.toml"},
		judge:   onKeys(tomlKeys, keyMatches("**.overridecommand", "**.overridecommand.**", "**.server", "**.server.**", "**.extraenv.**", "**.extraenv", "**.extraargs", "**.extraargs.**", "**.sysroot", "**.path")),
		Content: "overrideCommand, server, extraEnv, extraArgs",
		Why:     "it names programs that the editor starts", Source: "rust-analyzer's manual",
	},

	// editors, through project code
	{
		ID: "editor-project-code", Tier: Open, Who: "the editor's language server or extension", When: nextOpen,
		Paths: []string{
			"build.rs", "conftest.py", "eslint.config.*", ".eslintrc*", ".eslintplugin*", "jest.config.*", "vite.config.*", "vitest.config.*", "vitest.workspace.*", "prettier.config.*", ".prettierrc*", "babel.config.*", ".babelrc*",
			"stylelint.config.*", ".stylelintrc*", "tailwind.config.*", "postcss.config.*", ".postcssrc*", "svelte.config.*", "astro.config.*", "nuxt.config.*", "playwright.config.*", ".mocharc*", "karma.conf.*", "wallaby.js", "metro.config.*", "ember-cli-build.js",
			".clangd", "cmakelists.txt", "*.cmake", "cmakepresets.json", "cmakeuserpresets.json", "meson.build",
			"*.csproj", "*.fsproj", "*.vbproj", "*.vcxproj", "*.proj", "*.props", "*.targets", "directory.build.rsp", "global.json",
			"build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "*.gradle", "*.gradle.kts", "build.sbt", "*.sbt", "build.sc", "build.mill",
			"package.swift", "build.zig", "build.zig.zon", "mix.exs", ".formatter.exs", ".credo.exs", "binding.gyp", "*.gypi", "project.pbxproj", "hie.yaml", "setup.hs", "dub.json", "dub.sdl",
			".rubocop.yml", ".solargraph.yml", ".php-cs-fixer*.php", "phpstan.neon*", ".luarc.json", ".luarc.jsonc", "deno.json", "deno.jsonc", "noxfile.py", "project.clj", "bb.edn", "shadow-cljs.edn",
		},
		Why: "editors load it to understand the project", Source: "CVE-2026-10591 and the manuals of the language servers",
	},
	{
		ID: "tsconfig-plugins", Tier: Open, Who: "the editor's TypeScript server", When: nextOpen,
		Paths: []string{"tsconfig*.json", "jsconfig*.json"}, judge: onKeys(jsonKeys, keyMatches("compileroptions.plugins", "compileroptions.plugins.**", "extends", "extends.**")), Content: "compilerOptions.plugins, extends",
		Why: "plugins are loaded into the server", Source: "the TypeScript handbook",
	},
	{
		ID: "cargo-build", Tier: Open, Who: "rust-analyzer", When: nextOpen,
		Paths:   []string{"cargo.toml"},
		judge:   onKeys(tomlKeys, keyMatches("package.build", "package.build.*", "package.metabuild", "lib.proc-macro", "lib.proc_macro", "patch.**", "build-dependencies.**", "target.*.build-dependencies.**")),
		Content: "build, proc-macro, build-dependencies, patch",
		Why:     "build scripts and procedural macros run while the editor analyses", Source: "rust-analyzer's manual on security",
	},
	{
		ID: "go-toolchain", Tier: Open, Who: "the go command, also under the editor", When: nextOpen,
		Paths: []string{"go.mod"}, judge: onKeys(goModKeys, keyMatches("toolchain")), Content: "toolchain lines",
		Why: "it says which toolchain is fetched and run", Source: "go.dev/doc/toolchain",
	},
	{
		ID: "go-work", Tier: Open, Who: "the go command, also under the editor", When: nextOpen,
		Paths: []string{"go.work"}, judge: onKeys(goModKeys, func(key, _ string) bool { return key != "go" }), Content: "its lines, go left out",
		Why: "it puts other code, and another toolchain, in the place of this", Source: "go.dev/ref/mod#workspaces",
	},
	{
		ID: "stdlib-shadow", Tier: Open, Who: "python, also under the editor", When: "when python starts in this directory",
		Paths: []string{"/*.py"}, judge: judgeShadow, Content: "a new module at the top with the name of one of the standard library",
		Why: "it is imported in the place of the standard library's", Source: "python's manual, sys.path",
	},

	// tools that run an interpreter to look at it
	{
		ID: "venv-interpreter", Tier: Hold, Who: "the editor, looking for interpreters", When: nextOpen,
		Paths: []string{"bin/python*", "scripts/python*"}, judge: judgeInterpreter, everywhere: true,
		Content: "in a directory with pyvenv.cfg; the link of a new environment to an installed interpreter passes",
		Why:     "tools run the interpreter of an environment to ask it about itself", Source: "CVE-2026-73217",
	},
	{
		ID: "venv-config", Tier: Hold, Who: "the editor, looking for interpreters", When: nextOpen,
		Paths: []string{"pyvenv.cfg"}, judge: judgeVenvConfig, everywhere: true,
		Content: "a change of one that is there, or a home outside of every installation",
		Why:     "it says where the interpreter finds its library", Source: "PEP 405; CVE-2026-73217",
	},
	{
		ID: "python-startup", Tier: Hold, Who: "python", When: "whenever python starts in that environment",
		Paths: []string{"sitecustomize.py", "usercustomize.py", "sitecustomize/__init__.py", "usercustomize/__init__.py", "*.pth", "site-packages/_virtualenv.py", "site-packages/_distutils_hack/__init__.py", "site-packages/_distutils_hack/override.py", "python*._pth"},
		judge: judgeStartup, everywhere: true, Content: ".pth lines that import, or name a directory outside the workspace; what setuptools and virtualenv put into a new environment passes or, where it imports, is flagged on open",
		Why: "the interpreter runs it before anything else", Source: "python's manual, site; CVE-2026-73217",
	},
	{
		ID: "path-program", Tier: Hold, Who: "your shell, and whatever starts programs by name", When: "at the next command of that name", everywhere: true,
		Content: "a program in a directory of the workspace that is on your PATH",
		Why:     "the directory is on your PATH", Source: "CVE-2026-73217",
	},

	// the shell and its loaders
	{
		ID: "direnv", Tier: Hold, Who: "the shell, through direnv", When: "at the next cd into the directory",
		Paths: []string{".envrc", ".envrc.*", ".direnv/**"}, Except: []string{".envrc.example", ".envrc.sample", ".envrc.template", ".envrc.dist"},
		Why: "it is a script of the shell", Source: "direnv(1)",
	},
	{
		ID: "nix-shell", Tier: Hold, Who: "the shell, through direnv and nix", When: "at the next cd into the directory",
		Paths: []string{"flake.nix", "flake.lock", "shell.nix", "default.nix", "devenv.nix", "devenv.yaml", "devenv.lock", "devbox.json", "devbox.lock"},
		judge: judgeNix, Content: "held where an .envrc stands beside it, else flagged",
		Why: "it says what the shell of this directory holds", Source: "direnv-stdlib(1)",
	},
	{
		ID: "mise", Tier: Hold, Who: "the shell, through mise", When: "at the next cd into the directory",
		Paths: []string{"mise.toml", ".mise.toml", "mise.*.toml", ".mise.*.toml", ".rtx.toml", ".config/mise.toml", "mise/config*.toml", ".mise/config*.toml", ".config/mise/**"},
		judge: onKeys(tomlKeys, func(key, value string) bool {
			return !keyMatches("min_version", "min_version.**", "tools")(key, "") && (!strings.HasPrefix(key, "tools.") || toolElsewhere(value))
		}), Content: "everything but the versions of tools",
		Why: "it sets variables and runs hooks and tasks", Source: "mise's manual",
	},
	{
		ID: "tool-versions", Tier: Hold, Who: "the shell, through asdf or mise", When: "at the next command of a tool it names",
		Paths: []string{".tool-versions"}, judge: onKeys(toolVersionKeys, func(_, value string) bool { return toolElsewhere(value) }), Content: "path: and ref: versions",
		Why: "the tool is taken from there", Source: "asdf's manual",
	},
	{
		ID: "dotenv", Tier: Hold, Who: "whatever loads it: the shell, the harness, the framework", When: "at its next start",
		Paths: []string{".env", ".env.*", ".flaskenv", "*.env"}, Except: []string{".env.example", ".env.sample", ".env.template", ".env.dist", ".env.*.example", ".env.*.sample", ".env.*.template", "*.example.env", "*.sample.env"},
		judge: onKeys(envKeys, loaderVariable), Content: "variables that loaders, git and harnesses obey: PATH, LD_*, NODE_OPTIONS, PYTHON*, GIT_*, *_HOME of a harness, *_BASE_URL; what a shell that reads it would run",
		Why: "it changes what other programs load, or whom they talk to", Source: "CVE-2025-61260",
	},
	{
		ID: "home", Tier: Hold, Who: "the shell, git, the desktop and hutch", When: "at your next login, shell or box",
		Paths: []string{
			".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".pam_environment", ".xinitrc", ".xprofile", ".xsession", ".xsessionrc", ".tmux.conf", ".screenrc",
			".config/fish/**", ".config/environment.d/**", ".config/systemd/**", ".config/autostart/**", ".local/share/systemd/**", ".ssh/**", ".gnupg/**", ".gitconfig", ".config/git/**", ".local/bin/**", ".config/hutch/**", "library/launchagents/**",
		},
		Restricts: true, judge: judgeHome, Content: "where the workspace holds your home directory, or your home links to the file",
		Why: "it is read at every login, or says what every box may do", Source: "bash(1), zsh(1), docs/policy.md",
	},

	// links
	{
		ID: "link-outside", Tier: Hold, Who: "whatever follows the link", When: "at the next write or read through it", everywhere: true,
		Content: "a symlink to a place outside that you can write to, or in /etc; links into /usr, /lib*, /bin, /sbin, /opt, /nix/store and interpreter installations pass",
		Why:     "through it files outside the workspace are changed, or taken for the project's", Source: "CVE-2026-39861; CVE-2026-50549; CVE-2026-103916; CVE-2026-27967",
	},
	{
		ID: "link-onto", Tier: Hold, Who: "whatever follows the link", When: "at the next write through it", everywhere: true,
		Content: "a symlink onto a path that this table holds",
		Why:     "what is written through it is run from there", Source: "CVE-2026-39861",
	},
	{
		ID: "link-for-directory", Tier: Hold, Who: "whatever follows the link", When: "at the next use of the directory", everywhere: true,
		Content: "a symlink in the place of a directory that the host has; within installed packages it passes",
		Why:     "all that was in the directory is now looked for elsewhere", Source: "CVE-2026-50549",
	},
	{
		ID: "hard-link", Tier: Hold, Who: "whoever can write to the other name", When: "at any time", everywhere: true,
		Content: "a file that has names which neither the change nor the layer shows",
		Why:     "the file can be changed under another name", Source: "CVE-2026-103916",
	},

	// rights
	{
		ID: "setuid", Tier: Hold, Who: "any user of the machine", When: "at any time", everywhere: true,
		Content: "a new setuid or setgid bit, or new content of a file that has one",
		Why:     "it runs with the rights of its owner or group", Source: "execve(2)",
	},
	{
		ID: "capabilities", Tier: Hold, Who: "any user of the machine", When: "at any time", everywhere: true,
		Content: "an executable file that carries file capabilities",
		Why:     "it runs with rights of root", Source: "capabilities(7)",
	},
	{
		ID: "world-writable", Tier: Hold, Who: "any user of the machine", When: "at any time", everywhere: true,
		Content: "a new right of everybody to write",
		Why:     "anybody can change what you will run or read", Source: "chmod(1)",
	},
	{
		ID: "executable", Tier: Flag, Who: "whoever runs it", When: "when it is called",
		Content: "a new executable bit on a file that had none",
		Why:     "it was no program before", Source: "chmod(1)",
	},

	// package managers
	{
		ID: "package-config", Tier: Hold, Who: "the package manager or build tool", When: nextTool,
		Paths: []string{
			".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn/releases/**", ".yarn/plugins/**", ".pnpmfile.cjs", ".pnpmfile.mjs", "pnpmfile.js", ".pnp.cjs", ".pnp.loader.mjs", ".node-gyp/**",
			".cargo/config", ".cargo/config.toml", ".cargo/credentials*", ".bundle/config", ".gemrc", "nuget.config", ".config/dotnet-tools.json",
			".rprofile", ".renviron", ".irbrc", ".pryrc", ".ghci", ".haskeline", ".iex.exs", ".psqlrc", ".sqliterc", ".gdbinit", ".lldbinit", ".pdbrc", ".pythonrc", ".pythonrc.py", ".ipython/**",
			".bazelrc", "*.bazelrc", ".bazelversion", ".bazeliskrc", "tools/bazel", "tools/bazel.bat", "tools/bazel.ps1", ".buckconfig*", ".buckconfig.d/**", ".pants.rc",
			"gradle/wrapper/gradle-wrapper.jar", "init.gradle", "init.gradle.kts", ".gradle/init.d/**", ".mvn/**", ".jvmopts", ".sbtopts",
			"ansible.cfg", ".terraform/**", ".terraformrc", "terraform.rc", "pip.conf", "pip.ini", "uv.toml", ".condarc", "condarc", ".pypirc", ".composer/**", ".curlrc", ".wgetrc", ".netrc", "_netrc", ".s3cfg", ".aws/**", ".kube/**", ".docker/config.json",
			".sops.yaml", ".pdm.toml", "poetry.toml", ".mise.local.toml",
		},
		Except:    []string{".mvn/readme.md", ".mvn/wrapper/maven-wrapper.properties"},
		Restricts: true,
		Why:       "it says what the tool runs, and where it takes code from",
		Source:    "the tools' manuals; bazel: tools/bazel is run in bazel's place",
	},
	{
		ID: "package-json-config", Tier: Hold, Who: "the package manager", When: nextTool,
		Paths: []string{"package.json"}, judge: judgePackageConfig, Content: "packageManager given as a URL or path, lint-staged and hook keys where a hook is installed",
		Why: "the program is fetched or run by itself", Source: "corepack's manual",
	},
	{
		ID: "wrapper-properties", Tier: Hold, Who: "gradle or maven, also under the editor", When: nextOpen,
		Paths: []string{"gradle/wrapper/gradle-wrapper.properties", ".mvn/wrapper/maven-wrapper.properties"}, Restricts: true,
		judge: judgeWrapper, Content: "another release from the project's own server, checksum and all, is flagged; everything else is held",
		Why: "the wrapper fetches what it names, and runs it", Source: "gradle's manual, the wrapper; maven-wrapper",
	},
	{
		ID: "gradle-properties", Tier: Hold, Who: "gradle, also under the editor", When: nextOpen,
		Paths: []string{"gradle.properties"}, judge: onKeys(propertyKeys, func(key, value string) bool {
			return strings.HasPrefix(key, "systemprop.") || key == "org.gradle.jvmargs" && !plainJVM(value) || key == "org.gradle.java.home" || strings.HasPrefix(key, "org.gradle.java.installations")
		}), Content: "JVM arguments, JVM homes, system properties",
		Why: "it says which JVM runs, and with which agents", Source: "gradle's manual, build environment",
	},
	{
		ID: "pnpm-workspace", Tier: Hold, Who: "pnpm", When: nextTool,
		Paths: []string{"pnpm-workspace.yaml"}, judge: onKeys(yamlKeys, func(key, _ string) bool {
			return pnpmRuns.has(strings.ReplaceAll(key, "-", ""))
		}), Restricts: true, Content: "config dependencies, hooks and what may run scripts",
		Why: "it says whose code runs during an installation", Source: "pnpm's manual, configDependencies",
	},
	{
		ID: "bunfig", Tier: Hold, Who: "bun", When: nextTool,
		Paths: []string{"bunfig.toml", ".bunfig.toml"}, judge: onKeys(tomlKeys, keyMatches("preload", "preload.**", "**.preload", "**.preload.**", "install.**", "run.**", "define.**", "loader.**")), Restricts: true, Content: "preload, install, run",
		Why: "what it preloads runs first", Source: "bun's manual",
	},
	{
		ID: "rust-toolchain", Tier: Hold, Who: "rustup", When: "at the next cargo command here",
		Paths: []string{"rust-toolchain", "rust-toolchain.toml"}, judge: onKeys(rustToolchainKeys, keyMatches("toolchain.path")), Content: "toolchain.path",
		Why: "the compiler is taken from there", Source: "rustup's manual",
	},
	{
		ID: "pylint", Tier: Hold, Who: "pylint, also under the editor", When: nextOpen,
		Paths: []string{".pylintrc", "pylintrc", "pylintrc.toml", ".pylintrc.toml", "setup.cfg", "tox.ini"}, judge: onKeys(pylintKeys, func(key, _ string) bool {
			key = strings.TrimRight(key, "\"'")
			return strings.HasSuffix(key, "init-hook") || strings.HasSuffix(key, "init_hook")
		}), Content: "init-hook",
		Why: "pylint runs it as code", Source: "pylint's manual",
	},
	{
		ID: "pyproject-tools", Tier: Hold, Who: "pylint, poe and uv, also under the editor", When: nextOpen,
		Paths: []string{"pyproject.toml"}, judge: onKeys(tomlKeys, keyMatches("tool.pylint.**.init-hook", "tool.pylint.**.init_hook", "tool.pylint.init-hook",
			"tool.uv.index-url", "tool.uv.extra-index-url.**", "tool.uv.python-install-mirror", "tool.uv.pypy-install-mirror")), Content: "pylint's init-hook, uv's mirrors of interpreters and indexes",
		Why: "it is run as code, or says where interpreters come from", Source: "the manuals of pylint and uv",
	},
	{
		ID: "package-scripts", Tier: Flag, Who: "the package manager", When: "at the next installation or publication",
		Paths: []string{"package.json"}, judge: onKeys(jsonKeys, keyMatches("scripts.preinstall", "scripts.install", "scripts.postinstall", "scripts.prepare", "scripts.prepublish*", "scripts.prepack", "scripts.postpack", "scripts.postprepare", "scripts.preprepare", "scripts.dependencies",
			"scripts.preuninstall", "scripts.postuninstall", "scripts.uninstall", "scripts.pnpm:devpreinstall")), Content: "scripts that an installation runs",
		Why: "an installation runs it", Source: "npm-scripts(7)",
	},
	{
		ID: "python-build", Tier: Flag, Who: "pip and other front ends", When: "at the next build or installation",
		Paths: []string{"pyproject.toml"}, judge: onKeys(tomlKeys, keyMatches("build-system", "build-system.**", "tool.setuptools.cmdclass.**", "tool.hatch.build.hooks.**", "tool.hatch.build.targets.*.hooks.**", "tool.poetry.build", "tool.poetry.build.**", "tool.pdm.build.**")), Content: "the build backend",
		Why: "the backend runs during a build", Source: "PEP 517",
	},
	{
		ID: "project-builds", Tier: Flag, Who: "make, pip, bundler and their like", When: onBuild,
		Paths: []string{
			"setup.py", "pom.xml", "gemfile", "gems.rb", "*.gemspec", "rakefile", "makefile", "makefile.*", "gnumakefile", "*.mk", "bsdmakefile", "justfile", ".justfile", "taskfile.yml", "taskfile.yaml", "tox.ini", "dodo.py", "tasks.py", "fabfile.py", "wscript", "sconstruct", "sconscript",
			"configure", "configure.ac", "build.xml", "build.sh", "gradlew", "gradlew.bat", "mvnw", "mvnw.cmd", "workspace", "workspace.bazel", "module.bazel", "build.bazel", "*.bzl", "tiltfile", "earthfile", "gulpfile.*", "gruntfile.*", "webpack.config.*", "rollup.config.*", "next.config.*", "composer.json", "magefile.go", "dune", "dune-project", "procfile", "brewfile",
		},
		Why: "it is run by a build, a test or an installation", Source: "the tools' manuals",
	},
	{
		ID: "go-generate", Tier: Flag, Who: "go generate", When: "when you run it",
		Paths: []string{"*.go"}, judge: onKeys(goGenerate, func(string, string) bool { return true }), Content: "//go:generate lines",
		Why: "the line is run as a command", Source: "go help generate",
	},

	// CI, containers, desktop
	{
		ID: "ci", Tier: Flag, Who: "the CI service", When: "at the next push",
		Paths:     []string{".github/workflows/**", ".github/actions/**", "action.yml", "action.yaml", ".github/dependabot.yml", ".github/codeowners", "codeowners", ".gitlab-ci.yml", ".gitlab/ci/**", "jenkinsfile", "jenkinsfile.*", ".circleci/**", "azure-pipelines*.yml", "azure-pipelines*.yaml", ".azure-pipelines/**", ".travis.yml", ".drone.yml", ".woodpecker.yml", ".woodpecker/**", ".buildkite/**", "bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".cirrus.yml", ".builds/**", ".forgejo/workflows/**", ".gitea/workflows/**", "cloudbuild.yaml", "renovate.json", ".readthedocs.yml", ".readthedocs.yaml", "netlify.toml", "vercel.json"},
		Restricts: true,
		Why:       "it runs with the project's secrets", Source: "the services' manuals",
	},
	{
		ID: "containers", Tier: Flag, Who: "docker or podman", When: "when you build or start the container",
		Paths: []string{"dockerfile", "dockerfile.*", "*.dockerfile", "containerfile", "containerfile.*", "compose.yml", "compose.yaml", "compose.*.yml", "compose.*.yaml", "docker-compose*.yml", "docker-compose*.yaml", "docker-bake.hcl", "vagrantfile", "skaffold.yaml"},
		Why:   "it may mount the host's files or take its rights", Source: "docker's manual",
	},
	{
		ID: "desktop", Tier: Hold, Who: "the desktop", When: "when the folder is shown or the file is clicked",
		Paths: []string{"*.desktop", ".directory", "*.lnk", "*.url", "*.webloc", "autorun.inf", "autorun.sh", "desktop.ini", "*.scf", "*.library-ms", "*.search-ms", "*.inetloc", "*.fileloc", "*.terminal", "*.command"},
		Why:   "it starts a program, or fetches from a server, by being shown or clicked", Source: "the Desktop Entry Specification; CVE-2017-8464",
	},
}
