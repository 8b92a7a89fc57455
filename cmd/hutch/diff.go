package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/box"
	"hutch/internal/changeset"
	"hutch/internal/globs"
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
		Short: "Show what a kept box changed, as a patch",
		Long: `Show what a kept box changed, as a patch that git apply takes. On a terminal it is
coloured, paged by $HUTCH_PAGER, $PAGER or less, and what could steer the terminal
or mislead the eye is made visible. GLOBs, in gitignore's syntax, choose paths.`,
		Example: `  hutch diff 3f9c
  hutch diff 3f9c --stat -- 'src/**'
  hutch diff 3f9c | git apply --3way`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("give the id of a box; see `hutch box list`")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			f.globs = args[1:]
			if err := f.check(); err != nil {
				return err
			}
			return withStore(func(s *box.Store) error { return f.run(s, args[0]) })
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

func (f *diffFlags) run(s *box.Store, id string) error {
	start := time.Now()
	chosen, err := globs.Parse(f.globs)
	if err != nil {
		return err
	}
	return s.View(id, f.git.value == "include", func(c *changeset.Changeset, t changeset.Trees, judge box.Judge) error {
		if !chosen.Empty() {
			c = c.Only(func(e *changeset.Entry) bool { return chosen.Match(e.Path, e.IsDir()) })
		}
		switch {
		case f.json:
			report, err := box.Describe(c, t, judge, start)
			if err != nil {
				return err
			}
			return printJSON(report)
		case f.nameStatus && f.zero:
			files, _, err := box.FileStats(c, t)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(os.Stdout)
			changeset.WriteNameStatusZ(out, files)
			return out.Flush()
		}
		if err := f.view(c, t); err != nil || f.nameStatus {
			return err
		}
		return tellFindings(id, c, judge)
	})
}

// view writes for a person where standard output is a terminal, or colours are
// asked for, and for git apply where it is not.
func (f *diffFlags) view(c *changeset.Changeset, t changeset.Trees) error {
	screen := openScreen(f.color.value, !f.noPager)
	defer screen.close()
	out := bufio.NewWriter(screen)
	var err error
	switch {
	case f.stat, f.nameStatus:
		var files []changeset.FileStat
		var dirs []changeset.DirRename
		if files, dirs, err = box.FileStats(c, t); err != nil {
			break
		}
		if f.stat {
			changeset.WriteStat(out, files, dirs, screen.columns, screen.colour)
		} else {
			changeset.WriteNameStatus(out, files, dirs)
		}
	default:
		err = changeset.Files(c, t, func(file *changeset.FileChange) error {
			if !screen.human {
				file.Write(out)
				return nil
			}
			var text bytes.Buffer
			w := bufio.NewWriter(&text)
			file.WriteText(w)
			_ = w.Flush() // into memory
			return paint(out, text.String(), screen.colour)
		})
	}
	if err == nil {
		err = out.Flush()
	}
	if screen.left(err) {
		return nil
	}
	if err == nil && !f.nameStatus {
		err = tellUntold(c, screen)
	}
	return err
}

// mostUntold is how many changes are named that a patch does not carry.
const mostUntold = 10

// tellUntold names what no patch can carry: at the end of what a person reads,
// else on standard error, where it is in the way of no program.
func tellUntold(c *changeset.Changeset, s *screen) error {
	all := c.Untold()
	if len(all) == 0 {
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
	if s.left(err) {
		return nil
	}
	return err
}

// tellFindings says on standard error what the handoff guard would hold or
// name, were the box committed.
func tellFindings(id string, c *changeset.Changeset, judge box.Judge) error {
	findings, err := judge(c)
	if err != nil {
		return err
	}
	held, flagged := box.ByTier(findings)
	for _, line := range explainGuard(id, held, flagged, true) {
		fmt.Fprintln(os.Stderr, "hutch: "+line)
	}
	return nil
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
