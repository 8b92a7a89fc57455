package run

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"hutch/test/lab"
)

func TestNoNetworkInside(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		reached := make(chan bool, 1)
		go func() {
			if c, err := l.Accept(); err == nil {
				reached <- true
				c.Close()
			}
		}()
		w.Host("true")
		r := w.Box("--", "python3", "-c", fmt.Sprintf(`
import socket
for host, port in (("127.0.0.1", %d), ("169.254.169.254", 80), ("192.0.2.1", 80), ("::1", %d), ("2001:db8::1", 80)):
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.settimeout(10)
    try:
        s.connect((host, port))
        print("reached", host)
    except OSError as e:
        print("refused", host)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    u.sendto(b"x", ("192.0.2.1", 53))
    print("sent")
except OSError as e:
    print("not sent")
`, l.Addr().(*net.TCPAddr).Port, l.Addr().(*net.TCPAddr).Port))
		w.Want(r, 0)
		want := "refused 127.0.0.1\nrefused 169.254.169.254\nrefused 192.0.2.1\nrefused ::1\nrefused 2001:db8::1\nnot sent\n"
		if r.Stdout != want {
			t.Errorf("network inside: %q", r.Stdout)
		}
		select {
		case <-reached:
			t.Error("the host's listener was reached")
		default:
		}
	})
}

