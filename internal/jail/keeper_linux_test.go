package jail_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/jail"
	"hutch/internal/policy"
)

// overlayOptions are those of a live box.
func overlayOptions() string {
	if os.Geteuid() == 0 {
		return "redirect_dir=off,index=off,metacopy=off,volatile"
	}
	return "userxattr,index=off,metacopy=off,volatile"
}

func keeper(t testing.TB) *jail.Keeper {
	t.Helper()
	k, err := jail.StartKeeper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// bare is a box whose workspace is an empty mount point.
func bare(t testing.TB, d *policy.Box) *resident {
	t.Helper()
	d.Resident, d.Mount = true, policy.Mount{}
	return live(t, d)
}

// tree writes files below dir; a content of "-" is a whiteout.
func tree(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if content == "-" {
			err = unix.Mknod(path, unix.S_IFCHR, 0)
		} else {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func identity(t testing.TB, paths ...string) (ids [][2]uint64) {
	t.Helper()
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, [2]uint64{st.Dev, st.Ino})
	}
	return ids
}

// over makes an upper and a work directory of that name, and the request that
// mounts them over the layers.
func over(t testing.TB, r *resident, base, name string, lower ...string) jail.Remount {
	t.Helper()
	upper, work := filepath.Join(base, name), filepath.Join(base, name+"-work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return jail.Remount{
		NS: r.ns, Lower: lower, LowerID: identity(t, lower...), Upper: upper, Work: work, Options: overlayOptions(),
		Attr: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Target: r.workspace,
	}
}

// mount does it, and returns the number of the new mount.
func mount(t testing.TB, k *jail.Keeper, m jail.Remount) uint64 {
	t.Helper()
	root, err := k.Remount(m)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	id, err := jail.MountID(root)
	if err != nil || id == 0 {
		t.Fatalf("mount %d, %v", id, err)
	}
	return id
}

const list = `cd "$1" && for f in $(find . -type f | sort); do echo "$f $(cat $f)"; done`

func (r *resident) holds(id uint32, want string) {
	r.t.Helper()
	c := want
	if got, status := r.output(id, "sh", "-c", list, "sh", r.workspace); got != c || status != 0 {
		r.t.Fatalf("the workspace holds\n%swant\n%s(%#x)", got, want, int(status))
	}
}

func TestKeeperStacksLayersInABoxThatLives(t *testing.T) {
	base := temporary(t)
	d := description(t, base)
	tree(t, d.Workspace, map[string]string{"a": "workspace", "b": "workspace", "gone": "workspace", "dir/x": "workspace"})
	one := tree(t, filepath.Join(base, "one"), map[string]string{"b": "one", "c": "one", "gone": "-"})
	two := tree(t, filepath.Join(base, "two"), map[string]string{"c": "two"})
	k, r := keeper(t), bare(t, d)
	// One that was there before everything, and waits outside the workspace.
	early, err := os.Create(filepath.Join(base, "early"))
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	r.exec(1, early, "sh", "-c", `cd / && while ! [ -e "$0"/later ]; do sleep .01; done; cat "$0"/later`, r.workspace)
	first := over(t, r, base, "upper1", two, one, d.Workspace)
	was := mount(t, k, first)
	r.holds(2, "./a workspace\n./b one\n./c two\n./dir/x workspace\n")
	r.says(3, "", "sh", "-c", "echo written > new; rm c; mv b dir/y")
	if text, err := os.ReadFile(filepath.Join(first.Upper, "new")); err != nil || string(text) != "written\n" {
		t.Fatalf("%q, %v", text, err)
	}
	three := filepath.Join(base, "three")
	if err := os.Rename(first.Upper, three); err != nil {
		t.Fatal(err)
	}
	second := over(t, r, base, "upper2", three, two, one, d.Workspace)
	second.Replace, second.Was = true, was
	mount(t, k, second)
	r.holds(4, "./a workspace\n./dir/x workspace\n./dir/y one\n./new written\n")
	r.says(5, "", "sh", "-c", "echo seen > later")
	if s := r.exited(1); s != 0 {
		t.Errorf("%#x", int(s))
	}
	if text, err := os.ReadFile(early.Name()); err != nil || string(text) != "seen\n" {
		t.Errorf("an older process sees %q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(second.Upper, "later")); err != nil || string(text) != "seen\n" {
		t.Errorf("the new layer holds %q, %v", text, err)
	}
	if _, err := os.Lstat(filepath.Join(three, "later")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the frozen layer was written: %v", err)
	}
	if _, status := r.output(6, "sh", "-c", `grep -q "$0" /proc/self/mountinfo`, base+"/"+"upper"); status.ExitStatus() != 1 {
		t.Error("the box's mount table shows the host's paths")
	}
}

func TestKeeperLeavesAloneWhatItCannotReplace(t *testing.T) {
	base := temporary(t)
	d := description(t, base)
	tree(t, d.Workspace, map[string]string{"a": "workspace"})
	layer := tree(t, filepath.Join(base, "layer"), map[string]string{"a": "layer"})
	other := tree(t, filepath.Join(base, "other"), nil)
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	k, r := keeper(t), bare(t, d)
	was := mount(t, k, over(t, r, base, "upper1", d.Workspace))
	again := over(t, r, base, "upper2", layer, d.Workspace)
	again.Replace, again.Was = true, was
	id := uint32(1)
	refused := func(name string, want error, change func(*jail.Remount)) {
		t.Helper()
		m := again
		change(&m)
		root, err := k.Remount(m)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v (%d), want %v", name, err, root, want)
		}
		r.holds(id, "./a workspace\n")
		id++
	}
	refused("another mount is there", unix.ESTALE, func(m *jail.Remount) { m.Was++ })
	refused("another directory is there", unix.ESTALE, func(m *jail.Remount) { m.LowerID = identity(t, other, d.Workspace) })
	refused("no such layer", unix.ENOENT, func(m *jail.Remount) { m.Lower = []string{layer + "x", d.Workspace} })
	refused("an option that is none", unix.EINVAL, func(m *jail.Remount) { m.Options = "nonsense" })
	refused("no such place", unix.ENOENT, func(m *jail.Remount) { m.Target = "/no/such/place" })
	refused("nothing is mounted there", unix.EINVAL, func(m *jail.Remount) { m.Target, m.Was = "/dev", 0 })
	refused("too many layers", unix.E2BIG, func(m *jail.Remount) { m.Lower = make([]string, 33); m.LowerID = nil })
	refused("no layer", unix.E2BIG, func(m *jail.Remount) { m.Lower = nil })
	refused("a link as a layer", unix.ENOTDIR, func(m *jail.Remount) {
		link := filepath.Join(base, "link")
		if err := os.Symlink(layer, link); err != nil {
			t.Fatal(err)
		}
		m.Lower = []string{link, d.Workspace}
	})

	for name, script := range map[string]string{
		"a working directory": `cd "$1" && exec sleep 300`,
		"an open file":        `exec 9< "$1"/a; cd / && exec sleep 300`,
	} {
		busy := id
		r.exec(busy, nil, "sh", "-c", script, "sh", r.workspace)
		r.started(busy)
		id++
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) { // until it is sleep
			if text, _ := r.output(id, "sh", "-c", "cat /proc/[0-9]*/comm"); strings.Contains(text, "sleep\n") {
				break
			}
			if id++; time.Now().After(deadline) {
				t.Fatal("no sleep")
			}
		}
		id++
		refused(name, jail.ErrBusyMount, func(*jail.Remount) {})
		r.Signal(busy, syscall.SIGKILL)
		r.exited(busy)
	}
	// A directory fits in no file's place: what the keeper took away it puts back.
	if root, err := k.Remount(jail.Remount{NS: r.ns, Tree: layer, Target: "/dev/zero", Replace: true}); err == nil || errors.Is(err, jail.ErrLostMount) {
		t.Errorf("a directory on a device: %v (%d)", err, root)
	}
	r.says(id, "1\n", "sh", "-c", "grep -c ' /dev/zero ' /proc/self/mountinfo && test -c /dev/zero")
	id++

	mount(t, k, again) // that it was the request is not why it was refused
	r.holds(id, "./a layer\n")
}

