package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/test/lab"
)

// value returns what the report says of a name.
func (a *account) value(name string) string {
	for _, w := range a.find("SAY") {
		if w.what == name {
			return w.detail
		}
	}
	return "(not said)"
}

// refusedCalls answer EPERM in every box, whatever their arguments.
var refusedCalls = []string{
	"mount", "umount2", "pivot_root", "unshare", "setns", "chroot", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "keyctl", "add_key", "request_key", "kexec_load", "init_module", "finit_module", "delete_module",
	"reboot", "swapon", "acct", "quotactl", "fanotify_init", "open_by_handle_at", "name_to_handle_at", "kcmp", "pidfd_getfd", "settimeofday", "clock_adjtime", "sethostname", "syslog", "fsopen", "fsmount", "fsconfig",
	"open_tree", "move_mount", "mount_setattr",
}

// TestReport compares what a box says of its own confinement with what is
// promised.
func TestReport(t *testing.T) {
	for _, u := range whos() {
		for _, net := range []bool{false, true} {
			t.Run(u.name+map[bool]string{true: "/network"}[net], func(t *testing.T) {
				st := newStage(t, lab.Strategies(t)[0], u)
				a := attack{name: "report"}
				if net {
					a.flags = []string{"--allow-net"}
				}
				st.remember()
				acc := st.box(&a)
				if len(acc.find("END")) == 0 {
					t.Fatalf("no report: %s", acc.summary())
				}
				for _, d := range acc.damage {
					t.Error(d)
				}
				id := strconv.Itoa(u.uid)
				four := strings.Join([]string{id, id, id, id}, " ")
				zero := "0000000000000000"
				wants := map[string]string{
					"Uid": four, "Gid": four, "CapInh": zero, "CapPrm": zero, "CapEff": zero, "CapBnd": zero, "CapAmb": zero, "NoNewPrivs": "1", "Seccomp": "2",
					"hostname": "localhost", "core": "1", "pid": "a child of 1", "session": "its own", "max_user_namespaces": "0",
					"devices": "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero", "call clone3": "ENOSYS",
				}
				if !net {
					wants["interfaces"] = "lo"
				}
				if !root() {
					wants["uid_map"], wants["gid_map"], wants["setgroups"] = id+" "+id+" 1", id+" "+id+" 1", "deny"
				}
				for _, call := range refusedCalls {
					wants["call "+call] = "EPERM"
				}
				for name, want := range wants {
					if got := acc.value(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
				for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
					own, err := os.Readlink("/proc/self/ns/" + ns)
					must(t, err)
					got := acc.value("namespace " + ns)
					if !strings.HasPrefix(got, ns+":[") {
						t.Errorf("namespace %s: %q", ns, got)
					}
					if shared := net && ns == "net"; (got == own) != shared {
						t.Errorf("namespace %s is %s, ours is %s", ns, got, own)
					}
				}
				// An ordinary user has no /sys of the host's network.
				st.mounts(t, acc, !net || root())
			})
		}
	}
}

// mounts checks the flags of every mount that a box has.
func (st *stage) mounts(t *testing.T, acc *account, sys bool) {
	mounts := acc.find("MOUNT")
	if len(mounts) < 20 {
		t.Fatalf("only %d mounts", len(mounts))
	}
	seen := map[string]bool{}
	for _, m := range mounts {
		f := strings.Split(m.detail, "\t")
		kind, options, propagation := f[0], strings.Split(f[1], ","), f[2]
		seen[m.what] = true
		if propagation != "private" {
			t.Errorf("the mount at %s propagates", m.what)
		}
		if !slices.Contains(options, "nosuid") {
			t.Errorf("the mount at %s is not nosuid: %s", m.what, f[1])
		}
		device := strings.HasPrefix(m.what, "/dev/") || kind == "devtmpfs"
		if !device && !slices.Contains(options, "nodev") {
			t.Errorf("the mount at %s is not nodev: %s", m.what, f[1])
		}
		if device && !slices.Contains(options, "noexec") && m.what != "/dev/shm" && !slices.Contains(options, "nodev") {
			t.Errorf("the mount at %s is neither noexec nor nodev: %s", m.what, f[1])
		}
		writable := slices.Contains(options, "rw")
		private := m.what == st.Dir || m.what == "/tmp" || m.what == "/dev/shm" || m.what == "/dev/pts" || m.what == "/proc" || m.what == "/dev/mqueue" || m.what == st.Home || strings.HasPrefix(m.what, st.Home+"/")
		if writable && !private {
			// A cache of the host's own, shown copy-on-write.
			if kind != "overlay" && kind != "tmpfs" {
				t.Errorf("%s at %s is writable: %s", kind, m.what, f[1])
			}
		}
	}
	for _, at := range []string{"/", "/proc", "/sys", "/dev/null", "/proc/sys", st.Dir} {
		if !seen[at] && (at != "/sys" || sys) {
			t.Errorf("nothing is mounted at %s", at)
		}
	}
	if !seen["/proc/keys"] {
		t.Error("/proc/keys is not masked")
	}
}

// TestPosture looks at the live processes of a box from outside.
func TestPosture(t *testing.T) {
	for _, u := range whos() {
		t.Run(u.name, func(t *testing.T) {
			w := lab.New(t)
			if u.uid != os.Getuid() {
				must(t, os.Chown(w.Dir, u.uid, u.uid))
			}
			args := append([]string{"run", "--pids", "100"}, u.args...)
			r := w.Start(lab.Options{}, append(args, "--", "sh", "-c", "sleep 60 & echo ready; exec sleep 60")...)
			r.WaitFor("ready")
			defer func() {
				r.Signal(unix.SIGTERM)
				r.Wait()
			}()
			var init, command int
			var others []int
			deadline := time.Now().Add(20 * time.Second)
			for {
				init, command, others = 0, 0, nil
				for _, pid := range below(r.Pid()) {
					inner := field(pid, "NSpid")
					switch {
					case len(inner) < 2:
						t.Logf("%d is outside: %v", pid, inner)
					case inner[len(inner)-1] == "1":
						init = pid
					case command == 0 || pid < command:
						others = append(others, command)
						command = pid
					default:
						others = append(others, pid)
					}
				}
				others = slices.DeleteFunc(others, func(p int) bool { return p == 0 })
				if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", command)); strings.TrimSpace(string(name)) == "sleep" && len(others) == 1 || time.Now().After(deadline) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if init == 0 || command == 0 || len(others) != 1 {
				t.Fatalf("init %d, command %d, others %v", init, command, others)
			}
			for _, pid := range []int{init, command, others[0]} {
				who := fmt.Sprintf("process %d (of %d, init is %d)", pid, command, init)
				for name, want := range map[string]string{"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2", "TracerPid": "0"} {
					if got := strings.Join(field(pid, name), " "); got != want {
						t.Errorf("%s: %s is %s, want %s", who, name, got, want)
					}
				}
				for _, id := range field(pid, "Uid") {
					if id != strconv.Itoa(u.uid) {
						t.Errorf("%s runs as %s, want %d", who, id, u.uid)
					}
				}
				for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
					own, err := os.Readlink("/proc/self/ns/" + ns)
					must(t, err)
					got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
					if err != nil {
						if pid == init && !root() {
							continue // it is not dumpable, and so not to be looked at
						}
						t.Errorf("%s: namespace %s: %v", who, ns, err)
					} else if got == own {
						t.Errorf("%s shares our %s namespace", who, ns)
					}
				}
				score, _ := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
				mine, _ := os.ReadFile("/proc/self/oom_score_adj")
				a, _ := strconv.Atoi(strings.TrimSpace(string(score)))
				b, _ := strconv.Atoi(strings.TrimSpace(string(mine)))
				if a < b {
					t.Errorf("%s: oom_score_adj %d is less than ours, %d", who, a, b)
				}
			}
			// Exactly 0, 1, 2, and none of them a file.
			for _, pid := range []int{command, others[0]} {
				fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
				must(t, err)
				var names []string
				for _, fd := range fds {
					names = append(names, fd.Name())
					to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
					if !strings.HasPrefix(to, "pipe:") && !strings.HasPrefix(to, "socket:") && to != "/dev/null" {
						t.Errorf("descriptor %s is %s", fd.Name(), to)
					}
				}
				if strings.Join(names, " ") != "0 1 2" {
					t.Errorf("descriptors %v", names)
				}
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
				must(t, err)
				own, _ := os.ReadFile("/proc/self/uid_map")
				want := strings.Fields(string(own))
				if !root() {
					want = []string{strconv.Itoa(u.uid), strconv.Itoa(u.uid), "1"}
				}
				if got := strings.Fields(string(text)); !slices.Equal(got, want) {
					t.Errorf("uid_map %v, want %v", got, want)
				}
			}
			// What belongs to a process that is not dumpable belongs to root.
			var s unix.Stat_t
			must(t, unix.Stat(fmt.Sprintf("/proc/%d/fd", init), &s))
			if s.Uid != 0 {
				t.Errorf("init is dumpable: its descriptors belong to uid %d", s.Uid)
			}
			if root() {
				fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", init))
				must(t, err)
				for _, fd := range fds {
					to, _ := os.Readlink(fd)
					if strings.HasPrefix(to, "/") && to != "/dev/null" && !strings.HasPrefix(to, "/memfd:boxinit") {
						t.Errorf("init holds %s", to)
					}
				}
				exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", init))
				if !strings.HasPrefix(exe, "/memfd:boxinit") {
					t.Errorf("init is %s", exe)
				}
			}
		})
	}
}

// field returns the words of a line of a process's status.
func field(pid int, name string) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}

// below lists the processes that descend from one.
func below(top int) []int {
	family := map[int]bool{top: true}
	var list []int
	for range 4 {
		found, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range found {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			if parent := field(pid, "PPid"); len(parent) == 1 && !family[pid] {
				p, _ := strconv.Atoi(parent[0])
				if family[p] {
					family[pid] = true
					list = append(list, pid)
				}
			}
		}
	}
	slices.Sort(list)
	return list
}