func TestLoopbackInsideWorks(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--", "python3", "-c", `
import socket
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname(), 10)
s, _ = l.accept()
c.sendall(b"hello")
print(s.recv(5).decode())`)
	w.Want(r, 0)
	if r.Stdout != "hello\n" {
		t.Errorf("stdout %q", r.Stdout)
	}
}

const marker = "c0ffee-this-is-a-secret"

// secrets are files of a home that no box may see.
var secrets = []string{
	".ssh/id_ed25519", ".ssh/config", ".aws/credentials", ".gnupg/private-keys-v1.d/k.key", ".netrc", ".config/gh/hosts.yml",
	".kube/config", ".docker/config.json", ".bash_history", ".zsh_history", ".python_history", ".mozilla/firefox/p/logins.json",
	".config/google-chrome/Default/Login Data", ".config/gcloud/credentials.db", ".azure/accessTokens.json", ".git-credentials",
	".npmrc", ".pypirc", ".cargo/credentials.toml", ".config/op/config", ".terraform.d/credentials.tfrc.json",
	".local/share/keyrings/login.keyring", "Documents/private.txt",
}

func TestSecretsOfHomeAreAbsent(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		for _, s := range secrets {
			path := filepath.Join(w.Home, s)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(marker+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		w.Write("names", strings.Join(secrets, "\n")+"\n")
		before := lab.Snapshot(t, w.Home)
		r := w.Box("--", "sh", "-c", `
			while read -r name; do [ -e "$HOME/$name" ] && echo "there: $name"; done < names
			grep -rl `+marker+` "$HOME" 2>/dev/null
			echo x > "$HOME/written" && mkdir -p "$HOME/.config/tool" && echo home is writable`)
		if r.Stdout != "home is writable\n" {
			t.Errorf("HOME inside: %v", r)
		}
		for _, d := range before.Diff(lab.Snapshot(t, w.Home)) {
			t.Errorf("HOME on the host changed: %s", d)
		}
		if r := w.Box("--", "sh", "-c", `ls "$HOME/written"`); r.Code == 0 {
			t.Error("what one box wrote to HOME, the next one sees")
		}
	})
}

func TestSecretsOfTheEnvironmentAreAbsent(t *testing.T) {
	w := lab.New(t)
	w.Env = []string{
		"AWS_SECRET_ACCESS_KEY=" + marker, "GITHUB_TOKEN=" + marker, "OPENAI_API_KEY=" + marker, "DB_PASSWORD=" + marker,
		"MY_CREDENTIALS=" + marker, "HTTP_AUTH=" + marker, "SSH_AUTH_SOCK=/tmp/" + marker, "SOMETHING_ELSE=" + marker,
		"LD_PRELOAD_NOT=" + marker, "DBUS_SESSION_BUS_ADDRESS=" + marker, "TZ=Europe/Berlin",
	}
	r := w.Box("--", "sh", "-c", "env; tr '\\0' '\\n' < /proc/1/environ; tr '\\0' '\\n' < /proc/self/environ")
	if strings.Contains(r.Stdout, marker) {
		t.Errorf("a secret of the environment came in\n%v", r)
	}
	for _, want := range []string{"PATH=", "HOME=" + w.Home + "\n", "LANG=C.UTF-8\n", "TERM=dumb\n", "TZ=Europe/Berlin\n"} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("the environment lacks %q\n%v", want, r)
		}
	}
}

func TestWorkspaceIsAtItsOwnPath(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		r := w.Box("--", "sh", "-c", `pwd; /bin/pwd; cat "$0"`, filepath.Join(w.Dir, "README.md"))
		w.Want(r, 0)
		if want := w.Dir + "\n" + w.Dir + "\n# sample\n"; r.Stdout != want {
			t.Errorf("stdout %q, want %q", r.Stdout, want)
		}
	})
}

func TestHostBeyondTheWorkspaceIsAbsentOrReadOnly(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Write("../beside.txt", marker)
		tmp, err := os.CreateTemp("/tmp", "hutch-host-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(tmp.Name())
		probe := "/tmp/hutch-box-" + filepath.Base(w.Base)
		r := w.Box("--", "sh", "-c", `
			[ -e ../beside.txt ] && echo "sees what is beside the workspace"
			[ -e "$1" ] && echo "sees the host's /tmp"
			echo x > "$2" || echo "cannot write /tmp"
			for d in / /usr /usr/bin /etc /bin /lib /var /opt /boot /root /proc /sys /dev/null/..; do
				( echo x > $d/hutch-probe ) 2>/dev/null && [ -e $d/hutch-probe ] && case $d in /root) ;; *) echo "wrote to $d";; esac
			done
			[ -r /etc/shadow ] && cat /etc/shadow 2>/dev/null | grep -q : && echo "reads /etc/shadow"
			[ -S /run/docker.sock ] && echo "sees the docker socket"
			[ -e /dev/sda ] || [ -e /dev/vda ] || [ -e /dev/mem ] || [ -e /dev/kmsg ] && echo "sees a device of the host"
			exit 0`, "sh", tmp.Name(), probe)
		w.Want(r, 0)
		if r.Stdout != "" {
			t.Errorf("%v", r)
		}
		if _, err := os.Lstat(probe); err == nil {
			os.Remove(probe)
			t.Error("what the box wrote to /tmp is on the host")
		}
		for _, d := range []string{"/usr", "/etc", "/var", "/opt"} {
			if _, err := os.Lstat(d + "/hutch-probe"); err == nil {
				t.Errorf("the box wrote to %s of the host", d)
			}
		}
	})
}

func TestJail(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ name, script, want string }{
			{"no capabilities", "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u", "0000000000000000\n"},
			{"no new privileges", "grep NoNewPrivs /proc/self/status | cut -f2", "1\n"},
			{"seccomp", "grep Seccomp: /proc/self/status | cut -f2", "2\n"},
			{"PID 1 is confined too", "grep -E 'Seccomp:|CapEff' /proc/1/status | cut -f2", "0000000000000000\n2\n"},
			{"own pids", "[ $(ls /proc | grep -c '^[0-9]') -lt 10 ] && echo few", "few\n"},
			{"only standard fds", "ls /proc/self/fd | tr '\\n' ' '", "0 1 2 3 "}, // 3 is ls itself
			{"no user namespace", "unshare -U true 2>/dev/null && echo made; true", ""},
			{"no mount namespace", "unshare -m true 2>/dev/null && echo made; true", ""},
			{"no mount", "mount -t tmpfs none /tmp 2>/dev/null && echo mounted; true", ""},
			{"null and zero and random", "head -c3 /dev/zero | wc -c; head -c3 /dev/urandom | wc -c; echo x > /dev/null; echo ok", "3\n3\nok\n"},
			{"shared memory", "echo x > /dev/shm/x && cat /dev/shm/x", "x\n"},
			{"lo alone", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo\n"},
			{"its own name is known", "getent hosts $(hostname) > /dev/null && hostname -f", "localhost\n"},
			{"no input is the null device", "readlink /proc/self/fd/0; cat", "/dev/null\n"},
			{"which nobody gives another mode", "chmod 600 /proc/self/fd/0 2>/dev/null || echo refused", "refused\n"},
			{"nobody else's files", "touch g; for to in 12345 :12345; do for h in '' -h; do chown $h $to g 2>&1 | grep -o 'Operation not permitted'; done; done | sort | uniq -c | tr -s ' '", " 4 Operation not permitted\n"},
			{"one's own", "touch g && chown -h $(id -u):$(id -g) g && chown $(id -u) g && chgrp $(id -g) g && echo mine", "mine\n"},
			{"message queues", ": > /dev/mqueue/q && ls /dev/mqueue; rm /dev/mqueue/q && ls /dev/mqueue", "q\n"},
			{"workspace is writable", "echo x > f && cat f", "x\n"},
		} {
			t.Run(c.name, func(t *testing.T) {
				r := w.Box("--", "sh", "-c", c.script)
				if r.Code != 0 || r.Stdout != c.want {
					t.Errorf("%s: %q, want %q\n%v", c.script, r.Stdout, c.want, r)
				}
			})
		}
		if r := w.Box("--", "uname", "-n"); strings.TrimSpace(r.Stdout) == host {
			t.Errorf("the box has the host's name %q", host)
		}
	})
}

func TestRunsAsTheInvokingUser(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		r := w.Box("--commit", "--", "sh", "-c", "id -u; echo x > mine")
		w.Want(r, 0)
		if want := strconv.Itoa(os.Geteuid()) + "\n"; r.Stdout != want {
			t.Errorf("uid inside %q, want %q", r.Stdout, want)
		}
		if n := w.Snap()["mine"]; int(n.UID) != os.Geteuid() {
			t.Errorf("the promoted file belongs to %d", n.UID)
		}
	})
}

func TestRootRunsAsTheOwnerOfTheWorkspace(t *testing.T) {
	if !root() {
		t.Skip("an ordinary user has no other owner to become; TestRunsAsTheInvokingUser is its half")
	}
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Host("chown", "-hR", "1000:1000", w.Dir)
		before := w.Snap()
		r := w.Box("--", "sh", "-c", "id -u; id -g; echo x >> a.txt; echo y > mine; exit 1")
		w.Want(r, 1)
		if r.Stdout != "1000\n1000\n" {
			t.Errorf("ids inside %q", r.Stdout)
		}
		w.Untouched(before)
		r = w.Box("--", "sh", "-c", "echo out > /dev/stdout && echo err > /dev/stderr")
		if w.Want(r, 0); r.Stdout != "out\n" || r.Stderr != "err\n" {
			t.Errorf("/dev/stdout and /dev/stderr: %v", r)
		}
		w.Want(w.Box("--commit", "--", "sh", "-c", "echo x >> a.txt; echo y > mine"), 0)
		after := w.Snap()
		for _, rel := range []string{"a.txt", "mine"} {
			if after[rel].UID != 1000 || after[rel].GID != 1000 {
				t.Errorf("%s belongs to %d:%d after the commit", rel, after[rel].UID, after[rel].GID)
			}
		}
		r = w.Box("--user", "root", "--", "id", "-u")
		w.Want(r, 0)
		if r.Stdout != "0\n" {
			t.Errorf("uid with --user root: %q", r.Stdout)
		}
	})
}

func TestRootMeetsFilesOfOthers(t *testing.T) {
	if !root() {
		t.Skip("needs files of several owners, which only root can make")
	}
	lab.Each(t, func(t *testing.T, w *lab.World) {
		w.Sample()
		w.Host("chown", "1234:4321", w.Dir+"/a.txt", w.Dir+"/dir", w.Dir+"/dir/other.txt")
		w.Host("chmod", "600", w.Dir+"/a.txt")
		before := w.Snap()
		out, r := w.JSON("--user", "root", "--", "sh", "-c", "cat a.txt; stat -c %u:%g a.txt dir")
		w.Want(r, 0)
		if out.FilesystemModified {
			t.Errorf("reading changed %v", out.Diff)
		}
		if !strings.HasSuffix(out.Stdout, "1234:4321\n1234:4321\n") {
			t.Errorf("owners inside: %q", out.Stdout)
		}
		w.Untouched(before)
	})
}

func TestNothingOfHutchIsInTheBox(t *testing.T) {
	w := lab.New(t)
	r := w.Box("--", "sh", "-c", "readlink /proc/1/exe; ls -d "+w.State+" 2>/dev/null; cat /proc/mounts")
	if strings.Contains(strings.SplitN(r.Stdout, "\n", 2)[0], lab.Hutch(t)) {
		t.Errorf("/proc/1/exe leads to the host's binary\n%v", r)
	}
	if slices.Contains(strings.Split(r.Stdout, "\n"), w.State) {
		t.Errorf("the state directory is in the box\n%v", r)
	}
}
