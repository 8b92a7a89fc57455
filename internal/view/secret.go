package view

import (
	"path/filepath"
	"slices"
	"strings"
)

// A row is a line of a table: names, and why they stand there.
type row struct {
	why   string
	names []string
}

// homeSecrets lie in a home. No show lies in one of them; a show that has to
// contain one masks it.
var homeSecrets = []row{
	{"keys and the agents that hold them", []string{
		".ssh", ".gnupg", ".pki", ".local/share/gnupg", ".age", ".config/age", ".config/sops", ".tsh", ".putty"}},
	{"cloud and cluster credentials", []string{
		".aws", ".azure", ".config/gcloud", ".boto", ".s3cfg", ".oci", ".bluemix", ".kube", ".minikube", ".config/rclone", ".config/doctl",
		".config/heroku", ".fly", ".config/fly", ".vercel", ".config/vercel", ".local/share/com.vercel.cli", ".netlify", ".config/netlify", ".wrangler",
		".config/.wrangler", ".config/wrangler", ".cloudflared", ".ngrok2", ".config/ngrok", ".terraform.d", ".terraformrc", ".vault-token", ".snowflake",
		".databrickscfg", ".pulumi", ".config/linode-cli", ".config/hcloud", ".config/scw", ".config/openstack", ".ansible", ".chef", ".config/helm", ".config/argocd"}},
	{"forges, registries and package indexes", []string{
		".netrc", "_netrc", ".git-credentials", ".config/git", ".gitconfig", ".config/gh", ".config/glab-cli", ".config/hub", ".docker", ".config/containers",
		".npmrc", ".yarnrc", ".yarnrc.yml", ".bunfig.toml", ".pypirc", ".pip", ".config/pip", ".config/uv", ".config/pypoetry", ".local/share/uv/credentials",
		".condarc", ".conda", ".continuum", ".gem/credentials", ".local/share/gem/credentials", ".bundle/config", ".cargo/credentials", ".cargo/credentials.toml", ".cargo/config", ".cargo/config.toml",
		".m2/settings.xml", ".m2/settings-security.xml", ".gradle/gradle.properties", ".gradle/init.gradle", ".gradle/init.d", ".nuget/NuGet", ".config/NuGet", ".composer/auth.json",
		".config/composer", ".hex/hex.config", ".pub-cache/credentials.json", ".config/dart", ".sbt/.credentials", ".ivy2/.credentials", ".config/mise", ".config/cabal", ".cabal/config"}},
	{"language models and agents: their tokens, and what was said to them", []string{
		".claude", ".claude.json", ".config/claude", ".codex", ".gemini", ".config/github-copilot", ".copilot", ".openai", ".config/openai", ".anthropic", ".config/anthropic",
		".aider", ".aider.conf.yml", ".continue", ".cursor", ".cache/huggingface/token", ".cache/huggingface/stored_tokens", ".huggingface", ".kaggle", ".config/kaggle", ".config/wandb", ".ollama"}},
	{"databases", []string{
		".pgpass", ".pg_service.conf", ".my.cnf", ".mylogin.cnf", ".mongorc.js", ".config/pgcli", ".local/share/DBeaverData", ".dbeaver"}},
	{"password stores and wallets", []string{
		".password-store", ".local/share/keyrings", ".local/share/kwalletd", ".config/op", ".config/1Password", ".config/Bitwarden", ".config/Bitwarden CLI", ".config/keepassxc",
		".electrum", ".bitcoin", ".ethereum", ".config/solana", ".config/Authy Desktop"}},
	{"browsers, mail and chat", []string{
		".mozilla", ".thunderbird", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".config/microsoft-edge", ".config/vivaldi", ".config/opera", ".config/zen",
		".librewolf", ".cache/mozilla", ".cache/google-chrome", ".cache/chromium", ".cache/BraveSoftware", "snap", ".var/app", ".config/Slack", ".config/discord", ".config/Signal",
		".config/Element", ".local/share/TelegramDesktop", ".purple", ".config/evolution", ".local/share/evolution", ".msmtprc", ".mutt", ".muttrc", ".config/neomutt", ".authinfo", ".authinfo.gpg"}},
	{"histories: commands with passwords in them", []string{
		".bash_history", ".zsh_history", ".zsh_sessions", ".histfile", ".sh_history", ".local/share/fish", ".python_history", ".node_repl_history", ".psql_history", ".mysql_history", ".sqlite_history",
		".rediscli_history", ".irb_history", ".lesshst", ".viminfo", ".local/share/nvim", ".local/state/nvim", ".wget-hsts", ".ipython", ".jupyter", ".local/share/jupyter", ".local/share/atuin"}},
	{"editors, with the tokens of their extensions", []string{
		".config/Code", ".config/Cursor", ".config/VSCodium", ".vscode-server/data", ".cursor-server/data", ".config/JetBrains", ".config/zed", ".emacs.d", ".config/emacs"}},
	{"doors to the session", []string{
		".Xauthority", ".ICEauthority", ".dbus", ".config/systemd", ".config/autostart", ".config/pulse", ".local/share/containers", ".local/share/docker"}},
	{"hutch itself", []string{".local/state/hutch", ".config/hutch"}},
}

