package box

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hutch/internal/api"
	"hutch/internal/policy"
)

func readAll(t *testing.T, b *Boxes, box, name string) (string, *api.File, error) {
	t.Helper()
	content, file, err := b.ReadFile(box, name)
	if err != nil {
		return "", nil, err
	}
	defer content.Close()
	text, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), file, nil
}

func TestFilesGoIntoABoxAndOut(t *testing.T) {
	b := testBoxes(t)
	ws := t.TempDir()
	if err := os.WriteFile(filepath.Join(ws, "given"), []byte("host"), 0o755); err != nil {
		t.Fatal(err)
	}
	box := create(t, b, api.Create{Workspace: ws}).ID
	if text, file, err := readAll(t, b, box, ws+"/given"); err != nil || text != "host" || file.Mode != 0o755 || file.Type != "file" || file.Size != 4 {
		t.Errorf("%q, %+v, %v", text, file, err)
	}
	if err := b.MakeDir(box, ws+"/a/b"); err != nil {
		t.Fatal(err)
	}
	if err := b.MakeDir(box, ws+"/a/b"); err != nil {
		t.Errorf("it is there already: %v", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, c := range []struct {
		name string
		mode uint32
		text []byte
	}{{ws + "/a/b/file", 0o640, []byte("new")}, {"/tmp/f", 0, []byte("tmp")}, {ws + "/given", 0, []byte("changed")}, {ws + "/large", 0, large}} {
		if err := b.WriteFile(box, c.name, c.mode, bytes.NewReader(c.text)); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if text, _, err := readAll(t, b, box, c.name); err != nil || text != string(c.text) {
			t.Errorf("%s: %d bytes, %v", c.name, len(text), err)
		}
	}
	// As the box's user: it may do with them what it likes.
	said(t, inBox(t, b, box, "stat -c '%a %u %g' a a/b a/b/file given /tmp/f | sort -u | grep -v \"$(id -u) $(id -g)$\"; cat a/b/file given; rm -r a given /tmp/f; echo"), "newchanged\n")
	if got, _ := os.ReadFile(filepath.Join(ws, "given")); string(got) != "host" {
		t.Errorf("the workspace's own file is %q", got)
	}
	said(t, inBox(t, b, box, "mkdir d; echo x >d/f; ln -s f d/l; ln -s nowhere d/dangling; mkfifo d/fifo"), "")
	list, err := b.ListDir(box, ws+"/d")
	if err != nil || len(list) != 4 || list[0].Name != "dangling" || list[0].Target != "nowhere" || list[1].Type != "file" && list[1].Type != "other" || list[2].Path != ws+"/d/fifo" && list[1].Path != ws+"/d/f" {
		t.Errorf("%+v, %v", list, err)
	}
	if text, _, err := readAll(t, b, box, ws+"/d/l"); err != nil || text != "x\n" {
		t.Errorf("through a link: %q, %v", text, err)
	}
	if f, err := b.Stat(box, ws+"/d/l"); err != nil || f.Type != "symlink" || f.Target != "f" {
		t.Errorf("%+v, %v", f, err)
	}
	for _, name := range []string{"/d/f", "/d/l", "/d/dangling", "/d/fifo", "/d"} {
		if err := b.RemoveFile(box, ws+name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	said(t, inBox(t, b, box, "ls"), "large\n")
}

func TestWhatIsNoFileOfABoxIsRefused(t *testing.T) {
	b := testBoxes(t)
	ws := t.TempDir()
	no := false
	box := create(t, b, api.Create{Workspace: ws}).ID
	said(t, inBox(t, b, box, "mkfifo fifo; mkdir dir full; touch full/x; ln -s loop loop; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"), "")
	for _, c := range []struct {
		name string
		want api.Code
	}{
		{ws + "/fifo", api.Invalid}, {ws + "/socket", api.Invalid}, {ws + "/dir", api.Invalid}, {ws + "/loop", api.Invalid}, {ws + "/none", api.NotFound}, {ws + "/fifo/x", api.NotFound},
		{"relative", api.NotFound}, {"fifo", api.Invalid}, {"", api.Invalid}, {"/a\x00b", api.Invalid}, {"/dev/null", api.Invalid}, {"/dev/ptmx", api.Invalid}, {"/proc/version", api.Invalid}, {"/proc/1/environ", api.Invalid},
		{"/proc/self/root/etc/passwd", api.NotFound}, {"/sys/kernel/uevent_seqnum", api.Invalid}, {"/etc/shadow", ""},
	} {
		done := make(chan error, 1)
		go func() {
			_, _, err := readAll(t, b, box, c.name)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil || c.want != "" && code(err) != c.want && !(strings.HasPrefix(c.name, "/proc/self") || strings.HasPrefix(c.name, "/proc/1") || strings.HasPrefix(c.name, "/sys")) {
				t.Errorf("%q: %v, want %s", c.name, err, c.want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("reading %q waits for ever", c.name)
		}
	}
	for name, want := range map[string]api.Code{
		"/etc/new": api.Refused, "/usr/bin/new": api.Refused, "/": api.Invalid, ws: api.Invalid, ws + "/dir": api.Invalid, ws + "/none/x": api.NotFound, "/proc/sys/kernel/hostname": api.Invalid, "/proc/x": api.Invalid,
	} {
		if err := b.WriteFile(box, name, 0, strings.NewReader("x")); code(err) != want {
			t.Errorf("write %q: %v, want %s", name, err, want)
		}
	}
	if err := b.RemoveFile(box, ws+"/full"); code(err) != api.Invalid {
		t.Errorf("a full directory: %v", err)
	}
	// What could not be written whole is not there at all.
	if err := b.WriteFile(box, ws+"/half", 0, io.MultiReader(strings.NewReader("half"), failing{})); err == nil {
		t.Error("the reader failed, and nobody says so")
	}
	said(t, inBox(t, b, box, "ls -A | grep -v -e fifo -e socket -e dir -e full -e loop; echo"), "\n")

	// A link at the end is replaced, and not followed.
	said(t, inBox(t, b, box, "ln -s /etc/hosts link"), "")
	if err := b.WriteFile(box, ws+"/link", 0, strings.NewReader("mine")); err != nil {
		t.Error(err)
	}
	said(t, inBox(t, b, box, "test ! -L link && cat link; echo"), "mine\n")

	readOnly := create(t, b, api.Create{Workspace: ws, Policy: policy.Policy{Capabilities: policy.Capabilities{FSWrite: &no}}}).ID
	if err := b.WriteFile(readOnly, ws+"/x", 0, strings.NewReader("x")); code(err) != api.Refused {
		t.Errorf("a workspace that is read-only: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken") }

// A box that changes what a path means while it is walked gets its own files read
// and written, and no others.
func TestLinksThatChangeLeadNowhereElse(t *testing.T) {
	b := testBoxes(t)
	ws, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "file")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	box := create(t, b, api.Create{Workspace: ws}).ID
	up := strings.Repeat("../", 20) + outside[1:]
	swap, err := b.Exec(context.Background(), box, api.Run{Argv: []string{"python3", "-c", `
import os
os.makedirs("d", exist_ok=True); open("d/file", "w").write("inside")
targets = ["d", "` + outside + `", "` + up + `", "/proc/self/root` + outside + `", "/proc/1/root` + outside + `", "/proc/self/cwd/../.."]
i = 0
while True:
    i += 1
    os.symlink(targets[i % len(targets)], "new"); os.rename("new", "way")
    if i == 1: open("/tmp/swapping", "w")
    try: os.symlink("` + secret + `", "d/new"); os.rename("d/new", "d/link")
    except OSError: pass
`}}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, err := b.Stat(box, "/tmp/swapping"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	deadline := time.Now().Add(3 * time.Second)
	reads := 0
	for time.Now().Before(deadline) {
		for _, name := range []string{"/way/file", "/d/link", "/way/../file"} {
			if text, _, err := readAll(t, b, box, ws+name); err == nil {
				reads++
				if strings.Contains(text, "of the host") {
					t.Fatalf("%s led out of the box: %q", name, text)
				}
			}
		}
		_ = b.WriteFile(box, ws+"/way/file", 0, strings.NewReader("written"))
		_ = b.MakeDir(box, ws+"/way/made/deep")
		_ = b.RemoveFile(box, ws+"/way/other")
		if list, err := b.ListDir(box, ws+"/way"); err == nil {
			for _, f := range list {
				if f.Type == "file" && f.Size == int64(len("of the host")) {
					t.Fatalf("the list led out of the box: %+v", f)
				}
			}
		}
	}
	if reads == 0 {
		t.Error("nothing was ever read")
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "of the host" {
		t.Errorf("the host's file: %q, %v", got, err)
	}
	entries, _ := os.ReadDir(outside)
	if len(entries) != 1 {
		t.Errorf("in the host's directory: %v", entries)
	}
	if err := b.Kill(box, api.Kill{Exec: swap.Exec().ID}); err != nil {
		t.Error(err)
	}
	if _, err := swap.Wait(context.Background()); err != nil {
		t.Error(err)
	}
}
