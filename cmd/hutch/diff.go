package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/box"
	"hutch/internal/changeset"
	"hutch/internal/client"
	"hutch/internal/guard"
)

// diffFlags are the flags of hutch diff.
type diffFlags struct {
	color                        choice
	git                          choice
	noPager                      bool
	stat, nameStatus, zero, json bool
	globs                        []string
}

func diffCommand() *cobra.Command {
	f := diffFlags{
		color: choice{value: "auto", of: []string{"auto", "always", "never"}},
		git:   choice{value: "exclude", of: []string{"exclude", "include"}},
	}
	cmd := &cobra.Command{
		Use:   "diff BOX [-- GLOB…]",
		Short: "Show what a box changed, as a patch",
		Long: `Show what a box changed, as a patch that git apply takes. On a terminal it is
coloured, paged by $HUTCH_PAGER, $PAGER or less, and what could steer the terminal
or mislead the eye is made visible. GLOBs, in gitignore's syntax, choose paths.`,
		Example: `  hutch diff 3f9c
  hutch diff 3f9c --stat -- 'src/**'
  hutch diff 3f9c | git apply --3way`,
		RunE: func(_ *cobra.Command, args []string) error {
			err := f.run(context.Background(), args)
			if err != nil && f.json {
				tellJSON(err)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&f.stat, "stat", false, "how many lines each file gained and lost")
	flags.BoolVar(&f.nameStatus, "name-status", false, "a letter and the name of each file: A, M, D, R (renamed) or T (type changed)")
	flags.BoolVarP(&f.zero, "null", "z", false, "with --name-status: raw names, each ended by a NUL")
	flags.BoolVar(&f.json, "json", false, "the lists of paths and every entry as JSON")
	flags.Var(&f.color, "color", "auto, always or never")
	flags.Lookup("color").NoOptDefVal = "always"
	flags.BoolVar(&f.noPager, "no-pager", false, "do not page on a terminal")
	flags.Var(&f.git, "git", "exclude or include .git")
	return cmd
}

func (f *diffFlags) check() error {
	if n := count(f.stat, f.nameStatus, f.json); n > 1 {
		return errors.New("--stat, --name-status and --json: give one of them")
	}
	if f.zero && !f.nameStatus {
		return errors.New("-z goes with --name-status")
	}
	return nil
}

func count(flags ...bool) (n int) {
	for _, set := range flags {
		if set {
			n++
		}
	}
	return n
}

func (f *diffFlags) run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "" {
		return invalid("give a box; see `hutch box list`")
	}
	id := args[0]
	f.globs = args[1:]
	if err := f.check(); err != nil {
		return err
	}
	c, err := holder(ctx, id)
	if err != nil {
		return err
	}
	if c != nil {
		return f.there(ctx, c, id)
	}
	return withLocal(ctx, func(boxes *box.Boxes) error { return f.here(ctx, boxes, id) })
}

// here looks at a box in this process.
func (f *diffFlags) here(ctx context.Context, boxes *box.Boxes, id string) error {
	start := time.Now()
	return boxes.View(ctx, id, f.git.value == "include", func(c *changeset.Changeset, t changeset.Trees, judge box.Judge) error {
		c, err := box.Select(c, f.globs)
		if err != nil {
			return err
		}
		if f.json {
			report, err := box.Describe(c, t, judge, start)
			if err != nil {
				return err
			}
			return printJSON(report)
		}
		s := f.screen()
		defer s.close()
		if f.stat || f.nameStatus {
			files, dirs, err := box.FileStats(c, t)
			if err != nil {
				return err
			}
			err = f.list(s, files, dirs)
			if err != nil || f.nameStatus {
				return err
			}
		} else if err := f.patch(s, c, t); err != nil {
			return err
		}
		if err := tellUntold(c.Untold(), s); err != nil {
			return err
		}
		s.close()
		findings, err := judge(c)
		if err != nil {
			return err
		}
		held, flagged := box.ByTier(findings)
		tellFindings(id, held, flagged)
		return nil
	})
}

// there has the daemon look at a box that lives.
func (f *diffFlags) there(ctx context.Context, c *client.Client, id string) error {
	git := f.git.value == "include"
	text, err := readDiff(ctx, c, id, "json", git, f.globs)
	if err != nil {
		return err
	}
	var report box.DiffReport
	if err := decode(text, &report); err != nil {
		return err
	}
	if f.json {
		return printJSON(&report)
	}
	var patch []byte
	if !f.stat && !f.nameStatus {
		if patch, err = readDiff(ctx, c, id, "patch", git, f.globs); err != nil {
			return err
		}
	}
	s := f.screen()
	defer s.close()
	if f.stat || f.nameStatus {
		files, dirs := report.FileStats()
		err = f.list(s, files, dirs)
	} else {
		err = f.show(s, string(patch))
	}
	if err != nil || f.nameStatus {
		return err
	}
	if err := tellUntold(report.Untold, s); err != nil {
		return err
	}
	s.close()
	if report.Unjudged != "" {
		return errors.New(report.Unjudged)
	}
	tellFindings(id, report.Held, report.Flagged)
	return nil
}

func readDiff(ctx context.Context, c *client.Client, id, format string, git bool, only []string) ([]byte, error) {
	r, err := c.Diff(ctx, id, format, git, only)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// screen is for a person where standard output is a terminal, or colours are
// asked for, and for git apply where it is not. Raw names are for a program.
func (f *diffFlags) screen() *screen {
	if f.zero {
		return &screen{Writer: os.Stdout}
	}
	return openScreen(f.color.value, !f.noPager)
}

// list writes a line for each file.
func (f *diffFlags) list(s *screen, files []changeset.FileStat, dirs []changeset.DirRename) error {
	out := bufio.NewWriter(s)
	switch {
	case f.zero:
		changeset.WriteNameStatusZ(out, files)
	case f.stat:
		changeset.WriteStat(out, files, dirs, s.columns, s.colour)
	default:
		changeset.WriteNameStatus(out, files, dirs)
	}
	return s.end(out.Flush())
}

// patch writes a patch, a file at a time.
func (f *diffFlags) patch(s *screen, c *changeset.Changeset, t changeset.Trees) error {
	out := bufio.NewWriter(s)
	err := changeset.Files(c, t, func(file *changeset.FileChange) error {
		if !s.human {
			file.Write(out)
			return nil
		}
		var text bytes.Buffer
		w := bufio.NewWriter(&text)
		file.WriteText(w)
		_ = w.Flush() // into memory
		return paint(out, text.String(), s.colour)
	})
	if err == nil {
		err = out.Flush()
	}
	return s.end(err)
}

// show writes a patch that is there as a whole.
func (f *diffFlags) show(s *screen, patch string) error {
	out := bufio.NewWriter(s)
	if !s.human {
		out.WriteString(patch)
		return s.end(out.Flush())
	}
	if err := paint(out, patch, s.colour); err != nil {
		return s.end(err)
	}
	return s.end(out.Flush())
}

// mostUntold is how many changes are named that a patch does not carry.
const mostUntold = 10

// tellUntold names what no patch can carry: at the end of what a person reads,
// else on standard error, where it is in the way of no program.
func tellUntold(all []changeset.Untold, s *screen) error {
	if len(all) == 0 || s.gone {
		return nil
	}
	var w io.Writer = os.Stderr
	if s.human {
		w = s
	}
	var text bytes.Buffer
	for _, u := range all[:min(len(all), mostUntold)] {
		fmt.Fprintf(&text, "hutch: not in a patch: %q: %s\n", u.Path, u.What)
	}
	if more := len(all) - mostUntold; more > 0 {
		fmt.Fprintf(&text, "hutch: not in a patch: %d more; --json lists every entry\n", more)
	}
	_, err := w.Write(text.Bytes())
	return s.end(err)
}

// tellFindings says on standard error what the handoff guard would hold or
// name, were the box committed.
func tellFindings(id string, held, flagged []guard.Finding) {
	for _, line := range explainGuard(id, held, flagged, true) {
		fmt.Fprintln(os.Stderr, "hutch: "+line)
	}
}

// showPatch prints the patch of a run: as it is into a pipe, made safe for a
// terminal.
func showPatch(patch string) error {
	s := openScreen("auto", false)
	if !s.human {
		_, err := io.WriteString(os.Stdout, patch)
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	return errors.Join(paint(out, patch, s.colour), out.Flush())
}

// dumb reports whether the terminal knows no colours, nor how to page.
func dumb() bool { return slices.Contains([]string{"", "dumb"}, os.Getenv("TERM")) }