// systemSecrets lie in the directories of the system that a box is shown. An
// ordinary user cannot read most of them anyway; root in a box must not.
var systemSecrets = []row{
	{"password hashes, and the copies tools leave", []string{
		"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/security/opasswd"}},
	{"who may become whom", []string{"/etc/sudoers", "/etc/sudoers.d", "/etc/doas.conf"}},
	{"the host's private keys", []string{
		"/etc/ssh/ssh_host_rsa_key", "/etc/ssh/ssh_host_dsa_key", "/etc/ssh/ssh_host_ecdsa_key", "/etc/ssh/ssh_host_ed25519_key",
		"/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt", "/etc/krb5.keytab", "/etc/ipsec.secrets", "/etc/ipsec.d", "/etc/swanctl",
		"/etc/wireguard", "/etc/openvpn", "/etc/credstore", "/etc/credstore.encrypted"}},
	{"networks' passwords", []string{
		"/etc/NetworkManager/system-connections", "/etc/wpa_supplicant", "/etc/iwd", "/etc/ppp", "/etc/netplan"}},
	{"clusters and clouds", []string{
		"/etc/kubernetes", "/etc/rancher", "/etc/cloud", "/etc/boto.cfg", "/etc/vault.d", "/etc/docker", "/etc/containers/auth.json",
		"/etc/cloudflared", "/etc/salt", "/etc/ansible", "/etc/gitlab-runner", "/etc/buildkite-agent"}},
	{"services' passwords", []string{
		"/etc/mysql/debian.cnf", "/etc/redis", "/etc/msmtprc", "/etc/postfix/sasl_passwd", "/etc/exim4/passwd.client",
		"/etc/sssd", "/etc/apt/auth.conf", "/etc/apt/auth.conf.d", "/etc/rsyncd.secrets", "/etc/grafana"}},
}