// TestBoxesCannotLeadTheKeeperAstray: a box may rename what lies above its mount
// point, and put something else there.
func TestBoxesCannotLeadTheKeeperAstray(t *testing.T) {
	base := temporary(t)
	d := description(t, base)
	d.Workspace = filepath.Join(d.Home, "a", "ws")
	d.Mount.Lower = d.Workspace
	tree(t, d.Workspace, map[string]string{"a": "workspace"})
	k, r := keeper(t), bare(t, d)
	r.dir = "/" // the workspace will not always be there
	was := mount(t, k, over(t, r, base, "upper1", d.Workspace))
	again := over(t, r, base, "upper2", d.Workspace)
	again.Replace, again.Was = true, was
	for i, c := range []struct {
		script string
		want   error
	}{
		{`mv a z && mkdir -p a/ws`, unix.ESTALE},
		{`rm -r a && ln -s z a`, unix.ELOOP},
		{`rm a && mkdir a && ln -s ../z/ws a/ws`, unix.ESTALE},
		{`rm -r a`, unix.ENOENT},
	} {
		r.says(uint32(3*i+1), "", "sh", "-c", `cd "$0" && `+c.script, d.Home)
		if root, err := k.Remount(again); !errors.Is(err, c.want) {
			t.Errorf("%s: %v (%d), want %v", c.script, err, root, c.want)
		}
		r.says(uint32(3*i+2), "workspace", "cat", filepath.Join(d.Home, "z", "ws", "a"))
	}
	r.says(20, "", "mv", filepath.Join(d.Home, "z"), filepath.Join(d.Home, "a"))
	mount(t, k, again)
}

