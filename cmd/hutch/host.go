package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"hutch/internal/api"
)

// host is a tree of this machine, below one argument of `hutch box cp`. The
// argument itself is the user's, links and all; what is below it is reached
// from its own directory, so that no link which a box made, or which somebody
// puts there meanwhile, leads out of it.
type host struct {
	top  string
	dir  string // what root is the root of: top, or what it lies in
	root *os.Root
}

func newHost(top string) (*host, error) {
	if top == "" {
		top = "."
	}
	h := &host{top: filepath.Clean(top), dir: filepath.Clean(top)}
	info, err := os.Stat(top)
	if err != nil || !info.IsDir() {
		h.dir = filepath.Dir(h.top)
	}
	h.root, err = os.OpenRoot(h.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &api.Error{Code: api.NotFound, Text: fmt.Sprintf("%s is not there; make it first", h.dir)}
	}
	return h, err
}

func (h *host) name(p string) string { return p }

// rel is a path as the root knows it.
func (h *host) rel(p string) (string, error) { return filepath.Rel(h.dir, filepath.FromSlash(p)) }

func (h *host) stat(_ context.Context, p string) (*api.File, error) {
	var info fs.FileInfo
	var err error
	if filepath.Clean(p) == h.top {
		info, err = os.Stat(h.top)
	} else if rel, bad := h.rel(p); bad != nil {
		return nil, bad
	} else {
		info, err = h.root.Stat(rel)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return fileOf(info), nil
}

func fileOf(info fs.FileInfo) *api.File {
	f := &api.File{Name: info.Name(), Size: info.Size(), Mode: uint32(info.Mode().Perm()), ModTime: info.ModTime(), Type: "other"}
	switch {
	case info.Mode().IsRegular():
		f.Type = "file"
	case info.IsDir():
		f.Type = "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		f.Type = "symlink"
	}
	return f
}

func (h *host) list(_ context.Context, p string) ([]api.File, error) {
	rel, err := h.rel(p)
	if err != nil {
		return nil, err
	}
	dir, err := h.root.Open(rel)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var list []api.File
	for _, e := range entries {
		name := filepath.Join(rel, e.Name())
		info, err := h.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went meanwhile
		}
		if err != nil {
			return nil, err
		}
		f := fileOf(info)
		f.Name = e.Name()
		if f.Type == "symlink" {
			if f.Target, err = h.root.Readlink(name); err != nil {
				return nil, err
			}
		}
		list = append(list, *f)
	}
	return list, nil
}

func (h *host) read(_ context.Context, p string) (io.ReadCloser, error) {
	if filepath.Clean(p) == h.top {
		return os.Open(h.top)
	}
	rel, err := h.rel(p)
	if err != nil {
		return nil, err
	}
	return h.root.Open(rel)
}

// write puts a file in place when it is whole.
func (h *host) write(_ context.Context, p string, mode uint32, content io.Reader) (err error) {
	rel, err := h.rel(p)
	if err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(rel), ".hutch-cp-"+rand.Text())
	file, err := h.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(mode)&fs.ModePerm)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = h.root.Rename(temp, rel)
	}
	if err != nil {
		_ = h.root.Remove(temp) // the error is another
	}
	return err
}

// mkdir makes a directory that its owner can write, or what follows could not be
// copied into it.
func (h *host) mkdir(_ context.Context, p string, mode uint32) error {
	rel, err := h.rel(p)
	if err != nil || rel == "." {
		return err
	}
	err = h.root.Mkdir(rel, fs.FileMode(mode)&fs.ModePerm|0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	if info, lerr := h.root.Stat(rel); lerr == nil && info.IsDir() {
		return nil
	}
	return err
}

func (h *host) symlink(_ context.Context, p, target string) error {
	rel, err := h.rel(p)
	if err != nil {
		return err
	}
	err = h.root.Symlink(target, rel)
	if errors.Is(err, fs.ErrExist) {
		if old, lerr := h.root.Readlink(rel); lerr == nil && old != target {
			if err = h.root.Remove(rel); err == nil {
				err = h.root.Symlink(target, rel)
			}
		} else if lerr == nil {
			return nil
		}
	}
	return err
}
