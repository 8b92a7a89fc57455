package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hutch/internal/changeset"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// scene is a workspace of small files and a layer that changes each of them.
type scene struct {
	dir   string
	n     int
	ws    *workspace.Workspace
	layer int
	req   promote.Request
}

// perDirectory keeps directories at a size that projects have.
const perDirectory = 500

func name(i int) string { return fmt.Sprintf("d%03d/f%05d", i/perDirectory, i) }

func content(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, 1000) }

// plant writes all files beneath root.
func plant(root string, n int, data func(int) []byte) error {
	for i := range n {
		at := filepath.Join(root, name(i))
		if i%perDirectory == 0 {
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(at, data(i), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func old(int) []byte { return []byte("old\n") }

func newScene(dir string, n int) (*scene, error) {
	s := &scene{dir: dir, n: n, layer: -1}
	for _, d := range []struct {
		name string
		data func(int) []byte
	}{{"ws", old}, {"bare", old}, {"commit", old}, {"layer", content}} {
		if err := os.MkdirAll(filepath.Join(dir, d.name), 0o755); err != nil {
			return nil, err
		}
		if d.name == "commit" && n > 10_000 {
			continue
		}
		if err := plant(filepath.Join(dir, d.name), n, d.data); err != nil {
			return nil, err
		}
	}
	var err error
	if s.ws, err = workspace.Open(filepath.Join(dir, "ws"), true); err != nil {
		return nil, err
	}
	stamp, err := workspace.TakeStamp(s.ws)
	if err != nil {
		return nil, err
	}
	if s.layer, err = unix.Open(filepath.Join(dir, "layer"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	changes, err := changeset.Read(changeset.Source{
		Form: changeset.Overlay, Layer: s.layer, Workspace: s.ws.FD, XattrPrefix: "trusted.overlay.", Merged: -1, Manifest: -1,
	})
	if err != nil {
		return nil, err
	}
	if len(changes.Entries) != n {
		return nil, fmt.Errorf("%d entries read", len(changes.Entries))
	}
	s.req = promote.Request{ID: "bench", Workspace: s.ws.FD, Layer: s.layer, Picked: -1, Changes: changes, Stamp: stamp, Receipt: []byte("{}"), Key: promote.Key{1}}
	return s, nil
}

// dirty flushes everything, and leaves the layer as a box does that just ended:
// written, but not yet on the disk. The way by hand writes as much by itself.
func (s *scene) dirty() error {
	if err := unix.Syncfs(s.layer); err != nil {
		return err
	}
	for i := range s.n {
		f, err := os.OpenFile(filepath.Join(s.dir, "layer", name(i)), os.O_WRONLY, 0)
		if err != nil {
			if os.IsNotExist(err) {
				return nil // promoted already
			}
			return err
		}
		var st unix.Stat_t
		_ = unix.Fstat(int(f.Fd()), &st)
		_, err = f.Write(content(i))
		// The changeset knows the file by its times.
		_ = unix.UtimesNanoAt(unix.AT_FDCWD, f.Name(), []unix.Timespec{st.Atim, st.Mtim}, 0)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) promote() error {
	res, err := promote.Apply(context.Background(), s.req)
	if err == nil && res.Promoted != s.n {
		err = fmt.Errorf("%d of %d promoted", res.Promoted, s.n)
	}
	return err
}

func (s *scene) bare() error {
	root := filepath.Join(s.dir, "bare")
	for i := range s.n {
		at := filepath.Join(root, name(i))
		f, err := os.Create(at + ".tmp")
		if err != nil {
			return err
		}
		if _, err := f.Write(content(i)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		if err := os.Rename(at+".tmp", at); err != nil {
			return err
		}
	}
	for i := 0; i < s.n; i += perDirectory {
		d, err := os.Open(filepath.Dir(filepath.Join(root, name(i))))
		if err != nil {
			return err
		}
		if err := d.Sync(); err != nil {
			return err
		}
		d.Close()
	}
	return nil
}

// whole times `hutch commit` of a kept box that changed as much, in
// milliseconds: the process from start to end.
func (s *scene) whole(bin string) (float64, error) {
	ws, layers := filepath.Join(s.dir, "commit"), filepath.Join(s.dir, "layers")
	if err := os.MkdirAll(layers, 0o755); err != nil {
		return 0, err
	}
	run := func(args ...string) ([]byte, error) {
		cmd := exec.Command(bin, args...)
		cmd.Dir = ws
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "XDG_STATE_HOME=" + filepath.Join(s.dir, "state"), "TMPDIR=/tmp"}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("hutch %s: %w: %s%s", args[0], err, out, stderr.String())
		}
		return out, nil
	}
	out, err := run("run", "--json", "--preserve", "--layer-dir", layers, "--", "sh", "-ec", `
t=$(head -c 1000 /dev/zero | tr '\0' b)
for f in d*/f*; do echo "$t" > $f; done`)
	if err != nil {
		return 0, err
	}
	var o struct{ ID string }
	if err := json.Unmarshal(out, &o); err != nil {
		return 0, err
	}
	start := time.Now()
	_, err = run("commit", o.ID)
	return float64(time.Since(start).Microseconds()) / 1000, err
}

func (s *scene) close() error {
	s.ws.Close()
	unix.Close(s.layer)
	return os.RemoveAll(s.dir)
}