// dataSecrets lie where the data of the machine and its services is: seen only
// in a box whose whole root is the host's.
var dataSecrets = []row{
	{"databases and queues", []string{
		"/var/lib/mysql", "/var/lib/postgresql", "/var/lib/pgsql", "/var/lib/redis", "/var/lib/mongodb", "/var/lib/mongo", "/var/lib/elasticsearch", "/var/lib/rabbitmq", "/var/lib/influxdb", "/var/lib/couchdb", "/var/lib/ldap"}},
	{"clusters, containers and machines: their data, keys and sockets", []string{
		"/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet", "/var/lib/rancher", "/var/lib/etcd", "/var/lib/k0s", "/var/lib/lxd", "/var/lib/lxc", "/var/lib/incus", "/var/snap", "/var/lib/libvirt", "/var/lib/machines",
		"/var/lib/cloud", "/var/lib/waagent", "/var/lib/amazon", "/var/lib/google", "/var/lib/vault", "/var/lib/consul", "/var/lib/nomad", "/opt/vault"}},
	{"runners and forges", []string{
		"/var/lib/jenkins", "/var/lib/gitlab-runner", "/var/lib/buildkite-agent", "/var/lib/gitea", "/var/lib/forgejo", "/var/opt/gitlab", "/opt/actions-runner"}},
	{"networks, accounts and logins", []string{
		"/var/lib/NetworkManager", "/var/lib/iwd", "/var/lib/sss", "/var/lib/samba", "/var/lib/krb5kdc", "/var/lib/systemd/credential.secret", "/var/lib/systemd/home", "/var/lib/systemd/coredump", "/var/lib/private", "/var/lib/AccountsService", "/var/lib/tailscale", "/var/lib/tor",
		"/var/lib/bluetooth", "/var/lib/fprint", "/var/lib/sudo", "/var/db/sudo", "/var/lib/acme", "/var/lib/caddy", "/var/lib/letsencrypt"}},
	{"mail, jobs, backups and logs with passwords in them", []string{
		"/var/mail", "/var/spool/mail", "/var/spool/cron", "/var/spool/at", "/var/spool/postfix", "/var/spool/cups", "/var/spool/abrt", "/var/backups", "/var/crash", "/var/cache/abrt-di", "/var/cache/private", "/var/cache/debconf/passwords.dat",
		"/var/log/journal", "/var/log/audit", "/var/log/private", "/var/log/auth.log", "/var/log/secure", "/var/log/syslog", "/var/log/messages", "/var/log/btmp", "/var/log/installer", "/var/log/cloud-init.log", "/var/log/cloud-init-output.log"}},
	{"the boot loader's password and the images with keys in them", []string{"/boot/grub", "/boot/grub2", "/boot/efi", "/boot/loader"}},
	{"sockets of a package manager's daemon", []string{"/nix/var/nix/daemon-socket", "/var/guix/daemon-socket"}},
	{"hutch itself", []string{"/var/lib/hutch"}},
}

// prefixSecrets may lie in any directory that PATH led to.
var prefixSecrets = row{"a prefix carries the config of its package manager", []string{".condarc", "etc/npmrc", ".netrc", ".env"}}

// secretNames are words that make a variable's name a secret's. Looked for in
// each part of a name, so that AUTH is found in OAUTH2, and not in AUTHOR.
var secretNames = []string{
	"KEY", "TOKEN", "SECRET", "PASS", "PWD", "CREDENTIAL", "CREDS", "CRED", "AUTH", "COOKIE", "SESSION", "PRIVATE", "BEARER", "JWT", "SIGNATURE", "SIGNING", "DSN",
	"CONNSTR", "WEBHOOK", "VAULT", "KUBECONFIG", "CERTIFICATE", "SALT", "OTP", "MNEMONIC", "SEED",
}

// harmlessWords hold a secret word by accident.
var harmlessWords = []string{"AUTHOR", "AUTHORS", "KEYBOARD", "KEYMAP", "KEYTIMEOUT", "TOKENIZERS", "GOPRIVATE", "PYTHONHASHSEED"}

// secretSuffixes are ends of names whose values are addresses with a password
// in them, as a rule.
var secretSuffixes = []string{"DATABASE_URL", "REDIS_URL", "MONGO_URL", "MONGODB_URI", "AMQP_URL", "RABBITMQ_URL", "POSTGRES_URL", "MYSQL_URL", "CONNECTION_STRING", "DB_URL", "DB_URI"}

// secretStarts are beginnings of well-known tokens, whatever holds them.
var secretStarts = []string{
	"ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "glcbt-", "glrt-", "gldt-", "glptt-", "sk-", "sk_live_", "sk_test_", "rk_live_", "whsec_", "xoxb-", "xoxp-", "xoxe-", "xoxs-", "xapp-", "AKIA", "ASIA", "AIza", "ya29.",
	"npm_", "pypi-", "rubygems_", "dckr_pat_", "hf_", "gsk_", "xai-", "r8_", "eyJ", "hvs.", "hvb.", "dop_v1_", "doo_v1_", "SG.", "shpat_", "sntrys_", "lin_api_", "ATATT", "figd_", "PMAK-", "AGE-SECRET-KEY-", "tskey-", "-----BEGIN",
}

