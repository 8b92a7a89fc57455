package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"hutch/internal/api"
	"hutch/internal/client"
)

func boxCopyCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("cp SRC DST", "Copy files and directories into a box, out of one, or between two", words{2, 2, "give a source and a destination, one or both as BOX:PATH"}, func(ctx context.Context, args []string) error {
		t, err := copyArgs(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		err = t.copy(ctx)
		if err == nil && wantsJSON(cmd.Flags()) {
			err = printJSON(t.copied)
		}
		if err == nil && len(t.copied.LeftOut) > 0 {
			return failed
		}
		return err
	})
	cmd.Long = `Copy a file, or a directory with all that is in it, into a box, out of one, or from
one to another. A path in a box that is not absolute begins in the workspace; a path
of this machine that has a colon begins with ./. A destination that is a directory
takes the source in under its name.

Contents and permissions are copied; owners are not. Symbolic links that would lead
out of what is copied, and what is neither file, directory nor link, are left out and
named, and the exit code is then 125.`
	cmd.Example = `  hutch box cp ./data fix-123:/tmp
  hutch box cp fix-123:report.html .
  hutch box cp fix-1:out fix-2:out`
	return cmd
}

// place is one end of a copy: a tree in which paths are resolved.
type place interface {
	// stat tells what is at a path; nil when nothing is.
	stat(ctx context.Context, path string) (*api.File, error)
	// list lists a directory.
	list(ctx context.Context, path string) ([]api.File, error)
	read(ctx context.Context, path string) (io.ReadCloser, error)
	write(ctx context.Context, path string, mode uint32, content io.Reader) error
	mkdir(ctx context.Context, path string, mode uint32) error
	symlink(ctx context.Context, path, target string) error
	name(path string) string // for messages
}

// copied is what came of a copy, for programs.
type copied struct {
	Files       int      `json:"files"`
	Directories int      `json:"directories"`
	Links       int      `json:"links"`
	Bytes       int64    `json:"bytes"`
	LeftOut     []string `json:"left_out"`
}

// transfer is one copy.
type transfer struct {
	from, to       place
	source, target string
	top            string // the source itself, out of which no link may lead
	copied         copied
}

// copyArgs finds out what both arguments name.
func copyArgs(ctx context.Context, src, dst string) (*transfer, error) {
	srcBox, srcPath, srcIn := cutBox(src)
	dstBox, dstPath, dstIn := cutBox(dst)
	if !srcIn && !dstIn {
		return nil, invalid("neither %q nor %q names a box; write one as BOX:PATH", src, dst)
	}
	c, err := liveDaemon(ctx)
	if err != nil {
		return nil, err
	}
	t := &transfer{source: srcPath, target: dstPath, copied: copied{LeftOut: []string{}}}
	if t.from, err = placeOf(c, srcBox, srcPath, srcIn); err != nil {
		return nil, err
	}
	t.to, err = placeOf(c, dstBox, dstPath, dstIn)
	return t, err
}

func placeOf(c *client.Client, id, top string, in bool) (place, error) {
	if in {
		return inBox{c, id}, nil
	}
	return newHost(top)
}

func (t *transfer) copy(ctx context.Context) error {
	if t.source == "" {
		t.source = "."
	}
	from, err := t.from.stat(ctx, t.source)
	if err != nil {
		return err
	}
	if from == nil {
		return &api.Error{Code: api.NotFound, Text: t.from.name(t.source) + " is not there"}
	}
	to, err := t.to.stat(ctx, orDot(t.target))
	if err != nil {
		return err
	}
	target := orDot(t.target)
	if to != nil && to.Type == "directory" {
		// As cp -r: what has no name of its own gives what is in it.
		if name := path.Base(path.Clean("/" + t.source)); name != "/" && name != "." && name != ".." && !strings.HasSuffix(t.source, "/.") {
			target = path.Join(target, name)
			if to, err = t.to.stat(ctx, target); err != nil {
				return err
			}
		}
	} else if strings.HasSuffix(t.target, "/") && from.Type != "directory" {
		return &api.Error{Code: api.NotFound, Text: t.to.name(t.target) + " is no directory; make it first"}
	}
	if to != nil && (to.Type == "directory") != (from.Type == "directory") {
		return invalid("%s is a %s, and %s a %s; remove it first, or give another name", t.to.name(target), to.Type, t.from.name(t.source), from.Type)
	}
	t.top = t.source
	return t.one(ctx, from, t.source, target)
}

