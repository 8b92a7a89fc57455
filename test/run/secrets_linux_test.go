package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hutch/test/lab"
)

const canary = "canary-7d1f0c93"

// homeOfSecrets are files as they lie in homes. A %s stands for a secret of the
// file's own.
var homeOfSecrets = map[string]string{
	".ssh/id_rsa": "-----BEGIN OPENSSH PRIVATE KEY-----\n%s\n", ".ssh/id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY-----\n%s\n", ".ssh/config": "Host x\n  User %s\n", ".ssh/known_hosts": "%s ssh-ed25519 AAAA\n", ".ssh/authorized_keys": "ssh-ed25519 %s\n",
	".gnupg/private-keys-v1.d/0.key": "%s", ".gnupg/trustdb.gpg": "%s", ".pki/nssdb/key4.db": "%s", ".age/key.txt": "AGE-SECRET-KEY-%s", ".config/sops/age/keys.txt": "AGE-SECRET-KEY-%s", ".tsh/keys/x": "%s",
	".aws/credentials": "[default]\naws_secret_access_key = %s\n", ".aws/sso/cache/x.json": `{"accessToken":"%s"}`, ".azure/msal_token_cache.json": `{"secret":"%s"}`, ".config/gcloud/credentials.db": "%s", ".config/gcloud/application_default_credentials.json": `{"refresh_token":"%s"}`,
	".boto": "gs_oauth2_refresh_token = %s\n", ".s3cfg": "secret_key = %s\n", ".oci/oci_api_key.pem": "%s", ".kube/config": "token: %s\n", ".minikube/profiles/minikube/client.key": "%s", ".config/rclone/rclone.conf": "pass = %s\n", ".config/doctl/config.yaml": "access-token: %s\n",
	".fly/config.yml": "access_token: %s\n", ".local/share/com.vercel.cli/auth.json": `{"token":"%s"}`, ".config/netlify/config.json": `{"auth":"%s"}`, ".config/.wrangler/config/default.toml": "oauth_token = \"%s\"\n", ".cloudflared/cert.pem": "%s", ".config/ngrok/ngrok.yml": "authtoken: %s\n",
	".terraform.d/credentials.tfrc.json": `{"token":"%s"}`, ".terraformrc": "token = \"%s\"\n", ".vault-token": "%s", ".pulumi/credentials.json": `{"accessTokens":"%s"}`, ".snowflake/config.toml": "password = \"%s\"\n", ".databrickscfg": "token = %s\n", ".config/hcloud/cli.toml": "token = \"%s\"\n",
	".netrc": "machine x login y password %s\n", ".git-credentials": "https://ann:%s@github.com\n", ".config/git/credentials": "https://ann:%s@github.com\n", ".config/gh/hosts.yml": "oauth_token: %s\n", ".config/glab-cli/config.yml": "token: %s\n", ".config/hub": "oauth_token: %s\n",
	".docker/config.json": `{"auths":{"x":{"auth":"%s"}}}`, ".config/containers/auth.json": `{"auths":{"x":{"auth":"%s"}}}`,
	".gitconfig": "[user]\n\tname = Ann Author\n\temail = ann@example.com\n[credential]\n\thelper = \"!echo password=%[1]s\"\n[url \"https://x:%[1]s@github.com/\"]\n\tinsteadOf = https://github.com/\n[http]\n\textraheader = Authorization: Basic %[1]s\n[github]\n\ttoken = %[1]s\n",
	".npmrc":     "registry=HTTPS://registry.example.com/\n//registry.example.com/:_authToken=%[1]s\n_password=%[1]s\n@x:registry=HTTPS://ann:%[1]s@npm.example.com/\n",
	".yarnrc":    "\"//registry/:_authToken\" \"%s\"\n", ".yarnrc.yml": "nodeLinker: node-modules\nnpmAuthToken: \"%s\"\n", ".bunfig.toml": "[install]\nexact = true\nregistry = { url = \"https://r\", token = \"%[1]s\" }\n[install.scopes.corp]\nurl = \"https://r.example.com/?token=%[1]s\"\ntoken = \"%[1]s\"\n", ".pypirc": "[pypi]\npassword = %s\n",
	".pip/pip.conf": "[global]\nindex-url = HTTPS://ann:%s@pypi.example.com/simple\n", ".config/pip/pip.conf": "[global]\ntimeout = 7\nextra-index-url =\n  https://ann:%s@pypi.example.com/simple\n", ".config/uv/uv.toml": "link-mode = \"copy\"\n[[index]]\nurl = \"https://ann:%s@pypi.example.com/simple\"\n", ".local/share/uv/credentials/credentials.toml": "password = \"%s\"\n",
	".config/pypoetry/auth.toml": "password = \"%s\"\n", ".condarc": "channels: [https://ann:%s@conda]\n", ".gem/credentials": ":rubygems_api_key: %s\n", ".bundle/config": "BUNDLE_X: \"u:%s\"\n", ".cargo/credentials.toml": "[registry]\ntoken = \"%s\"\n", ".cargo/credentials": "[registry]\ntoken = \"%s\"\n",
	".cargo/config.toml": "[build]\njobs = 3\n[registries.corp]\nindex = \"https://cargo.example.com\"\ntoken = \"%s\"\n", ".m2/settings.xml": "<password>%s</password>", ".gradle/gradle.properties": "signing.password=%s\n", ".nuget/NuGet/NuGet.Config": "<add key=\"ClearTextPassword\" value=\"%s\" />", ".composer/auth.json": `{"github-oauth":{"github.com":"%s"}}`,
	".config/composer/auth.json": `{"http-basic":"%s"}`, ".hex/hex.config": "{api_key,<<\"%s\">>}.", ".sbt/.credentials": "password=%s\n", ".pub-cache/credentials.json": `{"accessToken":"%s"}`,
	".claude/.credentials.json": `{"accessToken":"%s"}`, ".claude.json": `{"oauthAccount":"%s"}`, ".codex/auth.json": `{"OPENAI_API_KEY":"%s"}`, ".gemini/oauth_creds.json": `{"access_token":"%s"}`, ".config/github-copilot/apps.json": `{"oauth_token":"%s"}`, ".aider.conf.yml": "openai-api-key: %s\n", ".continue/config.json": `{"apiKey":"%s"}`, ".cursor/mcp.json": `{"TOKEN":"%s"}`,
	".cache/huggingface/token": "%s", ".kaggle/kaggle.json": `{"key":"%s"}`, ".pgpass": "db:5432:*:ann:%s\n", ".my.cnf": "[client]\npassword=%s\n", ".mylogin.cnf": "%s", ".password-store/x.gpg": "%s", ".local/share/keyrings/login.keyring": "%s", ".config/op/config": `{"x":"%s"}`, ".config/Bitwarden/data.json": `{"x":"%s"}`,
	".electrum/wallets/default_wallet": "%s", ".bitcoin/wallet.dat": "%s", ".config/solana/id.json": "%s", ".mozilla/firefox/x.default/logins.json": `{"x":"%s"}`, ".config/google-chrome/Default/Login Data": "%s", ".config/chromium/Default/Cookies": "%s", ".config/BraveSoftware/x": "%s", ".thunderbird/x/key4.db": "%s", ".config/Slack/Cookies": "%s", ".config/discord/x": "%s", ".config/Signal/config.json": "%s",
	".msmtprc": "password %s\n", ".authinfo": "machine x password %s\n", ".mutt/passwords": "%s", ".bash_history": "export TOKEN=%s\n", ".zsh_history": "curl -u x:%s\n", ".python_history": "x='%s'\n", ".psql_history": "alter user x password '%s';\n", ".local/share/fish/fish_history": "- cmd: %s\n", ".node_repl_history": "%s\n", ".viminfo": "%s\n", ".mysql_history": "%s\n", ".ipython/profile_default/history.sqlite": "%s",
	".config/Code/User/globalStorage/state.vscdb": "%s", ".vscode-server/data/User/x": "%s", ".config/JetBrains/x/c.kdbx": "%s", ".Xauthority": "%s", ".config/hutch/trusted": "%s", ".local/state/hutch/receipts.jsonl": "%s", ".config/systemd/user/x.service": "Environment=TOKEN=%s\n",
}