func TestKeeperBindsATree(t *testing.T) {
	base := temporary(t)
	d := description(t, base)
	copied := tree(t, filepath.Join(base, "copied"), map[string]string{"a": "tree"})
	k, r := keeper(t), bare(t, d)
	m := jail.Remount{NS: r.ns, Tree: copied, LowerID: identity(t, copied), Target: r.workspace, Attr: unix.MOUNT_ATTR_RDONLY}
	m.Was = mount(t, k, m)
	r.holds(1, "./a tree\n")
	if _, status := r.output(2, "touch", "b"); status == 0 {
		t.Error("it is not read-only")
	}
	m.Attr, m.Replace = 0, true
	mount(t, k, m)
	r.says(3, "", "touch", "b")
}

func TestKeeperStacksAsManyLayersAsItSays(t *testing.T) {
	base := temporary(t)
	d := description(t, base)
	var layers []string
	want := ""
	for i := range 32 {
		layers = append(layers, tree(t, filepath.Join(base, fmt.Sprint("a layer, with a name: ", i)), map[string]string{fmt.Sprintf("f%02d", i): "x"}))
		want += fmt.Sprintf("./f%02d x\n", i)
	}
	k, r := keeper(t), bare(t, d)
	mount(t, k, over(t, r, base, "upper:1", layers...))
	r.holds(1, want)
}

func TestKeeperServesManyBoxesAtOnce(t *testing.T) {
	k := keeper(t)
	var boxes []*resident
	var mounts [][]jail.Remount
	for range 4 {
		base := temporary(t)
		d := description(t, base)
		tree(t, d.Workspace, map[string]string{"a": "workspace"})
		r := bare(t, d)
		was := mount(t, k, over(t, r, base, "first", d.Workspace))
		var list []jail.Remount
		for i := range 8 {
			m := over(t, r, base, fmt.Sprint("next", i), d.Workspace)
			m.Replace = true
			list = append(list, m)
		}
		list[0].Was = was
		boxes, mounts = append(boxes, r), append(mounts, list)
	}
	var wait sync.WaitGroup
	for i := range boxes {
		wait.Go(func() {
			for _, m := range mounts[i] {
				root, err := k.Remount(m)
				if err != nil {
					t.Error(err)
					return
				}
				unix.Close(root)
			}
		})
	}
	wait.Wait()
	for i, r := range boxes {
		r.says(1, "", "touch", "b")
		if _, err := os.Lstat(filepath.Join(mounts[i][7].Upper, "b")); err != nil {
			t.Error(err)
		}
	}
}

func TestKeeperReachesABoxsNetwork(t *testing.T) {
	k, r := keeper(t), live(t, description(t, temporary(t)))
	out, err := os.Create(filepath.Join(t.TempDir(), "port"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	r.exec(1, out, "python3", "-uc", `
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1])
c, _ = s.accept()
c.sendall(b"hello from the box")
c.close()`)
	var port int
	for deadline := time.Now().Add(patience); port == 0; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(out.Name())
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("no port: %v", err)
		}
		_, _ = fmt.Sscanf(string(text), "%d\n", &port)
	}
	fd, err := k.Socket(r.ns, unix.AF_INET, unix.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "socket")
	defer socket.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := unix.Read(fd, buf)
	if string(buf[:n]) != "hello from the box" || err != nil {
		t.Errorf("%q, %v", buf[:n], err)
	}
	if s := r.exited(1); s != 0 {
		t.Errorf("%#x", int(s))
	}
	if fd, err := k.Socket(r.ns, unix.AF_INET, 77); err == nil {
		t.Errorf("a socket of no type: %d", fd)
	}
}

func TestKeeperIsReplacedWhenItDies(t *testing.T) {
	k, r := keeper(t), live(t, description(t, temporary(t)))
	state := func(pid string) (parent int, state string) {
		stat, _ := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		_, _ = fmt.Sscanf(string(stat[bytes.LastIndexByte(stat, ')')+1:]), "%s %d", &state, &parent)
		return
	}
	killed := 0
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		pid, _ := strconv.Atoi(p.Name())
		if parent, is := state(p.Name()); pid == r.Pid || parent != os.Getpid() || is == "Z" {
			continue
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if _, is := state(p.Name()); is == "Z" {
				break
			}
		}
		killed++
	}
	if killed == 0 { // what made PID 1 may be about to end
		t.Fatal("no keeper to be seen")
	}
	fd, err := k.Socket(r.ns, unix.AF_INET, unix.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}