func orDot(p string) string {
	if p == "" {
		return "."
	}
	return p
}

// one copies what is at a path.
func (t *transfer) one(ctx context.Context, f *api.File, source, target string) error {
	switch f.Type {
	case "file":
		return t.file(ctx, f, source, target)
	case "directory":
		return t.directory(ctx, f, source, target)
	case "symlink":
		if !within(t.top, source, f.Target) {
			t.leaveOut(source, fmt.Sprintf("it leads out of what is copied, to %q", f.Target))
			return nil
		}
		err := t.to.symlink(ctx, target, f.Target)
		if errors.Is(err, errors.ErrUnsupported) {
			t.leaveOut(source, "links cannot be written to a box; `hutch box exec` can make them")
			return nil
		}
		if err == nil {
			t.copied.Links++
		}
		return err
	}
	t.leaveOut(source, "it is neither a file nor a directory nor a link")
	return nil
}

func (t *transfer) file(ctx context.Context, f *api.File, source, target string) error {
	r, err := t.from.read(ctx, source)
	if err != nil {
		return err
	}
	defer r.Close()
	content := &tally{r: r}
	if err := t.to.write(ctx, target, f.Mode&0o777, content); err != nil {
		return err
	}
	t.copied.Files++
	t.copied.Bytes += content.n
	return nil
}

func (t *transfer) directory(ctx context.Context, f *api.File, source, target string) error {
	list, err := t.from.list(ctx, source)
	if err != nil {
		return err
	}
	if err := t.to.mkdir(ctx, target, f.Mode&0o777); err != nil {
		return err
	}
	t.copied.Directories++
	for i := range list {
		e := &list[i]
		if e.Name == "" || e.Name == "." || e.Name == ".." || strings.ContainsAny(e.Name, "/\x00") {
			return fmt.Errorf("%s lists %q, which is no name", t.from.name(source), e.Name)
		}
		if err := t.one(ctx, e, path.Join(source, e.Name), path.Join(target, e.Name)); err != nil {
			return err
		}
	}
	return nil
}

func (t *transfer) leaveOut(source, why string) {
	t.copied.LeftOut = append(t.copied.LeftOut, source)
	say("left out: %s: %s", t.from.name(source), why)
}

// within reports whether a link at a path leads to somewhere in the tree that
// begins at top. What a box made must not become a link of the user's to a file
// that he never meant.
func within(top, at, target string) bool {
	if target == "" || path.IsAbs(target) {
		return false
	}
	top, at = path.Clean("/"+top), path.Clean("/"+at)
	if at == top { // a link by itself leads nowhere in what is copied
		return false
	}
	depth, down := strings.Count(strings.TrimPrefix(at, top), "/")-1, false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			// From where the link lies the way up is known. Behind a name it is not:
			// that may be a link itself, to higher up.
			if depth--; down || depth < 0 {
				return false
			}
		default:
			down = true
		}
	}
	return true
}

// inBox is the tree of a box.
type inBox struct {
	c  *client.Client
	id string
}

func (b inBox) name(p string) string { return b.id + ":" + p }

func (b inBox) list(ctx context.Context, p string) ([]api.File, error) {
	return b.c.ListDir(ctx, b.id, p)
}

func (b inBox) read(ctx context.Context, p string) (io.ReadCloser, error) {
	return b.c.ReadFile(ctx, b.id, p)
}

// stat follows links, within the box.
func (b inBox) stat(ctx context.Context, p string) (*api.File, error) {
	if f, err := b.c.StatFile(ctx, b.id, p); err == nil {
		return f, nil
	}
	_, err := b.c.ListDir(ctx, b.id, p)
	if err == nil {
		return &api.File{Name: path.Base(p), Path: p, Type: "directory", Mode: 0o755}, nil
	}
	var known *api.Error
	if !errors.As(err, &known) || known.Code != api.NotFound {
		return nil, err
	}
	if _, err := b.c.Show(ctx, b.id); err != nil { // it is the box that is not there
		return nil, err
	}
	return nil, nil
}

func (b inBox) mkdir(ctx context.Context, p string, _ uint32) error {
	return b.c.MakeDir(ctx, b.id, p)
}

func (b inBox) symlink(context.Context, string, string) error { return errors.ErrUnsupported }

func (b inBox) write(ctx context.Context, p string, mode uint32, content io.Reader) error {
	return b.c.WriteFile(ctx, b.id, p, mode, content)
}