func plantSecrets(t *testing.T, w *lab.World) []string {
	t.Helper()
	var paths []string
	for path, text := range homeOfSecrets {
		full := filepath.Join(w.Home, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(fmt.Sprintf(text, canary+"-secret")), 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, full)
	}
	slices.Sort(paths)
	// Nothing that holds a secret, and must be seen where the home is.
	if err := os.WriteFile(filepath.Join(w.Home, "notes.txt"), []byte("plain notes\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return paths
}

// searchScript prints the files in which a canary lies, and the variables; $@
// are the directories to search.
const searchScript = `
grep -rlaF "` + canary + `" "$@" 2>/dev/null | sort -u
env | grep -aF ` + canary + `
cat /proc/[0-9]*/environ 2>/dev/null | tr '\0' '\n' | grep -aF ` + canary + `
exit 0`

// TestNoSecretIsFound searches all that a box can read for the secrets of a home
// that is full of them.
func TestNoSecretIsFound(t *testing.T) {
	w := lab.New(t)
	planted := plantSecrets(t, w)
	if len(planted) < 80 {
		t.Fatalf("only %d kinds of secret", len(planted))
	}
	w.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "DEPLOY_TOKEN=" + canary, "EMAIL=ghp_" + canary + canary, "HTTPS_PROXY=http://ann:" + canary + "@proxy:3128", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=x.y", "GIT_CONFIG_VALUE_0=" + canary}

	// The same search without a box finds them all.
	bare := exec.Command("sh", append([]string{"-c", searchScript, "sh"}, w.Home)...)
	bare.Env = w.Environ()
	out, err := bare.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Split(string(out), "\n")
	for _, path := range planted {
		if !slices.Contains(found, path) {
			t.Errorf("the search does not find %s", path)
		}
	}
	if !slices.Contains(found, "DEPLOY_TOKEN="+canary) {
		t.Error("the search does not find a variable")
	}

	dirs := []string{w.Base, w.Home, "/etc", "/tmp", "/run", "/root", "/home", "/dev/shm", "/var/tmp", "/var/lib/hutch"}
	if lab.Proof() {
		dirs = append(dirs, "/var", "/opt", "/srv", "/mnt", "/boot", "/usr/local")
	}
	before := lab.Snapshot(t, w.Home)
	for _, profile := range []string{"default", "build", "whole-root", "strict", "offline-agent"} {
		if profile != "default" && profile != "whole-root" && !lab.Proof() {
			continue
		}
		t.Run(profile, func(t *testing.T) {
			subprocess := []string{"--profile", profile}
			if profile == "strict" {
				return // it starts one program, and a search is several
			}
			r := w.Box(append(subprocess, append([]string{"--", "sh", "-c", searchScript, "sh"}, dirs...)...)...)
			w.Want(r, 0)
			if r.Stdout != "" {
				t.Errorf("found in the box:\n%s", r.Stdout)
			}
			r = w.Box(append(subprocess, "--", "sh", "-c", `git config user.name; git config user.email; git config --global --list | grep -c helper; cat ~/.npmrc ~/.config/pip/pip.conf; [ -e ~/.ssh ] || echo absent; cat ~/notes.txt`)...)
			want := "Ann Author\nann@example.com\n0\nregistry=HTTPS://registry.example.com/\n[global]\ntimeout =\n    7\nabsent\n"
			if profile == "whole-root" {
				want += "plain notes\n"
			}
			if r.Stdout != want {
				t.Errorf("what is useful is not there: %v\nwant %s", r, want)
			}
		})
	}
	for _, d := range before.Diff(lab.Snapshot(t, w.Home)) {
		t.Errorf("HOME on the host changed: %s", d)
	}
}

// TestRealisticEnvironment runs the table of internal/view end to end.
func TestRealisticEnvironment(t *testing.T) {
	text, err := os.ReadFile("../../internal/view/testdata/environment.txt")
	if err != nil {
		t.Fatal(err)
	}
	w := lab.New(t)
	var pass, stop []string
	for line := range strings.Lines(string(text)) {
		verdict, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		v = strings.NewReplacer("{home}", w.Home, "{ws}", w.Dir).Replace(v)
		switch {
		case !ok:
		case verdict == "pass":
			pass = append(pass, v)
		case verdict == "stop" && !strings.HasPrefix(v, "HUTCH_"):
			stop = append(stop, v)
		}
	}
	seen := func(env []string) []string {
		w.Env = env
		r := w.Box("--", "sh", "-c", "tr '\\0' '\\n' < /proc/$$/environ")
		w.Want(r, 0)
		return strings.Split(r.Stdout, "\n")
	}
	// A name may stand on both sides, with values that are judged differently.
	got := seen(pass)
	for _, v := range pass {
		if !slices.Contains(got, v) {
			t.Errorf("did not pass: %s", v)
		}
	}
	got = seen(stop)
	for _, v := range stop {
		if slices.Contains(got, v) {
			t.Errorf("passed: %s", v)
		}
	}
	if len(pass)+len(stop) < 200 {
		t.Errorf("%d and %d variables", len(pass), len(stop))
	}
}

// TestGitCommitsInABox: git has its user, whatever helpers the host has.
func TestGitCommitsInABox(t *testing.T) {
	w := lab.New(t)
	if err := os.WriteFile(filepath.Join(w.Home, ".gitconfig"), []byte("[user]\n\tname = Ann Author\n\temail = ann@example.com\n[credential]\n\thelper = store\n[commit]\n\tgpgsign = true\n[core]\n\thooksPath = /nowhere\n\tpager = delta\n\tfsmonitor = /nowhere/x\n[init]\n\tdefaultBranch = trunk\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := w.Box("--", "sh", "-ec", "git init -q; echo x > f; git add f; git commit -qm first; git log --format='%an %ae %D'; git credential fill < /dev/null >/dev/null 2>&1 || true; git config --global user.name Other; git config user.name")
	w.Want(r, 0)
	if r.Stdout != "Ann Author ann@example.com HEAD -> trunk\nOther\n" {
		t.Errorf("%v", r)
	}
	if text, _ := os.ReadFile(filepath.Join(w.Home, ".gitconfig")); strings.Contains(string(text), "Other") {
		t.Error("what the box set is on the host")
	}
}