// secretName reports whether a variable's name says that it holds a secret.
func secretName(name string) bool {
	upper := strings.ToUpper(name)
	for _, s := range secretSuffixes {
		if strings.HasSuffix(upper, s) {
			return true
		}
	}
	for word := range strings.FieldsFuncSeq(upper, func(r rune) bool { return r == '_' || r == '-' || r == '.' }) {
		if slices.Contains(harmlessWords, word) {
			continue
		}
		for _, s := range secretNames {
			if strings.Contains(word, s) {
				return true
			}
		}
	}
	return false
}

// secretValue reports whether a value looks like a secret whatever its name:
// an address with a user in it, or a well-known kind of token.
func secretValue(value string) bool {
	for rest := value; ; {
		_, after, found := strings.Cut(rest, "://")
		if !found {
			break
		}
		authority := after
		if end := strings.IndexAny(after, "/?# ,\t\n"); end >= 0 {
			authority = after[:end]
		}
		_, port, _ := strings.Cut(authority[strings.LastIndexByte(authority, ']')+1:], ":")
		port, _, _ = cutAny(port, "|;'\"<>)")
		if strings.Contains(authority, "@") || strings.Trim(port, "0123456789") != "" { // a password with a slash in it is no port
			return true
		}
		rest = after
	}
	if secretLogin(value) || secretParameter(value) {
		return true
	}
	// A token may stand anywhere in a value: after a flag, in quotes.
	const shortest = 16 // of a token; "sk-" begins words, too
	for word := range strings.FieldsFuncSeq(value, func(r rune) bool { return r <= ' ' || strings.ContainsRune("=:,;'\"`<>()[]{}|&@/", r) }) {
		if len(word) >= shortest && slices.ContainsFunc(secretStarts, func(s string) bool { return strings.HasPrefix(word, s) }) {
			return true
		}
	}
	return strings.Contains(value, "-----BEGIN ")
}

// secretLogin reports whether a value has user:password@host in it, which some
// programs take without a scheme, or with an escaped one.
func secretLogin(value string) bool {
	for before, rest, found := strings.Cut(value, "@"); found; before, rest, found = strings.Cut(rest, "@") {
		login := before[strings.LastIndexAny(before, "/ \t\n,;")+1:]
		if _, password, ok := strings.Cut(login, ":"); ok && password != "" && rest != "" {
			return true
		}
	}
	return false
}

// secretParameter reports whether the query of an address has a parameter that
// says it is a secret.
func secretParameter(value string) bool {
	_, rest, _ := strings.Cut(value, "://")
	_, query, found := strings.Cut(rest, "?")
	if !found {
		return false
	}
	for parameter := range strings.FieldsFuncSeq(query, func(r rune) bool { return strings.ContainsRune("?&; \t\"'", r) }) {
		name, text, _ := strings.Cut(parameter, "=")
		if text != "" && (secretName(name) || strings.EqualFold(name, "sig")) {
			return true
		}
	}
	return false
}

// secretSegment reports whether the path of an address has a name in it that
// nobody chose: letters and digits in disorder. Some package indexes take a
// token there.
func secretSegment(value string) bool {
	const shortest = 12
	_, rest, _ := strings.Cut(value, "://")
	_, path, found := strings.Cut(rest, "/")
	if !found {
		return false
	}
	for name := range strings.FieldsFuncSeq(path, func(r rune) bool { return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') }) {
		changes := 0
		for i := 1; i < len(name); i++ {
			if (name[i] <= '9') != (name[i-1] <= '9') {
				changes++
			}
		}
		if len(name) >= shortest && changes >= 4 {
			return true
		}
	}
	return false
}

// homeOf returns the home a path lies in, by where homes usually are; "" for
// none.
func homeOf(path string) string {
	parts := strings.SplitN(path, "/", 5)
	switch {
	case len(parts) >= 2 && parts[1] == "root":
		return "/root"
	case len(parts) >= 3 && (parts[1] == "home" || parts[1] == "Users"):
		return "/" + filepath.Join(parts[1], parts[2])
	case len(parts) >= 4 && parts[1] == "var" && parts[2] == "home":
		return filepath.Join("/var/home", parts[3])
	}
	return ""
}
