package attack

import (
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// TestHostileStart starts hutch as a careless or hostile parent would; the box
// must be the same.
func TestHostileStart(t *testing.T) {
	users := whos()
	u := users[rand.Intn(len(users))]
	for _, c := range []struct {
		name  string
		shell string // makes the way hutch is started; "$@" is hutch and its arguments
		env   []string
	}{
		{name: "open descriptors", shell: `exec 3<"$SECRET" 4<"$BESIDE" 5<>"$SECRET" 8</ 9</etc; exec "$@"`},
		{name: "closed standard input", shell: `exec "$@" <&-`},
		{name: "closed standard error", shell: `exec "$@" 2>&-`},
		{name: "few descriptors", shell: `ulimit -n 64; exec "$@"`},
		{name: "umask of nothing", shell: `umask 0; exec "$@"`},
		{name: "umask of all", shell: `umask 077; exec "$@"`},
		{name: "umask of the owner too", shell: `umask 777; exec "$@"`},
		{name: "large core", shell: `ulimit -c unlimited; exec "$@"`},
		{name: "ignored signals", shell: `trap '' INT TERM HUP PIPE CHLD USR1; exec "$@"`},
		{name: "preloaded code", shell: `exec "$@"`, env: []string{"LD_PRELOAD=/nonexistent/evil.so", "LD_AUDIT=/nonexistent/evil.so", "LD_LIBRARY_PATH=/nonexistent", "GCONV_PATH=/nonexistent", "GODEBUG=http2debug=1", "GOTRACEBACK=crash"}},
		{name: "a box within", shell: `exec "$@"`, env: []string{"HUTCH_BOX=fake", "HUTCH_WORKSPACE=/etc", "HUTCH_LEAVE_OUT=seccomp,landlock,mask,assert"}},
		{name: "odd names in the environment", shell: `exec env "=x" "A B=y" "HUTCH_=z" "PATH=$PATH" "$@"`},
		{name: "a nice of 19", shell: `exec nice -n 19 "$@"`},
	} {
		if !lab.Proof() && rand.Intn(2) == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			st := newStage(t, lab.Strategies(t)[0], u)
			st.remember()
			args := append([]string{"-c", c.shell, "sh", lab.Hutch(t), "run", "--timeout", "60s"}, u.args...)
			names := []string{"fd-leak-list", "env-leak"}
			if lab.Proof() {
				names = append(names, "mount-anything", "trace-others", "host-secret-read")
			}
			for _, name := range names {
				full := append(append([]string{}, args...), "--", st.program, name)
				cmd := exec.Command("sh", append(full, st.params...)...)
				cmd.Dir = st.Dir
				cmd.Env = append(st.Environ("SECRET="+filepath.Join(st.beside, "secret"), "BESIDE="+st.beside), c.env...)
				cmd.WaitDelay = time.Minute
				text, err := cmd.Output()
				acc := &account{st: st, text: string(text)}
				if err != nil {
					acc.result.Stderr = err.Error()
					if exit, ok := err.(*exec.ExitError); ok {
						acc.result.Stderr += string(exit.Stderr)
					}
				}
				acc.parse()
				acc.damage = st.damage()
				if verdict, why := acc.judge(); verdict != Held {
					t.Errorf("%s: %s: %s\n%s\n%s", name, verdict, why, acc.text, acc.summary())
				}
			}
		})
	}
}

// TestOddWorkspaces runs from places where a box must either be as tight as ever
// or be refused.
func TestOddWorkspaces(t *testing.T) {
	w := lab.New(t)
	for _, dir := range []string{"/proc", "/proc/self", "/proc/sys", "/sys", "/sys/kernel", "/dev", "/proc/self/fd", "/proc/1/root", "/etc", "/usr/lib"} {
		r := w.RunWith(lab.Options{Dir: "/"}, "run", "--workspace", dir, "--timeout", "60s", "--", "sh", "-c", "echo x > written-by-a-box; chmod 777 .; echo ran; true")
		if _, err := os.Lstat(filepath.Join(dir, "written-by-a-box")); err == nil {
			os.Remove(filepath.Join(dir, "written-by-a-box"))
			t.Errorf("%s: the box wrote through: %v", dir, r)
		}
		if kernels := strings.HasPrefix(dir, "/proc") || strings.HasPrefix(dir, "/sys") || dir == "/dev"; kernels && (r.Code != 125 || strings.Contains(r.Stdout, "ran")) {
			t.Errorf("%s belongs to the kernel and was taken for a workspace: %v", dir, r)
		}
	}
}

// TestMountedWorkspaces runs from mounts with odd flags. That programs of a noexec
// mount can be started in a box gives it nothing: it could copy them.
func TestMountedWorkspaces(t *testing.T) {
	if !root() {
		t.Skip("only root can mount")
	}
	for _, c := range []struct {
		name  string
		flags uintptr
	}{{"noexec", unix.MS_NOEXEC}, {"nosuid", unix.MS_NOSUID}, {"read-only", unix.MS_RDONLY}} {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range []string{"overlay", "copy"} {
				base, err := os.MkdirTemp("", "odd-")
				must(t, err)
				must(t, os.Chmod(base, 0o755))
				must(t, unix.Mount("none", base, "tmpfs", 0, ""))
				t.Cleanup(func() {
					must(t, unix.Unmount(base, unix.MNT_DETACH))
					must(t, os.Remove(base))
				})
				w := lab.New(t)
				dir := filepath.Join(base, "ws")
				must(t, os.Mkdir(dir, 0o755))
				text, err := os.ReadFile(program(t))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(dir, "attack"), text, 0o755))
				must(t, unix.Mount("none", base, "", unix.MS_REMOUNT|c.flags, ""))
				r := w.RunWith(lab.Options{Dir: dir}, "run", "--strategy", s, "--user", "root", "--", "sh", "-c", "./attack whoami; echo x > new; echo done")
				t.Logf("%s %s: exit %d\n%s%s", c.name, s, r.Code, r.Stdout, r.Stderr)
				if !strings.Contains(r.Stdout, "CapEff:\t000000000000000") || !strings.Contains(r.Stdout, "done") {
					t.Errorf("%s: %v", s, r)
				}
				if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
					t.Errorf("%s: the box wrote through", s)
				}
			}
		})
	}
}

// TestQuietDoors: a FIFO of the host in the workspace is no way to speak with
// who waits at its other end.
func TestQuietDoors(t *testing.T) {
	lab.Each(t, func(t *testing.T, w *lab.World) {
		path := filepath.Join(w.Dir, "door")
		must(t, syscall.Mkfifo(path, 0o666))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		if _, err := unix.Write(fd, []byte("from the host")); err != nil {
			t.Fatal(err)
		}
		r := w.Box("--timeout", "60s", "--", "sh", "-c", "(echo from the box > door) & (timeout 1 cat door) ; kill %1; ls -l door; echo ended")
		if strings.Contains(r.Stdout, "from the host") || !strings.Contains(r.Stdout, "ended") {
			t.Errorf("%v", r)
		}
		buf := make([]byte, 100)
		n, _ := unix.Read(fd, buf)
		if got := string(buf[:max(n, 0)]); got != "from the host" {
			t.Errorf("the FIFO holds %q", got)
		}
	})
}
